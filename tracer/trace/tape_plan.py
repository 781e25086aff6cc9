"""Tape plans: the tape of a recorded function as data, from which its nodes can be rebuilt with other arrays.

A replayed function builds no tape. Where tensors with a history outlive the call or a graph break, their nodes are built from
the plan: real nodes with real edges, so all of autograd works on them as on eager ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from ...eager.core.tape.node import FREED, Node, Pick, _numbers
from ...eager.core.tensor import Tensor


class UnplannableError(Exception):
    """The tape contains something that cannot be rebuilt from a plan."""


class Leaf:
    """Edge to a value that is a leaf."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


class Outer:
    """Edge to the existing history of a value from outside."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


class SavedArray:
    """Tensor saved by a node: the slot of its array, and the version of its memory when it was saved."""

    __slots__ = ("origin", "slot", "version")

    def __init__(self, slot: int, version: int, origin: Any) -> None:
        self.slot = slot
        self.version = version
        self.origin = origin


class SavedNumber:
    """Runtime scalar saved by a node."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class SavedTuple:
    """Tuple of saved items."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts


class NodePlan:
    """Plan of one node. `edges` are plans, leaves, or None."""

    __slots__ = ("broadcast", "edges", "number", "op", "output_nr", "outputs", "pick", "picks", "saved")

    def __init__(self, node: Node, edges: tuple[Any, ...], saved: dict[str, Any]) -> None:
        self.op = node.op
        self.number = node.number  # gradients are summed in this order
        self.edges = edges
        self.saved = saved
        self.broadcast = node.broadcast
        self.outputs = node.outputs
        self.output_nr = node.output_nr
        self.picks = node.picks is not None
        self.pick = type(node) is Pick

    def arrays(self) -> Iterable[SavedArray]:
        for value in self.saved.values():
            for part in value.parts if isinstance(value, SavedTuple) else (value,):
                if isinstance(part, SavedArray):
                    yield part


class TapePlan:
    """Tape at one point of a trace: the plan of each value with a history, the nodes freed by then, and the versions of the
    memory that nodes save. Reading saved memory that was written since is an error."""

    def __init__(self, nodes: dict[int, NodePlan], freed: frozenset[NodePlan], versions: dict[int, int]) -> None:
        self.nodes = nodes
        self.freed = freed
        self.versions = versions

    def slots(self, tops: Iterable[NodePlan]) -> frozenset[int]:
        """Return the slots of the arrays saved by the history of some nodes."""
        return frozenset(a.slot for plan in plans_below(tops) if plan not in self.freed for a in plan.arrays())


def plans_below(tops: Iterable[NodePlan]) -> list[NodePlan]:
    """Return plans and all their ancestors, each after the plans its edges lead to."""
    order: list[NodePlan] = []
    seen: set[NodePlan] = set()
    stack: list[tuple[NodePlan, bool]] = [(p, False) for p in tops]
    while stack:
        plan, done = stack.pop()
        if done:
            order.append(plan)
        elif plan not in seen:
            seen.add(plan)
            stack.append((plan, True))
            stack.extend((e, False) for e in plan.edges if isinstance(e, NodePlan) and e not in seen)
    return order


class TapePlanner:
    """Builder of plans for the nodes of a recording. `frame` maps tensors to values and arrays to slots."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.plans: dict[int, NodePlan] = {id(node): plan for plan, node in frame.made.items()}
        self.kept: list[tuple[Node, NodePlan]] = [(node, plan) for plan, node in frame.made.items()]  # ids stay unique
        # for each saved slot: its version counter, and its offset to the plans of another recording
        self.counters: dict[int, tuple[list[int], int]] = {}
        for node, plan in self.kept:
            if node.saved is not FREED:
                self._follow(plan.saved, node.saved)

    def _follow(self, plans: dict[str, Any], saved: dict[str, Any]) -> None:
        for name, plan in plans.items():
            several = isinstance(plan, SavedTuple)
            for part, value in zip(plan.parts if several else (plan,), saved[name] if several else (saved[name],), strict=True):
                if isinstance(part, SavedArray):
                    self.counters[part.slot] = value[1], part.version - value[2]

    def plan(self, top: Node) -> NodePlan:
        """Return a node's plan, building it and the plans below it if necessary."""
        stack, order = [top], []
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) in self.plans or id(node) in seen:
                continue
            seen.add(id(node))
            order.append(node)
            stack.extend(e for e in node.edges if isinstance(e, Node) and self.frame.outer_node(e) is None)
        for node in sorted(order, key=lambda n: n.number):
            made = self._plan(node)
            self.plans[id(node)] = made
            self.kept.append((node, made))
        return self.plans[id(top)]

    def _plan(self, node: Node) -> NodePlan:
        if type(node) not in (Node, Pick) or node.hooks or node.retained is not None or "gradients" in node.__dict__:
            raise UnplannableError(f"{node.name()} runs user code")
        saved = {} if node.saved is FREED else {name: self._saved(v) for name, v in node.saved.items()}
        return NodePlan(node, tuple(self._edge(e) for e in node.edges), saved)

    def _edge(self, edge: Any) -> Any:
        if edge is None:
            return None
        if isinstance(edge, Tensor):
            found = self.frame.number.get(id(edge))
            if found is None:
                raise UnplannableError("a leaf that no op has seen")
            return Leaf(found)
        outer = self.frame.outer_node(edge)
        return Outer(outer) if outer is not None else self.plans[id(edge)]

    def _saved(self, value: Any) -> Any:
        if type(value) is tuple and len(value) == 4 and type(value[1]) is list:
            array, versions, version, origin = value
            slot = self.frame.slot_of.get(id(array))
            if slot is None:
                raise UnplannableError("a saved array that no op has returned")
            _, ahead = self.counters.setdefault(slot, (versions, 0))
            return SavedArray(slot, version + ahead, self._edge(origin))
        if type(value) is tuple and any(type(v) is tuple for v in value):
            return SavedTuple(tuple(self._saved(v) for v in value))
        if type(value) is float and id(value) in self.frame.number_ids:
            return SavedNumber(self.frame.number_ids[id(value)])
        return value

    def snapshot(self, values: Iterable[int]) -> TapePlan | None:
        """Return the tape of some values as it is now, or None if it cannot be planned."""
        nodes: dict[int, NodePlan] = {}
        try:
            for index in values:
                t = self.frame.tensors[index]
                if t is None or not t.tj_requires_grad:
                    continue
                if t.tj_base is not None and (t.tj_rebased or t.tj_base.tj_rebased):
                    return None  # views that were written through: only eager execution can track them
                if t.tj_node is not None and self.frame.outer_node(t.tj_node) is None:
                    nodes[index] = self.plan(t.tj_node)
        except UnplannableError:
            return None
        versions = {slot: box[0] + ahead for slot, (box, ahead) in self.counters.items()}
        return TapePlan(nodes, frozenset(plan for node, plan in self.kept if node.saved is FREED), versions)


