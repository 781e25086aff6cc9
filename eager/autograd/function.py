"""`autograd.Function`: an operation whose forward and backward the user writes.

`apply` runs the forward with the tape off and puts one node on it, whose gradients are what the user's `backward` says.
What is saved by `ctx.save_for_backward` is kept as any node keeps its values: without a reference cycle, checked for
in-place changes, freed after the backward pass and, under `create_graph`, with its history.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.cast import cast
from ..core.dispatch import apply
from ..core.op import Op
from ..core.tape.engine import graph_freed_error, sum_to
from ..core.tape.grad_mode import no_grad
from ..core.tape.inplace import take_history
from ..core.tape.node import FREED, Node, Pick, edge_of, local, restore, save, save_output
from ..core.tensor import Tensor, wrap
from ..ops.create import new_filled
from ..ops.shape.views import VIEW

FUNCTION = Op("function", "opaque")


class FunctionCtx:
    """The context that `forward` and `backward` of one call share. Any attribute may be set on it."""

    needs_input_grad: tuple[bool, ...] = ()
    _node: weakref.ref[FunctionNode] | None = None
    _materialize = True
    _to_save: tuple[Any, ...] = ()
    _dirty: tuple[Tensor, ...] = ()
    _non_differentiable: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs, outputs or other tensors for `backward`, which finds them in `ctx.saved_tensors`."""
        for i, t in enumerate(tensors):
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(f"save_for_backward can only save variables, but argument {i} is of type {type(t).__name__}")
        self._to_save = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        node = None if self._node is None else self._node()
        return self._to_save if node is None else node.kept()

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say that `forward` changed these inputs in place; it must return them too."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say that no gradient flows through these outputs."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, `backward` gets None instead of zeros for an output that was not used."""
        self._materialize = value


class FunctionNode(Node):
    """A call of a Function on the tape."""

    own_gradients = False  # the user may hold on to what backward returns, on ctx for one

    def __init__(self, function: type[Function], ctx: FunctionCtx, edges: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
        super().__init__(FUNCTION, edges, {})
        self.function, self.ctx = function, ctx
        self.inputs = [(x.tj_array.shape, x.dtype) if isinstance(x, Tensor) else None for x in inputs]
        self.results: list[Any] = []  # (shape, dtype, device) of each output; None for what is no tensor
        self.saved_outputs: list[int | None] = []  # for each saved tensor: which output it is, if it is one

    def name(self) -> str:
        return self.function.__name__ + "Backward"

    @property
    def keeps_tensors(self) -> bool:
        return bool(self.saved)

    def keep(self, tensors: Sequence[Any], outputs: tuple[Any, ...]) -> None:
        """Save what `forward` asked for. An output is saved without its history, which leads to this node."""
        if not tensors:
            return
        position = {id(t): i for i, t in enumerate(outputs) if isinstance(t, Tensor)}
        self.saved_outputs = [position.get(id(t)) for t in tensors]
        pairs = zip(tensors, self.saved_outputs, strict=True)
        self.saved = {"tensors": tuple(save(t) if i is None else save_output(t) for t, i in pairs)}

    def kept(self) -> tuple[Tensor | None, ...]:
        if self.saved is FREED:
            raise graph_freed_error(self)
        kept = self.saved.get("tensors", ())
        return tuple(restore(self, v, i) for v, i in zip(kept, self.saved_outputs, strict=True))

    def gradients(self, g: Any) -> list[Tensor | None]:
        gs = list(g) if self.outputs > 1 else [g]
        if self.ctx._materialize:
            gs = [self._zeros(i) if t is None else t for i, t in enumerate(gs)]
        found = self.function._backward()(self.ctx, *gs)
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        wanted = len(self.edges)
        if len(found) > wanted and all(t is None for t in found[wanted:]):
            del found[wanted:]
        if len(found) != wanted:
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {wanted}, got {len(found)}): "
                "backward must return one for each argument of forward, None for those that need none"
            )
        return [self._checked(t, i) for i, t in enumerate(found)]

    def _zeros(self, i: int) -> Tensor | None:
        if self.results[i] is None:
            return None
        shape, dtype, device = self.results[i]
        return new_filled(shape, 0, dtype, device, False)

    def _checked(self, g: Any, i: int) -> Tensor | None:
        """A gradient that the user's backward returned, in the shape and dtype of its input."""
        if g is None:
            return None
        if not isinstance(g, Tensor):
            raise RuntimeError(f"{self.name()}: expected Variable or None (got {type(g).__name__}) at position {i + 1}")
        given = self.inputs[i]
        if given is None:
            raise RuntimeError(
                f"function {self.name()} returned a gradient different than None at position {i + 1}, "
                "but the corresponding forward input was not a Variable"
            )
        if self.edges[i] is None:
            return None
        shape, dtype = given
        if g.tj_array.shape != shape:
            if not _stretches(shape, g.tj_array.shape):
                raise RuntimeError(
                    f"Function {self.name()} returned an invalid gradient at index {i} - got {list(g.shape)} "
                    f"but expected shape compatible with {list(shape)}"
                )
            g = sum_to(g, shape)
        return cast(g, dtype)

    def __getattr__(self, name: str) -> Any:
        """`grad_fn.attribute`: what `forward` put on ctx."""
        if name.startswith("__") or "ctx" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.ctx, name)


def _stretches(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, wide) == wide
    except ValueError:
        return False


