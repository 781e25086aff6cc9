"""Special functions that NumPy lacks, on NumPy and CuPy arrays alike."""

from __future__ import annotations

from typing import Any


def sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)) without overflow."""
    z = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1, z) / (1 + z)
