"""One kernel for many nests that are the same but for their sizes and for what they are of, as the updates of all parameters by
an optimizer are: the kernel finds sizes, addresses and numbers in a table. Kernels that are the same with their sizes, as those
of layers are, need addresses and numbers alone.

    table: for each program   where its entry is, which chunk of it is the program's
           for each entry     the number of elements, addresses of buffers, numbers

A program does a chunk of several tiles, so that what it computes of numbers alone (a power of the step, say) is computed
seldom. Whole tiles have no mask, and are read and written by 128 bits; addresses in tables are multiples of 16 bytes, as those
of arguments are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...nests.loop_nest import Nest
from ...nests.horizontal_fusion import elementwise
from ..printing import expr_printer as body
from ..printing.expr_printer import Scope
from ..loops.nest_printer import Printer
from .merge_kernels import PROGRAM, as_function, taken_apart
from ..printing.scalar_ops import TYPES
from ..printing.kernel_text import HEADER, Argument, Kernel, Printed, arguments_of, function, kernel_name
from ..printing.tiling import TILE, Tile

MOST_TILES = 8  # of a chunk
PROGRAMS = 1024  # that there should be, before chunks have several tiles
NAMES = {short: name for name, short in TYPES.items() if name != "bool"}  # of types in memory
DIVISOR = 16  # of sizes: elements under the mask of a last tile are read together then


@dataclass(frozen=True)
class Member:
    """A nest that can be one of a family: all with the same text are one."""

    text: str  # the types of what it is of, and what it does with a tile
    nest: Nest
    arguments: tuple[Argument, ...]

    @property
    def size(self) -> int:
        return self.nest.domain.cols


def member_of(nest: Nest) -> Member | None:
    """A single row of elements that are computed one by one; None for other nests."""
    if not elementwise(nest) or not 2 <= nest.domain.cols < body.LARGE:
        return None
    given = arguments_of(nest)
    return Member("\n".join([*[a.type for a in given], *lines(nest, anonymous(given), 1)]), nest, tuple(given))


def anonymous(given: list[Argument]) -> list[Argument]:
    """Arguments whose names do not say what they are of."""
    named = []
    for i, a in enumerate(given):
        named.append(Argument(f"x{i}" if a.buffer else f"number_{i}", a.type, a.buffer, a.number))
    return named


def lines(nest: Nest, given: list[Argument], tiles: int) -> list[str]:
    """What a program does with a chunk of an entry."""
    tile = Tile("tiles", 1, nest.domain.cols, 1, TILE, False, True)
    printer = Printer(nest, tile, given)
    written, program = printer.body, printer.body.scopes["program"]
    program.add(f"first = chunk * {tiles * TILE}")
    program.add(f"last = tl.minimum(first + {tiles * TILE}, size)")
    program.add(f"whole = first + (last - first) // {TILE} * {TILE}")
    ends = []
    for start, masks in (("start", {}), ("whole", {"c": "in_cols"})):
        scope = written.scopes["columns"] = Scope(2)
        written.masks = dict(masks)
        scope.add(f"c = {start} + tl.arange(0, {TILE})")
        if masks:
            scope.add("in_cols = c < size")
        printer.row()
        ends.append(scope.lines)
        del written.scopes["columns"]
    program.add(f"for start in range(first, whole, {TILE}):")
    program.lines += ends[0]
    program.add("if whole < last:")
    program.lines += ends[1]
    return program.lines


def printed_family(members: list[Member], table: str) -> Printed:
    """The kernel of nests that have the same text, and its table, which is a buffer of this name."""
    first = members[0]
    total = sum(-(-m.size // TILE) for m in members)
    tiles = 1
    while tiles < MOST_TILES and total // (2 * tiles) >= PROGRAMS:
        tiles *= 2
    name = f"{kernel_name(first.nest)}_of_many"
    whole = all(m.size % DIVISOR == 0 for m in members)
    text = [*documentation(first), *entry(first, whole), *lines(first.nest, anonymous([*first.arguments]), tiles)]
    argument = Argument("table", "*i64", buffer=table)
    words, programs = words_of(members, tiles * TILE)
    kernel = Kernel(name, (argument,), programs, TILE // 256)
    return Printed(HEADER + function(name, [argument], text), [kernel], tables={table: words})


def documentation(first: Member) -> list[str]:
    rows = [f"    {row}" for row in first.nest.lines]
    return ['    """The same for all entries of a table.', *([""] if rows else []), *rows, '    """']


def entry(first: Member, whole: bool) -> list[str]:
    """The lines that read an entry of the table."""
    rows = [
        "program = tl.program_id(0)",
        "entry = table + tl.load(table + 2 * program)",
        "chunk = tl.load(table + 2 * program + 1).to(tl.int32)",
        f"size = {f'tl.multiple_of(tl.load(entry).to(tl.int32), {DIVISOR})' if whole else 'tl.load(entry).to(tl.int32)'}",
    ]
    rows += [from_table(a, i + 1) for i, a in enumerate(anonymous([*first.arguments]))]
    return [f"    {row}" for row in rows]


def from_table(a: Argument, place: int) -> str:
    """The line that reads an address or a number from an entry."""
    word = f"tl.load(entry + {place})"
    if a.buffer:
        return f"{a.name} = tl.multiple_of({word}.to(tl.pointer_type(tl.{NAMES[a.type[1:]]})), 16)"
    return f"{a.name} = {word}" + (".to(tl.float64, bitcast=True)" if a.type == "fp64" else "")


def words_of(members: list[Member], chunk: int) -> tuple[tuple[int | Argument, ...], int]:
    """The table, and how many programs there are."""
    counts = [-(-m.size // chunk) for m in members]
    at = 2 * sum(counts)
    heads: list[int | Argument] = []
    entries: list[int | Argument] = []
    for m, count in zip(members, counts, strict=True):
        for k in range(count):
            heads += [at + len(entries), k]
        entries += [m.size, *m.arguments]
    return (*heads, *entries), sum(counts)


def printed_alike(parts: list[Printed], table: str) -> Printed:
    """Kernels with the same text as one, and its table, which is a buffer of this name."""
    (first,) = parts[0].kernels
    source = taken_apart(parts[0].source)
    name = f"{first.name}_of_many"
    lines = [
        f'    """The same for {len(parts)} entries of a table, of {first.grid} programs each."""',
        f"    program = {PROGRAM}",
        f"    entry = table + program // {first.grid} * {len(first.arguments)}",
        *[f"    {from_table(a, i)}" for i, a in enumerate(first.arguments)],
        f"    {first.name}(program % {first.grid}, {', '.join(a.name for a in first.arguments)})",
    ]
    argument = Argument("table", "*i64", buffer=table)
    others = [text for other, text in source.functions.items() if other != first.name]
    body = as_function(source.functions[first.name], first, first.name)
    text = "\n\n\n".join([source.head.rstrip("\n"), *others, body]) + "\n" + function(name, [argument], lines)
    words = tuple(a for p in parts for a in p.kernels[0].arguments)
    kernel = replace(first, name=name, arguments=(argument,), grid=first.grid * len(parts))
    return Printed(text, [kernel], {k: v for p in parts for k, v in p.scratch.items()}, {table: words})
