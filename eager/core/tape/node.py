"""Nodes of the dynamic tape, the values they save, and the per-thread state that ops run under.

A node remembers the op, where its inputs came from (`edges`) and what its gradient rule asked for by name (`saved`).
It never refers to its own output, so a tape is freed by reference counting alone. Nodes are numbered as they are made, so
that `engine.py` can visit consumers before producers.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..tensor import Tensor, tensor_changed, wrap

if TYPE_CHECKING:
    from ..op import Op
    from ..tracer_protocol import Handler, Tracer


class State:
    """The modes that a thread's ops run under."""

    __slots__ = ("anomaly", "autocast", "grad", "handler", "inference", "tracer", "walk")

    def __init__(self) -> None:
        self.handler: Handler | None = None  # None: ops run eagerly
        self.grad = True
        self.inference = False
        self.anomaly: Any = None  # under detect_anomaly: notes the user's lines and checks gradients
        self.autocast: Any = None  # the setting of mixed precision; its handler is then `handler`, and the tracer is below it
        self.tracer: Tracer | None = None  # the recorder or replayer of a compiled function
        self.walk: list[Any] | None = None  # set while a backward pass collects its nodes; nodes made meanwhile are appended


class _Local(threading.local):
    def __init__(self) -> None:
        self.state = State()


local = _Local()
_numbers = itertools.count()

FREED: dict[str, Any] = {"freed": True}  # value of `saved` after a backward pass that freed it


class Node:
    """One op on the tape."""

    output_nr = 0
    outputs = 1
    own_gradients = True  # the rule's results are unshared; False for a user's backward
    broadcast: tuple[Any, ...] | None = None  # input shapes, when pointwise inputs were broadcast
    hooks: dict[int, Callable[[Tensor], Tensor | None]] | None = None
    retained: weakref.ref[Tensor] | None = None
    where: str | None = None  # the user's stack, under detect_anomaly
    picks: dict[int, weakref.ref[Pick]] | None = None  # nodes of the tensors of several outputs, where a rule saves outputs

    def __init__(self, op: Op, edges: tuple[Any, ...], saved: dict[str, Any]) -> None:
        self.op = op
        self.edges = edges  # for each input: the node that made it, the leaf itself, or None
        self.saved = saved
        self.number = next(_numbers)

    @property
    def keeps_tensors(self) -> bool:
        """True if a backward pass frees saved tensors here, so that there can be no second pass."""
        return self.op.rules.saves_tensors

    def name(self) -> str:
        return "".join(part.capitalize() for part in self.op.name.strip("_").split("_")) + "Backward0"

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        return tuple(
            (None, 0) if e is None else (AccumulateGrad(e), 0) if isinstance(e, Tensor) else (e.owner(), e.output_nr)
            for e in self.edges
        )

    def owner(self) -> Node:
        return self

    def expand_if_partial(self, useful: set[Any], targets: set[Any]) -> bool:
        """Expand a joint node of which only a part is wanted into its nodes; True if that was done. See `tracer/backward/`."""
        return False

    def pick(self, output_nr: int) -> Node:
        """Return the node of one of several outputs: that of the output's tensor, with its hooks, if it still exists."""
        ref = None if self.picks is None else self.picks.get(output_nr)
        return (None if ref is None else ref()) or Pick(self, output_nr)

    def gradients(self, g: Any) -> Sequence[Tensor | None]:
        """Return the gradient for each edge, given that of the output (a list for several outputs)."""
        return self.op.rules.gradients(self, g)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class Pick(Node):
    """One output of an op with several: passes its gradient on to the op's node, at its own index in a list."""

    def __init__(self, owner: Node, output_nr: int) -> None:
        super().__init__(owner.op, (owner,), {})
        self.of = owner
        self.output_nr = output_nr

    def owner(self) -> Node:
        return self.of

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        return self.owner().next_functions


class PlaceholderNode(Node):
    """Placeholder node on tensors of a replayed function, whose tape is made only when it is read."""

    def __init__(self) -> None:
        super().__init__(None, (), {})  # type: ignore[arg-type]

    def __setattr__(self, name: str, value: Any) -> None:
        if "number" in self.__dict__:
            raise RuntimeError(f"internal error: the deferred tape of a compiled function was written to ({name})")
        object.__setattr__(self, name, value)


