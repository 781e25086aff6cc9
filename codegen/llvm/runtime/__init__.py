"""In: LLVM IR. Out: a Python callable: JIT, thread pool, arena, entry point."""
