"""In: nothing. Out: a builder of LLVM IR, targets, and the register tiles that gemm, conv and attention share."""
