"""Joint node: replaces all nodes of the outputs of a compiled function until they are accessed (see `compiled_backward.py`).

Each output has a `JointPick`, which passes its gradient to the `JointNode`; that runs the compiled backward pass. The engine
treats both as ordinary nodes. Any other access to a pick builds the real nodes, and the picks become these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...eager.core.tape.engine import graph_freed_error
from ...eager.core.tape.node import Node, Pick, State, _numbers, local, modified_in_place_error
from ...eager.core.tensor import Tensor, wrap
from ..trace.tape_plan import Leaf, NodePlan, Outer, SavedArray, SavedTuple, TapePlan, _make, plans_below

if TYPE_CHECKING:
    from .compiled_backward import CompiledBackward

MAX_PROGRAMS = 8  # per segment: gradients of further layouts are propagated node by node


class Kit:
    """Minimal frame for building nodes from plans."""

    def __init__(self, arrays: dict[int, Any], scalars: list[Any]) -> None:
        self.arrays = arrays
        self.scalars = scalars
        self.tensors: Any = NoArrays()
        self.outer_nodes: Any = NoArrays()
        self.made: dict[NodePlan, Node] = {}
        self.boxes: dict[int, list[int]] = {}

    def versions(self, slot: int) -> list[int]:
        return self.boxes.setdefault(slot, [0])


class NoArrays(dict[int, Any]):
    """Mapping without tensors: gradients end where they leave the call."""

    def __missing__(self, key: int) -> None:
        return None


class JointNode(Node):
    """Node of all outputs: see the module docstring."""

    def __init__(
        self,
        joint: CompiledBackward,
        arrays: list[Any],
        scalars: list[Any],
        versions: list[tuple[list[int], int]],
        edges: tuple[Any, ...],
    ) -> None:
        self.number = next(_numbers)
        self.joint = joint
        self.arrays = arrays
        self.scalars = scalars
        self.versions = versions
        self.edges = edges
        self.outputs = len(joint.tops)
        self.refs: list[Callable[[], JointPick | None]] = []
        self.freed: frozenset[NodePlan] = frozenset()
        self.last: frozenset[NodePlan] = frozenset()
        self.walks: list[list[Any]] = []  # backward passes that have reached it; empty ones are over

    def output(self, nr: int, later: float) -> JointPick:
        pick = JointPick(self, nr, self.number + later)
        self.refs.append(weakref.ref(pick))
        return pick

    def name(self) -> str:
        return "CompiledBackward0"

    @property
    def saved(self) -> dict[str, Any]:  # type: ignore[override]
        return HOLDS

    @saved.setter
    def saved(self, value: Any) -> None:
        """Free saved values: the engine assigns this after the last pass that uses them."""
        self.freed |= self.last
        if self.joint.keeping <= self.freed:
            self.arrays = [None] * len(self.arrays)

    @property
    def keeps_tensors(self) -> bool:
        return bool(self.last)

    def expand_if_partial(self, useful: set[Any], targets: set[Any]) -> bool:
        return not useful.issuperset(self.edges) or any(ref() in targets for ref in self.refs)

    def gradients(self, gs: Any) -> Sequence[Tensor | None]:
        joint = self.joint
        key = tuple([None if g is None else (g.tj_array.strides, g.tj_array.dtype) for g in gs])
        found = joint.passes.get(key)
        if found is None or found.run is None or not found.code_guard():
            self.check(self.reached(gs) if found is None else found.visited)
            if found is None and len(joint.passes) < MAX_PROGRAMS:
                results = joint.record(self, gs, key)
                self.last = joint.passes[key].visited
            else:
                results, self.last = joint.walk([wrap(a) for a in self.arrays], gs, self.scalars)
            return results
        self.check(found.visited)
        self.last = found.visited
        found.times += 1
        given = [g.tj_array for g in gs if g is not None]
        arrays = [*self.arrays, *given, *[None] * (found.size - len(self.arrays) - len(given))]
        program = found.ready()
        program(arrays, self.scalars)
        return [None if s is None else wrap(arrays[s]) for s in found.slots]

    def reached(self, gs: Sequence[Any]) -> frozenset[NodePlan]:
        """Return the plans below the outputs that received gradients, limited to those with saved values."""
        return frozenset(plans_below(t for t, g in zip(self.joint.tops, gs, strict=True) if g is not None)) & self.joint.keeping

    def whole(self) -> bool:
        """True if a pass can use the joint node: nothing was freed or written since. Otherwise the real nodes raise the
        error."""
        return not self.freed and all(box[0] == version for box, version in self.versions)

    def check(self, plans: frozenset[NodePlan]) -> None:
        """Raise the error of eager execution if saved values were freed, or written since."""
        changed = self.changed()
        if not changed and plans.isdisjoint(self.freed):
            return
        for plan in sorted(plans, key=lambda p: -p.number):
            if plan in self.freed:
                raise graph_freed_error(Node(plan.op, (), {}))
            for a in plan.arrays():
                if a.slot in changed:
                    box, version = self.versions[self.joint.checked[a.slot]]
                    raise modified_in_place_error(Node(plan.op, (), {}), (self.joint.forms[a.slot], box, version, None))

    def changed(self) -> set[int]:
        """Return the slots whose memory was written since."""
        if all(box[0] == version for box, version in self.versions):
            return set()
        return {slot for slot, i in self.joint.checked.items() if self.versions[i][0][0] != self.versions[i][1]}

    # ---- real nodes

    def settle(self) -> None:
        """Build the real nodes, which the outputs' picks become. Backward passes on their way here are given these nodes."""
        picks = {top: ref() for top, ref in zip(self.joint.tops, self.refs, strict=True)}
        made = self.build({plan: pick for plan, pick in picks.items() if pick is not None})
        walks = [walk for walk in self.walks if walk]
        for walk in walks:
            walk.extend(made.values())
        self.refs = [gone] * len(self.refs)
        if not walks:
            self.arrays = [None] * len(self.arrays)

    def build(self, become: dict[NodePlan, JointPick]) -> dict[NodePlan, Node]:
        joint = self.joint
        known: dict[int, Any] = {}
        if not joint.keeping <= self.freed:
            known = {s: t.tj_array for s, t in self.eagerly_again().items()}
        kit = Kit(known, self.scalars)
        kit.tensors = {e.value: t for e, t in zip(joint.edges, self.edges, strict=True) if isinstance(e, Leaf)}
        kit.outer_nodes = {e.value: t for e, t in zip(joint.edges, self.edges, strict=True) if isinstance(e, Outer)}
        changed = self.changed()
        tape = TapePlan({}, self.freed, joint.kept)
        for slot, i in joint.checked.items():
            kit.boxes[slot] = self.versions[i][0]
        for i, plan in enumerate(joint.order, 1):
            node = _make(plan, tape, kit)
            node.number = self.number + i / (len(joint.order) + 1)  # type: ignore[assignment]
            if plan not in self.freed and changed:
                node.saved = {k: self.aged(plan.saved[k], v) for k, v in node.saved.items()}
            kit.made[plan] = become[plan].take(node) if plan in become else node
        return kit.made

    def eagerly_again(self) -> dict[int, Tensor]:
        state = State()
        state.grad = False
        before, local.state = local.state, state
        try:
            return self.joint.values_again([wrap(a) for a in self.arrays], self.scalars)
        finally:
            local.state = before

    def aged(self, planned: Any, saved: Any) -> Any:
        """Return a saved value with the version at which it was saved."""
        if isinstance(planned, SavedTuple):
            return tuple(self.aged(p, v) for p, v in zip(planned.parts, saved, strict=True))
        if not isinstance(planned, SavedArray):
            return saved
        array, box, version, origin = saved
        if planned.slot in self.joint.checked:
            version = self.versions[self.joint.checked[planned.slot]][1]
        return array, box, version, origin


