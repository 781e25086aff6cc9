"""Programs compiled for a GPU that need not be there: files with their kernels, and a table of what each takes.

For each different kernel there is its text in Triton, its assembly and its binary code. The table says how many registers it
takes, whether some are spilled, its shared memory, the width of its accesses to memory, whether it uses matrix units, the bytes
it has to move, its arithmetic, and the least time for that on a device.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...eager.arrays import dtypes
from ...tracer.graph.ir import Form, Graph, GraphError
from ..nests.cost_model import flops, traffic
from ..nests.kernels import launches, scheduled
from .device.compile import Resources, compiled, resources
from .matmul.cublas import allowed
from .device.specs import DEVICES, Device, kind_of, shared_memory
from .launches.group_launches import grouped
from .launches.print_launch import Prints, prepared_for_gpu
from .printing.kernel_text import Printed
from .launches.launch_unit import Unit

__all__ = ["DEVICES", "ahead_of_time", "legend", "units_of"]
MATRIX = re.compile(r"wgmma\.mma|tcgen05\.mma|mma\.sync|v_s?mfma")
COPIES = re.compile(r"cp\.async\.c[ag]\.shared\.global .*?, 0x([0-9a-f]+)|cp\.async\.bulk")
FILES = {"cuda": ("ptx", "cubin"), "hip": ("amdgcn", "hsaco")}
SIZES = {"bool": 1, "bfloat16": 2}
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LEGEND = """\
MB, Mflop and us are of all launches of a kernel; us is the least time, and 2 for a launch at least
registers and spills (bytes) are of each thread, shared memory (bytes) of each program
bits: the widest access to memory, with * where others are narrower; matrix: whether matrix units multiply
the texts of kernels say which lines of the script they are of"""
NO_MATRIX = "products of float32 use no matrix units here; --precision tf32 allows it, and rounds what is multiplied"
Say = Callable[[int, int], None]  # told how many kernels are compiled, of how many


@dataclass
class Row:
    """One kernel of a program, or a call of cuBLAS, which may be launched several times."""

    name: str
    kind: str  # nest, product, attention; cuBLAS for a product that is a call of it
    launches: int  # how often it is launched
    grid: int
    lines: list[str]  # of the user's source
    bytes: int = 0  # of all its launches
    flops: int | None = 0  # None where only an op that is called as it is knows
    seconds: float = 0.0
    registers: int = 0
    spills: int = 0
    shared: int = 0
    width: int = 0  # bits of the widest access to memory
    narrow: int = 0  # accesses that are narrower than that
    matrix: bool = False
    call: str = ""  # of cuBLAS: what it is given
    error: str = ""  # why it did not compile
    files: list[str] = field(default_factory=list)


@dataclass
class Program:
    """What there is to be told of a program."""

    name: str
    target: str
    device: str
    rows: list[Row]
    called: list[str]  # ops that have no kernel

    @property
    def launches(self) -> int:
        return sum(r.launches for r in self.rows)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.rows)

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.rows)

    def __str__(self) -> str:
        return text(self)


def units_of(graph: Graph, target: str, precision: str = "ieee") -> tuple[list[Unit], dict[str, Form]]:
    """The launches of a graph for a target, and the forms of its values."""
    work = prepared_for_gpu(graph)
    schedule = scheduled(work, gpu=True)
    prints = Prints(work.forms, schedule.layout, target, precision, library=allowed())
    return grouped(launches(schedule), prints), work.forms


def ahead_of_time(
    graphs: Sequence[tuple[str, Graph]], device: Device, folder: Path | None, say: Say, precision: str = "ieee"
) -> list[Program]:
    """Programs, by their names, for a device; files go to a folder."""
    found, jobs = [], list[tuple[Row, Printed, Path | None]]()
    for name, graph in graphs:
        try:
            units, forms = units_of(graph, device.target, precision)
        except GraphError as reason:
            raise GraphError(f"[compile] {name}: {reason}") from None
        program = Program(name, device.target, device.name, [], [])
        place = None if folder is None else folder / name
        jobs += [(row, printed, place) for row, printed in rows_of(units, forms, program, device, precision)]
        found.append(program)
    compile_all(jobs, device.target, say)
    if folder is not None:
        for program in found:
            written(program, folder / program.name)
    return found


def rows_of(
    units: list[Unit], forms: dict[str, Form], program: Program, device: Device, precision: str
) -> list[tuple[Row, Printed]]:
    """A row for each different kernel, and its text."""
    known: dict[tuple[str, str], tuple[Row, Printed]] = {}
    for x in units:
        if x.gemm is not None:
            add(row_of_call(x, program), x, forms, device, precision)
            continue
        if x.printed is None or x.kernel is None:
            program.called += [y.node.op.name for y in x.launches if y.node is not None]
            continue
        key = (x.printed.source, x.kernel.name)
        if key not in known:
            row = Row(unique(x.kernel.name, program.rows), x.kind, 0, x.kernel.grid, lines_of(x))
            known[key] = row, x.printed
            program.rows.append(row)
        add(known[key][0], x, forms, device, precision)
    return list(known.values())


def row_of_call(x: Unit, program: Program) -> Row:
    """The row of a product by cuBLAS, which is the same for all of a size."""
    assert x.gemm is not None
    told = str(x.gemm.renamed(dict.fromkeys([m.buffer for m in x.gemm.matrices], "")))
    known = next((row for row in program.rows if row.call == told), None)
    if known is None:
        names = [y.nest.ops[0] for y in x.launches if y.nest is not None]
        known = Row(unique(f"cublas_{names[0]}", program.rows), "cuBLAS", 0, 0, lines_of(x), call=told)
        program.rows.append(known)
    return known


def lines_of(x: Unit) -> list[str]:
    """The lines of the user's source that a kernel is."""
    found = [line for y in x.launches if y.nest is not None for line in y.nest.lines]
    found += [y.node.line for y in x.launches if y.node is not None]
    return list(dict.fromkeys(line for line in found if line))


