"""Report a native program as plain data: its kernels, its memory plan, and the decisions behind them.

`fn.explain(kernels=True)` shows it. Nothing here is needed to run a program.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ...tracer.graph.ir import Form, Node
from ..llvm.contractions import contraction_problem
from ..llvm.gemm.problem import DOT_PAIRS_INTRINSIC, GemmProblem
from ..llvm.ir.target import host
from ..llvm.program import NativeProgram
from ..llvm.runtime import jit
from ..llvm.step_function import KernelCall
from ..llvm.tuning.plans import TunedPlans
from ..nests.cost_model import flops, traffic
from ..nests.kernels import Launch
from ..prepare.primitive_graph import PrimitiveGraph
from ..schedule.memory_plan import MemoryPlan
from .kernel_timing import time_kernels
from .machine_peaks import machine_peaks

SHARES = re.compile(r"shares (\d+) bytes")
MIN_TIMED = 2e-7  # seconds: shorter times cannot be told from the call itself
STEP = re.compile(r"^(?P<value>[^=:]+?)(?: = (?P<op>\w+))?: (?:step (?P<step>\d+): )?(?P<reason>.*)$")


def report(native: NativeProgram, llvm: bool = False, assembly: bool = False) -> dict[str, Any]:
    """Report a whole program. `llvm` and `assembly` add texts, once per distinct kernel; beside the LLVM text stands the Triton
    text that a GPU would be given for the same loops."""
    forms = native.prepared.forms
    times = time_kernels(native.build)
    made_by = {name: node for node in native.prepared.nodes for name in node.results}
    backs = {value: w.input.name for w, value in native.prepared.write_backs}
    known: dict[str, int] = {}  # by text of a kernel: the first step that has it
    kernels = []
    for launch, made, time in zip(native.launches, native.made, times, strict=True):
        source = source_facts(nodes_of(launch, made_by, backs), forms)
        facts = kernel_facts(launch, made, forms, len(source["ops"]), native.build.plans)
        kernels.append({**facts, **source, **throughput(launch, forms, time)})
        if made is not None:
            kernels[-1].update(generated_texts(made, known, llvm, assembly))
            if "llvm" in kernels[-1] and launch.kind == "nest":
                kernels[-1]["triton"] = triton_text(launch, forms)
        kernels[-1].update(roofline_share(kernels[-1], forms))
    found: dict[str, Any] = {
        "target": str(host()),
        "from_disk": native.from_disk,
        "kernels": kernels,
        "functions": sum(text.count("define void") for text in native.texts[-1:]),
        "barriers": sum(text.count("call void @tj_barrier") for text in native.texts[-1:]),
        "memory": memory_of(native.arena),
        "buffers": buffers_of(native.prepared, [b for launch in native.launches for b in launch.buffers]),
        "decisions": [parse_decision(words) for words in native.decisions],
        "names": native.prepared.names,
        "roof": {"copies": [list(c) for c in machine_peaks().copies], "flops": machine_peaks().flops},
    }
    if llvm:
        found["llvm"] = native.texts[-1]
    return found


# ---- one kernel


def kernel_facts(
    launch: Launch, made: KernelCall | None, forms: dict[str, Form], ops: int, plans: TunedPlans | None
) -> dict[str, Any]:
    nest, node = launch.nest, launch.node
    kind = "opaque" if made is None else "loops" if launch.kind == "nest" else launch.kind
    found: dict[str, Any] = {
        "step": launch.step.number,
        "kind": kind,
        "what": describe_kernel(launch, kind, forms, ops),
        "call": None if node is None else call_text(launch, forms),
        "nest": None if nest is None else str(nest),
        "loops": 0 if nest is None else sum(stage.loops for stage in nest.stages) + len(nest.scatters),
    }
    if made is not None:
        found["pieces"] = [phase.pieces for phase in made.kernel.phases]
        found["shared"], found["scratch"] = made.kernel.shared, made.kernel.scratch
        found["in_pairs"] = DOT_PAIRS_INTRINSIC in made.text
        found["plan"] = None if made.kernel.gemm_shape is None or plans is None else plans.describe(made.kernel.gemm_shape)
    return found


def call_text(launch: Launch, forms: dict[str, Form]) -> str:
    """Format the op of a kernel, with its operands as views of buffers."""
    node = launch.node
    assert node is not None
    given = []
    for x in node.values():
        if x in launch.computed:
            given.append(f"{x} computed while packing")
            continue
        buffer, offset, strides = launch.operands[x]
        view = f" as {list(forms[x].shape)} by strides {list(strides)}" + f" from {offset}" * bool(offset)
        given.append(buffer if x == buffer else buffer + view)
    return f"{', '.join(node.results)} = {node.op.name}({', '.join(given)})"


def describe_kernel(launch: Launch, kind: str, forms: dict[str, Form], ops: int) -> str:
    """Describe a kernel in one line."""
    node, nest = launch.node, launch.nest
    if node is None:
        assert nest is not None
        if launch.check:
            return f"bounds check of {nest.domain.rows * nest.domain.cols} indices"
        if nest.fused_with:
            return f"loops over {len(nest.all)} arrays of {sum(n.domain.cols for n in nest.all):,} elements in total"
        return f"{'sums at indices' if nest.scatters else 'loops'} over {nest.domain}"
    if kind == "opaque":
        return f"{node.op.name}, an opaque op: {opaque_reason(launch, forms)}"
    if kind == "scan":
        return f"{node.op.name} of {list(forms[node.results[0]].shape)} along dim {node.attrs['dim']}"
    if kind == "attention":
        query = forms[node.operands[1 if node.op.name == "attention_backward" else 0]].shape
        return f"{node.op.name} of queries {list(query)}, without a matrix of scores in memory"
    assert nest is not None
    then = f", then {ops - 1} more op{'s' * (ops != 2)}" if ops > 1 else ""
    spec = contraction_problem(launch, forms)
    if isinstance(spec, GemmProblem):
        batch = f"{math.prod(spec.batch)} matmuls" if spec.batch else "matmul"
        return f"{batch}, m {spec.m} n {spec.n} k {spec.k}{then}"
    shapes = " and ".join(str(list(forms[x].shape)) for x in node.operands)
    return f"{node.op.name} of {shapes}{then}"


def opaque_reason(launch: Launch, forms: dict[str, Form]) -> str:
    """Explain why an op has no generated code."""
    node = launch.node
    assert node is not None
    kinds = sorted({forms[x].dtype.name for x in (*node.values(), *node.results)})
    if any(forms[x].size == 0 for x in (*node.values(), *node.results)):
        return "it has no elements"
    return f"no code is generated for it on {', '.join(kinds)} of this shape, so its eager kernel is called"


def nodes_of(launch: Launch, made_by: dict[str, Node], backs: dict[str, str]) -> list[Node]:
    """Collect all ops that a kernel computes, including inlined ones."""
    members = launch.step.members
    found: dict[Node, None] = {}
    if launch.node is not None:
        found[launch.node] = None
    stack = [m.node for m in members.values()]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found[node] = None
        for x in node.values():
            if x not in members and x in made_by and backs.get(x, x) not in launch.reads:
                stack.append(made_by[x])
    order = {node: i for i, node in enumerate(made_by.values())}
    return sorted(found, key=lambda node: order.get(node, len(order)))


def source_facts(nodes: list[Node], forms: dict[str, Form]) -> dict[str, Any]:
    """Classify the ops of a kernel: those that compute, and those that only move elements or make constants ("free"). Also
    gives the user's source lines, the values made, and the bytes the ops would move if each ran unfused."""
    free = [node.op.kind in ("movement", "create") for node in nodes]
    alone = [node for node, moves in zip(nodes, free, strict=True) if not moves]
    return {
        "values": [name for node in nodes for name in node.results],
        "op_by_op": sum(forms[name].nbytes for node in alone for name in (*dict.fromkeys(node.values()), *node.results)),
        "ops": [node.op.name for node, moves in zip(nodes, free, strict=True) if not moves],
        "free": [node.op.name for node, moves in zip(nodes, free, strict=True) if moves],
        "lines": list(dict.fromkeys(node.line for node in nodes if node.line)),
    }


