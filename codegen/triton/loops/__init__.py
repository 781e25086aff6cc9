"""In: a loop nest. Out: Triton source of its kernels."""
