"""Optimizers in skipped calls: hyperparameters become inputs of the program, and step counts are deferred.

An update op gets its numbers from the parameter's group, in the order of `Optimizer.hyper`, and perhaps a step count from the
state; that is checked against an observed call. While Python is skipped, `state` is taken away from the optimizer, so that
reading it materialises the counts.

Optimizers with computed hyperparameters (`ComputedOptimizerStep`) compute the numbers of their ops from a group's settings and
from numbers in a parameter's state. Parameters of a group whose state holds the same numbers share one computation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any
from weakref import ref

from ...eager.core.library import OPTIMIZERS, is_trusted
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ...eager.optim.computed_hyperparameters import ComputedHyperparameters
from ...eager.optim.optimizer import POST_HOOKS, PRE_HOOKS, DeferredOptimizerState, Optimizer, OptimizerState
from ..guards.reachable_state import NotPureError, freeze, is_unchanged
from ..regions.optimizer_region import OPTIMIZER_STEP, hyperparameters
from ..trace.trace import Call, Number, same_setting

COUNT = "step"


def follows_declarations(optimizer: Optimizer) -> bool:
    """True if the optimizer's code is the library's, so that its updates follow from its declarations."""
    cls = type(optimizer)
    methods = (
        ("update", "settings", "compute_hyperparameters", "next_hyperparameters")
        if isinstance(optimizer, ComputedHyperparameters)
        else ("update",)
    )
    ours = all(is_trusted(getattr(cls, name), OPTIMIZERS) for name in methods)
    return cls.step is OPTIMIZER_STEP and ours and optimizer.__dict__.keys().isdisjoint(methods)


def copy_group(group: dict[str, Any]) -> dict[str, Any]:
    return {**group, "params": list(group["params"])}


def refuse_op(*_: Any) -> Any:
    raise NotPureError("tensors are compared")


def equal_settings(state: State, groups: Any, known: Any) -> bool:
    """Compare param groups by equality. Tensors are compared by identity: comparing them by value would run an op."""
    before, state.handler = state.handler, refuse_op
    try:
        return bool(groups == known)
    except Exception:  # a tensor, or something else that cannot be compared
        return False
    finally:
        state.handler = before


def refcount_of(holder: dict[Any, Any], key: Any) -> int:
    """Return the reference count of a dict's value."""
    return sys.getrefcount(holder[key])


LONE_REFCOUNT = refcount_of({"state": {}}, "state")


