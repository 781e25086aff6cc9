"""The Python around a program: it makes room for outputs, runs the kernels, and hands out; the same for all targets.

Where something fails, what is in danger is put back, and the plain program runs, which raises what eager execution raises.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any, Protocol

import numpy as np

from ...tracer.graph.functionalize import overlaps
from ...tracer.graph.ir import Form, Graph, GraphError
from .compiled_python import written

Program = Callable[[list[Any], list[Any]], None]


class Runs(Protocol):
    """What recipes for all targets say."""

    slots: int
    memories: list[int]
    shown: list[int]
    danger: list[int]
    checked: bool

    @property
    def steps(self) -> Sequence[str]: ...


def runner(
    recipe: Runs,
    graph: Graph,
    programs: list[Any],
    plain: Program,
    xp: Any,
    empties: Sequence[Any] | None = None,
    again: Sequence[int] = (),
    past: Sequence[int] = (),
    spare: Any = None,
) -> Program:
    """The function that makes room for outputs, runs, and hands out, as straight Python, for arrays of a module. `empties` make
    new arrays, one for each new memory. Those `again` may be what the list still holds of the run before, if nobody else does:
    then gradients that nobody has looked at do not need room twice. Of those in `past` a flag tells the program whether they
    are. The `spare` is what runs instead of the one program if that says that its memory is in use."""
    space: dict[str, Any] = {"zeros": xp.zeros, "plain": plain, "references": sys.getrefcount, "alone": alone()}
    space.update(spare=spare, done_before=done_before, flags=(np.zeros((), np.bool_), np.ones((), np.bool_)))
    space.update({f"empty{i}": xp.empty if empties is None else empties[i] for i in range(len(recipe.memories))})
    lines = ["def run(a, s):"]
    lines += [f"    old{i} = a[{i}].copy(order='K')" for i in recipe.danger]
    failed = [f"del a[{recipe.slots}:]", *[f"a[{i}][...] = old{i}" for i in recipe.danger], "return plain(a, s)"]
    for i, output in enumerate(recipe.memories):
        form, slot = graph.forms[graph.outputs[output].value], graph.outputs[output].slot
        made = made_like(form, i, space)
        taken = i in again and not graph.outputs[output].chain and form.flags.c_contiguous
        if taken:
            space[f"last{i}"], space[f"again{i}"] = NOTHING, taken_again(i, space)
            lines.append(f"    x = a[{slot}]; r = references(x) == alone")
            made = f"x if r and last{i}() is x else {made} if x is None else again{i}(x, r)"
        lines.append(f"    a.append({made})")
        if i in past:
            lines.append(f"    flag{i} = flags[{'a[-1] is x' if taken else False}]")
    lines += ["    x = None"] if again else []
    if recipe.checked:
        lines.append("    a.append(zeros((), '?'))")
    lines += [f"    a.append(flag{i})" for i in past]
    ends = handing_out(recipe, graph, space, xp)
    flag = f"a[{recipe.slots + len(recipe.memories)}]"
    for i, program in enumerate(programs):
        space[f"p{i}"] = program
        if recipe.steps[i] and len(programs) == 1 and isinstance(program, BuiltinFunctionType):
            lines += ["    try:", f"        done = p{i}(a, s)", "    except BaseException as error:"]
            lines.append("        if done_before(error)" + (f" and not {flag}:" if recipe.checked else ":"))
            lines += [f"            {line}" for line in [*ends, "error.done = True"]]
            lines += ["        raise", "    if not " + ("(done or spare(a, s))" if spare is not None else "done")]
            lines[-1] += f" or {flag}:" if recipe.checked else ":"
        elif recipe.steps[i]:
            stopped = f" or {flag}" if recipe.checked else ""
            ran = f"(p{i}(a, s) or spare(a, s))" if spare is not None else f"p{i}(a, s)"
            lines.append(f"    if not {ran}{stopped}:")
        else:  # what it raises, the plain program raises in the right place
            lines += ["    try:", f"        p{i}(a, s)", "    except Exception:"]
        lines += [f"        {line}" for line in failed]
    lines += [f"    {line}" for line in ends or ["pass"]]
    # wherever an interrupt comes, the list is left as it was given
    lines = [lines[0], "    try:", *[f"    {line}" for line in lines[1:]]]
    lines += ["    except BaseException:", f"        del a[{recipe.slots}:]", "        raise"]
    written("\n".join(lines), "<tapejit native>", space)
    space["run"].whole = len(programs) == 1  # one call, which Ctrl-C cannot cut in two
    return space["run"] if len(programs) == 1 else one_at_a_time(space["run"], plain)


def handing_out(recipe: Runs, graph: Graph, space: dict[str, Any], xp: Any) -> list[str]:
    """Python that puts outputs where they belong, after a run."""
    lines = []
    for k, (o, slot) in enumerate(zip(graph.outputs, recipe.shown, strict=True)):
        view = f"a[{slot}]"
        for j, (op, attrs, index) in enumerate(o.chain):
            space[f"v{k}_{j}"] = shown(op, attrs, xp)
            view = f"v{k}_{j}({view})" + ("" if index is None else f"[{index}]")
        lines.append(f"a[{o.slot}] = {view}")
    if recipe.memories or recipe.checked:
        lines.append(f"del a[{recipe.slots}:]")
    return lines


def done_before(error: BaseException) -> bool:
    """Whether an error that a call of a native program raised comes from a signal's handler, which Python runs when the call
    is over: then the program is done. What the program itself raises has no frame below the caller's, and is no interrupt."""
    trace = error.__traceback__
    return not isinstance(error, Exception) or (trace is not None and trace.tb_next is not None)


