"""Turns a built program into plain data for explain, reports and the profiler."""
