"""The op table and the one interception point.

An `Op` is one record: how it runs, its gradient, its meaning for the compiler and the inputs that generate its tests.
Every tensor operation, in forward, backward and optimizer alike, is a call of `apply(op, inputs, attrs)`. Inputs are
tensors and Python numbers; attributes are everything static (dims, shapes, flags). `out=` writes the result into a
tensor that exists: all in-place ops are that.

Gradients name what they need: see `rules.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays import devices
from ..arrays import dtypes
from .autocast import aware, unaware
from .errors import broadcast_clash, common_device, explained, in_place_name
from .call_signature import faced, wants_face
from .tape.inplace import check_target, record, refresh
from ..arrays.deferred import Pending, resolved
from .tape.gradient_rules import Rules, parameters, shape_of
from ..arrays.op_samples import Sample
from .tape.node import Node, Pick, State, local
from .tensor import Tensor, versions_of, wrap

KINDS = ("pointwise", "reduce", "movement", "contraction", "index", "scan", "random", "create", "opaque", "composite")
NO_ATTRS: dict[str, Any] = {}


class Op:
    """One operation: see the module's text. Made by `primitive`, `kernel` and `composite`."""

    __slots__ = (
        "body",
        "data_dependent",
        "expand",
        "face",
        "function",
        "grad",
        "infer",
        "inplace",
        "input_names",
        "kind",
        "method",
        "mutates",
        "name",
        "namespaces",
        "numpy_function",
        "ordered",
        "rules",
        "run",
        "samples",
        "statistics",
        "ufunc",
        "upcast",
        "view",
    )

    def __init__(self, name: str, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"op {name}: kind {kind!r} is none of {KINDS}")
        self.name = name
        self.kind = kind
        self.run: Callable[..., Any] | None = None  # run(xp, *arrays, **attrs), one body for numpy and cupy
        self.ufunc: str | None = None  # or the name of a ufunc that is all of it
        self.numpy_function: Any = None
        self.infer: Callable[..., Any] | None = None
        self.grad: Any = None
        self.rules: Rules = Rules(self)
        self.body: Callable[..., Any] | None = None  # pointwise and reduce: the scalar expression, over a builder
        self.expand: Callable[..., Any] | None = None  # a composite's meaning in other ops
        self.input_names: tuple[str, ...] | None = None  # None: any number of inputs
        self.mutates: tuple[int, ...] = ()  # the inputs that `run` writes into (optimizer updates); it returns None
        self.data_dependent = False  # the result's shape depends on values
        self.view = False  # the result shares the first input's memory
        self.ordered = False  # the result's memory is in order, so that `.view()` works on it; pointwise ops keep their input's
        self.statistics = False  # outputs after the first are for the gradient rule to save, and have no gradient themselves
        self.upcast = False  # float16 and bfloat16 are computed in float32 and rounded once
        # the public side
        self.function: Callable[..., Any] | None = None
        self.face: Callable[..., Any] | None = None  # the function as users have it: see `face.py`
        self.namespaces: tuple[str, ...] = ()
        self.method = False
        self.inplace = False
        self.samples: tuple[Sample, ...] = ()

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.kind}>"


PRIMITIVES: dict[str, Op] = {}  # ops that `apply` runs: primitives and composites with a kernel of their own
OPS: dict[str, Op] = {}  # the table: every public function


# ---- making ops


