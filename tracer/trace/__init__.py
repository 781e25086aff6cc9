"""Data structures of a trace: entries, values and slots, the call frame, tape plans. In: nothing. Out: data."""
