"""Ahead-of-time compilation for a GPU that need not be present: kernel files, and a table of each kernel's resource use.

Each distinct kernel has its Triton text, its assembly and its binary. The table gives its registers and spills, its shared
memory, the width of its memory accesses, its use of matrix units, the bytes it has to move, its arithmetic, and the least time
for that on a device.
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
from .build import GpuBuild
from .device.compile import Resources, compile_kernel, resources
from .device.specs import DEVICES, Device, compute_kind, shared_memory
from .launches.launch_unit import Unit
from .matmul.cublas import allowed
from .printing.kernel_text import Printed

__all__ = ["DEVICES", "ahead_of_time", "build_for", "legend", "units_of"]
MATRIX_INSTRUCTION = re.compile(r"wgmma\.mma|tcgen05\.mma|mma\.sync|v_s?mfma")
ASYNC_COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global .*?, 0x([0-9a-f]+)|cp\.async\.bulk")
FILES = {"cuda": ("ptx", "cubin"), "hip": ("amdgcn", "hsaco")}
SIZES = {"bool": 1, "bfloat16": 2}
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LEGEND = """\
MB, Mflop and us are totals of all launches of a kernel; us is a lower bound, and at least 2 per launch
registers and spills (bytes) are per thread, shared memory (bytes) is per program
bits: the widest memory access, with * if others are narrower; matrix: yes if matrix units are used
the source of each kernel names the lines of the script that it implements"""
NO_MATRIX_UNITS = "float32 matmuls do not use matrix units here; --precision tf32 lets them, and rounds their operands to tf32"
Progress = Callable[[int, int], None]  # told how many kernels are compiled, of how many


@dataclass
class KernelRow:
    """Row of the table: one distinct kernel of a program, or a cuBLAS call, with the number of its launches."""

    name: str
    kind: str  # nest, matmul, attention; cuBLAS for a matmul by the library
    launches: int  # number of launches
    grid: int
    lines: list[str]  # lines of the user's source
    bytes: int = 0  # total over all launches
    flops: int | None = 0  # None for an opaque op
    seconds: float = 0.0
    registers: int = 0
    spills: int = 0
    shared: int = 0
    width: int = 0  # bits of the widest access to memory
    narrow: int = 0  # accesses that are narrower than that
    matrix: bool = False
    call: str = ""  # arguments of a cuBLAS call
    error: str = ""  # why it did not compile
    files: list[str] = field(default_factory=list)


@dataclass
class ExportedProgram:
    """Exported program: its kernels and totals."""

    name: str
    target: str
    device: str
    rows: list[KernelRow]
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
        return table_text(self)


def build_for(graph: Graph, target: str, precision: str = "ieee") -> GpuBuild:
    """The build that a program on a device of this target would have. It is not bound to arrays, so it has no slots."""
    return GpuBuild(graph, 0, target, precision, deterministic=False, library=allowed())


def units_of(graph: Graph, target: str, precision: str = "ieee") -> tuple[list[Unit], dict[str, Form]]:
    """Launches of a graph for a target, and the forms of its values."""
    build = build_for(graph, target, precision)
    return build.units(), build.forms


def ahead_of_time(
    graphs: Sequence[tuple[str, Graph]], device: Device, folder: Path | None, say: Progress, precision: str = "ieee"
) -> list[ExportedProgram]:
    """Compile programs, given by name, for a device; writes the files to a folder."""
    found, jobs = [], list[tuple[KernelRow, Printed, Path | None]]()
    for name, graph in graphs:
        try:
            units, forms = units_of(graph, device.target, precision)
        except GraphError as reason:
            raise GraphError(f"[compile] {name}: {reason}") from None
        program = ExportedProgram(name, device.target, device.name, [], [])
        place = None if folder is None else folder / name
        jobs += [(row, printed, place) for row, printed in rows_of(units, forms, program, device, precision)]
        found.append(program)
    compile_all(jobs, device.target, say)
    if folder is not None:
        for program in found:
            write_tables(program, folder / program.name)
    return found


def rows_of(
    units: list[Unit], forms: dict[str, Form], program: ExportedProgram, device: Device, precision: str
) -> list[tuple[KernelRow, Printed]]:
    """Make one row per distinct kernel, with its text."""
    known: dict[tuple[str, str], tuple[KernelRow, Printed]] = {}
    for x in units:
        if x.gemm is not None:
            add_launch(row_of_call(x, program), x, forms, device, precision)
            continue
        if x.printed is None or x.kernel is None:
            program.called += [y.node.op.name for y in x.launches if y.node is not None]
            continue
        key = (x.printed.source, x.kernel.name)
        if key not in known:
            row = KernelRow(unique_name(x.kernel.name, program.rows), x.kind, 0, x.kernel.grid, user_lines(x))
            known[key] = row, x.printed
            program.rows.append(row)
        add_launch(known[key][0], x, forms, device, precision)
    return list(known.values())


def row_of_call(x: Unit, program: ExportedProgram) -> KernelRow:
    """Row of a cuBLAS matmul; all matmuls of a size share it."""
    assert x.gemm is not None
    call = str(x.gemm.renamed(dict.fromkeys([m.buffer for m in x.gemm.matrices], "")))
    known = next((row for row in program.rows if row.call == call), None)
    if known is None:
        names = [y.nest.ops[0] for y in x.launches if y.nest is not None]
        known = KernelRow(unique_name(f"cublas_{names[0]}", program.rows), "cuBLAS", 0, 0, user_lines(x), call=call)
        program.rows.append(known)
    return known


def user_lines(x: Unit) -> list[str]:
    """Lines of the user's source that a kernel implements."""
    found = [line for y in x.launches if y.nest is not None for line in y.nest.lines]
    found += [y.node.line for y in x.launches if y.node is not None]
    return list(dict.fromkeys(line for line in found if line))


