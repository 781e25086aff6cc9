"""The dynamic tape: nodes made by `apply`, and the engine that walks them backwards.

A node remembers the op, where its inputs came from (`edges`) and what its gradient rule asked for by name (`saved`).
It never refers to its own output, so a tape is freed by reference counting alone. Nodes are numbered as they are made;
every consumer has a higher number than its producers, so walking reachable nodes from the highest number down visits
each node after all gradients that flow into it are summed. No recursion, so depth does not matter.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensor import Tensor, tensor_changed, wrap

if TYPE_CHECKING:
    from ..op import Op


class State:
    """What a thread's ops are subject to."""

    __slots__ = ("anomaly", "autocast", "grad", "handler", "inference", "tracer", "walk")

    def __init__(self) -> None:
        self.handler: Callable[..., Any] | None = None  # None: eager. The tracer puts its recorder or replayer here.
        self.grad = True
        self.inference = False
        self.anomaly: Any = None  # under detect_anomaly: what notes the user's lines and checks gradients
        self.autocast: Any = None  # the setting of mixed precision, whose handler then stands above
        self.tracer: Any = None  # what records or replays a compiled function, and is asked about whole backward passes
        self.walk: list[Any] | None = None  # set while a backward pass looks for its nodes: nodes that come later go in here


class _Local(threading.local):
    def __init__(self) -> None:
        self.state = State()


local = _Local()
_numbers = itertools.count()

FREED: dict[str, Any] = {"freed": True}  # what `saved` becomes once a backward pass has used it up


class Node:
    """One op on the tape."""

    output_nr = 0
    outputs = 1
    own_gradients = True  # what the rule returns is held by nobody else; not so for a user's backward
    broadcast: tuple[Any, ...] | None = None  # input shapes, when pointwise inputs were broadcast
    hooks: dict[int, Callable[[Tensor], Tensor | None]] | None = None
    retained: weakref.ref[Tensor] | None = None
    where: str | None = None  # the user's stack, under detect_anomaly
    picks: dict[int, weakref.ref[Pick]] | None = None  # of several outputs that a rule saves: the nodes of their tensors

    def __init__(self, op: Op, edges: tuple[Any, ...], saved: dict[str, Any]) -> None:
        self.op = op
        self.edges = edges  # for each input: the node that made it, the leaf itself, or None
        self.saved = saved
        self.number = next(_numbers)

    @property
    def keeps_tensors(self) -> bool:
        """Whether a backward pass frees something here, after which there can be no second one."""
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

    def divided(self, useful: set[Any], targets: set[Any]) -> bool:
        """Whether it stands for several nodes, of which only some are wanted: then these have to be made."""
        return False

    def pick(self, output_nr: int) -> Node:
        """The node of one of several outputs: that of the tensor it was given to, as hooks are there, if that still exists."""
        ref = None if self.picks is None else self.picks.get(output_nr)
        return (None if ref is None else ref()) or Pick(self, output_nr)

    def gradients(self, g: Any) -> Sequence[Tensor | None]:
        """The gradient for each edge, given the gradient of the output (a list of them for several outputs)."""
        return self.op.rules.gradients(self, g)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class Pick(Node):
    """One output of an op with several: passes its gradient on to the op's node, at its own place in a list."""

    def __init__(self, owner: Node, output_nr: int) -> None:
        super().__init__(owner.op, (owner,), {})
        self.of = owner
        self.output_nr = output_nr

    def owner(self) -> Node:
        return self.of

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        return self.owner().next_functions


class PendingNode(Node):
    """Stands on tensors of a replayed function, whose tape is made only if somebody looks at it."""

    def __init__(self) -> None:
        super().__init__(None, (), {})  # type: ignore[arg-type]

    def __setattr__(self, name: str, value: Any) -> None:
        if "number" in self.__dict__:
            raise RuntimeError(f"the tape of a compiled function was written to before it was made ({name})")
        object.__setattr__(self, name, value)


PENDING = PendingNode()


def settle(t: Tensor) -> None:
    """Make the tape of a pending tensor, by running what led to it eagerly."""
    t._array.frame.settle(t)


class AccumulateGrad:
    """What `next_functions` shows for a leaf."""

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
    """Returned by `register_hook`; `remove()` takes the hook away again."""

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


# A tensor as a node keeps it: (array, version counter, version when saved, where its gradient goes). Not the tensor itself:
# an in-place op may later give that a history that leads back to this node, a cycle.
Saved = tuple[Any, list[int], int, Any]


