"""Time a user's own function, eager against compiled: `tapejit bench script.py:step`.

The script is loaded as a module. If it defines `inputs()`, that returns the arguments of each call, as a tuple, outside the
timed part. Otherwise the arguments of the script's own first calls are used in turn; if loading it makes no calls, it is run
as `__main__` until it has made them.

    @tj.compile
    def step(x, y): ...

    def inputs():
        return tj.randn(32, 10), tj.randint(0, 5, (32,))

Each side runs in its own process, from the same seeds, and rounds alternate. The results of the first calls are compared
before any time is printed.
"""

from __future__ import annotations

import json
from typing import Any

from ..compare_speed import Other, agree, figures
from ..files import source_of
from ..observe_run import duration

SIDES = ("eager", "compiled")


# ---- two processes


def bench(script: str, name: str, options: Any) -> int:
    source_of(script)
    sides: dict[str, Other] = {}
    try:
        for way in SIDES:
            sides[way] = Other(script, name, way)
        for side in sides.values():
            side.answer()
        starts = {way: side.ask("start", options.steps) for way, side in sides.items()}
        difference = agree(*[starts[way]["results"] for way in SIDES])
        for i in range(options.rounds):
            for way in SIDES if i % 2 else reversed(SIDES):
                sides[way].times += sides[way].ask("time", options.seconds)
        rows = {way: {**figures(side), "first": starts[way]["first"]} for way, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    print("\n".join(table(script, name, options.steps, difference, rows, starts["compiled"]["native"])))
    if options.json:
        options.json.write_text(json.dumps({"name": name, "difference": difference, "sides": rows}, indent=1))
    return 0


def table(script: str, name: str, steps: int, difference: float | None, rows: dict[str, Any], native: bool) -> list[str]:
    agreed = "it returns nothing to compare" if difference is None else f"{steps} results agree to {difference:.0e}"
    lines = [f"{name} of {script}: {agreed}", f"  {'':10} {'median':>10} {'+-':>5} {'best':>10} {'/ eager':>8}"]
    lines[-1] += f" {'first step':>11} {'peak':>11}"
    for way, row in rows.items():
        times = f"{duration(row['median']):>10} {row['spread']:>5.0%} {duration(row['best']):>10}"
        first = "-" if row["first"] is None else duration(row["first"])
        ratio = f"{row['best'] / rows['eager']['best']:8.2f}"
        lines.append(f"  {way:10} {times} {ratio} {first:>11} {row['peak'] / 2**20:7.2f} MiB")
    if rows["compiled"]["first"] is None:
        lines.append(f"  it was never replayed: `print({name}.explain())` says why")
    elif not native:
        lines.append("  no native code: the eager kernels were replayed")
    return lines
