"""Flash attention's problem description, its block sizes, and the prologue that forward and backward kernels share.

A tensor (batch..., rows, columns) is a buffer, an offset and strides, all of them constants in the kernel's text. Heads, those
of queries, are the indices of the batch; a head of keys is shared by `group` of them. Head widths are padded to powers of two,
and the padding columns are read as 0.

Full blocks that all of their queries see are processed without masks; those at the edge come after them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

from ....tracer.graph.ir import Form
from ...lowering.op_lowering import dtype_of
from ...nests.kernels import Launch
from ...nests.problems.attention import AttentionProblem, read_attention
from ...nests.problems.tensor_view import Layout, views_of_all
from ..printing.expr_printer import LARGE, Scope, identifier
from ..printing.kernel_text import Argument
from ..printing.scalar_ops import TYPES, accumulator, literal
from ..printing.tiling import power_above

MAX_HEAD_WIDTH = 256  # columns of a head
MIN_DOT_SIZE = 16  # rows and columns of what tensor cores multiply
LOG2_E, LN_2 = math.log2(math.e), math.log(2)


@dataclass(frozen=True)
class AttentionConfig:
    """Tile configuration: rows held by a program, rows of the other side per loop iteration, warps, and pipeline stages."""

    held: int
    step: int
    warps: int
    stages: int


@dataclass(frozen=True)
class AttentionTensor:
    """Tensor of an attention in one of the arguments. Strides count elements, and are 0 where it is broadcast."""

    argument: str
    dtype: str
    offset: int
    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class BoundAttention:
    """softmax(query key^T * scale + mask) value, as the ops `attention` and `attention_backward` have it."""

    batch: tuple[int, ...]  # batch dims of queries
    group: int
    queries: int
    keys: int
    width: int
    value_width: int
    scale: float
    causal: bool
    dtype: str
    tensors: dict[str, AttentionTensor]
    arguments: tuple[Argument, ...]
    large: bool  # 32 bits are too few for some index
    line: str  # source line in the user's program
    precision: str  # precision of float32 matmuls: "ieee", or "tf32" where it may be less

    @property
    def key_batch(self) -> tuple[int, ...]:
        return (*self.batch[:-1], self.batch[-1] // self.group) if self.batch else ()

    @property
    def padded(self) -> int:
        return max(power_above(self.width), MIN_DOT_SIZE)

    @property
    def padded_value(self) -> int:
        return max(power_above(self.value_width), MIN_DOT_SIZE)

    @property
    def wide(self) -> str:
        """Accumulator dtype."""
        return accumulator(self.dtype)


def bind_attention(launch: Launch, forms: dict[str, Form], layout: Layout, precision: str) -> BoundAttention | None:
    """Bind the problem of a launch; None if there is no kernel for it."""
    node = launch.node
    assert node is not None
    problem = read_attention(node, views_of_all(node, launch.operands, layout), forms)
    if not is_covered(problem):
        return None
    arguments: dict[str, Argument] = {}  # by buffer
    tensors = {}
    for role, x in problem.tensors.items():
        if x.buffer not in arguments:
            dtype = dtype_of(forms[x.buffer])
            arguments[x.buffer] = Argument(unused_name(identifier(role), arguments), f"*{TYPES[dtype]}", buffer=x.buffer)
        single = 0 if role == "mask" else 1  # masks are broadcast; of others, what is beyond the only row is not read
        *batch, row, column = x.padded_strides(len(problem.batch) + 2, single)
        tensors[role] = AttentionTensor(arguments[x.buffer].name, x.dtype, x.offset, tuple(batch), row, column)
    return BoundAttention(
        batch=problem.batch,
        group=problem.group,
        queries=problem.queries,
        keys=problem.keys,
        width=problem.width,
        value_width=problem.value_width,
        scale=problem.scale,
        causal=problem.causal,
        dtype=problem.dtype,
        tensors=tensors,
        arguments=tuple(arguments.values()),
        large=any(forms[a].size >= LARGE for a in arguments),
        line=problem.line,
        precision=precision,
    )


def is_covered(problem: AttentionProblem | None) -> TypeGuard[AttentionProblem]:
    """True if there are Triton kernels for it: no empty tensor, heads that fit into registers, masks of a dtype they load."""
    if problem is None:
        return False
    query, key, value, mask = (problem.tensors.get(x) for x in ("query", "key", "value", "mask"))
    assert query is not None and key is not None and value is not None
    if mask is not None and mask.dtype not in ("bool", "float32", problem.dtype):
        return False
    if key.shape[:-2] != value.shape[:-2]:
        return False
    return min(*query.shape, *key.shape, *value.shape) > 0 and max(problem.width, problem.value_width) <= MAX_HEAD_WIDTH


def unused_name(name: str, arguments: dict[str, Argument]) -> str:
    while name in {a.name for a in arguments.values()}:
        name += "_"
    return name


# ---- lines


def program_line(problem: BoundAttention) -> str:
    return "program = tl.program_id(0)" + (".to(tl.int64)" if problem.large else "")


def define_head_indices(scope: Scope, sizes: tuple[int, ...], head: str) -> list[str]:
    """Decompose a linear head index into indices of the batch dims."""
    found: list[str] = []
    rest = head
    for i, n in reversed(list(enumerate(sizes))):
        if n == 1:
            found.append("0")
        elif math.prod(sizes[:i]) == 1:
            found.append(rest)
            rest = "0"
        else:
            scope.add(f"i{i} = {rest} % {n}")
            scope.add(f"outer_{i} = {rest} // {n}")
            found.append(f"i{i}")
            rest = f"outer_{i}"
    return found[::-1]


def define_head_pointer(problem: BoundAttention, scope: Scope, name: str, place: list[str]) -> None:
    """Define a pointer to the start of a tensor's head, under the tensor's name."""
    tensor = problem.tensors[name]
    steps = zip(place, tensor.batch, strict=True)
    parts = [i if stride == 1 else f"{i} * {stride}" for i, stride in steps if stride and i != "0"]
    parts += [str(tensor.offset)] * bool(tensor.offset)
    scope.add(f"{name}_head = {' + '.join([tensor.argument, *parts])}")


def pointers(tensor: AttentionTensor, name: str, rows: str, columns: str) -> str:
    """Pointers to rows and columns of a head, both given as two-dimensional blocks."""
    parts = [f"{name}_head"]
    for text, stride in ((rows, tensor.row), (columns, tensor.column)):
        if stride or name != "mask":
            parts.append(text if stride == 1 else f"{text} * {stride}")
    return " + ".join(parts)


@dataclass(frozen=True)
class Rows:
    """Block of rows in the text: its name, and its mask's name if some rows may be out of range."""

    name: str
    mask: str = ""