def save(x: Any) -> Any:
    """What a node keeps of an input: a number or None as it is."""
    if not isinstance(x, Tensor):
        return x
    versions = x._versions
    if versions is None:
        versions = x._versions = [0]
    if not x._requires_grad:
        return (x._array, versions, versions[0], None)
    return (x._array, versions, versions[0], (x._node or x) if x._base is None else edge_of(x))


def save_output(x: Tensor) -> Saved:
    """What a node keeps of its own output: no history, that is put back when it is read."""
    versions = x._versions
    if versions is None:
        versions = x._versions = [0]
    return (x._array, versions, versions[0], None)


def restore(node: Node, value: Any, output_nr: int | None = None) -> Any:
    """A saved value again, checked to be unchanged since, with its history if gradients are being recorded.

    `output_nr` says which output of `node` it is, if it is one.
    """
    if type(value) is not tuple:
        return value
    array, versions, version, origin = value
    if versions[0] != version:
        raise overwritten(node, value)
    if not local.state.grad:
        return wrap(array)
    if isinstance(origin, Tensor):
        return origin
    tensor = wrap(array)
    differentiable = array.dtype.kind not in "biu"  # not so indices among the outputs, nor statistics after the only one
    if differentiable and output_nr is not None and (output_nr == 0 or node.outputs > 1):
        origin = node if node.outputs == 1 else node.pick(output_nr)
    if origin is not None:
        tensor._node, tensor._requires_grad, tensor._versions = origin, True, versions
    return tensor


def overwritten(node: Node, value: Saved) -> RuntimeError:
    array, versions, version, _ = value
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{array.dtype}, shape {list(array.shape)}], saved by {node.name()}, is at version {versions[0]}; expected version "
        f"{version} instead. Hint: clone() the tensor before changing it, or use the out-of-place op; "
        "tapejit.autograd.set_detect_anomaly(True) shows the line that saved it." + (f"\n{node.where}" if node.where else "")
    )


# ---- the engine


def backward(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool,
    wanted: Sequence[Tensor] | None = None,
    accumulate: bool = True,
) -> list[Tensor | None]:
    """Walk the tape from `roots` down. Leaves get `.grad`; with `wanted`, only those, or their gradients are returned."""
    state = local.state
    if state.tracer is not None:
        return state.tracer.backward(tuple(roots), tuple(seeds), retain_graph, create_graph, wanted, accumulate)  # type: ignore[no-any-return]
    return run_backward(roots, seeds, retain_graph, create_graph, wanted, accumulate)


def run_backward(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool,
    wanted: Sequence[Tensor] | None,
    accumulate: bool,
) -> list[Tensor | None]:
    """The walk itself."""
    state = local.state
    targets = None if wanted is None else [edge_of(w) for w in wanted]
    leaves = Leaves(create_graph, accumulate and wanted is None, None if targets is None else set(targets))
    was_grad, autocast, handler = state.grad, state.autocast, state.handler
    walk: list[Any] = [True]  # empty when it is over
    try:
        state.grad = create_graph
        if autocast is not None:  # gradients have the dtypes of the forward pass
            state.autocast, state.handler = None, autocast.below
        _walk(roots, seeds, retain_graph, create_graph, leaves, walk)
        found = [leaves.captured.get(t) for t in targets or ()]
        if not accumulate:
            return found
        for w, g in zip(wanted or (), found, strict=True):
            if g is not None:
                accumulate_into(w, g, create_graph, fresh=False)
        return []
    except BaseException:
        leaves.abandon()
        raise
    finally:
        walk.clear()
        state.grad, state.walk = was_grad, None
        if autocast is not None:
            state.autocast, state.handler = autocast, handler
        if accumulate:
            tensor_changed()


def edge_of(t: Tensor) -> Any:
    """Where a tensor's gradient goes: its node, itself if it is a leaf that wants one, or nowhere."""
    if not t._requires_grad:
        return None
    if t._node is PENDING:
        settle(t)
    if t._base is not None:
        from .inplace import current_node

        return current_node(t) or t
    return t._node or t


def _reachable(edges: list[Any]) -> list[Node]:
    """The nodes below `edges`, consumers before producers."""
    seen: set[Node] = set()
    stack = [e for e in edges if isinstance(e, Node)]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend([e for e in node.edges if isinstance(e, Node) and e not in seen])
    return sorted(seen, key=_number)


def _number(node: Node) -> int:
    return node.number


