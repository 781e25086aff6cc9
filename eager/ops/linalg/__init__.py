"""In: the op table's core. Out: matmul, einsum and decompositions."""
