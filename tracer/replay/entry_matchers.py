"""Entry matchers: the comparison of an op with one entry of a trace, as a Python function specialised to the entry.

Matching is the overhead of a replay, so it is unrolled: each step knows its op, the values it expects, and the pending tensors
to create. A step that matches installs the next one as the thread's handler; all uncommon cases go to `Replayer.otherwise`. A
step may be called out of turn, because autocast saves and restores the handler it found, or after replay has ended, while the
rest of the call is recorded. It checks for this, and defers to the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from ...eager.core.op import NO_ATTRS
from ...eager.core.tape.node import PLACEHOLDER_NODE
from ...eager.core.tensor import Tensor
from ..trace.generated_python import compile_function
from ..trace.specialize import ReplayWriter, general
from ..trace.trace import Backward, Call, Constant, Number, Trace, same_setting

Step = Callable[..., Any]


def make_steps(trace: Trace) -> list[Step]:
    """Create a step for each entry."""
    steps: list[Step] = []
    for k, entry in enumerate(trace.entries):
        if isinstance(entry, Call) and entry.out is None and entry.check is None:
            steps.append(entry.step or _later(steps, k, entry))  # paths with a common prefix share entries
        else:
            if isinstance(entry, Backward) and entry.plain:
                entry.step = entry.step or _gradients_later(entry)
            steps.append(general)
    return steps


def _later(steps: list[Step], k: int, entry: Call) -> Step:
    """Create a step that is compiled on its first comparison: those inside regions are hardly ever compared."""

    def first(frame: Any, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any) -> Any:
        entry.step = steps[k] = entry.step or _compiled(k, entry)
        return entry.step(frame, op, inputs, attrs, out)

    return first


def _gradients_later(entry: Backward) -> Step:
    """Create such a step for a backward pass."""

    def first(frame: Any) -> Any:
        entry.step = _first_gradients(entry)
        return entry.step(frame)

    return first


def _first_gradients(entry: Backward) -> Step:
    """Generate a check that the leaves are the recorded ones, without gradients, hooks or history; it then gives them pending
    gradients."""
    source = ReplayWriter("first_gradients", "f")
    source.add(f"if not {source.constant(entry.same_code)}(): return False", "T = f.tensors; A = f.held")
    for i, (leaf, _) in enumerate(entry.plain):
        x = f"x{i}"
        source.add(f"{x} = T[{leaf}]")
        source.add(f"if {x}.tj_grad is not None or {x}.tj_node is not None or {x}.tj_requires_grad is not True: return False")
        source.add(f"if {x}.tj_array is not A[{leaf}] or {x}.tj_hooks or {x}.tj_accumulate_hooks: return False")
    for i, (_, value) in enumerate(entry.plain):
        source.promise(value)
        source.add(f"x{i}.tj_grad = t")
    source.add("return True")
    return source.function(f"pass: {len(entry.plain)} leaves")


def _same_attrs(attrs: dict[str, Any], space: dict[str, Any]) -> str:
    """Generate a fast comparison of settings that succeeds in most cases: identical objects, and equal tuples of ints."""
    tests = [f"len(attrs) == {len(attrs)}"]
    for i, (name, value) in enumerate(attrs.items()):
        space[f"S{i}"] = value
        ints = type(value) is tuple and all(type(v) is int for v in value)
        tests.append(f"(s := get({name!r})).__class__ is tuple and s == S{i}" if ints else f"get({name!r}) is S{i}")
    return f"((get := attrs.get) and {' and '.join(tests)})"


def _compiled(k: int, entry: Call) -> Step:
    space: dict[str, Any] = {
        "OP": entry.op, "ATTRS": entry.attrs, "Method": MethodType, "new": object.__new__, "Tensor": Tensor,
        "PLACEHOLDER_NODE": PLACEHOLDER_NODE, "same_setting": same_setting,
    }  # fmt: skip
    names = [f"x{i}" for i in range(len(entry.wants))]
    tests = [f"op is OP and f.cursor == {k}", f"state.grad is {entry.grad}"]
    tests.append(
        "attrs is ATTRS"
        if entry.attrs is NO_ATTRS
        else f"(attrs is ATTRS or {_same_attrs(entry.attrs, space)} or same_setting(attrs, ATTRS))"
    )
    tests.append(f"out is None and len(inputs) == {len(names)}")
    lines = [
        "def step(f, op, inputs, attrs, out):",
        "    state = f.state",
        f"    if {' and '.join(tests)}:",
    ]
    if names:
        lines.append(f"        {', '.join(names)}, = inputs")
    lines.append("        T, A = f.tensors, f.held")
    checks, numbers = [], []
    for i, (want, flag) in enumerate(zip(entry.wants, entry.flags, strict=True)):
        if isinstance(want, int):
            checks.append(f"x{i} is T[{want}] and x{i}.tj_array is A[{want}] and x{i}.tj_requires_grad is {flag}")
        elif isinstance(want, Number):
            space[f"K{i}"] = want.type
            checks.append(f"x{i}.__class__ is K{i}")
            numbers.append(f"f.scalars[{want.place}] = x{i}")
        elif isinstance(want, Constant):
            space[f"C{i}"] = want
            checks.append(f"C{i}.is_(x{i})")
        else:
            space[f"W{i}"] = want
            checks.append(f"f.bind(W{i}, x{i})")
    lines.append(f"        if {' and '.join(checks) or 'True'}:")
    body = [*numbers]
    for j, value in enumerate(entry.results):
        space[f"F{j}"] = value.form
        body += [
            f"t{j} = T[{value.index}] = new(Tensor)",
            f"t{j}.tj_array = p = A[{value.index}] = new(F{j})",
            "p.frame = f",
            f"p.slot = {value.slot}",
        ]
        if value.requires_grad:
            body += [f"t{j}.tj_requires_grad = True", f"t{j}.tj_node = PLACEHOLDER_NODE"]
        if value.inference:
            body.append(f"t{j}.tj_inference = True")
        if value.view is not None:
            space[f"V{j}"] = value
            body.append(f"f.link(t{j}, V{j})")
    body.append(f"f.cursor = {k + 1}")
    body.append(f"state.handler = Method(f.trace.steps[{k + 1}], f) if state.autocast is None else state.handler")
    if entry.mutated:
        space["ENTRY"] = entry
        body.append("f.write(ENTRY)")
    made = ", ".join(f"t{j}" for j in range(len(entry.results)))
    body.append(f"return ({made}{',' * bool(made)})" if entry.several else f"return {made or None}")
    lines += ["            " + line for line in body]
    lines.append(f"    return f.otherwise(op, inputs, attrs, out) if f.cursor == {k} else f(op, inputs, attrs, out)")
    return compile_function("step", lines, f"step {k}: {entry.op.name}", space)
