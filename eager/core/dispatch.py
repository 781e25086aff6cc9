"""Dispatch: the one interception point, and the eager handler below it.

Every tensor operation, in forward, backward and optimizer alike, is a call of `apply(op, inputs, attrs)`. Inputs are tensors
and Python numbers; attributes are everything static (dims, shapes, flags). `out=` writes the result into an existing tensor:
all in-place ops are that. Without a handler on the thread's state, `execute` runs the kernel and puts a node on the tape.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..arrays import devices, dtypes
from ..arrays.deferred import DeferredArray, resolve_array
from .errors import as_torch_error, broadcast_error, common_device, in_place_name
from .op import NO_ATTRS, Op, primitive
from .tape.gradient_rules import shape_of
from .tape.inplace import check_target, rebuild_view, record_write
from .tape.node import Node, Pick, State, local
from .tensor import Tensor, versions_of, wrap

TRUST = "ops"  # see core/library.py: what is here does nothing but run ops


def apply(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any] = NO_ATTRS, out: Tensor | None = None) -> Any:
    """Run an op. Every tensor operation comes through here, so the thread's handler sees them all."""
    state = local.state
    if state.handler is not None:
        return state.handler(op, inputs, attrs, out)
    return execute(op, inputs, attrs, out, state)


def execute(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None, state: State) -> Any:
    """Run the kernel now, and put a node on the tape if an input requires a gradient. The eager handler."""
    arrays: list[Any] = []
    wants, bit, special = 0, 1, False
    for x in inputs:
        if isinstance(x, Tensor):
            base = x.tj_base
            if base is not None and x.tj_rebased != base.tj_rebased:
                rebuild_view(x, base)
            array = x.tj_array
            arrays.append(array)
            if x.tj_requires_grad:
                wants |= bit
            if type(array) is not np.ndarray or array.itemsize == 2:
                special = True
        else:
            arrays.append(x)
        bit <<= 1
    if special:
        if any(isinstance(a, DeferredArray) for a in arrays):
            return execute(op, resolve_inputs(inputs), attrs, out, state)
        together = move_numbers_to_device(op, inputs)
        if together is not inputs:
            return execute(op, together, attrs, out, state)
    if op.mutates:
        check_updates(op, inputs, state)
    tracked = wants if wants and state.grad and (op.grad is not None or op.expand is not None) else 0
    if tracked and op.grad is None:
        value = op.expand(*inputs, **attrs)  # type: ignore[misc]
        return value if out is None else write(out, value, op.name)
    if out is not None:
        name = attrs["called"] if op is STORE else in_place_name(op)
        check_target(out, bool(tracked), state.grad, name)
        keeps_history = state.grad and out.tj_requires_grad
        direct = not tracked and not keeps_history and not special and op.ufunc is not None
        if direct and _run_ufunc_into(op, arrays, out, inputs):
            return out
    try:
        if special:
            result, xp = run_kernel_elsewhere(op, inputs, arrays, attrs)
        else:
            result, xp = (op.numpy_function(*arrays) if op.ufunc is not None else op.run(np, *arrays, **attrs)), np  # type: ignore[misc]
    except (ValueError, OverflowError) as error:
        raise as_torch_error(op, inputs, error) from error
    if op.mutates:
        return bump_versions(op, inputs)
    several = type(result) is tuple
    if type(result) is np.ndarray:
        t = object.__new__(Tensor)
        t.tj_array = result
        outputs = [t]
    else:
        outputs = [wrap(r if type(r) is np.ndarray else _as_array(xp, r)) for r in (result if several else (result,))]
    if op.view:
        link_views(op, inputs[0], attrs, outputs, several, state.grad)
    elif op.ordered and out is None and (several or not outputs[0].tj_array.flags.c_contiguous):
        make_contiguous(outputs)
    if tracked:
        record_node(op, tracked, inputs, attrs, outputs, out, several, state)
    elif state.inference and not op.view:
        for t in outputs:
            t.tj_inference = True
    if out is not None:
        record_write(out, outputs[0], name)
        return out
    return tuple(outputs) if several else outputs[0]


