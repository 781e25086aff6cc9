"""The namespace `tapejit.nn.functional`: what the op table registers for it. The functions live in `eager/ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..op import exported
from ..ops.pointwise import sigmoid, tanh

if TYPE_CHECKING:  # the op table's functions

    def __getattr__(name: str) -> Any: ...


globals().update(exported("nn.functional"), sigmoid=sigmoid, tanh=tanh)
