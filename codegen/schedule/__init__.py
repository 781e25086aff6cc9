"""In: a graph of primitive ops. Out: fused steps, and a memory plan."""
