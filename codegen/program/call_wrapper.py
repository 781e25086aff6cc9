"""Call wrappers: generate the Python around a program, which allocates outputs, runs the kernels and returns views. The same
for all targets.

If something fails, overwritten inputs are restored and the reference program runs, which raises what eager execution raises.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any

import numpy as np

from ...tracer.graph.functionalize import overlaps
from ...tracer.graph.ir import Form, Graph, GraphError
from .compiled_python import exec_cached
from .executable import Executable

Program = Callable[[list[Any], list[Any]], None]


def make_call_wrapper(
    executable: Executable,
    graph: Graph,
    programs: list[Any],
    reference: Program,
    xp: Any,
    empties: Sequence[Any] | None = None,
    again: Sequence[int] = (),
    nontemporal: Sequence[int] = (),
    spare: Any = None,
) -> Program:
    """Generate the function that allocates outputs, runs the programs and returns views of the outputs.

    `empties` allocate, one for each new memory. Outputs in `again` may reuse the array that the list still holds of the run
    before, if nobody else refers to it: gradients that nobody has read then need no second allocation. For outputs in
    `nontemporal`, a flag tells the program whether that happened. `spare` runs in place of the only program when that one says
    that its arena is in use.
    """
    space: dict[str, Any] = {
        "zeros": xp.zeros,
        "reference": reference,
        "references": sys.getrefcount,
        "alone": unshared_refcount(),
    }
    space.update(spare=spare, done_before=ran_to_completion, flags=(np.zeros((), np.bool_), np.ones((), np.bool_)))
    space.update({f"empty{i}": xp.empty if empties is None else empties[i] for i in range(len(executable.memories))})
    lines = ["def run(a, s):"]
    lines += [f"    old{i} = a[{i}].copy(order='K')" for i in executable.danger]
    failed = [f"del a[{executable.slots}:]", *[f"a[{i}][...] = old{i}" for i in executable.danger], "return reference(a, s)"]
    for i, output in enumerate(executable.memories):
        form, slot = graph.forms[graph.outputs[output].value], graph.outputs[output].slot
        made = new_array_code(form, i, space)
        taken = i in again and not graph.outputs[output].chain and has_c_strides(form)
        if taken:
            space[f"last{i}"], space[f"again{i}"] = NO_ARRAY, output_reuser(i, space)
            lines.append(f"    x = a[{slot}]; r = references(x) == alone")
            made = f"x if r and last{i}() is x else {made} if x is None else again{i}(x, r)"
        lines.append(f"    a.append({made})")
        if i in nontemporal:
            lines.append(f"    flag{i} = flags[{'a[-1] is x' if taken else False}]")
    lines += ["    x = None"] if again else []
    if executable.checked:
        lines.append("    a.append(zeros((), '?'))")
    lines += [f"    a.append(flag{i})" for i in nontemporal]
    ends = output_lines(executable, graph, space, xp)
    flag = f"a[{executable.slots + len(executable.memories)}]"
    for i, program in enumerate(programs):
        space[f"p{i}"] = program
        if executable.steps[i] and len(programs) == 1 and isinstance(program, BuiltinFunctionType):
            lines += ["    try:", f"        done = p{i}(a, s)", "    except BaseException as error:"]
            lines.append("        if done_before(error)" + (f" and not {flag}:" if executable.checked else ":"))
            lines += [f"            {line}" for line in [*ends, "error.done = True"]]
            lines += ["        raise", "    if not " + ("(done or spare(a, s))" if spare is not None else "done")]
            lines[-1] += f" or {flag}:" if executable.checked else ":"
        elif executable.steps[i]:
            stopped = f" or {flag}" if executable.checked else ""
            ran = f"(p{i}(a, s) or spare(a, s))" if spare is not None else f"p{i}(a, s)"
            lines.append(f"    if not {ran}{stopped}:")
        else:  # what it raises, the reference program raises in the right place
            lines += ["    try:", f"        p{i}(a, s)", "    except Exception:"]
        lines += [f"        {line}" for line in failed]
    lines += [f"    {line}" for line in ends or ["pass"]]
    # wherever an interrupt comes, the list is left as it was given
    lines = [lines[0], "    try:", *[f"    {line}" for line in lines[1:]]]
    lines += ["    except BaseException:", f"        del a[{executable.slots}:]", "        raise"]
    exec_cached("\n".join(lines), "native program", space)
    space["run"].whole = len(programs) == 1  # one call, which Ctrl-C cannot cut in two
    return space["run"] if len(programs) == 1 else exclusive(space["run"], reference)


def output_lines(executable: Executable, graph: Graph, space: dict[str, Any], xp: Any) -> list[str]:
    """Python lines that put outputs into their slots after a run."""
    lines = []
    for k, (o, slot) in enumerate(zip(graph.outputs, executable.shown, strict=True)):
        view = f"a[{slot}]"
        for j, (op, attrs, index) in enumerate(o.chain):
            space[f"v{k}_{j}"] = view_function(op, attrs, xp)
            view = f"v{k}_{j}({view})" + ("" if index is None else f"[{index}]")
        lines.append(f"a[{o.slot}] = {view}")
    if executable.memories or executable.checked:
        lines.append(f"del a[{executable.slots}:]")
    return lines


def ran_to_completion(error: BaseException) -> bool:
    """True if an error comes from a signal handler that Python ran after the native call: then the program is done. An error of
    the program itself has no frame below the caller's, and is no interrupt."""
    trace = error.__traceback__
    return not isinstance(error, Exception) or (trace is not None and trace.tb_next is not None)


