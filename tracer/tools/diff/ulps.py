"""Distance of two results: in units in the last place (ulps), or in units of an op's rounding noise.

Most ops round each element once, and an error is counted in ulps of the element. A sum is only as exact as
its terms: where these cancel, the order of addition decides most of the remaining digits. So
there an error is also counted in units of *noise*: how far the result moves if each operand moves by one unit in the last
place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....eager.arrays import devices

SAMPLES = 3  # random perturbations of the operands


def on_cpu(array: Any) -> Any:
    return np.asarray(array) if isinstance(array, (np.ndarray, np.generic)) else devices.to_numpy(array)


def distance(a: Any, b: Any) -> Any:
    """Distance in ulps of two arrays' elements: 0 for two NaNs, infinite if only one is NaN or
    infinite. For integers: their difference."""
    if a.dtype.kind in "biu":
        return np.abs(a.astype(np.float64) - b.astype(np.float64)) + ((a != b) & (a.astype(np.float64) == b.astype(np.float64)))
    x, y = in_order(a), in_order(b)
    found = (np.maximum(x, y) - np.minimum(x, y)).astype(np.float64)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    found = np.where(nan_a ^ nan_b | (np.isinf(a) ^ np.isinf(b)), np.inf, found)
    return np.where((nan_a & nan_b) | (a == b), 0.0, found)


def in_order(a: Any) -> Any:
    """Map floating-point numbers to integers in the same order, with neighbours one apart."""
    size = a.dtype.itemsize
    kind = np.dtype(f"u{size}")
    bits = np.ascontiguousarray(a).view(kind).reshape(a.shape)
    sign = kind.type(1 << (8 * size - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def gap(a: Any, b: Any) -> float:
    """Largest difference of two arrays; infinite where only one of them is NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    found = np.where(same, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(found), np.inf, found).max(initial=0.0))


def errors(eager: Any, compiled: Any, noise: float = 0.0) -> Any:
    """Error of each element, in ulps or in units of noise, whichever is smaller."""
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
    """Errors of the elements outside the tolerance; 0 for the others."""
    if eager.dtype.kind in "biu":
        return found
    close = found <= ulps
    if rtol:
        e, c = eager.astype(np.float64), compiled.astype(np.float64)
        close |= np.abs(e - c) <= rtol * np.abs(e)
    return np.where(close, 0.0, found)


# ---- noise


def can_move(array: Any) -> bool:
    """True if an array's elements can be perturbed by one ulp. Halves are not: they are computed in single precision, where one
    of their ulps is far more than rounding."""
    return getattr(array, "dtype", None) is not None and array.dtype.kind == "f" and array.dtype.itemsize > 2


def moved(array: Any, chance: np.random.Generator | None) -> Any:
    """Move each element to its upper neighbour, or to a random one; zeros and non-finite elements stay."""
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
    """Noise of each result of an op: how far it moves if the operands do."""
    found = [0.0] * len(results)
    if not any(can_move(x) for x in operands):
        return found
    chance = np.random.default_rng(0)
    for how in [None, *[chance] * SAMPLES]:
        try:
            other = run([moved(x, how) if can_move(x) else x for x in operands])
        except Exception:  # an op may refuse the moved values
            continue
        found = [max(n, gap(on_cpu(a), on_cpu(b))) for n, a, b in zip(found, results, other, strict=True)]
    return found