def primitive(
    name: str,
    kind: str,
    run: Callable[..., Any] | None = None,
    *,
    ufunc: str | None = None,
    grad: Any = None,
    body: Callable[..., Any] | None = None,
    infer: Callable[..., Any] | None = None,
    expand: Callable[..., Any] | None = None,
    view: bool = False,
    upcast: bool | None = None,
    mutates: tuple[int, ...] = (),
    data_dependent: bool = False,
    statistics: bool = False,
) -> Op:
    """Register an op that `apply` runs. `expand` makes it a composite with a kernel: the compiler looks through it, and
    where it has no `grad` it is differentiated through it."""
    if name in PRIMITIVES:
        raise ValueError(f"op {name!r} is registered twice")
    op = Op(name, kind)
    op.run, op.ufunc, op.grad, op.body, op.infer, op.expand, op.view = run, ufunc, grad, body, infer, expand, view
    op.ordered = not view and kind not in ("pointwise", "create")
    op.mutates, op.data_dependent, op.statistics = mutates, data_dependent, statistics
    op.upcast = kind in ("pointwise", "reduce", "contraction", "composite", "scan") if upcast is None else upcast
    if ufunc is not None:
        op.numpy_function = getattr(np, ufunc)
        op.input_names = ("x",) if op.numpy_function.nin == 1 else ("a", "b")
    else:
        op.input_names = _input_names(run)
    if kind == "pointwise" and body is None:
        op.body = lambda b, *xs: getattr(b, name)(*xs)
    op.rules.compile()
    PRIMITIVES[name] = op
    return op


def _input_names(run: Any) -> tuple[str, ...] | None:
    """The inputs are `run`'s positional parameters after xp; `*arrays` means any number."""
    positional, rest, _ = parameters(run)
    return tuple(positional[1:]) if rest is None else None


def public(
    *namespaces: str,
    name: str | None = None,
    samples: Sequence[Sample] = (),
    method: bool | None = None,
    inplace: bool = False,
    op: Op | None = None,
    checked: bool = False,
) -> Callable[[Any], Any]:
    """Put a function into the public namespaces ("" is `tapejit` itself, "nn.functional", "linalg", ...) and the table.

    `method` attaches it to Tensor (the default for ""); `inplace` attaches `name_` too. Without `op` it is a composite.
    `checked`: it looks itself whether its arguments are tensors.
    """

    def register(function: Any) -> Any:
        key = name or function.__name__
        spaces = namespaces or ("",)
        table_key = key if "" in spaces or "nn.functional" in spaces else f"{spaces[0]}.{key}"
        if table_key in OPS:
            raise ValueError(f"public op {table_key!r} is registered twice")
        record = op or PRIMITIVES.get(key)
        if record is None or record.function is not None:
            record = Op(key, "composite")
            record.expand = function
        plain, function = function, aware(table_key, function)
        record.function, record.namespaces, record.samples = function, spaces, tuple(samples)
        record.method = ("" in spaces) if method is None else method
        record.inplace = inplace
        OPS[table_key] = record
        face = faced(function, spaces[0], key, spaces != ("nn.functional",), "nn.functional" in spaces)
        record.face = face if wants_face(plain, False) and not checked else function
        if record.method and not hasattr(Tensor, key):
            setattr(Tensor, key, face if wants_face(plain, True) and not checked else function)
        if inplace:
            setattr(Tensor, key + "_", inplace_version(unaware(table_key, plain), key))
        return function

    return register


def inplace_version(function: Any, name: str) -> Any:
    """`x.name_(...)` from `name(x, ...)`: the same value, written into x."""
    positional, _, keywords = parameters(function)
    names = (*positional, *keywords)
    if "out" in names:

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return function(self, *args, out=InPlace(self), **kwargs)  # type: ignore[no-any-return]
    elif "inplace" in names:

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return function(self, *args, inplace=True, **kwargs)  # type: ignore[no-any-return]
    else:

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return overwrite(self, function, args, kwargs, name + "_")

    method.__name__ = name + "_"
    method.__doc__ = f"`{name}`, written into this tensor."
    return method


