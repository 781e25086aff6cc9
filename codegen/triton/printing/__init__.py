"""Prints expressions and tiles as Triton source text."""
