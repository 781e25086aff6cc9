"""NumPy references for factories."""

from __future__ import annotations

import numpy as np


def size_of(*size):
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size


def steps_of(start, end=None, step=1):
    """A range one number at a time."""
    if end is None:
        start, end = 0, start
    found, k = [], 0
    while (start + k * step < end) if step > 0 else (start + k * step > end):
        found.append(start + k * step)
        k += 1
    whole = all(isinstance(v, int) for v in (start, end, step))
    return np.array(found, np.int64 if whole else np.float32)


def identity(n, m=None):
    return np.array([[float(i == j) for j in range(n if m is None else m)] for i in range(n)]).reshape(n, n if m is None else m)


def triangle(keep):
    def indices(row, col, offset=0):
        pairs = [(i, j) for i in range(row) for j in range(col) if keep(j - i, offset)]
        return np.array(pairs, np.int64).reshape(-1, 2).T

    return indices


ORACLES = {
    "arange": steps_of,
    "clone": lambda x: np.array(x),
    "eye": identity,
    "full": lambda size, value: np.ones(size) * value if not isinstance(value, bool) else np.ones(size, bool) == value,
    "full_like": lambda x, value: x * 0 + value,
    "linspace": lambda start, end, steps: np.linspace(start, end, steps),
    "logspace": lambda start, end, steps, base=10.0: np.logspace(start, end, steps, base=base),
    "ones": lambda *size: np.ones(size_of(*size)),
    "ones_like": lambda x: x * 0 + 1,
    "tril_indices": triangle(lambda distance, offset: distance <= offset),
    "triu_indices": triangle(lambda distance, offset: distance >= offset),
    "zeros": lambda *size: np.zeros(size_of(*size)),
    "zeros_like": lambda x: x * 0,
}
