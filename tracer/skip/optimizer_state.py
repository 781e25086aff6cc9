"""Optimizers in a step that skips Python: their settings become numbers of the program, and their counters go on.

An update op gets its numbers from the parameter's group, in the order of `Optimizer.hyper`, and perhaps a count of steps from
the state; that is checked against a call that was watched. While the step runs without Python, `state` is away from the
optimizer, so that whoever wants to see it asks for it, and finds the counts as they should be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any
from weakref import ref

from ...eager.optim.computed_hyperparameters import Foretold
from ...eager.optim.optimizer import POST_HOOKS, PRE_HOOKS, Optimizer
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ..guards.reachable_state import NotPureError, frozen, unchanged
from ..trace.trace import Call, Number, alike
from ..regions.optimizer_region import STEP, hyperparameters

COUNT = "step"
LIBRARY = STEP.__module__.rpartition(".")[0]


def is_librarys(optimizer: Optimizer) -> bool:
    """Whether an optimizer's updates are known to follow from its declarations."""
    cls = type(optimizer)
    methods = ("update", "settings", "foretell", "foretold") if isinstance(optimizer, Foretold) else ("update",)
    ours = all(getattr(cls, name).__module__.rpartition(".")[0] == LIBRARY for name in methods)
    return cls.step is STEP and ours and optimizer.__dict__.keys().isdisjoint(methods)


def snapshot(group: dict[str, Any]) -> dict[str, Any]:
    return {**group, "params": list(group["params"])}


def refuse(*_: Any) -> Any:
    raise NotPureError("tensors are compared")


def same(state: State, groups: Any, known: Any) -> bool:
    """Whether settings are equal, and their parameters the same tensors: to compare those by value is refused."""
    before, state.handler = state.handler, refuse
    try:
        return bool(groups == known)
    except Exception:  # a tensor, or something else that cannot be compared
        return False
    finally:
        state.handler = before


def count_of(holder: dict[Any, Any], key: Any) -> int:
    """How often what stands in a dict is referred to."""
    return sys.getrefcount(holder[key])


LONE = count_of({"state": {}}, "state")