def overwrite(target: Tensor, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Tensor:
    """Write function(target, ...) into target. Under the tape it works on a copy, as what it saves must not be written over."""
    tracked = local.state.grad and any(isinstance(x, Tensor) and x.requires_grad for x in (target, *args, *kwargs.values()))
    return write(target, function(target.clone() if tracked else target, *args, **kwargs), name)


class InPlace:
    """Marks `out=` as an in-place op on its own first input, which autograd records, unlike PyTorch's `out=`."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


# ---- the interception point


def apply(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any] = NO_ATTRS, out: Tensor | None = None) -> Any:
    """Run an op. Every tensor operation comes through here, so whoever sets the thread's handler sees them all."""
    state = local.state
    if state.handler is not None:
        return state.handler(op, inputs, attrs, out)
    return execute(op, inputs, attrs, out, state)


def execute(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None, state: State) -> Any:
    """The eager handler: run the kernel now and put a node on the tape if an input wants a gradient."""
    arrays: list[Any] = []
    wants, bit, special = 0, 1, False
    for x in inputs:
        if isinstance(x, Tensor):
            base = x._base
            if base is not None and x._rebased != base._rebased:
                refresh(x, base)
            array = x._array
            arrays.append(array)
            if x._requires_grad:
                wants |= bit
            if type(array) is not np.ndarray or array.itemsize == 2:
                special = True
        else:
            arrays.append(x)
        bit <<= 1
    if special:
        if any(isinstance(a, Pending) for a in arrays):
            return execute(op, inputs_there(inputs), attrs, out, state)
        together = numbers_moved(op, inputs)
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
        keeps_history = state.grad and out._requires_grad
        direct = not tracked and not keeps_history and not special and op.ufunc is not None
        if direct and _into(op, arrays, out, inputs):
            return out
    try:
        if special:
            result, xp = run_special(op, inputs, arrays, attrs)
        else:
            result, xp = (op.numpy_function(*arrays) if op.ufunc is not None else op.run(np, *arrays, **attrs)), np  # type: ignore[misc]
    except (ValueError, OverflowError) as error:
        raise explained(op, inputs, error) from error
    if op.mutates:
        return note_updates(op, inputs)
    several = type(result) is tuple
    if type(result) is np.ndarray:
        t = object.__new__(Tensor)
        t._array = result
        outputs = [t]
    else:
        outputs = [wrap(r if type(r) is np.ndarray else _as_array(xp, r)) for r in (result if several else (result,))]
    if op.view:
        link_views(op, inputs[0], attrs, outputs, several, state.grad)
    elif op.ordered and out is None and (several or not outputs[0]._array.flags.c_contiguous):
        put_in_order(outputs)
    if tracked:
        tape(op, tracked, inputs, attrs, outputs, out, several, state)
    elif state.inference and not op.view:
        for t in outputs:
            t._inference = True
    if out is not None:
        record(out, outputs[0], name)
        return out
    return tuple(outputs) if several else outputs[0]


def inputs_there(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors that outlived a traced function without its knowledge get their arrays."""
    for x in inputs:
        if isinstance(x, Tensor):
            x._array = resolved(x._array)
    return inputs


def put_in_order(outputs: list[Tensor]) -> None:
    """The array library may follow the order of a transposed input; PyTorch's results are contiguous."""
    for t in outputs:
        if not t._array.flags.c_contiguous:
            t._array = devices.copy(t._array)


def check_updates(op: Op, inputs: tuple[Any, ...], state: State) -> None:
    """An op that writes into its inputs may do so."""
    for i in op.mutates:
        if isinstance(inputs[i], Tensor):
            check_target(inputs[i], False, state.grad, op.name.removesuffix("into"))


def note_updates(op: Op, inputs: tuple[Any, ...]) -> None:
    for i in op.mutates:
        if isinstance(inputs[i], Tensor):
            versions_of(inputs[i])[0] += 1


def _as_array(xp: Any, value: Any) -> Any:
    """A kernel's result as an array. One that is an array stays where the kernel put it: `transfer` and factories choose."""
    return xp.asarray(value) if isinstance(value, (np.generic, bool, int, float)) else value


def _into(op: Op, arrays: list[Any], out: Tensor, inputs: tuple[Any, ...]) -> bool:
    """A ufunc straight into `out`, with no temporary; False if NumPy does not convert the result's dtype on the way."""
    try:
        op.numpy_function(*arrays, out=out._array, casting="same_kind")
    except TypeError:
        return False
    except (ValueError, OverflowError) as error:
        raise explained(op, inputs, error, out) from error
    versions_of(out)[0] += 1
    return True


def run_special(op: Op, inputs: tuple[Any, ...], arrays: list[Any], attrs: dict[str, Any]) -> tuple[Any, Any]:
    """Run on another device, or on half precision: computed in float32 and rounded once, as hardware and PyTorch do."""
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


def numbers_moved(op: Op, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """0-dim CPU tensors are numbers: a pointwise op takes them to the GPU of its other operands, on the tape."""
    if op.kind != "pointwise":
        return inputs
    found = next((x.device for x in inputs if isinstance(x, Tensor) and x.is_cuda), None)
    if found is None or not any(_is_cpu_number(x) for x in inputs):
        return inputs
    return tuple([x.to(found) if _is_cpu_number(x) else x for x in inputs])


def _is_cpu_number(x: Any) -> bool:
    return isinstance(x, Tensor) and not x.is_cuda and x._array.ndim == 0


def tape(
    op: Op,
    wants: int,
    inputs: tuple[Any, ...],
    attrs: dict[str, Any],
    outputs: list[Tensor],
    target: Tensor | None,
    several: bool,
    state: State,
) -> None:
    """Put an op that has run on the tape. Views among the inputs are up to date."""
    shape = outputs[0]._array.shape if op.kind == "pointwise" else None
    edges: list[Any] = []
    broadcast = False
    for x in inputs:
        if isinstance(x, Tensor):
            edges.append((x._node or x) if x._requires_grad else None)
            if shape is not None and x._array.shape != shape:
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
        t._requires_grad = True
        t._node = node
        return
    node.outputs = len(outputs)
    if op.rules.saves_outputs:
        node.picks = {}
    for i, t in enumerate(outputs):
        if t.dtype.is_floating_point:
            t._requires_grad = True
            t._node = pick = Pick(node, i)
            if node.picks is not None:
                node.picks[i] = weakref.ref(pick)


def link_views(op: Op, x: Tensor, attrs: dict[str, Any], outputs: list[Tensor], several: bool, grad: bool) -> None:
    """Tell views whose memory they show."""
    base = x if x._base is None else x._base
    box = versions_of(x)
    for i, t in enumerate(outputs):
        t._base = base
        t._chain = (*x._chain, (op, attrs, i if several else None))
        t._versions = box
        t._rebased = base._rebased
        t._made_without_grad = not grad or x._made_without_grad


def write(target: Tensor, value: Tensor, name: str, convert: bool = False) -> Tensor:
    """Store a computed value in a tensor, on the tape; broadcast to it, and with `convert` in any dtype."""
    if value._array.shape != target._array.shape:
        clash = broadcast_clash([target._array.shape, value._array.shape])
        if clash is not None:
            raise RuntimeError(f"{name}: {clash}")
        if np.broadcast_shapes(value._array.shape, target._array.shape) != target._array.shape:
            raise RuntimeError(
                f"{name}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(value.shape)}"
            )
        value = value.expand(target._array.shape)
    if type(value._array) is not type(target._array):
        value = value.to(target.device)
    if value._array.dtype != target._array.dtype:
        if not convert and not dtypes.can_cast(value.dtype, target.dtype):
            raise RuntimeError(
                f"{name}: result type {value.dtype.legacy} can't be cast to the desired output type {target.dtype.legacy}"
            )
        value = value.to(target.dtype)
    return apply(STORE, (value,), {"called": name}, target)  # type: ignore[no-any-return]


STORE = primitive("store", "movement", lambda xp, x, *, called: x, grad={"x": lambda g: g})  # `called`: for errors


def exported(space: str) -> dict[str, Any]:
    """The public functions of a namespace, by name."""
    return {record.name: record.face for record in OPS.values() if space in record.namespaces}
