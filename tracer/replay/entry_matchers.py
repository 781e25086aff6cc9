"""The comparison of one op with one entry of a recording, as a Python function made for the entry.

A replay is judged by what it costs beside the program, so this is unrolled: each step knows its op, the values it expects, and
the tensors to promise. A step that matches makes the next one the thread's handler, and all that is not the plain case is left
to `Replayer.otherwise`. A step may be called when it is not its turn, as autocast keeps the handler that it has found and puts
it back, or when there are no turns any more, as the rest of the call is recorded. It looks, and leaves it to the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from ...eager.core.op import NO_ATTRS
from ...eager.core.tape.node import PENDING
from ...eager.core.tensor import Tensor
from ..trace.specialize import Source, general
from ..trace.trace import Backward, Call, Constant, Number, Trace, alike

Step = Callable[..., Any]


def make_steps(trace: Trace) -> list[Step]:
    """A step for each entry."""
    steps: list[Step] = []
    for k, entry in enumerate(trace.entries):
        if isinstance(entry, Call) and entry.out is None and entry.check is None:
            steps.append(entry.step or _later(steps, k, entry))  # paths that begin alike share entries
        else:
            if isinstance(entry, Backward) and entry.plain:
                entry.step = entry.step or _gradients_later(entry)
            steps.append(general)
    return steps


def _later(steps: list[Step], k: int, entry: Call) -> Step:
    """A step that is written when an op is first compared with its entry: those in regions hardly ever are."""

    def first(frame: Any, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any) -> Any:
        entry.step = steps[k] = entry.step or _compiled(k, entry)
        return entry.step(frame, op, inputs, attrs, out)

    return first


def _gradients_later(entry: Backward) -> Step:
    """The same for a backward pass."""

    def first(frame: Any) -> Any:
        entry.step = _first_gradients(entry)
        return entry.step(frame)

    return first


def _first_gradients(entry: Backward) -> Step:
    """Whether the leaves have neither gradients nor hooks nor a history, and are what they were; then they are promised
    gradients."""
    source = Source("first_gradients", "f")
    source.add(f"if not {source.constant(entry.same_code)}(): return False", "T = f.tensors; A = f.held")
    for i, (leaf, _) in enumerate(entry.plain):
        x = f"x{i}"
        source.add(f"{x} = T[{leaf}]")
        source.add(f"if {x}._grad is not None or {x}._node is not None or {x}._requires_grad is not True: return False")
        source.add(f"if {x}._array is not A[{leaf}] or {x}._hooks or {x}._after_accumulate: return False")
    for i, (_, value) in enumerate(entry.plain):
        source.promise(value)
        source.add(f"x{i}._grad = t")
    source.add("return True")
    return source.function(f"pass: {len(entry.plain)} leaves")


def _same_attrs(attrs: dict[str, Any], space: dict[str, Any]) -> str:
    """A quick look at settings that says yes in most cases: the same objects, and equal tuples of ints."""
    tests = [f"len(attrs) == {len(attrs)}"]
    for i, (name, value) in enumerate(attrs.items()):
        space[f"S{i}"] = value
        ints = type(value) is tuple and all(type(v) is int for v in value)
        tests.append(f"(s := get({name!r})).__class__ is tuple and s == S{i}" if ints else f"get({name!r}) is S{i}")
    return f"((get := attrs.get) and {' and '.join(tests)})"


def _compiled(k: int, entry: Call) -> Step:
    space: dict[str, Any] = {
        "OP": entry.op, "ATTRS": entry.attrs, "Method": MethodType, "new": object.__new__, "Tensor": Tensor,
        "PENDING": PENDING, "alike": alike,
    }  # fmt: skip
    names = [f"x{i}" for i in range(len(entry.wants))]
    tests = [f"op is OP and f.cursor == {k}", f"state.grad is {entry.grad}"]
    tests.append(
        "attrs is ATTRS"
        if entry.attrs is NO_ATTRS
        else f"(attrs is ATTRS or {_same_attrs(entry.attrs, space)} or alike(attrs, ATTRS))"
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
            checks.append(f"x{i} is T[{want}] and x{i}._array is A[{want}] and x{i}._requires_grad is {flag}")
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
            f"t{j}._array = p = A[{value.index}] = new(F{j})",
            "p.frame = f",
            f"p.slot = {value.slot}",
        ]
        if value.requires_grad:
            body += [f"t{j}._requires_grad = True", f"t{j}._node = PENDING"]
        if value.inference:
            body.append(f"t{j}._inference = True")
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
    exec(compile("\n".join(lines), f"<tapejit step {k}: {entry.op.name}>", "exec"), space)
    return space["step"]  # type: ignore[no-any-return]
