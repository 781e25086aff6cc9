"""Reduces the launches of printed kernels: merges them, groups them, and drives equal ones by a table."""
