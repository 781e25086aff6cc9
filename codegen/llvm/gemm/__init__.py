"""In: a matmul problem and its plan. Out: LLVM IR of a packed, tiled matmul kernel, or of one made of dot products."""
