"""In: finished recordings. Out: text about what was compiled, where it breaks and why."""
