"""Cost of a skipped call, beside the program that it runs.

    python bench/pure.py [--rounds 5] [--json FILE]

`tj.compile(step, pure=True)` runs guards instead of Python. Measured here on whole training steps (forward, zero_grad,
backward, optimizer) of models with few and with many parameters, with the program replaced by one that hands out results and
computes nothing: the slope between them is the cost of a parameter, the rest is the cost of a call. Beside it: the
cost of reading a gradient, which is materialised only then. All also as multiples of an empty Python call in the same run.
Then a training step of a small MLP, eager, compiled and pure, in turns. CPU time of one thread; best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import tapejit as tj
import tapejit.nn.functional as F
from replay import mlp
from tapejit import nn

FLOORS = {"per call, us": 6.0, "per parameter, ns": 40.0}
MIN_PARAMETERS, MAX_PARAMETERS = 4, 204
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: tj.optim.SGD(parameters, lr=1e-3),
    "Adam": lambda parameters: tj.optim.Adam(parameters),
}


def best(function: Callable[[], Any], times: int) -> float:
    """The least time of a call, in microseconds."""
    found = math.inf
    for _ in range(times):
        start = time.thread_time_ns()
        for _ in range(10):
            function()
        found = min(found, time.thread_time_ns() - start)
    return found / 1e4


def empty_call() -> float:
    def nothing() -> None:
        pass

    return best(lambda: [nothing() for _ in range(100)], 100) / 100


def training_step(parameters: int, optimizer: str) -> tuple[Callable[..., Any], list[Any]]:
    """A step of a model of linear layers, and its parameters."""
    tj.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(parameters // 2)])
    stepping = OPTIMIZERS[optimizer](model.parameters())

    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(model(x), y)
        stepping.zero_grad()
        loss.backward()
        stepping.step()
        return loss

    return step, list(model.parameters())


def hot(function: Callable[..., Any], *args: Any) -> Any:
    """A pure function that runs without Python."""
    compiled = tj.compile(function, pure=True)
    for _ in range(6):
        compiled(*args)
    if not compiled.skipped_calls or compiled.divergences or compiled.skipped_calls[0].seen:
        raise SystemExit(f"not without Python:\n{compiled.explain()}")
    return compiled


def without_program(compiled: Any) -> Any:
    """The same function with a program that hands out arrays and computes nothing."""
    segment, trace = compiled.skipped_calls[0].segment, compiled.traces[0]
    values = [trace.values[n] for n in segment.alive]
    made = [(v.slot, tj.zeros(v.form.shape).tj_array) for v in values]
    (loss, number), (gradient, _) = made[0], made[-1]

    def nothing(arrays: list[Any], scalars: list[Any]) -> None:
        arrays[loss] = number
        if arrays[gradient] is None:  # the first time, and after somebody has looked
            for slot, array in made:
                arrays[slot] = array

    segment.run = nothing
    return compiled


def call_costs(optimizer: str, times: int) -> dict[str, float]:
    x, y = tj.ones(2, 2), tj.zeros(2, 2)
    cost, looked = {}, {}
    for n in (MIN_PARAMETERS, MAX_PARAMETERS):
        step, parameters = training_step(n, optimizer)
        compiled = without_program(hot(step, x, y))
        cost[n] = best(lambda f=compiled: f(x, y), times)

        def and_look(f: Any = compiled, parameters: Any = parameters) -> None:
            f(x, y)
            for p in parameters:
                p.grad  # noqa: B018

        looked[n] = best(and_look, times // 10)
    per = (cost[MAX_PARAMETERS] - cost[MIN_PARAMETERS]) / (MAX_PARAMETERS - MIN_PARAMETERS)
    return {
        f"{optimizer}: per call, us": cost[MIN_PARAMETERS] - MIN_PARAMETERS * per,
        f"{optimizer}: per parameter, ns": per * 1e3,
        f"{optimizer}: per look at a gradient, ns": (looked[MAX_PARAMETERS] - cost[MAX_PARAMETERS]) / MAX_PARAMETERS * 1e3,
    }


def step_times(times: int) -> dict[str, float]:
    x, y = tj.randn(32, 64), tj.arange(32) % 10
    steps = {"eager": mlp(64, 64), "compiled": tj.compile(mlp(64, 64)), "pure": tj.compile(mlp(64, 64), pure=True)}
    for i in range(20):  # native programs are tried out meanwhile
        losses = [f(x, y).item() for f in steps.values()]
        if max(losses) - min(losses) > 1e-4 * max(losses):
            raise SystemExit(f"losses differ at step {i}: {losses}")
    found = dict.fromkeys(steps, math.inf)
    for _ in range(times):
        for name, step in steps.items():
            found[name] = min(found[name], best(lambda f=step: f(x, y), 1))
    return {f"MLP step, {name}, us": value for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    found: dict[str, float] = {}
    for i in range(args.rounds):
        print(f"\rround {i + 1}/{args.rounds} ", end="", flush=True)
        costs = [call_costs(optimizer, 200) for optimizer in OPTIMIZERS]
        for part in ({"empty call, us": empty_call()}, *costs, step_times(20)):
            for name, value in part.items():
                found[name] = min(found.get(name, math.inf), value)
    print(f"\r{'':20}\r{'':38}{'found':>10}{'floor':>8}{'empty calls':>13}")
    for name, value in found.items():
        floor = FLOORS.get(name.partition(": ")[2])
        scale = 1e3 if name.endswith("ns") else 1
        calls = f"{value / scale / found['empty call, us']:13.1f}" if " per " in name else ""
        print(f"{name:38}{value:10.2f}{'' if floor is None else f'{floor:.2f}':>8}{calls}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