class Remembered:
    """An optimizer's settings and state before a call that is watched."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.groups = [frozen(g) for g in optimizer.param_groups]
        self.state = {id(p): dict(values) for p, values in optimizer.state.items() if isinstance(values, dict)}

    def advanced(self) -> list[Any]:
        """The parameters whose count of steps went on by one, or of which other numbers are remembered that steps change. All
        else must be what it was."""
        kind = type(self.optimizer).__name__
        if len(self.groups) != len(self.optimizer.param_groups):
            raise NotPureError(f"it adds parameters to {kind}")
        if not all(unchanged(g, was) for g, was in zip(self.optimizer.param_groups, self.groups, strict=True)):
            raise NotPureError(f"it changes settings of {kind}")
        found = []
        changing = self.optimizer.remembers if isinstance(self.optimizer, Foretold) else ()
        for p, values in self.optimizer.state.items():
            was = self.state.get(id(p))
            if was is None or list(was) != list(values):
                raise NotPureError(f"{kind} begins to remember something")
            for key, value in values.items():
                if value is was[key] or (not isinstance(value, Tensor) and alike(value, was[key])):
                    continue
                if key not in changing and (key != COUNT or type(value) is not int or value != was[key] + 1):
                    raise NotPureError(f"{kind} remembers {key}, which it computes at each step")
                if not found or found[-1] is not p:
                    found.append(p)
        return found


class Stepped:
    """An optimizer that a pure function steps."""

    def __init__(self, optimizer: Optimizer, advanced: Iterable[Any]) -> None:
        self.reference = ref(optimizer)
        self.owned: Optimizer | None = optimizer
        self.lock: Any = None  # of the function that steps it
        if self.hooked():
            raise NotPureError(f"{type(optimizer).__name__} has hooks")
        self.known = bool(optimizer.hyper) and is_librarys(optimizer)
        self.groups = [snapshot(g) for g in optimizer.param_groups]
        self.numbers = [hyperparameters(optimizer, g) if self.known else [] for g in optimizer.param_groups]
        # of each group and each of its numbers: the places that it has in the program
        self.places: list[list[list[int]]] = [[[] for _ in numbers] for numbers in self.numbers]
        self.counters: dict[int, int] = {}  # id of a parameter -> place of its count
        self.updated: set[int] = set()  # ids of parameters
        self.advanced = list(advanced)
        self.state: Any = None  # while it is away from the optimizer
        self.held = [(p, {k: v for k, v in s.items() if isinstance(v, Tensor)}) for p, s in optimizer.state.items()]
        self.counts: list[Any] = []  # [count, its places, how many, the dicts that hold it]

    @property
    def optimizer(self) -> Any:
        """None if it is gone."""
        return self.reference()

    def hold(self, weakly: bool) -> None:
        """Whether it may go while this is there."""
        if weakly:
            self.owned = None

    def hooked(self) -> bool:
        """Whether other code runs with a step, or there is none any more."""
        optimizer = self.optimizer
        if optimizer is None:
            return True
        own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return bool(own or PRE_HOOKS or POST_HOOKS)

    def takes(self, p: Tensor) -> int | None:
        """The group of a parameter."""
        return next((i for i, g in enumerate(self.groups) if any(q is p for q in g["params"])), None)

    def add(self, call: Call, p: Tensor, scalars: list[Any]) -> None:
        """An update op of the recording: note where its numbers come from."""
        group = self.takes(p)
        if group is None or not self.known:
            return
        given = [x.place for x in call.inputs if isinstance(x, Number)]
        expected = list(self.numbers[group])
        if len(given) > len(expected) and self.optimizer.counter is not None:
            expected.append(self.optimizer.state[p][self.optimizer.counter])
            self.counters[id(p)] = given[-1]
        if len(given) != len(expected) or not alike([scalars[place] for place in given], expected):
            raise NotPureError(f"{call.op.name} is given other numbers than the settings of {type(self.optimizer).__name__}")
        self.updated.add(id(p))
        for place, places in zip(given, self.places[group], strict=False):
            places.append(place)

    def complete(self) -> None:
        """All update ops are there."""
        if any(id(p) not in self.updated for p in self.advanced):
            raise NotPureError(f"{type(self.optimizer).__name__} counts steps in a way of its own")

    def known_places(self) -> set[int]:
        """The places of numbers that come from here."""
        return {p for group in self.places for places in group for p in places} | set(self.counters.values())

    def all_places(self) -> Any:
        """What `advance` of another one has to know to count for this one."""
        found = [self.counters[id(p)] for p in self.advanced if id(p) in self.counters]
        return in_steps(found), len(found)

    # ---- at each call

    def refresh(self, state: State, scalars: list[Any], lender: Stepped) -> bool:
        """Whether the settings are what they were; those that are numbers of the program may be others."""
        optimizer = self.reference()
        if optimizer is None:
            return False
        optimizer._opt_called = True
        groups = optimizer.param_groups
        before, state.handler = state.handler, refuse  # at once, as this is for each call
        try:
            if groups == self.groups:
                return True
        except Exception:  # see `same`
            pass
        finally:
            state.handler = before
        if len(groups) != len(self.groups):
            return False
        return all(self._take_over(state, i, group, scalars) for i, group in enumerate(groups))

    def _take_over(self, state: State, i: int, group: dict[str, Any], scalars: list[Any]) -> bool:
        """Put the settings of a group that have changed into their places."""
        was, hyper = self.groups[i], self.optimizer.hyper if self.known else ()
        if any(name not in group for name in was) or any(bool(group[s]) is not bool(was[s]) for s in self.optimizer.switches):
            return False
        if not all(same(state, [group[name]], [was[name]]) for name in was if name not in hyper):
            return False
        now = hyperparameters(self.optimizer, group) if self.known else []
        if [type(x) for x in now] != [type(x) for x in self.numbers[i]]:
            return False
        for x, before, places in zip(now, self.numbers[i], self.places[i], strict=True):
            if not alike(x, before):
                for place in places:
                    scalars[place] = x
        self.groups[i], self.numbers[i] = snapshot(group), now
        return True

    def advance(self, scalars: list[Any], elsewhere: Any = None) -> None:
        """One more step. The numbers of another program are `elsewhere`: its places, and how many."""
        for entry in self.counts:
            count = entry[0] = entry[0] + 1
            places, many = elsewhere or entry[1:3]
            if type(places) is slice:
                scalars[places] = [count] * many
            else:
                for place in places:
                    scalars[place] = count

    def take_back(self) -> None:
        """The step has failed."""
        for entry in self.counts:
            entry[0] -= 1

    # ---- lending

    def fits(self) -> bool:
        """Whether the optimizer has its state, and that is what it was, but for numbers."""
        state = None if self.optimizer is None else self.optimizer.__dict__.get("state")
        if state is None or self.hooked() or len(state) != len(self.held):
            return False
        for p, tensors in self.held:
            values = state.get(p)
            if values is None or any(values.get(k) is not t for k, t in tensors.items()):
                return False
        return True

    def arm(self) -> bool:
        """Begin to count for the optimizer, if its state is what it was."""
        if not self.fits():
            return False
        state = self.optimizer.state
        found: dict[int, tuple[list[int], list[Any]]] = {}
        for p in self.advanced:
            count = state[p].get(COUNT)
            if type(count) is not int:
                return False
            places, dicts = found.setdefault(count, ([], []))
            dicts.append(state[p])
            if id(p) in self.counters:
                places.append(self.counters[id(p)])
        self.counts = [[n, in_steps(places), len(places), dicts] for n, (places, dicts) in found.items()]
        return True

    def alone(self) -> bool:
        """Whether nobody else has the state, or a part of it."""
        fields = self.optimizer.__dict__
        if count_of(fields, "state") > LONE:
            return False
        state = fields["state"]
        return all(count_of(state, p) <= LONE + 1 for p in self.advanced)  # `counts` has it too

    def lend(self) -> None:
        """Take the state away from the optimizer; if others have it, count for them at once."""
        if self.alone():
            fields = self.optimizer.__dict__
            self.state, fields["_lender"] = fields.pop("state"), self
        else:
            self.settle()

    def is_away(self) -> bool:
        """Whether the state is still lent: somebody may have given the optimizer another."""
        if self.state is not None and (self.optimizer is None or "state" in self.optimizer.__dict__):
            self.settle()
        return self.state is not None

    def look(self) -> None:
        """Somebody looks at the state."""
        with self.lock:
            self.settle()

    def settle(self) -> None:
        """The counts as they are by now, and the state to the optimizer."""
        self.tell()
        self.counts = []
        if self.state is not None:
            optimizer = self.optimizer
            if optimizer is not None:
                optimizer.__dict__.setdefault("state", self.state)
                optimizer.__dict__.pop("_lender", None)
            self.state = None

    def tell(self) -> None:
        """Put the counts into the state."""
        for count, _, _, dicts in self.counts:
            for values in dicts:
                values[COUNT] = count


def in_steps(places: list[int]) -> Any:
    """Places at equal distances as a slice, which is filled at once."""
    if len(places) > 1 and places[1] > places[0]:
        found = range(places[0], places[-1] + 1, places[1] - places[0])
        if list(found) == places:
            return slice(found.start, found.stop, found.step)
    return places
