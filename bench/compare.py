"""Compare two libraries: the same workloads in two processes that take turns. The benchmarks here are built on it.

A workload is a function of the library (`import tapejit as torch`) that gives a step, and a step returns its loss.

PyTorch's rounds take turns at one thread, two, and so on up to OMP_NUM_THREADS (two if it is not set), and its best time
counts. On cores that are busy with something else its threads may wait for each other in every step: a training step of
`moons` then took 65 ms with two threads and 0.46 ms with one, which says nothing about either library.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GRACE = 5.0  # seconds to end by itself
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))

Step = Callable[[], Any]
Workloads = dict[str, Callable[[Any], Step]]


def values(torch: Any, *shape: int, scale: float = 1.0, shift: int = 0) -> Any:
    """The same pseudo-random numbers in every library."""
    count = math.prod(shape)
    flat = [math.sin(12.9898 * (i + 1 + shift)) * 43758.5453 % 1.0 - 0.5 for i in range(count)]
    return torch.tensor(flat).reshape(*shape) * (2 * scale)


# ---- one library in one process


def best_time(step: Step, seconds: float) -> float:
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    return best


def peak_bytes(library: str, step: Step) -> int:
    """The most tensor bytes alive at once during one step, above those alive before it.

    Memory is watched from the step before on: the old gradients are alive when a step begins, and go while it runs.
    """
    step()
    if library == "torch":
        return torch_peak(step)
    tracemalloc.start()  # NumPy reports its arrays here; Python's own objects are counted against us
    step()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    step()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return peak


def torch_peak(step: Step) -> int:
    import torch

    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
        with torch.profiler.record_function("watched"):
            step()
    events = sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    alive = before = peak = 0
    for event in events:
        if event.name() == "watched":
            before = peak = alive
        elif event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak - before


def serve(library: str, workloads: Workloads) -> None:
    """Answer lines of JSON on standard input: {"workload": ..., "do": "loss" | "time" | "memory", "threads": ...}."""
    torch = importlib.import_module(library)
    steps: dict[str, Step] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["workload"]
        if name not in steps:
            steps[name] = workloads[name](torch)
        step = steps[name]
        if library == "torch":
            torch.set_num_threads(request.get("threads", 1))
        if request["do"] == "loss":
            answer: float = [float(step().item()) for _ in range(5)][-1]
        elif request["do"] == "time":
            answer = best_time(step, request["seconds"])
        else:
            answer = peak_bytes(library, step)
        print(json.dumps(answer), flush=True)


# ---- comparing


class Worker:
    """A process in which one library answers questions."""

    def __init__(self, script: str, *served: str, python: str = sys.executable, variables: Mapping[str, str] = {}) -> None:
        command = [python, str(Path(script).resolve()), "--serve", *served]
        environment = {**os.environ, **variables}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have theirs, and reading sources takes longer
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a benchmark process died; its error is above")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:  # it is in the middle of something
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def compare(script: str, timed: list[str], weighed: list[str], rounds: int) -> list[dict[str, Any]]:
    """Best times and peaks of memory of both libraries, a row for each workload."""
    ours, theirs = Worker(script, "tapejit"), Worker(script, "torch")
    rows = []
    for name in timed:
        losses = [w.ask(workload=name, do="loss") for w in (ours, theirs)]
        if not math.isclose(*losses, rel_tol=1e-4):
            raise SystemExit(f"{name}: the losses differ, tapejit {losses[0]}, PyTorch {losses[1]}: no time is worth printing")
        best = [math.inf, math.inf]
        for i in range(rounds):
            print(f"\r{name}: round {i + 1}/{rounds} ", end="", file=sys.stderr, flush=True)
            for k, worker in enumerate((ours, theirs)):
                best[k] = min(best[k], worker.ask(workload=name, do="time", seconds=0.2, threads=1 + i % THREADS))
        rows.append({"name": name, "unit": "us", "tapejit": best[0] * 1e6, "torch": best[1] * 1e6})
    for name in weighed:
        peaks = [w.ask(workload=name, do="memory") for w in (ours, theirs)]
        rows.append({"name": name, "unit": "KiB", "tapejit": peaks[0] / 1024, "torch": peaks[1] / 1024})
    ours.close()
    theirs.close()
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return rows


def run(script: str, description: str | None, floors: dict[str, float], workloads: Workloads, larger: Workloads) -> None:
    """A benchmark's command line: times of `workloads`, peaks of memory of `larger`, next to the ratios to be reached."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(floors)}")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, workloads | larger)
        return
    if importlib.util.find_spec("torch") is None:
        raise SystemExit("the comparison needs PyTorch: pip install torch==2.13.0")
    unknown = [n for n in options.names if n not in floors]
    if unknown:
        raise SystemExit(f"no workload is called {unknown[0]!r}; there are: {', '.join(floors)}")
    names = options.names or list(floors)
    rows = compare(script, [n for n in workloads if n in names], [n for n in larger if n in names], options.rounds)
    print(f"{'workload':20} {'tapejit':>13} {'torch eager':>13} {'ratio':>7} {'floor':>7}")
    for row in rows:
        ratio = row["tapejit"] / row["torch"]
        ours, theirs = (f"{row[k]:9.1f} {row['unit']:>3}" for k in ("tapejit", "torch"))
        print(f"{row['name']:20} {ours:>13} {theirs:>13} {ratio:7.2f} {floors[row['name']]:7.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
