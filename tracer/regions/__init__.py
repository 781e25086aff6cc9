"""In: entries of a trace. Out: regions: one check in place of many entries."""
