"""Kernels of matmuls and convolutions with their prologues and epilogues, from launches."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ...tracer.graph.ir import Form
from ..ir.expr import walk
from ..nests.kernels import Launch
from ..nests.loop_nest import Nest
from ..nests.problems.matmul import MatmulProblem, read_matmul
from .gemm.problem import GemmOperand, GemmProblem
from .gemm.prologue import OPERAND_POINTERS, FusedInputs, Prologue, operand_views, prologue_nests
from .gemm.select_kernel import PlanChooser, emit_gemm
from .ir.builder import BYTES, I64, Function, Module, Value, constant
from .ir.kernel import NativeKernel
from .ir.target import Target
from .loops.expr_emitter import ValueScope
from .math.scalar_ops import HALF_DTYPES, SCALARS, cast, memory_scalar
from .runtime.jit import CompileFailed

if TYPE_CHECKING:
    from .conv.from_graph import NativeConv

MIN_PREFETCH_BYTES = 8 << 20  # read and written by an epilogue: from here on not in L2, and hardly in L3


def gemm_problem(problem: MatmulProblem) -> GemmProblem:
    """A matmul, or a batch of them, as a GEMM; batch dims become rows of one matrix where strides allow it."""
    a, b, batch, m, scalar = problem.a, problem.b, problem.batch, problem.m, SCALARS[problem.a.dtype]
    rows = a.strides[-2]
    if problem.has_one_right_matrix and a.shape[:-2] == batch:
        merged = merge_dims(a.shape[:-1], a.strides[:-1])
        if merged is not None:
            batch, (m, rows) = (), merged
    of_a = tuple(batch_strides(a.shape[:-2], a.strides[:-2], batch))
    of_b = tuple(batch_strides(b.shape[:-2], b.strides[:-2], batch))
    if math.prod(batch) == 1:
        batch = of_a = of_b = ()
    first, second = (
        GemmOperand(0, of_a, rows, a.strides[-1], scalar),
        GemmOperand(1, of_b, b.strides[-2], b.strides[-1], scalar),
    )
    return GemmProblem(batch, m, problem.n, problem.k, first, second, "double" if scalar == "double" else "float")


def merge_dims(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Merge dims into one: its size and stride; None if they are not contiguous to each other."""
    dims = [(n, s) for n, s in zip(sizes, strides, strict=True) if n != 1]
    if not dims:
        return 1, strides[-1] if strides else 1
    for (_, outer), (n, inner) in pairwise(dims):
        if outer != n * inner:
            return None
    return math.prod(sizes), dims[-1][1]


def batch_strides(sizes: tuple[int, ...], strides: tuple[int, ...], batch: tuple[int, ...]) -> list[int]:
    """Strides for all batch dims; 0 where an operand is broadcast."""
    if not batch:
        return []
    missing = len(batch) - len(sizes)
    return [0] * missing + [0 if n == 1 else s for n, s in zip(sizes, strides, strict=True)]


def emit_contraction(
    module: Module, name: str, launch: Launch, forms: dict[str, Form], target: Target, chooser: PlanChooser
) -> NativeKernel:
    """Emit the kernel of a matmul or convolution; its pointers are the two operands', then the buffers', then the scalars'."""
    assert launch.node is not None and launch.nest is not None
    nest, buffers, numbers = launch.nest, fused_buffers(launch, forms), launch.numbers
    spec = contraction_problem(launch, forms)
    count = OPERAND_POINTERS + len(buffers) + len(numbers)
    if isinstance(spec, GemmProblem):
        spec = with_prologues(spec, launch, forms)
        epilogue = EpilogueNest(nest, buffers, numbers, spec.batch, spec.m)
        prefetch = epilogue.prefetch if epilogue.prefetches else None
        return emit_gemm(module, name, spec, count, epilogue, target, chooser=chooser, prefetch=prefetch)
    from .conv.from_graph import emit_conv

    shape = forms[launch.node.results[0]].shape
    batch = () if spec.op == "conv_weight_grad" else shape[:1]
    found = emit_conv(module, name, spec, count, EpilogueNest(nest, buffers, numbers, batch, shape[len(batch)]), target)
    if found is None:
        raise CompileFailed(f"[compile] no native kernel for {spec.op} with these layouts")
    return found


def fused_buffers(launch: Launch, forms: dict[str, Form]) -> list[str]:
    """Buffers that the prologues and the epilogue use, besides operands in memory."""
    assert launch.nest is not None
    before = [b for x, nest in prologue_nests(launch, forms).items() for b in nest.buffers() if b != x]
    return list(dict.fromkeys([*before, *launch.nest.buffers()]))


