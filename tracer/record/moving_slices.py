"""Slices and ranges that begin elsewhere at each call: `data[step]`, `x[i : i + 8]`, `arange(i, i + 8)`.

Where such a thing begins is a setting of its op, so each place would be another path. But a slice of memory that is there costs
no more than the comparison with an entry. So what differs from its recording in nothing but its place is made by Python from
then on, at this line of the user's: for what comes after, it is a tensor from outside, like a batch. A slice of what is yet to
be computed, or has a history, would end the segment for that; there a few paths are better, and only many are given up for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...eager.core.op import Op
from ...eager.ops.create import ARANGE
from ...eager.ops.shape.views import SLICE
from ...eager.arrays.deferred import Pending
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ..trace.trace import Call, Trace, alike

MOVES = (SLICE, ARANGE)
MOVING = "a slice begins elsewhere at each call"


def only_elsewhere(trace: Trace, entry: Any, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], line: str) -> bool:
    """Whether an op differs from an entry in its place alone."""
    if not isinstance(entry, Call) or entry.op is not op or entry.line != line:
        return False
    if op is ARANGE:
        return alike(attrs, entry.attrs)
    shape = inputs[0]._array.shape
    if shape != trace.values[entry.inputs[0]].form.shape or alike(attrs, entry.attrs):
        return False
    return np.broadcast_to(np.empty(()), shape)[attrs["index"]].shape == entry.results[0].form.shape


def is_there(inputs: tuple[Any, ...], state: State) -> bool:
    """Whether it can be made at once: of memory that is there, without a history."""
    for x in inputs:
        if isinstance(x, Tensor) and (isinstance(x._array, Pending) or (state.grad and x._requires_grad)):
            return False
    return True
