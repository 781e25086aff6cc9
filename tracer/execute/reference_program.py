"""Reference programs: a range of recorded ops as one Python function over arrays, which calls eager kernels.

Ops run in recorded order, on the memory they ran on: views stay views and writes stay writes, so no aliasing has to be
analysed. Arrays are dropped after their last use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...eager.core.dispatch import STORE, execute
from ...eager.core.op import NO_ATTRS, Op
from ...eager.core.tape.node import State, local
from ...eager.core.tensor import Tensor, wrap
from ...eager.ops.shape.views import CLONE
from ..trace.generated_python import compile_function
from ..trace.logging import log_event
from ..trace.queries import calls_between, values_used
from ..trace.trace import Call, Number, Trace

Program = Callable[[list[Any], list[Any]], None]


class ReferenceProgram:
    """Some entries as a function of arrays by slot and runtime scalars by position. Its source is generated on first use, which
    is late where there is native code."""

    def __init__(self, trace: Trace, start: int, stop: int, keep: frozenset[int]) -> None:
        self.given = (trace, start, stop, keep)
        self.program: Program | None = None

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> None:
        (self.program or self.write())(arrays, scalars)

    def write(self) -> Program:
        self.program = self.program or write_program(*self.given)
        return self.program


def make_program(trace: Trace, start: int, stop: int, keep: frozenset[int]) -> Program:
    """Create the reference program of some entries; the slots in `keep` are outputs."""
    return ReferenceProgram(trace, start, stop, keep)


def write_program(trace: Trace, start: int, stop: int, keep: frozenset[int], stepwise: bool = False) -> Program:
    """Generate Python for some entries. With `stepwise` it is a generator that yields, after each op, what the op produced or
    wrote."""
    ops = calls_between(trace, start, stop)
    last: dict[int, int] = {}
    made: set[int] = set()
    needed: dict[int, None] = {}
    for i, call in enumerate(ops):
        for n in values_used(call):
            slot = trace.values[n].slot
            last[slot] = i
            if slot not in made:
                needed[slot] = None
        for value in call.results:
            made.add(value.slot)
            last[value.slot] = i
    space: dict[str, Any] = {"__name__": __name__}  # the module whose warnings are suppressed
    lines = [f"    v{slot} = a[{slot}]" for slot in needed]
    remarks: dict[int, str] = {}
    ends: dict[int, list[int]] = {}
    for slot, at in last.items():
        if slot not in keep:
            ends.setdefault(at, []).append(slot)
    for i, call in enumerate(ops):
        if call.op is CLONE and can_reuse_memory(trace, call, i, last, made, keep):
            lines.append(f"    v{call.results[0].slot} = v{trace.values[call.inputs[0]].slot}")
        else:
            lines.append("    " + call_statement(trace, call, i, space))
        remarks[len(lines) - 1] = f"  # {call.op.name}, {call.line}"
        if stepwise:
            lines.append(f"    yield [{', '.join(f'v{s}' for s in written_slots(trace, call))}]")
        if i in ends:
            lines.append("    " + " = ".join(f"v{s}" for s in sorted(ends[i])) + " = None")
    lines += [f"    a[{slot}] = v{slot}" for slot in sorted(keep & made)]
    if not stepwise:
        log_event(
            "code", f"a program of {len(ops)} ops", lambda: "\n".join(l + remarks.get(i, "") for i, l in enumerate(lines))
        )
    return compile_function("program", ["def program(a, s):", *(lines or ["    pass"])], f"program of {len(ops)} ops", space)


def written_slots(trace: Trace, call: Call) -> list[int]:
    """Return the slots that an op produces or writes."""
    if call.out is not None:
        return [trace.values[call.out].slot]
    if call.op.mutates:
        return [trace.values[n].slot for n in (call.inputs[i] for i in call.op.mutates) if isinstance(n, int)]
    return [v.slot for v in call.results]


def can_reuse_memory(trace: Trace, call: Call, i: int, last: dict[int, int], made: set[int], keep: frozenset[int]) -> bool:
    """True if a copy can take over the memory of its source, because nothing else will show that memory again."""
    source = trace.values[call.inputs[0]]
    if (
        trace.roots[source.slot] != source.slot
        or source.slot not in made
        or source.form.strides != call.results[0].form.strides
    ):
        return False
    sharing = [s for s, root in enumerate(trace.roots) if root == source.slot]
    return all(s not in keep and last.get(s, -1) <= i for s in sharing)


def call_statement(trace: Trace, call: Call, i: int, space: dict[str, Any]) -> str:
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
    """Return the function to call with the arrays of an op's inputs; its first argument is the target of an in-place op."""
    op, attrs = call.op, call.attrs
    forms = [trace.values[n].form for n in values_used(call)] + [v.form for v in call.results]
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
    """Wrap a kernel so that results without dims are arrays: NumPy returns scalars in their place."""
    return lambda *arrays: np.asarray(run(*arrays))


def _as_arrays(run: Callable[..., Any], ordered: bool, several: bool) -> Callable[..., Any]:
    """Wrap a kernel so that results are contiguous, as in eager execution."""

    def fixed(r: Any) -> Any:
        r = r if type(r) is np.ndarray else np.asarray(r)
        return r.copy() if ordered and not r.flags.c_contiguous else r

    if several:
        return lambda *arrays: [fixed(r) for r in run(*arrays)]
    return lambda *arrays: fixed(run(*arrays))


def _into(op: Op, run: Callable[..., Any], dtype: np.dtype[Any]) -> Callable[..., Any]:
    """Wrap a kernel so that it writes into its first argument."""
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
    """Run an op through eager execution: for half precision and other devices.

    This may take additional ops (a cast to the dtype of the target), which do not belong to the traced function.
    """

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
            return result.tj_array
        return None if result is None else [t.tj_array for t in result]

    return call
