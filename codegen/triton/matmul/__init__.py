"""In: a matmul or convolution node. Out: Triton source of its kernel, or a cuBLAS call."""
