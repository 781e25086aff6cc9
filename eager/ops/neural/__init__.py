"""In: the op table's core. Out: activations, norms, attention, recurrent layers, losses."""
