"""For tests of generated code: kernels and steps compiled by hand, Triton's interpreter, other CPUs."""
