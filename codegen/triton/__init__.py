"""Prints loop nests as Triton kernels. Printing needs no Triton; running and compiling the printed kernels does."""
