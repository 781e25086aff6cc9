"""In: a convolution problem. Out: LLVM IR of direct convolution kernels and of the gradients."""
