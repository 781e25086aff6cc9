"""How far apart two results are: in units in the last place, or in units of what rounding may do to an op's result.

The elements of most ops' results are rounded once, and an error is counted in their own units. What adds up is as exact as
the numbers that it adds: where these cancel each other out, little is left that the order of addition does not change. So
there an error is also counted in units of *noise*: how far the result moves if each operand moves by one unit in its last
place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....eager.arrays import devices

SAMPLES = 3  # of operands that are moved at random


def on_cpu(array: Any) -> Any:
    return np.asarray(array) if isinstance(array, (np.ndarray, np.generic)) else devices.to_numpy(array)


def distance(a: Any, b: Any) -> Any:
    """How many numbers of their dtype lie between two arrays' elements; 0 for two NaNs, infinite for one, and for one that is
    infinite. Of integers: their difference."""
    if a.dtype.kind in "biu":
        return np.abs(a.astype(np.float64) - b.astype(np.float64)) + ((a != b) & (a.astype(np.float64) == b.astype(np.float64)))
    x, y = in_order(a), in_order(b)
    found = (np.maximum(x, y) - np.minimum(x, y)).astype(np.float64)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    found = np.where(nan_a ^ nan_b | (np.isinf(a) ^ np.isinf(b)), np.inf, found)
    return np.where((nan_a & nan_b) | (a == b), 0.0, found)


def in_order(a: Any) -> Any:
    """Floating point numbers as integers in the same order, one apart for neighbours."""
    size = a.dtype.itemsize
    kind = np.dtype(f"u{size}")
    bits = np.ascontiguousarray(a).view(kind).reshape(a.shape)
    sign = kind.type(1 << (8 * size - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def gap(a: Any, b: Any) -> float:
    """The largest difference of two arrays; infinite where one of them is no number and the other is one."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    found = np.where(same, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(found), np.inf, found).max(initial=0.0))


def errors(eager: Any, compiled: Any, noise: float = 0.0) -> Any:
    """Of each element: how far it is off, in units in the last place or of noise, whichever are fewer."""
    found = distance(eager, compiled)
    if not noise:
        return found
    if math.isinf(noise):
        return np.zeros_like(found)
    if eager.dtype.kind in "biu":
        return found
    off = np.abs(eager.astype(np.float64) - compiled.astype(np.float64)) / noise
    return np.fmin(found, off)


def beyond(eager: Any, compiled: Any, found: Any, ulps: float, rtol: float) -> Any:
    """The errors of those elements that are not close enough; 0 for the others."""
    if eager.dtype.kind in "biu":
        return found
    close = found <= ulps
    if rtol:
        e, c = eager.astype(np.float64), compiled.astype(np.float64)
        close |= np.abs(e - c) <= rtol * np.abs(e)
    return np.where(close, 0.0, found)


# ---- noise


def can_move(array: Any) -> bool:
    """Whether rounding is what an array's elements are subject to. Halves are computed in single precision, which they are
    not moved by a unit of."""
    return getattr(array, "dtype", None) is not None and array.dtype.kind == "f" and array.dtype.itemsize > 2


def moved(array: Any, chance: np.random.Generator | None) -> Any:
    """An array whose elements are their neighbours, upwards, or at random; zeros and what is not finite stay."""
    values = on_cpu(array)
    up = np.ones(values.shape, np.int8) if chance is None else chance.integers(0, 2, values.shape, dtype=np.int8)
    to = np.where(up, np.inf, -np.inf).astype(values.dtype)
    found = np.where(np.isfinite(values) & (values != 0), np.nextafter(values, to), values).astype(values.dtype)
    result = devices.copy(array)
    where = devices.device_of(array)
    with devices.on(where):
        result[...] = devices.move(found, where)
    return result


def noise_of(run: Callable[[list[Any]], list[Any]], operands: list[Any], results: list[Any]) -> list[float]:
    """Of each result of an op: how far it moves if the operands do."""
    found = [0.0] * len(results)
    if not any(can_move(x) for x in operands):
        return found
    chance = np.random.default_rng(0)
    for how in [None, *[chance] * SAMPLES]:
        try:
            other = run([moved(x, how) if can_move(x) else x for x in operands])
        except Exception:  # it refuses these values, which says nothing about others
            continue
        found = [max(n, gap(on_cpu(a), on_cpu(b))) for n, a, b in zip(found, results, other, strict=True)]
    return found
