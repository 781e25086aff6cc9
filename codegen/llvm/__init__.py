"""Native code for CPUs. In: kernel specs (launches of loop nests, matmuls, convolutions, attention, scans). Out: LLVM IR,
compiled by llvmlite to machine code and bound as a Python callable."""
