"""Table kernels (horizontal fusion): one kernel for many nests that differ only in sizes, buffers and scalars.

The updates of all parameters by an optimizer are such nests: the kernel finds sizes, addresses and scalars in a table. Kernels
of equal sizes too, as those of layers are, need only addresses and scalars.

    table: for each program   where its entry is, which chunk of it is the program's
           for each entry     the number of elements, addresses of buffers, scalars

A program processes a chunk of several tiles, so that arithmetic on scalars alone (a power of the step, say) is done seldom.
Full tiles have no mask, and are read and written by 128 bits; addresses in tables are multiples of 16 bytes, as those of
arguments are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...nests.horizontal_fusion import is_elementwise, same_work_key
from ...nests.loop_nest import Nest
from ..loops.nest_printer import Printer
from ..printing import expr_printer as body
from ..printing.expr_printer import Scope
from ..printing.kernel_text import HEADER, Argument, Kernel, Printed, arguments_of, function, kernel_name
from ..printing.scalar_ops import TYPES
from ..printing.tiling import TILE, Tile
from .merge_kernels import PROGRAM, kernel_as_function, split_source

MAX_CHUNK_TILES = 8  # tiles per chunk
MIN_PROGRAMS = 1024  # least grid size before chunks get several tiles
DTYPE_NAMES = {short: name for name, short in TYPES.items() if name != "bool"}  # by type in memory
SIZE_DIVISOR = 16  # if it divides the size, elements under the mask of a last tile are read together


@dataclass(frozen=True)
class TableMember:
    """Elementwise nest that may share a table kernel with all others of the same `key`."""

    key: Any  # body of the nest; the whole code, if that depends on the size
    nest: Nest
    arguments: tuple[Argument, ...]

    @property
    def size(self) -> int:
        return self.nest.domain.cols


def table_member(nest: Nest) -> TableMember | None:
    """Match a nest that is a single row of elementwise work; None for other nests."""
    if not is_elementwise(nest) or not 2 <= nest.domain.cols < body.LARGE:
        return None
    given = arguments_of(nest)
    key = same_work_key(nest)
    if key is None:
        key = "\n".join([*[a.type for a in given], *chunk_lines(nest, anonymous_arguments(given), 1)])
    return TableMember(key, nest, tuple(given))


def anonymous_arguments(given: list[Argument]) -> list[Argument]:
    """Rename arguments so that their names do not depend on the nest."""
    named = []
    for i, a in enumerate(given):
        named.append(Argument(f"x{i}" if a.buffer else f"number_{i}", a.type, a.buffer, a.number))
    return named


def chunk_lines(nest: Nest, given: list[Argument], tiles: int) -> list[str]:
    """Print the loop of a program over one chunk of an entry."""
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


def print_table_kernel(members: list[TableMember], table: str) -> Printed:
    """Print the table kernel of nests with equal text, and its table, a buffer of the given name."""
    first = members[0]
    total = sum(-(-m.size // TILE) for m in members)
    tiles = 1
    while tiles < MAX_CHUNK_TILES and total // (2 * tiles) >= MIN_PROGRAMS:
        tiles *= 2
    name = f"{kernel_name(first.nest)}_of_many"
    whole = all(m.size % SIZE_DIVISOR == 0 for m in members)
    body_lines = chunk_lines(first.nest, anonymous_arguments([*first.arguments]), tiles)
    text = [*docstring_lines(first), *entry_lines(first, whole), *body_lines]
    argument = Argument("table", "*i64", buffer=table)
    words, programs = table_words(members, tiles * TILE)
    kernel = Kernel(name, (argument,), programs, TILE // 256)
    return Printed(HEADER + function(name, [argument], text), [kernel], tables={table: words})


def docstring_lines(first: TableMember) -> list[str]:
    rows = [f"    {row}" for row in first.nest.lines]
    return ['    """The same for all entries of a table.', *([""] if rows else []), *rows, '    """']


def entry_lines(first: TableMember, whole: bool) -> list[str]:
    """Print the lines that load an entry of the table."""
    rows = [
        "program = tl.program_id(0)",
        "entry = table + tl.load(table + 2 * program)",
        "chunk = tl.load(table + 2 * program + 1).to(tl.int32)",
        f"size = {f'tl.multiple_of(tl.load(entry).to(tl.int32), {SIZE_DIVISOR})' if whole else 'tl.load(entry).to(tl.int32)'}",
    ]
    rows += [load_from_entry(a, i + 1) for i, a in enumerate(anonymous_arguments([*first.arguments]))]
    return [f"    {row}" for row in rows]


def load_from_entry(a: Argument, place: int) -> str:
    """Print the line that loads an address or a scalar from an entry."""
    word = f"tl.load(entry + {place})"
    if a.buffer:
        return f"{a.name} = tl.multiple_of({word}.to(tl.pointer_type(tl.{DTYPE_NAMES[a.type[1:]]})), 16)"
    return f"{a.name} = {word}" + (".to(tl.float64, bitcast=True)" if a.type == "fp64" else "")


def table_words(members: list[TableMember], chunk: int) -> tuple[tuple[int | Argument, ...], int]:
    """Words of the table, and the number of programs in the grid."""
    counts = [-(-m.size // chunk) for m in members]
    at = 2 * sum(counts)
    heads: list[int | Argument] = []
    entries: list[int | Argument] = []
    for m, count in zip(members, counts, strict=True):
        for k in range(count):
            heads += [at + len(entries), k]
        entries += [m.size, *m.arguments]
    return (*heads, *entries), sum(counts)


def print_same_kernels(parts: list[Printed], table: str) -> Printed:
    """Merge kernels with equal text into one, driven by a table, a buffer of the given name."""
    (first,) = parts[0].kernels
    source = split_source(parts[0].source)
    name = f"{first.name}_of_many"
    lines = [
        f'    """The same for {len(parts)} entries of a table, of {first.grid} programs each."""',
        f"    program = {PROGRAM}",
        f"    entry = table + program // {first.grid} * {len(first.arguments)}",
        *[f"    {load_from_entry(a, i)}" for i, a in enumerate(first.arguments)],
        f"    {first.name}(program % {first.grid}, {', '.join(a.name for a in first.arguments)})",
    ]
    argument = Argument("table", "*i64", buffer=table)
    others = [text for other, text in source.functions.items() if other != first.name]
    body = kernel_as_function(source.functions[first.name], first, first.name)
    text = "\n\n\n".join([source.head.rstrip("\n"), *others, body]) + "\n" + function(name, [argument], lines)
    words = tuple(a for p in parts for a in p.kernels[0].arguments)
    kernel = replace(first, name=name, arguments=(argument,), grid=first.grid * len(parts))
    return Printed(text, [kernel], {k: v for p in parts for k, v in p.scratch.items()}, {table: words})
