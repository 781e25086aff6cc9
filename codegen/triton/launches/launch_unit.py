"""Units of a program: one kernel, one call of cuBLAS or one opaque op each, with the buffers they read and write.

Kernels that differ only in names share the text of the first: each layer of a model has names of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...nests.kernels import Launch
from ..matmul.cublas_gemm import CublasPlan, Gemm
from ..printing.expr_printer import MATMUL_BUFFER
from ..printing.kernel_text import Kernel, Printed
from .merge_kernels import anonymize, split_source
from .print_launch import LaunchPrinter


@dataclass(frozen=True)
class Unit:
    """Unit: a kernel on the device, a cuBLAS matmul or an opaque op, with the launches that it implements."""

    launches: tuple[Launch, ...]
    printed: Printed | None  # with one kernel; None for what is called
    kind: str  # nest, matmul, attention, opaque
    reads: frozenset[str]
    writes: frozenset[str]  # its own scratch among them
    dtype: str = ""  # operand dtype of a matmul
    gemm: Gemm | None = None

    @property
    def called(self) -> bool:
        """True for an opaque op."""
        return self.printed is None and self.gemm is None

    @property
    def kernel(self) -> Kernel | None:
        return None if self.printed is None else self.printed.kernels[0]

    def before(self, other: Unit) -> bool:
        """True if `other`, a later unit, depends on this one. Opaque ops stay in order."""
        if self.called and other.called:
            return True
        return not (
            self.writes.isdisjoint(other.reads) and self.writes.isdisjoint(other.writes) and self.reads.isdisjoint(other.writes)
        )


class UnitBuilder:
    """Builds units from launches."""

    def __init__(self, prints: LaunchPrinter) -> None:
        self.prints = prints
        self.known: dict[tuple[str, ...], tuple[str, Kernel]] = {}  # the first of kernels that are the same

    def of(self, launch: Launch, in_parts: bool = True) -> list[Unit]:
        """Kernels of a launch. A matmul of few tiles is computed `in_parts`, which a second kernel adds; without it, not yet
        split, as it may share a launch with others. A matmul may be a cuBLAS call with the kernels around it."""
        plan = self.prints.by_library(launch)
        if plan is not None:
            return self.by_library(launch, plan)
        text = self.prints.of(launch, in_parts)
        if text is not None:
            return self.kernels(launch, text)
        called = Unit((launch,), None, "opaque", frozenset(launch.reads), frozenset(launch.writes))
        if launch.nest is None:
            return [called]
        result, assumed = private_name(MATMUL_BUFFER, launch), replace(launch, kind="nest")
        text = self.prints.of(assumed)
        assert text is not None
        rest = [replace(x, reads=x.reads | {result}, launches=(launch,)) for x in self.kernels(assumed, text, MATMUL_BUFFER)]
        operands = frozenset(view[0] for view in launch.operands.values())
        return [replace(called, reads=operands, writes=frozenset([result])), *rest]

    def by_library(self, launch: Launch, plan: CublasPlan) -> list[Unit]:
        """Build a cuBLAS call, and the kernels before and after it."""
        found: list[Unit] = []
        for x in self.prints.stages(plan):
            if isinstance(x, Gemm):
                gemm = x.renamed({name: private_name(name, launch) for name in plan.scratch})
                reads = frozenset([gemm.left.buffer, gemm.right.buffer])
                found.append(Unit((launch,), None, "matmul", reads, frozenset([gemm.out.buffer]), gemm.left.dtype, gemm))
            else:
                kept = {plan.gemm.out.buffer} - plan.scratch.keys()  # the call writes it; what follows only reads it
                for y in self.kernels(replace(launch, kind="nest"), x):
                    reads, writes = y.reads | (y.writes & kept), y.writes - kept
                    found.append(replace(y, launches=(launch,), reads=reads, writes=writes))
        return found

    def kernels(self, launch: Launch, text: Printed, *scratch: str) -> list[Unit]:
        """Build a unit for each kernel of a launch. Buffers private to the launch get unique names."""
        names = {name: private_name(name, launch) for name in (*text.scratch, *scratch)}
        found = []
        for i, kernel in enumerate(text.kernels):
            source, same = self.alike(text, kernel)
            arguments = tuple(
                replace(a, name=b.name, buffer=names.get(a.buffer, a.buffer))
                for a, b in zip(kernel.arguments, same.arguments, strict=True)
            )
            kind = launch.kind if not i or launch.kind == "attention" else "nest"
            sizes = {names[name]: size for name, size in text.scratch.items()}
            found.append(self.unit(launch, kind, source, replace(same, arguments=arguments, grid=kernel.grid), sizes))
        return [x for x in found if x.kernel is not None and x.kernel.grid]

    def unit(self, launch: Launch, kind: str, source: str, kernel: Kernel, sizes: dict[str, tuple[str, int]]) -> Unit:
        text = split_source(source).functions[kernel.name].partition("):\n")[2]
        buffers = {a.buffer for a in kernel.arguments if a.buffer and re.search(rf"\b{a.name}\b", text)}
        scratch = {name: size for name, size in sizes.items() if name in buffers}
        reads, writes = buffers & {*launch.reads, *scratch}, buffers & {*launch.writes, *scratch}
        dtype = self.prints.dtype(launch) if kind == "matmul" else ""
        return Unit((launch,), Printed(source, [kernel], scratch), kind, frozenset(reads), frozenset(writes), dtype)

    def alike(self, text: Printed, kernel: Kernel) -> tuple[str, Kernel]:
        """Find the first equal kernel, and its module."""
        body = anonymize(split_source(text.source).functions[kernel.name])
        key = (body, *[a.type for a in kernel.arguments], f"{kernel.warps} {kernel.stages}")
        return self.known.setdefault(key, (text.source, kernel))

    def together(self, launches: Sequence[Launch]) -> tuple[list[Unit], list[Unit]]:
        """Build matmuls that share one launch, and the kernels that add up the split ones."""
        units = [self.kernels(x, text) for x, text in zip(launches, self.prints.together(launches), strict=True)]
        return [x[0] for x in units], [y for x in units for y in x[1:]]


def private_name(name: str, launch: Launch) -> str:
    """Name of a buffer that is private to one step."""
    return f"{name} of {launch.step.number}"
