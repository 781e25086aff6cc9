"""`tapejit demo`: a character GPT learns Shakespeare's sonnets, first eagerly, then compiled, and both are compared.

Both trainings start from the same weights and see the same batches, so their losses must be equal. Ctrl-C ends a
training, and what was measured so far is printed. The number of steps is chosen so that the demo takes about two minutes. At
the end a page shows the compiled step.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from ....eager import cuda
from ....eager.core import library
from ....eager.random import manual_seed
from ....eager.utils.progress_bar import progress
from ...api.compile import compile
from ...api.compiled_function import CompiledFunction
from ..compare_speed import peak_bytes, segments
from ..files import RefusalError, check_writable
from ..observe_run import duration
from ..profiler.timeline import Timelines, noted
from ..report import write
from ..report.data import gather

EXAMPLES = Path(library.ROOT).resolve() / "examples"
SAME = 1e-3  # relative: rounding errors accumulate from step to step
EXTRA = 2  # steps that measure memory
STEPS, MIN_STEPS, SECONDS = 600, 60, 60  # steps of each training, unless the eager one would take longer than this
ROWS, COLUMNS = 8, 64  # size of the plotted curves
DOTS = 25  # dots of one curve on the page


class Training:
    """One of the two trainings, with its measurements."""

    def __init__(self, example: Any, steps: int, device: str, compiled: bool) -> None:
        manual_seed(1337)
        self.name = "compiled" if compiled else "eager"
        self.run = example.setup(example.tj, steps + EXTRA, device)
        self.step = compile(self.run.step, name="step") if compiled else self.run.step
        self.losses: list[Any] = []
        self.times: list[float] = []
        self.first: float | None = None  # seconds until the first replayed step was done
        self.replayed = 0  # steps up to that one
        self.peak: int | None = None
        self.stopped = False

    @property
    def compiled(self) -> CompiledFunction | None:
        return self.step if isinstance(self.step, CompiledFunction) else None

    def train(self, steps: int) -> None:
        bar = progress(range(steps), desc=f"{self.name:8}")
        began = perf_counter()
        try:
            for _ in bar:
                batch = next(self.run.batches)
                before = perf_counter()
                loss = self.step(*batch)
                self.losses.append(loss.detach())
                self.times.append(perf_counter() - before)
                bar.set_postfix(loss=loss)
                if self.first is None and self.compiled is not None and self.compiled.hits:
                    self.first, self.replayed = perf_counter() - began, len(self.times)
            self.peak = peak_bytes(lambda: self.step(*next(self.run.batches)), self.compiled)
        except KeyboardInterrupt:
            self.stopped = True
            bar.close()

    def numbers(self) -> list[float]:
        return [loss.item() for loss in self.losses[: len(self.times)]]

    def steady(self) -> float:
        """Seconds per step; for the compiled training, per replayed step."""
        return statistics.median(self.times[self.replayed :] or self.times)


def demo(wanted: int | None, path: Path) -> int:
    check_writable(path)
    example = example_named("chargpt")
    device = "cuda" if cuda.is_available() else "cpu"
    busy = load_warning()
    steps = fitting(example, device) if wanted is None else wanted
    print(f"A character GPT learns Shakespeare's sonnets on the {device.upper()}: ", end="")
    print(f"{steps} steps eagerly, then the same compiled.", flush=True)
    if busy:
        print(busy, flush=True)
    with noted() as timelines:
        done, stopped = both(example, steps, device)
    if not done:
        print("stopped before the first step was done")
        return 130
    lines = table(done, stopped)
    print("\n".join(lines))
    differs = len(done) == 2 and not print_comparison(done)
    if not stopped:
        made_up = ["", "A sample of what it writes:", *example.make_up(done[-1].run.model, device, 160).strip().splitlines()]
        print("\n".join(made_up))
        lines += made_up
    write(path, page_facts(done, timelines, lines, "stopped by Ctrl-C" if stopped else None))
    print(f"\n{path} shows the compiled step.")
    return 130 if stopped else int(differs)


def page_facts(done: list[Training], timelines: Timelines, lines: list[str], failure: str | None) -> dict[str, Any]:
    """Facts for the page: the table, and the compiled step if there is one."""
    samples = {
        t.compiled: SimpleNamespace(eager=done[0].times, replayed=t.times[t.replayed :] if t.replayed else [])
        for t in done
        if t.compiled is not None
    }
    return gather(samples, "tapejit demo", timelines, samples, failure, "\n".join(lines).strip("\n"), curves(done))


def curves(done: list[Training]) -> dict[str, Any]:
    """Loss curves: a line for the first training, dots for the second, so that neither hides the other."""
    rows = []
    for i, training in enumerate(done):
        numbers: list[float | None] = list(training.numbers())
        apart = max(len(numbers) // DOTS, 1)
        rows.append((training.name, [v if i == 0 or k % apart == 0 else None for k, v in enumerate(numbers)]))
    return {"title": "Loss", "subtitle": "both begin from the same weights and see the same batches", "rows": rows}


def both(example: Any, steps: int, device: str) -> tuple[list[Training], bool]:
    """Run both trainings. Returns those with at least one step, and True if they were stopped."""
    done: list[Training] = []
    for compiled in (False, True):
        try:
            training = Training(example, steps, device, compiled)
        except KeyboardInterrupt:
            return done, True
        training.train(steps)
        if training.times:
            done.append(training)
        if training.stopped:
            return done, True
    return done, False


def fitting(example: Any, device: str) -> int:
    """Estimate from a few steps how many eager ones fit into the time."""
    trial = Training(example, EXTRA, device, compiled=False)
    times = []
    for _ in range(2 * EXTRA):
        began = perf_counter()
        trial.step(*next(trial.run.batches)).item()
        times.append(perf_counter() - began)
    return max(MIN_STEPS, min(STEPS, int(SECONDS / statistics.median(times))))


def load_warning() -> str:
    """Warning if other processes load this machine, else an empty string."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < 0.7 * cores:
        return ""
    return f"Something else is using this machine (a load of {load:.1f} on {cores} cores): do not trust the times."


