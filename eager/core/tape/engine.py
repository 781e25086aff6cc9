"""The backward engine: walk the tape from its roots, sum gradients, and add them to the leaves' `.grad`.

Every consumer has a higher number than its producers, so walking the reachable nodes from the highest number down visits each
node after all gradients that flow into it are summed. No recursion, so the depth of a tape does not matter.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..tensor import Tensor, tensor_changed, wrap
from .inplace import check_target
from .node import FREED, Node, Pick, edge_of, local


def backward(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool,
    wanted: Sequence[Tensor] | None = None,
    accumulate: bool = True,
) -> list[Tensor | None]:
    """Run a backward pass from `roots`. Leaves get `.grad`; with `wanted`, only those, or their gradients are returned."""
    state = local.state
    if state.tracer is not None:
        return state.tracer.backward(tuple(roots), tuple(seeds), retain_graph, create_graph, wanted, accumulate)
    return run_backward(roots, seeds, retain_graph, create_graph, wanted, accumulate)


def run_backward(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool,
    wanted: Sequence[Tensor] | None,
    accumulate: bool,
) -> list[Tensor | None]:
    """Run a backward pass eagerly, whatever the tracer: see `backward`."""
    state = local.state
    targets = None if wanted is None else [edge_of(w) for w in wanted]
    leaves = Leaves(create_graph, accumulate and wanted is None, None if targets is None else set(targets))
    was_grad, autocast, handler = state.grad, state.autocast, state.handler
    walk: list[Any] = [True]  # emptied at the end; nodes that appear meanwhile are appended
    try:
        state.grad = create_graph
        if autocast is not None:  # gradients have the dtypes of the forward pass
            state.autocast, state.handler = None, autocast.below
        _walk_tape(roots, seeds, retain_graph, create_graph, leaves, walk)
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


def _reachable(edges: list[Any]) -> list[Node]:
    """Return the nodes reachable from `edges`, producers first."""
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


def _nodes_leading_to(order: list[Node], targets: set[Any]) -> set[Any]:
    """Return the nodes of `order` (producers first) that have a path to `targets`, and the targets."""
    useful = set(targets)
    for node in order:
        if any(e in useful for e in node.edges):
            useful.add(node)
    return useful


def _walk_tape(
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
        state.walk = walk  # joint nodes of compiled backward passes stay joint
    order = _reachable(starts)
    useful = None if targets is None else _nodes_leading_to(order, targets)
    state.walk = None
    if useful is not None and targets is not None and any(node.expand_if_partial(useful, targets) for node in order):
        order = _reachable(starts)
        useful = _nodes_leading_to(order, targets)
    arrived: dict[Node, Any] = {}  # summed gradients of nodes that were not visited yet
    own: set[Node] = set()  # of these, sums in buffers of our own, which can be added to in place

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
        if len(walk) > 1:  # a hook read the tape of a compiled backward pass, which was expanded
            order = sorted([*order, *walk[1:]], key=_number)
            useful = None if targets is None else _nodes_leading_to(order, targets)
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
                continue  # nodes below are not visited, and not freed
        if isinstance(node, Pick):
            slots, i = arrived.setdefault(node.of, [None] * node.of.outputs), node.output_nr
            slots[i] = g if slots[i] is None else slots[i] + g  # a saved output that was restored has a Pick of its own
            continue
        saved = node.saved
        if saved is FREED:
            raise graph_freed_error(node)
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
                fresh = edge.tj_grad is None and node.own_gradients and is_unshared(result)
                leaves.add(edge, result, fresh)
    leaves.finish()


def graph_freed_error(node: Node) -> RuntimeError:
    return RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        f"been freed), at {node.name()}. Saved intermediate values of the graph are freed when you call .backward() or "
        "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time."
    )


class Leaves:
    """The leaves of a walk: gradients are added to `.grad` as they arrive, or summed until the end for hooks or the caller."""

    def __init__(self, create_graph: bool, accumulate: bool, targets: set[Any] | None) -> None:
        self.create_graph = create_graph
        self.accumulate = accumulate
        self.targets = targets
        self.captured: dict[Any, Tensor] = {}
        self.waiting: dict[Tensor, Tensor] = {}
        self.begun: list[Tensor] = []  # leaves that had no gradient before this walk

    def add(self, leaf: Tensor, g: Tensor, fresh: bool) -> None:
        if not leaf.tj_requires_grad:
            return  # it was detached since
        if self.accumulate and not leaf.tj_hooks and not leaf.tj_accumulate_hooks:
            if leaf.tj_grad is None:
                self.begun.append(leaf)
            accumulate_into(leaf, g, self.create_graph, fresh)
        elif self.accumulate or (self.targets is not None and leaf in self.targets):
            before = self.waiting.get(leaf)
            self.waiting[leaf] = g if before is None else before + g

    def abandon(self) -> None:
        """Reset the gradients that this failed walk began, as they are incomplete."""
        for leaf in self.begun:
            leaf.tj_grad = None

    def finish(self) -> None:
        """Run hooks, which see each leaf's whole gradient once, and hand the gradients on."""
        for leaf, g in self.waiting.items():
            g = run_hooks(leaf.tj_hooks, g)
            if self.accumulate:
                accumulate_into(leaf, g, self.create_graph, fresh=False)
            else:
                self.captured[leaf] = g