PLACEHOLDER_NODE = PlaceholderNode()


def materialise_tape(t: Tensor) -> None:
    """Make the tape of a tensor with a deferred node, by running what led to it eagerly."""
    t.tj_array.frame.settle(t)


class AccumulateGrad:
    """The entry of a leaf in `next_functions`."""

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable
        self.next_functions = ()

    def name(self) -> str:
        return "AccumulateGrad"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccumulateGrad) and other.variable is self.variable

    def __hash__(self) -> int:
        return id(self.variable)

    def __repr__(self) -> str:
        return "<AccumulateGrad>"


class RemovableHandle:
    """The result of `register_hook`; `remove()` removes the hook."""

    _ids = itertools.count()

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks, self.id = hooks, key

    @classmethod
    def add(cls, hooks: dict[int, Any], hook: Any) -> RemovableHandle:
        key = next(cls._ids)
        hooks[key] = hook
        tensor_changed()
        return cls(hooks, key)

    def remove(self) -> None:
        self._hooks.pop(self.id, None)
        tensor_changed()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


# ---- saved values


# A saved tensor: (array, version counter, version when saved, edge of its gradient). Not the tensor itself: an in-place op may
# later give that a history that leads back to this node, which would be a reference cycle.
Saved = tuple[Any, list[int], int, Any]


def save(x: Any) -> Any:
    """Save an input for a node; a number or None as it is."""
    if not isinstance(x, Tensor):
        return x
    if x.tj_inference:
        raise saved_inference_error()
    versions = x.tj_versions
    if versions is None:
        versions = x.tj_versions = [0]
    if not x.tj_requires_grad:
        return (x.tj_array, versions, versions[0], None)
    return (x.tj_array, versions, versions[0], (x.tj_node or x) if x.tj_base is None else edge_of(x))


def save_output(x: Tensor) -> Saved:
    """Save a node's own output, without history: `restore` puts that back."""
    versions = x.tj_versions
    if versions is None:
        versions = x.tj_versions = [0]
    return (x.tj_array, versions, versions[0], None)


def restore(node: Node, value: Any, output_nr: int | None = None) -> Any:
    """Restore a saved value, checked to be unchanged since, with its history if gradients are being recorded.

    `output_nr` says which output of `node` it is, if it is one.
    """
    if type(value) is not tuple:
        return value
    array, versions, version, origin = value
    if versions[0] != version:
        raise modified_in_place_error(node, value)
    if not local.state.grad:
        return wrap(array)
    if isinstance(origin, Tensor):
        return origin
    tensor = wrap(array)
    differentiable = array.dtype.kind not in "biu"  # indices among the outputs, and statistics after the first, are not
    if differentiable and output_nr is not None and (output_nr == 0 or node.outputs > 1):
        origin = node if node.outputs == 1 else node.pick(output_nr)
    if origin is not None:
        tensor.tj_node, tensor.tj_requires_grad, tensor.tj_versions = origin, True, versions
    return tensor


def saved_inference_error() -> RuntimeError:
    return RuntimeError(
        "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in computation "
        "tracked by autograd. To work around this, you can make a clone to get a normal tensor and use it in autograd, or use "
        "`no_grad()` instead of `inference_mode()`."
    )


def modified_in_place_error(node: Node, value: Saved) -> RuntimeError:
    array, versions, version, _ = value
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{array.dtype}, shape {list(array.shape)}], saved by {node.name()}, is at version {versions[0]}; expected version "
        f"{version} instead. Hint: clone() the tensor before changing it, or use the out-of-place op; "
        "tapejit.autograd.set_detect_anomaly(True) shows the line that saved it." + (f"\n{node.where}" if node.where else "")
    )


def edge_of(t: Tensor) -> Any:
    """Return the edge that a tensor's gradient flows to: its node, itself if it is a leaf that requires one, or None."""
    if not t.tj_requires_grad:
        return None
    if t.tj_node is PLACEHOLDER_NODE:
        materialise_tape(t)
    if t.tj_base is not None:
        from .inplace import current_node

        return current_node(t) or t
    return t.tj_node or t