def _leading_to(order: list[Node], targets: set[Any]) -> set[Any]:
    """Of `order` (producers first), what has a path to `targets`."""
    useful = set(targets)
    for node in order:
        if any(e in useful for e in node.edges):
            useful.add(node)
    return useful


def _walk(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool,
    leaves: Leaves,
    walk: list[Any],
) -> None:
    state = local.state
    starts = [edge_of(r) for r in roots]
    targets = leaves.targets
    if not create_graph and state.anomaly is None and state.handler is None:
        state.walk = walk  # compiled backward passes are taken for what they are
    order = _reachable(starts)
    useful = None if targets is None else _leading_to(order, targets)
    state.walk = None
    if useful is not None and targets is not None and any(node.divided(useful, targets) for node in order):
        order = _reachable(starts)
        useful = _leading_to(order, targets)
    arrived: dict[Node, Any] = {}  # gradients on their way, summed
    own: set[Node] = set()  # of these, the sums that are buffers of our own, to be added to in place

    def deliver(node: Node, g: Tensor) -> None:
        before = arrived.get(node)
        if before is None:
            arrived[node] = g
        elif create_graph or node not in own:
            arrived[node] = before + g
            own.add(node)
        else:
            add_into(before, g)

    for edge, seed in zip(starts, seeds, strict=True):
        if isinstance(edge, Node):
            deliver(edge, seed)
        else:
            leaves.add(edge, seed, False)
    while order:
        if len(walk) > 1:  # a compiled backward pass was looked at from a hook, and is real nodes from then on
            order = sorted([*order, *walk[1:]], key=_number)
            useful = None if targets is None else _leading_to(order, targets)
            del walk[1:]
        node = order.pop()
        g = arrived.pop(node, None)
        if g is None or (useful is not None and node not in useful):
            continue
        if node.hooks is not None or node.retained is not None:
            g = run_hooks(node.hooks, g)
            retain(node, g)
        if useful is not None and targets is not None and node in targets:
            leaves.captured[node] = g
            if not any(e in useful for e in node.edges):
                continue  # what lies below stays unused, and is not freed
        if isinstance(node, Pick):
            slots, i = arrived.setdefault(node.of, [None] * node.of.outputs), node.output_nr
            slots[i] = g if slots[i] is None else slots[i] + g  # a saved output that was read again has a Pick of its own
            continue
        saved = node.saved
        if saved is FREED:
            raise used_up(node)
        results = node.gradients(g) if state.anomaly is None else state.anomaly.gradients(node, g)
        if saved and not retain_graph and node.keeps_tensors:
            node.saved = FREED
        broadcast = node.broadcast
        for i, edge in enumerate(node.edges):
            result = results[i] if edge is not None else None
            if result is None:
                continue
            if broadcast is not None:
                result = sum_to(result, broadcast[i])
            if isinstance(edge, Node):
                if edge in arrived:
                    deliver(edge, result)
                else:
                    arrived[edge] = result
            else:
                # A leaf may keep its first gradient as its buffer if nothing else refers to that memory.
                fresh = edge._grad is None and node.own_gradients and is_fresh(result)
                leaves.add(edge, result, fresh)
    leaves.finish()


def used_up(node: Node) -> RuntimeError:
    return RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        f"been freed), at {node.name()}. Saved intermediate values of the graph are freed when you call .backward() or "
        "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time."
    )


class Leaves:
    """Where gradients end: added to `.grad` as they come, or summed until the walk is over for hooks or the caller."""

    def __init__(self, create_graph: bool, accumulate: bool, targets: set[Any] | None) -> None:
        self.create_graph = create_graph
        self.accumulate = accumulate
        self.targets = targets
        self.captured: dict[Any, Tensor] = {}
        self.waiting: dict[Tensor, Tensor] = {}
        self.begun: list[Tensor] = []  # leaves that had no gradient before this walk

    def add(self, leaf: Tensor, g: Tensor, fresh: bool) -> None:
        if not leaf._requires_grad:
            return  # no longer: it was detached since
        if self.accumulate and leaf._hooks is None and leaf._after_accumulate is None:
            if leaf._grad is None:
                self.begun.append(leaf)
            accumulate_into(leaf, g, self.create_graph, fresh)
        elif self.accumulate or (self.targets is not None and leaf in self.targets):
            before = self.waiting.get(leaf)
            self.waiting[leaf] = g if before is None else before + g

    def abandon(self) -> None:
        """The walk failed: a part of a gradient is not left behind as if it were all of it."""
        for leaf in self.begun:
            leaf._grad = None

    def finish(self) -> None:
        """Hooks see the whole gradient once."""
        for leaf, g in self.waiting.items():
            g = run_hooks(leaf._hooks, g)
            if self.accumulate:
                accumulate_into(leaf, g, self.create_graph, fresh=False)
            else:
                self.captured[leaf] = g


