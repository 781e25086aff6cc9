"""Compiled backward passes. In: a forward-only segment. Out: one tape node with a compiled backward pass."""