def unique_name(name: str, rows: list[KernelRow]) -> str:
    same = sum(row.name == name or row.name.startswith(f"{name}.") for row in rows)
    return f"{name}.{same + 1}" if same else name


def add_launch(row: KernelRow, x: Unit, forms: dict[str, Form], device: Device, precision: str) -> None:
    """Add another launch of a kernel to its row."""
    moved, count = bytes_moved(x, forms), flops_of(x, forms)
    kind = compute_kind(compute_dtype(x, forms), precision, x.kind in ("matmul", "attention"))
    row.launches += 1
    row.bytes += moved
    row.flops = None if row.flops is None or count is None else row.flops + count
    row.seconds += device.seconds(moved, count or 0, kind)


def compute_dtype(x: Unit, forms: dict[str, Form]) -> str:
    """Compute dtype of a launch: the operands' for a matmul, the widest float read or written for loops."""
    if x.dtype:
        return x.dtype
    node = x.launches[0].node if x.kind == "attention" else None
    names = x.reads | x.writes if node is None else node.values()[:1]
    found = {dtypes.from_numpy(forms[name].dtype).name for name in names if name in forms}
    return max(found & WIDTHS.keys(), key=WIDTHS.__getitem__, default="float32")


def bytes_moved(x: Unit, forms: dict[str, Form]) -> int:
    """Lower bound on the bytes that a launch moves: each once."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for launch in x.launches:
        r, w = traffic(launch, forms)
        read |= {b: n for b, n in r.items() if b in x.reads}
        written |= {b: n for b, n in w.items() if b in x.writes}
    scratch = x.printed.scratch if x.printed is not None else {}
    own = {} if x.gemm is None else {b: n for b, n in x.gemm.bytes().items() if b not in forms}
    scratch_bytes = sum(nbytes_of(*s) for s in scratch.values()) + sum(own.values())
    return sum(read.values()) + sum(written.values()) + scratch_bytes


def nbytes_of(dtype: str, count: int) -> int:
    return count * (SIZES.get(dtype) or int(re.sub(r"\D", "", dtype)) // 8)


def flops_of(x: Unit, forms: dict[str, Form]) -> int | None:
    """Flops of a launch. Second stages add little: a launch's flops count at its first stage."""
    counts = [flops(y, forms) for y in x.launches if y.kind == x.kind]
    return None if None in counts else sum(n for n in counts if n is not None)


# ---- compiling


