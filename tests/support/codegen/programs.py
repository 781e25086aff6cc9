"""Programs for every backend: cases of all ops at once, fusions with their gradients, memory layouts, and training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn

from support import harness, shadow

# Slopes of these are differences of numbers that are thousands of times as large.
IMPRECISE = {"group_norm", "rnn_tanh", "multi_head_attention_forward", "cholesky_inverse"}


def one_of_each(cases: list[harness.Case]) -> list[harness.Case]:
    return list({case.key: case for case in reversed(cases)}.values())[::-1]


def run(function: Callable[[], Any], calls: int = 3) -> None:
    compiled = tj.compile(function)
    for _ in range(calls):
        compiled()


def slopes(cases: list[harness.Case], dtype: Any) -> Callable[[], Any]:
    given = [harness.tensors(case, case.arrays(), dtype, grad=True) for case in cases]
    return lambda: [harness.gradients(case, x) for case, x in zip(cases, given, strict=True)]


Fusion = Callable[[Any], Any]


def chain(x: Any) -> Any:
    return tj.tanh(x * 1.5 + 0.3) * tj.sigmoid(x) + tj.exp(-x * x)


def rows(x: Any) -> Any:
    return x.sum(-1), x.amax(-1) if x.shape[-1] else None, (x * x).mean(-1, keepdim=True) + x


def columns(x: Any) -> Any:
    y = x * 2 + 1
    return y.sum(0), (y * x).sum(0), y


def normed(x: Any) -> Any:
    n = x.shape[-1]
    if not n:
        return x
    return F.layer_norm(x, (n,), tj.ones(n, dtype=x.dtype) * 1.5, tj.ones(n, dtype=x.dtype))


def batch_normed(x: Any) -> Any:
    return F.batch_norm(x, None, None, training=True) if x.shape[0] > 1 and x.numel() else x * 2


def entropy(x: Any) -> Any:
    target = tj.arange(x.shape[0]) % max(x.shape[-1], 1)
    return F.cross_entropy(x, target, reduction="sum") if x.numel() else x.sum()


def moved(x: Any) -> Any:
    y = tj.cat([x, F.pad(x, (1, 2)), x[:, ::2] * 3, x.flip(1)], 1)
    return y[:, 1:], y.t().reshape(-1)[::3] * 2, x.t() + 1, x.unsqueeze(1).expand(-1, 3, -1).flatten(0, 1).sum(1)


def picked(x: Any) -> Any:
    index = (tj.arange(7) * 5) % max(x.shape[0], 1)
    return (F.embedding(index, x) * 2, x[index], x.gather(0, index[:, None].expand(-1, x.shape[1]))) if x.numel() else x


FUSIONS: list[Fusion] = [chain, rows, columns, lambda x: F.softmax(x, -1), normed, batch_normed, entropy, moved, picked]


def everything(x: Any) -> list[Any]:
    """All fusions, and the gradients of all of them."""
    found = []
    for fusion in FUSIONS:
        result = fusion(x)
        found.append(result)
        floats = [t for t in harness.flat(result) if t is not None and t.requires_grad]
        if floats and x.numel():
            total = floats[0].new_zeros(())
            for t in floats:
                total = total + (t * tj.arange(t.numel(), dtype=t.dtype).reshape(t.shape).cos()).sum()
            found.append(tj.autograd.grad(total, [x]))
    return found


def values(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-2, 2, shape).astype(dtype)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "every second": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "every third": lambda a: np.repeat(a, 3, 0)[::3],
    "in a margin": shadow.margined,
}


def mlp() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def convnet() -> Any:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


class Letters(nn.Module):
    """Characters, a context of three: an embedding and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.out = nn.Embedding(9, 4), nn.Linear(12, 8, bias=False), nn.Linear(8, 9)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        return self.out(tj.tanh(self.norm(self.hidden(self.table(x).flatten(1)))))


class Transformer(nn.Module):
    """A block of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(9, 8), nn.Embedding(5, 8)
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.mix, self.join = nn.Linear(8, 24), nn.Linear(8, 8)
        self.wide, self.narrow, self.out = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 9)

    def forward(self, x: Any) -> Any:
        h = self.table(x) + self.place(tj.arange(x.shape[1]))
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.mix(self.first(h)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        h = h + self.join(mixed)
        h = h + self.narrow(F.gelu(self.wide(self.second(h))))
        return self.out(h)[:, -1]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.cell(x)[0][:, -1])


# Adam and the like divide slopes by their size, so what is left where slopes cancel out counts: these need more digits. Those
# of the keys' bias are 0 but for rounding, which is not to be made as large as a step.
STEPS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], tuple[int, ...], int, int, Any]] = {
    "mlp": (mlp, lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9), (6, 4), 0, 3, np.float32),
    "convnet": (convnet, lambda p: tj.optim.SGD(p, lr=0.1), (2, 1, 8, 8), 0, 3, np.float32),
    "letters": (Letters, lambda p: tj.optim.SGD(p, lr=0.1), (6, 3), 9, 9, np.float32),
    "transformer": (Transformer, lambda p: tj.optim.AdamW(p, lr=0.01, eps=1e-6), (3, 5), 9, 9, np.float64),
    "recurrent": (Recurrent, lambda p: tj.optim.RMSprop(p, lr=0.01), (3, 4, 4), 0, 3, np.float64),
}


def train(name: str, seen: Any, calls: int) -> None:
    """So many training steps of one of these models, compiled."""
    make, optimizer, shape, words, classes, dtype = STEPS[name]
    seen.tolerance, seen.zero = 20, 1e-2
    tj.set_default_dtype(tj.float64 if dtype is np.float64 else tj.float32)
    random = np.random.default_rng(0)
    tj.manual_seed(0)
    model = make()
    opt = optimizer(model.parameters())

    @tj.compile
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for _ in range(calls):
        x = random.integers(0, words, shape) if words else random.normal(size=shape).astype(dtype)
        step(tj.tensor(x), tj.tensor(random.integers(0, classes, shape[0])))
