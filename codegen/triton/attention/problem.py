"""What flash attention's kernels have in common: the problem, how it is cut into blocks, and lines that both begin with.

A tensor (batch..., rows, columns) is a buffer, an offset and strides, all of which stand in the text as numbers. Heads, those
of queries, are the places of the batch; a head of keys is shared by `group` of them. Widths are padded to powers of two, of
which the columns that are not there are read as 0.

Blocks that are whole and that all of their queries see are gone through without masks; those at the edge come after them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ....tracer.graph.ir import Form
from ...nests.kernels import Launch
from ...lowering.op_lowering import dtype_of
from ..printing.expr_printer import LARGE, Scope, identifier
from ..printing.scalar_ops import TYPES, accumulator, literal
from ..printing.kernel_text import Argument
from ..printing.tiling import power_above

WIDEST = 256  # columns of a head
LEAST = 16  # rows and columns of what tensor cores multiply
LOG2_E, LN_2 = math.log2(math.e), math.log(2)

Layout = Callable[[str], tuple[int, ...]]  # of a result: its strides


@dataclass(frozen=True)
class Config:
    """How many rows of one side a program holds, and of the other takes at a time; by how many warps, with how many rounds of
    loads under way."""

    held: int
    step: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Tensor:
    """A tensor in one of the arguments. Strides count elements, and are 0 where it is broadcast."""

    argument: str
    dtype: str
    offset: int
    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class Attention:
    """softmax(query key^T * scale + mask) value, as the ops `attention` and `attention_backward` have it."""

    batch: tuple[int, ...]  # of queries
    group: int
    queries: int
    keys: int
    width: int
    value_width: int
    scale: float
    causal: bool
    dtype: str
    tensors: dict[str, Tensor]
    arguments: tuple[Argument, ...]
    large: bool  # 32 bits are too few for some index
    line: str  # of the user's program
    precision: str  # of products of float32: "ieee", or "tf32" where it may be less

    @property
    def key_batch(self) -> tuple[int, ...]:
        return (*self.batch[:-1], self.batch[-1] // self.group) if self.batch else ()

    @property
    def padded(self) -> int:
        return max(power_above(self.width), LEAST)

    @property
    def padded_value(self) -> int:
        return max(power_above(self.value_width), LEAST)

    @property
    def wide(self) -> str:
        """What sums are in."""
        return accumulator(self.dtype)


def attention_of(launch: Launch, forms: dict[str, Form], layout: Layout, precision: str) -> Attention | None:
    """The problem of a launch; None if there is no kernel for it."""
    node = launch.node
    assert node is not None
    backward = node.op.name == "attention_backward"
    query, key, value, mask = node.operands[1:5] if backward else node.operands[:4]
    names = {"query": query, "key": key, "value": value}
    if isinstance(mask, str):
        names["mask"] = mask
    if backward:
        names.update(pull=node.operands[0], log_total=node.operands[5])
        if len(node.operands) > 6:
            names["out"] = node.operands[6]
        results = iter(node.results)
        wanted = zip(("of_query", "of_key", "of_value"), node.attrs["needs"], strict=True)
        names.update({name: next(results) for name, need in wanted if need})
    else:
        names.update(out=node.results[0], log_total=node.results[1])
    if not covered(forms, query, key, value, mask):
        return None
    shape, keys = forms[query].shape, forms[key].shape
    views = {x: launch.operands.get(x, (x, 0, layout(x) if x in node.results else ())) for x in names.values()}
    arguments: dict[str, Argument] = {}  # of buffers
    tensors = {}
    for name, x in names.items():
        buffer, offset, strides = views[x]
        if buffer not in arguments:
            dtype = dtype_of(forms[buffer])
            arguments[buffer] = Argument(unused(identifier(name), arguments), f"*{TYPES[dtype]}", buffer=buffer)
        sizes = forms[x].shape
        single = 0 if name == "mask" else 1  # masks are broadcast; of others, what is beyond the only row is not read
        wide = [0] * (len(shape) - len(sizes)) + [single if n == 1 else s for n, s in zip(sizes, strides, strict=True)]
        tensors[name] = Tensor(arguments[buffer].name, dtype_of(forms[x]), offset, tuple(wide[:-2]), wide[-2], wide[-1])
    return Attention(
        batch=shape[:-2],
        group=shape[-3] // keys[-3] if len(shape) > 2 else 1,
        queries=shape[-2],
        keys=keys[-2],
        width=shape[-1],
        value_width=forms[value].shape[-1],
        scale=node.attrs["scale"],
        causal=node.attrs["causal"],
        dtype=dtype_of(forms[query]),
        tensors=tensors,
        arguments=tuple(arguments.values()),
        large=any(forms[a].size >= LARGE for a in arguments),
        line=node.line,
        precision=precision,
    )


def covered(forms: dict[str, Form], query: str, key: str, value: str, mask: object) -> bool:
    shape, keys, dtype = forms[query].shape, forms[key].shape, dtype_of(forms[query])
    if dtype not in ("float32", "float64", "float16", "bfloat16") or any(dtype_of(forms[x]) != dtype for x in (key, value)):
        return False
    if isinstance(mask, str) and dtype_of(forms[mask]) not in ("bool", "float32", dtype):
        return False
    if len(shape) != len(keys) or shape[:-3] != keys[:-3] or keys[:-2] != forms[value].shape[:-2]:
        return False
    sizes = (*shape, *keys, *forms[value].shape)
    return min(sizes) > 0 and max(shape[-1], forms[value].shape[-1]) <= WIDEST and (len(shape) < 3 or not shape[-3] % keys[-3])


def unused(name: str, arguments: dict[str, Argument]) -> str:
    while name in {a.name for a in arguments.values()}:
        name += "_"
    return name


# ---- lines


def program_line(problem: Attention) -> str:
    return "program = tl.program_id(0)" + (".to(tl.int64)" if problem.large else "")


def find_head(scope: Scope, sizes: tuple[int, ...], head: str) -> list[str]:
    """The place in a batch that a number stands for."""
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


def begin(problem: Attention, scope: Scope, name: str, place: list[str]) -> None:
    """Where a head of a tensor begins: a pointer with the tensor's name."""
    tensor = problem.tensors[name]
    steps = zip(place, tensor.batch, strict=True)
    parts = [i if stride == 1 else f"{i} * {stride}" for i, stride in steps if stride and i != "0"]
    parts += [str(tensor.offset)] * bool(tensor.offset)
    scope.add(f"{name}_head = {' + '.join([tensor.argument, *parts])}")


