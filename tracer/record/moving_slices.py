"""Moving slices: slices and ranges that start elsewhere in each call, as `data[step]`, `x[i : i + 8]`, `arange(i, i + 8)`.

The start is a setting of the op, so each start would be another path. But slicing computed memory costs no more than matching
an entry. So an op that differs from its recording only in its start is run by Python from then on, at this user line, and its
result enters the trace as a tensor from outside, like a batch. For a slice of a pending tensor, or of one with a history, that
would end the segment: there a few paths are cheaper, and the line is only treated as moving after many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.core.op import Op
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ...eager.ops.create import ARANGE
from ...eager.ops.shape.views import SLICE
from ..trace.trace import Call, Trace, same_setting

MOVES = (SLICE, ARANGE)
MOVING = "a slice starts elsewhere in each call"


def only_elsewhere(trace: Trace, entry: Any, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], line: str) -> bool:
    """True if an op differs from an entry only in where it starts."""
    if not isinstance(entry, Call) or entry.op is not op or entry.line != line:
        return False
    if op is ARANGE:
        return same_setting(attrs, entry.attrs)
    shape = inputs[0].tj_array.shape
    if shape != trace.values[entry.inputs[0]].form.shape or same_setting(attrs, entry.attrs):
        return False
    return np.broadcast_to(np.empty(()), shape)[attrs["index"]].shape == entry.results[0].form.shape


def is_there(inputs: tuple[Any, ...], state: State) -> bool:
    """True if a slice can be made at once: its inputs are computed and have no history."""
    for x in inputs:
        if isinstance(x, Tensor) and (isinstance(x.tj_array, DeferredArray) or (state.grad and x.tj_requires_grad)):
            return False
    return True
