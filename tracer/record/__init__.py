"""Recording. In: the op calls of one run. Out: a trace."""
