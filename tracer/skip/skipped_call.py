"""`compile(pure=True)`: the user promises that the Python inside only touches tensors. Then it is skipped, and only guards run.

A call that was recorded or replayed is watched (`pure_watch.py`) and made a recipe of (`pure_recipe.py`); a `Pure` repeats it.
Guards are on the arguments (tensors by form, all else by equality), on what the function's names stand for, on modules,
optimizers and captured tensors. These are not looked at one by one at each call: whatever changes a tensor or a module without
an op counts (`CHANGES`, `COUNT`), and all is looked at again only when a count has moved.

Nor is anything of what a step leaves behind done at each call. The memory of parameters is written, but their version counters,
their gradients and the optimizers' counts are lent (`pure_loans.py`, `pure_updates.py`) until somebody looks at them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

from ...eager.arrays import devices
from ...eager.arrays import dtypes
from ...eager.arrays.devices import module_of
from ...eager.nn.mutation_counter import COUNT
from ...eager.ops.convert import detach
from ...eager.random import LIMIT, default_generator
from ...eager.core.tape.node import State, _numbers, edge_of
from ...eager.core.tensor import CHANGES, Tensor, versions_of, wrap
from ..trace.tape_plan import LateNode, build
from ..replay.run_segment import is_done, undisturbed
from ..execute.backends import Warming
from .deferred_state import Captured, Kept
from ..guards.argument_guards import like
from ..guards.reachable_state import NotPureError, Settings, UndecidedError
from .call_plan import Recipe
from .state_sharing import Stay, Twins, can_be_host
from .fast_path import MISS, can_be_cut, usual
from .observe import Before, Notes
from ..replay.replayer import Replayer

__all__ = ["MISS", "UNSTEADY", "Before", "NotPureError", "Notes", "Pure", "UndecidedError", "armed", "settle_all"]

TRIED = 8  # times that captured tensors are bound before it is asked whether that was worth it
UNSTEADY = "its guards fail at most calls"
armed: weakref.WeakValueDictionary[int, Pure] = weakref.WeakValueDictionary()  # those that keep arrays


doomed: list[Pure] = []  # those that were given something which is gone, and that somebody was using then


def bury(reference: weakref.ref[Pure]) -> None:
    """An object that a recording was given is gone, and so is the recording: not while it runs, or another thread uses it."""
    pure = reference()
    if pure is None:
        return
    if pure.lock._is_owned() or not pure.lock.acquire(blocking=False):
        if pure not in doomed:
            doomed.append(pure)
        return
    try:
        pure.settle()
        pure.empty()
        pure.compiled.pures = [p for p in pure.compiled.pures if p is not pure]
        for other in pure.compiled.pures:
            other.after = None if other.after is pure else other.after
    finally:
        pure.lock.release()


def bury_doomed() -> None:
    for pure in [doomed.pop() for _ in range(len(doomed))]:
        bury(weakref.ref(pure))


def settle_all() -> None:
    """Everything that was lent is there again."""
    for pure in list(armed.values()):
        pure.settle()


class Pure(Recipe):
    """A recording that runs without Python."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.after: Pure | None = None  # the recording that ran after this one, when another did
        self.arms = 0  # how often captured tensors were bound
        self.quickest = math.inf  # seconds of a call
        self.lock = self.compiled.pure_lock
        self.ready: Any = None  # the program that ran last
        self.usual: Callable[..., Any] | None = None  # a call with it that has nothing unusual about it
        self.twins: weakref.WeakKeyDictionary[Pure, Twins] = (
            weakref.WeakKeyDictionary()
        )  # of other recordings of the function: what they have in common
        self.armed = False  # its arrays are those of the captured tensors
        self.count = 0  # calls since then
        self.seen: list[Captured | Kept] = []  # what is not lent at the moment
        self.arrays: list[Any] = [None] * len(self.trace.roots)
        self.ids: set[int] = set()  # of captured arrays
        self.tensor_mark = self.module_mark = -1
        self.stay: Stay | None = None  # while it runs as the guest of another recording
        self.guests: list[Pure] = []
        self.written: dict[int, int] | None = None  # how often the guest that ran last has written each leaf's gradient
        self.lenders = self.own_lenders()
        for optimizer in self.optimizers:
            optimizer.lock = self.lock
        me = weakref.ref(self)
        self.watched = [weakref.ref(x, lambda _: bury(me)) for x in self.given]
        del self.given
        tensors = [c.tensor for c in self.captured] + [k.leaf for k in self.kept]
        self.touches = {id(x) for x in (*tensors, *[o.optimizer for o in self.optimizers])}

    # ---- a call

    def run(self, state: State, args: Any, kwargs: Any) -> Any:
        """The result, or `MISS` if a guard does not hold."""
        if state.grad is not self.grad_mode or state.autocast is not None or dtypes._default is not self.dtype:
            return MISS
        if devices._default_device is not self.device:
            return MISS
        with self.lock:
            tensors = self.arguments.match(args, kwargs, self.arrays, self.ids)
            if tensors is not None and self.proof is not None and not self.proof.holds():
                self._let_go()
                return MISS
            if tensors is not None and self._is_ready():
                return self._run(state, tensors)
            if tensors is not None and not self.armed and self._is_guest():
                tensors = self.arguments.match(args, kwargs, self.arrays, self.ids)
                if tensors is not None:
                    return self._run(state, tensors)
            self._let_go()
        if doomed:
            bury_doomed()
        if (tensors is None and not self.arguments.there(args, kwargs)) or not self.settings.hold():
            return MISS
        if self.proof is not None and not self.proof.holds():
            return MISS
        for other in list(armed.values()):  # not while this one is locked: two threads could wait for each other
            if not self.touches.isdisjoint(other.touches):
                other.settle()
        with self.lock:
            tensors = self.arguments.match(args, kwargs, self.arrays, self.ids) if self.arm() else None
            return MISS if tensors is None else self._run(state, tensors)

    def _run(self, state: State, tensors: tuple[Tensor, ...]) -> Any:
        scalars, arrays, segment, stay = self.scalars, self.arrays, self.segment, self.stay
        owner = self if stay is None else stay.host
        back = bool(owner.seen)  # whether there is something to lend
        for optimizer, lender, _ in self.lenders:
            if not lender.is_away():
                back = True
                if not lender.arm():
                    return self._miss()
            if not optimizer.refresh(state, scalars, lender):
                return self._miss()
        if self.checks and not self._indices_are_good():
            return self._miss()
        if self.draws:
            self._draw()
        for _, lender, places in self.lenders:
            lender.advance(scalars, places)
        if stay is None:
            self.written = None
        else:
            stay.take_gradients()
        run = segment.run
        try:
            if can_be_cut(segment, run):
                undisturbed(run, arrays, scalars)
            else:
                run(arrays, scalars)
        except BaseException as error:
            return self.stopped(error, state, tensors, back)
        if run is not self.ready and not isinstance(run, Warming):
            self.ready, self.usual = run, usual(self)
        return self._hand_out(state, tensors, back)

    def stopped(self, error: BaseException, state: State, tensors: tuple[Tensor, ...], back: bool) -> Any:
        """The program was stopped. If only by Ctrl-C, and after it came to its end, all is handed out first."""
        self._failed(error)
        self._hand_out(state, tensors, back)
        raise error

    def _hand_out(self, state: State, tensors: tuple[Tensor, ...], back: bool) -> Any:
        """What the call has made; `back` if there is something to lend."""
        stay = self.stay
        owner = self if stay is None else stay.host
        if stay is not None:
            stay.give_gradients()
        if self.arguments.counts:
            for t, count in self.arguments.written(tensors):
                versions_of(t)[0] += count
        result = self._quickly(tensors) if self.simple else self._with_frame(state, tensors)
        for slot in self.handed:
            self.arrays[slot] = None
        if back:
            owner._lend()
        owner.count += 1
        if self.once:
            self.settle()
        return result

    def _draw(self) -> None:
        """Seeds and call numbers for random ops."""
        seed, first = default_generator.take_calls(len(self.draws))
        for i, (seeds, numbers) in enumerate(self.draws):
            self.scalars[seeds], self.scalars[numbers] = seed, (first + i) % LIMIT

    def _failed(self, error: BaseException) -> None:
        """The program has failed; unless it came to its end, and only then to Ctrl-C, which waits until all is handed out."""
        if is_done(error):
            return
        if isinstance(error, KeyboardInterrupt) and self.made and self.arrays[self.made[0][1]] is not None:
            return
        for _, lender, _ in self.lenders:
            lender.take_back()
        if self.stay is not None:
            self.stay.give_gradients()
        self._miss()
        raise error

    def _indices_are_good(self) -> bool:
        for check, arrays, fresh, attrs in self.checks:
            for i, slot in fresh:
                arrays[i] = self.arrays[slot]
            try:
                check.look(module_of(arrays[check.first]), arrays, attrs)
            except IndexError:
                return False  # Python raises it at its line
            finally:
                for i, _ in fresh:
                    arrays[i] = None
        return True

    def _quickly(self, tensors: tuple[Tensor, ...]) -> Any:
        arrays = self.arrays
        made: dict[int, Tensor] = {}
        for n, slot, wants in self.made:
            t = made[n] = object.__new__(Tensor)
            t._array = arrays[slot]
            if wants:
                t._requires_grad = True
            if self.inside and self.trace.roots[slot] in self.inside:
                t._versions = [self.inside[self.trace.roots[slot]]]
        for n, later in self.late or ():
            node = made[n]._node = object.__new__(LateNode)
            node.number = next(_numbers)
            node._later = later
        if self.result is None and made:
            return t
        return self._container(made, tensors)

    def _container(self, made: dict[int, Tensor], tensors: tuple[Tensor, ...]) -> Any:
        parts = [self._part(kind, what, made, tensors) for kind, what in self.returned]
        return parts[0] if self.result is None else like(self.result, iter(parts))

    def _part(self, kind: str, what: Any, made: dict[int, Tensor], tensors: tuple[Tensor, ...]) -> Any:
        if kind == "value":
            return made[what]
        if kind == "alias":
            twin = next((made[n] for n, slot, _ in self.made if slot == what), None)
            return wrap(self.arrays[what]) if twin is None else detach(twin)
        return tensors[what] if kind == "argument" else what

    def _with_frame(self, state: State, tensors: tuple[Tensor, ...]) -> Any:
        """Results that have a history, or are views: a replayer knows how to make them."""
        frame = Replayer(state, self.trace, self.compiled)
        values, segment = self.trace.values, self.segment
        try:
            frame.arrays, frame.scalars = self.arrays, list(self.scalars)
            bound = [(c.value, c.tensor) for c in self.captured]
            bound += [(value, tensors[place]) for place, value in self.arguments.values]
            for value, t in bound:
                frame.tensors[value.index] = t
                if t._node is not None:
                    frame.outer_nodes[value.index] = edge_of(t)
            for c in self.hidden:
                c.count(1)  # before nodes take note of versions
            for root, count in self.inside.items():
                frame.versions(root)[0] += count
            for n in segment.alive:
                t, slot = frame.promised(values[n]), values[n].slot
                t._array.become(self.arrays[slot])
                t._array, t._node = self.arrays[slot], None
                if t._versions is None and (segment.tops or self.trace.roots[slot] in frame.boxes):
                    t._versions = frame.versions(slot)
            for n, _, wants in self.made:
                frame.tensors[n]._requires_grad = wants
            build(segment.order, self.snapshot, frame)
            for n in self.nodes:
                frame.tensors[n]._node = frame.made[self.snapshot.nodes[n]]
            for place, value in self.given_grads:
                tensors[place]._grad = frame.tensors[value.index]
            return self._container({n: frame.tensors[n] for n, _, _ in self.made}, tensors)
        finally:
            frame.close()

    # ---- lending

    def _lend(self) -> None:
        """What the call has left behind is lent, or told at once where that cannot be."""
        self.seen = [x for x in self.seen if not (x.lend() or x.count(1))]
        for optimizer in self.optimizers:
            if optimizer.state is None:
                optimizer.lend()

    def own_lenders(self) -> list[Any]:
        """Of each optimizer: who has its state, and which numbers of the program are its count, if not those that that one
        knows."""
        return [(o, o, None) for o in self.optimizers]

    def _is_ready(self) -> bool:
        """Whether all that it captures is bound, and as it was."""
        if self.stay is None:
            return self.armed and (self.unmoved() or self.still())
        host = self.stay.host
        if self.unmoved() and host.unmoved():
            return True
        marks = CHANGES[0], COUNT[0]
        if self.settings.hold() and can_be_host(host, self.stay.twins) and (host.unmoved() or host.still()):
            self.tensor_mark, self.module_mark = marks
            return self.stay is not None
        return False

    def _is_guest(self) -> bool:
        """Become the guest of another recording of the function, if one has lent the same things, and all is as it was."""
        if self.stay is not None:
            self.stay.end()
        for other in self.compiled.pures:
            if other.armed:
                twins = self.twins.get(other)
                if twins is None:
                    twins = self.twins[other] = Twins(self, other)
                if can_be_host(other, twins) and self.settings.hold() and (other.unmoved() or other.still()):
                    self.tensor_mark, self.module_mark = other.tensor_mark, other.module_mark
                    self.stay = Stay(self, other, twins)
                    return True
        return False

    def arm(self) -> bool:
        """Bind captured tensors, if all is as it was. What nobody has promised has to be worth it."""
        self.settle()
        self.arms += 1
        if self.proof is not None and self.arms > TRIED and self.quickest > self.trace.quickest:
            self.trace.impure, self.compiled.steady = UNSTEADY, False
            return False
        self.tensor_mark, self.module_mark = CHANGES[0], COUNT[0]
        if not all(c.find() for c in self.captured) or not all(k.fits() for k in self.kept):
            return False
        found = {id(c.tensor._array) for c in self.captured}
        if len(found) != len(self.captured):
            return False
        self.ids |= found
        for c in self.captured:
            self.arrays[c.value.slot] = c.tensor._array
        self.seen = [*(self.hidden if self.simple else ()), *self.kept]
        self.count = 0
        self.armed = True
        armed[id(self)] = self
        return True

    def unmoved(self) -> bool:
        """Whether nothing has changed anywhere since all was looked at."""
        return self.tensor_mark == CHANGES[0] and self.module_mark == COUNT[0]

    def still(self) -> bool:
        """Something has changed somewhere: whether all is as it was here."""
        marks = CHANGES[0], COUNT[0]
        if not self.settings.hold() or any(o.hooked() for o in self.optimizers):
            return False
        if not all(c.still() for c in self.captured) or not all(k.still() for k in self.kept):
            return False
        self.tensor_mark, self.module_mark = marks
        return True

    def settle(self) -> None:
        """All that was lent is there for everybody, and arrays are let go of: others may want to know them to be theirs."""
        with self.lock:
            if self.stay is not None:
                self.stay.end()
            if not self.armed:
                return
            self.armed = False
            for c in self.hidden:
                c.settle()
            for k in self.kept:
                k.settle()
            for o in self.optimizers:
                o.settle()
            self.forget()

    def forget(self) -> None:
        """Nothing is lent any more."""
        self.armed = False
        armed.pop(id(self), None)
        for guest in list(self.guests):
            if guest.stay is not None:
                guest.stay.end()
        self.arrays[:] = [None] * len(self.arrays)
        self.seen = []
        self.ids.clear()

    def empty(self) -> None:
        """It will never run again: let go of all that it has, at once."""
        self.captured, self.kept, self.hidden, self.optimizers, self.lenders = [], [], [], [], []
        self.late, self.returned, self.checks, self.given_grads = None, [], [], []
        self.proof, self.settings = None, Settings(())
        self.twins.clear()
        self.usual = None

    def _miss(self) -> Any:
        """A guard does not hold: Python finds all as it should be."""
        (self if self.stay is None else self.stay.host).settle()
        self._let_go()
        return MISS

    def _let_go(self) -> None:
        """Of the arrays of a call that does not run."""
        for slot in self.arguments.slots:
            self.arrays[slot] = None
