"""Whole training steps on a GPU: tapejit eager and compiled, and PyTorch eager and compiled where it finds the GPU too.

    python bench/gpu.py [NAME ...] [--rounds 5] [--steps 20]

All run in this process, from the same weights and batches, and take turns. Losses are compared before any time is printed.
Without a GPU it says so, and measures nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tapejit as tj
from workloads.data import DATA
from workloads.torchlike import WORKLOADS

NAMES = ("mnist", "makemore", "convnet", "gpt-small", "gpt-medium")
FIRST = 6  # steps whose losses are compared, in which everybody must have compiled
TOLERANCE = 1e-3  # relative, of each loss: float32 sums in another order, and Adam's division by small numbers


@dataclass
class Side:
    """A library, in one of its ways, that trains."""

    name: str
    step: Callable[..., Any]
    batches: list[tuple[Any, ...]]
    wait: Callable[[], None]
    losses: list[float] = field(default_factory=list)
    best: float = math.inf  # seconds of a step

    def start(self) -> None:
        self.losses = [float(self.step(*self.batches[i % len(self.batches)])) for i in range(FIRST)]

    def measure(self, steps: int) -> None:
        self.wait()
        began = time.perf_counter()
        for i in range(steps):
            self.step(*self.batches[i % len(self.batches)])
        self.wait()
        self.best = min(self.best, (time.perf_counter() - began) / steps)


def side(torch: Any, workload: str, name: str, compile: Callable[[Any], Any]) -> Side:
    """A workload on the GPU."""
    torch.set_default_device("cuda")
    try:
        training = WORKLOADS[workload](torch, DATA[workload]())
    finally:
        torch.set_default_device("cpu")
    batches = [tuple(x.to("cuda") for x in batch) for batch in training.batches]
    return Side(name, compile(training.step), batches, torch.cuda.synchronize)


def sides(workload: str) -> list[Side]:
    found = [side(tj, workload, "tapejit eager", lambda f: f), side(tj, workload, "tapejit compiled", tj.compile)]
    try:
        import torch
    except ImportError:
        return found
    if torch.cuda.is_available():
        found += [side(torch, workload, "PyTorch eager", lambda f: f), side(torch, workload, "torch.compile", torch.compile)]
    return found


def compared(workload: str, rounds: int, steps: int) -> list[Side]:
    """All sides of a workload, measured; ValueError if one of them computes something else."""
    found = sides(workload)
    for x in found:
        x.start()
        for a, b in zip(x.losses, found[0].losses, strict=True):
            if not math.isclose(a, b, rel_tol=TOLERANCE):
                raise ValueError(
                    f"{workload}: the losses of {x.name} are {x.losses}, those of {found[0].name} {found[0].losses}"
                )
    for _ in range(rounds):
        for x in found:
            x.measure(steps)
    return found


def launches(step: Any) -> str:
    """Describe how a compiled step runs."""
    programs = [s.native for trace in step.traces for s in trace.programs.values() if s.native is not None]
    return "; ".join(p.what for p in programs) or "without kernels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    if not tj.cuda.is_available():
        print("there is no GPU here: nothing is measured; bench/gpu_static.py says what can be known without one")
        return
    print(tj.cuda.get_device_name())
    for name in given.names:
        found = compared(name, given.rounds, given.steps)
        print(f"\n{name}")
        for x in found:
            print(f"  {x.name:20}{1e3 * x.best:10.3f} ms{found[0].best / x.best:8.2f}x")
        print(f"  {launches(found[1].step)}")


if __name__ == "__main__":
    main()
