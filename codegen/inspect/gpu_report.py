"""Reports GPU programs as plain data, in the same format as native ones (`kernel_report.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..nests.cost_model import flops, traffic
from ..schedule.memory_plan import MemoryPlan
from ..triton.launches.launch_unit import Unit
from .kernel_report import buffers_of, call_text, describe_kernel, memory_of, nodes_of, parse_decision, source_facts

if TYPE_CHECKING:
    from ..triton.program import GpuProgram

UNTIMED = "kernels are not timed on a GPU; use the vendor's profiler"


def report(gpu: GpuProgram, texts: bool) -> dict[str, Any]:
    """Report a whole program. With `texts`, each distinct kernel's text is included once."""
    build = gpu.build
    assembly = build.assembly(frozenset())
    known: dict[str, int] = {}
    kernels = [kernel(gpu, x, i, known, texts) for i, x in enumerate(assembly.units)]
    arena: MemoryPlan = assembly.arena
    return {
        "target": gpu.target,
        "from_disk": gpu.from_disk,
        "kernels": kernels,
        "functions": len(known),
        "barriers": 0,
        "memory": memory_of(arena),
        "buffers": buffers_of(build.work, [b for x in build.steps for b in x.buffers]),
        "decisions": [parse_decision(words) for words in build.decisions],
        "names": build.work.names,
        "roof": None,
    }


def kernel(gpu: GpuProgram, unit: Unit, number: int, known: dict[str, int], texts: bool) -> dict[str, Any]:
    build = gpu.build
    forms, work = build.forms, build.work
    made_by = {name: node for node in work.nodes for name in node.results}
    backs = {value: w.input.name for w, value in work.write_backs}
    nodes = list(dict.fromkeys(node for x in unit.launches for node in nodes_of(x, made_by, backs)))
    source = source_facts(nodes, forms)
    kind = "loops" if unit.kind == "nest" else unit.kind
    first, more = unit.launches[0], len(unit.launches) - 1
    moved = [traffic(x, forms) for x in unit.launches]
    read = {name: size for x, _ in moved for name, size in x.items() if name in unit.reads}
    written = {name: size for _, x in moved for name, size in x.items() if name in unit.writes}
    if unit.gemm is not None:
        sizes = unit.gemm.bytes()
        read, written = {b: sizes[b] for b in sorted(unit.reads)}, {b: sizes[b] for b in sorted(unit.writes)}
    count = [flops(x, forms) for x in unit.launches if x.kind == unit.kind]  # a launch's flops count at its first kernel
    text = None if unit.printed is None else unit.printed.source
    what = describe_kernel(first, kind, forms, len(source["ops"])) + f", and {more} more of its kind" * bool(more)
    what = f"{what}, {unit.gemm}" if unit.gemm is not None else what
    what = f"the rest of the {what}" if first.kind != unit.kind and first.node is not None else what
    found: dict[str, Any] = {
        "step": number,
        "kind": kind,
        "what": what,
        "call": None if first.node is None else call_text(first, forms),
        "nest": "\n".join(str(x.nest) for x in unit.launches if x.nest is not None) or None,
        "loops": sum(sum(stage.loops for stage in x.nest.stages) for x in unit.launches if x.nest is not None),
        **source,
        "read": read,
        "written": written,
        "bytes": sum(read.values()) + sum(written.values()),
        "flops": None if None in count else sum(n for n in count if n is not None),
        "seconds": None,
        "untimed": UNTIMED,
        **dict.fromkeys(("gigabytes_per_second", "gigaflops", "least_seconds", "bound", "roofline")),
    }
    if text is not None:
        same = known.setdefault(text, number)
        found["same_code_as"] = None if same == number else same
        if texts and same == number:
            found["triton"] = text
    return found
