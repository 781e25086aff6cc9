"""Optimizers that compute the numbers of their ops, in a step that skips Python: what they compute is computed here as well.

`Foretold.foretell` says what follows from a group's settings and from the numbers that the state of a parameter holds. All
parameters of a group that hold the same numbers are told the same, so that it is called once for them. Otherwise this is as in
`pure_updates.py`: the state is away from the optimizer, and who looks at it finds the numbers as they should be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...eager.optim.computed_hyperparameters import Foretold
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ..guards.reachable_state import NotPureError
from .optimizer_state import Remembered, Stepped, in_steps, is_librarys, same, snapshot
from ..trace.trace import Call, Number, alike


def stepped_by(remembered: Remembered, advanced: Iterable[Any]) -> Stepped:
    """An optimizer that a pure function steps, and what its state was before it did."""
    optimizer = remembered.optimizer
    if isinstance(optimizer, Foretold) and is_librarys(optimizer):
        return SteppedAsForetold(remembered, advanced)
    return Stepped(optimizer, advanced)


class Share:
    """Parameters of one group that remember the same."""

    def __init__(self, group: int, remembered: tuple[Any, ...]) -> None:
        self.group = group
        self.remembered = self.before = remembered
        self.told: tuple[Any, ...] = ()
        self.after: tuple[Any, ...] = ()
        self.parameters: list[int] = []  # ids
        self.dicts: list[dict[str, Any]] = []  # that hold what is remembered
        self.places: list[Any] = []  # of each number that they are told: where it stands in the program


class SteppedAsForetold(Stepped):
    """See the module's text."""

    def __init__(self, remembered: Remembered, advanced: Iterable[Any]) -> None:
        super().__init__(remembered.optimizer, advanced)
        self.was = remembered.state
        self.names = self.optimizer.remembers
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
            raise NotPureError(f"{call.op.name} is given numbers that are not plain settings of {kind}")
        numbers, after, variant = self.optimizer.foretell(self.settings[group], *before)
        given = [x.place for x in call.inputs if isinstance(x, Number)]
        if len(given) != len(numbers) or not alike([scalars[place] for place in given], list(numbers)):
            raise NotPureError(f"{call.op.name} is given other numbers than {kind} foretells")
        if not alike([state.get(name) for name in self.names], list(after)):
            raise NotPureError(f"{kind} remembers other numbers than it foretells")
        self.updated.add(id(p))
        self.given[id(p)], self.variants[id(p)], self.group_of[id(p)] = given, variant, group
        self.kinds[id(p)] = [type(x) for x in numbers]

    def known_places(self) -> set[int]:
        return {place for places in self.given.values() for place in places}

    def all_places(self) -> Any:
        return columns(list(self.given.values()))

    # ---- at each call

    def refresh(self, state: State, scalars: list[Any], lender: Stepped) -> bool:
        if not super().refresh(state, scalars, lender):
            return False
        for share in lender.counts:
            first = share.parameters[0]
            share.told, share.after, variant = self.optimizer.foretell(self.settings[share.group], *share.remembered)
            if variant != self.variants[first] or [type(x) for x in share.told] != self.kinds[first]:
                return False
        return True

    def _take_over(self, state: State, i: int, group: dict[str, Any], scalars: list[Any]) -> bool:
        was, changeable = self.groups[i], self.optimizer.changeable
        if any(name not in group for name in was):
            return False
        if not all(same(state, [group[name]], [was[name]]) for name in was if name not in changeable):
            return False
        if any(type(x) not in (int, float) for name in changeable for x in parts(group[name])):
            return False
        settings = self.optimizer.settings(group)
        if [type(x) for x in settings] != [type(x) for x in self.settings[i]]:
            return False
        self.groups[i], self.settings[i] = snapshot(group), settings
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

    def take_back(self) -> None:
        for share in self.counts:
            share.remembered = share.before

    # ---- lending

    def arm(self) -> bool:
        if not self.fits():
            return False
        state = self.optimizer.state
        shares: dict[Any, Share] = {}
        by_id = {id(p): p for g in self.groups for p in g["params"]}
        for key, group in self.group_of.items():
            values = state[by_id[key]] if self.names else {}
            remembered = tuple(values.get(name) for name in self.names)
            if not all(type(x) in (int, float) for x in remembered):
                return False
            share = shares.setdefault((group, remembered, self.variants[key]), Share(group, remembered))
            share.parameters.append(key)
            if self.names:
                share.dicts.append(values)
        for share in shares.values():
            share.places = columns([self.given[key] for key in share.parameters])
        self.counts = list(shares.values())
        return True

    def tell(self) -> None:
        for share in self.counts:
            for values in share.dicts:
                values.update(zip(self.names, share.remembered, strict=True))


def parts(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def columns(rows: list[list[int]]) -> list[tuple[Any, int]]:
    """The places of each of several numbers, where rows of them are given."""
    return [(in_steps(list(places)), len(places)) for places in zip(*rows, strict=True)]