NO_ARRAY: Callable[[], Any] = lambda: None


def output_reuser(i: int, space: dict[str, Any]) -> Callable[[Any, bool], Any]:
    """A function that gives the memory of an output when the list holds an array that was not reused last time: that array, if
    nobody else refers to it and its form is right, else a new one. The next run recognises it without comparing forms."""

    def again(x: Any, is_alone: bool) -> Any:
        shape, dtype = space[f"shape{i}"], space[f"dtype{i}"]
        if is_alone and x.shape == shape and x.dtype == dtype and x.base is None and has_c_strides(x):
            space[f"last{i}"] = weakref.ref(x)
            return x
        return space[f"empty{i}"](shape, dtype)

    return again


def unshared_refcount() -> int:
    """The reference count that Python reports for an object that only a list and a name refer to."""
    a = [object()]
    x = a[0]
    return sys.getrefcount(x)


def exclusive(run: Program, reference: Program) -> Program:
    """Let one thread at a time run a program whose parts share an arena; others get the reference program."""
    lock = threading.Lock()

    def locked(arrays: list[Any], scalars: list[Any]) -> None:
        if not lock.acquire(blocking=False):
            reference(arrays, scalars)
            return
        try:
            run(arrays, scalars)
        finally:
            lock.release()

    return locked


def new_array_code(form: Form, i: int, space: dict[str, Any]) -> str:
    """Python that allocates an array of a form, also with the strides that its dims of size 1 have in eager execution."""
    space[f"shape{i}"], space[f"dtype{i}"] = form.shape, form.dtype
    if has_c_strides(form):
        return f"empty{i}(shape{i}, dtype{i})"
    order = sorted(range(form.ndim), key=lambda d: (-form.strides[d], -form.shape[d]))
    dense = tuple(form.shape[d] for d in order)
    back = tuple(order.index(d) for d in range(form.ndim))
    space[f"shape{i}"] = dense
    found = np.empty(dense, form.dtype).transpose(back).strides
    if any(n > 1 and s != t for n, s, t in zip(form.shape, found, form.strides, strict=True)) and form.size:
        raise GraphError(f"[compile] output {i} would have gaps in its memory; return a contiguous copy of it")
    return f"empty{i}(shape{i}, dtype{i}).transpose({back})"


def has_c_strides(form: Any) -> bool:
    """True if a form or an array has exactly the strides of a new array: `c_contiguous` says nothing of dims of size 1."""
    step = form.itemsize
    for n, stride in zip(reversed(form.shape), reversed(form.strides), strict=True):
        if stride != step and form.size:
            return False
        step *= n
    return True


def view_function(op: Any, attrs: dict[str, Any], xp: Any = np) -> Callable[[Any], Any]:
    run = op.run
    return lambda x: run(xp, x, **attrs)


def check_outputs(graph: Graph) -> None:
    """Raise GraphError for outputs whose elements overlap in memory."""
    for o in graph.outputs:
        if overlaps(graph.forms[o.value]):
            raise GraphError(f"[compile] elements of output {o.slot} share memory, as after expand(); return a copy of it")
