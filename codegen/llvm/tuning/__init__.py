"""In: the shape of a matmul. Out: the measured plan for it, kept in the tuning store."""
