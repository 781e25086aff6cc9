"""In: the op table's core. Out: subscripts, gather, scatter, select, sort."""
