"""In: the op table's core. Out: ops that reshape, view, join and rearrange."""