class OptimizerSnapshot:
    """An optimizer's settings and state before an observed call."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.groups = [freeze(g) for g in optimizer.param_groups]
        self.state = {id(p): dict(values) for p, values in optimizer.state.items() if isinstance(values, dict)}

    def advanced(self) -> list[Any]:
        """Return the parameters whose step count, or another number that steps change, has advanced.

        An error if anything else has changed.
        """
        kind = type(self.optimizer).__name__
        if len(self.groups) != len(self.optimizer.param_groups):
            raise NotPureError(f"it adds parameters to {kind}")
        if not all(is_unchanged(g, was) for g, was in zip(self.optimizer.param_groups, self.groups, strict=True)):
            raise NotPureError(f"it changes settings of {kind}")
        found = []
        changing = self.optimizer.changing_state if isinstance(self.optimizer, ComputedHyperparameters) else ()
        for p, values in self.optimizer.state.items():
            was = self.state.get(id(p))
            if was is None or list(was) != list(values):
                raise NotPureError(f"{kind} adds entries to its state")
            for key, value in values.items():
                if value is was[key] or (not isinstance(value, Tensor) and same_setting(value, was[key])):
                    continue
                if key not in changing and (key != COUNT or type(value) is not int or value != was[key] + 1):
                    raise NotPureError(f"{kind} keeps `{key}` in its state, which it computes at each step")
                if not found or found[-1] is not p:
                    found.append(p)
        return found


class OptimizerStep:
    """An optimizer that a skipped call steps: which numbers of the program come from it, and its deferred state."""

    def __init__(self, optimizer: Optimizer, advanced: Iterable[Any]) -> None:
        self.reference = ref(optimizer)
        self.owned: Optimizer | None = optimizer
        self.lock: Any = None  # that of the function which steps it
        if self.hooked():
            raise NotPureError(f"{type(optimizer).__name__} has hooks")
        self.known = bool(optimizer.hyper) and follows_declarations(optimizer)
        self.groups = [copy_group(g) for g in optimizer.param_groups]
        self.numbers = [hyperparameters(optimizer, g) if self.known else [] for g in optimizer.param_groups]
        # for each group and each of its hyperparameters: places among the program's scalars
        self.places: list[list[list[int]]] = [[[] for _ in numbers] for numbers in self.numbers]
        self.counters: dict[int, int] = {}  # id of a parameter -> place of its step count
        self.updated: set[int] = set()  # ids of parameters
        self.advanced = list(advanced)
        self.state: Any = None  # the optimizer's state while it is deferred
        self.held = [(p, {k: v for k, v in s.items() if isinstance(v, Tensor)}) for p, s in optimizer.state.items()]
        self.counts: list[Any] = []  # [count, its places, how many, the dicts that hold it]

    @property
    def optimizer(self) -> Any:
        """The optimizer, or None if it was collected."""
        return self.reference()

    def hold(self, weakly: bool) -> None:
        """If `weakly`, drop the strong reference, so that the optimizer can be collected while this plan exists."""
        if weakly:
            self.owned = None

    def hooked(self) -> bool:
        """True if hooks run with a step, or if the optimizer is gone."""
        optimizer = self.optimizer
        if optimizer is None:
            return True
        own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return bool(own or PRE_HOOKS or POST_HOOKS)

    def takes(self, p: Tensor) -> int | None:
        """Return the index of a parameter's group."""
        return next((i for i, g in enumerate(self.groups) if any(q is p for q in g["params"])), None)

    def add(self, call: Call, p: Tensor, scalars: list[Any]) -> None:
        """Add an update op of the recording: note which of its numbers are which hyperparameters."""
        group = self.takes(p)
        if group is None or not self.known:
            return
        given = [x.place for x in call.inputs if isinstance(x, Number)]
        expected = list(self.numbers[group])
        if len(given) > len(expected) and self.optimizer.counter is not None:
            expected.append(self.optimizer.state[p][self.optimizer.counter])
            self.counters[id(p)] = given[-1]
        if len(given) != len(expected) or not same_setting([scalars[place] for place in given], expected):
            raise NotPureError(f"{call.op.name} gets other numbers than the hyperparameters of {type(self.optimizer).__name__}")
        self.updated.add(id(p))
        for place, places in zip(given, self.places[group], strict=False):
            places.append(place)

    def complete(self) -> None:
        """Check, after all update ops were added, that every advanced parameter is updated by one."""
        if any(id(p) not in self.updated for p in self.advanced):
            raise NotPureError(f"{type(self.optimizer).__name__} counts steps without an update op")

    def known_places(self) -> set[int]:
        """Return the places of scalars that come from this optimizer."""
        return {p for group in self.places for places in group for p in places} | set(self.counters.values())

    def all_places(self) -> Any:
        """Return the places of step counts, for the `advance` of another plan that counts for this one."""
        found = [self.counters[id(p)] for p in self.advanced if id(p) in self.counters]
        return as_slice(found), len(found)

    # ---- at each call

    def refresh(self, state: State, scalars: list[Any], state_owner: OptimizerStep) -> bool:
        """Check the settings at each call. Hyperparameters that are inputs of the program may change, and are updated."""
        optimizer = self.reference()
        if optimizer is None:
            return False
        optimizer._opt_called = True
        groups = optimizer.param_groups
        before, state.handler = state.handler, refuse_op  # all groups at once: this runs at each call
        try:
            if groups == self.groups:
                return True
        except Exception:  # see `equal_settings`
            pass
        finally:
            state.handler = before
        if len(groups) != len(self.groups):
            return False
        return all(self._take_over(state, i, group, scalars) for i, group in enumerate(groups))

    def _take_over(self, state: State, i: int, group: dict[str, Any], scalars: list[Any]) -> bool:
        """Write a group's changed hyperparameters to their places; False if a setting changed that the program depends on."""
        was, hyper = self.groups[i], self.optimizer.hyper if self.known else ()
        if any(name not in group for name in was) or any(bool(group[s]) is not bool(was[s]) for s in self.optimizer.switches):
            return False
        if not all(equal_settings(state, [group[name]], [was[name]]) for name in was if name not in hyper):
            return False
        now = hyperparameters(self.optimizer, group) if self.known else []
        if [type(x) for x in now] != [type(x) for x in self.numbers[i]]:
            return False
        for x, before, places in zip(now, self.numbers[i], self.places[i], strict=True):
            if not same_setting(x, before):
                for place in places:
                    scalars[place] = x
        self.groups[i], self.numbers[i] = copy_group(group), now
        return True

    def advance(self, scalars: list[Any], elsewhere: Any = None) -> None:
        """Advance the step counts by one. `elsewhere`: places in the program of a borrower, and how many."""
        for entry in self.counts:
            count = entry[0] = entry[0] + 1
            places, many = elsewhere or entry[1:3]
            if type(places) is slice:
                scalars[places] = [count] * many
            else:
                for place in places:
                    scalars[place] = count

    def undo_advance(self) -> None:
        """The step has failed."""
        for entry in self.counts:
            entry[0] -= 1

    # ---- deferred state

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

    def bind(self) -> bool:
        """Begin to keep the step counts for the optimizer, if its state fits."""
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
        self.counts = [[n, as_slice(places), len(places), dicts] for n, (places, dicts) in found.items()]
        return True

    def alone(self) -> bool:
        """True if nobody else holds the state of a parameter, which is a plain dict."""
        state = self.optimizer.__dict__["state"]
        return all(refcount_of(state, p) <= LONE_REFCOUNT + 1 for p in self.advanced)  # `counts` has it too

    def defer(self) -> None:
        """Leave the counts behind until somebody reads the state; if others hold a part of it, write them at once."""
        state = self.optimizer.__dict__["state"]
        if type(state) is OptimizerState and self.alone():
            self.state, state.owner = state, self
            state.__class__ = DeferredOptimizerState
        else:
            self.materialise()

    def is_deferred(self) -> bool:
        """True while the state is deferred; somebody may have given the optimizer another."""
        if self.state is not None and (self.optimizer is None or self.optimizer.__dict__.get("state") is not self.state):
            self.materialise()
        return self.state is not None

    def look(self) -> None:
        """Materialise: the state is being read. Called by `Optimizer`."""
        with self.lock:
            self.materialise()

    def materialise(self) -> None:
        """Write the counts."""
        state, self.state = self.state, None
        if state is not None:
            state.__class__ = OptimizerState
            del state.owner
        self.write_counts()
        self.counts = []

    def write_counts(self) -> None:
        """Write the step counts into the state."""
        for count, _, _, dicts in self.counts:
            for values in dicts:
                values[COUNT] = count


