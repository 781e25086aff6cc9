"""Public API. In: a Python function. Out: a compiled function, which selects the recording that runs a call."""