NOTHING: Callable[[], Any] = lambda: None


def taken_again(i: int, space: dict[str, Any]) -> Callable[[Any, bool], Any]:
    """What to take for an output where the list holds an array that was not taken last time: that array, if nobody else has it
    and it is of the right form, or a new one. The next run knows it again, and need not ask for its form."""

    def again(x: Any, is_alone: bool) -> Any:
        shape, dtype = space[f"shape{i}"], space[f"dtype{i}"]
        if is_alone and x.shape == shape and x.dtype == dtype and x.base is None and x.flags.c_contiguous:
            space[f"last{i}"] = weakref.ref(x)
            return x
        return space[f"empty{i}"](shape, dtype)

    return again


def alone() -> int:
    """How many references to it Python tells of something that a list and a name have."""
    a = [object()]
    x = a[0]
    return sys.getrefcount(x)


def one_at_a_time(run: Program, plain: Program) -> Program:
    """Of a program in several parts, which share their memory."""
    lock = threading.Lock()

    def locked(arrays: list[Any], scalars: list[Any]) -> None:
        if not lock.acquire(blocking=False):
            plain(arrays, scalars)
            return
        try:
            run(arrays, scalars)
        finally:
            lock.release()

    return locked


def made_like(form: Form, i: int, space: dict[str, Any]) -> str:
    """Python for a new array of a form."""
    space[f"shape{i}"], space[f"dtype{i}"] = form.shape, form.dtype
    if form.flags.c_contiguous:
        return f"empty{i}(shape{i}, dtype{i})"
    order = sorted(range(form.ndim), key=lambda d: -form.strides[d])
    dense = tuple(form.shape[d] for d in order)
    back = tuple(order.index(d) for d in range(form.ndim))
    space[f"shape{i}"] = dense
    if np.empty(dense, form.dtype).transpose(back).strides != form.strides and form.size:
        raise GraphError(f"[compile] output {i} has gaps in its memory")
    return f"empty{i}(shape{i}, dtype{i}).transpose({back})"


def shown(op: Any, attrs: dict[str, Any], xp: Any = np) -> Callable[[Any], Any]:
    run = op.run
    return lambda x: run(xp, x, **attrs)


def check_outputs(graph: Graph) -> None:
    """Refuse a graph whose outputs no memory of their own could be."""
    for o in graph.outputs:
        if overlaps(graph.forms[o.value]):
            raise GraphError(f"[compile] output {o.slot} shares memory with itself")
