"""`diff` for generated code: checks a segment's native program, and finds the first wrong op.

Three programs are compared. The *real* one is what a replay runs; only its outcomes can be seen. The *open* one is built from
the same graph with every value as an output: each op's result is compared with eager execution on the very
operands that native code had, so errors do not accumulate, and the first op that is off is the one to blame. If all are
right, the open program's outcomes, and those of eager execution with each input moved by one unit in the last place, tell how
much of a difference in the real program's outcomes is rounding. If the difference is larger, only the fused program is wrong:
then values are added to the real program's outputs, one at a time, to find the first that is wrong there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....eager.arrays import devices
from ....eager.arrays.deferred import form_of
from ....eager.core.op import Op
from ....eager.ops.create import EMPTY
from ....eager.ops.shape.views import CLONE
from ...graph.functionalize import GraphBuilder, contiguous, overlaps
from ...graph.interpreter import copied, evaluate_node, has_aliased_inputs, run_op
from ...graph.ir import Chain, Form, Graph, Node, Operand, Output, verified
from ...graph.simplify import remove_dead_code
from ...trace.queries import calls_between
from ...trace.trace import Call, Trace
from .ulps import beyond, can_move, errors, gap, moved, noise_of, on_cpu

EXACT = {"pointwise", "create", "movement"}  # kinds of ops that round each element once
ADDING = {"unwindows", "as_strided_sum"}  # exceptions
OUTCOMES = 16  # tolerance for outcomes, as a multiple of the difference between other correct programs

Generate = Callable[[Graph, int, Any], Any]


class NoProgramError(Exception):
    """Raised if a graph has no native program."""


class NativeFailureError(Exception):
    """Raised if a native program fails where eager execution did not."""


@dataclass
class Fault:
    """The first wrong op, and the index of its largest error."""

    call: Call
    eager: Any
    compiled: Any
    index: tuple[int, ...] | None
    ulps: float
    note: str = ""


class OriginTrackingBuilder(GraphBuilder):
    """Builds a graph, and keeps the entry that each value comes from."""

    def __init__(self, trace: Trace, start: int, stop: int) -> None:
        super().__init__(trace, start, stop)
        self.origin: dict[str, Call] = {}

    def node(
        self, op: Op, operands: tuple[Operand, ...], attrs: dict[str, Any], forms: list[Form], call: Call, several: bool = False
    ) -> list[str]:
        names = super().node(op, operands, attrs, forms, call, several)
        self.origin.update(dict.fromkeys(names, call))
        return names


class Inspection:
    """One segment: its graph, its inputs, and its eager results."""

    def __init__(
        self, trace: Trace, bounds: tuple[int, int], keep: Iterable[int], inputs: dict[int, Any], scalars: list[Any],
        generate: Generate, ulps: float, rtol: float,
    ) -> None:  # fmt: skip
        builder = OriginTrackingBuilder(trace, *bounds)
        for call in calls_between(trace, *bounds):
            builder.add(call)
        self.graph = remove_dead_code(verified(builder.finished(keep)))
        self.origin = builder.origin
        self.slots = len(trace.roots)
        self.inputs = inputs
        self.scalars = scalars
        self.generate = generate
        self.ulps, self.rtol = ulps, rtol
        self.largest = 0.0  # largest error within the tolerance
        self.maker = {name: node for node in self.graph.nodes for name in node.results}
        self.place = {name: i for i, name in enumerate(self.maker)}
        self.noise: dict[str, float] = {}  # error of each value that earlier rounding explains

    # ---- running

    def fresh(self, extra: int = 0) -> list[Any]:
        arrays: list[Any] = [None] * (self.slots + extra)
        for x in self.graph.inputs:
            arrays[x.slot] = copied(self.inputs[x.slot], self.graph.forms[x.name])
        return arrays

    def shares_memory(self) -> bool:
        return has_aliased_inputs(self.graph, self.inputs)

    def run(self, names: list[str], alone: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """Run the native program with these values as extra outputs, or as its only ones. Returns all arrays and the values."""
        graph = watched(replace(self.graph, outputs=(), write_backs=()) if alone else self.graph, names, self.slots)
        arrays = self.fresh(len(names))
        try:
            program = self.generate(graph, len(arrays), refuse)
        except Exception as reason:  # a backend's limits must not fail the step
            raise NoProgramError(str(reason)) from reason
        program.run(arrays, self.scalars)
        return arrays, {name: on_cpu(arrays[self.slots + i]) for i, name in enumerate(names)}

    def eagerly(self, chance: np.random.Generator | None = None) -> dict[str, Any]:
        """Compute all values eagerly, from the inputs or from their floating-point neighbours."""
        arrays = self.fresh()
        known = {x.name: arrays[x.slot] for x in self.graph.inputs}
        if chance is not None:
            known = {name: moved(x, chance) if can_move(x) else x for name, x in known.items()}
        for node in self.graph.nodes:
            known.update(zip(node.results, evaluate_node(node, known, self.scalars, self.graph.forms), strict=True))
        return known

    # ---- what is wrong

    def fault(self) -> Fault | None:
        """Find the native program's first fault, None if it is right. Raises NoProgramError if there is no program."""
        names = [name for node in self.graph.nodes if node.op is not EMPTY for name in node.results]
        expected = self.eagerly()
        try:
            arrays, _ = self.run([])
            opened = self.opened(names)
        except NativeFailureError as reason:
            return self.refused(names, expected, reason)
        found = self.wrong_op(opened)
        if found is not None:
            return found
        self.measure(expected, opened)
        wrong = self.wrong_outcomes(expected, arrays)
        return None if not wrong else self.first_in_real(wrong, expected)

    def opened(self, names: list[str]) -> dict[str, Any]:
        try:
            return self.run(names)[1]
        except NoProgramError:  # some value cannot be an output, which is no fault
            return {}

    def refused(self, names: list[str], expected: dict[str, Any], reason: NativeFailureError) -> Fault:
        """Bisect for the first op that native code fails in."""
        low, high = 0, len(names)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self.run(names[:middle], alone=True)
                low = middle
            except NativeFailureError:
                high = middle
        name = names[high - 1]
        return Fault(self.origin[name], on_cpu(expected[name]), reason, None, np.inf)

    def wrong_op(self, opened: dict[str, Any]) -> Fault | None:
        """Find the first op whose result differs from eager execution on the same operands."""
        graph, scalars = self.graph, self.scalars
        arrays = self.fresh()
        known: dict[str, Any] = {x.name: arrays[x.slot] for x in graph.inputs}
        for node in graph.nodes:
            made = evaluate_node(node, known, scalars, graph.forms)
            values = list(node.values())
            noise = [0.0] * len(made)
            if not exact(node):

                def again(operands: list[Any], node: Node = node, values: list[str] = values) -> list[Any]:
                    return evaluate_node(node, {**known, **dict(zip(values, operands, strict=True))}, scalars, graph.forms)

                noise = noise_of(again, [known[v] for v in values], made)
            for name, eager, unit in zip(node.results, made, noise, strict=True):
                known[name] = eager
                if name not in opened:
                    continue
                known[name] = laid_out_as(opened[name], eager)
                found = self.judged(name, on_cpu(eager), opened[name], unit, self.allowed(node))
                if found is not None:
                    return found
        return None

    def allowed(self, node: Node) -> float:
        """Tolerance of an op in ulps: math functions have two implementations, and each level of a sum may round."""
        if exact(node):
            return 2 * self.ulps
        most = max([self.graph.forms[x].size for x in (*node.values(), *node.results)], default=1)
        return self.ulps * (1 + math.log2(max(most, 1)))

    def judged(self, name: str, eager: Any, compiled: Any, noise: float, allowed: float) -> Fault | None:
        call = self.origin[name]
        if eager.shape != compiled.shape or eager.dtype != compiled.dtype:
            return Fault(call, eager, compiled, None, np.inf)
        off = errors(eager, compiled, noise)
        worse = beyond(eager, compiled, off, allowed, self.rtol)
        if not worse.any():
            self.largest = max(self.largest, float(off.max(initial=0)))
            return None
        index = np.unravel_index(int(worse.argmax()), worse.shape)
        return Fault(call, eager, compiled.copy(), tuple(int(i) for i in index), float(worse[index]))

    # ---- errors of the fused program only

    def measure(self, expected: dict[str, Any], opened: dict[str, Any]) -> None:
        """Measure the rounding noise of each value: how far other correct programs differ."""
        samples = [opened]
        with contextlib.suppress(Exception):  # an op may refuse the neighbours
            samples.append(self.eagerly(np.random.default_rng(0)))
        for name in self.maker:
            eager = on_cpu(expected[name])
            found = max([gap(eager, on_cpu(s[name])) for s in samples if name in s], default=0.0)
            self.noise[name] = np.inf if found and eager.dtype.kind in "biu" else found

    def is_wrong(self, name: str, eager: Any, compiled: Any) -> bool:
        """True if a value of the real program differs from eager's by more than rounding."""
        allowed = self.ulps * (1 + math.log2(max(eager.size, 1)))
        off = errors(eager, compiled, OUTCOMES * self.noise[name] / allowed if allowed else 0.0)
        return bool(beyond(eager, compiled, off, allowed, self.rtol).any())

    def wrong_outcomes(self, expected: dict[str, Any], arrays: list[Any]) -> list[tuple[str, Any, Any]]:
        """List wrong outputs and memory after a run: the value's name, eager's array, the program's array."""
        backs = {w.input.name: w.value for w in self.graph.write_backs}
        seen: list[tuple[str, Any, Any]] = [(w.value, expected[w.value], arrays[w.input.slot]) for w in self.graph.write_backs]
        for o in self.graph.outputs:
            name = backs.get(o.value, o.value)
            seen.append((name, shown(expected[name], o.chain), arrays[o.slot]))
        seen = [(name, on_cpu(eager), on_cpu(compiled)) for name, eager, compiled in seen]
        return [x for x in seen if x[0] in self.maker and self.is_wrong(*x)]

    def first_in_real(self, wrong: list[tuple[str, Any, Any]], expected: dict[str, Any]) -> Fault:
        """Bisect for the first value that is wrong as an extra output of the real program."""
        name, eager, compiled = min(wrong, key=lambda x: self.place[x[0]])
        while True:
            trail = self.trail(name)
            low, high = -1, len(trail) - 1  # `low` is right, or before the first; `high` is wrong
            while high - low > 1:
                middle = (low + high) // 2
                found = self.seen_wrong([trail[middle]], expected)
                if found:
                    high, (name, eager, compiled) = middle, found[0]
                else:
                    low = middle
            others = [x for x in self.maker[name].values() if x in self.maker and x not in trail]
            above = self.seen_wrong(list(dict.fromkeys(others)), expected)
            if not above:
                break
            name, eager, compiled = above[0]
        off = errors(eager, compiled)
        index = np.unravel_index(int(off.argmax()), off.shape) if off.size else ()
        note = "each op is right on its own: the error appears only where ops are fused"
        return Fault(self.origin[name], eager, compiled.copy(), tuple(int(i) for i in index), float(off.max(initial=0)), note)

    def trail(self, name: str) -> list[str]:
        """Follow the latest-made operand back from a value to an input; returns the path, the value last."""
        found = [name]
        while above := [x for x in self.maker[found[-1]].values() if x in self.maker]:
            found.append(max(above, key=lambda x: self.place[x]))
        return found[::-1]

    def seen_wrong(self, names: list[str], expected: dict[str, Any]) -> list[tuple[str, Any, Any]]:
        """Filter values that are wrong as extra outputs of the real program."""
        if not names:
            return []
        _, found = self.run(names)
        seen = [(name, on_cpu(expected[name]), found[name]) for name in sorted(names, key=lambda x: self.place[x])]
        return [x for x in seen if self.maker[x[0]].op is not EMPTY and self.is_wrong(*x)]


