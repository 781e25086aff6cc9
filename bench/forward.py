"""Training with only the model compiled, beside eager execution and beside a step that is compiled as a whole.

    python bench/forward.py [NAME ...] [--rounds 30] [--json FILE]

`model = tj.compile(model)`, with the loss, `loss.backward()` and the optimizer outside: the outputs carry a compiled backward
pass. In turns: all of it eager, the model compiled, the loss function compiled, the whole step compiled. CPU time of one
thread, best of the rounds; native programs run on that thread. Beside it the bytes that are saved for the backward pass.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn

WAYS = ("eager", "model", "loss", "step")


def mlp() -> tuple[nn.Module, Any, Any]:
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 10))
    return model, tj.randn(64, 784), tj.randint(0, 10, (64,))


def micro() -> tuple[nn.Module, Any, Any]:
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    return model, tj.randn(100, 2), tj.randint(0, 2, (100,))


def block() -> tuple[nn.Module, Any, Any]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.Sequential(layer, nn.Linear(128, 65), nn.Flatten(0, 1)), tj.randn(8, 64, 128), tj.randint(0, 65, (512,))


MODELS: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {"micro": micro, "mlp": mlp, "block": block}


def step_of(make: Callable[[], tuple[nn.Module, Any, Any]], way: str) -> tuple[Callable[[], Any], Any]:
    """A training step in one of the ways, and what was compiled."""
    tj.manual_seed(0)
    module, x, y = make()
    opt = tj.optim.SGD(module.parameters(), lr=1e-3)
    model = tj.compile(module) if way == "model" else module

    def loss_of(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y)

    compiled = tj.compile(loss_of) if way == "loss" else loss_of

    def step(x: Any, y: Any) -> Any:
        loss = compiled(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    whole = tj.compile(step) if way == "step" else step
    compiled_function = {"model": getattr(model, "forward", None), "loss": compiled, "step": whole}.get(way)
    return lambda: whole(x, y), compiled_function


def best(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least time of each step, in microseconds, measured in turns."""
    found = dict.fromkeys(steps, math.inf)
    for _ in range(rounds):
        for way, step in steps.items():
            start = time.thread_time_ns()
            for _ in range(5):
                step()
            found[way] = min(found[way], (time.thread_time_ns() - start) / 5e3)
    return found


def measure(name: str, rounds: int) -> dict[str, Any]:
    made = {way: step_of(MODELS[name], way) for way in WAYS}
    for step, _ in made.values():
        for _ in range(12):  # record, compile, compare with reference programs
            last = step()
    losses = [float(step().detach().item()) for step, _ in made.values()]
    if max(losses) - min(losses) > 1e-3 * abs(losses[0]):
        raise SystemExit(f"{name}: the losses differ: {losses}")
    del last
    times = best({way: step for way, (step, _) in made.items()}, rounds)
    explained = str(made["model"][1].explain())
    saved = re.search(r"saves ([\d,]+) bytes for the backward pass, and eager execution ([\d,]+)", explained)
    if saved is None or "backward: compiled" not in explained:
        raise SystemExit(f"{name}: the backward pass was not compiled:\n{explained}")
    return {"times": times, "saved": int(saved[1].replace(",", "")), "eager_saves": int(saved[2].replace(",", ""))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json")
    given = parser.parse_args()
    tj.set_num_threads(1)
    found = {}
    print(f"{'us a step':<8}" + "".join(f"{way:>10}" for way in WAYS) + f"{'model/eager':>14}{'model/step':>12}{'saved':>12}")
    for name in given.names:
        row = found[name] = measure(name, given.rounds)
        times = row["times"]
        ratios = f"{times['model'] / times['eager']:>14.2f}{times['model'] / times['step']:>12.2f}"
        print(
            f"{name:<9}" + "".join(f"{times[w]:>10.0f}" for w in WAYS) + ratios + f"{row['saved'] / row['eager_saves']:>12.0%}"
        )
    if given.json:
        with open(given.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
