"""Abstract values: what the prover knows about each value of a function. See `prover.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...eager.arrays import devices, dtypes
from ...eager.core.library import is_library
from ...eager.core.tensor import Tensor
from ..guards.plain_values import PLAIN_TYPES

SETTINGS = (dtypes.dtype, devices.device)


class KnownObject:
    """An object that is the same at each call."""

    def __init__(self, what: Any) -> None:
        self.what = what


class OpResult:
    """Results of ops: tensors, tuples of them, sizes and numbers. Also arguments that are tensors."""


class SequenceValue:
    """A tuple or a list."""

    def __init__(self, parts: list[Any], exact: bool = True, own: bool = False) -> None:
        self.parts = parts
        self.exact = exact  # exactly these items, in this order
        self.own = own  # a list that the function created


class DictValue:
    """A dict with string keys."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts


class BoundMethod:
    """A method of a tensor, an optimizer or a list; or, with a function, of a user's object."""

    def __init__(self, of: Any, name: str, function: Any = None) -> None:
        self.of = of
        self.name = name
        self.function = function


class UnknownValue:
    """A value of which nothing is known."""


OP_RESULT = OpResult()


def abstract_argument(x: Any) -> Any:
    """Return the abstract value of an argument: tensors differ from call to call, everything else is guarded."""
    if is_tensor(x):
        return OP_RESULT
    if type(x) in (tuple, list):
        return SequenceValue([abstract_argument(v) for v in x])
    if type(x) is dict and all(type(k) is str for k in x):
        return DictValue({k: abstract_argument(v) for k, v in x.items()})
    return KnownObject(x)


def objects_in(x: Any) -> Iterator[Any]:
    """Yield the objects in an argument that cannot be inputs of ops."""
    if isinstance(x, (SequenceValue, DictValue)):
        for part in x.parts.values() if isinstance(x, DictValue) else x.parts:
            yield from objects_in(part)
    elif not is_op_input(x):
        yield x.what


def is_tensor(x: Any) -> bool:
    """True for a tensor whose methods are the library's."""
    return isinstance(x, Tensor) and is_library(type(x))


def may_be_tensor(x: Any) -> bool:
    return x is OP_RESULT or (isinstance(x, KnownObject) and is_tensor(x.what))


def is_plain(x: Any) -> bool:
    return type(x) in PLAIN_TYPES or (type(x) is tuple and all(map(is_plain, x)))


def is_op_input(x: Any) -> bool:
    """True if ops accept the value: tensors, plain values, dtypes, devices, and containers of these."""
    if isinstance(x, (SequenceValue, DictValue)):
        return all(map(is_op_input, x.parts.values() if isinstance(x, DictValue) else x.parts))
    return may_be_tensor(x) or (isinstance(x, KnownObject) and (is_plain(x.what) or isinstance(x.what, SETTINGS)))


def join(a: Any, b: Any) -> Any:
    """Join two abstract values: the value after a branch that may have gone either way."""
    if a is b or (isinstance(a, KnownObject) and isinstance(b, KnownObject) and a.what is b.what):
        return a
    if isinstance(a, SequenceValue) and isinstance(b, SequenceValue) and not (a.own or b.own) and len(a.parts) == len(b.parts):
        return SequenceValue([join(x, y) for x, y in zip(a.parts, b.parts, strict=True)], a.exact and b.exact)
    return OP_RESULT if is_op_input(a) and is_op_input(b) else UnknownValue()
