"""Specialise Python functions to one place in a trace: everything known about it becomes a constant, and loops are unrolled.

The overhead of a replay, beyond its program, is the time spent in these functions.
"""

from __future__ import annotations

from collections.abc import Container
from types import MethodType
from typing import Any

import numpy as np

from ...eager.arrays.exported_memory import is_exported
from ...eager.core.tape.node import PLACEHOLDER_NODE
from ...eager.core.tensor import Tensor
from .generated_python import PythonWriter
from .refcounts import LONE_ARRAY, references
from .trace import Break, Value

LONE_HELD = LONE_ARRAY + 1  # references to an array that only its tensor and a frame have; the frame holds it twice


def general(frame: Any, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any) -> Any:
    """Matcher of an entry without a specialised function: calls the frame."""
    return frame(op, inputs, attrs, out)


class ReplayWriter(PythonWriter):
    """Source writer for functions over a replayer `f` and its tables: T (tensors), A (arrays held), B (arrays by slot), N
    (value indices by id of the tensor) and S (slots by id of the array)."""

    def __init__(self, name: str, parameters: str) -> None:
        super().__init__(name, parameters)
        self.space.update({
            "new": object.__new__, "Tensor": Tensor, "PLACEHOLDER_NODE": PLACEHOLDER_NODE, "is_exported": is_exported,
            "references": references,
            "ndarray": np.ndarray, "Method": MethodType, "Break": Break, "general": general,
        })  # fmt: skip

    def bind(self, x: str, n: int, flag: bool, fresh: Any, written: bool, otherwise: str) -> None:
        """Emit code that binds the tensor in variable `x`, seen for the first time, to value `n`; its array is then in `a` + x.

        A tensor that will be written needs no entry in the tables by which aliases are recognised: its array is hidden from
        them, and if it were already known as another value it would have too many references to be hidden.
        """
        c, a = self.constant(fresh), f"a{x}"
        self.add(f"if {x} is None: {otherwise}", f"{a} = {x}.tj_array; b = {x}.tj_versions")
        tests = [
            f"({a} is not {c}.last() and not {c}.fits({x}, {a}))",
            f"{x}.tj_requires_grad is not {flag}",
            f"{x}.tj_node is not None",
            "(b is not None and len(b) > 1 and is_exported(b))",
        ]
        if not written:
            self.add(f"i = id({x}); j = id({a})")
            tests.append("i in N or j in S")
        self.add(f"if {' or '.join(tests)}: {otherwise}")
        if not written:
            self.add(f"N[i] = {n}; S[j] = {fresh.slot}")
        self.add(f"T[{n}] = {x}; A[{n}] = B[{fresh.slot}] = {a}")

    def known(self, x: str, n: int, flag: bool | None, otherwise: str) -> None:
        """Emit a check that variable `x` holds the tensor of value `n`."""
        wants = "" if flag is None else f" or {x}.tj_requires_grad is not {flag}"
        self.add(f"if {x} is not T[{n}] or (a{x} := {x}.tj_array) is not A[{n}]{wants}: {otherwise}")

    def promise(self, value: Value) -> None:
        """Emit code that creates a pending tensor in the variable t."""
        self.add(
            f"t = T[{value.index}] = new(Tensor)",
            f"t.tj_array = p = A[{value.index}] = new({self.constant(value.form)}); p.frame = f; p.slot = {value.slot}",
        )
        if value.requires_grad:
            self.add("t.tj_requires_grad = True; t.tj_node = PLACEHOLDER_NODE")
        if value.inference:
            self.add("t.tj_inference = True")
        if value.view is not None:
            self.add(f"f.link(t, {self.constant(value)})")

    def hide(self, targets: list[tuple[str, Value]], region: str, sure: Container[int] = ()) -> None:
        """Emit code that hides the memory of tensors in variables, because it will be written and must not be observed before.
        Where other code can observe it, the frame handles the write. `sure` holds the values known to be NumPy arrays."""
        variables = " = ".join(f"a{x}" for x, _ in targets)
        kinds = ["" if v.index in sure else f"a{x}.__class__ is ndarray and " for x, v in targets]
        lone = [f"a{x}.base is None and references(a{x}) <= {LONE_HELD}" for x, _ in targets]
        self.add("if not f.used and " + " and ".join(map(str.__add__, kinds, lone)) + ":")
        for x, value in targets:
            form = self.constant(value.form)
            self.add(f"    {x}.tj_array = p = A[{value.index}] = new({form}); p.frame = f; p.slot = {value.slot}")
        numbers = [value.index for _, value in targets]
        self.add(f"    f.hidden.append({numbers[0]})" if len(numbers) == 1 else f"    f.hidden += {tuple(numbers)}")
        self.add("    if f.entries[f.cursor].__class__ is Break: f.have_written()")
        self.add("else:", f"    {variables} = None", f"    f.write({region})")
