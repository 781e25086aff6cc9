"""Programs: a run of recorded ops as one Python function over arrays, the plain way to execute a segment.

The ops run in their order, on the memory they ran on: views are views and writes are writes, so nothing has to be proven about
aliases. Arrays are let go after their last use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...eager.core.op import NO_ATTRS, STORE, Op, execute
from ...eager.ops.shape.views import CLONE
from ...eager.core.tape.node import State, local
from ...eager.core.tensor import Tensor, wrap
from ..trace.tape_plan import Later, Snapshot, can_wait, in_order
from ..tools.explain.explain import logged
from ..trace.trace import Backward, Call, Number, Trace

Program = Callable[[list[Any], list[Any]], None]


def calls(trace: Trace, start: int, stop: int) -> list[Call]:
    """The ops of some entries, those inside backward passes among them."""
    found: list[Call] = []
    for entry in trace.entries[start:stop]:
        if isinstance(entry, Call):
            found.append(entry)
        elif isinstance(entry, Backward):
            found.extend(entry.calls)
    return found


def used_slots(trace: Trace, start: int) -> set[int]:
    """The slots that entries from `start` on read or write."""
    return {trace.values[n].slot for call in calls(trace, start, len(trace.entries)) for n in values_of(call)}


def values_of(call: Call) -> list[int]:
    return [n for n in (*call.inputs, call.out) if isinstance(n, int)]


def targets(trace: Trace, start: int, stop: int) -> list[int]:
    """The values that ops write into, once for each op."""
    found: list[int] = []
    for call in calls(trace, start, stop):
        inputs = [call.inputs[i] for i in call.op.mutates if isinstance(call.inputs[i], int)] if call.op.mutates else []
        found += inputs if call.out is None else [call.out]
    return found


def writes(trace: Trace, start: int, stop: int) -> set[int]:
    """The roots of the memory that is written."""
    return {trace.roots[trace.values[n].slot] for n in targets(trace, start, stop)}


def version_counts(trace: Trace, start: int, stop: int) -> list[tuple[int, int, int | None]]:
    """How far version counters go on: the root of the memory, by how much, and the value whose counter it is, if it is one from
    outside. What `x.data` is used to write has another counter than x."""
    counts: dict[tuple[int, int | None], int] = {}
    for n in targets(trace, start, stop):
        root = trace.roots[trace.values[n].slot]
        key = root, n if trace.values[n].apart else trace.owners.get(root)
        counts[key] = counts.get(key, 0) + 1
    return [(root, count, owner) for (root, owner), count in counts.items()]


class Segment:
    """The program of a run of entries, for the values that outlive it."""

    def __init__(
        self, trace: Trace, start: int, stop: int, keep: frozenset[int], alive: list[int], nodes: list[int], snapshot: Snapshot
    ) -> None:
        tops = [snapshot.nodes[n] for n in nodes]
        self.alive = alive  # values that get their arrays
        self.nodes = nodes  # values that get a place on the tape
        self.tops = tops  # the plans of their nodes
        self.order = in_order(tops)
        self.run = make_program(trace, start, stop, keep)
        self.slots: int | None = None  # of a program that was made before the trace was complete: how many there were
        self.native: Any = None  # the generated program, if there is one
        self.told = ""  # how it runs, in words
        self.writes = version_counts(trace, start, stop)
        self.writes_inside = any(owner is None for _, _, owner in self.writes)
        self.closing: Any = None  # of the last one of a call: see closing.py
        self.closings = 0
        self.joint: Any = None  # the compiled backward pass of what outlives it, if there is one
        self.late = Later(self.order, tops[0], snapshot) if len(tops) == 1 and can_wait(self.order, snapshot) else None


class Plain:
    """Some entries as a function of arrays by slot and numbers by place. It is written when it is first wanted: where there is
    native code, that is late."""

    def __init__(self, trace: Trace, start: int, stop: int, keep: frozenset[int]) -> None:
        self.given = (trace, start, stop, keep)
        self.program: Program | None = None

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> None:
        (self.program or self.write())(arrays, scalars)

    def write(self) -> Program:
        self.program = self.program or written(*self.given)
        return self.program


def make_program(trace: Trace, start: int, stop: int, keep: frozenset[int]) -> Program:
    """The plain program of some entries; the slots in `keep` are handed back."""
    return Plain(trace, start, stop, keep)


def written(trace: Trace, start: int, stop: int, keep: frozenset[int], stepwise: bool = False) -> Program:
    """Some entries as Python. `stepwise` makes it a generator that shows after each op what the op has made or written."""
    ops = calls(trace, start, stop)
    last: dict[int, int] = {}
    made: set[int] = set()
    needed: dict[int, None] = {}
    for i, call in enumerate(ops):
        for n in values_of(call):
            slot = trace.values[n].slot
            last[slot] = i
            if slot not in made:
                needed[slot] = None
        for value in call.results:
            made.add(value.slot)
            last[value.slot] = i
    space: dict[str, Any] = {"__name__": __name__}  # whose warnings are hushed
    lines = [f"    v{slot} = a[{slot}]" for slot in needed]
    remarks: dict[int, str] = {}
    ends: dict[int, list[int]] = {}
    for slot, at in last.items():
        if slot not in keep:
            ends.setdefault(at, []).append(slot)
    for i, call in enumerate(ops):
        if call.op is CLONE and needless(trace, call, i, last, made, keep):
            lines.append(f"    v{call.results[0].slot} = v{trace.values[call.inputs[0]].slot}")
        else:
            lines.append("    " + statement(trace, call, i, space))
        remarks[len(lines) - 1] = f"  # {call.op.name}, {call.line}"
        if stepwise:
            lines.append(f"    yield [{', '.join(f'v{s}' for s in outcome(trace, call))}]")
        if i in ends:
            lines.append("    " + " = ".join(f"v{s}" for s in sorted(ends[i])) + " = None")
    lines += [f"    a[{slot}] = v{slot}" for slot in sorted(keep & made)]
    source = "def program(a, s):\n" + "\n".join(lines or ["    pass"]) + "\n"
    if not stepwise:
        logged("code", f"a program of {len(ops)} ops", lambda: "\n".join(l + remarks.get(i, "") for i, l in enumerate(lines)))
    exec(compile(source, f"<tapejit program of {len(ops)} ops>", "exec"), space)
    return space["program"]  # type: ignore[no-any-return]


def outcome(trace: Trace, call: Call) -> list[int]:
    """The slots that an op makes or writes."""
    if call.out is not None:
        return [trace.values[call.out].slot]
    if call.op.mutates:
        return [trace.values[n].slot for n in (call.inputs[i] for i in call.op.mutates) if isinstance(n, int)]
    return [v.slot for v in call.results]


def needless(trace: Trace, call: Call, i: int, last: dict[int, int], made: set[int], keep: frozenset[int]) -> bool:
    """Whether a copy can take over the memory of what it is a copy of, as nothing else will show that any more."""
    source = trace.values[call.inputs[0]]
    if (
        trace.roots[source.slot] != source.slot
        or source.slot not in made
        or source.form.strides != call.results[0].form.strides
    ):
        return False
    sharing = [s for s, root in enumerate(trace.roots) if root == source.slot]
    return all(s not in keep and last.get(s, -1) <= i for s in sharing)


def statement(trace: Trace, call: Call, i: int, space: dict[str, Any]) -> str:
    given = []
    for k, x in enumerate(call.inputs):
        if isinstance(x, int):
            given.append(f"v{trace.values[x].slot}")
        elif isinstance(x, Number):
            given.append(f"s[{x.place}]")
        else:
            space[f"c{i}_{k}"] = x.value
            given.append(f"c{i}_{k}")
    space[f"f{i}"] = kernel(trace, call)
    target = None if call.out is None else f"v{trace.values[call.out].slot}"
    if target is not None:
        return f"f{i}({', '.join((target, *given))})"
    made = ", ".join(f"v{v.slot}" for v in call.results)
    if call.several and made:
        made += ","
    return f"{made} = f{i}({', '.join(given)})" if made else f"f{i}({', '.join(given)})"


def kernel(trace: Trace, call: Call) -> Callable[..., Any]:
    """What to call with the arrays of an op's inputs; its first argument is the target of an in-place op."""
    op, attrs = call.op, call.attrs
    forms = [trace.values[n].form for n in values_of(call)] + [v.form for v in call.results]
    if any(f.itemsize == 2 or f.where.type != "cpu" for f in forms):
        return _by_tensors(op, attrs, call.out is not None)
    run = op.numpy_function if op.ufunc is not None else _with_attrs(op, attrs)
    if call.out is not None:
        return _into(op, run, trace.values[call.out].form.dtype)
    if op.mutates:
        return run  # type: ignore[no-any-return]
    if call.several or (op.ordered and any(not _in_order_for_sure(op, v.form) for v in call.results)):
        return _as_arrays(run, op.ordered and not op.view, call.several)
    return _as_array(run) if call.results[0].form.ndim == 0 else run  # type: ignore[no-any-return]


