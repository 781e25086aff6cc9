"""Ops that return several named tensors: tuples whose items also have names and that print them, as PyTorch's do."""

from __future__ import annotations

from collections import namedtuple
from typing import Any


def named_result(name: str, *fields: str) -> Any:
    """A named tuple for what the op `name` returns."""

    def show(self: Any) -> str:
        items = [f"{field}={value}" for field, value in zip(fields, self, strict=True)]
        return f"tapejit.return_types.{name}(\n" + ",\n".join(items) + ")"

    return type(name, (namedtuple(name, fields),), {"__slots__": (), "__repr__": show, "__module__": "tapejit.return_types"})
