"""The form of an op's results, known without running it: shapes and dtypes (`eager/infer.py`), and strides.

Arrays are stood for by *stand-ins*, of their form, on one stretch of memory that nobody writes or reads. A view of one is made
as any view is. Results whose memory is in order have the strides of C. A pointwise op keeps the order of its inputs, which
follows from running it on a few elements that stand in memory in the same order. What an op with a meaning in other ops makes
follows from these. What cannot be told is an `UnforeseenError`, and whoever asks has to run the op: so nothing here needs to
know all ops. Strides of dims that have no second element are those of C, and may be others where the op runs.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.devices import device
from ...eager.core.shape_inference import Spec, infer, run_kernel
from ...eager.core.op import STORE, Op
from ...eager.ops.create import ARANGE, EMPTY, FULL
from ...eager.arrays.deferred import Pending, form_of
from ...eager.core.tape.node import State, local
from ...eager.core.tensor import Tensor, wrap

Form = tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...]]  # shape, dtype, strides
Forms = tuple[tuple[Form, ...], bool]  # and whether they are in a tuple

CPU = device("cpu")
MOST = 4096  # forms that are remembered
_known: dict[Any, Forms] = {}


class UnforeseenError(BaseException):
    """What an op returns is not known before it runs. No code that catches errors may catch it."""


# ---- stand-ins


def _memory(size: int) -> mmap.mmap:
    """Memory that is only an address: the system gives none before it is touched."""
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, size, flags=private) if private else mmap.mmap(-1, size)


_stretch = _memory(1 << 26)


def stand_in(form: Form) -> np.ndarray[Any, Any]:
    """An array of a form, without contents."""
    global _stretch
    shape, dtype, strides = form
    size = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 1)
    memory = _stretch
    if size > len(memory):
        memory = _stretch = _memory(1 << size.bit_length())
    return np.ndarray(shape, dtype, memory, 0, strides)


# ---- forms


def foreseen(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> Forms:
    """The forms of an op's results for arrays and numbers."""
    key: Any = (op, *[_key(x) for x in arrays], *[(k, v.__class__, v) for k, v in attrs.items()])
    try:
        found = _known.get(key)
    except TypeError:  # a setting that is a list, say
        return _foreseen(op, arrays, attrs)
    if found is None:
        found = _foreseen(op, arrays, attrs)
        if len(_known) >= MOST:
            _known.clear()
        _known[key] = found
    return found


def _key(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype, x.strides
    return float if x.__class__ is float else (x.__class__, x)  # whether an int fits a dtype depends on its value


def _foreseen(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> Forms:
    try:
        if attrs.get("device", CPU) != CPU:
            raise UnforeseenError(op.name)
        if op.kind == "pointwise":
            return (pointwise(op, arrays, attrs),), False
        if op is FULL or op is EMPTY:
            return (_ordered(attrs["shape"], attrs["dtype"].numpy),), False
        if op is ARANGE:
            return (_ordered((attrs["length"],), attrs["dtype"].numpy),), False
        if op is STORE:
            return (_ordered(arrays[0].shape, arrays[0].dtype),), False
        if not op.ordered or op.data_dependent or op.mutates:
            raise UnforeseenError(op.name)
        if op.infer is not None or (op.kind == "reduce" and "dims" in attrs):
            specs = tuple(Spec(x.shape, dtypes.from_numpy(x.dtype)) if isinstance(x, np.ndarray) else x for x in arrays)
            found = infer(op, specs, attrs)
            return tuple(_ordered(s.shape, s.dtype.numpy) for s in found), len(found) > 1
        if op.expand is None:
            raise UnforeseenError(op.name)
        return by_parts(op, arrays, attrs)
    except Exception as reason:  # what it is, running the op tells better
        raise UnforeseenError(op.name) from reason


def _ordered(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Form:
    return shape, dtype, in_order(shape, dtype, range(len(shape)))


def in_order(shape: tuple[int, ...], dtype: np.dtype[Any], dims: Any) -> tuple[int, ...]:
    """The strides of an array whose dims are so in memory, from the outermost to the innermost."""
    if 0 in shape:
        return np.empty(shape, dtype).strides
    strides, step = [0] * len(shape), dtype.itemsize
    for dim in reversed(dims):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def pointwise(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> Form:
    given = [x for x in arrays if isinstance(x, np.ndarray)]
    shape = np.broadcast_shapes(*[x.shape for x in given])
    (few,) = run_kernel(op, [_few(x) if isinstance(x, np.ndarray) else x for x in arrays], attrs)
    if all(x.flags.c_contiguous for x in given):
        return _ordered(shape, few.dtype)
    if 0 in shape:
        raise UnforeseenError(op.name)
    return shape, few.dtype, in_order(shape, few.dtype, sorted(range(len(shape)), key=lambda dim: -few.strides[dim]))


def _few(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ones, at most two in each dim, which stand in memory in the order of an array's elements, and share it where these do."""
    dims = sorted(range(x.ndim), key=lambda dim: -abs(x.strides[dim]))
    memory = np.ones([1 if x.strides[dim] == 0 else min(x.shape[dim], 2) for dim in dims], x.dtype)
    found = memory.transpose(sorted(range(x.ndim), key=dims.__getitem__)) if dims else memory
    return np.broadcast_to(found, [min(n, 2) for n in x.shape])


# ---- composites


def by_parts(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> Forms:
    """What an op makes, by its meaning in other ops."""
    if len({x.dtype for x in arrays if isinstance(x, np.ndarray) and x.dtype.kind not in "biu"}) > 1:
        raise UnforeseenError(op.name)  # a kernel may compute in another dtype than its parts
    parts = Parts()
    state = State()
    state.grad, state.handler = False, parts
    before, local.state = local.state, state
    try:
        assert op.expand is not None
        result = op.expand(*[parts.tensor(x) if isinstance(x, np.ndarray) else x for x in arrays], **attrs)
    finally:
        local.state = before
    several = type(result) is tuple
    made = [t._array for t in (result if several else (result,))]
    return tuple(_ordered(a.shape, a.dtype) for a in made), several


class Parts:
    """A handler of `apply` that runs nothing and notes nothing."""

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return wrap(form_of(array, CPU)(self, 0, array))

    def read(self, pending: Pending) -> None:
        raise UnforeseenError("it looks at a value")

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        arrays = [there(x) if isinstance(x, Tensor) else x for x in inputs]
        if out is not None:
            raise UnforeseenError("it writes")
        if op.view:
            result = op.run(np, *arrays, **attrs)  # type: ignore[misc]
            made, several = (result if type(result) is tuple else (result,)), type(result) is tuple
        else:
            forms, several = foreseen(op, arrays, attrs)
            made = tuple(map(stand_in, forms))
        results = tuple(map(self.tensor, made))
        return results if several else results[0]


def there(t: Tensor) -> Any:
    """The array that a tensor hides."""
    array = t._array
    found = array.real if isinstance(array, Pending) else array
    if type(found) is not np.ndarray:
        raise UnforeseenError("it is on another device")
    return found
