"""In: nothing of ours. Out: NumPy and CuPy arrays, dtypes, devices, deferred arrays."""
