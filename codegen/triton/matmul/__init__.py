"""Compiles a matmul or convolution node to a Triton kernel or a cuBLAS call."""