def _in_order_for_sure(op: Op, form: Any) -> bool:
    return form.ndim == 0


def _with_attrs(op: Op, attrs: dict[str, Any]) -> Callable[..., Any]:
    run = op.run
    assert run is not None
    if not attrs:
        return lambda *arrays: run(np, *arrays)
    return lambda *arrays: run(np, *arrays, **attrs)


def _as_array(run: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy returns numbers in the place of arrays without dims."""
    return lambda *arrays: np.asarray(run(*arrays))


def _as_arrays(run: Callable[..., Any], ordered: bool, several: bool) -> Callable[..., Any]:
    """Results that are contiguous, as eager execution makes them."""

    def fixed(r: Any) -> Any:
        r = r if type(r) is np.ndarray else np.asarray(r)
        return r.copy() if ordered and not r.flags.c_contiguous else r

    if several:
        return lambda *arrays: [fixed(r) for r in run(*arrays)]
    return lambda *arrays: fixed(run(*arrays))


def _into(op: Op, run: Callable[..., Any], dtype: np.dtype[Any]) -> Callable[..., Any]:
    """An op that writes into its first argument."""
    if op is STORE:

        def store(target: Any, x: Any) -> None:
            target[...] = x

        return store

    def write(target: Any, *arrays: Any) -> None:
        value = run(*arrays)
        target[...] = value

    return write


_plain = State()
_plain.grad = False


def _by_tensors(op: Op, attrs: dict[str, Any], into: bool) -> Callable[..., Any]:
    """Half precision and other devices: eager execution knows how.

    That may take ops of its own (a cast to the dtype of what is written into), which are not the traced function's."""

    def call(*arrays: Any) -> Any:
        tensors = [wrap(a) if hasattr(a, "dtype") and hasattr(a, "shape") else a for a in arrays]
        before, local.state = local.state, _plain
        try:
            if into:
                execute(op, tuple(tensors[1:]), attrs or NO_ATTRS, tensors[0], _plain)
                return None
            result = execute(op, tuple(tensors), attrs or NO_ATTRS, None, _plain)
        finally:
            local.state = before
        if isinstance(result, Tensor):
            return result._array
        return None if result is None else [t._array for t in result]

    return call
