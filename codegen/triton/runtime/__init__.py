"""In: kernel sources and a launch plan. Out: kernels that run on a device: driver, kernel cache, arena, CUDA graphs."""
