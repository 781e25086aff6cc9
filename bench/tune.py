"""Cost and gain of `tj.compile(step, tune=True)`: whole training steps by the model's plans, and by measured ones.

    python bench/tune.py [NAME ...] [--rounds 40] [--threads N]

Names are those of `bench/steps.py`. Each step is compiled twice with an empty disk cache: without tuning, then with it. `cold`
is what the first call took; `again` is the same for a function that finds everything on disk. Losses have to be the same, bit
for bit. Then both take turns; best time of a step, and the ratio within this run. `same` is the ratio for a second copy of the
untuned program: what is no further from 1 says nothing. `cores` is CPU time by time on the clock: on a busy machine programs
run alone, whatever --threads says, and the figures are those of one thread.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

import tapejit as tj
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.tuning.store import MODEL_PLAN, tuning_store
from workloads.torchlike import training

STEPS = 8  # whose losses are compared


class Side:
    """A step, compiled with or without tuning."""

    def __init__(self, name: str, tune: bool) -> None:
        made = training(tj, name)
        self.batches = made.batches
        self.step: Any = tj.compile(made.step, tune=tune, backend="llvm")
        began = time.perf_counter()
        losses = [self.step(*self.batches[0])]
        self.cold = time.perf_counter() - began
        losses += [self.step(*self.batches[i % len(self.batches)]) for i in range(1, STEPS)]
        self.losses = [x.detach().numpy().tobytes() for x in losses]

    def seconds(self) -> float:
        """The mean over all batches."""
        began = time.perf_counter()
        for batch in self.batches:
            self.step(*batch)
        return (time.perf_counter() - began) / len(self.batches)


def compare(name: str, rounds: int) -> str:
    known = tuning_store(host()).outcomes
    before = set(known)
    sides = [Side(name, tune) for tune in (False, False, True)]
    again = Side(name, True).cold
    if any(side.losses != sides[0].losses for side in sides):
        raise SystemExit(f"{name}: tuning changes the bits of losses")
    new = [known[shape] for shape in known.keys() - before]
    better = [x.gain for x in new if x.plan != MODEL_PLAN]
    wall, cpu = time.perf_counter(), time.process_time()
    times = [[side.seconds() for side in sides] for _ in range(rounds)]
    cores = (time.process_time() - cpu) / (time.perf_counter() - wall)
    model, copy, tuned = (min(column) for column in zip(*times, strict=True))
    most = f"{max(better) - 1:.0%} at most" if better else "none"
    shapes = f"{len(new):3} tuned, {len(better)} of them gain: {most}"
    cold = "".join(f"{x:9.2f}" for x in (sides[0].cold, sides[2].cold, again))
    return f"{name:12}{cold}{1e3 * model:11.3f}{1e3 * tuned:9.3f}{model / tuned:8.3f}{model / copy:8.3f}{cores:7.2f}  {shapes}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["makemore", "mnist", "gpt-small"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    tj.set_num_threads(options.threads)
    head = f"{'':12}{'cold, s':>9}{'tuned':>9}{'again':>9}{'model, ms':>11}{'tuned':>9}{'ratio':>8}{'same':>8}{'cores':>7}"
    print(f"{head}  shapes of matmuls")
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TAPEJIT_CACHE_DIR"] = folder
            print(compare(name, options.rounds), flush=True)


if __name__ == "__main__":
    main()