def exact(node: Node) -> bool:
    return node.op.kind in EXACT and node.op.name not in ADDING


def refuse(arrays: list[Any], scalars: list[Any]) -> None:
    raise NativeFailureError("its native code refuses indices, or fails in an op, where eager execution does not")


def shown(array: Any, chain: Chain) -> Any:
    for op, attrs, index in chain:
        found = run_op(op, (array,), attrs)
        array = found if index is None else found[index]
    return array


def laid_out_as(array: Any, eager: Any) -> Any:
    """Convert a native result to eager's strides and device: an op's result layout may depend on its operand's."""
    where = devices.device_of(eager)
    found = copied(eager, form_of(eager, where))
    with devices.on(where):
        found[...] = devices.move(array, where)
    return found


def watched(graph: Graph, names: list[str], slots: int) -> Graph:
    """Add values to a graph as extra outputs, in slots after all others. Values without memory of their own, or in memory that
    is already in use, are copied."""
    taken = graph.owned() | {name for node in graph.nodes if node.op.view for name in node.results}
    forms = dict(graph.forms)
    nodes: list[Node] = []
    shown_as: dict[str, str] = {}
    wanted = set(names)
    for node in graph.nodes:
        nodes.append(node)
        for name in node.results:
            if name not in wanted:
                continue
            shown_as[name] = name
            if name in taken or overlaps(forms[name]):
                form = forms[name]
                shown_as[name] = f"{name}_seen"
                forms[shown_as[name]] = contiguous(form.shape, form.dtype, form.where)
                nodes.append(Node(CLONE, (name,), {}, (shown_as[name],), False, node.line))
    outputs = tuple(Output(slots + i, shown_as[name], ()) for i, name in enumerate(names))
    return verified(replace(graph, nodes=tuple(nodes), outputs=(*graph.outputs, *outputs), forms=forms))
