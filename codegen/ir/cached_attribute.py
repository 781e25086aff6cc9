"""Attributes that are computed when they are first asked for, as `functools.cached_property` does; but that takes a lock each
time until Python 3.12, and expressions and indices are made by the thousand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 (it reads as a word where it decorates)
    """A method that is called once for each object; its result takes its place."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: Any) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> T: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        found = instance.__dict__[self.name] = self.make(instance)
        return found
