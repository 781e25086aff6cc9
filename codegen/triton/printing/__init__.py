"""In: scalar expressions and tiles. Out: Triton source text."""