def pointers(tensor: Tensor, name: str, rows: str, columns: str) -> str:
    """The pointers to rows and columns of a head, which are given as blocks with both axes."""
    parts = [f"{name}_head"]
    for text, stride in ((rows, tensor.row), (columns, tensor.column)):
        if stride or name != "mask":
            parts.append(text if stride == 1 else f"{text} * {stride}")
    return " + ".join(parts)


@dataclass(frozen=True)
class Rows:
    """A block of rows in the text: its name, and the name of the mask that says which there are, if not all are."""

    name: str
    mask: str = ""


def place(problem: Attention, name: str, rows: Rows) -> tuple[str, str]:
    """Pointers to a block of rows of a tensor, with all columns, and the mask that says which there are, if not all are."""
    narrow = name in ("query", "key", "of_query", "of_key")
    width, padded = (problem.width, problem.padded) if narrow else (problem.value_width, problem.padded_value)
    column = "column" if narrow or problem.padded == problem.padded_value else "value_column"
    masks = [f"{rows.mask}[:, None]"] * bool(rows.mask) + [f"({column} < {width})[None, :]"] * (width < padded)
    return pointers(problem.tensors[name], name, f"{rows.name}[:, None]", f"{column}[None, :]"), " & ".join(masks)


def read(problem: Attention, name: str, rows: Rows) -> str:
    return loaded(*place(problem, name, rows), "0.0")


def write(problem: Attention, name: str, rows: Rows, value: str) -> str:
    where, mask = place(problem, name, rows)
    return stored(where, f"{value}.to({problem.tensors[name].argument}.dtype.element_ty)", mask)


def per_row(problem: Attention, name: str, rows: Rows) -> str:
    """Pointers to what there is one of in each row."""
    row = problem.tensors[name].row
    return f"{name}_head + {rows.name}" + (f" * {row}" if row != 1 else "")


def loaded(where: str, mask: str, other: str) -> str:
    return f"tl.load({where}, mask={mask}, other={other})" if mask else f"tl.load({where})"


def stored(where: str, value: str, mask: str) -> str:
    return f"tl.store({where}, {value}{', mask=' + mask if mask else ''})"


def define_columns(problem: Attention, scope: Scope) -> None:
    scope.add(f"column = tl.arange(0, {problem.padded})")
    if problem.padded != problem.padded_value:
        scope.add(f"value_column = tl.arange(0, {problem.padded_value})")


def define_rows(scope: Scope, name: str, start: str, block: int, count: int, edge: bool = True) -> Rows:
    """A block of rows from some number on; masked, if it may go beyond the end."""
    scope.add(f"{name} = {start} + tl.arange(0, {block})")
    if not edge or count % block == 0:
        return Rows(name)
    scope.add(f"in_{name} = {name} < {count}")
    return Rows(name, f"in_{name}")


def scores(problem: Attention, scope: Scope, product: str, rows: Rows, keys: Rows, edge: bool, turned: bool = False) -> None:
    """`score`: a product of queries and keys as a power of 2, -inf where a key is hidden; turned, keys are the first axis."""
    row, key = ("[None, :]", "[:, None]") if turned else ("[:, None]", "[None, :]")
    scope.add(f"score = {product} * {literal(problem.scale * LOG2_E)}")
    hidden = []
    tensor = problem.tensors.get("mask")
    if tensor is not None:
        where = pointers(tensor, "mask", f"{rows.name}{row}", f"{keys.name}{key}")
        there = [f"{x.mask}{axis}" for x, axis, s in ((rows, row, tensor.row), (keys, key, tensor.column)) if x.mask and s]
        given = loaded(where, " & ".join(there), "0")
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


def dot(problem: Attention, a: str, b: str, onto: str = "") -> str:
    more = f", {onto}" if onto else ""
    single = f', input_precision="{problem.precision}"' if problem.dtype == "float32" else ""
    double = ", out_dtype=tl.float64" if problem.dtype == "float64" else ""
    return f"tl.dot({a}, {b}{more}{single}{double})"


def narrowed(problem: Attention, x: str) -> str:
    """As what it is multiplied with is in memory."""
    return x if problem.wide == problem.dtype else f"{x}.to(tl.{problem.dtype})"


def documentation(problem: Attention, what: str) -> list[str]:
    sizes = f"{math.prod(problem.batch)} heads, {problem.queries} queries, {problem.keys} keys, {problem.width} wide"
    details = [", causal"] * problem.causal + [f", {problem.group} to a head of keys"] * (problem.group > 1)
    rows = [what, *[problem.line] * bool(problem.line), "", sizes + "".join(details)]
    text = [row.replace("\\", "\\\\").replace('"""', "'''") for row in rows]
    return ['    """' + text[0], *[f"    {row}".rstrip() for row in text[1:]], '    """']
