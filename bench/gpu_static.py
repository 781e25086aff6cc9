"""Launches, bytes and compile time of whole training steps on a GPU, counted without one.

    python bench/gpu_static.py                     the GPT (6 layers, 384 wide, AdamW): counts, and compile time
    python bench/gpu_static.py --compile [--halves]   all workloads for all targets: does everything compile, without spills,
                                                   with the parameters that are packed, in vectors and by matrix units?

Against what is counted:
    eager      one launch for each recorded op, which reads its inputs and writes its outputs; views are free
    primitives the same for what these ops are made of: a layer norm is many then
    one by one each kernel for itself: what is fused, but not put together into fewer launches
    least      each fusable group reads its inputs once and writes what others want once. A group is a contraction, attention,
               or reductions of the same rows, with all element-wise ops and sums of columns that go with it; what follows from
               one value that is as large is never written
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tapejit as tj
from tapejit.codegen.nests.kernels import ATTENTION
from tapejit.codegen.prepare.canonicalize import REDUCTIONS
from tapejit.codegen.prepare.primitive_graph import PrimitiveGraph
from tapejit.codegen.triton.device.compile import compile_kernel, launched_parameter_sizes, parameter_sizes, resources
from tapejit.codegen.triton.device.specs import shared_memory
from tapejit.codegen.triton.export import MATRIX_INSTRUCTION, build_for, bytes_moved, compute_dtype, units_of
from tapejit.codegen.triton.launches.launch_unit import Unit, UnitBuilder
from tapejit.codegen.triton.runtime.kernel_cache import CompileRequest, compile_kernels
from tapejit.tracer.graph.ir import Graph, Node
from tapejit.tracer.tools.cli.aot import recording
from workloads.data import DATA, GPT_MEDIUM, gpt
from workloads.torchlike import WORKLOADS
from workloads.torchlike import gpt as gpt_steps

HALVES = ("float16", "bfloat16")
WINDOWS = re.compile("conv|pool|fold")
LARGE = 1 << 16  # bytes: less is read in no time
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
EXAMPLES = {"MLP": "mnist", "batch-norm MLP": "makemore", "GRU": "gru", "convnet": "convnet", "GPT": "gpt-medium"}
MAX_LAUNCHES_PER_LAYER, MAX_OPTIMIZER_LAUNCHES, MAX_BYTES_RATIO, COLD, WARM = 14, 2, 1.3, 60.0, 1.0  # what is aimed at


def recorded(make: Callable[[], Any], halves: bool = False) -> list[Graph]:
    """The graphs of a training step, as it is compiled; with autocast to bfloat16, if that is wanted."""
    training = make()
    loss = training.loss

    def in_halves(*batch: Any) -> Any:
        with tj.autocast("cpu", dtype=tj.bfloat16):
            return loss(*batch)

    training.loss = in_halves if halves else loss
    step = tj.compile(training.step)
    with recording(100) as found:
        for _ in range(4):
            step(*training.batches[0])
    return [graph for _, graph in found.graphs]


def workload(name: str) -> Callable[[], Any]:
    return lambda: WORKLOADS[name](tj, DATA[name]())


def gpt_of(layers: int) -> Callable[[], Any]:
    sizes = replace(GPT_MEDIUM, layers=layers)
    return lambda: gpt_steps(sizes, tj, gpt(sizes))


# ---- counts


@dataclass
class Counts:
    launches: int
    bytes: int


def of_eager(graph: Graph) -> Counts:
    """Launches and bytes of ops as they were recorded."""
    count = size = 0
    for node in graph.nodes:
        if node.op.kind != "movement" and node.op.name != "constant":
            count += 1
            size += sum(graph.forms[x].nbytes for x in {*node.values(), *node.results})
    return Counts(count, size)


def of_primitives(work: PrimitiveGraph) -> Counts:
    """The same of what ops are made of; numbers are the CPU's business."""
    count = size = 0
    for node in work.nodes:
        computes = node.op.kind != "movement" and node.op.name != "constant" and not set(node.results) & work.rematerialized
        if computes and any(work.forms[x].size > 1 for x in (*node.values(), *node.results)):
            count += 1
            size += sum(work.forms[x].nbytes for x in {*node.values(), *node.results})
    return Counts(count, size)


