"""In: a schedule. Out: loop nests and launches, with their cost."""
