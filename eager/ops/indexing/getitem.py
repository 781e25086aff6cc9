"""Subscripts: `x[...]` and `x[...] = v` in every form that NumPy and PyTorch have.

Basic indices (ints, slices, None, Ellipsis) are one `slice` view. What integer tensors and masks pick from that view is
the primitive `index`; assignment writes into the view, or is `index_put`. A mask and a number are a `where`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...core.cast import cast
from ...core.dispatch import apply, write
from ...core.errors import warn
from ...core.tensor import Tensor, as_index, data_pointer, wrap
from ..convert import transfer
from ..create import FULL
from ..pointwise import where
from ..shape.views import SLICE
from .primitives import ALL, INDEX, INDEX_PUT_INTO, NONZERO

# ---- reading an index


def too_many_indices_error(input: Tensor) -> IndexError:
    if input.tj_array.ndim == 0:
        return IndexError(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python to convert a 0-dim tensor to a number, or x[()]"
        )
    return IndexError(f"too many indices for tensor of dimension {input.tj_array.ndim}")


def plain_slice(s: slice) -> slice:
    """A slice of plain ints, with a positive step."""
    parts = []
    for n in (s.start, s.stop, s.step):
        if n is not None and n.__class__ is not int:
            if not hasattr(n, "__index__"):
                raise TypeError("slice indices must be integers or None or have an __index__ method")
            n = as_index(n, "a slice index")
        parts.append(n)
    if parts[2] is not None and parts[2] <= 0:
        raise ValueError("slice step cannot be zero" if parts[2] == 0 else "step must be greater than zero")
    return slice(*parts)


def is_legacy_tuple(index: Any) -> bool:
    """PyTorch still reads a short list that holds more than numbers as a tuple, and warns."""
    if not isinstance(index, list) or len(index) >= 32:
        return False
    return any(i is None or i is ... or isinstance(i, (slice, Tensor, list, tuple, np.ndarray)) for i in index)


def items_of(index: Any) -> tuple[Any, ...]:
    if isinstance(index, tuple):
        return index
    if is_legacy_tuple(index):
        warn(
            "Using a non-tuple sequence for multidimensional indexing is deprecated; use x[tuple(seq)] instead of x[seq], "
            "or x[tapejit.tensor(seq)] for an index tensor",
        )
        return tuple(index)
    return (index,)


def index_tensor(item: Any, input: Tensor) -> Tensor:
    """An index given as a tensor, an array or a sequence: an integer or bool tensor on the input's device."""
    if not isinstance(item, Tensor):
        if not isinstance(item, (np.ndarray, list, tuple, range)):
            if isinstance(item, str):
                raise TypeError(f"a tensor cannot be indexed by the str {item!r}")
            if not hasattr(item, "__len__"):
                raise IndexError(
                    "only integers, slices (`:`), ellipsis (`...`), None and long or bool tensors are valid indices "
                    f"(got {type(item).__name__})"
                )
            item = list(item)
        item = wrap(as_integers(item))
    dtype = item.tj_array.dtype
    if dtype.kind == "u" and dtype.itemsize == 1:
        warn("indexing with dtype uint8 is now deprecated, please use a dtype bool instead.")
        item = item != 0
    elif dtype.kind != "b" and not (dtype.kind == "i" and dtype.itemsize >= 4):
        raise IndexError(f"tensors used as indices must be long, int, byte or bool tensors (got {item.dtype})")
    return transfer(item, input.device)


def as_integers(values: Any) -> Any:
    """Sequences of ints or bools, also of 0-dim tensors, as an array."""
    if isinstance(values, np.ndarray):
        return values
    array = np.array([as_index(v, "an index") if isinstance(v, Tensor) else v for v in values])
    if array.dtype.kind == "O":
        raise IndexError(f"an index given as a sequence must hold integers or bools of one shape, got {values!r:.100}")
    return array.astype(np.int64) if array.dtype.kind != "b" or not array.size else array


