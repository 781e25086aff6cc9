"""Guards on tensors: the form of an array, and the form and flags of a tensor that is read by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.arrays.devices import device_of
from ...eager.core.tensor import Tensor


def has_form(array: Any, form: type[DeferredArray]) -> bool:
    if array.shape != form.shape or array.dtype is not form.dtype or array.strides != form.strides:
        return False
    return type(array) is np.ndarray if form.where.type == "cpu" else device_of(array) == form.where


class TensorGuard:
    """Form and flags of a tensor that a function finds by name: Python may have asked for them without an op.

    Whoever changes them without an op moves a counter (`tensor_changed`), so this is compared only when that has moved.
    """

    __slots__ = ("cls", "dtype", "requires_grad", "shape", "strides", "tensor", "tracked", "where")

    def __init__(self, tensor: Tensor) -> None:
        array = tensor.tj_array
        self.tensor, self.cls = tensor, type(tensor)
        self.shape, self.dtype, self.strides, self.where = array.shape, array.dtype, array.strides, tensor.device
        self.requires_grad, self.tracked = tensor.tj_requires_grad, tensor.tj_node is not None

    def holds(self) -> bool:
        t = self.tensor
        array = t.tj_array
        if array.shape != self.shape or array.dtype is not self.dtype or array.strides != self.strides:
            return False
        if t.tj_requires_grad is not self.requires_grad or (t.tj_node is not None) is not self.tracked:
            return False
        return type(t) is self.cls and t.device == self.where
