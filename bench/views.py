"""Concatenation, padding and shifts against a copy of as many elements: they should cost no more than it does.

    python bench/views.py [--rounds 20] [--rows 1024]

Each function is compiled and runs in one thread, by turns with the copy. A ratio of 1 says that it takes as long as that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import tapejit as tj
import tapejit.nn.functional as F

COLUMNS = 384
CASES: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "copy (relu)": (lambda x: F.relu(x), [384]),
    "cat of 3, last dim": (lambda a, b, c: F.relu(tj.cat([a, b, c], -1)), [128, 128, 128]),
    "cat of 2, last dim, odd": (lambda a, b: F.relu(tj.cat([a, b], -1)), [101, 283]),
    "cat of 3, first dim": (lambda a, b, c: F.relu(tj.cat([a, b, c], 0)), [128, 128, 128]),
    "pad, last dim": (lambda a: F.relu(F.pad(a, (8, 8))), [368]),
    "roll, last dim": (lambda a: F.relu(tj.roll(a, 5, -1)), [384]),
    "halves exchanged": (lambda a: F.relu(tj.cat([-a[:, 192:], a[:, :192]], -1)), [384]),
    "stack, last dim": (lambda a, b: F.relu(tj.stack([a, b], -1)), [192, 192]),
    "cat of 3, and its sums": (lambda a, b, c: summed(tj.cat([a, b, c], -1)), [128, 128, 128]),
    "copy, and its sums": (lambda x: summed(x), [384]),
}


def summed(x: Any) -> Any:
    found = F.relu(x)
    return found, found.sum(0)


def seconds(call: Callable[[], Any], repeats: int = 20) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1024)
    options = parser.parse_args()
    tj.set_num_threads(1)
    calls: dict[str, Callable[[], Any]] = {}
    for name, (function, widths) in CASES.items():
        compiled, given = tj.compile(function, backend="llvm"), [tj.randn(options.rows, n) for n in widths]
        calls[name] = lambda compiled=compiled, given=given: compiled(*given)  # type: ignore[misc]
        for _ in range(8):
            calls[name]()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(options.rounds):
        for name, call in calls.items():
            best[name] = min(best[name], seconds(call))
    print(f"{options.rows} x {COLUMNS} elements in all, float32, one thread, best of {options.rounds}")
    for name, found in best.items():
        copy = best["copy, and its sums" if name.endswith("sums") else "copy (relu)"]
        print(f"  {name:26} {found * 1e6:8.1f} us  {found / copy:5.2f} x the copy")


if __name__ == "__main__":
    main()