def of_units(units: list[Unit], forms: dict[str, Any]) -> Counts:
    return Counts(len(units), sum(bytes_moved(x, forms) for x in units))


def one_by_one(graph: Graph, target: str) -> list[Unit]:
    build = build_for(graph, target)
    writer = UnitBuilder(build.prints)
    return [x for launch in build.steps for x in writer.of(launch)]


def for_optimizer(units: list[Unit], graph: Graph) -> int:
    """Launches that do nothing but update parameters and what optimizers keep of them. Other updates go along with what makes
    their gradients."""
    written = {w.input.name for w in graph.write_backs}
    return sum(x.kind == "nest" and all(written & y.writes for y in x.launches) for x in units)


# ---- the least possible


@dataclass
class Group:
    rows: bool  # not a contraction, so that reductions of rows can be part of it
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)


class Groups:
    """Fusable groups of a graph: see the module's text."""

    def __init__(self, work: PrimitiveGraph) -> None:
        self.forms = work.forms
        self.groups: list[Group] = []
        self.home: dict[str, int] = {}  # of values: the group that makes them
        self.sources: dict[str, frozenset[str]] = {x.name: frozenset([x.name]) for x in work.inputs}  # what is read for a value
        self.readers: dict[str, list[Node]] = {}
        self.rows: dict[tuple[int, tuple[int, ...]], int] = {}  # of contractions' results and shapes: who adds up their rows
        kept = {v for _, v in work.outputs} | {v for _, v in work.write_backs}
        for node in work.nodes:
            for x in node.values():
                self.readers.setdefault(x, []).append(node)
        for node in work.nodes:
            if not set(node.results) & work.rematerialized:
                self.place(node, bool(kept & set(node.results)))
        for name in kept:
            self.written(name)

    def of(self, name: str) -> frozenset[str]:
        """Return the values that have to be read for a value. One that is rematerialised counts as if it had been kept."""
        return self.sources[name.removesuffix("_again")]

    def place(self, node: Node, kept: bool) -> None:
        sources = frozenset[str]().union(*[self.of(x) for x in node.values()])
        latest = max((self.home.get(x, -1) for x in sources), default=-1)
        if not kept and (latest < 0 or self.follows(node, sources)) and not self.anchor(node):
            self.sources.update(dict.fromkeys(node.results, sources))  # whoever reads it computes it
            return
        if latest < 0 or self.begins(node, latest):
            key = (latest, self.forms[node.results[0]].shape) if node.op.name in REDUCTIONS else (len(self.groups), ())
            if key not in self.rows:
                self.groups.append(Group(rows=not self.anchor(node) or node.op.name in REDUCTIONS))
                self.rows[key] = len(self.groups) - 1
            latest = self.rows[key]
        for x in sources:
            if self.home.get(x) != latest:
                self.groups[latest].reads.add(x)
                self.written(x)
        self.home.update(dict.fromkeys(node.results, latest))
        self.sources.update({x: frozenset([x]) for x in node.results})

    def anchor(self, node: Node) -> bool:
        return node.op.kind == "contraction" or node.op.name in (*ATTENTION, *REDUCTIONS)

    def follows(self, node: Node, sources: frozenset[str]) -> bool:
        """True if a value follows from one that is as large, or is only added up: its readers read that one instead."""
        size = max(self.forms[x].size for x in node.results)
        readers = [r for x in node.results for r in self.readers.get(x, [])]
        if len(readers) == 1 and readers[0].op.name in REDUCTIONS:
            return True
        return node.op.kind == "movement" or sum(2 * self.forms[x].size > size for x in sources) <= 1

    def begins(self, node: Node, latest: int) -> bool:
        if self.anchor(node) and node.op.name not in REDUCTIONS:
            return True
        of_rows = node.op.name in REDUCTIONS and len(self.forms[node.operands[0]].shape) - 1 in node.attrs["dims"]
        return of_rows and not self.groups[latest].rows

    def written(self, name: str) -> None:
        if name in self.home:
            self.groups[self.home[name]].writes.add(name)

    def counts(self) -> Counts:
        size = sum(self.forms[x].nbytes for g in self.groups for x in (*g.reads, *g.writes))
        return Counts(len(self.groups), size)


