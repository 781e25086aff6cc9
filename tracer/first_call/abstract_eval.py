"""Abstract evaluation: the form of an op's results without running it.

A form has shapes and dtypes (`eager/core/shape_inference.py`), and strides.

*Stand-ins* replace arrays: they have the right form, and all share one range of memory that is never written or read. A view of
a stand-in is an ordinary view. Results in contiguous order have C strides. A pointwise op keeps the dim order of its inputs,
which is found by running it on a few elements laid out in the same order. Composite ops are evaluated by their parts. If a form
cannot be inferred, `AbstractEvalError` is raised and the caller has to run the op, so this module need not cover all ops. Dims
of size 1 get C strides, which may differ from those of the op when it runs.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.deferred import DeferredArray, form_of
from ...eager.arrays.devices import device
from ...eager.core.dispatch import STORE
from ...eager.core.op import Op
from ...eager.core.shape_inference import Spec, infer, run_kernel
from ...eager.core.tape.node import State, local
from ...eager.core.tensor import Tensor, wrap
from ...eager.ops.create import ARANGE, EMPTY, FULL

Form = tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...]]  # shape, dtype, strides
Forms = tuple[tuple[Form, ...], bool]  # and whether the op returns a tuple

CPU = device("cpu")
MAX_CACHED_FORMS = 4096  # size of the cache of forms
_known: dict[Any, Forms] = {}


class AbstractEvalError(BaseException):
    """The result of an op is unknown until it runs. A BaseException, so that code which catches errors does not catch it."""


# ---- stand-ins


def _memory(size: int) -> mmap.mmap:
    """Reserve address space: the system allocates no pages until they are touched."""
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, size, flags=private) if private else mmap.mmap(-1, size)


_stretch = _memory(1 << 26)


def stand_in(form: Form) -> np.ndarray[Any, Any]:
    """Return an array of a form, without contents."""
    global _stretch
    shape, dtype, strides = form
    size = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 1)
    memory = _stretch
    if size > len(memory):
        memory = _stretch = _memory(1 << size.bit_length())
    return np.ndarray(shape, dtype, memory, 0, strides)


# ---- forms


def abstract_eval(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> Forms:
    """Return the forms of an op's results for arrays and numbers."""
    key: Any = (op, *[_key(x) for x in arrays], *[(k, v.__class__, v) for k, v in attrs.items()])
    try:
        found = _known.get(key)
    except TypeError:  # an unhashable setting, such as a list
        return _abstract_eval(op, arrays, attrs)
    if found is None:
        found = _abstract_eval(op, arrays, attrs)
        if len(_known) >= MAX_CACHED_FORMS:
            _known.clear()
        _known[key] = found
    return found


def _key(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype, x.strides
    return float if x.__class__ is float else (x.__class__, x)  # whether an int fits a dtype depends on its value


def _abstract_eval(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> Forms:
    try:
        if attrs.get("device", CPU) != CPU:
            raise AbstractEvalError(op.name)
        if op.kind == "pointwise":
            return (pointwise(op, arrays, attrs),), False
        if op is FULL or op is EMPTY:
            return (_ordered(attrs["shape"], attrs["dtype"].numpy),), False
        if op is ARANGE:
            return (_ordered((attrs["length"],), attrs["dtype"].numpy),), False
        if op is STORE:
            return (_ordered(arrays[0].shape, arrays[0].dtype),), False
        if not op.ordered or op.data_dependent or op.mutates:
            raise AbstractEvalError(op.name)
        if op.infer is not None or (op.kind == "reduce" and "dims" in attrs):
            specs = tuple(Spec(x.shape, dtypes.from_numpy(x.dtype)) if isinstance(x, np.ndarray) else x for x in arrays)
            found = infer(op, specs, attrs)
            return tuple(_ordered(s.shape, s.dtype.numpy) for s in found), len(found) > 1
        if op.expand is None:
            raise AbstractEvalError(op.name)
        return by_parts(op, arrays, attrs)
    except Exception as reason:  # running the op reports the error better
        raise AbstractEvalError(op.name) from reason


def _ordered(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Form:
    return shape, dtype, in_order(shape, dtype, range(len(shape)))


def in_order(shape: tuple[int, ...], dtype: np.dtype[Any], dims: Any) -> tuple[int, ...]:
    """Return the strides of an array whose dims have this order in memory, from outermost to innermost."""
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
        raise AbstractEvalError(op.name)
    return (
        shape,
        few.dtype,
        in_order(shape, few.dtype, sorted(range(len(shape)), key=lambda dim: (-few.strides[dim], -few.shape[dim]))),
    )


def _few(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ones, at most two in each dim, in the memory order of an array's elements, sharing memory where these do."""
    dims = sorted(range(x.ndim), key=lambda dim: -abs(x.strides[dim]))
    memory = np.ones([1 if x.strides[dim] == 0 else min(x.shape[dim], 2) for dim in dims], x.dtype)
    found = memory.transpose(sorted(range(x.ndim), key=dims.__getitem__)) if dims else memory
    return np.broadcast_to(found, [min(n, 2) for n in x.shape])


# ---- composites


def by_parts(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> Forms:
    """Evaluate a composite op by the ops it consists of."""
    if len({x.dtype for x in arrays if isinstance(x, np.ndarray) and x.dtype.kind not in "biu"}) > 1:
        raise AbstractEvalError(op.name)  # a kernel may compute in another dtype than its parts
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
    made = [t.tj_array for t in (result if several else (result,))]
    return tuple(_ordered(a.shape, a.dtype) for a in made), several


class Parts:
    """Handler of `apply` that neither runs nor records ops."""

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return wrap(form_of(array, CPU)(self, 0, array))

    def read(self, pending: DeferredArray) -> None:
        raise AbstractEvalError("it looks at a value")

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        arrays = [hidden_array(x) if isinstance(x, Tensor) else x for x in inputs]
        if out is not None:
            raise AbstractEvalError("it writes")
        if op.view:
            result = op.run(np, *arrays, **attrs)  # type: ignore[misc]
            made, several = (result if type(result) is tuple else (result,)), type(result) is tuple
        else:
            forms, several = abstract_eval(op, arrays, attrs)
            made = tuple(map(stand_in, forms))
        results = tuple(map(self.tensor, made))
        return results if several else results[0]


def hidden_array(t: Tensor) -> Any:
    """Return the array that a tensor hides."""
    array = t.tj_array
    found = array.real if isinstance(array, DeferredArray) else array
    if type(found) is not np.ndarray:
        raise AbstractEvalError("it is on another device")
    return found