# ---- building nodes


def topological_order(tops: Iterable[NodePlan]) -> list[NodePlan]:
    """Return plans and all below them, in the order in which nodes must be built."""
    return sorted(plans_below(tops), key=lambda p: p.number)


def build_nodes(plans: list[NodePlan], snapshot: TapePlan, frame: Any) -> None:
    """Build the nodes of ordered plans into `frame.made`."""
    made = frame.made
    for plan in plans:
        if plan not in made:
            made[plan] = _make(plan, snapshot, frame)


def _make(plan: NodePlan, snapshot: TapePlan, frame: Any) -> Node:
    edges = tuple(_edge_again(e, frame) for e in plan.edges)
    if plan.pick:
        pick = Pick(edges[0], plan.output_nr)
        if edges[0].picks is not None:
            edges[0].picks[plan.output_nr] = weakref.ref(pick)
        return pick
    saved = FREED if plan in snapshot.freed else {name: _saved_again(v, snapshot, frame) for name, v in plan.saved.items()}
    node = Node(plan.op, edges, saved)
    if plan.broadcast is not None:
        node.broadcast = plan.broadcast
    if plan.outputs != 1:
        node.outputs = plan.outputs
    if plan.picks:
        node.picks = {}
    return node


def _edge_again(edge: Any, frame: Any) -> Any:
    if edge is None:
        return None
    if isinstance(edge, NodePlan):
        return frame.made[edge]
    return frame.tensors[edge.value] if isinstance(edge, Leaf) else frame.outer_nodes[edge.value]


