"""Steps of the library's optimizers as regions: see `regions.py`.

A step is one op for each parameter that has a gradient. Hyperparameters are read from the groups at each step and are runtime
scalars; counters in the state go on as the optimizer's own code would have it. What the code does otherwise follows from a few
switches (`Optimizer.switches`) and from which parameters have gradients.
"""

from __future__ import annotations

from typing import Any

from ..eager.optim.optimizer import Optimizer
from ..eager.tensor import Tensor
from .regions import MISSED, Fresh, Mark, NoRegionError, Region
from .source import Source
from .trace import Call, Number

STEP = Optimizer.step


class Update:
    """The op of one parameter."""

    __slots__ = ("count", "counter", "first", "parameter", "place", "tensors")

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self.tensors: tuple[Any, ...] = ()  # the parameter, its gradient and its state: see `UpdateRegion.seen`
        self.first = self.count = 0  # where the hyperparameters stand among the runtime scalars, and how many
        self.counter: int | None = None  # and where the counter does, if the op is given it
        self.place = -1  # of its state among those of all parameters


class Group:
    """The parameters of a group, and what their step depends on."""

    __slots__ = ("kinds", "names", "switches", "updates")

    def __init__(self, optimizer: Optimizer, group: dict[str, Any]) -> None:
        self.switches = tuple((name, bool(group[name])) for name in optimizer.switches)
        self.names = tuple((name, len(x) if type(x := group[name]) is tuple else None) for name in optimizer.hyper)
        self.kinds = tuple(type(x) for x in hyperparameters(optimizer, group))
        if not all(kind in (int, float) for kind in self.kinds):
            raise NoRegionError("a hyperparameter is no plain number")
        self.updates = tuple(Update(p) for p in group["params"])


def hyperparameters(optimizer: Optimizer, group: dict[str, Any]) -> list[Any]:
    """The numbers that a group's ops are given, in their order."""
    found: list[Any] = []
    for name in optimizer.hyper:
        value = group[name]
        if type(value) is tuple:
            found += value
        else:
            found.append(value)
    return found


