"""Steps of the library's optimizers as regions: see `region.py`.

A step is one op for each parameter that has a gradient. Hyperparameters are read from the groups at each step and are runtime
scalars; counters in the state go on as the optimizer's own code would have it. What the code does otherwise follows from a few
switches (`Optimizer.switches`) and from which parameters have gradients.

Nearly always the settings are those of the last step, which is one comparison with a copy of them; and the parameters and their
gradients are what the backward pass has just seen and made, if no tensor was changed since, which Python counts.
"""

from __future__ import annotations

from operator import is_
from typing import Any

from ...eager.core.library import OPTIMIZERS, is_trusted
from ...eager.core.tensor import CHANGES, Tensor
from ...eager.optim.optimizer import POST_HOOKS, PRE_HOOKS, Optimizer
from ..trace.specialize import ReplayWriter
from ..trace.trace import Backward, Call, Number
from .region import FirstUse, NoRegionError, Region, RegionStart

OPTIMIZER_STEP = Optimizer.step
ON_MISS = "R.undo(f); return False"


class ParameterUpdate:
    """The op of one parameter."""

    __slots__ = ("counter", "parameter", "place", "tensors")

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self.tensors: tuple[Any, ...] = ()  # the parameter, its gradient and its state: see `UpdateRegion.seen`
        self.counter: int | None = None  # where the counter stands among the runtime scalars, if the op is given it
        self.place = -1  # of its state among those of all parameters


class GroupUpdate:
    """The parameters of a group, and what their step depends on."""

    __slots__ = ("kinds", "names", "switches", "updates")

    def __init__(self, optimizer: Optimizer, group: dict[str, Any]) -> None:
        self.switches = tuple((name, bool(group[name])) for name in optimizer.switches)
        self.names = tuple((name, len(x) if type(x := group[name]) is tuple else None) for name in optimizer.hyper)
        self.kinds = [type(x) for x in hyperparameters(optimizer, group)]
        if not all(kind in (int, float) for kind in self.kinds):
            raise NoRegionError("a hyperparameter is not a plain number")
        self.updates = tuple(ParameterUpdate(p) for p in group["params"])

    def numbers(self, optimizer: Optimizer, group: dict[str, Any]) -> list[Any] | None:
        """The hyperparameters, if all else is what it was."""
        if any(bool(group[name]) is not switched for name, switched in self.switches):
            return None
        if any((len(x) if type(x := group[name]) is tuple else None) != length for name, length in self.names):
            return None
        found, params = hyperparameters(optimizer, group), group["params"]
        if [type(x) for x in found] != self.kinds or len(params) != len(self.updates):
            return None
        return found if all(map(is_, params, [u.parameter for u in self.updates])) else None


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


def refuse_op(*_: Any) -> Any:
    """Handles ops while settings are compared: tensors in them are the same or not, whatever their elements are."""
    raise NoRegionError("tensors are compared")