def example_named(name: str) -> Any:
    if not (EXAMPLES / f"{name}.py").exists():
        raise RefusalError(f"the example {name}.py is not in {EXAMPLES}")
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


# ---- printed text


def table(done: list[Training], stopped: bool = False) -> list[str]:
    lines = ["", f"{'':10} {'steps':>6} {'a step':>10} {'steps/s':>8} {'total':>9} {'first compiled':>15} {'peak memory':>12}"]
    for t in done:
        first = "-" if t.first is None else duration(t.first)
        peak = "-" if t.peak is None else f"{t.peak / 2**20:.1f} MiB"
        step = t.steady()
        times = f"{duration(step):>10} {1 / step:8.1f} {duration(sum(t.times)):>9}"
        lines.append(f"{t.name:10} {len(t.times):6} {times} {first:>15} {peak:>12}")
    if len(done) == 2 and len(done[1].times) > done[1].replayed > 0:
        lines.append(f"A compiled step is {done[0].steady() / done[1].steady():.1f} times as fast as an eager one.")
        if not any(s.native is not None for s in segments(done[1].step)):
            lines.append("No native code was generated: the eager kernels were replayed.")
    elif len(done) == 2:
        lines.append("There is no compiled step to compare with yet: the first ones are recorded and compiled.")
    if stopped:
        after = f"after {len(done[-1].times)} {done[-1].name} steps" if done[-1].stopped else "before the first compiled step"
        lines.append(f"Stopped {after}.")
    return lines


def print_comparison(done: list[Training]) -> bool:
    """Print both curves in one plot, and say if they agree."""
    eager, compiled = (t.numbers() for t in done)
    print("\n".join(["", *picture(eager, compiled)]))
    pairs = list(zip(eager, compiled, strict=False))
    largest = max(abs(a - b) / max(abs(a), 1e-6) for a, b in pairs)
    same = largest <= SAME  # False if a loss is NaN
    verdict = "are the same" if same else "DIFFER"
    print(
        f"The two curves {verdict}: over {len(pairs)} steps the relative difference of their losses is at most {largest:.0e}."
    )
    return same


def picture(eager: list[float], compiled: list[float]) -> list[str]:
    """Plot the smoothed losses as text: `o` eager, `x` compiled, `*` where they coincide."""
    columns = min(COLUMNS, len(eager))
    curves = [smoothed(values, columns, len(eager)) for values in (eager, compiled)]
    known = [v for curve in curves for v in curve if v is not None]
    low, high = min(known), max(known)
    grid = [[" "] * columns for _ in range(ROWS)]
    for curve, mark in zip(curves, "ox", strict=True):
        for x, value in enumerate(curve):
            if value is not None:
                y = round((high - value) / ((high - low) or 1.0) * (ROWS - 1))
                grid[y][x] = "*" if grid[y][x] == "o" else mark
    labels = {0: f"{high:5.2f}", ROWS - 1: f"{low:5.2f}"}
    lines = [f"{labels.get(y, ''):>10} |{''.join(row)}" for y, row in enumerate(grid)]
    return [*lines, f"{'loss':>10} +{'-' * columns} o eager, x compiled, * both"]


def smoothed(values: list[float], columns: int, length: int) -> list[float | None]:
    """Mean loss of the steps in each column."""
    parts = [values[length * x // columns : length * (x + 1) // columns] for x in range(columns)]
    return [statistics.fmean(part) if part else None for part in parts]
