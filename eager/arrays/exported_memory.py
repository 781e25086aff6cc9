"""Exported memory: tracks who else can write a tensor's memory, through NumPy arrays, DLPack or buffers.

The tracer computes ops later than Python calls them, so it has to know whether memory can change in between without any op.
The record is the second element of a version counter, which all tensors on the memory share. NumPy arrays are made over an
`ExportedBuffer`, which lives exactly as long as some array on the memory does: views of such an array refer to the array, and
the array to the buffer.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np


class ExportedBuffer:
    """The memory of an array, as NumPy's array interface describes it."""

    __slots__ = ("__array_interface__", "__weakref__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def array_over(buffer: ExportedBuffer) -> Any:
    """Make an array over an exported buffer."""
    array: Any = np.asarray(buffer)
    dtype = buffer.array.dtype
    return array if array.dtype == dtype else array.view(dtype)


class ExportRecord:
    """The exports of one memory."""

    __slots__ = ("beneath", "exported", "forever", "imported", "parent")

    def __init__(self, parent: list[Any] | None = None) -> None:
        self.forever = False  # exported to somebody whose lifetime is unknown
        self.exported: list[weakref.ref[ExportedBuffer]] = []  # buffers of arrays that NumPy code got from a tensor
        self.imported: list[ExportedBuffer] = []  # buffers of NumPy arrays that tensors were made of
        self.beneath: list[ExportedBuffer] = []  # of `imported`: buffers below arrays that are themselves exports
        self.parent = parent  # of `x.data`, which has a version counter of its own: x's counter

    def is_alive(self) -> bool:
        """True if somebody outside may still hold the memory."""
        if self.forever:
            return True
        if self.exported:
            self.exported = [r for r in self.exported if r() is not None]
            if self.exported:
                return True
        for buffer in (*self.imported, *self.beneath) if self.beneath else self.imported:
            if sys.getrefcount(buffer.array) > 2:
                return True
        return self.parent is not None and is_exported(self.parent)


def is_exported(box: list[Any] | None) -> bool:
    """True if memory with this version counter can be written by anything but ops."""
    return box is not None and len(box) > 1 and box[1].is_alive()


def export_records(box: list[Any]) -> list[ExportRecord]:
    """Return the records to update: the memory's own, and for `x.data` also that of x."""
    if len(box) == 1:
        box.append(ExportRecord())
    record: ExportRecord = box[1]
    return [record] if record.parent is None else [record, *export_records(record.parent)]


def export_array(array: Any, box: list[Any]) -> Any:
    """Return a NumPy array over a tensor's memory, for the user."""
    buffer = ExportedBuffer(array)
    for record in export_records(box):
        record.exported.append(weakref.ref(buffer))
    return array_over(buffer)


def import_array(array: Any, box: list[Any]) -> Any:
    """Return a NumPy array of the user's as a tensor's memory."""
    buffer, owner = ExportedBuffer(array), array
    while type(owner) is np.ndarray:
        owner = owner.base
    for record in export_records(box):
        record.imported.append(buffer)
        if type(owner) is ExportedBuffer:
            record.beneath.append(owner)
    return array_over(buffer)


def export_forever(box: list[Any]) -> None:
    """Note that the memory went to a consumer whose lifetime is unknown (DLPack, buffers)."""
    for record in export_records(box):
        record.forever = True
