"""Runs launches on a device: driver, kernel cache, arena, CUDA graphs."""