class SplitIndex:
    """An index taken apart: what is basic, as one NumPy index, and the tensors that then index the view it gives."""

    __slots__ = ("picks", "place")

    def __init__(self, input: Tensor, index: Any) -> None:
        shape = input.tj_array.shape
        items = [normalise_item(i, input) for i in items_of(index)]
        self.place: list[Any] = []
        self.picks: list[tuple[int, Tensor]] = []  # (dim of the view, integer tensor or mask)
        rest = len(shape) - sum(dims_consumed(i) for i in items)
        if rest < 0:
            raise too_many_indices_error(input)
        source = out = 0  # where we are among the tensor's dims and among the view's
        for item in items:
            if item is None or item.__class__ is bool:
                if item is not None:
                    self.picks.append((out, transfer(wrap(np.zeros(int(item), np.int64)), input.device)))
                self.place.append(None)
                out += 1
                continue
            if item.__class__ is int:
                self.place.append(wrap_index(item, source, shape[source]))
                source += 1
                continue
            count = 1
            if item is ...:
                count, rest = rest, 0
            elif isinstance(item, Tensor):
                if item.tj_array.dtype.kind == "b":
                    check_mask(item, shape, source)
                    count = item.tj_array.ndim
                self.picks.append((out, item))
            self.place += [item] if item.__class__ is slice else [ALL] * count
            source, out = source + count, out + count

    def mask(self) -> Tensor | None:
        """The mask, if a single mask is all that picks."""
        only = self.picks[0][1] if len(self.picks) == 1 else None
        return only if only is not None and only.tj_array.dtype.kind == "b" else None

    def indices(self) -> tuple[tuple[int, ...], list[Tensor]]:
        """Dims and integer tensors, with each mask as the indices of what it lets through."""
        dims: list[int] = []
        tensors: list[Tensor] = []
        for dim, pick in self.picks:
            found = apply(NONZERO, (pick,)) if pick.tj_array.dtype.kind == "b" else (pick,)
            dims += range(dim, dim + len(found))
            tensors += found
        if len(tensors) == 1:
            return tuple(dims), tensors
        try:
            np.broadcast_shapes(*[t.tj_array.shape for t in tensors])
        except ValueError:
            shapes = ", ".join(str(list(t.shape)) for t in tensors)
            raise IndexError(f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}") from None
        return tuple(dims), tensors

    def view(self, input: Tensor) -> Tensor:
        """The view the basic part gives; the input itself if that is all of it and tensors follow."""
        if self.picks and all(p == ALL for p in self.place):
            return input
        return apply(SLICE, (input,), {"index": keep_array(self.place)})


def normalise_item(item: Any, input: Tensor) -> Any:
    """One item as an int, a slice, None, Ellipsis, a bool or an index tensor of at least one dim."""
    kind = item.__class__
    if item is None or item is ... or kind is int or kind is bool:
        return item
    if kind is slice:
        return plain_slice(item)
    if isinstance(item, np.bool_):
        return bool(item)
    if isinstance(item, (int, np.integer)):
        return int(item)
    found = index_tensor(item, input)
    if found.tj_array.ndim:
        return found
    return bool(found.item()) if found.tj_array.dtype.kind == "b" else int(found.item())


def dims_consumed(item: Any) -> int:
    """Return the number of the tensor's dims that an item consumes."""
    if item is None or item is ... or item.__class__ is bool:
        return 0
    return item.tj_array.ndim if isinstance(item, Tensor) and item.tj_array.dtype.kind == "b" else 1


def wrap_index(index: int, dim: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
    return index + size if index < 0 else index


def check_mask(mask: Tensor, shape: tuple[int, ...], source: int) -> None:
    for k, n in enumerate(mask.tj_array.shape):
        if shape[source + k] != n:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {k} does not match the shape of the indexed tensor "
                f"{list(shape)} at index {source + k}"
            )


def keep_array(place: list[Any]) -> tuple[Any, ...]:
    """With nothing but ints NumPy would hand out a copied scalar; an Ellipsis keeps it an array on the same memory."""
    return tuple(place) if any(p.__class__ is slice for p in place) else (*place, ...)


def basic_index(shape: tuple[int, ...], index: Any) -> tuple[Any, ...] | None:
    """The quick way for ints and slices of ints, the most usual indices; None for all others."""
    items = index if index.__class__ is tuple else (index,)
    if len(items) > len(shape):
        return None
    place: list[Any] = []
    sliced = False
    for item, n in zip(items, shape, strict=False):
        kind = item.__class__
        if kind is int:
            if item < 0:
                item += n
            if not 0 <= item < n:
                return None
        elif kind is slice:
            for part in (item.start, item.stop):
                if part is not None and part.__class__ is not int:
                    return None
            if item.step is not None and (item.step.__class__ is not int or item.step < 1):
                return None
            sliced = True
        else:
            return None
        place.append(item)
    if not sliced:
        place.append(...)
    return tuple(place)


# ---- x[...]


def getitem(self: Tensor, index: Any) -> Tensor:
    place = basic_index(self.tj_array.shape, index)
    if place is not None:
        return apply(SLICE, (self,), {"index": place})
    parts = SplitIndex(self, index)
    view = parts.view(self)
    if not parts.picks:
        return view
    mask = parts.mask()
    if mask is not None:
        return select_by_mask(view, mask, parts.picks[0][0])
    dims, tensors = parts.indices()
    return apply(INDEX, (view, *tensors), {"dims": dims})


