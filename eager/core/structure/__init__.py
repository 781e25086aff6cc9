"""In: Python data that holds tensors. Out: its leaves, its containers, the objects that it leads to."""
