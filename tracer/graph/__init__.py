"""SSA graphs of segments. In: the entries of a segment. Out: an SSA graph, optimised by passes."""
