"""The namespace `tapejit.nn.functional`: what the op table registers for it. The functions live in `eager/ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.op import exported
from ..core.registration import inplace_version
from ..ops.pointwise import sigmoid, tanh

if TYPE_CHECKING:  # the op table's functions

    def __getattr__(name: str) -> Any: ...


_functions = exported("nn.functional")
_in_place = ("celu", "elu", "hardtanh", "leaky_relu", "relu", "rrelu", "selu", "threshold")

globals().update(_functions, sigmoid=sigmoid, tanh=tanh)
globals().update({f"{name}_": inplace_version(_functions[name], name) for name in _in_place})
