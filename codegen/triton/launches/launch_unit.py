"""Units: the kernels of a program one by one, or ops that are called as they are, and what each reads and writes.

Kernels that are the same but for names get the text of the first of them: each layer of a model has its own names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...nests.kernels import Launch
from ..printing.expr_printer import PRODUCT
from ..matmul.cublas_gemm import ByLibrary, Gemm
from .merge_kernels import nameless, taken_apart
from .print_launch import Prints
from ..printing.kernel_text import Kernel, Printed


@dataclass(frozen=True)
class Unit:
    """One kernel on the device, a product by cuBLAS, or an op that is called as it is; with the launches that it is of."""

    launches: tuple[Launch, ...]
    printed: Printed | None  # with one kernel; None for what is called
    kind: str  # nest, product, attention, opaque
    reads: frozenset[str]
    writes: frozenset[str]  # its own scratch among them
    dtype: str = ""  # of a product's operands
    gemm: Gemm | None = None

    @property
    def called(self) -> bool:
        """Whether it is an op that is called as it is."""
        return self.printed is None and self.gemm is None

    @property
    def kernel(self) -> Kernel | None:
        return None if self.printed is None else self.printed.kernels[0]

    def before(self, other: Unit) -> bool:
        """Whether another one, which stands after this one, has to wait for it. Ops that are called stay in their order."""
        if self.called and other.called:
            return True
        return not (
            self.writes.isdisjoint(other.reads) and self.writes.isdisjoint(other.writes) and self.reads.isdisjoint(other.writes)
        )


class Units:
    """Makes units of launches."""

    def __init__(self, prints: Prints) -> None:
        self.prints = prints
        self.known: dict[tuple[str, ...], tuple[str, Kernel]] = {}  # the first of kernels that are the same

    def of(self, launch: Launch, in_parts: bool = True) -> list[Unit]:
        """The kernels of a launch. A product of few tiles is computed `in_parts`, which a second kernel adds; or for now it
        is not, as it may go along with others. A product may be a call of cuBLAS, and what is around that."""
        plan = self.prints.by_library(launch)
        if plan is not None:
            return self.by_library(launch, plan)
        text = self.prints.of(launch, in_parts)
        if text is not None:
            return self.kernels(launch, text)
        called = Unit((launch,), None, "opaque", frozenset(launch.reads), frozenset(launch.writes))
        if launch.nest is None:
            return [called]
        product, assumed = own(PRODUCT, launch), replace(launch, kind="nest")
        text = self.prints.of(assumed)
        assert text is not None
        rest = [replace(x, reads=x.reads | {product}, launches=(launch,)) for x in self.kernels(assumed, text, PRODUCT)]
        operands = frozenset(view[0] for view in launch.operands.values())
        return [replace(called, reads=operands, writes=frozenset([product])), *rest]

    def by_library(self, launch: Launch, plan: ByLibrary) -> list[Unit]:
        """A call of cuBLAS, and the kernels before and after it."""
        found: list[Unit] = []
        for x in self.prints.stages(plan):
            if isinstance(x, Gemm):
                gemm = x.renamed({name: own(name, launch) for name in plan.scratch})
                reads = frozenset([gemm.left.buffer, gemm.right.buffer])
                found.append(Unit((launch,), None, "product", reads, frozenset([gemm.out.buffer]), gemm.left.dtype, gemm))
            else:
                kept = {plan.gemm.out.buffer} - plan.scratch.keys()  # the call writes it; what follows only reads it
                for y in self.kernels(replace(launch, kind="nest"), x):
                    reads, writes = y.reads | (y.writes & kept), y.writes - kept
                    found.append(replace(y, launches=(launch,), reads=reads, writes=writes))
        return found

    def kernels(self, launch: Launch, text: Printed, *scratch: str) -> list[Unit]:
        """A unit for each kernel of a launch. Buffers that are the launch's own get names that no other launch's have."""
        names = {name: own(name, launch) for name in (*text.scratch, *scratch)}
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
        text = taken_apart(source).functions[kernel.name].partition("):\n")[2]
        buffers = {a.buffer for a in kernel.arguments if a.buffer and re.search(rf"\b{a.name}\b", text)}
        scratch = {name: size for name, size in sizes.items() if name in buffers}
        reads, writes = buffers & {*launch.reads, *scratch}, buffers & {*launch.writes, *scratch}
        dtype = self.prints.dtype(launch) if kind == "product" else ""
        return Unit((launch,), Printed(source, [kernel], scratch), kind, frozenset(reads), frozenset(writes), dtype)

    def alike(self, text: Printed, kernel: Kernel) -> tuple[str, Kernel]:
        """The first kernel that is the same, and the module that it is in."""
        body = nameless(taken_apart(text.source).functions[kernel.name])
        key = (body, *[a.type for a in kernel.arguments], f"{kernel.warps} {kernel.stages}")
        return self.known.setdefault(key, (text.source, kernel))

    def together(self, launches: Sequence[Launch]) -> tuple[list[Unit], list[Unit]]:
        """Products that are to be one launch, and what adds up those that are computed in parts."""
        units = [self.kernels(x, text) for x, text in zip(launches, self.prints.together(launches), strict=True)]
        return [x[0] for x in units], [y for x in units for y in x[1:]]


def own(name: str, launch: Launch) -> str:
    """The name of something that belongs to one step alone."""
    return f"{name} of {launch.step.number}"
