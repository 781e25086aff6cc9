"""In: nodes with kernels of their own (matmul, convolution, attention, scan). Out: what each computes, for any target."""
