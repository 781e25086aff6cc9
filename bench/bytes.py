"""Split the time of steps over large arrays into arithmetic and memory.

    python bench/bytes.py [NAME ...]

Each step's kernels are timed on arrays that fit into the second cache, and on the sizes of `steps.py`; beside them, copies that
move as many bytes as the step must. Nanoseconds of one thread per element of the input, best of several: the time
that is spent even in the cache is arithmetic, which no faster memory could save.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tapejit
from tapejit.codegen.inspect.kernel_timing import time_kernels
from workloads.data import Data, cross_entropy, layer_norm, pointwise
from workloads.torchlike import WORKLOADS

CASES: dict[str, tuple[Callable[[], Data], Callable[[], Data]]] = {  # small, large
    "pointwise": (lambda: pointwise(1 << 16), pointwise),
    "layer-norm": (lambda: layer_norm(64), layer_norm),
    "cross-entropy": (lambda: cross_entropy(8), cross_entropy),
}


def elements(data: Data) -> int:
    return int(data.weights["x"].size)


def kernels(name: str, data: Data) -> float:
    """Seconds of all kernels of the compiled step, each by itself in one thread."""
    training = WORKLOADS[name](tapejit, data)
    compiled = tapejit.compile(training.step)
    for _ in range(4):
        compiled(*training.batches[0])
    programs = [segment.native for trace in compiled.traces for segment in trace.programs.values()]
    return sum(t or 0.0 for program in programs if program is not None for t in time_kernels(program.build))


def copying(size: int) -> float:
    """Seconds of this thread for a copy that reads and writes `size` bytes in all."""
    source, target = (np.ones(size // 8, np.float32) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        began = time.thread_time()
        np.copyto(target, source)
        best = min(best, time.thread_time() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(CASES)}")
    names = parser.parse_args().names or list(CASES)
    print(f"{'ns per element':16}{'in cache':>10}{'in memory':>11}{'copy':>8}{'arithmetic':>12}")
    for name in names:
        small, large = (make() for make in CASES[name])
        near, far = (kernels(name, data) / elements(data) for data in (small, large))
        copy = copying(large.bytes_needed) / elements(large)
        print(f"{name:16}{near * 1e9:10.2f}{far * 1e9:11.2f}{copy * 1e9:8.2f}{near / far:12.0%}", flush=True)


if __name__ == "__main__":
    main()
