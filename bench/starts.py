"""Warm starts: the first call of a compiled training step in fresh processes that find its program in the disk cache.

    python bench/starts.py [NAME ...] [--rounds 10] [--beside FOLDER]

A start takes a fraction of a second, and half as long again while another process runs: so many are timed, and the quartiles
printed. `--beside` is another checkout, with which starts take turns. Imports, weights and data are not
counted; page faults are those of the first call.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workloads.data import DATA

HERE = Path(__file__).resolve().parents[1]


def start(name: str) -> None:
    """The first call, in this process: seconds on the clock, seconds of the CPU, page faults."""
    import tapejit
    from workloads.torchlike import training

    found = training(tapejit, name)
    step = tapejit.compile(found.step)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    step(*found.batches[0])
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps([took, cpu, after.ru_minflt - before.ru_minflt]))


def started(name: str, packages: Path) -> list[float]:
    """A start in a process of its own, with the package that is in a folder, and the cache beside it."""
    variables = {"PYTHONPATH": str(packages), "TAPEJIT_CACHE_DIR": str(packages / "cache")}
    command = [sys.executable, __file__, "--start", name]
    ran = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{name} did not start:\n{ran.stderr}")
    return [float(x) for x in json.loads(ran.stdout)]


def measured(name: str, places: dict[str, Path], rounds: int) -> list[str]:
    found: dict[str, list[list[float]]] = {label: [] for label in places}
    for label in places:
        started(name, places[label])  # which fills the cache
    for i in range(rounds):
        for label in [*places][:: 1 if i % 2 else -1]:
            found[label].append(started(name, places[label]))
    lines = []
    for label, starts in found.items():
        clock, cpu, faults = (sorted(column) for column in zip(*starts, strict=True))
        best, first, middle = clock[0], clock[len(clock) // 4], clock[len(clock) // 2]
        times = f"{1e3 * best:8.1f} {1e3 * first:8.1f} {1e3 * middle:8.1f} {1e3 * cpu[0]:8.1f} {faults[len(faults) // 2]:8.0f}"
        lines.append(f"{name:14} {label:12} {times}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(DATA)}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        start(options.start)
        return
    folders = {"this": HERE} | ({"the other": options.beside.resolve()} if options.beside else {})
    print(f"{'milliseconds':27} {'best':>8} {'quartile':>8} {'median':>8} {'cpu':>8} {'faults':>8}")
    with tempfile.TemporaryDirectory() as above:
        places = {}
        for label, folder in folders.items():
            places[label] = Path(above) / label.replace(" ", "-")
            places[label].mkdir()
            (places[label] / "tapejit").symlink_to(folder)
        for name in options.names or ["gpt-small", "gpt-medium"]:
            print("\n".join(measured(name, places, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
