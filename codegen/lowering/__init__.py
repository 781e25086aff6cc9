"""In: an op. Out: one element of its result, as an expression of its operands' elements."""
