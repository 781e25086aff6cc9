"""In: an attention node. Out: LLVM IR of flash attention and its gradient."""
