"""In: launches. Out: what all targets share to build, cache and call a program."""