def throughput(launch: Launch, forms: dict[str, Form], time: float | None) -> dict[str, Any]:
    read, written = traffic(launch, forms)
    moved, count = sum(read.values()) + sum(written.values()), flops(launch, forms)
    return {
        "read": read,
        "written": written,
        "bytes": moved,
        "flops": count,
        "seconds": time,
        "gigabytes_per_second": moved / time / 1e9 if time else None,
        "gigaflops": count / time / 1e9 if time and count is not None else None,
    }


def generated_texts(made: KernelCall, known: dict[str, int], llvm: bool, assembly: bool) -> dict[str, Any]:
    first = known.setdefault(made.text, made.launch.step.number)
    if first != made.launch.step.number:
        return {"same_code_as": first}
    found: dict[str, Any] = {"same_code_as": None}
    if llvm:
        found["llvm"] = made.text
    if assembly:
        found["assembly"] = jit.assembly(made.text)
    return found


def triton_text(launch: Launch, forms: dict[str, Form]) -> str:
    """Print the loops of a kernel as a Triton kernel."""
    from ..triton.launches.table_kernel import print_table_kernel, table_member
    from ..triton.loops.print_nest import print_nest

    assert launch.nest is not None
    if launch.nest.fused_with:
        return print_table_kernel([m for m in map(table_member, launch.nest.all) if m is not None], "table").source
    return print_nest(launch.nest, {name: forms[name].size for name in launch.buffers}).source


