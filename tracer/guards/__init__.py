"""In: what a call read. Out: predicates on arguments, names, reachable state and code."""
