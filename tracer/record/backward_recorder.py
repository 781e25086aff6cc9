"""Record backward passes: the ops of one pass become one entry of the trace, with its effects on gradients.

A pass that runs user code, or reaches nodes that this call has not seen, does not become an entry: the engine runs it in each
call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...eager.autograd import _seeds as first_gradients
from ...eager.core.tape.engine import run_backward
from ...eager.core.tape.node import FREED, Node, Pick, edge_of
from ...eager.core.tensor import Tensor
from ..guards.code_guards import code_guard
from ..guards.code_observer import CodeObserver
from ..trace.call_frame import CallFrame, calls_library
from ..trace.tape_plan import TapePlan, TapePlanner
from ..trace.trace import WRITTEN, Backward, Break, Effect, user_line


class NotARegionError(Exception):
    """A backward pass must be run by the engine in each call."""


class BackwardRecorder(CallFrame):
    """Mixin of `Recorder` that records backward passes."""

    region: Backward | None = None  # the backward pass being recorded
    failed: str | None = None  # the reason why it cannot be recorded
    inner: int = 0  # index of the first value it produces
    handed_out: int = 0  # slots from before the last graph break: other code may hold their arrays
    tape_planner: TapePlanner
    code_observer: CodeObserver
    slot_of: dict[int, int]  # id of an array -> its slot
    unseen: dict[int, int]  # in a backward pass: id of an existing gradient -> its leaf

    if TYPE_CHECKING:  # defined in Recorder

        def see(self, t: Tensor) -> tuple[Any, int]: ...
        def graph_break(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any: ...
        def snapshot(self) -> TapePlan | None: ...
        def reveal(self) -> None: ...
        def hide(self, mutated: tuple[int, ...]) -> bool: ...
        def stop(self, reason: str, kind: type[Break] = Break) -> None: ...

    @calls_library
    def backward(
        self, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> list[Tensor | None]:
        given = (roots, seeds, retain_graph, create_graph, wanted, accumulate)
        try:
            if create_graph or (wanted is not None and accumulate):
                raise NotARegionError("create_graph" if create_graph else "inputs=")
            starts = tuple(self.known(r) for r in roots)
            targets = None if wanted is None else tuple(self.known(w) for w in wanted)
            leaves = self.leaves_below(roots)
        except NotARegionError as reason:
            return self.graph_break(backward_pass, f"backward: {reason}", *given)  # type: ignore[no-any-return]
        looked = [self.see(s) for s in seeds or ()]
        region = Backward(starts, tuple(want for want, _ in looked), retain_graph, targets, accumulate, user_line())
        region.given = tuple(n for _, n in looked)
        region.implicit = seeds is None
        region.flags = tuple((self.number[id(leaf)], leaf.tj_requires_grad) for leaf in leaves)
        before = {id(leaf): leaf.tj_grad for leaf in leaves}
        self.unseen = {id(g): self.number[i] for i, g in before.items() if g is not None and id(g) not in self.number}
        snapshot = self.snapshot()
        mark = len(self.trace.values), len(self.trace.roots)
        self.region, self.failed, self.inner = region, None, mark[0]
        state = self.state
        tracer, state.tracer = state.tracer, None
        try:
            with self.code_observer.observing(self.state) as ran:
                found = backward_pass(*given)
        finally:
            state.tracer, self.region = tracer, None
        region.ran, region.same_code = ran, code_guard([ran])
        if ran.foreign:
            self.failed = self.failed or "it runs user code"
        self.note_effects(region, leaves, before, found)
        if self.failed is not None:
            self.forget(mark)
            self.trace.entries.append(Break(f"backward: {self.failed}", region.line, snapshot))
            self.handed_out = mark[1]
            self.reveal()
            return found
        region.end = len(self.trace.values), len(self.trace.roots)
        region.freed = tuple(plan for node, plan in self.tape_planner.kept if node.saved is FREED)
        self.drop_inner_values(region, mark)
        self.trace.entries.append(region)
        if region.mutated and not self.hide(region.mutated):
            self.stop(WRITTEN)
        return found

    def known(self, t: Tensor) -> int:
        n = self.number.get(id(t))
        if n is None:
            raise NotARegionError("it begins at a tensor that no op has used")
        return n

    def leaves_below(self, roots: Any) -> list[Tensor]:
        """Return the leaves that a backward pass will reach. Raises if the pass runs user code or leaves this call."""
        leaves: dict[int, Tensor] = {}
        stack: list[Any] = [edge_of(r) for r in roots]
        seen = set()
        while stack:
            edge = stack.pop()
            if isinstance(edge, Tensor):
                if edge.tj_hooks or edge.tj_accumulate_hooks:
                    raise NotARegionError("a leaf has hooks")
                self.known(edge)
                if edge.tj_grad is not None and edge.tj_grad.tj_requires_grad:
                    raise NotARegionError("a gradient has a history")
                leaves[id(edge)] = edge
            elif edge is not None and id(edge) not in seen:
                seen.add(id(edge))
                if self.is_outer(edge):
                    raise NotARegionError("the history begins outside of the function")
                if type(edge) not in (Node, Pick) or "gradients" in edge.__dict__ or edge.hooks or edge.retained is not None:
                    raise NotARegionError(f"{edge.name()} runs user code")
                if edge.saved is FREED:
                    raise NotARegionError("a part of the graph was freed")
                if type(edge.saved) is not dict:
                    raise NotARegionError("it runs a checkpointed function again")
                stack.extend(edge.edges)
        return list(leaves.values())

    def note_effects(self, region: Backward, leaves: list[Tensor], before: dict[int, Any], found: list[Any]) -> None:
        try:
            for leaf in leaves if region.accumulate else ():
                after, was = leaf.tj_grad, before[id(leaf)]
                if after is None:
                    continue
                n = self.known(after)
                region.effects.append(Effect(self.number[id(leaf)], None if was is None else self.known(was), n))
            region.found = tuple(None if t is None else self.known(t) for t in found)
        except NotARegionError as reason:
            self.failed = self.failed or str(reason)
        region.mutated = tuple(sorted({n for c in region.calls for n in c.mutated}))

    def drop_inner_values(self, region: Backward, mark: tuple[int, int]) -> None:
        """Drop the values that a backward pass produced, except those that outlive it."""
        seen = (
            {e.after for e in region.effects} | {n for n in region.found if n is not None} | {v.index for _, v in region.firsts}
        )
        slots = {self.trace.values[n].slot for n in seen}
        for n in seen:
            view = self.trace.values[n].view
            if view is not None and view[0] >= mark[0] and view[0] not in seen:
                self.trace.values[n].view = None  # its base has no other reference
        for n in range(mark[0], region.end[0]):
            if n not in seen:
                self.number.pop(id(self.tensors[n]))
                self.tensors[n] = None
        for slot in range(mark[1], region.end[1]):
            if slot not in slots and self.arrays[slot] is not None:
                self.slot_of.pop(id(self.arrays[slot]))
                self.arrays[slot] = None

    def forget(self, mark: tuple[int, int]) -> None:
        """Remove the values and slots added after a mark."""
        values, slots = mark
        self.reveal()
        for t in self.tensors[values:]:
            self.number.pop(id(t), None)
        for a in self.arrays[slots:]:
            self.slot_of.pop(id(a), None)
        del self.trace.values[values:], self.tensors[values:], self.trace.roots[slots:], self.arrays[slots:]
        self.trace.outside = {s for s in self.trace.outside if s < slots}


@calls_library
def backward_pass(
    roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
) -> list[Tensor | None]:
    """Run the engine's backward walk; without seeds it starts from 1."""
    return run_backward(
        roots, first_gradients(roots, None) if seeds is None else seeds, retain_graph, create_graph, wanted, accumulate
    )
