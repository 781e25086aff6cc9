"""Cost of a replay, beside the program that it runs; and compiled steps against eager ones.

    python bench/replay.py [--rounds 5] [--json FILE]

A compiled function runs its Python again and compares each op with its recording. Measured here, on tensors of 4 elements:
per op, as the slope between a short and a long chain of ops whose program is replaced by one that does nothing; the fixed cost
of a call; the cost of regions (a backward pass, a module's call, an optimizer's step, a function's call) with one parameter, or
of each further parameter in them; all also as multiples of an empty Python call in the same run. Then all of the Python of a
training step of a 3-layer MLP; the step itself, compiled with the reference program against eager, in turns; and memory: what
ten thousand replayed steps leave behind. Best of the rounds, as the machine may be busy.
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

REGIONS = {f"per region, us: {kind}": 3.0 for kind in ("backward", "module", "step", "function")}
FLOORS = {"per op, us": 1.2, "per call, us": 12.0, **REGIONS, "MLP step, compiled / eager": 1.05}
SHORT, LONG = 20, 220
EMPTY, SMALL = "empty call, us", "Python of a 3-layer MLP step, us"
PARAMETERS = 17


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
    compiled = tj.compile(function, backend="plain")
    for _ in range(6):
        compiled(*args)
        for trace in compiled.traces:
            trace.impure = "its Python is what is measured"
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

            nothing.whole = True  # type: ignore[attr-defined]  # as native programs are: Ctrl-C cannot come in their middle
            segment.run = nothing
    return compiled


def chain(length: int) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        for _ in range(length // 2):
            x = x * y
            x = x + y
        return x

    return function


def replay_times(times: int) -> dict[str, float]:
    """Times of replayed functions, whose differences are costs: see `costs`."""
    x, y = tj.ones(4), tj.ones(4)
    array = x.detach().clone().tj_array
    found = {
        f"{n} ops": best(lambda f=f: f(x, y), times)
        for n in (SHORT, LONG)
        for f in [without_programs(hot(chain(n), x, y), array)]
    }
    number = tj.ones(()).tj_array
    return {**found, **{name: best(without_programs(hot(f), number), times) for name, f in functions().items()}}


def costs(least: dict[str, float]) -> dict[str, float]:
    """The measured costs, from the least times of all rounds: a difference of two times of one round may be too small."""

    def added(name: str) -> float:
        """The cost of a function beyond another."""
        return least[f"{name}, with"] - least[f"{name}, without"]

    per_op = (least[f"{LONG} ops"] - least[f"{SHORT} ops"]) / (LONG - SHORT)
    found = {"per op, us": per_op, "per call, us": least[f"{SHORT} ops"] - SHORT * per_op}
    found["per region, us: backward"] = added("backward")
    for kind in ("module", "step"):
        one, many = added(f"{kind} 1"), added(f"{kind} {PARAMETERS}")
        found[f"per region, us: {kind}"], found[f"per parameter, us: {kind}"] = one, (many - one) / (PARAMETERS - 1)
    found["per region, us: function"] = added("function")
    return found


def functions() -> dict[str, Callable[[], Any]]:
    """Functions with and without a region: these add nothing to a replayed call that depends on the number of their ops."""
    w, x = tj.ones(4, requires_grad=True), tj.ones(4)

    def forward() -> Any:
        w.grad = None
        loss = (w * x).sum()
        return loss.detach()

    def passed() -> Any:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss.detach()

    found = {"backward, without": forward, "backward, with": passed}
    for kind in ("module", "step"):
        for n in (1, PARAMETERS):
            found[f"{kind} {n}, without"], found[f"{kind} {n}, with"] = called(n, kind == "step")
    a, b = tj.ones(4), tj.zeros(4)

    def without() -> Any:
        return a * b

    def function() -> Any:
        return F.mse_loss(a * b, b)

    return {**found, "function, without": without, "function, with": function}


def called(parameters: int, step: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A function, and the same with a call of a module or a step of an optimizer on so many parameters."""
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(parameters)])
    optimizer = tj.optim.SGD(model.parameters(), lr=1e-6)
    x = tj.ones(2, 4)

    def empty() -> Any:
        return (x * x).detach()

    def forward() -> Any:
        return model(x * x).detach()

    def passed() -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss.detach()

    def trained() -> Any:
        loss = passed()
        optimizer.step()
        return loss

    return (passed, trained) if step else (empty, forward)


def small_step(times: int) -> dict[str, float]:
    """All of the Python of a replayed training step, from the call to the result."""
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = tj.optim.SGD(model.parameters(), lr=1e-6)

    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    x, y = tj.randn(100, 2), tj.randn(100, 1)
    compiled = without_programs(hot(step, x, y), tj.ones(()).tj_array)
    return {SMALL: best(lambda: compiled(x, y), times)}


def mlp(given: int, width: int) -> Callable[..., Any]:
    """A training step of a 3-layer MLP."""
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(given, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = tj.optim.Adam(model.parameters())

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def step_times(times: int) -> dict[str, float]:
    x, y = tj.randn(32, 784), tj.arange(32) % 10
    eager, compiled = mlp(784, 128), tj.compile(mlp(784, 128), backend="plain")
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
    least: dict[str, float] = {}
    for i in range(args.rounds):
        print(f"\rround {i + 1}/{args.rounds} ", end="", flush=True)
        for name, value in {EMPTY: empty_call(), **replay_times(200), **small_step(400), **step_times(60)}.items():
            least[name] = min(least.get(name, math.inf), value)
    found = {EMPTY: least[EMPTY], **costs(least), SMALL: least[SMALL]}
    found["MLP step, compiled / eager"] = least["MLP step, compiled, us"] / least["MLP step, eager, us"]
    found.update(growth())
    print(f"\r{'':20}\r{'':34}{'found':>10}{'floor':>8}{'empty calls':>13}")
    for name, value in found.items():
        floor = f"{FLOORS[name]:8.2f}" if name in FLOORS else " " * 8
        calls = f"{value / found[EMPTY]:13.1f}" if name.startswith(("per ", "Python ")) else ""
        print(f"{name:34}{value:10.2f}{floor}{calls}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
