"""Products of matrices and convolutions, with what follows them, from nodes of the graph."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ...tracer.graph.ir import Form, Node
from ..ir.expr import walk
from ..nests.kernels import Launch
from ..lowering.op_lowering import dtype_of
from ..nests.loop_nest import Nest
from ..schedule.step import View
from .gemm import select_kernel as gemm
from .ir.builder import BYTES, I64, Function, Module, Value, constant
from .loops.expr_emitter import Scope
from .gemm.select_kernel import Gemm, Operand
from .gemm.given import OPERANDS, Given
from .runtime.jit import CompileFailed
from .ir.kernel import Kernel
from .gemm.prologue import Prologue, prologues, views_of
from .ir.target import Target
from .math.scalar_ops import HALVES, SCALARS, cast, in_memory

if TYPE_CHECKING:
    from .conv.from_graph import Conv

FAR = 8 << 20  # bytes around a product from which on they are not in the second cache, and hardly in the third


def product_of(node: Node, operands: dict[str, View], forms: dict[str, Form], scalar: str) -> Gemm:
    """The product of two matrices, or of a batch of them; rows of all of a batch are rows of one matrix where they can be."""
    a, b = node.operands
    shape, left, right = forms[node.results[0]].shape, forms[a].shape, forms[b].shape
    outer, inner = operands[a][2], operands[b][2]
    batch, m, n, k = shape[:-2], shape[-2], shape[-1], left[-1]
    rows = outer[-2]
    if math.prod(right[:-2]) == 1 and left[:-2] == batch:
        merged = merge(left[:-1], outer[:-1])
        if merged is not None:
            batch, (m, rows) = (), merged
    of_a = tuple(across(left[:-2], outer[:-2], batch))
    of_b = tuple(across(right[:-2], inner[:-2], batch))
    if math.prod(batch) == 1:
        batch = of_a = of_b = ()
    first, second = Operand(0, of_a, rows, outer[-1], scalar), Operand(1, of_b, inner[-2], inner[-1], scalar)
    return Gemm(batch, m, n, k, first, second, "double" if scalar == "double" else "float")


def merge(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Several dims as one: its size and stride; None where they do not follow on each other."""
    dims = [(n, s) for n, s in zip(sizes, strides, strict=True) if n != 1]
    if not dims:
        return 1, strides[-1] if strides else 1
    for (_, outer), (n, inner) in pairwise(dims):
        if outer != n * inner:
            return None
    return math.prod(sizes), dims[-1][1]


def across(sizes: tuple[int, ...], strides: tuple[int, ...], batch: tuple[int, ...]) -> list[int]:
    """Strides for all dims of a batch; 0 where an operand is broadcast."""
    if not batch:
        return []
    missing = len(batch) - len(sizes)
    return [0] * missing + [0 if n == 1 else s for n, s in zip(sizes, strides, strict=True)]


def emit_product(
    module: Module, name: str, launch: Launch, forms: dict[str, Form], target: Target, chooser: gemm.Chooser
) -> Kernel:
    """The kernel of a product; its pointers are the two operands, then buffers, then numbers."""
    assert launch.node is not None and launch.nest is not None
    nest, buffers, numbers = launch.nest, around(launch, forms), launch.numbers
    spec = spec_of(launch, forms)
    count = OPERANDS + len(buffers) + len(numbers)
    if isinstance(spec, Gemm):
        spec = with_prologues(spec, launch, forms)
        follow = Follow(nest, buffers, numbers, spec.batch, spec.m)
        return gemm.emit(module, name, spec, count, follow, target, chooser=chooser, fetch=follow.fetch if follow.far else None)
    from .conv.from_graph import emit_conv

    shape = forms[launch.node.results[0]].shape
    batch = () if spec.op == "conv_weight_grad" else shape[:1]
    found = emit_conv(module, name, spec, count, Follow(nest, buffers, numbers, batch, shape[len(batch)]), target)
    if found is None:
        raise CompileFailed(f"[compile] there is no kernel for {spec.op}")
    return found


def around(launch: Launch, forms: dict[str, Form]) -> list[str]:
    """The buffers that are used before and after a product, besides the operands that are in memory."""
    assert launch.nest is not None
    before = [b for x, nest in prologues(launch, forms).items() for b in nest.buffers() if b != x]
    return list(dict.fromkeys([*before, *launch.nest.buffers()]))


