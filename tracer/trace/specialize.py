"""Python functions written for one place of a recording: what is known about it stands in them as constants, without loops.

A replay is judged by what it costs beside the program, and these are what it consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from types import MethodType
from typing import Any

import numpy as np

from ...eager.arrays.exported_memory import exposed
from ...eager.core.tape.node import PENDING
from ...eager.core.tensor import Tensor
from .refcounts import LONE_ARRAY, references
from .trace import Break, Value

LONE_HELD = LONE_ARRAY + 1  # references to an array that only its tensor and a frame have, which holds it twice


def general(frame: Any, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any) -> Any:
    """The step to an entry that has no function of its own."""
    return frame(op, inputs, attrs, out)


class Source:
    """The text of a function, and what its names stand for."""

    def __init__(self, name: str, parameters: str) -> None:
        self.name = name
        self.lines = [f"def {name}({parameters}):"]
        self.space: dict[str, Any] = {
            "new": object.__new__, "Tensor": Tensor, "PENDING": PENDING, "exposed": exposed, "references": references,
            "ndarray": np.ndarray, "Method": MethodType, "Break": Break, "general": general,
        }  # fmt: skip
        self.names: dict[int, str] = {}

    def add(self, *lines: str) -> None:
        self.lines += ["    " + line for line in lines]

    def constant(self, value: Any) -> str:
        """A name for an object."""
        name = self.names.get(id(value))
        if name is None:
            name = self.names[id(value)] = f"c{len(self.names)}"
            self.space[name] = value
        return name

    def function(self, title: str) -> Callable[..., Any]:
        exec(compile("\n".join(self.lines), f"<tapejit {title}>", "exec"), self.space)
        return self.space.pop(self.name)  # type: ignore[no-any-return]  # so that it does not refer to itself

    # ---- what several of them do

    def bind(self, x: str, n: int, flag: bool, fresh: Any, written: bool, otherwise: str) -> None:
        """A tensor in the variable `x` that appears for the first time gets its number; its array is in `a` + x then.

        What will be written needs no entry in the tables by which others are recognised: it is hidden from them, and if it
        is known already under another number, there are too many references to it for that.
        """
        c, a = self.constant(fresh), f"a{x}"
        self.add(f"if {x} is None: {otherwise}", f"{a} = {x}._array; b = {x}._versions")
        tests = [
            f"({a} is not {c}.last() and not {c}.fits({x}, {a}))",
            f"{x}._requires_grad is not {flag}",
            f"{x}._node is not None",
            "(b is not None and len(b) > 1 and exposed(b))",
        ]
        if not written:
            self.add(f"i = id({x}); j = id({a})")
            tests.append("i in N or j in S")
        self.add(f"if {' or '.join(tests)}: {otherwise}")
        if not written:
            self.add(f"N[i] = {n}; S[j] = {fresh.slot}")
        self.add(f"T[{n}] = {x}; A[{n}] = B[{fresh.slot}] = {a}")

    def known(self, x: str, n: int, flag: bool | None, otherwise: str) -> None:
        """A tensor that is known by its number."""
        wants = "" if flag is None else f" or {x}._requires_grad is not {flag}"
        self.add(f"if {x} is not T[{n}] or (a{x} := {x}._array) is not A[{n}]{wants}: {otherwise}")

    def promise(self, value: Value) -> None:
        """A tensor that is pending, in the variable t."""
        self.add(
            f"t = T[{value.index}] = new(Tensor)",
            f"t._array = p = A[{value.index}] = new({self.constant(value.form)}); p.frame = f; p.slot = {value.slot}",
        )
        if value.requires_grad:
            self.add("t._requires_grad = True; t._node = PENDING")
        if value.inference:
            self.add("t._inference = True")
        if value.view is not None:
            self.add(f"f.link(t, {self.constant(value)})")

    def hide(self, targets: list[tuple[str, Value]], region: str, sure: Container[int] = ()) -> None:
        """Memory of tensors in variables will be written: nobody may see it. Where somebody can, it is left to the frame.
        `sure` are the values that are NumPy arrays for sure."""
        variables = " = ".join(f"a{x}" for x, _ in targets)
        kinds = ["" if v.index in sure else f"a{x}.__class__ is ndarray and " for x, v in targets]
        lone = [f"a{x}.base is None and references(a{x}) <= {LONE_HELD}" for x, _ in targets]
        self.add("if not f.used and " + " and ".join(map(str.__add__, kinds, lone)) + ":")
        for x, value in targets:
            form = self.constant(value.form)
            self.add(f"    {x}._array = p = A[{value.index}] = new({form}); p.frame = f; p.slot = {value.slot}")
        numbers = [value.index for _, value in targets]
        self.add(f"    f.hidden.append({numbers[0]})" if len(numbers) == 1 else f"    f.hidden += {tuple(numbers)}")
        self.add("    if f.entries[f.cursor].__class__ is Break: f.have_written()")
        self.add("else:", f"    {variables} = None", f"    f.write({region})")