def resolve_inputs(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Resolve deferred arrays of inputs: tensors that outlived a traced function without its knowledge."""
    for x in inputs:
        if isinstance(x, Tensor):
            x.tj_array = resolve_array(x.tj_array)
    return inputs


def make_contiguous(outputs: list[Tensor]) -> None:
    """Copy results to C order: the array library may follow a transposed input, PyTorch's results are contiguous."""
    for t in outputs:
        if not t.tj_array.flags.c_contiguous:
            t.tj_array = devices.copy(t.tj_array)


def check_updates(op: Op, inputs: tuple[Any, ...], state: State) -> None:
    """Check that an op may write into the inputs that it mutates."""
    for i in op.mutates:
        if isinstance(inputs[i], Tensor):
            check_target(inputs[i], False, state.grad, op.name.removesuffix("into"))


def bump_versions(op: Op, inputs: tuple[Any, ...]) -> None:
    for i in op.mutates:
        if isinstance(inputs[i], Tensor):
            versions_of(inputs[i])[0] += 1


def _as_array(xp: Any, value: Any) -> Any:
    """Convert a kernel's result to an array. Arrays stay on their device: `transfer` and factories choose it."""
    return xp.asarray(value) if isinstance(value, (np.generic, bool, int, float)) else value


def _run_ufunc_into(op: Op, arrays: list[Any], out: Tensor, inputs: tuple[Any, ...]) -> bool:
    """Run a ufunc straight into `out`, without a temporary; False if NumPy cannot cast the result to its dtype."""
    try:
        op.numpy_function(*arrays, out=out.tj_array, casting="same_kind")
    except TypeError:
        return False
    except (ValueError, OverflowError) as error:
        raise as_torch_error(op, inputs, error, out) from error
    versions_of(out)[0] += 1
    return True


def run_kernel_elsewhere(op: Op, inputs: tuple[Any, ...], arrays: list[Any], attrs: dict[str, Any]) -> tuple[Any, Any]:
    """Run a kernel on another device, or in half precision: in float32 and rounded once, as hardware and PyTorch do."""
    where = common_device(op, inputs)
    xp = devices.module_for(where)
    half = next((a.dtype for a in arrays if hasattr(a, "dtype") and a.dtype in dtypes.HALF), None) if op.upcast else None
    with devices.on(where):
        if half is not None:
            arrays = [a.astype(np.float32) if hasattr(a, "dtype") and a.dtype in dtypes.HALF else a for a in arrays]
        result = getattr(xp, op.ufunc)(*arrays) if op.ufunc is not None else op.run(xp, *arrays, **attrs)  # type: ignore[misc]
        if half is None:
            return result, xp
        if type(result) is tuple:
            return tuple(r.astype(half) if r.dtype == np.float32 else r for r in result), xp
        return (result.astype(half) if result.dtype == np.float32 else result), xp


def move_numbers_to_device(op: Op, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Move 0-dim CPU tensors, which count as numbers, to the GPU of a pointwise op's other operands, on the tape."""
    if op.kind != "pointwise":
        return inputs
    found = next((x.device for x in inputs if isinstance(x, Tensor) and x.is_cuda), None)
    if found is None or not any(_is_cpu_number(x) for x in inputs):
        return inputs
    return tuple([x.to(found) if _is_cpu_number(x) else x for x in inputs])


def _is_cpu_number(x: Any) -> bool:
    return isinstance(x, Tensor) and not x.is_cuda and x.tj_array.ndim == 0


def record_node(
    op: Op,
    wants: int,
    inputs: tuple[Any, ...],
    attrs: dict[str, Any],
    outputs: list[Tensor],
    target: Tensor | None,
    several: bool,
    state: State,
) -> None:
    """Put a node for an op that has run on the tape. Views among the inputs must be up to date."""
    shape = outputs[0].tj_array.shape if op.kind == "pointwise" else None
    edges: list[Any] = []
    broadcast = False
    for x in inputs:
        if isinstance(x, Tensor):
            edges.append((x.tj_node or x) if x.tj_requires_grad else None)
            if shape is not None and x.tj_array.shape != shape:
                broadcast = True
        else:
            edges.append(None)
    node = Node(op, tuple(edges), op.rules.collect(wants, inputs, attrs, outputs, target))
    if broadcast:
        node.broadcast = tuple([shape_of(x) for x in inputs])
    if state.anomaly is not None:
        node.where = state.anomaly.here()
    if not several or op.statistics:
        t = outputs[0]
        t.tj_requires_grad = True
        t.tj_node = node
        return
    node.outputs = len(outputs)
    if op.rules.saves_outputs:
        node.picks = {}
    for i, t in enumerate(outputs):
        if t.dtype.is_floating_point:
            t.tj_requires_grad = True
            t.tj_node = pick = Pick(node, i)
            if node.picks is not None:
                node.picks[i] = weakref.ref(pick)


def link_views(op: Op, x: Tensor, attrs: dict[str, Any], outputs: list[Tensor], several: bool, grad: bool) -> None:
    """Link views to their base: version counter, chain of view ops, and history."""
    base = x if x.tj_base is None else x.tj_base
    box = versions_of(x)
    for i, t in enumerate(outputs):
        t.tj_base = base
        t.tj_view_chain = (*x.tj_view_chain, (op, attrs, i if several else None))
        t.tj_versions = box
        t.tj_rebased = base.tj_rebased
        t.tj_made_without_grad = not grad or x.tj_made_without_grad
        if base.tj_inference:
            t.tj_inference = True


def write(target: Tensor, value: Tensor, name: str, convert: bool = False) -> Tensor:
    """Store a computed value in a tensor, on the tape; broadcast to it, and with `convert` in any dtype."""
    if value.tj_array.shape != target.tj_array.shape:
        clash = broadcast_error([target.tj_array.shape, value.tj_array.shape])
        if clash is not None:
            raise RuntimeError(f"{name}: {clash}")
        if np.broadcast_shapes(value.tj_array.shape, target.tj_array.shape) != target.tj_array.shape:
            raise RuntimeError(
                f"{name}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(value.shape)}"
            )
        value = value.expand(target.tj_array.shape)
    if type(value.tj_array) is not type(target.tj_array):
        value = value.to(target.device)
    if value.tj_array.dtype != target.tj_array.dtype:
        if not convert and not dtypes.can_cast(value.dtype, target.dtype):
            raise RuntimeError(
                f"{name}: result type {value.dtype.legacy} can't be cast to the desired output type {target.dtype.legacy}"
            )
        value = value.to(target.dtype)
    return apply(STORE, (value,), {"called": name}, target)  # type: ignore[no-any-return]


STORE = primitive("store", "movement", lambda xp, x, *, called: x, grad={"x": lambda g: g})  # `called`: for errors


def overwrite(target: Tensor, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Tensor:
    """Write function(target, ...) into target. Under the tape it works on a copy, as saved values must not be overwritten."""
    tracked = local.state.grad and any(isinstance(x, Tensor) and x.requires_grad for x in (target, *args, *kwargs.values()))
    return write(target, function(target.clone() if tracked else target, *args, **kwargs), name)


class InPlace:
    """Marks `out=` as an in-place op on its own first input, which autograd records, unlike PyTorch's `out=`."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
