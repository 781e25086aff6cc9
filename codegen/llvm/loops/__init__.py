"""In: loop nests, scans, scatters. Out: LLVM IR of their loops."""
