"""Guard the form of an array: shape, dtype, strides and device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.arrays.devices import device_of


def has_form(array: Any, form: type[DeferredArray]) -> bool:
    if array.shape != form.shape or array.dtype is not form.dtype or array.strides != form.strides:
        return False
    return type(array) is np.ndarray if form.where.type == "cpu" else device_of(array) == form.where
