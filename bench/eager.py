"""Eager mode against PyTorch eager on the CPU: overhead per op, training steps, peak memory.

    python bench/eager.py [NAME ...] [--rounds 20] [--json FILE]

Each library runs in a process of its own, from the same code (`import tapejit as torch`), and the rounds take turns, so
that what else the machine does falls on both. Printed are the best times, and the ratio of the best times; losses are
compared before any time is printed. Memory is the peak of tensor bytes that one step adds to what was there before it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLOORS = {"chain": 1.5, "mlp": 2.0, "transformer": 2.0, "memory mlp": 1.2, "memory transformer": 1.2}

Step = Callable[[], Any]


def values(torch: Any, *shape: int, scale: float = 1.0, shift: int = 0) -> Any:
    """The same pseudo-random numbers in every library."""
    count = math.prod(shape)
    flat = [math.sin(12.9898 * (i + 1 + shift)) * 43758.5453 % 1.0 - 0.5 for i in range(count)]
    return torch.tensor(flat).reshape(*shape) * (2 * scale)


def weights(torch: Any, *shapes: tuple[int, ...]) -> list[Any]:
    made = [values(torch, *s, scale=1 / math.sqrt(s[0]), shift=17 * i) for i, s in enumerate(shapes)]
    return [w.detach().clone().requires_grad_() for w in made]


def descend(torch: Any, parameters: list[Any], lr: float = 0.01) -> None:
    with torch.no_grad():
        for p in parameters:
            p.add_(p.grad, alpha=-lr)
            p.grad = None


def chain(torch: Any) -> Step:
    """Ten times multiply, add, tanh on 16 elements, forward and backward: 31 ops."""
    x = torch.ones(16, requires_grad=True)
    y = torch.ones(16, requires_grad=True)

    def step() -> Any:
        h = x
        for _ in range(10):
            h = h * y
            h = h + x
            h = torch.tanh(h)
        loss = h.sum()
        loss.backward()
        return loss

    return step


def mlp(torch: Any, batch: int = 32, width: int = 128) -> Step:
    """784-128-128-10 with relu and cross entropy, SGD, batch 32."""
    F = importlib.import_module(f"{torch.__name__}.nn.functional")
    x = values(torch, batch, 784)
    y = torch.arange(batch) % 10
    layers = weights(torch, (width, 784), (width,), (width, width), (width,), (10, width), (10,))
    w1, b1, w2, b2, w3, b3 = layers

    def step() -> Any:
        h = F.relu(F.linear(x, w1, b1))
        h = F.relu(F.linear(h, w2, b2))
        loss = F.cross_entropy(F.linear(h, w3, b3), y)
        loss.backward()
        descend(torch, layers)
        return loss

    return step


def transformer(torch: Any, batch: int = 8, length: int = 32, width: int = 64, depth: int = 2) -> Step:
    """A small pre-norm transformer language model: 2 layers, 4 heads, d=64, context 32, batch 8, 65 characters, SGD."""
    F = importlib.import_module(f"{torch.__name__}.nn.functional")
    vocabulary, heads, d = 65, 4, width
    tokens = (torch.arange(batch * length) * 7 % vocabulary).reshape(batch, length)
    targets = (torch.arange(batch * length) * 11 % vocabulary).reshape(batch * length)
    block = [(d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,), (d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    parameters = weights(torch, (vocabulary, d), (length, d), *(block * depth), (d,), (d,), (vocabulary, d))
    embed, position, final_w, final_b, head = *parameters[:2], *parameters[-3:]
    blocks = [parameters[2 + 12 * i : 14 + 12 * i] for i in range(depth)]

    def attention(h: Any, wqkv: Any, bqkv: Any, wo: Any, bo: Any) -> Any:
        q, k, v = F.linear(h, wqkv, bqkv).split(d, dim=2)
        q, k, v = (t.view(batch, length, heads, d // heads).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, d), wo, bo)

    def step() -> Any:
        h = F.embedding(tokens, embed) + position
        for g1, n1, wqkv, bqkv, wo, bo, g2, n2, wu, bu, wd, bd in blocks:
            h = h + attention(F.layer_norm(h, (d,), g1, n1), wqkv, bqkv, wo, bo)
            h = h + F.linear(F.gelu(F.linear(F.layer_norm(h, (d,), g2, n2), wu, bu)), wd, bd)
        logits = F.linear(F.layer_norm(h, (d,), final_w, final_b), head)
        loss = F.cross_entropy(logits.reshape(-1, vocabulary), targets)
        loss.backward()
        descend(torch, parameters)
        return loss

    return step


WORKLOADS: dict[str, Callable[[Any], Step]] = {"chain": chain, "mlp": mlp, "transformer": transformer}
LARGER: dict[str, Callable[[Any], Step]] = {
    "memory mlp": lambda torch: mlp(torch, batch=512, width=512),
    "memory transformer": lambda torch: transformer(torch, batch=16, length=64, width=128),
}


# ---- one library in one process


def best_time(step: Step, seconds: float) -> float:
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    return best


def peak_bytes(library: str, step: Step) -> int:
    """The most tensor bytes alive at once during one step, above those alive before it."""
    step()
    if library == "torch":
        return torch_peak(step)
    tracemalloc.start()  # NumPy reports its arrays here; Python's own objects are counted against us
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    step()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return peak


def torch_peak(step: Step) -> int:
    import torch

    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    alive = peak = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def serve(library: str) -> None:
    """Answer lines of JSON on standard input: {"workload": ..., "do": "loss" | "time" | "memory"}."""
    torch = importlib.import_module(library)
    if library == "torch":
        torch.set_num_threads(2)
    steps: dict[str, Step] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["workload"]
        if name not in steps:
            steps[name] = (WORKLOADS | LARGER)[name](torch)
        step = steps[name]
        if request["do"] == "loss":
            answer: float = [float(step().item()) for _ in range(5)][-1]
        elif request["do"] == "time":
            answer = best_time(step, request["seconds"])
        else:
            answer = peak_bytes(library, step)
        print(json.dumps(answer), flush=True)


# ---- comparing


class Worker:
    def __init__(self, library: str) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", library]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a benchmark process died; its error is above")
        return float(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(names: list[str], rounds: int) -> list[dict[str, Any]]:
    ours, theirs = Worker("tapejit"), Worker("torch")
    rows = []
    for name in [n for n in WORKLOADS if n in names]:
        losses = [w.ask(workload=name, do="loss") for w in (ours, theirs)]
        if not math.isclose(*losses, rel_tol=1e-4):
            raise SystemExit(f"{name}: the losses differ, tapejit {losses[0]}, PyTorch {losses[1]}: no time is worth printing")
        best = [math.inf, math.inf]
        for i in range(rounds):
            print(f"\r{name}: round {i + 1}/{rounds} ", end="", file=sys.stderr, flush=True)
            for k, worker in enumerate((ours, theirs)):
                best[k] = min(best[k], worker.ask(workload=name, do="time", seconds=0.2))
        rows.append({"name": name, "unit": "us", "tapejit": best[0] * 1e6, "torch": best[1] * 1e6})
    for name in [n for n in LARGER if n in names]:
        peaks = [w.ask(workload=name, do="memory") for w in (ours, theirs)]
        rows.append({"name": name, "unit": "KiB", "tapejit": peaks[0] / 1024, "torch": peaks[1] / 1024})
    ours.close()
    theirs.close()
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(FLOORS)}")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if importlib.util.find_spec("torch") is None:
        raise SystemExit("the comparison needs PyTorch: pip install torch==2.13.0")
    unknown = [n for n in options.names if n not in FLOORS]
    if unknown:
        raise SystemExit(f"no workload is called {unknown[0]!r}; there are: {', '.join(FLOORS)}")
    rows = compare(options.names or list(FLOORS), options.rounds)
    print(f"{'workload':20} {'tapejit':>13} {'torch eager':>13} {'ratio':>7} {'floor':>7}")
    for row in rows:
        ratio = row["tapejit"] / row["torch"]
        ours, theirs = (f"{row[k]:9.1f} {row['unit']:>3}" for k in ("tapejit", "torch"))
        print(f"{row['name']:20} {ours:>13} {theirs:>13} {ratio:7.2f} {FLOORS[row['name']]:7.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
