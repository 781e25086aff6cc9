"""In: a built program. Out: plain data about it, for explain, reports and the profiler."""