class UpdateRegion(Region):
    """A call of `optimizer.step()`."""

    holds = ("groups", "keys")

    def __init__(self, frame: Any, mark: Mark, optimizer: Optimizer) -> None:
        super().__init__(frame, mark, optimizer, f"{type(optimizer).__name__}.step")
        cls = type(optimizer)
        self.cls, self.update = cls, cls.update
        if cls.update.__module__.rpartition(".")[0] != STEP.__module__.rpartition(".")[0] or cls.step is not STEP:
            raise NoRegionError("its update is the user's")
        if not optimizer.hyper or "update" in optimizer.__dict__:
            raise NoRegionError("its update cannot be told from its settings")
        self.counter = optimizer.counter
        self.groups = tuple(Group(optimizer, group) for group in optimizer.param_groups)
        self.bound: set[int] = set()
        calls = iter(self.entries)
        for plan, group in zip(self.groups, optimizer.param_groups, strict=True):
            for update in plan.updates:
                if update.parameter._grad is not None:
                    self.plan(frame, optimizer, update, group, next(calls, None))
        if next(calls, None) is not None or self.bound != self.fresh.keys():
            raise NoRegionError("it does more than its updates")
        self.stateful = optimizer.counter is not None or any(len(u.tensors) > 2 for g in self.groups for u in g.updates)
        self.keys = list(optimizer.state) if self.stateful else []
        places = {id(p): i for i, p in enumerate(self.keys)}
        for update in [u for g in self.groups for u in g.updates if u.tensors and self.stateful]:
            update.place = places[id(update.parameter)]

    def plan(self, frame: Any, optimizer: Optimizer, update: Update, group: dict[str, Any], call: Call | None) -> None:
        """Match the op of a parameter with where its inputs come from."""
        p = update.parameter
        if call is None or not call.op.mutates:
            raise NoRegionError("a parameter has no update of its own")
        state = optimizer.state.get(p, {})
        sources: dict[int, Any] = {id(p): None, id(p._grad): "_grad"}
        sources.update({id(x): name for name, x in state.items() if isinstance(x, Tensor)})
        rest = list(call.inputs)
        found = []
        while rest and not isinstance(rest[0], Number):
            n = rest.pop(0)
            if isinstance(n, int):
                t = frame.tensors[n]
                if t is None or id(t) not in sources:
                    raise NoRegionError("an update sees a tensor from elsewhere")
                found.append((sources[id(t)], n, t._requires_grad, self.seen(frame, n)))
            elif n.value is not None:
                raise NoRegionError("an update is given a number that must not change")
        update.tensors = tuple(found)
        if [source for source, *_ in found[:2]] != [None, "_grad"]:
            raise NoRegionError("an update is given other tensors than a parameter and its gradient")
        self.plan_numbers(frame, update, hyperparameters(optimizer, group), state, rest)

    def plan_numbers(self, frame: Any, update: Update, expected: list[Any], state: Any, rest: list[Any]) -> None:
        update.count = len(expected)
        if len(rest) > len(expected):
            expected.append(state.get(self.counter))
        places = [x.place if isinstance(x, Number) else -1 for x in rest]
        if not places or places != list(range(places[0], places[0] + len(expected))):
            raise NoRegionError("an update is given other numbers than its group has")
        if any(frame.scalars[p] != x or type(frame.scalars[p]) is not type(x) for p, x in zip(places, expected, strict=True)):
            raise NoRegionError("an update is given other numbers than its group has")
        update.first = places[0]
        update.counter = places[-1] if len(places) > update.count else None

    def seen(self, frame: Any, n: int) -> Fresh | None:
        """How to bind a tensor that appears for the first time."""
        if n not in self.fresh or n in self.bound:
            return None
        self.bound.add(n)
        value = self.fresh[n].value
        if value.slot in frame.trace.shared:
            raise NoRegionError("a NumPy array shows the memory of a tensor")
        return Fresh(value)

    # ---- entering

    def source(self) -> Source:
        source = Source("enter", "R, f, optimizer")
        source.space["MISSED"] = MISSED
        tests = f"{source.constant(self.cls)}.update is not {source.constant(self.update)} or 'update' in optimizer.__dict__"
        source.add(
            "groups = optimizer.param_groups",
            f"if {tests} or len(groups) != {len(self.groups)}: return MISSED",
            "".join(f"g{i}, " for i in range(len(self.groups))) + "= groups",
        )
        for i, plan in enumerate(self.groups):
            self.look_at_settings(source, f"g{i}", plan)
        if self.stateful:
            self.look_at_states(source)
        source.add("T = f.tensors; A = f.held; Z = f.scalars")
        if self.bound:
            source.add("B = f.arrays; N = f.number; S = f.slots")
        targets: dict[int, str] = {}
        for i, plan in enumerate(self.groups):
            for j, update in enumerate(plan.updates):
                self.look_at_tensors(source, f"g{i}", f"{i}_{j}", update, targets)
        for i, plan in enumerate(self.groups):
            for j, update in enumerate(plan.updates):
                if update.tensors:
                    self.give_numbers(source, f"g{i}", f"{i}_{j}", plan, update)
        self.finished(source, targets)
        source.add("return None")
        return source

    def look_at_settings(self, source: Source, group: str, plan: Group) -> None:
        """Switches and kinds of numbers; the numbers, and the parameters, get variables."""
        read: dict[str, str] = {}  # settings that have a variable
        k = 0
        for name, length in plan.names:
            if length is None:
                read[name] = f"{group}h{k}"
                source.add(f"{group}h{k} = {group}[{name!r}]")
            else:
                some = ", ".join(f"{group}h{k + m}" for m in range(length))
                source.add(
                    f"h = {group}[{name!r}]",
                    f"if h.__class__ is not tuple or len(h) != {length}: return MISSED",
                    f"{some}, = h",
                )
            k += length or 1
        tests = [f"{'not ' * switched}{read.get(name, f'{group}[{name!r}]')}" for name, switched in plan.switches]
        tests += [f"{group}h{k}.__class__ is not {source.constant(kind)}" for k, kind in enumerate(plan.kinds)]
        source.add(
            f"params = {group}['params']", f"if {' or '.join([*tests, f'len(params) != {len(plan.updates)}'])}: return MISSED"
        )
        names = [f"p{group[1:]}_{j}" for j in range(len(plan.updates))]
        if names:
            source.add(f"{', '.join(names)}, = params")
            same = [f"{x} is not {source.constant(u.parameter)}" for x, u in zip(names, plan.updates, strict=True)]
            source.add(f"if {' or '.join(same)}: return MISSED")

    def look_at_states(self, source: Source) -> None:
        """The state of each parameter that has one gets a variable."""
        count = range(len(self.keys))
        source.add("states = optimizer.state", f"if len(states) != {len(self.keys)}: return MISSED")
        source.add("".join(f"k{i}, " for i in count) + "= states", "".join(f"s{i}, " for i in count) + "= states.values()")
        source.add(f"if {' or '.join(f'k{i} is not {source.constant(self.keys[i])}' for i in count)}: return MISSED")

    def look_at_tensors(self, source: Source, group: str, which: str, update: Update, targets: dict[int, str]) -> None:
        """A parameter, its gradient and its state."""
        missed = "R.undo(f); return MISSED"
        if not update.tensors:
            source.add(f"if p{which}._grad is not None: {missed}")
            return
        if self.counter is not None:
            source.add(f"n{which} = s{update.place}.get({self.counter!r})", f"if n{which}.__class__ is not int: {missed}")
        for k, (place, n, flag, fresh) in enumerate(update.tensors):
            x = f"p{which}" if place is None else f"x{which}_{k}"
            if place == "_grad":
                source.add(f"{x} = p{which}._grad")
            elif place is not None:
                source.add(f"{x} = s{update.place}.get({place!r})")
            if fresh is None:
                source.known(
                    x, n, None if place == "_grad" else flag, missed
                )  # without gradients, flags of gradients say nothing
            else:
                source.bind(x, n, flag, fresh, n in self.mutated, missed)
            targets[n] = x

    def give_numbers(self, source: Source, group: str, which: str, plan: Group, update: Update) -> None:
        """Hyperparameters and the counter, as the op is given them."""
        numbers = [f"{group}h{k}" for k in range(len(plan.kinds))]
        if self.counter is not None:
            source.add(f"s{update.place}[{self.counter!r}] = n{which} = n{which} + 1")
        if update.counter is not None:
            numbers.append(f"n{which}")
        source.add("; ".join(f"Z[{update.first + i}] = {x}" for i, x in enumerate(numbers)))
