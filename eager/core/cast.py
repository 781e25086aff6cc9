"""Dtype conversion, an op that the core itself needs: autocast converts inputs on the tape."""

from __future__ import annotations

from ..arrays import dtypes
from .dispatch import apply
from .op import primitive
from .tensor import Tensor

TRUST = "ops"  # see core/library.py: what is here does nothing but run ops

CAST = primitive(
    "cast",
    "pointwise",
    lambda xp, x, *, dtype, source: x.astype(dtype.numpy),
    grad={"x": lambda g, source: cast(g, source)},
    body=lambda b, x, dtype: b.cast(x, dtype),
    upcast=False,
)


def cast(x: Tensor, dtype: dtypes.dtype) -> Tensor:
    """The tensor in another dtype; itself if it has it already."""
    if x.tj_array.dtype == dtype.numpy:
        return x
    if x.tj_requires_grad and not dtype.is_floating_point:
        x = x.detach()
    return apply(CAST, (x,), {"dtype": dtype, "source": x.dtype})  # type: ignore[no-any-return]