# ---- compiling


def compile_times(units: list[Unit], target: str) -> dict[str, float]:
    """Seconds of all kernels with nothing in the caches, and with everything in them."""
    wanted = [CompileRequest(x.printed, x.kernel) for x in units if x.printed is not None and x.kernel is not None]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TAPEJIT_CACHE_DIR": f"{folder}/tapejit", "TRITON_CACHE_DIR": f"{folder}/triton"}
        for name in ("cold", "warm"):
            began, cpu = time.perf_counter(), cpu_seconds()
            compile_kernels(wanted, target)
            found |= {name: time.perf_counter() - began, f"{name} cpu": cpu_seconds() - cpu}
    return found


def cpu_seconds() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def compile_everything(names: list[str], targets: list[str], halves: bool) -> list[dict[str, Any]]:
    """Count the distinct kernels of each workload and target, and list their faults."""
    found = []
    for name in names:
        graphs = recorded(workload(EXAMPLES[name]), halves)
        for target in targets:
            found.append({"workload": name, "target": target, "halves": halves} | compiled_for(graphs, target))
            print(row_text(found[-1]), flush=True)
    return found


def compiled_for(graphs: list[Graph], target: str) -> dict[str, Any]:
    """All kernels of some graphs, compiled."""
    units = [(x, forms) for graph in graphs for found, forms in [units_of(graph, target)] for x in found]
    kernels = {(x.printed.source, x.kernel.name): (x, f) for x, f in units if x.printed is not None and x.kernel is not None}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda given: faults(*given, target), kernels.values()))
    called = [y.node.op.name for x, _ in units if x.called for y in x.launches if y.node is not None]
    return {"launches": len(units), "kernels": len(kernels), "called": called, "faults": [x for row in rows for x in row]}


def faults(x: Unit, forms: dict[str, Any], target: str) -> list[str]:
    """Compile a kernel, and describe its faults."""
    assert x.printed is not None and x.kernel is not None
    try:
        made = compile_kernel(x.printed, x.kernel, target)
        used = resources(made, target)
    except Exception as reason:
        return [f"{x.kernel.name} does not compile: {(str(reason).strip() or type(reason).__name__).splitlines()[-1]}"]
    assembly = made.asm["amdgcn" if target.startswith("gfx") else "ptx"]
    halves = x.kind in ("matmul", "attention") and compute_dtype(x, forms) in HALVES
    found = {
        f"spills {used.spills} bytes": used.spills > 0,
        f"wants {used.shared} bytes of shared memory": used.shared > shared_memory(target),
        "has other parameters than are packed": parameter_sizes(made) != launched_parameter_sizes(x.kernel),
        "multiplies halves without matrix units": halves and MATRIX_INSTRUCTION.search(assembly) is None,
        "reads large rows by less than 128 bits": in_vectors(x, x.reads, forms) and 128 not in used.loads,
        "writes large rows by less than 128 bits": in_vectors(x, x.writes, forms) and max(used.stores) < widest(x, target),
    }
    return [f"{x.kernel.name} {what}" for what, so in found.items() if so]


