"""What is known of the values of a function that is being proved: see `proof.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...eager.arrays import devices
from ...eager.arrays import dtypes
from ...eager.core.tensor import Tensor
from ..guards.reachable_state import LIBRARY, PLAIN

SETTINGS = (dtypes.dtype, devices.device)


class Known:
    """An object that is the same at each call."""

    def __init__(self, what: Any) -> None:
        self.what = what


class Made:
    """What ops have made of tensors: tensors, tuples of them, sizes and numbers. Arguments that are tensors, too."""


class Items:
    """A tuple or a list."""

    def __init__(self, parts: list[Any], exact: bool = True, own: bool = False) -> None:
        self.parts = parts
        self.exact = exact  # so many, in this order
        self.own = own  # a list that the function has made


class Fields:
    """A dict of names."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts


class Method:
    """A method of a tensor, an optimizer or a list; or, with a function, of a user's object."""

    def __init__(self, of: Any, name: str, function: Any = None) -> None:
        self.of = of
        self.name = name
        self.function = function


class Unknown:
    """One thing or another."""


MADE = Made()


def as_given(x: Any) -> Any:
    """An argument: tensors come and go, all else is compared."""
    if is_tensor(x):
        return MADE
    if type(x) in (tuple, list):
        return Items([as_given(v) for v in x])
    if type(x) is dict and all(type(k) is str for k in x):
        return Fields({k: as_given(v) for k, v in x.items()})
    return Known(x)


def objects(x: Any) -> Iterator[Any]:
    """What an argument is, or holds, that ops cannot be given."""
    if isinstance(x, (Items, Fields)):
        for part in x.parts.values() if isinstance(x, Fields) else x.parts:
            yield from objects(part)
    elif not is_made(x):
        yield x.what


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor whose methods are the library's."""
    return isinstance(x, Tensor) and type(x).__module__.startswith(LIBRARY)


def may_be_tensor(x: Any) -> bool:
    return x is MADE or (isinstance(x, Known) and is_tensor(x.what))


def is_plain(x: Any) -> bool:
    return type(x) in PLAIN or (type(x) is tuple and all(map(is_plain, x)))


def is_made(x: Any) -> bool:
    """Whether ops may be given it."""
    if isinstance(x, (Items, Fields)):
        return all(map(is_made, x.parts.values() if isinstance(x, Fields) else x.parts))
    return may_be_tensor(x) or (isinstance(x, Known) and (is_plain(x.what) or isinstance(x.what, SETTINGS)))


def joined(a: Any, b: Any) -> Any:
    """What is one or the other."""
    if a is b or (isinstance(a, Known) and isinstance(b, Known) and a.what is b.what):
        return a
    if isinstance(a, Items) and isinstance(b, Items) and not (a.own or b.own) and len(a.parts) == len(b.parts):
        return Items([joined(x, y) for x, y in zip(a.parts, b.parts, strict=True)], a.exact and b.exact)
    return MADE if is_made(a) and is_made(b) else Unknown()
