"""In: nothing. Out: scalar expressions and index arithmetic, as data."""