def in_vectors(x: Unit, names: Iterable[str], forms: dict[str, Any]) -> bool:
    """True if all large buffers have rows of whole vectors. Windows of convolutions and pooling are read by element."""
    if any(y.nest is None or WINDOWS.search(" ".join(y.nest.ops)) for y in x.launches):
        return False
    added = {s.buffer for y in x.launches if y.nest is not None for s in y.nest.scatters}  # atomically, one by one
    large = [forms[name] for name in names if name in forms and name not in added and forms[name].nbytes >= LARGE]
    return bool(large) and all(f.shape[-1] * f.itemsize % 16 == 0 for f in large)


def widest(x: Unit, target: str) -> int:
    """The bits of a store: AMD's matrix units leave four elements of a row in a thread."""
    return 64 if target.startswith("gfx") and x.kind == "matmul" else 128


def row_text(row: dict[str, Any]) -> str:
    counts = f"{row['launches']:4} launches {row['kernels']:4} kernels"
    name = row["workload"] + ", bfloat16" * row["halves"]
    called = f"  called: {', '.join(row['called'])}" if row["called"] else ""
    return f"{name:26} {row['target']:7} {counts}{called}  {'; '.join(row['faults']) or 'nothing is wrong'}"


# ---- the table


def verdict(name: str, value: float, most: float, unit: str = "") -> str:
    return f"{name:44} {value:10.2f}{unit:3} at most {most:g}{unit}: {'yes' if value <= most else 'NO'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_90", choices=TARGETS)
    parser.add_argument("--layers", type=int, default=GPT_MEDIUM.layers, help="of the GPT that is counted, 2 at least")
    parser.add_argument("--compile", action="store_true", help="compile all kernels of all workloads: it takes long")
    parser.add_argument("--no-times", action="store_true", help="do not measure how long compiling takes")
    parser.add_argument("--only", nargs="*", default=list(EXAMPLES), help="workloads to compile")
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), help="targets to compile for")
    parser.add_argument("--halves", action="store_true", help="compile what autocast to bfloat16 makes of them")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = compile_everything(options.only, options.targets, options.halves) if options.compile else counted(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def counted(options: argparse.Namespace) -> dict[str, Any]:
    (graph,), (fewer,) = recorded(gpt_of(options.layers)), recorded(gpt_of(options.layers - 1))
    units, forms = units_of(graph, options.target)
    work = build_for(graph, options.target).work
    rows = {
        "eager": of_eager(graph),
        "primitives": of_primitives(work),
        "one by one": of_units(one_by_one(graph, options.target), forms),
        "compiled": of_units(units, forms),
        "least": Groups(work).counts(),
    }
    print(f"{f'GPT, {options.layers} layers, 384 wide, AdamW':32} {'launches':>9} {'MB':>9}")
    for name, counts in rows.items():
        print(f"{name:32} {counts.launches:9} {counts.bytes / 1e6:9.1f}")
    layer = len(units) - len(units_of(fewer, options.target)[0])
    ratio = rows["compiled"].bytes / rows["least"].bytes
    print()
    print(verdict("launches of each layer, forward and backward", layer, MAX_LAUNCHES_PER_LAYER))
    optimizer = for_optimizer(units, graph)
    print(verdict("launches of the optimizer alone", optimizer, MAX_OPTIMIZER_LAUNCHES))
    print(verdict("bytes against the least", ratio, MAX_BYTES_RATIO))
    found = {name: vars(counts) for name, counts in rows.items()} | {"layer": layer, "optimizer": optimizer, "ratio": ratio}
    found |= {"called": [y.node.op.name for x in units if x.called for y in x.launches if y.node is not None]}
    if not options.no_times:
        times = compile_times(units, options.target)
        print(verdict("compiling, cold: CPU time of each of 2 cores", times["cold cpu"] / 2, COLD, " s"))
        print(verdict("compiling, warm: CPU time", times["warm cpu"], WARM, " s"))
        print(f"as the machine is busy now, these took {times['cold']:.1f} s and {times['warm']:.2f} s")
        found |= {"times": times}
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