def compile_all(jobs: list[tuple[KernelRow, Printed, Path | None]], target: str, say: Progress) -> None:
    """Compile all kernels in a thread pool: the compiler releases Python's lock."""
    say(0, len(jobs))
    with ThreadPoolExecutor(os.cpu_count() or 1, "tapejit-aot") as pool:
        running = [pool.submit(compile_one, *job, target) for job in jobs]
        for i, done in enumerate(as_completed(running)):
            done.result()
            say(i + 1, len(jobs))


def compile_one(row: KernelRow, printed: Printed, folder: Path | None, target: str) -> None:
    (kernel,) = printed.kernels
    try:
        made = compile_kernel(printed, kernel, target)
        used = resources(made, target)
    except Exception as reason:  # whatever the compiler says belongs into the table
        row.error = (str(reason).strip() or type(reason).__name__).splitlines()[-1]
        return
    note_resources(row, made, used)
    if used.shared > shared_memory(target):
        row.error = f"it wants {used.shared} bytes of shared memory, and there are {shared_memory(target)}"
    if folder is not None:
        row.files = save(row.name, printed, made, folder)


def note_resources(row: KernelRow, made: Any, used: Resources) -> None:
    assembly = made.asm.get("ptx") or made.asm.get("amdgcn")
    row.registers, row.spills, row.shared = used.registers, used.spills, used.shared
    row.matrix = MATRIX_INSTRUCTION.search(assembly) is not None
    widths = {**used.loads, **{bits: n + used.loads.get(bits, 0) for bits, n in used.stores.items()}}
    for copy in ASYNC_COPY.finditer(assembly):
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


def write_tables(program: ExportedProgram, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.txt").write_text(f"{program}\n\n{legend([program])}\n", encoding="utf-8")
    facts = asdict(program) | {"launches": program.launches, "bytes": program.bytes, "seconds": program.seconds}
    (folder / "table.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


# ---- words


def legend(programs: Sequence[ExportedProgram]) -> str:
    """Legend of the tables' columns."""
    without_units = any(r.kind == "matmul" and not r.error and not r.matrix for p in programs for r in p.rows)
    return f"{LEGEND}\n{NO_MATRIX_UNITS}" if without_units else LEGEND


def table_text(program: ExportedProgram) -> str:
    head = ["kernel", "launches", "programs", "registers", "spills", "shared", "bits", "matrix", "MB", "Mflop", "us"]
    rows = [row_cells(r) for r in program.rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [f"{program.name}, compiled for {program.target}; times are lower bounds for {program.device}", ""]
    for first, *rest in [head, *rows]:
        lines.append("  ".join([first.ljust(widths[0]), *[cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True)]]))
    lines += ["", totals_line(program)]
    lines += [f"{r.name} did not compile: {r.error}" for r in program.rows if r.error]
    lines += [f"{r.name} is {r.call}" for r in program.rows if r.call]
    if program.called:
        lines.append(f"opaque ops, called eagerly: {', '.join(program.called)}")
    return "\n".join(lines)


def totals_line(program: ExportedProgram) -> str:
    known = [r.flops for r in program.rows if r.flops is not None]
    spills = sum(r.spills > 0 for r in program.rows)
    size = f"{program.bytes / 1e6:.1f} MB, {sum(known) / 1e9:.2f} Gflop"
    least = f"{1e6 * program.seconds:.0f} us at least on {program.device}"
    calls = sum(r.launches for r in program.rows if r.call)
    kernels = sum(not r.call for r in program.rows)
    by_library = f" and {calls} call{'s' * (calls > 1)} of cuBLAS" if calls else ""
    launches = f"{program.launches - calls} launches of {kernels} kernels{by_library}"
    return f"{launches}, {size}, {least}, {spills} kernels with spills"


def row_cells(r: KernelRow) -> list[str]:
    bits = f"{r.width}" + ("*" if r.narrow else "") if r.width else "-"
    count = "-" if r.flops is None else f"{r.flops / 1e6:.1f}"
    numbers = [f"{r.registers}", f"{r.spills}", f"{r.shared}", bits, "yes" if r.matrix else "-"]
    numbers = ["-"] * 5 if r.error or r.call else numbers
    programs = "-" if r.call else f"{r.grid}"
    return [r.name, f"{r.launches}", programs, *numbers, f"{r.bytes / 1e6:.2f}", count, f"{1e6 * r.seconds:.1f}"]