def unique(name: str, rows: list[Row]) -> str:
    same = sum(row.name == name or row.name.startswith(f"{name}.") for row in rows)
    return f"{name}.{same + 1}" if same else name


def add(row: Row, x: Unit, forms: dict[str, Form], device: Device, precision: str) -> None:
    """Another launch of a kernel."""
    moved, count = moved_by(x, forms), computed_by(x, forms)
    kind = kind_of(dtype_of(x, forms), precision, x.kind in ("product", "attention"))
    row.launches += 1
    row.bytes += moved
    row.flops = None if row.flops is None or count is None else row.flops + count
    row.seconds += device.seconds(moved, count or 0, kind)


def dtype_of(x: Unit, forms: dict[str, Form]) -> str:
    """What a launch computes in: products in what is multiplied, loops in the widest floats that they read or write."""
    if x.dtype:
        return x.dtype
    node = x.launches[0].node if x.kind == "attention" else None
    names = x.reads | x.writes if node is None else node.values()[:1]
    found = {dtypes.from_numpy(forms[name].dtype).name for name in names if name in forms}
    return max(found & WIDTHS.keys(), key=WIDTHS.__getitem__, default="float32")


def moved_by(x: Unit, forms: dict[str, Form]) -> int:
    """The bytes that a launch has to move at least, each once."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for launch in x.launches:
        r, w = traffic(launch, forms)
        read |= {b: n for b, n in r.items() if b in x.reads}
        written |= {b: n for b, n in w.items() if b in x.writes}
    scratch = x.printed.scratch if x.printed is not None else {}
    own = {} if x.gemm is None else {b: n for b, n in x.gemm.bytes().items() if b not in forms}
    scratch_bytes = sum(size_of(*s) for s in scratch.values()) + sum(own.values())
    return sum(read.values()) + sum(written.values()) + scratch_bytes


def size_of(dtype: str, count: int) -> int:
    return count * (SIZES.get(dtype) or int(re.sub(r"\D", "", dtype)) // 8)


def computed_by(x: Unit, forms: dict[str, Form]) -> int | None:
    """The arithmetic of a launch. Second stages add up little: what they are of counts where its first stage is."""
    counts = [flops(y, forms) for y in x.launches if y.kind == x.kind]
    return None if None in counts else sum(n for n in counts if n is not None)


# ---- compiling


def compile_all(jobs: list[tuple[Row, Printed, Path | None]], target: str, say: Say) -> None:
    """All kernels, several at a time: the compiler releases Python's lock."""
    say(0, len(jobs))
    with ThreadPoolExecutor(os.cpu_count() or 1, "tapejit-aot") as pool:
        running = [pool.submit(compile_one, *job, target) for job in jobs]
        for i, done in enumerate(as_completed(running)):
            done.result()
            say(i + 1, len(jobs))


