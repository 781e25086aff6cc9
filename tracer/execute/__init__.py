"""Executables of segments. In: a graph. Out: the program to run, a reference program or a backend's, chosen by timing."""