class OptimizerRegion(Region):
    """A call of `optimizer.step()`."""

    is_optimizer_step = True
    missed = False
    holds = ("groups", "keys", "now")

    def __init__(self, frame: Any, mark: RegionStart, optimizer: Optimizer) -> None:
        cls = type(optimizer)
        super().__init__(frame, mark, optimizer, f"{cls.__name__}.step", [cls])
        if not is_trusted(cls.update, OPTIMIZERS) or cls.step is not OPTIMIZER_STEP:
            raise NoRegionError("its update is user code")
        if not optimizer.hyper or "update" in optimizer.__dict__:
            raise NoRegionError("its update does not follow from its declarations")
        self.counter = optimizer.counter
        self.groups = tuple(GroupUpdate(optimizer, group) for group in optimizer.param_groups)
        self.bound: set[int] = set()
        self.places = slice(mark.numbers, frame.trace.numbers)
        self.next = mark.numbers  # where the numbers of the next update begin
        calls = iter(self.entries)
        for plan, group in zip(self.groups, optimizer.param_groups, strict=True):
            for update in plan.updates:
                if update.parameter.tj_grad is not None:
                    self.plan(frame, optimizer, update, group, next(calls, None))
        if next(calls, None) is not None or self.bound != self.fresh.keys():
            raise NoRegionError("it does more than update parameters")
        self.stateful = optimizer.counter is not None or any(len(u.tensors) > 2 for u in self.updates())
        self.keys = list(optimizer.state) if self.stateful else []
        places = {id(p): i for i, p in enumerate(self.keys)}
        for update in self.updates() if self.stateful else ():
            update.place = places[id(update.parameter)]
        self.see_before(frame.trace.entries[: mark.start])
        self.now: Any = ([], [])  # the settings of the last step, and the numbers that its ops were given

    def updates(self) -> list[ParameterUpdate]:
        """Those that there are, in order."""
        return [u for g in self.groups for u in g.updates if u.tensors]

    def see_before(self, entries: list[Any]) -> None:
        """What the entries before say about the tensors."""
        self.written = {n for entry in entries for n in getattr(entry, "mutated", ())}
        while entries and isinstance(entries[-1], Call) and not entries[-1].turned:
            entries.pop()
        self.passed = entries[-1] if entries and isinstance(entries[-1], Backward) else None

    def plan(self, frame: Any, optimizer: Optimizer, update: ParameterUpdate, group: dict[str, Any], call: Call | None) -> None:
        """Match the op of a parameter with where its inputs come from."""
        p = update.parameter
        if call is None or not call.op.mutates:
            raise NoRegionError("a parameter has no update op")
        state = optimizer.state.get(p, {})
        sources: dict[int, Any] = {id(p): None, id(p.tj_grad): "tj_grad"}
        sources.update({id(x): name for name, x in state.items() if isinstance(x, Tensor)})
        rest = list(call.inputs)
        found = []
        while rest and not isinstance(rest[0], Number):
            n = rest.pop(0)
            if isinstance(n, int):
                t = frame.tensors[n]
                if t is None or id(t) not in sources:
                    raise NoRegionError("an update reads a tensor from elsewhere")
                found.append((sources[id(t)], n, t.tj_requires_grad, self.seen(frame, n)))
            elif n.value is not None:
                raise NoRegionError("an update gets a number that is a constant of the recording")
        update.tensors = tuple(found)
        if [source for source, *_ in found[:2]] != [None, "tj_grad"]:
            raise NoRegionError("an update gets other tensors than a parameter and its gradient")
        self.plan_numbers(frame, update, hyperparameters(optimizer, group), state, rest)

    def plan_numbers(self, frame: Any, update: ParameterUpdate, expected: list[Any], state: Any, rest: list[Any]) -> None:
        if len(rest) > len(expected):
            expected.append(state.get(self.counter))
            update.counter = self.next + len(rest) - 1
        places = [x.place if isinstance(x, Number) else -1 for x in rest]
        if not places or places != list(range(self.next, self.next + len(expected))):
            raise NoRegionError("an update gets other numbers than its group's hyperparameters")
        if any(frame.scalars[p] != x or type(frame.scalars[p]) is not type(x) for p, x in zip(places, expected, strict=True)):
            raise NoRegionError("an update gets other numbers than its group's hyperparameters")
        self.next += len(places)

    def seen(self, frame: Any, n: int) -> FirstUse | None:
        """How to bind a tensor that appears for the first time."""
        if n not in self.fresh or n in self.bound:
            return None
        self.bound.add(n)
        value = self.fresh[n].value
        if value.slot in frame.trace.shared:
            raise NoRegionError("a NumPy array shares the memory of a tensor")
        return FirstUse(value)

    # ---- entering

    def changed(self, optimizer: Optimizer) -> list[Any] | None:
        """The numbers of this step, whose settings are not those of the last one; None if it is another step."""
        groups = optimizer.param_groups
        if len(groups) != len(self.groups):
            return None
        numbers: list[Any] = []
        for plan, group in zip(self.groups, groups, strict=True):
            try:
                found = plan.numbers(optimizer, group)
            except KeyError:
                return None
            if found is None:
                return None
            for update in plan.updates:
                if update.tensors:
                    numbers += found if update.counter is None else [*found, None]
        self.now = [{**group, "params": [*group["params"]]} for group in groups], numbers
        return numbers

    def counts(self, states: list[Any]) -> list[int] | None:
        """The counters of all updates, which are not the same number; None if there is something else among them."""
        found = [states[u.place].get(self.counter) for u in self.updates()]
        return found if all(type(n) is int for n in found) else None

    def count(self, scalars: list[Any], states: list[Any], counts: list[int]) -> None:
        """Counters that are not the same number go on."""
        for update, n in zip(self.updates(), counts, strict=True):
            states[update.place][self.counter] = n + 1
            if update.counter is not None:
                scalars[update.counter] = n + 1

    def source(self) -> ReplayWriter:
        source = ReplayWriter("enter", "R, f, optimizer")
        source.space.update(refuse=refuse_op, PRE_HOOKS=PRE_HOOKS, POST_HOOKS=POST_HOOKS, CHANGES=CHANGES)
        self.look_at_code(source)
        self.look_at_settings(source)
        source.add("A = f.held; Z = f.scalars")
        if self.bound:
            source.add("B = f.arrays; N = f.number; S = f.slots")
        targets: dict[int, str] = {}
        self.look_at_parameters(source, targets)
        if self.stateful:
            self.look_at_states(source, targets)
        source.add(f"Z[{self.places.start}:{self.places.stop}] = numbers")
        if self.counter is not None:
            self.go_on_counting(source)
        source.add(f"R.entered += 1; f.cursor = {self.stop}")
        if all(n in targets for n in self.mutated):
            source.add("; ".join(f"a{x} = {x}.tj_array" for x in targets.values()))
            sure = {n for n in self.mutated if n not in self.written and self.values[n].form.on_cpu}
            source.hide([(targets[n], self.values[n]) for n in self.mutated], "R", sure)
        else:
            source.add("f.write(R)")
        source.add("return True")
        return source

    def look_at_code(self, source: ReplayWriter) -> None:
        """Whether a step is one of this optimizer, by the same code, without hooks."""
        hooks = ["PRE_HOOKS", "POST_HOOKS", "optimizer._optimizer_step_pre_hooks", "optimizer._optimizer_step_post_hooks"]
        tests = [f"{source.constant(self.owner)}() is not optimizer", "s.autocast is not None", *hooks]
        tests += [f"not {source.constant(self.same_code)}()", "'update' in optimizer.__dict__"]
        source.add("s = f.state", f"if {' or '.join(tests)}: return False")

    def look_at_settings(self, source: ReplayWriter) -> None:
        """Settings, and the parameters that have a state: all that is compared at once. What cannot be compared so, as tensors
        or objects of the user's whose comparison fails, is looked at one by one (`changed`)."""
        source.add("groups, numbers = R.now")
        if self.stateful:
            source.space["KEYS"] = self.keys
            source.add("states = optimizer.state; kept = False")
        source.add("s.handler = refuse", "try:")
        source.add(*["    kept = [*states] == KEYS"] * self.stateful, "    same = optimizer.param_groups == groups")
        source.add("except Exception: same = False", "finally: s.handler = f")
        source.add("if not same:", "    numbers = R.changed(optimizer)", "    if numbers is None: return False")
        if self.stateful:
            source.add("if not kept: return False", "".join(f"s{i}, " for i in range(len(self.keys))) + "= states.values()")

    def look_at_parameters(self, source: ReplayWriter, targets: dict[int, str]) -> None:
        """Parameters and their gradients. Those that the pass before has seen and given a gradient are what they were, unless
        a tensor was changed since."""
        updates = self.updates()
        told = {} if self.passed is None else {leaf: value.index for leaf, value in self.passed.plain}
        source.add("T = f.tensors")
        if all(told.get(u.tensors[0][1]) == u.tensors[1][1] for u in updates):
            tests = [f"T[{u.tensors[0][1]}] is not {source.constant(u.parameter)}" for u in updates]
            source.add(f"if {' or '.join(['CHANGES[0] is not f.mark', *tests])}:")
            begin = len(source.lines)
            self.look_at_each(source)
            source.lines[begin:] = ["    " + line for line in source.lines[begin:]]
        else:
            self.look_at_each(source)
        without = [u.parameter for g in self.groups for u in g.updates if not u.tensors]
        if without:
            source.add(f"if {' or '.join(f'{source.constant(p)}.tj_grad is not None' for p in without)}: {ON_MISS}")
        targets.update({u.tensors[0][1]: source.constant(u.parameter) for u in updates})

    def look_at_each(self, source: ReplayWriter) -> None:
        for update in self.updates():
            x = source.constant(update.parameter)
            self.look_at_tensor(source, x, update.tensors[0])
            source.add(f"g = {x}.tj_grad")
            self.look_at_tensor(source, "g", update.tensors[1])

    def look_at_tensor(self, source: ReplayWriter, x: str, tensor: Any) -> None:
        place, n, flag, fresh = tensor
        if fresh is not None:
            source.bind(x, n, flag, fresh, n in self.mutated, ON_MISS)
        else:  # without gradients, flags of gradients say nothing
            source.known(x, n, None if place == "tj_grad" else flag, ON_MISS)

    def look_at_states(self, source: ReplayWriter, targets: dict[int, str]) -> None:
        """The counters and tensors that are kept for each parameter."""
        updates = self.updates()
        if self.counter is not None:
            counters = [f"s{u.place}.get({self.counter!r})" for u in updates]
            source.add(f"n = {counters[0]}; counts = None")
            source.add(f"if {' or '.join(['n.__class__ is not int', *[f'{c} is not n' for c in counters[1:]]])}:")
            source.add("    counts = R.counts([*states.values()])", f"    if counts is None: {ON_MISS}")
        for i, update in enumerate(updates):
            for k, tensor in enumerate(update.tensors[2:]):
                x = f"x{i}_{k}"
                source.add(f"{x} = s{update.place}.get({tensor[0]!r})")
                self.look_at_tensor(source, x, tensor)
                targets[tensor[1]] = x

    def go_on_counting(self, source: ReplayWriter) -> None:
        """All has matched: counters go on, in the state and among the numbers."""
        updates = self.updates()
        states = " = ".join(f"s{u.place}[{self.counter!r}]" for u in updates)
        source.add("if counts is not None: R.count(Z, [*states.values()], counts)", "else:", f"    {states} = n = n + 1")
        places = [u.counter for u in updates if u.counter is not None]
        if places:
            source.add("    " + "; ".join(f"Z[{place}] = n" for place in places))
