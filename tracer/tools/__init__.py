"""In: finished recordings. Out: explain, diff, report, profiler, command line; nothing else in the tracer imports it."""
