"""In: an attention node, or its gradient. Out: Triton source of flash attention."""
