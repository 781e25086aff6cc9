"""Native code for CPUs, through LLVM: kernels are written as LLVM's text and compiled by llvmlite."""
