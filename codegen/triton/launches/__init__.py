"""In: launches in the order of a schedule. Out: fewer, with sources: merged, grouped, or driven by a table."""