class Function:
    """Subclass it with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`, and call it by `apply`.

    Or write `forward(*args)` without ctx, and `setup_context(ctx, inputs, output)` beside it.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    vjp = backward

    @classmethod
    def _backward(cls) -> Callable[..., Any]:
        return cls.vjp if cls.backward is Function.backward else cls.backward

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, with `backward` as its gradient."""
        if local.state.tracer is not None:
            return local.state.tracer.graph_break(cls._apply, f"{cls.__name__}.apply", *args, **kwargs)
        return cls._apply(*args, **kwargs)

    @classmethod
    def _apply(cls, *args: Any, **kwargs: Any) -> Any:
        separate = cls.setup_context is not Function.setup_context
        ctx = FunctionCtx()
        if kwargs or separate:
            bound = inspect.signature(cls.forward).bind(*(() if separate else (ctx,)), *args, **kwargs)
            bound.apply_defaults()
            args = bound.args if separate else bound.args[1:]
        ctx.needs_input_grad = tuple([isinstance(x, Tensor) and x.requires_grad for x in args])
        state = local.state
        node = None
        if state.grad and any(ctx.needs_input_grad):
            edges = tuple([edge_of(x) if isinstance(x, Tensor) else None for x in args])
            node = FunctionNode(cls, ctx, edges, args)
            if state.anomaly is not None:
                node.where = state.anomaly.here()
        with no_grad():
            if separate:
                found = cls.forward(*args)
                cls.setup_context(ctx, args, found)
            else:
                found = cls.forward(ctx, *args)
            returned = found if isinstance(found, tuple) else (found,)
            outputs = _own_outputs(ctx, args, returned)
        if node is not None:
            constant = {id(t) for t in ctx._non_differentiable}
            _connect(node, ctx, args, outputs, [id(t) in constant for t in returned])
        ctx._to_save = ctx._dirty = ctx._non_differentiable = ()  # from here on the node keeps them, without cycles
        return outputs if isinstance(found, tuple) else outputs[0]


def _own_outputs(ctx: FunctionCtx, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs as tensors that can get a history of their own.

    An input returned as it is becomes a view of it, as do repeated outputs; what was changed in place stays itself.
    """
    dirty = {id(t) for t in ctx._dirty}
    given = {id(x) for x in inputs if isinstance(x, Tensor)}
    returned = {id(t) for t in outputs}
    if not dirty <= returned:
        raise RuntimeError(
            "Some elements marked as dirty during the forward method were not returned as output. The inputs that are "
            "modified inplace must all be outputs of the Function."
        )
    if not dirty <= given:
        warnings.warn(
            "ctx.mark_dirty() received a tensor that was not an input. Only input Tensors that have been mutated should be "
            "passed to ctx.mark_dirty().",
            UserWarning,
            stacklevel=3,
        )
    own: list[Any] = []
    taken: set[int] = set()
    for t in outputs:
        if isinstance(t, Tensor) and ((id(t) in given and id(t) not in dirty) or id(t) in taken or _has_history(t, given)):
            t = apply(VIEW, (t,), {"shape": t.tj_array.shape})
        taken.add(id(t))
        own.append(t)
    return tuple(own)


def _has_history(t: Tensor, given: set[int]) -> bool:
    """True if an output came from neither the inputs nor this forward but, say, from a closure, with a history to keep."""
    return t.tj_requires_grad and id(t) not in given


def _connect(
    node: FunctionNode, ctx: FunctionCtx, inputs: tuple[Any, ...], outputs: tuple[Any, ...], constant: list[bool]
) -> None:
    """Give the outputs that are not constant their place on the tape."""
    ctx._node = weakref.ref(node)
    node.outputs = len(outputs)
    node.keep(ctx._to_save, outputs)
    given = {id(x) for x in inputs if isinstance(x, Tensor)}
    dirty = {id(t) for t in ctx._dirty} & given
    for i, t in enumerate(outputs):
        if not isinstance(t, Tensor):
            node.results.append(None)
            continue
        node.results.append((t.tj_array.shape, t.dtype, t.device))
        if constant[i] or not t.dtype.is_floating_point:
            continue
        place = node if node.outputs == 1 else Pick(node, i)
        if id(t) in dirty:
            _rewrite(t, place)
        else:
            t.tj_node, t.tj_requires_grad = place, True
            if t.tj_base is not None:
                _part_from_base(t, inputs, outputs)


def _rewrite(t: Tensor, place: Node) -> None:
    """An input that was changed in place takes the Function's history; through a view, its base does."""
    if t.tj_requires_grad and t.tj_node is None:
        raise RuntimeError("a leaf Variable that requires grad has been used in an in-place operation.")
    value = wrap(t.tj_array)
    value.tj_node, value.tj_requires_grad = place, True
    take_history(t, value)


def _part_from_base(t: Tensor, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    """A view of memory made inside `forward` is the only one to show it; one of an input's or another output's is not."""
    for x in (*inputs, *outputs):
        if isinstance(x, Tensor) and x is not t and x.tj_versions is t.tj_versions:
            t.tj_by_function = True
            return
    t.tj_base, t.tj_view_chain = None, ()


class _Refusal(Node):
    """Stands behind the gradients of a backward that cannot be differentiated again."""

    def name(self) -> str:
        return "Error"

    def gradients(self, g: Any) -> list[Tensor | None]:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For a `backward` not written in differentiable ops: differentiating it again is an error, not a wrong number."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            found = backward(ctx, *grads)
        edges = tuple([edge_of(g) for g in grads if isinstance(g, Tensor) and g.requires_grad])
        if not local.state.grad or not edges:
            return found
        refused = [_refused(t, edges) for t in (found if isinstance(found, tuple) else (found,))]
        return tuple(refused) if isinstance(found, tuple) else refused[0]

    return wrapped


def _refused(t: Any, edges: tuple[Any, ...]) -> Any:
    if not isinstance(t, Tensor) or not t.dtype.is_floating_point:
        return t
    found = wrap(t.tj_array)
    found.tj_node, found.tj_requires_grad = _Refusal(FUNCTION, edges, {}), True
    return found