def is_unshared(result: Tensor) -> bool:
    """True if nothing but the list of results refers to a rule's result and its memory: it is not `g`, not saved, not
    another result as well, and has no views. Such a gradient can become a leaf's `.grad` without a copy."""
    array = result.tj_array
    if (
        sys.getrefcount(result) > UNSHARED_REFCOUNTS[0]
        or sys.getrefcount(array) > UNSHARED_REFCOUNTS[1]
        or result.tj_node is not None
    ):
        return False
    if not array.flags.c_contiguous:
        return False
    if array.flags.owndata:
        return True
    if type(array) is not np.ndarray or type(array.base) is not np.ndarray:
        return False
    return array.base.nbytes == array.nbytes and array.base.flags.owndata and sys.getrefcount(array.base) == 2


def _refcounts(result: Tensor) -> tuple[int, int]:
    array = result.tj_array
    return sys.getrefcount(result), sys.getrefcount(array)


def _unshared_refcounts() -> tuple[int, int]:
    """Measure the reference counts that `is_unshared`, called as in `_walk_tape`, sees for a tensor that nothing else has."""
    results = [wrap(np.empty(1))]
    result = results[0]
    return _refcounts(result)


UNSHARED_REFCOUNTS = _unshared_refcounts()


def run_hooks(hooks: dict[int, Callable[[Tensor], Tensor | None]] | None, g: Tensor) -> Tensor:
    if hooks:
        for hook in tuple(hooks.values()):
            replaced = hook(g)
            if replaced is not None:
                check_replacement(hook, g, replaced)
                g = replaced
    return g


def check_replacement(hook: Any, g: Tensor, replaced: Any) -> None:
    """Refuse a hook's result unless it is a gradient of the same shape and dtype."""
    if not isinstance(replaced, Tensor):
        raise TypeError(f"expected a hook to return None or a Tensor, got {type(replaced).__name__}")
    name = getattr(hook, "__name__", type(hook).__name__)
    if replaced.tj_array.shape != g.tj_array.shape:
        raise RuntimeError(f"hook '{name}' has changed the size of value: from {list(g.shape)} to {list(replaced.shape)}")
    if replaced.tj_array.dtype != g.tj_array.dtype:
        raise RuntimeError(f"hook '{name}' has changed the type of value (was {g.dtype} got {replaced.dtype})")


def retain(node: Node, g: Tensor) -> None:
    """Store the gradient of a tensor that called `retain_grad()`."""
    tensor = None if node.retained is None else node.retained()
    if tensor is not None:
        tensor.tj_grad = g.clone() if tensor.tj_grad is None else tensor.tj_grad + g


_accumulating = threading.Lock()  # threads that share a leaf may reach it at the same time, and NumPy adds without the GIL


def accumulate_into(leaf: Tensor, g: Tensor, create_graph: bool, fresh: bool) -> None:
    """Add `g` to `leaf.grad`. The first one becomes the buffer (itself if `fresh`: nothing else refers to its memory),
    and later ones are added to it in place."""
    with _accumulating:
        before = leaf.tj_grad
        if before is not None and before.tj_array.shape != g.tj_array.shape:
            raise RuntimeError(f"a gradient of shape {list(g.shape)} cannot be added to a .grad of shape {list(before.shape)}")
        if before is not None and not create_graph:
            add_into(before, g)
        elif g.tj_array.shape != leaf.tj_array.shape or g.tj_array.dtype != leaf.tj_array.dtype:
            raise RuntimeError(
                f"the gradient of a leaf of shape {list(leaf.shape)} and {leaf.dtype} has shape {list(g.shape)} and {g.dtype}"
            )
        elif before is not None:
            leaf.tj_grad = before + g
        else:
            leaf.tj_grad = g.clone() if create_graph else g if fresh else g.detach().clone()
    if leaf.tj_accumulate_hooks:
        for hook in tuple(leaf.tj_accumulate_hooks.values()):
            hook(leaf)


def add_into(total: Tensor, g: Tensor) -> None:
    """Compute total += g, straight into its memory when there is no handler."""
    array = total.tj_array
    if local.state.handler is not None or type(array) is not np.ndarray or array.itemsize == 2:
        total.add_(g)
        return
    check_target(total, False, False, "add_")
    np.add(array, g.tj_array, out=array)
    if total.tj_versions is None:
        total.tj_versions = [1]
    else:
        total.tj_versions[0] += 1


def sum_to(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo broadcasting: sum `g` over the dims along which `shape` was expanded."""
    have = g.tj_array.shape
    if have == shape:
        return g
    extra = len(have) - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and have[i + extra] != 1]
    if stretched:
        g = g.sum(dim=stretched, keepdim=True)
    return g.sum(dim=list(range(extra))) if extra else g
