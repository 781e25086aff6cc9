"""Prints an attention node, or its gradient, as flash attention in Triton."""
