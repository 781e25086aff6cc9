"""Kernels for GPUs. In: kernel specs. Out: Triton source, binaries and launches; printing the source needs no Triton."""
