"""In: the source of a function. Out: a proof that its Python may be skipped, or the reason why not."""
