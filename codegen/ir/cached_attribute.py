"""Cached attributes: `functools.cached_property` without its lock, which it takes each time until Python 3.12. Expressions and
indices are made by the thousand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_attribute(Generic[T]):  # noqa: N801 (a decorator)
    """A method that is called once for each object; its result replaces it there."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: Any) -> cached_attribute[T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> T: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        found = instance.__dict__[self.name] = self.make(instance)
        return found