def contraction_problem(launch: Launch, forms: dict[str, Form]) -> GemmProblem | NativeConv:
    """The contraction of a launch, on the kernel's first two pointers."""
    node = launch.node
    assert node is not None
    views = operand_views(launch, forms)
    if node.op.name == "matmul":
        return gemm_problem(read_matmul(node, views, forms))
    from ..nests.problems.conv import read_conv
    from .conv.from_graph import NativeConv  # imported on first use
    from .conv.input_layout import ConvArray

    problem = read_conv(node, views, forms)
    operands = enumerate((problem.first, problem.second))
    first, second = (ConvArray(i, x.shape, x.strides, SCALARS[problem.first.dtype]) for i, x in operands)
    return NativeConv(problem.op, first, second, problem.geometry)


def with_prologues(spec: GemmProblem, launch: Launch, forms: dict[str, Form]) -> GemmProblem:
    """The GEMM with prologues for operands that are computed while they are packed."""
    assert launch.node is not None
    nests, buffers = prologue_nests(launch, forms), fused_buffers(launch, forms)
    found = []
    for x, operand in zip(launch.node.operands, (spec.a, spec.b), strict=True):
        if x in nests:
            lead = forms[x].shape[:-1]
            rows = tuple(math.prod(lead[i + 1 :]) for i in range(len(lead) - 1))
            prologue = Prologue(nests[x], buffers, launch.numbers, tuple(batch_strides(lead[:-1], rows, spec.batch)))
            operand = replace(operand, load=prologue)
        found.append(operand)
    return replace(spec, a=found[0], b=found[1])


class EpilogueNest:
    """Epilogue: runs a nest on the results, one vector at a time."""

    def __init__(self, nest: Nest, buffers: list[str], numbers: list[int], batch: tuple[int, ...], rows: int) -> None:
        self.nest = nest
        self.inputs = FusedInputs(nest.expressions(), buffers, numbers)
        self.batch = batch
        self.rows = rows  # per matrix of the batch
        (stage,), domain = nest.stages, nest.domain
        streams = {(e.data[0], e.data[1]): (e.dtype, False) for e in nest.loads() if not e.data[2]}
        streams |= {(s.buffer, s.index): (s.dtype, True) for s in stage.stores}
        self.streams = {x: how for x, how in streams.items() if x[1].factor(domain.c) == 1 and x[1].factor(domain.r)}
        size = domain.rows * domain.cols * sum(BYTES[memory_scalar(dtype)] for dtype, _ in self.streams.values())
        self.prefetches = size >= MIN_PREFETCH_BYTES

    def __call__(self, f: Function, batch: list[Value], m: Value, n: Value, value: Value, mask: Value | None) -> None:
        domain = self.nest.domain
        emitter = self.inputs.emitter(f, domain.r, domain.c, value.type.lanes)
        emitter.scopes += [ValueScope(emitter.scopes[1])]
        emitter.loop[domain.r] = self.row(f, batch, m)
        emitter.loop[domain.c] = n
        made = next((e.dtype for e in walk(self.nest.expressions()) if e.kind == "matmul"), "float32")
        emitter.mask, emitter.matmul = mask, cast(f, value, "float32", made) if made in HALF_DTYPES else value
        (stage,) = self.nest.stages
        for s, v in [(s, emitter.value(s.expr)) for s in stage.stores]:
            emitter.store(s, v)

    def prefetch(self, f: Function, batch: list[Value], m: Value, n: Value, lanes: int) -> None:
        """Prefetch the cache lines that a vector's epilogue reads and writes. A tile has short rows, which end before the
        hardware prefetcher recognises them."""
        domain = self.nest.domain
        emitter = self.inputs.emitter(f, domain.r, domain.c, lanes)
        emitter.loop[domain.r], emitter.loop[domain.c] = self.row(f, batch, m), n
        for (buffer, index), (dtype, written) in self.streams.items():
            f.prefetch(f.pointer(emitter.pointers[buffer], emitter.index(index, False), memory_scalar(dtype)), written)

    def row(self, f: Function, batch: list[Value], m: Value) -> Value:
        found: Value | None = None
        for i, size in zip(batch, self.batch, strict=True):
            found = i if found is None else f.add(f.mul(found, constant(size, I64)), i)
        return m if found is None else f.add(f.mul(found, constant(self.rows, I64)), m)