def compile_one(row: Row, printed: Printed, folder: Path | None, target: str) -> None:
    (kernel,) = printed.kernels
    try:
        made = compiled(printed, kernel, target)
        used = resources(made, target)
    except Exception as reason:  # whatever the compiler says belongs into the table
        row.error = (str(reason).strip() or type(reason).__name__).splitlines()[-1]
        return
    note(row, made, used)
    if used.shared > shared_memory(target):
        row.error = f"it wants {used.shared} bytes of shared memory, and there are {shared_memory(target)}"
    if folder is not None:
        row.files = save(row.name, printed, made, folder)


def note(row: Row, made: Any, used: Resources) -> None:
    assembly = made.asm.get("ptx") or made.asm.get("amdgcn")
    row.registers, row.spills, row.shared = used.registers, used.spills, used.shared
    row.matrix = MATRIX.search(assembly) is not None
    widths = {**used.loads, **{bits: n + used.loads.get(bits, 0) for bits, n in used.stores.items()}}
    for copy in COPIES.finditer(assembly):
        bits = 8 * int(copy[1], 16) if copy[1] else 128
        widths[bits] = widths.get(bits, 0) + 1
    row.width = max(widths, default=0)
    row.narrow = sum(n for bits, n in widths.items() if bits < row.width)


def save(name: str, printed: Printed, made: Any, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{name}.py"]
    (folder / names[0]).write_text(printed.source, encoding="utf-8")
    for kind in FILES["hip" if "amdgcn" in made.asm else "cuda"]:
        names.append(f"{name}.{kind}")
        content = made.asm[kind]
        (folder / names[-1]).write_bytes(content if isinstance(content, bytes) else content.encode())
    return names


def written(program: Program, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.txt").write_text(f"{program}\n\n{legend([program])}\n", encoding="utf-8")
    facts = asdict(program) | {"launches": program.launches, "bytes": program.bytes, "seconds": program.seconds}
    (folder / "table.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


# ---- words


def legend(programs: Sequence[Program]) -> str:
    """What the columns of tables mean."""
    plain = any(r.kind == "product" and not r.error and not r.matrix for p in programs for r in p.rows)
    return f"{LEGEND}\n{NO_MATRIX}" if plain else LEGEND


def text(program: Program) -> str:
    head = ["kernel", "launches", "programs", "registers", "spills", "shared", "bits", "matrix", "MB", "Mflop", "us"]
    rows = [cells(r) for r in program.rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [f"{program.name}, compiled for {program.target}; times are the least on {program.device}", ""]
    for first, *rest in [head, *rows]:
        lines.append("  ".join([first.ljust(widths[0]), *[cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True)]]))
    lines += ["", totals(program)]
    lines += [f"{r.name} did not compile: {r.error}" for r in program.rows if r.error]
    lines += [f"{r.name} is {r.call}" for r in program.rows if r.call]
    if program.called:
        lines.append(f"called as they are: {', '.join(program.called)}")
    return "\n".join(lines)


def totals(program: Program) -> str:
    known = [r.flops for r in program.rows if r.flops is not None]
    spills = sum(r.spills > 0 for r in program.rows)
    size = f"{program.bytes / 1e6:.1f} MB, {sum(known) / 1e9:.2f} Gflop"
    least = f"{1e6 * program.seconds:.0f} us at least on {program.device}"
    calls = sum(r.launches for r in program.rows if r.call)
    kernels = sum(not r.call for r in program.rows)
    by_library = f" and {calls} call{'s' * (calls > 1)} of cuBLAS" if calls else ""
    launches = f"{program.launches - calls} launches of {kernels} kernels{by_library}"
    return f"{launches}, {size}, {least}, {spills} kernels with spills"


def cells(r: Row) -> list[str]:
    bits = f"{r.width}" + ("*" if r.narrow else "") if r.width else "-"
    count = "-" if r.flops is None else f"{r.flops / 1e6:.1f}"
    numbers = [f"{r.registers}", f"{r.spills}", f"{r.shared}", bits, "yes" if r.matrix else "-"]
    numbers = ["-"] * 5 if r.error or r.call else numbers
    programs = "-" if r.call else f"{r.grid}"
    return [r.name, f"{r.launches}", programs, *numbers, f"{r.bytes / 1e6:.2f}", count, f"{1e6 * r.seconds:.1f}"]