def as_slice(places: list[int]) -> Any:
    """Turn places at equal distances into a slice, which is filled by one assignment."""
    if len(places) > 1 and places[1] > places[0]:
        found = range(places[0], places[-1] + 1, places[1] - places[0])
        if list(found) == places:
            return slice(found.start, found.stop, found.step)
    return places


def optimizer_step_of(remembered: OptimizerSnapshot, advanced: Iterable[Any]) -> OptimizerStep:
    """Make the plan for an optimizer that an observed call has stepped."""
    optimizer = remembered.optimizer
    if isinstance(optimizer, ComputedHyperparameters) and follows_declarations(optimizer):
        return ComputedOptimizerStep(remembered, advanced)
    return OptimizerStep(optimizer, advanced)


class ParameterShare:
    """Parameters of one group whose state holds the same numbers, and so get the same hyperparameters."""

    def __init__(self, group: int, remembered: tuple[Any, ...]) -> None:
        self.group = group
        self.remembered = self.before = remembered
        self.told: tuple[Any, ...] = ()
        self.after: tuple[Any, ...] = ()
        self.parameters: list[int] = []  # ids
        self.dicts: list[dict[str, Any]] = []  # state of each parameter
        self.places: list[Any] = []  # for each computed hyperparameter: its places among the program's scalars


