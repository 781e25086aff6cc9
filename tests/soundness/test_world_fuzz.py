"""Random programs whose Python is skipped, in a world that changes between their calls (`support/world_programs.py`).

As a script it runs as many as it is told to, from a first seed on, and prints those that differ, cut down, as source that runs:

    cd tests && python -m soundness.test_world_fuzz 20000 [first seed]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter

from support.world_programs import WorldError, difference, reduce, write


def check(seed: int, tally: Counter[str]) -> None:
    """Write a program, compare it, and count what became of its calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, function = difference(write(seed))
        if found is not None:
            world = reduce(write(seed))
            found = difference(world)[0] or found
            raise WorldError(f"{found}\n\n{world.script()}")
    skipped = sum(trace.skipped for trace in function.traces)
    tally.update(programs=1, calls=function.calls, skipped=skipped, skipping=skipped > 0)


def test_random_worlds() -> None:
    tally: Counter[str] = Counter()
    for seed in range(300):
        check(seed, tally)
    assert tally["skipping"] >= tally["programs"] / 2, tally


def main(count: int, first: int) -> int:
    tally: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(first, first + count):
        try:
            check(seed, tally)
        except WorldError as found:
            tally["different"] += 1
            print(f"\r# ---- seed {seed}\n{found}", flush=True)
        if seed % 20 == 0 or seed == first + count - 1:
            done = f"{seed - first + 1}/{count} programs in {time.perf_counter() - began:.0f} s"
            share = f"{tally['skipping']} skip Python, {tally['skipped']} of {tally['calls']} calls"
            print(f"\r{done}, {tally['different']} differ, {share}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return 1 if tally["different"] else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
