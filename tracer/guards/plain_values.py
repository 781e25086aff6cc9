"""Plain values, compared by equality where all other objects are compared by identity; and modules that are not the user's."""

from __future__ import annotations

import sys
from operator import is_
from typing import Any

from ...eager.core.library import is_library
from ..trace.trace import same_setting

PLAIN_TYPES = (int, float, bool, str, bytes, complex, type(None))
MAX_UNROLLED_ITEMS = 8  # longer lists are compared by a function call
NON_USER_PACKAGES = {*sys.stdlib_module_names, "numpy", "cupy", "ml_dtypes"}


def equal_plain_values(a: Any, b: Any) -> bool:
    """True if both are plain and equal. False for any other object, even for one and the same."""
    return isinstance(a, PLAIN_TYPES) and isinstance(b, PLAIN_TYPES) and same_setting(a, b)


def is_non_user_module(name: str | None) -> bool:
    """True for modules of this library, the standard library and array libraries: their code is trusted, not guarded."""
    name = name or ""
    return is_library(name) or (name.partition(".")[0] in NON_USER_PACKAGES and name != "__main__")


def holds_same_items(x: Any, was: Any) -> bool:
    """True if a list or dict holds the same objects, or equal plain values, in the same order."""
    if len(x) != len(was) or (isinstance(x, dict) and list(x) != list(was)):
        return False
    a, b = (x.values(), was.values()) if isinstance(x, dict) else (x, was)
    return all(map(is_, a, b)) or all(p is q or equal_plain_values(p, q) for p, q in zip(a, b, strict=True))


def different_items_test(x: str, known: str, was: Any) -> str:
    """Write the Python test that is true when the items differ. Short lists are compared item by item, without a call."""
    if not isinstance(was, list) or len(was) > MAX_UNROLLED_ITEMS:
        return f"not same_items({x}, {known})"
    others = " or ".join(f"{x}[{i}] is not {known}[{i}]" for i in range(len(was))) or "False"
    return f"len({x}) != {len(was)} or ({others}) and not same_items({x}, {known})"
