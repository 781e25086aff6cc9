"""Compile the backward pass of a compiled forward pass.

The tensors that outlive a call share one node, in place of all the nodes that eager execution would have created. It holds the
saved values (see `min_cut.py`), and has an edge for each place where a gradient leaves the call: a leaf, or a node from before
the call. The first backward pass runs the gradient rules, records their ops and is compiled; later ones run that program. There
is one program for each set of outputs that receive gradients, and for each layout of these.

Reading the tape, registering a hook, or requesting a gradient of an inner value or a higher-order gradient requires the real
nodes: they are built from the tape plans, with unsaved values rematerialised, and replace the shared node for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.core.dispatch import apply
from ...eager.core.tape.engine import run_backward
from ...eager.core.tape.node import FREED, Node, State, local
from ...eager.core.tensor import Tensor, versions_of, wrap
from ..execute.reference_program import make_program
from ..execute.segment import TieredProgram
from ..execute.tiering import Tiering
from ..guards.code_guards import code_guard
from ..record.recorder import Recorder
from ..trace.call_frame import calls_library
from ..trace.queries import written_roots
from ..trace.tape_plan import Leaf, NodePlan, Outer, TapePlan, _make, topological_order
from ..trace.trace import Backward, End, Number, Trace, user_line
from .joint_node import JointNode, Kit
from .min_cut import MinCut

MIN_NODES = 3  # fewer nodes are not worth a program


class CompiledBackward:
    """Compiled backward pass of a segment: the part that the nodes of all calls share."""

    def __init__(
        self,
        function: Any,
        trace: Trace,
        cut: MinCut,
        nodes: list[int],
        alive: list[int],
        snapshot: TapePlan,
        order: list[NodePlan],
    ) -> None:
        self.function = function
        self.trace = trace
        self.again = cut.again
        self.values = nodes
        self.tops = [snapshot.nodes[n] for n in nodes]
        self.kept = snapshot.versions
        self.order = order
        self.held = [*sorted(cut.saved), *sorted(s for s in cut.wanted if not cut.inside(s))]  # slots that the node holds
        self.saved = frozenset(self.held)
        seen = sorted(s for s in cut.wanted if not cut.private(s))
        self.checked = {slot: i for i, slot in enumerate(seen)}  # memory that code other than the tape can write
        shown = {trace.roots[trace.values[n].slot]: n for n in reversed(alive)}
        # values that show it; None if only the tape refers to it
        self.shown = [trace.owners.get(trace.roots[s], shown.get(trace.roots[s])) for s in seen]
        self.forms = {v.slot: v.form for v in trace.values}
        self.bytes = cut.bytes_of(cut.saved), cut.bytes_of(cut.wanted)
        self.passes: dict[Any, BackwardProgram] = {}
        self.ends = [(p, i) for p in reversed(order) for i, e in enumerate(p.edges) if isinstance(e, (Leaf, Outer))]
        self.edges = [p.edges[i] for p, i in self.ends]
        self.keeping = frozenset(p for p in order if p.saved and p.op.rules.saves_tensors and not p.pick)
        place = {p: i for i, p in enumerate(order, 1)}
        self.later = [place[p] / (len(order) + 1) for p in self.tops]

    def place(self, frame: Any) -> None:
        """Attach the shared node to the tensors that outlive a call."""
        arrays, tensors, outer = frame.arrays, frame.tensors, frame.outer_nodes
        pairs = zip(self.checked, self.shown, strict=True)
        boxes = [frame.versions(s) if frame.moved or n is None else versions_of(tensors[n]) for s, n in pairs]
        edges = tuple([tensors[e.value] if type(e) is Leaf else outer[e.value] for e in self.edges])
        node = JointNode(self, [arrays[s] for s in self.held], frame.scalars, [(box, box[0]) for box in boxes], edges)
        for nr, n in enumerate(self.values):
            tensors[n].tj_node = node.output(nr, self.later[nr])

    def status(self) -> str:
        """Describe how backward passes run."""
        saved, eager = self.bytes
        words = f"saves {saved:,} bytes for the backward pass, and eager execution {eager:,}"
        found = [p.words() for p in self.passes.values()]
        return f"{words}; {'; '.join(found)}" if found else words

    # ---- inputs of the gradient rules

    def values_again(self, held: Sequence[Tensor], scalars: list[Any]) -> dict[int, Tensor]:
        """Return all values that the gradient rules read, by slot: saved ones, and the rest rematerialised."""
        found = dict(zip(self.held, held, strict=True))
        values = self.trace.values
        for call in self.again:
            inputs = tuple(
                found[values[x].slot] if isinstance(x, int) else scalars[x.place] if isinstance(x, Number) else x.value
                for x in call.inputs
            )
            made = apply(call.op, inputs, call.attrs)
            for value, t in zip(call.results, made if call.several else (made,), strict=True):
                found[value.slot] = t
        return found

    @calls_library
    def walk(self, held: Sequence[Tensor], gs: Sequence[Any], scalars: list[Any]) -> tuple[list[Any], Any]:
        """Run the backward pass by the gradient rules; return the gradient at each end, and the plans whose saved values it
        used."""
        known = self.values_again(held, scalars)
        kit = Kit({s: real(t) for s, t in known.items()}, scalars)
        tape = TapePlan({}, frozenset(), self.kept)
        ends = {key: Node(None, (), {}) for key in self.ends}  # type: ignore[arg-type]
        for plan in self.order:
            made = kit.made[plan] = _make(plan, tape, kit)
            made.edges = tuple(ends.get((plan, i), e) for i, e in enumerate(made.edges))
        roots, seeds = [], []
        for top, g in zip(self.tops, gs, strict=True):
            if g is not None:
                roots.append(with_node(kit.made[top]))
                seeds.append(g)
        found = run_backward(roots, seeds, False, False, [with_node(e) for e in ends.values()], False)
        return found, frozenset(p for p in self.order if kit.made[p].saved is FREED)

    def record(self, node: JointNode, gs: Sequence[Any], key: Any) -> list[Any]:
        """Record and compile the first backward pass of its kind."""
        scalars = [x * 1.0 if type(x) is float else x for x in node.scalars]  # distinct objects
        held, seeds = [wrap(a.view()) for a in node.arrays], [None if g is None else wrap(g.tj_array.view()) for g in gs]
        trace = Trace()
        with traced(trace, scalars) as recorder:
            for t in (*held, *seeds):
                if t is not None:
                    recorder.outside_value(t, t.tj_array)
            region = recorder.region = Backward((), (), False, None, False, user_line())
            try:
                with recorder.code_observer.observing(recorder.state) as ran:
                    found, visited = self.walk(held, seeds, scalars)
                slots = [None if t is None else slot_of(t, recorder) for t in found]
            finally:
                recorder.region = None
            reason = recorder.failed or ("it runs user code" if ran.foreign else obstacle(trace, region))
        region.end = len(trace.values), len(trace.roots)
        trace.entries = [region, End("the end", region.line, None)]
        self.passes[key] = BackwardProgram(
            self.function, trace if reason is None else None, slots, visited, reason, code_guard([ran])
        )
        return found


def real(t: Tensor) -> Any:
    return t.tj_array.real if isinstance(t.tj_array, DeferredArray) else t.tj_array


def with_node(node: Node) -> Tensor:
    t = wrap(np.empty(0))
    t.tj_requires_grad, t.tj_node = True, node
    return t


def slot_of(t: Tensor, recorder: Recorder) -> int:
    return t.tj_array.slot if isinstance(t.tj_array, DeferredArray) else recorder.slot_of[id(t.tj_array)]


@contextmanager
def traced(trace: Trace, scalars: list[Any]) -> Iterator[Recorder]:
    """Context manager whose ops are recorded, independently of the thread's current tracer."""
    state = State()
    state.grad = False
    recorder = Recorder(state, trace)
    recorder.scalars, trace.numbers = scalars, len(scalars)
    recorder.prepare()
    state.handler = recorder
    before, local.state = local.state, state
    try:
        yield recorder
    finally:
        local.state = before
        recorder.reveal()
        recorder.close()