def is_fresh(result: Tensor) -> bool:
    """Whether a rule's result is referred to by nothing but the list it came in, and so is its memory: it is not `g`, not
    saved, not another result as well, and there is no view of it."""
    array = result._array
    if sys.getrefcount(result) > ALONE[0] or sys.getrefcount(array) > ALONE[1] or result._node is not None:
        return False
    if not array.flags.c_contiguous:
        return False
    if array.flags.owndata:
        return True
    if type(array) is not np.ndarray or type(array.base) is not np.ndarray:
        return False
    return array.base.nbytes == array.nbytes and array.base.flags.owndata and sys.getrefcount(array.base) == 2


def _references(result: Tensor) -> tuple[int, int]:
    array = result._array
    return sys.getrefcount(result), sys.getrefcount(array)


def _when_alone() -> tuple[int, int]:
    """How often Python counts a tensor and its array in `is_fresh`, called as `_walk` does, if nothing else refers to them."""
    results = [wrap(np.empty(1))]
    result = results[0]
    return _references(result)


ALONE = _when_alone()


def run_hooks(hooks: dict[int, Callable[[Tensor], Tensor | None]] | None, g: Tensor) -> Tensor:
    if hooks:
        for hook in tuple(hooks.values()):
            replaced = hook(g)
            if replaced is not None:
                check_replacement(hook, g, replaced)
                g = replaced
    return g


def check_replacement(hook: Any, g: Tensor, replaced: Any) -> None:
    """A hook may return another gradient, of the same shape and type."""
    if not isinstance(replaced, Tensor):
        raise TypeError(f"expected a hook to return None or a Tensor, got {type(replaced).__name__}")
    name = getattr(hook, "__name__", type(hook).__name__)
    if replaced._array.shape != g._array.shape:
        raise RuntimeError(f"hook '{name}' has changed the size of value: from {list(g.shape)} to {list(replaced.shape)}")
    if replaced._array.dtype != g._array.dtype:
        raise RuntimeError(f"hook '{name}' has changed the type of value (was {g.dtype} got {replaced.dtype})")


def retain(node: Node, g: Tensor) -> None:
    """Give a tensor that asked by `retain_grad()` its gradient."""
    tensor = None if node.retained is None else node.retained()
    if tensor is not None:
        tensor._grad = g.clone() if tensor._grad is None else tensor._grad + g


_accumulating = threading.Lock()  # threads that share a leaf may reach it at the same time, and NumPy adds without the GIL


def accumulate_into(leaf: Tensor, g: Tensor, create_graph: bool, fresh: bool) -> None:
    """Add `g` to `leaf.grad`. The first one becomes the buffer (itself if `fresh`: nothing else refers to its memory),
    and later ones are added to it in place."""
    with _accumulating:
        before = leaf._grad
        if before is not None and before._array.shape != g._array.shape:
            raise RuntimeError(f"a gradient of shape {list(g.shape)} cannot be added to a .grad of shape {list(before.shape)}")
        if before is not None and not create_graph:
            add_into(before, g)
        elif g._array.shape != leaf._array.shape or g._array.dtype != leaf._array.dtype:
            raise RuntimeError(
                f"the gradient of a leaf of shape {list(leaf.shape)} and {leaf.dtype} has shape {list(g.shape)} and {g.dtype}"
            )
        elif before is not None:
            leaf._grad = before + g
        else:
            leaf._grad = g.clone() if create_graph else g if fresh else g.detach().clone()
    if leaf._after_accumulate:
        for hook in tuple(leaf._after_accumulate.values()):
            hook(leaf)


def add_into(total: Tensor, g: Tensor) -> None:
    """total += g, straight into its memory when no handler is watching."""
    array = total._array
    if local.state.handler is not None or type(array) is not np.ndarray or array.itemsize == 2:
        total.add_(g)
        return
    np.add(array, g._array, out=array)
    if total._versions is None:
        total._versions = [1]
    else:
        total._versions[0] += 1


def sum_to(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo broadcasting: the sum of `g` over the dimensions that `shape` was stretched along."""
    have = g._array.shape
    if have == shape:
        return g
    extra = len(have) - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and have[i + extra] != 1]
    if stretched:
        g = g.sum(dim=stretched, keepdim=True)
    return g.sum(dim=list(range(extra))) if extra else g
