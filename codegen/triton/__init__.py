"""Loop nests as Triton kernels. Printing needs no Triton; running and compiling what is printed does."""