def spec_of(launch: Launch, forms: dict[str, Form]) -> Gemm | Conv:
    """What a product is to compute, of its first two pointers."""
    node = launch.node
    assert node is not None
    views, scalar = views_of(launch, forms), SCALARS[dtype_of(forms[str(node.operands[0])])]
    if node.op.name == "matmul":
        return product_of(node, views, forms, scalar)
    from .conv.from_graph import Conv  # not imported before there is one
    from .conv.input_layout import Array

    arrays = [Array(i, forms[x].shape, views[x][2], scalar) for i, x in enumerate(node.operands)]
    return Conv(node.op.name, arrays[0], arrays[1], node.attrs["geometry"])


def with_prologues(spec: Gemm, launch: Launch, forms: dict[str, Form]) -> Gemm:
    """A product that computes some of its operands while it packs them."""
    assert launch.node is not None
    nests, buffers = prologues(launch, forms), around(launch, forms)
    found = []
    for x, operand in zip(launch.node.operands, (spec.a, spec.b), strict=True):
        if x in nests:
            lead = forms[x].shape[:-1]
            rows = tuple(math.prod(lead[i + 1 :]) for i in range(len(lead) - 1))
            prologue = Prologue(nests[x], buffers, launch.numbers, tuple(across(lead[:-1], rows, spec.batch)))
            operand = replace(operand, load=prologue)
        found.append(operand)
    return replace(spec, a=found[0], b=found[1])


class Follow:
    """What happens to the elements of a product: a nest, at one vector of them after the other."""

    def __init__(self, nest: Nest, buffers: list[str], numbers: list[int], batch: tuple[int, ...], rows: int) -> None:
        self.nest = nest
        self.given = Given(nest.expressions(), buffers, numbers)
        self.batch = batch
        self.rows = rows  # of each matrix of the batch
        (stage,), domain = nest.stages, nest.domain
        streams = {(e.data[0], e.data[1]): (e.dtype, False) for e in nest.loads() if not e.data[2]}
        streams |= {(s.buffer, s.index): (s.dtype, True) for s in stage.stores}
        self.streams = {x: how for x, how in streams.items() if x[1].factor(domain.c) == 1 and x[1].factor(domain.r)}
        size = domain.rows * domain.cols * sum(BYTES[in_memory(dtype)] for dtype, _ in self.streams.values())
        self.far = size >= FAR

    def __call__(self, f: Function, batch: list[Value], m: Value, n: Value, value: Value, mask: Value | None) -> None:
        domain = self.nest.domain
        emitter = self.given.emitter(f, domain.r, domain.c, value.type.lanes)
        emitter.scopes += [Scope(emitter.scopes[1])]
        emitter.loop[domain.r] = self.row(f, batch, m)
        emitter.loop[domain.c] = n
        made = next((e.dtype for e in walk(self.nest.expressions()) if e.kind == "product"), "float32")
        emitter.mask, emitter.product = mask, cast(f, value, "float32", made) if made in HALVES else value
        (stage,) = self.nest.stages
        for s, v in [(s, emitter.value(s.expr)) for s in stage.stores]:
            emitter.store(s, v)

    def fetch(self, f: Function, batch: list[Value], m: Value, n: Value, lanes: int) -> None:
        """Ask for the lines that a vector of elements will be computed from and written to. A tile has short rows, which end
        before the CPU has seen where they lead."""
        domain = self.nest.domain
        emitter = self.given.emitter(f, domain.r, domain.c, lanes)
        emitter.loop[domain.r], emitter.loop[domain.c] = self.row(f, batch, m), n
        for (buffer, index), (dtype, written) in self.streams.items():
            f.fetch(f.pointer(emitter.pointers[buffer], emitter.index(index, False), in_memory(dtype)), written)

    def row(self, f: Function, batch: list[Value], m: Value) -> Value:
        found: Value | None = None
        for i, size in zip(batch, self.batch, strict=True):
            found = i if found is None else f.add(f.mul(found, constant(size, I64)), i)
        return m if found is None else f.add(f.mul(found, constant(self.rows, I64)), m)
