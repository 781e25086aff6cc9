"""The table of lowering rules, by op name. A leaf module, so that cache keys can look rules up without importing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DEFINITIONS: dict[str, Callable[..., Any]] = {}


def define(*names: str) -> Callable[[Any], Any]:
    """Register a function as the rule of these ops. Users may add rules; programs that use one are not kept on disk."""

    def register(function: Any) -> Any:
        DEFINITIONS.update(dict.fromkeys(names, function))
        return function

    return register
