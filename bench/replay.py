"""What replaying costs beside the program that it runs, and whether compiled steps are slower than eager ones.

    python bench/replay.py [--rounds 5] [--json FILE]

A compiled function runs its Python again and compares each op with its recording. Measured here, on tensors of 4 elements:
per op, as the slope between a short and a long chain of ops whose program is replaced by one that does nothing; the fixed cost
of a call; the cost of a region (a backward pass) beyond its ops; all also as multiples of an empty Python call in the same run.
Then a training step of a 3-layer MLP, compiled with the plain executor against eager, in turns; and memory: what ten thousand
replayed steps leave behind. Best of the rounds, as the machine may be busy.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn

FLOORS = {"per op, us": 1.2, "per region, us": 3.0, "per call, us": 12.0, "MLP step, compiled / eager": 1.05}
SHORT, LONG = 20, 220


def best(function: Callable[[], Any], times: int) -> float:
    """The least time of a call, in microseconds."""
    found = math.inf
    for _ in range(times):
        start = time.perf_counter()
        function()
        found = min(found, time.perf_counter() - start)
    return found * 1e6


def empty_call() -> float:
    def nothing() -> None:
        pass

    def hundred() -> None:
        for _ in range(100):
            nothing()

    return best(hundred, 200) / 100


def hot(function: Callable[..., Any], *args: Any) -> Any:
    """A compiled function that replays."""
    compiled = tj.compile(function)
    for _ in range(6):
        compiled(*args)
    if compiled.hits < 2 or compiled.divergences:
        raise SystemExit(f"not replayed:\n{compiled.explain()}")
    return compiled


def without_programs(compiled: Any, result: Any) -> Any:
    """The same function with programs that hand out a result and compute nothing."""
    for trace in compiled.traces:
        for segment in trace.programs.values():
            slots = [trace.values[n].slot for n in segment.alive]

            def nothing(arrays: list[Any], scalars: list[Any], slots: list[int] = slots) -> None:
                for slot in slots:
                    arrays[slot] = result

            segment.run = nothing
    return compiled


def chain(length: int) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        for _ in range(length // 2):
            x = x * y
            x = x + y
        return x

    return function


def replay_costs(times: int) -> dict[str, float]:
    x, y = tj.ones(4), tj.ones(4)
    array = x.detach().clone()._array
    cost = {n: best(lambda f=f: f(x, y), times) for n in (SHORT, LONG) for f in [without_programs(hot(chain(n), x, y), array)]}
    per_op = (cost[LONG] - cost[SHORT]) / (LONG - SHORT)
    return {"per op, us": per_op, "per call, us": cost[SHORT] - SHORT * per_op, "per region, us": region_cost(times)}


def region_cost(times: int) -> float:
    """What a backward pass through a chain adds to a replayed call: nothing that depends on the chain's length."""
    w, x = tj.ones(4, requires_grad=True), tj.ones(4)

    def forward() -> Any:
        return (w * x).sum()

    def both() -> Any:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss

    number = tj.ones(())._array
    costs = [best(without_programs(hot(f), number), times) for f in (forward, both)]
    return costs[1] - costs[0]


def mlp() -> Callable[..., Any]:
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = tj.optim.Adam(model.parameters())

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def step_ratio(times: int) -> dict[str, float]:
    x, y = tj.randn(32, 784), tj.arange(32) % 10
    eager, compiled = mlp(), tj.compile(mlp())
    for i in range(8):
        if eager(x, y).item() != compiled(x, y).item():
            raise SystemExit(f"losses differ at step {i}")
    if compiled.hits < 3 or compiled.divergences:
        raise SystemExit(f"not replayed:\n{compiled.explain()}")
    times_of: dict[str, float] = {"eager": math.inf, "compiled": math.inf}
    for _ in range(times):
        for name, function in (("eager", eager), ("compiled", compiled)):
            times_of[name] = min(times_of[name], best(lambda f=function: f(x, y), 1))
    return {
        "MLP step, eager, us": times_of["eager"],
        "MLP step, compiled, us": times_of["compiled"],
        "MLP step, compiled / eager": times_of["compiled"] / times_of["eager"],
    }


def growth(steps: int = 10_000) -> dict[str, float]:
    """Bytes that replayed steps leave behind."""
    w, x = tj.ones(4, requires_grad=True), tj.ones(4)
    optimizer = tj.optim.SGD([w], lr=1e-6)

    def step() -> Any:
        optimizer.zero_grad()
        loss = (w * x).tanh().sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = hot(step)
    gc.collect()
    tracemalloc.start()
    for _ in range(100):
        compiled()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(steps):
        compiled()
    gc.collect()
    found = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {"growth over 10,000 steps, bytes": float(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    found: dict[str, float] = {}
    for i in range(args.rounds):
        print(f"\rround {i + 1}/{args.rounds} ", end="", flush=True)
        empty = empty_call()
        for name, value in {"empty call, us": empty, **replay_costs(200), **step_ratio(60)}.items():
            if name != "MLP step, compiled / eager":
                found[name] = min(found.get(name, math.inf), value)
    found["MLP step, compiled / eager"] = found["MLP step, compiled, us"] / found["MLP step, eager, us"]
    found.update(growth())
    print(f"\r{'':20}\r{'':34}{'found':>10}{'floor':>8}{'empty calls':>13}")
    for name, value in found.items():
        floor = f"{FLOORS[name]:8.2f}" if name in FLOORS else " " * 8
        calls = f"{value / found['empty call, us']:13.1f}" if name.startswith("per ") else ""
        print(f"{name:34}{value:10.2f}{floor}{calls}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
