"""Prints a loop nest as Triton kernels."""
