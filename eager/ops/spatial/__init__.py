"""In: the op table's core. Out: convolution, pooling, interpolation, windows."""
