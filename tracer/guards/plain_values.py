"""Plain values, compared by equality where all other objects are compared by identity; and modules that are not the user's."""

from __future__ import annotations

import sys
from typing import Any

from ...eager.core.library import is_library
from ..trace.trace import same_setting

PLAIN_TYPES = (int, float, bool, str, bytes, complex, type(None))
NON_USER_PACKAGES = {*sys.stdlib_module_names, "numpy", "cupy", "ml_dtypes"}


def equal_plain_values(a: Any, b: Any) -> bool:
    """True if both are plain and equal. False for any other object, even for one and the same."""
    return isinstance(a, PLAIN_TYPES) and isinstance(b, PLAIN_TYPES) and same_setting(a, b)


def is_non_user_module(name: str | None) -> bool:
    """True for modules of this library, the standard library and array libraries: their code is trusted, not guarded."""
    name = name or ""
    return is_library(name) or (name.partition(".")[0] in NON_USER_PACKAGES and name != "__main__")