def _saved_again(value: Any, snapshot: TapePlan, frame: Any) -> Any:
    if isinstance(value, SavedArray):
        versions = frame.versions(value.slot)
        behind = snapshot.versions[value.slot] - value.version
        return (frame.arrays[value.slot], versions, versions[0] - behind, _edge_again(value.origin, frame))
    if isinstance(value, SavedNumber):
        return frame.scalars[value.place]
    if isinstance(value, SavedTuple):
        return tuple(_saved_again(v, snapshot, frame) for v in value.parts)
    return value


# ---- deferred nodes, built on first access


def can_defer(plans: list[NodePlan], snapshot: TapePlan) -> bool:
    """True if nodes need only the call's tensors: their saved values are freed, as those of a loss are after its backward
    pass."""
    kept = [v for p in plans if p not in snapshot.freed for v in p.saved.values()]
    return not any(isinstance(v, (SavedArray, SavedNumber, SavedTuple)) for v in kept)


def _none_of(tensors: Any) -> tuple[()]:
    return ()


class DeferredTape:
    """Part of the nodes of a tensor outliving a call that is the same in every call."""

    def __init__(self, plans: list[NodePlan], top: NodePlan, snapshot: TapePlan) -> None:
        self.plans = plans
        self.top = top
        self.snapshot = snapshot
        edges = [e for plan in plans for e in plan.edges]
        self.leaves = sorted({e.value for e in edges if isinstance(e, Leaf)})
        self.outer = sorted({e.value for e in edges if isinstance(e, Outer)})
        self.pick: Any = itemgetter(*self.leaves, *self.leaves[:1]) if self.leaves else _none_of  # a tuple also for one leaf


class DeferredNode(Node):
    """Deferred node of such a tensor: built, with all nodes below it, on first access to an attribute. Most are never
    accessed."""

    def __init__(self, later: DeferredTape, frame: Any) -> None:
        tensors = frame.tensors
        self.number = next(_numbers)
        if later.top.output_nr:
            self.output_nr = later.top.output_nr
        self._later = later, later.pick(tensors), [frame.outer_nodes[n] for n in later.outer] if later.outer else ()

    def __getattr__(self, name: str) -> Any:
        if name not in ("op", "edges", "saved") or "_later" not in self.__dict__:
            raise AttributeError(name)
        later, leaves, outer = self._later
        made = NodeBuilder(dict(zip(later.leaves, leaves, strict=False)), dict(zip(later.outer, outer, strict=True)))
        build_nodes(later.plans, later.snapshot, made)
        for i, plan in enumerate(later.plans, 1):  # its consumers have been numbered since
            made.made[plan].number = self.number - 1 + i / (len(later.plans) + 1)  # type: ignore[assignment]
        top = made.made[later.top]
        mine = {k: v for k, v in self.__dict__.items() if k != "_later"}
        self.__dict__.clear()
        self.__dict__.update({**top.__dict__, **mine})
        self.__class__ = type(top)  # type: ignore[assignment]
        if later.top.pick and self.edges[0].picks is not None:
            self.edges[0].picks[self.output_nr] = weakref.ref(self)
        return self.__dict__[name]

    def owner(self) -> Node:
        self.edges  # noqa: B018  # it is of another class then
        return self.owner()

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        self.edges  # noqa: B018
        return self.next_functions


class NodeBuilder:
    """Minimal frame for `build_nodes` when only the call's tensors are left."""

    def __init__(self, tensors: dict[int, Tensor], outer_nodes: dict[int, Node]) -> None:
        self.tensors = tensors
        self.outer_nodes = outer_nodes
        self.made: dict[NodePlan, Node] = {}
