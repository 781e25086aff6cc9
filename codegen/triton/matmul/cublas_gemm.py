"""Plans a matmul as one cuBLAS call: the part of a contraction that the library can do, and the kernels for the rest.

cuBLAS multiplies matrices that are in memory and writes a matrix to memory. So operands that are computed while they are read
are computed before, and the epilogue reads the result from memory again. Where the matmul's result itself is kept, the call
writes it to its place; halves are rounded by the call, if nothing reads the unrounded sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...ir.expr import Expr, ExprBuilder, walk
from ...ir.index import Index, Var, var
from ...lowering.substitute import Substitution
from ...nests.loop_nest import Nest, Stage, Store
from ...schedule.step import Domain
from ..printing.expr_printer import MATMUL_BUFFER
from ..printing.scalar_ops import HALVES
from .cublas import GemmCall
from .problem import Contraction

LEFT, RIGHT = "left operand", "right operand"  # buffers of operands that are computed first
MAX_C_INT = 1 << 31  # exclusive limit of sizes and strides: they are C ints
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Matrix:
    """Batch of matrices in memory: an offset, and the strides of batches, rows and columns, in elements."""

    buffer: str
    dtype: str
    offset: int
    batch: int
    row: int
    col: int

    def distance(self, rows: int, cols: int) -> tuple[bool, int] | None:
        """Leading dimension, with True for column-major; None if neither rows nor columns are contiguous, or if it exceeds a C
        int."""
        if self.col == 1 and cols <= self.row < MAX_C_INT:
            return False, self.row
        if self.row == 1 and rows <= self.col < MAX_C_INT:
            return True, self.col
        return None


@dataclass(frozen=True)
class Gemm:
    """Matmul `out = left @ right`, for each batch; accumulates in float32 at least. `precision` is that of float32."""

    batches: int
    rows: int
    cols: int
    depth: int
    left: Matrix
    right: Matrix
    out: Matrix
    precision: str

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        return self.left, self.right, self.out

    def bytes(self) -> dict[str, int]:
        """Bytes read and written, by buffer; operands that all batches share are read once."""
        sizes = ((self.rows, self.depth), (self.depth, self.cols), (self.rows, self.cols))
        found = {}
        for x, (rows, cols) in zip(self.matrices, sizes, strict=True):
            found[x.buffer] = (self.batches if x.batch else 1) * rows * cols * BYTES[x.dtype]
        return found

    def renamed(self, names: dict[str, str]) -> Gemm:
        """Copy with some buffers renamed."""
        left, right, out = (replace(x, buffer=names.get(x.buffer, x.buffer)) for x in self.matrices)
        return replace(self, left=left, right=right, out=out)

    def call(self, word: Callable[[str], int]) -> GemmCall:
        """Arguments of the cuBLAS call. cuBLAS is column-major: row-major matrices are passed as transposed ones, and it
        computes out.T = right.T @ left.T, unless the result is column-major itself."""
        left, right = self.left.distance(self.rows, self.depth), self.right.distance(self.depth, self.cols)
        out = self.out.distance(self.rows, self.cols)
        assert left is not None and right is not None and out is not None
        first, second = (self.left, not left[0], left[1]), (self.right, not right[0], right[1])
        m, n = self.rows, self.cols
        if not out[0]:
            (a, turned, step), (b, other, next_step) = second, first
            first, second = (a, not turned, step), (b, not other, next_step)
            m, n = n, m
        matrices = [first[0], second[0], self.out]
        return GemmCall(
            batches=self.batches,
            sizes=[m, n, self.depth],
            transposed=[first[1], second[1]],
            distances=[first[2], second[2], out[1]],
            steps=[x.batch for x in matrices],
            dtype=self.left.dtype,
            result=self.out.dtype,
            precision=self.precision,
            words=[word(x.buffer) for x in matrices],
            after=[x.offset * BYTES[x.dtype] for x in matrices],
        )

    def __str__(self) -> str:
        times = f"{self.batches} x " if self.batches > 1 else ""
        kind = "tf32" if self.left.dtype == "float32" and self.precision == "tf32" else self.left.dtype
        sizes = f"{times}[{self.rows}, {self.depth}] @ [{self.depth}, {self.cols}]"
        turned = [x.distance(*s) for x, s in ((self.left, (self.rows, self.depth)), (self.right, (self.depth, self.cols)))]
        by_columns = [f"{name} in columns" for name, t in zip(("left", "right"), turned, strict=True) if t is not None and t[0]]
        return ", ".join([f"a call of cuBLAS: {sizes} of {kind} to {self.out.dtype}", *by_columns])


@dataclass(frozen=True)
class CublasPlan:
    """Contraction as a cuBLAS call, and the loops before and after it."""

    gemm: Gemm
    before: tuple[Nest, ...]
    after: Nest | None
    scratch: dict[str, tuple[str, int]] = field(hash=False)  # private buffers of the plan: dtype and number of elements

    @property
    def more_bytes(self) -> int:
        """Bytes moved beyond those of one fused kernel: scratch buffers are written and read, and a result that is kept is read
        again."""
        again = 0 if self.after is None or MATMUL_BUFFER in self.scratch else self.gemm.bytes()[self.gemm.out.buffer]
        return again + 2 * sum(BYTES[dtype] * size for dtype, size in self.scratch.values())

    @property
    def more_kernels(self) -> int:
        return len(self.before) + (self.after is not None)


def plan_cublas(work: Contraction, precision: str) -> CublasPlan | None:
    """Plan a contraction as a cuBLAS call; None if it cannot be one."""
    sizes = (work.batches, work.rows, work.cols, work.depth)
    if work.a.dtype != work.b.dtype or work.dtype not in BYTES or min(sizes[1:]) < 2 or max(sizes) >= MAX_C_INT:
        return None
    scratch: dict[str, tuple[str, int]] = {}
    before: list[Nest] = []
    operands = []
    for name, e, domain in ((LEFT, work.a, work.outer), (RIGHT, work.b, work.inner)):
        found = in_memory(e, domain, work.batches)
        if found is None:
            found, nest = computed(name, e, domain, work)
            before.append(nest)
            scratch[name] = e.dtype, nest.domain.rows * nest.domain.cols
        operands.append(found)
    left, right = operands
    kept = kept_matmul(work, {left.buffer, right.buffer})
    if kept is None:
        out = Matrix(MATMUL_BUFFER, matmul_dtype(work), 0, work.rows * work.cols, work.cols, 1)
        scratch[MATMUL_BUFFER] = out.dtype, work.batches * work.rows * work.cols
        after: Nest | None = following(work, out.dtype)
    else:
        out, store = kept
        after = following(work, out.dtype, store) if len(work.nest.stores()) > 1 else None
    return CublasPlan(Gemm(*sizes, left, right, out, precision), tuple(before), after, scratch)


# ---- operands


def in_memory(e: Expr, domain: Domain, batches: int) -> Matrix | None:
    """Match an operand that is stored as matrices and needs no computation."""
    if e.kind != "load" or e.data[2]:
        return None
    found = matrix(e.data[0], e.dtype, e.data[1], domain, batches)
    return found if found is not None and found.distance(domain.rows, domain.cols) is not None else None


def matrix(buffer: str, dtype: str, index: Index, domain: Domain, batches: int) -> Matrix | None:
    """Matrices whose elements are at an index of `batch`, the row and the column; None if it is not linear in these."""
    steps = {var("batch", batches): 0, domain.r: 0, domain.c: 0}
    for a, n in index.terms:
        if a not in steps or n < 0:
            return None
        steps[a] = n
    return Matrix(buffer, dtype, index.const, *steps.values())


def computed(name: str, e: Expr, domain: Domain, work: Contraction) -> tuple[Matrix, Nest]:
    """Plan an operand that has to be computed first, and its loops: once, if all batches share it."""
    batch = var("batch", work.batches)
    many = work.batches > 1 and e.depends(batch)
    own, places = in_order(domain, batch, work.batches if many else 1)
    store = Store(name, own.row * own.cols + own.col, Substitution(ExprBuilder(), places).expr(e), e.dtype)
    ops = (name.split(" ")[0], "of", *work.nest.ops[:1])
    nest = Nest(own, [Stage(stores=[store])], "c", work.nest.lines, ops)
    return Matrix(name, e.dtype, 0, domain.rows * domain.cols if many else 0, domain.cols, 1), nest


def in_order(domain: Domain, batch: Var, batches: int) -> tuple[Domain, dict[Var, Index]]:
    """Domain of the rows of all batches, one batch after the other, and the variables as indices in it."""
    own = Domain(batches * domain.rows, domain.cols)
    return own, {domain.r: own.row % domain.rows, domain.c: own.col, batch: own.row // domain.rows}


# ---- the result


def rounded_to(e: Expr) -> str:
    """Half dtype that an expression rounds the matmul's result to; "" if it is something else."""
    cast = e.kind == "op" and e.data[0] == "cast" and e.args[0].kind == "matmul"
    return e.dtype if cast and e.dtype in HALVES else ""