def obstacle(trace: Trace, region: Backward) -> str | None:
    """Return why a recorded pass cannot be compiled."""
    if trace.entries:
        return "a gradient rule looks at a value"
    if any(call.mutated for call in region.calls):
        return "a gradient rule writes into what was saved"
    odd = next((call.op.name for call in region.calls if call.op.data_dependent or call.op.kind == "random"), None)
    return None if odd is None else f"{odd} in it cannot be repeated"


class BackwardProgram(TieredProgram):
    """Program of the backward pass for gradients of some outputs."""

    def __init__(
        self,
        function: Any,
        trace: Trace | None,
        slots: list[Any],
        visited: frozenset[NodePlan],
        reason: str | None,
        code_guard: Callable[[], bool],
    ) -> None:
        super().__init__(None)
        self.slots = slots  # slot of the gradient for each edge
        self.visited = visited  # plans whose saved values it uses
        self.reason = reason
        self.code_guard = code_guard  # checks that gradient rules would do the same
        self.ops = 0
        if trace is not None:
            trace.complete()
            keep = frozenset(s for s in slots if s is not None and s not in trace.outside)
            self.size = len(trace.roots)
            self.ops = len(trace.entries[0].calls)
            self.times = 0
            self.run = make_program(trace, 0, 1, keep)
            Tiering(self, function, trace, 0, 1, keep)

    def words(self) -> str:
        if self.reason is not None:
            return f"backward: not compiled, as {self.reason}"
        status = self.status or "not yet timed against the reference program"
        return f"backward: compiled, {self.ops} ops, run {self.times} times: {status}"


# ---- selecting segments


def compile_backward(
    function: Any, trace: Trace, start: int, stop: int, alive: list[int], nodes: list[int], snapshot: TapePlan
) -> CompiledBackward | None:
    """Create the compiled backward pass of a segment; None if it needs real nodes."""
    order = topological_order(snapshot.nodes[n] for n in nodes)
    arrays = [a for p in order for a in p.arrays()]
    if len(order) < MIN_NODES or type(trace.entries[stop]) is not End or not snapshot.freed.isdisjoint(order):
        return None
    if any(snapshot.versions[a.slot] != a.version for a in arrays) or len({snapshot.nodes[n] for n in nodes}) != len(nodes):
        return None
    written = set(written_roots(trace, start, stop))
    wanted = {a.slot for a in arrays}
    roots = {trace.roots[s] for s in wanted}
    if roots & (written | trace.shared) or len({v.form.where for v in trace.values}) > 1:
        return None
    cut = MinCut(trace, start, stop, wanted, written, {trace.roots[trace.values[n].slot] for n in alive})
    if any(s not in cut.made and s not in trace.outside for s in wanted):
        return None
    return CompiledBackward(function, trace, cut, nodes, alive, snapshot, order)