def block_pointers(problem: BoundAttention, name: str, rows: Rows) -> tuple[str, str]:
    """Pointers to a block of rows of a tensor, with all columns, and their mask if some may be out of range."""
    narrow = name in ("query", "key", "of_query", "of_key")
    width, padded = (problem.width, problem.padded) if narrow else (problem.value_width, problem.padded_value)
    column = "column" if narrow or problem.padded == problem.padded_value else "value_column"
    masks = [f"{rows.mask}[:, None]"] * bool(rows.mask) + [f"({column} < {width})[None, :]"] * (width < padded)
    return pointers(problem.tensors[name], name, f"{rows.name}[:, None]", f"{column}[None, :]"), " & ".join(masks)


def load_block(problem: BoundAttention, name: str, rows: Rows) -> str:
    return load_text(*block_pointers(problem, name, rows), "0.0")


def store_block(problem: BoundAttention, name: str, rows: Rows, value: str) -> str:
    where, mask = block_pointers(problem, name, rows)
    return store_text(where, f"{value}.to({problem.tensors[name].argument}.dtype.element_ty)", mask)


def row_pointers(problem: BoundAttention, name: str, rows: Rows) -> str:
    """Pointers to per-row values, such as log-sum-exp."""
    row = problem.tensors[name].row
    return f"{name}_head + {rows.name}" + (f" * {row}" if row != 1 else "")