def matmul_dtype(work: Contraction) -> str:
    """Result dtype of the call: a half, if every use of the matmul's result rounds it to that first."""
    roots = work.nest.expressions()
    readers = [e for e in walk(roots) if any(x.kind == "matmul" for x in e.args)]
    as_is = any(e.kind == "matmul" for e in roots)
    (own,) = {e.dtype for e in walk(roots) if e.kind == "matmul"}
    return work.dtype if not as_is and {rounded_to(e) for e in readers} == {work.dtype} else own


def kept_matmul(work: Contraction, operands: set[str]) -> tuple[Matrix, Store] | None:
    """Store of the matmul's result itself, if the call can write it there: the rest of the epilogue reads it from there."""
    dtype, stores = matmul_dtype(work), work.nest.stores()
    for s in stores:
        whole = s.expr.kind == "matmul" if s.expr.dtype == dtype == s.dtype else False
        rounded = rounded_to(s.expr) == dtype == s.dtype
        if not (whole or rounded) or s.buffer in operands or (s.overwrites and len(stores) > 1):
            continue
        found = matrix(s.buffer, dtype, s.index, Domain(work.rows, work.cols), work.batches)
        if found is not None and found.distance(work.rows, work.cols) is not None and (work.batches == 1 or found.batch):
            return found, s
    return None


def following(work: Contraction, dtype: str, kept: Store | None = None) -> Nest:
    """Epilogue as loops that read the matmul's result from memory: from a scratch buffer, or from its place if it is kept."""
    exprs = ExprBuilder()
    own, places = in_order(Domain(work.rows, work.cols), var("batch", work.batches), work.batches)
    index = Substitution(exprs, places).index
    result = exprs.matmul(dtype) if kept is None else exprs.load(kept.buffer, index(kept.index), (), dtype)
    moved = Read(exprs, places, result)
    (stage,) = work.nest.stages
    stores = [replace(s, expr=moved.expr(s.expr), index=moved.index(s.index)) for s in stage.stores if s is not kept]
    return replace(work.nest, domain=own, stages=[Stage(stores=stores)])


class Read(Substitution):
    """Replaces the matmul in expressions by a load. A result that is stored as a half need not be rounded."""

    def __init__(self, exprs: ExprBuilder, places: dict[Var, Index], result: Expr) -> None:
        super().__init__(exprs, places)
        self.result = result

    def made(self, e: Expr) -> Expr:
        if e.kind == "matmul" or rounded_to(e) == self.result.dtype:
            return self.result
        return super().made(e)
