"""Sizes that may be given as one number for all dims or as a tuple: what layers make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Sizes = int | tuple[int, ...]


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """A function that makes a tuple of n equal values of one value, and a tuple of an iterable."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else (x,) * n

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (
    _ntuple(1, "_single"),
    _ntuple(2, "_pair"),
    _ntuple(3, "_triple"),
    _ntuple(4, "_quadruple"),
)


def _reverse_repeat_tuple(t: tuple[int, ...], n: int) -> tuple[int, ...]:
    """The padding of dims, first to last, as `F.pad` wants it: last to first, n times each."""
    return tuple(x for x in reversed(t) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take a prefix such as `module.` off the keys of a state_dict, in place."""
    for key in [k for k in state_dict if k.startswith(prefix)]:
        state_dict[key[len(prefix) :]] = state_dict.pop(key)
    metadata = getattr(state_dict, "_metadata", None) or {}
    for key in [k for k in metadata if k and f"{k}.".startswith(prefix)]:
        metadata[key[len(prefix) :]] = metadata.pop(key)