HOLDS = {"joint": True}


def gone() -> None:
    """Return None: replaces a weak reference to a pick that no longer exists."""


class JointPick(Pick):
    """Node of one output, until it is accessed."""

    of: JointNode  # type: ignore[assignment]

    def __init__(self, of: JointNode, nr: int, number: float) -> None:
        self.of = of
        self.output_nr = nr
        self.number = number  # type: ignore[assignment]

    @property
    def edges(self) -> tuple[Any, ...]:  # type: ignore[override]
        walk = local.state.walk
        if walk is not None and self.of.whole():
            self.of.walks = [*[w for w in self.of.walks if w and w is not walk], walk]
            return (self.of,)
        return self.settled().edges

    def take(self, node: Node) -> Node:
        """Become a real node."""
        self.__dict__.clear()
        self.__class__ = type(node)  # type: ignore[assignment]
        self.__dict__.update(node.__dict__)
        if isinstance(node, Pick) and node.of.picks is not None:
            node.of.picks[node.output_nr] = weakref.ref(self)
        return self

    def settled(self) -> Node:
        """Build the real nodes; return the one that this pick has become."""
        self.of.settle()
        return self

    def __getattr__(self, name: str) -> Any:
        if name not in ("op", "saved") or "of" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.settled(), name)

    def owner(self) -> Node:
        return self.settled().owner()

    def name(self) -> str:
        return self.settled().name()

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        return self.settled().next_functions

    @property
    def hooks(self) -> Any:  # type: ignore[override]
        return None

    @hooks.setter
    def hooks(self, value: Any) -> None:
        self.settled().hooks = value

    @property
    def retained(self) -> Any:  # type: ignore[override]
        return None

    @retained.setter
    def retained(self, value: Any) -> None:
        self.settled().retained = value