def load_text(where: str, mask: str, other: str) -> str:
    return f"tl.load({where}, mask={mask}, other={other})" if mask else f"tl.load({where})"


def store_text(where: str, value: str, mask: str) -> str:
    return f"tl.store({where}, {value}{', mask=' + mask if mask else ''})"


def define_columns(problem: BoundAttention, scope: Scope) -> None:
    scope.add(f"column = tl.arange(0, {problem.padded})")
    if problem.padded != problem.padded_value:
        scope.add(f"value_column = tl.arange(0, {problem.padded_value})")


def define_rows(scope: Scope, name: str, start: str, block: int, count: int, edge: bool = True) -> Rows:
    """Define a block of rows from `start` on; masked if it may go beyond the end."""
    scope.add(f"{name} = {start} + tl.arange(0, {block})")
    if not edge or count % block == 0:
        return Rows(name)
    scope.add(f"in_{name} = {name} < {count}")
    return Rows(name, f"in_{name}")


def define_scores(
    problem: BoundAttention, scope: Scope, matmul: str, rows: Rows, keys: Rows, edge: bool, turned: bool = False
) -> None:
    """Define `score`: the matmul of queries and keys as an exponent of 2, -inf where a key is masked. If `turned`, keys are the
    first axis."""
    row, key = ("[None, :]", "[:, None]") if turned else ("[:, None]", "[None, :]")
    scope.add(f"score = {matmul} * {literal(problem.scale * LOG2_E)}")
    hidden = []
    tensor = problem.tensors.get("mask")
    if tensor is not None:
        where = pointers(tensor, "mask", f"{rows.name}{row}", f"{keys.name}{key}")
        there = [f"{x.mask}{axis}" for x, axis, s in ((rows, row, tensor.row), (keys, key, tensor.column)) if x.mask and s]
        given = load_text(where, " & ".join(there), "0")
        if tensor.dtype == "bool":
            hidden.append(f"({given} != 0)")
        else:
            scope.add(f"score += {given}.to(tl.{problem.wide}) * {LOG2_E!r}")
    if edge and problem.causal:
        hidden.append(f"({keys.name}{key} <= {rows.name}{row})")
    if edge and keys.mask:
        hidden.append(f"{keys.mask}{key}")
    if hidden:
        scope.add(f'score = tl.where({" & ".join(hidden)}, score, float("-inf"))')


def dot_text(problem: BoundAttention, a: str, b: str, onto: str = "") -> str:
    more = f", {onto}" if onto else ""
    single = f', input_precision="{problem.precision}"' if problem.dtype == "float32" else ""
    double = ", out_dtype=tl.float64" if problem.dtype == "float64" else ""
    return f"tl.dot({a}, {b}{more}{single}{double})"


def cast_to_operand(problem: BoundAttention, x: str) -> str:
    """Cast to the dtype in memory of the other matmul operand."""
    return x if problem.wide == problem.dtype else f"{x}.to(tl.{problem.dtype})"


def docstring_lines(problem: BoundAttention, what: str) -> list[str]:
    sizes = f"{math.prod(problem.batch)} heads, {problem.queries} queries, {problem.keys} keys, {problem.width} wide"
    details = [", causal"] * problem.causal + [f", {problem.group} to a head of keys"] * (problem.group > 1)
    rows = [what, *[problem.line] * bool(problem.line), "", sizes + "".join(details)]
    text = [row.replace("\\", "\\\\").replace('"""', "'''") for row in rows]
    return ['    """' + text[0], *[f"    {row}".rstrip() for row in text[1:]], '    """']
