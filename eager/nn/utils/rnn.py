"""Batches of sequences of different lengths: padded to one length, or packed without padding.

A packed batch holds the first step of all sequences, then the second step of those that have one, and so on, longest
sequence first; `batch_sizes` says how many sequences each step has. Packing and padding move rows by one index, which the
lengths, numbers on the host, are turned into.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ...arrays.dtypes import float16, float32, float64, int8, int16, int32, int64, uint8
from ...core.tensor import Tensor
from ...ops.convert import from_numpy
from ...ops.create import arange, as_tensor
from ...ops.shape.reshape import cat

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """A packed batch, as `pack_padded_sequence` and `pack_sequence` make it and recurrent layers take it."""

    def __new__(
        cls,
        data: Any,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:
            if not isinstance(data, (list, tuple)) or len(data) != 2:
                raise AssertionError("Expected data to be a list or tuple of length 2")
            data, batch_sizes = data
        elif batch_sizes.is_cuda:
            raise ValueError(
                "batch_sizes should always be on CPU. Instances of PackedSequence should never be created manually. They "
                "should be instantiated by functions like pack_sequence and pack_padded_sequence in nn.utils.rnn."
            )
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The data on another device or in another dtype; itself if nothing changes."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        moved = [None if t is None else t.to(data.device) for t in self[2:]]
        return type(self)(data, self.batch_sizes, *moved)

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """On a GPU."""
        return self.to(*args, **kwargs) if args or "device" in kwargs else self.to("cuda", **kwargs)

    def cpu(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """On the CPU."""
        return self.to("cpu", *args, **kwargs)

    def pin_memory(self) -> PackedSequence:
        """In memory that a GPU can read."""
        return type(self)(self.data.pin_memory(), self.batch_sizes, *[None if t is None else t.pin_memory() for t in self[2:]])

    def is_pinned(self) -> bool:
        """True if the data is in memory that a GPU can read."""
        return self.data.is_pinned()  # type: ignore[no-any-return]

    @property
    def is_cuda(self) -> bool:
        """True if the data is on a GPU."""
        return self.data.is_cuda

    def double(self) -> PackedSequence:
        """As float64."""
        return self.to(dtype=float64)

    def float(self) -> PackedSequence:
        """As float32."""
        return self.to(dtype=float32)

    def half(self) -> PackedSequence:
        """As float16."""
        return self.to(dtype=float16)

    def long(self) -> PackedSequence:
        """As int64."""
        return self.to(dtype=int64)

    def int(self) -> PackedSequence:
        """As int32."""
        return self.to(dtype=int32)

    def short(self) -> PackedSequence:
        """As int16."""
        return self.to(dtype=int16)

    def char(self) -> PackedSequence:
        """As int8."""
        return self.to(dtype=int8)

    def byte(self) -> PackedSequence:
        """As uint8."""
        return self.to(dtype=uint8)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes this one."""
    if permutation is None:
        return None
    places = arange(permutation.numel(), dtype=permutation.dtype, device=permutation.device)
    return permutation.new_empty(permutation.shape).scatter_(0, permutation, places)  # type: ignore[no-any-return]


# ---- rows and places


def _counted(counts: Any) -> tuple[Any, Any]:
    """(0 counts[0] times, 1 counts[1] times, ...), and for each of these its number among its equals."""
    counts = np.asarray(counts, np.int64)
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def _places(steps: Any, elements: Any, time: int, batch: int, batch_first: bool, like: Tensor) -> Tensor:
    """Return the positions of rows among all rows of a padded batch."""
    return from_numpy(elements * time + steps if batch_first else steps * batch + elements).to(like.device)


def _rows_put(rows: Tensor, places: Tensor, shape: tuple[int, ...], padding_value: float) -> Tensor:
    """A padded batch of this shape with the rows at their places."""
    padded = rows.new_full((shape[0] * shape[1], *shape[2:]), padding_value)
    return padded.index_copy_(0, places, rows).reshape(shape)  # type: ignore[no-any-return]


def _check_lengths(lengths: Tensor, time: int, batch: int, longest_first: bool) -> list[Any]:
    if lengths.ndim != 1:
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got a {lengths.ndim}D tensor on {lengths.device}"
        )
    found = lengths.tolist()
    if len(found) != batch:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(found)} (batch_size={batch})")
    if min(found) <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    if longest_first and found != sorted(found, reverse=True):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement."
        )
    if max(found) > time:
        raise RuntimeError(f"pack_padded_sequence: a length of {max(found)} in 'lengths', but the sequences have {time} steps")
    return found


# ---- packing


def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """Pack a padded batch (T, B, ...), or (B, T, ...) with `batch_first`. With `enforce_sorted` the longest has to be first."""
    lengths = lengths.to(int64) if isinstance(lengths, Tensor) else as_tensor(lengths, dtype=int64)
    if input.ndim < 2:
        raise IndexError(f"Dimension out of range (expected input to have at least 2 dimensions, but got {input.ndim})")
    if input.numel() == 0:
        raise RuntimeError("Cannot pack empty tensors.")
    time, batch = (input.shape[1], input.shape[0]) if batch_first else (input.shape[0], input.shape[1])
    given = _check_lengths(lengths, time, batch, enforce_sorted)
    indices = None if enforce_sorted else lengths.sort(descending=True, stable=True).indices
    sizes = (np.asarray(given) > np.arange(max(given))[:, None]).sum(1)
    steps, elements = _counted(sizes)
    if indices is not None:
        elements = np.asarray(indices.tolist())[elements]
        indices = indices.to(input.device)
    data = input.flatten(0, 1).index_select(0, _places(steps, elements, time, batch, batch_first, input))
    return PackedSequence(data, from_numpy(sizes), indices, None)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """A packed batch padded again, in the sequences' first order, and their lengths."""
    sizes = sequence.batch_sizes.tolist()
    time = len(sizes) if total_length is None else total_length
    if time < len(sizes):
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(sizes)}"
        )
    lengths = (np.asarray(sizes)[:, None] > np.arange(sizes[0])).sum(0)
    steps, elements = _counted(sizes)
    order = invert_permutation(sequence.unsorted_indices)
    if order is not None:
        order = np.asarray(order.tolist())
        elements = order[elements]
        lengths[order] = lengths.copy()
    places = _places(steps, elements, time, sizes[0], batch_first, sequence.data)
    shape = (sizes[0], time) if batch_first else (time, sizes[0])
    padded = _rows_put(sequence.data, places, (*shape, *sequence.data.shape[1:]), padding_value)
    return padded, from_numpy(lengths)


def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Pack a list of sequences (L, ...)."""
    lengths = [len(s) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch, in their first order."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


# ---- padding


def pad_sequence(sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right") -> Tensor:
    """Sequences (L, ...) as one padded batch (T, B, ...), or (B, T, ...) with `batch_first`."""
    if not isinstance(sequences, Iterable):
        raise RuntimeError(f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}")
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("pad_sequence: received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    lengths = np.asarray([len(s) for s in sequences])
    time, batch = int(lengths.max()), len(sequences)
    elements, steps = _counted(lengths)
    if padding_side == "left":
        steps = steps + (time - lengths)[elements]
    rows = cat(sequences).to(sequences[0].dtype)
    shape = (batch, time) if batch_first else (time, batch)
    places = _places(steps, elements, time, batch, batch_first, rows)
    return _rows_put(rows, places, (*shape, *rows.shape[1:]), padding_value)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded batch, each of its own length."""
    counts = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    elements = padded_sequences.unbind(0 if batch_first else 1)
    return [element[:n].clone() for element, n in zip(elements, counts, strict=True)]
