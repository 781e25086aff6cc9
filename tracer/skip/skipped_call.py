"""Run a call without its Python: check the guards, run the program, defer the side effects.

Python is skipped where a proof (`tracer/purity`) or the user's promise (`compile(pure=True)`) says that it only touches
tensors. A call that was recorded or replayed is observed (`observe.py`) and turned into a plan (`call_plan.py`); a
`SkippedCall` repeats it. Guards are on the arguments (tensors by form, all else by equality), on the values of the function's
names, on modules, optimizers and captured tensors. These are not checked one by one at each call: whatever changes a tensor or
a module without an op moves a counter (`CHANGES`, `MUTATION_COUNT`), and all is compared again only when a counter has moved.

Nor are the side effects of a step applied at each call. The memory of parameters is written, but their version counters, their
gradients and the optimizers' step counts are deferred (`deferred_state.py`, `optimizer_state.py`) until somebody reads them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

from ...eager.arrays import devices, dtypes
from ...eager.arrays.devices import module_of
from ...eager.core.generator import UINT64_MODULUS, default_generator
from ...eager.core.structure.pytree import replace_leaves
from ...eager.core.tape.node import State, _numbers, edge_of
from ...eager.core.tensor import CHANGES, Tensor, versions_of, wrap
from ...eager.nn.mutation_counter import MUTATION_COUNT
from ...eager.ops.convert import detach
from ..execute.tiering import Tiering
from ..guards.memory_pattern import CapturedMemory
from ..guards.reachable_state import ModuleStates, NotPureError, UndecidedError
from ..replay.replayer import Replayer
from ..replay.run_segment import ran_to_end, run_uninterrupted
from ..trace.tape_plan import DeferredNode, build_nodes
from .call_plan import CallPlan
from .deferred_state import CapturedTensor, LeafGradient
from .fast_path import MISS, REENTERED, can_be_interrupted, compile_fast_path
from .observe import CallNotes, ObservedCall
from .state_sharing import Borrowing, SharedState, can_own_state

__all__ = [
    "GUARDS_FAIL",
    "MISS",
    "REENTERED",
    "CallNotes",
    "NotPureError",
    "ObservedCall",
    "SkippedCall",
    "UndecidedError",
    "bound_calls",
    "materialise_all",
]

BINDS_BEFORE_REVIEW = 8  # binds of captured tensors before skipping has to be faster than replaying
GUARDS_FAIL = "the guards fail in most calls"
bound_calls: weakref.WeakValueDictionary[int, SkippedCall] = weakref.WeakValueDictionary()  # those that hold arrays of others


calls_to_discard: list[SkippedCall] = []  # their argument objects are gone, but they were in use then


def discard(reference: weakref.ref[SkippedCall]) -> None:
    """Discard a skipped call, as an object that it was given is gone. Put off while it runs or another thread uses it."""
    skipped = reference()
    if skipped is None:
        return
    if skipped.lock._is_owned() or not skipped.lock.acquire(blocking=False):
        if skipped not in calls_to_discard:
            calls_to_discard.append(skipped)
        return
    try:
        skipped.materialise()
        skipped.empty()
        skipped.compiled.skipped_calls = [p for p in skipped.compiled.skipped_calls if p is not skipped]
        for other in skipped.compiled.skipped_calls:
            other.after = None if other.after is skipped else other.after
    finally:
        skipped.lock.release()


def discard_pending() -> None:
    for skipped in [calls_to_discard.pop() for _ in range(len(calls_to_discard))]:
        discard(weakref.ref(skipped))


def materialise_all() -> None:
    """Materialise all deferred state of this process."""
    for skipped in list(bound_calls.values()):
        skipped.materialise()


class SkippedCall(CallPlan):
    """A recording that runs without Python while its guards hold."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.after: SkippedCall | None = None  # the recording that ran after this one, the last time that another did
        self.binds = 0  # how often captured tensors were bound
        self.quickest = math.inf  # seconds of the fastest call
        self.lock = self.compiled.pure_lock
        self.ready: Any = None  # the program that ran last
        self.fast_path: Callable[..., Any] | None = None  # see fast_path.py
        # for other recordings of the function: what both capture
        self.shared: weakref.WeakKeyDictionary[SkippedCall, SharedState] = weakref.WeakKeyDictionary()
        self.is_bound = False  # captured tensors are bound: `arrays` holds their memory
        self.count = 0  # calls since they were bound
        self.turn = 0  # counts calls that begin: a signal handler may make one within another
        self.running = False  # while the program runs and its results are made
        self.stale = False  # if somebody else has bound the captured tensors meanwhile
        self.seen: list[CapturedTensor | LeafGradient] = []  # state that somebody has read: the next call defers it again
        self.arrays: list[Any] = [None] * len(self.trace.roots)
        self.memory = CapturedMemory()
        self.tensor_mark = self.module_mark = -1
        self.borrowing: Borrowing | None = None  # set while it runs on another recording's deferred state
        self.borrowers: list[SkippedCall] = []
        self.written: dict[int, int] | None = None  # if a borrower ran last: its writes to each leaf's gradient
        self.state_owners = self.own_state_owners()
        for optimizer in self.optimizers:
            optimizer.lock = self.lock
        me = weakref.ref(self)
        self.watched = [weakref.ref(x, lambda _: discard(me)) for x in self.given]
        del self.given
        tensors = [c.tensor for c in self.captured] + [k.leaf for k in self.leaf_gradients]
        self.touches = {id(x) for x in (*tensors, *[o.optimizer for o in self.optimizers])}

    # ---- a call

    def run(self, state: State, args: Any, kwargs: Any) -> Any:
        """Return the result, or `MISS` if a guard fails. Nothing has happened then."""
        if state.grad is not self.grad_mode or state.autocast is not None or dtypes._default is not self.dtype:
            return MISS
        if devices._default_device is not self.device:
            return MISS
        with self.lock:
            if self.running:
                return REENTERED
            tensors = self._match(args, kwargs)
            if tensors is not None and not self.names.holds():
                self._let_go()
                return MISS
            if tensors is not None and self._is_ready():
                return self._run(state, tensors)
            if tensors is not None and not self.is_bound and self._can_borrow():
                tensors = self._match(args, kwargs)
                if tensors is not None:
                    return self._run(state, tensors)
            self._let_go()
        if calls_to_discard:
            discard_pending()
        if (tensors is None and not self.arguments.there(args, kwargs)) or not self.settings.hold():
            return MISS
        if not self.names.holds():
            return MISS
        for other in list(bound_calls.values()):  # not while this one is locked: two threads could wait for each other
            if not self.touches.isdisjoint(other.touches):
                other.materialise()
        with self.lock:
            tensors = self._match(args, kwargs) if self.bind() else None
            return MISS if tensors is None else self._run(state, tensors)

    def _match(self, args: Any, kwargs: Any) -> tuple[Tensor, ...] | None:
        """Return the tensors among the arguments, if all guards on arguments hold."""
        return self.arguments.match(args, kwargs, self.arrays, self.memory)  # type: ignore[no-any-return]

    def _run(self, state: State, tensors: tuple[Tensor, ...]) -> Any:
        scalars, arrays, segment, borrowing = self.scalars, self.arrays, self.segment, self.borrowing
        owner = self if borrowing is None else borrowing.owner
        turn = self.turn = self.turn + 1
        given = [arrays[slot] for slot in self.arguments.slots]
        back = bool(owner.seen)  # something has to be deferred again
        for optimizer, state_owner, _ in self.state_owners:
            if not state_owner.is_deferred():
                back = True
                if not state_owner.bind():
                    return self._miss()
            if not optimizer.refresh(state, scalars, state_owner):
                return self._miss()
        if self.checks and not self._indices_are_valid():
            return self._miss()
        if self.draws:
            self._draw()
        for _, state_owner, places in self.state_owners:
            state_owner.advance(scalars, places)
        if borrowing is None:
            self.written = None
        else:
            borrowing.take_gradients()
        if not segment.compiled:
            segment.compile()
        run = segment.run
        if self.turn != turn or not owner.is_bound:  # a signal handler has called this function: begin again
            for _, state_owner, _ in self.state_owners:
                state_owner.undo_advance()
            return self._miss()
        for slot, array in zip(self.arguments.slots, given, strict=True):
            arrays[slot] = array
        owner.count += 1
        self.running = owner.running = True
        try:
            if can_be_interrupted(segment, run):
                run_uninterrupted(run, arrays, scalars)
            else:
                run(arrays, scalars)
        except BaseException as error:
            return self.stopped(error, state, tensors, back)
        if run is not self.ready and not isinstance(run, Tiering):
            self.ready, self.fast_path = run, compile_fast_path(self)
        return self._finish_call(state, tensors, back)

    def stopped(self, error: BaseException, state: State, tensors: tuple[Tensor, ...], back: bool) -> Any:
        """Handle an exception of the program. After a Ctrl-C that came when it was complete, results are handed out first."""
        self._failed(error)
        self._finish_call(state, tensors, back)
        raise error

    def _finish_call(self, state: State, tensors: tuple[Tensor, ...], back: bool) -> Any:
        """Count writes, make the results, and if `back`, defer again what was read."""
        borrowing = self.borrowing
        owner = self if borrowing is None else borrowing.owner
        if borrowing is not None:
            borrowing.give_gradients()
        if self.arguments.counts:
            for t, count in self.arguments.written(tensors):
                versions_of(t)[0] += count
        result = self._make_results(tensors) if self.simple else self._make_results_with_tape(state, tensors)
        for slot in self.handed:
            self.arrays[slot] = None
        if back:
            owner._defer()
        self.running = owner.running = False
        if self.once or owner.stale:
            (self if owner is self else owner).materialise()
        return result

    def _draw(self) -> None:
        """Draw seeds and call numbers for the random ops."""
        seed, first = default_generator.take_calls(len(self.draws))
        for i, (seeds, numbers) in enumerate(self.draws):
            self.scalars[seeds], self.scalars[numbers] = seed, (first + i) % UINT64_MODULUS

    def _failed(self, error: BaseException) -> None:
        """Undo and re-raise, unless the program was complete when Ctrl-C came."""
        if ran_to_end(error):
            return
        if isinstance(error, KeyboardInterrupt) and self.made and self.arrays[self.made[0][1]] is not None:
            return
        for _, state_owner, _ in self.state_owners:
            state_owner.undo_advance()
        owner = self if self.borrowing is None else self.borrowing.owner
        if self.borrowing is not None:
            self.borrowing.give_gradients()
        owner.count -= 1
        self.running = owner.running = False
        self._miss()
        raise error

    def _indices_are_valid(self) -> bool:
        for check, arrays, fresh, attrs in self.checks:
            for i, slot in fresh:
                arrays[i] = self.arrays[slot]
            try:
                check.look(module_of(arrays[check.first]), arrays, attrs)
            except IndexError:
                return False  # replaying with Python raises it at the user's line
            finally:
                for i, _ in fresh:
                    arrays[i] = None
        return True

    def _make_results(self, tensors: tuple[Tensor, ...]) -> Any:
        arrays = self.arrays
        made: dict[int, Tensor] = {}
        for n, slot, wants in self.made:
            t = made[n] = object.__new__(Tensor)
            t.tj_array = arrays[slot]
            if wants:
                t.tj_requires_grad = True
            if self.inside and self.trace.roots[slot] in self.inside:
                t.tj_versions = [self.inside[self.trace.roots[slot]]]
        for n, later in self.late or ():
            node = made[n].tj_node = object.__new__(DeferredNode)
            node.number = next(_numbers)
            node._later = later
        if self.result is None and made:
            return t
        return self._container(made, tensors)

    def _container(self, made: dict[int, Tensor], tensors: tuple[Tensor, ...], frame: Replayer | None = None) -> Any:
        """Build what the call returns. A frame knows the version counters of memory that nodes have saved."""
        shown = {slot: made[n] for n, slot, _ in self.made}
        parts: list[Any] = []
        for kind, what in self.returned:
            if kind == "value":
                parts.append(made[what])
            elif kind == "again":
                parts.append(parts[what])
            elif kind != "alias":
                parts.append(tensors[what] if kind == "argument" else what)
            elif what in shown:
                parts.append(detach(shown[what]))
            else:
                shown[what] = t = wrap(self.arrays[what])
                if frame is not None:
                    t.tj_versions = frame.versions(what)
                parts.append(t)
        return parts[0] if self.result is None else replace_leaves(self.result, iter(parts))

    def _make_results_with_tape(self, state: State, tensors: tuple[Tensor, ...]) -> Any:
        """Make results that have a history or are views, by way of a replayer."""
        frame = Replayer(state, self.trace, self.compiled)
        values, segment = self.trace.values, self.segment
        try:
            frame.arrays, frame.scalars = self.arrays, list(self.scalars)
            bound = [(c.value, c.tensor) for c in self.captured]
            bound += [(value, tensors[place]) for place, value in self.arguments.values]
            for value, t in bound:
                frame.tensors[value.index] = t
                if t.tj_node is not None:
                    frame.outer_nodes[value.index] = edge_of(t)
            for c in self.hidden:
                c.count(1)  # before nodes take note of versions
            for root, count in self.inside.items():
                frame.versions(root)[0] += count
            for n in segment.alive:
                t, slot = frame.promised(values[n]), values[n].slot
                t.tj_array.become(self.arrays[slot])
                t.tj_array, t.tj_node = self.arrays[slot], None
                if t.tj_versions is None and (segment.tops or self.trace.roots[slot] in frame.boxes):
                    t.tj_versions = frame.versions(slot)
            for n, _, wants in self.made:
                frame.tensors[n].tj_requires_grad = wants
            build_nodes(segment.order, self.snapshot, frame)
            for n in self.nodes:
                frame.tensors[n].tj_node = frame.made[self.snapshot.nodes[n]]
            for place, value in self.given_grads:
                tensors[place].tj_grad = frame.tensors[value.index]
            return self._container({n: frame.tensors[n] for n, _, _ in self.made}, tensors, frame)
        finally:
            frame.close()

    # ---- deferred state

    def _defer(self) -> None:
        """Defer the side effects of the call, or apply them at once where that is not possible."""
        self.seen = [x for x in self.seen if not (x.defer() or x.count(1))]
        for optimizer in self.optimizers:
            if optimizer.state is None:
                optimizer.defer()

    def own_state_owners(self) -> list[Any]:
        """Return for each optimizer the plan that owns its deferred state, and the places of step counts if not the owner's."""
        return [(o, o, None) for o in self.optimizers]

    def _is_ready(self) -> bool:
        """True if all captured tensors are bound and unchanged."""
        if self.borrowing is None:
            return self.is_bound and (self.counters_unmoved() or self.is_unchanged())
        owner = self.borrowing.owner
        if self.counters_unmoved() and owner.counters_unmoved():
            return True
        marks = CHANGES[0], MUTATION_COUNT[0]
        if (
            self.settings.hold()
            and can_own_state(owner, self.borrowing.shared)
            and (owner.counters_unmoved() or owner.is_unchanged())
        ):
            self.tensor_mark, self.module_mark = marks
            return self.borrowing is not None
        return False

    def _can_borrow(self) -> bool:
        """Borrow the deferred state of another recording of the function, if one fits and is unchanged."""
        if self.borrowing is not None:
            self.borrowing.end()
        for other in self.compiled.skipped_calls:
            if other.is_bound:
                shared = self.shared.get(other)
                if shared is None:
                    shared = self.shared[other] = SharedState(self, other)
                if can_own_state(other, shared) and self.settings.hold() and (other.counters_unmoved() or other.is_unchanged()):
                    self.tensor_mark, self.module_mark = other.tensor_mark, other.module_mark
                    self.borrowing = Borrowing(self, other, shared)
                    return True
        return False

    def bind(self) -> bool:
        """Bind captured tensors, if all are unchanged. Without the user's promise, skipping has to be faster than replaying."""
        self.materialise()
        self.binds += 1
        if self.proof is not None and self.binds > BINDS_BEFORE_REVIEW and self.quickest > self.trace.quickest:
            self.trace.impure, self.compiled.stable_path = GUARDS_FAIL, False
            return False
        self.tensor_mark, self.module_mark = CHANGES[0], MUTATION_COUNT[0]
        if not all(c.find() for c in self.captured) or not all(k.fits() for k in self.leaf_gradients):
            return False
        arrays = {c.value.slot: c.tensor.tj_array for c in self.captured}
        if not self._reads_the_same(arrays):
            return False
        written = [c.tensor.tj_array for c in self.hidden]
        if not self.memory.bind(list(arrays.values()), written):
            return False
        for slot, array in arrays.items():
            self.arrays[slot] = array
        self.seen = [*(self.hidden if self.simple else ()), *self.leaf_gradients]
        self.count = 0
        self.is_bound = True
        bound_calls[id(self)] = self
        return True

    def counters_unmoved(self) -> bool:
        """True if no tensor or module of the process was changed since the guards were checked."""
        return self.tensor_mark == CHANGES[0] and self.module_mark == MUTATION_COUNT[0]

    def is_unchanged(self) -> bool:
        """A counter has moved: compare what this call depends on."""
        marks = CHANGES[0], MUTATION_COUNT[0]
        if not self.settings.have_same_hooks() or (self.module_mark != marks[1] and not self.settings.hold()):
            return False
        if any(o.hooked() for o in self.optimizers):
            return False
        if not all(c.is_unchanged() for c in self.captured) or not all(k.is_unchanged() for k in self.leaf_gradients):
            return False
        if not self._reads_the_same(self.arrays):
            return False
        self.tensor_mark, self.module_mark = marks
        return True

    def _reads_the_same(self, arrays: Any) -> bool:
        """True if what Python may ask of tensors beside ops is unchanged: forms, gradients, and which share an array."""
        if not all(guard.holds() for guard in self.forms):
            return False
        if any((t.tj_grad is not None) is not had for t, had in self.had_gradients):
            return False
        return all(t.tj_array is arrays[slot] for t, slot in self.twins)

    def materialise(self) -> None:
        """Materialise all deferred state and drop the arrays, so that their owners can see that nobody else has them."""
        with self.lock:
            if self.borrowing is not None:
                self.borrowing.end()
            if not self.is_bound:
                return
            if self.running:  # in this thread: it needs its arrays to the end
                self.stale = True
                deferred: list[CapturedTensor | LeafGradient] = [*self.hidden, *self.leaf_gradients]
                for x in deferred:
                    x.read(None)
                for o in self.optimizers:
                    o.materialise()
                return
            self.is_bound = self.stale = False
            for c in self.hidden:
                c.materialise()
            for k in self.leaf_gradients:
                k.materialise()
            for o in self.optimizers:
                o.materialise()
            self.forget()

    def forget(self) -> None:
        """Drop the arrays: nothing is deferred any more."""
        self.is_bound = False
        self.turn += 1  # a call that has begun, and was interrupted, begins again
        bound_calls.pop(id(self), None)
        for borrower in list(self.borrowers):
            if borrower.borrowing is not None:
                borrower.borrowing.end()
        self.arrays[:] = [None] * len(self.arrays)
        self.seen = []
        self.memory.forget()

    def empty(self) -> None:
        """Drop everything, as it will never run again."""
        self.captured, self.leaf_gradients, self.hidden, self.optimizers, self.state_owners = [], [], [], [], []
        self.late, self.returned, self.checks, self.given_grads = None, [], [], []
        self.forms, self.had_gradients, self.twins = [], [], []
        self.proof, self.settings = None, ModuleStates(())
        self.names.forget()
        self.shared.clear()
        self.fast_path = None

    def _miss(self) -> Any:
        """A guard failed: materialise, so that Python finds everything in place."""
        (self if self.borrowing is None else self.borrowing.owner).materialise()
        self._let_go()
        return MISS

    def _let_go(self) -> None:
        """Drop the argument arrays of a call that does not run."""
        for slot in self.arguments.slots:
            self.arrays[slot] = None
