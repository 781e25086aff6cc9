"""Estimates whether a second thread pays for a brief program, from the time of its rounds on one thread and on two.

Kernels that need each other's results are in consecutive rounds, with a barrier between. Where most rounds are one small
kernel, as in the loop of a recurrent network, a second thread would only wait, and be waited for when the machine is busy.
Larger programs find out by measuring (`codegen/llvm/runtime/thread_choice_ir.py`).
"""

from __future__ import annotations

from ...tracer.graph.ir import Form
from ..nests.cost_model import flops
from .ir.kernel import Phase
from .step_function import MIN_SHARED_PIECES, KernelCall

CALL_NS, BARRIER_NS = 100.0, 500.0
MATMUL_FLOP_NS = 0.007  # per flop
OP_NS = {"nest": 0.05, "scan": 0.5}  # per op of other kernels: some are exponentials, or wait for the one before


def two_thread_speedup(rounds: list[list[tuple[KernelCall, Phase]]], forms: dict[str, Form]) -> float:
    """Speedup of two threads over one, if each has a core."""
    alone = together = 0.0
    for items in rounds:
        shares = [0.0, 0.0]
        small: list[float] = []
        for made, phase in items:
            took = phase_nanoseconds(made, phase, forms)
            alone += took
            if phase.pieces >= MIN_SHARED_PIECES:
                first = phase.pieces // 2 / phase.pieces
                shares = [shares[0] + took * first, shares[1] + took * (1 - first)]
            else:
                small += [took / phase.pieces] * phase.pieces
        half = len(small) // 2
        together += BARRIER_NS + max(shares[0] + sum(small[:half]), shares[1] + sum(small[half:]))
    return alone / together if together else 1.0


def phase_nanoseconds(made: KernelCall, phase: Phase, forms: dict[str, Form]) -> float:
    """Time of a phase: the main phase has the kernel's work, auxiliary ones only the cost of a call."""
    if phase is not max(made.kernel.phases, key=lambda x: (not x.auxiliary, x.pieces)):
        return CALL_NS
    return CALL_NS + (flops(made.launch, forms) or 0) * OP_NS.get(made.launch.kind, MATMUL_FLOP_NS)
