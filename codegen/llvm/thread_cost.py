"""Whether a brief program is worth more than one thread: roughly how long its rounds take on one and on two.

Kernels that need each other's results are in rounds one after the other, and a barrier is between two. Where most rounds are
one small kernel, as in a loop of a recurrent network, a second thread has nothing to do but to wait, and be waited for when the
machine is busy. Larger programs find out by trying (`choice.py`).
"""

from __future__ import annotations

from ...tracer.graph.ir import Form
from ..nests.cost_model import flops
from .step_function import MANY, Made
from .ir.kernel import Phase

CALL, BARRIER = 100.0, 500.0  # nanoseconds
PRODUCT = 0.007  # nanoseconds for each float that is computed
EACH = {"nest": 0.05, "scan": 0.5}  # of other kernels, where some are exponentials, or wait for the one before


def gain(rounds: list[list[tuple[Made, Phase]]], forms: dict[str, Form]) -> float:
    """How many times as quick two threads are as one, if they have a core each."""
    alone = together = 0.0
    for items in rounds:
        shares = [0.0, 0.0]
        small: list[float] = []
        for made, phase in items:
            took = nanoseconds(made, phase, forms)
            alone += took
            if phase.pieces >= MANY:
                first = phase.pieces // 2 / phase.pieces
                shares = [shares[0] + took * first, shares[1] + took * (1 - first)]
            else:
                small += [took / phase.pieces] * phase.pieces
        half = len(small) // 2
        together += BARRIER + max(shares[0] + sum(small[:half]), shares[1] + sum(small[half:]))
    return alone / together if together else 1.0


def nanoseconds(made: Made, phase: Phase, forms: dict[str, Form]) -> float:
    """Of a phase; of those that are not aside, that with most pieces is where the work is."""
    if phase is not max(made.kernel.phases, key=lambda x: (not x.aside, x.pieces)):
        return CALL
    return CALL + (flops(made.launch, forms) or 0) * EACH.get(made.launch.kind, PRODUCT)
