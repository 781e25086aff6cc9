"""In: the source of a kernel, and a device or target. Out: its binary and resources, or a run by an interpreter."""
