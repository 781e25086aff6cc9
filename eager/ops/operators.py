"""Python's operators on tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dispatch import apply
from ..core.op import PRIMITIVES, Op
from ..core.tensor import Tensor
from . import pointwise
from .linalg import matmul as contraction

TRUST = "ops"  # see core/library.py: what is here does nothing but run ops


def _operator(function: Any, op: Op | None = None, reflected: bool = False) -> Any:
    """An operator that lets Python try the other operand's type when it cannot take it.

    Given the op, two tensors of one floating dtype go straight to it: the promotion of `function` would change nothing.
    """

    def forward(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor):
            array = self.tj_array
            if op is not None and array.dtype is other.tj_array.dtype and array.dtype.kind == "f":
                return apply(op, (self, other))
            return function(self, other)
        if isinstance(other, (int, float)):
            if op is not None and self.tj_array.dtype.kind == "f" and other.__class__ is not bool:
                return apply(op, (self, float(other)))
            return function(self, other)
        if isinstance(other, (np.ndarray, np.generic)):
            return function(self, other)
        return NotImplemented

    def backward(self: Tensor, other: Any) -> Any:
        if (
            isinstance(other, (int, float))
            and op is not None
            and self.tj_array.dtype.kind == "f"
            and other.__class__ is not bool
        ):
            return apply(op, (float(other), self))
        if isinstance(other, (Tensor, int, float, np.ndarray, np.generic)):
            return function(other, self)
        return NotImplemented

    return backward if reflected else forward


def _augmented(name: str) -> Any:
    def method(self: Tensor, other: Any) -> Any:
        return getattr(self, name)(other)

    return method


_BINARY = {
    "add": pointwise.add,
    "sub": pointwise.sub,
    "mul": pointwise.mul,
    "truediv": pointwise.true_divide,
    "floordiv": pointwise.floor_divide,
    "mod": pointwise.remainder,
    "pow": pointwise.pow,
    "and": pointwise.bitwise_and,
    "or": pointwise.bitwise_or,
    "xor": pointwise.bitwise_xor,
    "lshift": pointwise.bitwise_left_shift,
    "rshift": pointwise.bitwise_right_shift,
    "matmul": contraction.matmul,
}


def _invert(self: Tensor) -> Tensor:
    if self.dtype.is_floating_point:
        raise TypeError(f"~ (operator.invert) is only implemented on integer and Boolean-type tensors, not on {self.dtype}")
    return pointwise.bitwise_not(self)  # type: ignore[no-any-return]


_UNARY = {"neg": pointwise.neg, "pos": pointwise.positive, "abs": pointwise.abs, "invert": _invert}
_DIRECT = ("add", "sub", "mul", "truediv")  # hot, and with nothing to check for floats
_COMPARE = {f"__{name}__": getattr(pointwise, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_INPLACE = {
    "add": "add_", "sub": "sub_", "mul": "mul_", "truediv": "div_", "floordiv": "floor_divide_", "mod": "remainder_",
    "pow": "pow_", "and": "bitwise_and_", "or": "bitwise_or_", "xor": "bitwise_xor_",
    "lshift": "bitwise_left_shift_", "rshift": "bitwise_right_shift_",
}  # fmt: skip


def put(name: str, method: Any) -> None:
    """Make a function a method. Its code gets the name too: tracebacks show it, and a tracer can tell by it which one ran."""
    method.__name__ = method.__qualname__ = name
    method.__code__ = method.__code__.replace(co_name=name)
    setattr(Tensor, name, method)


def attach() -> None:
    for name, function in _BINARY.items():
        op = PRIMITIVES[function.__name__] if name in _DIRECT else None
        put(f"__{name}__", _operator(function, op))
        put(f"__r{name}__", _operator(function, op, reflected=True))
    for name, function in _COMPARE.items():
        put(name, _operator(function))
    for name, method in _INPLACE.items():
        put(f"__i{name}__", _augmented(method))
    for name, function in _UNARY.items():
        setattr(Tensor, f"__{name}__", function)
    for alias, function in pointwise.ALIASES.items():
        setattr(Tensor, alias, function)
        inplace = getattr(Tensor, function.__name__ + "_", None)
        if inplace is not None:
            setattr(Tensor, alias + "_", inplace)


attach()
