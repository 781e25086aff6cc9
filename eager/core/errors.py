"""Errors and warnings: NumPy's and CuPy's exceptions become PyTorch's, with the op's name, the shapes and the remedy."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import devices, dtypes
from .library import is_library
from .tensor import Tensor

if TYPE_CHECKING:
    from .op import Op


warned = [0]  # count of warnings: calls that warn must not be skipped
IN_PLACE_NAMES = {"full": "__setitem__", "true_divide": "div_"}  # others are the op's name and "_"


def in_place_name(op: Op) -> str:
    """Return the name by which the user called an in-place op."""
    return IN_PLACE_NAMES.get(op.name) or op.name + "_"


def common_device(op: Op, inputs: tuple[Any, ...]) -> devices.device:
    """Return the device of all inputs; raise an error that names two devices if they differ."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    first = tensors[0].device
    for t in tensors[1:]:
        if t.device != first:
            raise RuntimeError(
                f"{op.name}: Expected all tensors to be on the same device, but found at least two devices, "
                f"{first} and {t.device}! Move one of them with .to(device)."
            )
    return first


def as_torch_error(op: Op, inputs: tuple[Any, ...], error: Exception, out: Tensor | None = None) -> Exception:
    """Convert an array library's exception to PyTorch's error, with the op's name and its inputs."""
    shapes = [x.tj_array.shape for x in inputs if isinstance(x, Tensor)]
    if out is not None:
        try:
            shape: Any = np.broadcast_shapes(*shapes)
        except ValueError:
            shape = None
        if shape is not None and shape != out.tj_array.shape:
            return RuntimeError(
                f"{in_place_name(op)}: output with shape {list(out.shape)} doesn't match the broadcast shape {list(shape)}"
            )
    if out is not None and isinstance(error, TypeError):
        source = dtypes.from_numpy(np.result_type(*[x.tj_array if isinstance(x, Tensor) else x for x in inputs]))
        return RuntimeError(
            f"{in_place_name(op)}: result type {source.legacy} can't be cast to the desired output type {out.dtype.legacy}"
        )
    if op.kind == "pointwise":
        clash = broadcast_error(shapes)
        if clash is not None:
            return RuntimeError(f"{op.name}: {clash}")
    given = ", ".join(describe(x) for x in inputs)
    return RuntimeError(f"{op.name}({given}): {error}")


def broadcast_error(shapes: list[tuple[int, ...]]) -> str | None:
    """Return PyTorch's message for two shapes that do not broadcast; None if all do."""
    for i, a in enumerate(shapes):
        for b in shapes[i + 1 :]:
            ndim = max(len(a), len(b))
            wide_a, wide_b = (1,) * (ndim - len(a)) + a, (1,) * (ndim - len(b)) + b
            for d in reversed(range(ndim)):
                if wide_a[d] != wide_b[d] and 1 not in (wide_a[d], wide_b[d]):
                    return (
                        f"The size of tensor a ({wide_a[d]}) must match the size of tensor b ({wide_b[d]}) at non-singleton "
                        f"dimension {d}: the shapes {list(a)} and {list(b)} do not broadcast"
                    )
    return None


def describe(x: Any) -> str:
    """Describe a value for an error message: `float32[3, 4]`, or the number itself."""
    return f"{x.dtype.name}{list(x.shape)}" if isinstance(x, Tensor) else repr(x)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line: the innermost frame outside this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and is_library(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warned[0] += 1
    warnings.warn(message, category, stacklevel=level)
