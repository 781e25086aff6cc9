"""Eager mode against PyTorch eager on the CPU: overhead per op, training steps, peak memory.

    python bench/eager.py [NAME ...] [--rounds 20] [--json FILE]

Each library runs in a process of its own, from the same code (`import tapejit as torch`), and the rounds take turns, so
that what else the machine does falls on both. Printed are the best times, and the ratio of the best times; losses are
compared before any time is printed. Memory is the peak of tensor bytes that one step adds to what was there before it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from compare import Step, run, values

FLOORS = {"chain": 1.5, "mlp": 2.0, "transformer": 2.0, "memory mlp": 1.2, "memory transformer": 1.2}


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


if __name__ == "__main__":
    run(__file__, __doc__, FLOORS, WORKLOADS, LARGER)
