"""Bounds on the difference of two ways to add up the same numbers.

Floats that are added in another order give another sum. What is certain of both is only how they lie to the sizes of what was
added: each rounding is off by at most half an epsilon of a partial sum, and no partial sum is larger than all sizes together.
It says nothing in relation to the result, which is as small as it likes where terms cancel out. So these bounds are given
sizes: of a matmul that is `abs(a) @ abs(b)`, of anything that is linear the same function of absolute values.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import tapejit as tj


def epsilon(dtype: Any) -> float:
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps)


def spread(sizes: Any, terms: int, dtype: Any = np.float32) -> Any:
    """Bound the difference of two sums of so many terms whose absolute values add up to `sizes`.

    Each is off by half an epsilon for each term at most. Some are rounded up and some down: of many terms the errors are as
    the root of their number, and that eight times as much comes together has odds of one to 10 ** 13.
    """
    return min(terms, 4 * math.sqrt(terms)) * epsilon(dtype) * np.asarray(sizes, np.float64)


def within(found: Any, expected: Any, bound: Any, dtype: Any = None) -> Any:
    """Test each element: it may be no further from what is expected than its bound.

    With a dtype: whether it is what some number within the bound is rounded to. NaN equals NaN, infinities only themselves.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    bound = np.where(np.isfinite(expected), bound, 0)
    assert np.isfinite(bound).all(), "what is finite cannot be the sum of what is not"
    low, high = expected - bound, expected + bound
    if dtype is not None:
        low, high = (x.astype(dtype).astype(np.float64) for x in (low, high))
    return (found == expected) | (np.isnan(found) & np.isnan(expected)) | ((low <= found) & (found <= high))


def assert_within(found: Any, expected: Any, bound: Any, dtype: Any = None) -> None:
    """All elements are, and where they are not it says by how much."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"the shape is {found.shape} instead of {expected.shape}"
    good = within(found, expected, bound, dtype)
    if not good.all():
        bound = np.broadcast_to(bound, good.shape)
        off = np.where(good, 0, np.nan_to_num(np.abs(found - expected), nan=np.inf) / np.maximum(bound, 1e-300))
        worst = np.unravel_index(np.argmax(off), off.shape)
        raise AssertionError(
            f"Mismatch of {np.count_nonzero(~good)} elements of {good.size}, the worst at {tuple(map(int, worst))}: "
            f"{found[worst]!r} instead of {expected[worst]!r}, where {bound[worst]:.3g} are allowed"
        )


def assert_matmul(found: Any, a: Any, b: Any) -> None:
    """`found` is the matmul of two matrices, or batches of them, added up in whatever order: halves are added as float32."""
    dtype = found.dtype.numpy if isinstance(found, tj.Tensor) else found.dtype
    found, left, right = (x.detach().cpu().double().numpy() if isinstance(x, tj.Tensor) else x for x in (found, a, b))
    left, right = left.astype(np.float64), right.astype(np.float64)
    bound = spread(abs(left) @ abs(right), left.shape[-1], np.result_type(dtype, np.float32))
    assert_within(found, left @ right, bound, dtype)