def select_by_mask(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """The masked dims as one, indexed by the places where the mask holds: quicker than an index for each dim."""
    shape, end = x.tj_array.shape, dim + mask.tj_array.ndim
    if end - dim > 1:
        x, mask = x.reshape((*shape[:dim], math.prod(shape[dim:end]), *shape[end:])), mask.reshape(-1)
    return apply(INDEX, (x, *apply(NONZERO, (mask,))), {"dims": (dim,)})


def setitem(self: Tensor, index: Any, value: Any) -> None:
    if not isinstance(value, Tensor):
        value = as_assigned_number(self, value)
    place = basic_index(self.tj_array.shape, index)
    if place is not None:
        store(apply(SLICE, (self,), {"index": place}), value)
        return
    parts = SplitIndex(self, index)
    view = parts.view(self)
    if not parts.picks:
        store(view, value)
        return
    mask = parts.mask()
    if mask is not None and (not isinstance(value, Tensor) or value.tj_array.ndim == 0):
        write(view, fill_masked(view, mask, parts.picks[0][0], value), "index_put_")
    else:
        value = transfer(value, self.device) if isinstance(value, Tensor) else full(view, (), value)
        dims, tensors = parts.indices()
        apply(INDEX_PUT_INTO, (view, broadcast_to_selection(view, dims, tensors, value), *tensors), {"dims": dims})


def as_assigned_number(self: Tensor, value: Any) -> Any:
    """A number that is assigned, in the category of where it goes."""
    if not isinstance(value, (bool, int, float)):
        if not isinstance(value, (np.number, np.bool_)):
            raise TypeError(
                f"can't assign a {type(value).__name__} to a tapejit.{self.dtype.legacy}Tensor; make it a tensor first with "
                "tapejit.tensor(...)"
            )
        value = value.item()
    if (
        self.tj_array.dtype in dtypes.HALF
    ):  # what they do not hold is infinite, as in PyTorch, and only here: `fill_` refuses it
        with np.errstate(over="ignore"):
            return float(self.tj_array.dtype.type(value))
    return dtypes.representable("fill_", self.dtype, value)


def full(like: Tensor, shape: tuple[int, ...], value: Any, out: Tensor | None = None) -> Tensor:
    """A number as a tensor."""
    attrs = {"shape": shape, "dtype": like.dtype, "device": like.device}
    return apply(FULL, (value,), attrs, out)


def drop_leading_ones(value: Tensor, ndim: int) -> Tensor:
    """Leading dims of length 1 that the target does not have do not count."""
    extra = value.tj_array.ndim - ndim
    if extra > 0 and all(n == 1 for n in value.tj_array.shape[:extra]):
        return value.reshape(value.tj_array.shape[extra:])
    return value


def store(view: Tensor, value: Any) -> None:
    """Write a tensor, or a number, into a view."""
    shape = view.tj_array.shape
    if isinstance(value, Tensor) and value.tj_base is view.tj_base and same_view(value, view):
        return  # `x[i] *= 2` is x[i].mul_(2), and then this with what that returned
    if not isinstance(value, Tensor):
        if view.tj_array.size <= 4096:
            full(view, shape, value, view)
            return
        value = full(view, (), value)  # expanded, which needs no memory
    value = drop_leading_ones(value, len(shape))
    write(view, value if value.tj_array.shape == shape else value.expand(shape), "copy_", convert=True)


def same_view(value: Tensor, view: Tensor) -> bool:
    """True if two views of one tensor show the same elements in the same places, with the same history."""
    a, b = value.tj_array, view.tj_array
    if value.tj_made_without_grad or a.shape != b.shape or a.strides != b.strides or a.dtype != b.dtype:
        return False
    return data_pointer(a) == data_pointer(b)


def fill_masked(view: Tensor, mask: Tensor, dim: int, value: Any) -> Tensor:
    """The view with a number where the mask, which stands at `dim`, holds: no shape depends on the mask's values."""
    rest = view.tj_array.ndim - dim - mask.tj_array.ndim
    wide = mask.reshape((*mask.tj_array.shape, *(1,) * rest)) if rest else mask
    return where(wide, cast(value, view.dtype) if isinstance(value, Tensor) else value, view)


def broadcast_to_selection(view: Tensor, dims: tuple[int, ...], tensors: list[Tensor], value: Tensor) -> Tensor:
    """The value broadcast to what the tensors pick."""
    if value.tj_array.dtype != view.tj_array.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {view.dtype.legacy} for the destination and "
            f"{value.dtype.legacy} for the source."
        )
    found = selection_shape(view, tensors, dims)
    if value.tj_array.shape == found:
        return value
    value = drop_leading_ones(value, len(found))
    if not broadcasts_to(value.tj_array.shape, found):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result of shape "
            f"{list(found)}"
        )
    return value.expand(found)


def selection_shape(view: Tensor, tensors: list[Tensor], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `view` indexed by tensors at `dims`: they stand where the first stood if adjacent, else in front."""
    shape = view.tj_array.shape
    if len(dims) == 1:
        return (*shape[: dims[0]], *tensors[0].tj_array.shape, *shape[dims[0] + 1 :])
    picked = np.broadcast_shapes(*[t.tj_array.shape for t in tensors])
    rest = tuple(n for d, n in enumerate(shape) if d not in dims)
    at = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    return (*rest[:at], *picked, *rest[at:])


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def iterate(self: Tensor) -> Iterator[Tensor]:
    if self.tj_array.ndim == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(self.unbind(0))


def contains(self: Tensor, element: Any) -> bool:
    if not isinstance(element, (Tensor, bool, int, float, np.number)):
        raise RuntimeError(f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(element)}.")
    return bool((self == element).any().item())


for _name, _method in {"getitem": getitem, "setitem": setitem, "iter": iterate, "contains": contains}.items():
    setattr(Tensor, f"__{_name}__", _method)
