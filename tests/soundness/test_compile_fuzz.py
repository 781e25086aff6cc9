"""Random programs do the same when they are compiled: results, gradients, side effects, printed text, errors, bit for bit.

As a script it runs as many as it is told to, from a first seed on, and prints those that differ, cut down, as source that runs:

    cd tests && python -m soundness.test_compile_fuzz 20000 [first seed]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.random_programs import DifferenceError, compare, reduce, write


def check(random: Random, tally: Counter[str]) -> None:
    """Write a program, compare it, and count what became of its calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy about infinities, and of functions that keep diverging
        source = write(random)
        try:
            function = compare(source)
        except DifferenceError as difference:
            raise DifferenceError(f"{difference}\n\n{reduce(source).runnable()}") from None
    tally["programs"] += 1
    tally["calls"] += function.calls
    tally["replayed"] += function.hits
    tally["replayed programs"] += function.hits > 0


def test_random_programs() -> None:
    tally: Counter[str] = Counter()

    # `reduce` cuts a failing program down line by line, which is quicker and leaves less than changing the draws would
    @settings(max_examples=500, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        check(random, tally)

    run()
    assert tally["programs"] >= 500
    assert tally["replayed"] > tally["calls"] / 3, tally
    assert tally["replayed programs"] > tally["programs"] / 2, tally


def main(count: int, first: int) -> int:
    tally: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(first, first + count):
        try:
            check(Random(seed), tally)
        except DifferenceError as difference:
            tally["different"] += 1
            print(f"\r# ---- seed {seed}\n{difference}", flush=True)
        if seed % 20 == 0 or seed == first + count - 1:
            share = tally["replayed"] / max(1, tally["calls"])
            seconds = time.perf_counter() - began
            done = f"{seed - first + 1}/{count} programs in {seconds:.0f} s"
            print(f"\r{done}, {tally['different']} differ, {share:.0%} of calls replayed", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return 1 if tally["different"] else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