def roofline_share(kernel: dict[str, Any], forms: dict[str, Form]) -> dict[str, Any]:
    """Compute the roofline of a kernel: the least time on this machine, its bound, and its share of the measured time."""
    if kernel["seconds"] is None or kernel["flops"] is None or kernel["seconds"] < MIN_TIMED:
        return {"least_seconds": None, "bound": None, "roofline": None}
    double = any(forms[name].dtype.name == "float64" for name in kernel["values"])
    least, bound = machine_peaks().least_seconds(kernel["bytes"], kernel["flops"], double, kernel.get("in_pairs", False))
    return {"least_seconds": least, "bound": bound, "roofline": least / kernel["seconds"]}


# ---- the whole


def memory_of(arena: MemoryPlan) -> dict[str, Any]:
    lives = [
        {"name": name, "offset": arena.offsets[name], "size": arena.sizes[name], "first": first, "last": last}
        for name, (first, last) in arena.lives.items()
    ]
    return {
        "lives": lives,
        "bytes": arena.size,
        "together": sum(arena.sizes.values()),
        "buffers": len(arena.offsets),
        "text": str(arena),
    }


def buffers_of(work: PrimitiveGraph, names: list[str]) -> dict[str, dict[str, Any]]:
    """Shape, dtype and kind of the buffers that appear in nests."""
    forms = work.forms
    kinds = {x.name: "input" for x in work.inputs}
    kinds |= {name: "constant" for node in work.nodes if node.op.name == "constant" for name in node.results}
    kinds |= {value: "output" for _, value in work.outputs if value not in kinds}
    written = {w.input.name for w, _ in work.write_backs}
    found = {}
    for name in dict.fromkeys(names):
        kind = kinds.get(name, "arena") + (", written" if name in written else "")
        found[name] = {"shape": list(forms[name].shape), "dtype": forms[name].dtype.name, "kind": kind}
    return found


def parse_decision(words: str) -> dict[str, Any]:
    """Parse a decision into a record of its parts."""
    match = STEP.match(words)
    found: dict[str, Any] = {"words": words, "value": None, "op": None, "step": None, "reason": words, "score": None}
    if match is not None:
        found.update(match.groupdict())
        found["step"] = None if found["step"] is None else int(found["step"])
    shared = SHARES.search(words)
    if shared is not None:
        found["score"] = int(shared[1])
    return found
