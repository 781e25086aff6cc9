"""Cost of calling native programs, of handing steps to threads and of barriers; and what a busy machine changes.

    python bench/native.py [--rounds 5] [--json FILE]

Calls of a program that does nothing, with no arrays and with 50 arrays and 5 numbers, on the caller's thread and handed to all
threads; also as multiples of an empty Python call in the same run. A barrier, as the slope between few and many of them. A
step of 40 phases with a barrier after each, about a millisecond of work: on one thread, on all, and as a program chooses; quiet
and beside as many processes that never pause as there are cores. Last, the CPU time until the runtime is ready in a new
process, compiled and from the disk cache. Best of the rounds, except on the busy machine, where the median of all runs counts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tapejit as tj
from tapejit.codegen.llvm.runtime import entry, jit
from tapejit.codegen.llvm.runtime import thread_pool as threads
from tapejit.codegen.llvm.runtime.entry import ArgumentBinding, bind
from tapejit.codegen.llvm.runtime.thread_pool_ir import MAX_THREADS

FLOORS = {"program, 50 arrays, us": 5.0}
MIN_PHASES, MAX_PHASES, PHASES, WORK = 10, 410, 40, 16_000

STEPS = """
declare void @tj_barrier(ptr)

define void @nothing(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
  ret void
}

; the table: how many phases, how many steps of work in each, which the threads share
define void @phases(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %work_at = getelementptr i64, ptr %table, i64 1
  %phases = load i64, ptr %table
  %work = load i64, ptr %work_at
  %share = sdiv i64 %work, %threads
  br label %head
head:
  %p = phi i64 [ 0, %entry ], [ %p1, %met ]
  %more = icmp slt i64 %p, %phases
  br i1 %more, label %loop, label %leave
loop:
  %i = phi i64 [ 0, %head ], [ %i1, %body ]
  %x = phi double [ 1.0, %head ], [ %y, %body ]
  %again = icmp slt i64 %i, %share
  br i1 %again, label %body, label %met
body:
  %y = fmul double %x, 0.9999
  %i1 = add i64 %i, 1
  br label %loop
met:
  %used = fcmp olt double %x, 0.0
  %one = select i1 %used, i64 2, i64 1
  call void @tj_barrier(ptr %pool)
  %p1 = add i64 %p, %one
  br label %head
leave:
  ret void
}
"""


def best(function: Callable[[], Any], times: int, inner: int = 100) -> float:
    """The least time of a call, in microseconds, less that of an empty one in the same loop."""
    found = math.inf
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(inner):
            function()
        found = min(found, (time.perf_counter() - start) / inner)
    return found * 1e6


def nothing() -> None:
    pass


def call_costs(library: jit.Library) -> dict[str, float]:
    arrays, numbers = [np.zeros(4, np.float32) for _ in range(60)], [0.5] * 10
    fifty = ArgumentBinding(tuple(range(50)), tuple((i, "double") for i in range(5)))
    empty = best(nothing, 300)
    found = {"empty Python call, us": empty}
    for name, binding, releases in (
        ("program, no arrays, GIL kept, us", ArgumentBinding(()), False),
        ("program, no arrays, us", ArgumentBinding(()), True),
        ("program, 50 arrays, GIL kept, us", fifty, False),
        ("program, 50 arrays, us", fifty, True),
    ):
        program = bind(library["nothing"], binding, parallel=False, releases_gil=releases, keep=library)
        found[name] = best(lambda p=program: p(arrays, numbers), 300) - empty
    return found


def run_directly(step: int, *table: int) -> Callable[[], int]:
    """A step on all threads, without a program around it."""
    words = np.array([*table, 0], np.int64)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    pool = threads.process_pool()
    run, address, where = prototype(pool.library["tj_run"]), pool.address, words.ctypes.data
    return lambda words=words: run(address, step, where, MAX_THREADS)


def thread_costs(library: jit.Library) -> dict[str, float]:
    count = tj.get_num_threads()
    step = run_directly(library["nothing"])
    tj.set_num_threads(1)
    alone = best(step, 200)
    tj.set_num_threads(count)
    together = best(step, 200)
    waking = []
    for _ in range(20):
        time.sleep(0.01)  # by then they have parked
        start = time.perf_counter()
        step()
        waking.append((time.perf_counter() - start) * 1e6)
    few, many = (best(run_directly(library["phases"], n, 0), 200, 1) for n in (MIN_PHASES, MAX_PHASES))
    return {
        f"hand-over to {count} threads, us": together - alone,
        "hand-over to parked threads, us": statistics.median(waking),
        "barrier, us": (many - few) / (MAX_PHASES - MIN_PHASES),
    }


def step_costs(library: jit.Library, where: str, times: int) -> dict[str, float]:
    """A step with 40 barriers, in the three ways."""
    ways: dict[str, Callable[[], Any]] = {}
    for name, parallel in (("alone", False), ("chosen", True)):
        program = bind(library["phases"], ArgumentBinding(()), [PHASES, WORK], parallel=parallel, keep=library)
        ways[name] = lambda p=program: p([], [])
    ways["together"] = run_directly(library["phases"], PHASES, WORK)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(times):
        for name, way in ways.items():  # in turns, as the machine changes
            start = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - start)
    return {f"step of 40 phases, {where}, {name}, us": statistics.median(taken[name]) * 1e6 for name in ways}


@contextmanager
def busy_machine() -> Iterator[None]:
    """As many processes that never pause as there are cores."""
    forever = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(forever) for _ in range(os.cpu_count() or 1)]
    time.sleep(0.3)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


START = """
import time
import numpy, tapejit, llvmlite.binding
begin = time.process_time()
from tapejit.codegen.llvm.runtime import entry
entry.bind(0, entry.ArgumentBinding(()))
print(time.process_time() - begin)
"""


def start_costs() -> dict[str, float]:
    """Milliseconds of CPU time until the first program can be bound, after the imports of others."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TAPEJIT_CACHE_DIR": folder}
        environment.pop("TAPEJIT_CACHE", None)
        runs = [subprocess.check_output([sys.executable, "-c", START], env=environment, text=True) for _ in range(4)]
    return {
        "runtime made, compiled, CPU ms": float(runs[0]) * 1e3,
        "runtime made, from disk, CPU ms": min(map(float, runs[1:])) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    library = jit.link([jit.compile_text(STEPS)], threads.process_pool().imports(), ["nothing", "phases"])
    entry.bind(library["nothing"], ArgumentBinding(()))
    found: dict[str, float] = {}
    for i in range(args.rounds):
        print(f"\rround {i + 1}/{args.rounds} ", end="", flush=True)
        for name, value in {**call_costs(library), **thread_costs(library), **step_costs(library, "quiet", 200)}.items():
            found[name] = min(found.get(name, math.inf), value)
    with busy_machine():
        found.update(step_costs(library, "busy", 300))
    found.update(start_costs())
    print(f"\r{'':20}\r{'':40}{'found':>10}{'floor':>8}{'empty calls':>13}")
    for name, value in found.items():
        floor = f"{FLOORS[name]:8.2f}" if name in FLOORS else " " * 8
        calls = f"{value / found['empty Python call, us']:13.1f}" if name.endswith("us") else ""
        print(f"{name:40}{value:10.2f}{floor}{calls}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