class ComputedOptimizerStep(OptimizerStep):
    """An optimizer whose hyperparameters are computed at each step."""

    def __init__(self, remembered: OptimizerSnapshot, advanced: Iterable[Any]) -> None:
        super().__init__(remembered.optimizer, advanced)
        self.was = remembered.state
        self.names = self.optimizer.changing_state
        self.settings = [self.optimizer.settings(g) for g in self.groups]
        self.given: dict[int, list[int]] = {}  # id of a parameter -> the places of its op's numbers
        self.variants: dict[int, Any] = {}  # and how else its op depends on the step
        self.kinds: dict[int, list[type]] = {}
        self.group_of: dict[int, int] = {}

    def add(self, call: Call, p: Tensor, scalars: list[Any]) -> None:
        group = self.takes(p)
        kind = type(self.optimizer).__name__
        state = self.optimizer.state.get(p, {})
        before = [self.was.get(id(p), {}).get(name) for name in self.names]
        if group is None or not all(type(x) in (int, float) for x in (*before, *self.settings[group])):
            raise NotPureError(f"{call.op.name} gets numbers that are not plain hyperparameters of {kind}")
        numbers, after, variant = self.optimizer.compute_hyperparameters(self.settings[group], *before)
        given = [x.place for x in call.inputs if isinstance(x, Number)]
        if len(given) != len(numbers) or not same_setting([scalars[place] for place in given], list(numbers)):
            raise NotPureError(f"{call.op.name} gets other numbers than {kind} computes")
        if not same_setting([state.get(name) for name in self.names], list(after)):
            raise NotPureError(f"{kind} keeps other numbers in its state than it computes")
        self.updated.add(id(p))
        self.given[id(p)], self.variants[id(p)], self.group_of[id(p)] = given, variant, group
        self.kinds[id(p)] = [type(x) for x in numbers]

    def known_places(self) -> set[int]:
        return {place for places in self.given.values() for place in places}

    def all_places(self) -> Any:
        return columns(list(self.given.values()))

    # ---- at each call

    def refresh(self, state: State, scalars: list[Any], state_owner: OptimizerStep) -> bool:
        if not super().refresh(state, scalars, state_owner):
            return False
        for share in state_owner.counts:
            first = share.parameters[0]
            share.told, share.after, variant = self.optimizer.compute_hyperparameters(
                self.settings[share.group], *share.remembered
            )
            if variant != self.variants[first] or [type(x) for x in share.told] != self.kinds[first]:
                return False
        return True

    def _take_over(self, state: State, i: int, group: dict[str, Any], scalars: list[Any]) -> bool:
        was, changeable = self.groups[i], self.optimizer.changeable
        if any(name not in group for name in was):
            return False
        if not all(equal_settings(state, [group[name]], [was[name]]) for name in was if name not in changeable):
            return False
        if any(type(x) not in (int, float) for name in changeable for x in as_tuple(group[name])):
            return False
        settings = self.optimizer.settings(group)
        if [type(x) for x in settings] != [type(x) for x in self.settings[i]]:
            return False
        self.groups[i], self.settings[i] = copy_group(group), settings
        return True

    def advance(self, scalars: list[Any], elsewhere: Any = None) -> None:
        for share in self.counts:
            share.before, share.remembered = share.remembered, share.after
            for x, (places, many) in zip(share.told, elsewhere or share.places, strict=True):
                if type(places) is slice:
                    scalars[places] = [x] * many
                else:
                    for place in places:
                        scalars[place] = x

    def undo_advance(self) -> None:
        for share in self.counts:
            share.remembered = share.before

    # ---- deferred state

    def bind(self) -> bool:
        if not self.fits():
            return False
        state = self.optimizer.state
        shares: dict[Any, ParameterShare] = {}
        by_id = {id(p): p for g in self.groups for p in g["params"]}
        for key, group in self.group_of.items():
            values = state[by_id[key]] if self.names else {}
            remembered = tuple(values.get(name) for name in self.names)
            if not all(type(x) in (int, float) for x in remembered):
                return False
            share = shares.setdefault((group, remembered, self.variants[key]), ParameterShare(group, remembered))
            share.parameters.append(key)
            if self.names:
                share.dicts.append(values)
        for share in shares.values():
            share.places = columns([self.given[key] for key in share.parameters])
        self.counts = list(shares.values())
        return True

    def write_counts(self) -> None:
        for share in self.counts:
            for values in share.dicts:
                values.update(zip(self.names, share.remembered, strict=True))


def as_tuple(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def columns(rows: list[list[int]]) -> list[tuple[Any, int]]:
    """Transpose rows of places: one entry per number, with its places and how many there are."""
    return [(as_slice(list(places)), len(places)) for places in zip(*rows, strict=True)]
