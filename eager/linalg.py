"""The namespace `tapejit.linalg`: what the op table registers for it. The functions live in `eager/ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core.op import exported
from .ops.linalg.decompositions import LinAlgError

if TYPE_CHECKING:  # the op table's functions

    def __getattr__(name: str) -> Any: ...


globals().update(exported("linalg"), LinAlgError=LinAlgError)
