"""Each workload for tapejit and PyTorch alike: the code is one, and `torch` is either library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .data import DATA, GPT_MEDIUM, GPT_SMALL, GPT_TINY, Arrays, Data, GPTSizes


@dataclass
class Training:
    """The parts of a training step. Without an optimizer it ends with the gradients."""

    loss: Callable[..., Any]
    parameters: list[Any]
    optimizer: Any
    batches: list[tuple[Any, ...]]

    def step(self, *batch: Any) -> Any:
        loss = self.loss(*batch)
        if self.optimizer is None:
            for p in self.parameters:
                p.grad = None
        else:
            self.optimizer.zero_grad()
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss


def load(torch: Any, model: Any, weights: Arrays) -> None:
    """Begin from the given weights; buffers of norms stay as they are made."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys():
        raise ValueError(f"the weights do not fit the model: {sorted(parameters.keys() ^ weights.keys())}")
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(torch.from_numpy(weights[name].copy()))


def optimize(torch: Any, name: str, model: Any, lr: float) -> Any:
    """PyTorch's optimizers have a quicker form on the CPU that must be asked for."""
    options = {"fused": True} if torch.__name__ == "torch" else {}
    return getattr(torch.optim, name)(model.parameters(), lr=lr, **options)


def train(torch: Any, data: Data, model: Any, loss: Callable[..., Any], optimizer: str, lr: float) -> Training:
    load(torch, model, data.weights)
    batches = [tuple(torch.from_numpy(a.copy()) for a in batch) for batch in data.batches]
    return Training(loss, list(model.parameters()), optimize(torch, optimizer, model, lr), batches)


def leaves(torch: Any, data: Data, loss: Callable[..., Any]) -> Training:
    """A step whose weights are tensors that are not in a module, and that ends with their gradients."""
    parameters = {name: torch.from_numpy(a.copy()).requires_grad_() for name, a in data.weights.items()}
    batches = [tuple(torch.from_numpy(a.copy()) for a in batch) for batch in data.batches]
    return Training(functools.partial(loss, *parameters.values()), list(parameters.values()), None, batches)


def micrograd(torch: Any, data: Data) -> Training:
    nn, F = torch.nn, torch.nn.functional
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    return train(torch, data, model, lambda x, y: F.relu(1 - y * model(x)).mean(), "SGD", 0.05)


def makemore(torch: Any, data: Data) -> Training:
    nn, F = torch.nn, torch.nn.functional

    class Letters(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(27, 10)
            self.hidden = nn.Linear(30, 200, bias=False)
            self.norm = nn.BatchNorm1d(200)
            self.head = nn.Linear(200, 27)

        def forward(self, x: Any) -> Any:
            h = self.hidden(self.embedding(x).view(-1, 30))
            return self.head(torch.tanh(self.norm(h)))

    model = Letters()
    return train(torch, data, model, lambda x, y: F.cross_entropy(model(x), y), "SGD", 0.1)


def mnist(torch: Any, data: Data) -> Training:
    nn, F = torch.nn, torch.nn.functional
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    return train(torch, data, model, lambda x, y: F.cross_entropy(model(x), y), "Adam", 1e-3)


def gpt(sizes: GPTSizes, torch: Any, data: Data) -> Training:
    nn, F = torch.nn, torch.nn.functional
    d, heads = sizes.width, sizes.heads

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.qkv, self.mix = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.norm2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def attend(self, h: Any) -> Any:
            batch, length, _ = h.shape
            q, k, v = (t.view(batch, length, heads, d // heads).transpose(1, 2) for t in self.qkv(h).split(d, dim=2))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.mix(mixed.transpose(1, 2).reshape(batch, length, d))

        def forward(self, h: Any) -> Any:
            h = h + self.attend(self.norm1(h))
            return h + self.down(F.gelu(self.up(self.norm2(h))))

    class GPT(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes.vocabulary, d)
            self.positions = nn.Embedding(sizes.context, d)
            self.blocks = nn.ModuleList([Block() for _ in range(sizes.layers)])
            self.norm = nn.LayerNorm(d)
            self.head = nn.Linear(d, sizes.vocabulary, bias=False)

        def forward(self, x: Any) -> Any:
            h = self.tokens(x) + self.positions.weight[: x.shape[1]]
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))

    model = GPT()

    def loss(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x).view(-1, sizes.vocabulary), y.view(-1))

    return train(torch, data, model, loss, "AdamW", 3e-4)


def convnet(torch: Any, data: Data) -> Training:
    nn, F = torch.nn, torch.nn.functional
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip
    return train(torch, data, model, lambda x, y: F.cross_entropy(model(x), y), "SGD", 0.05)


def gru(torch: Any, data: Data) -> Training:
    nn, F = torch.nn, torch.nn.functional
    hidden = data.weights["cell.weight_hh"].shape[1]

    class Reader(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(data.weights["cell.weight_ih"].shape[1], hidden)
            self.head = nn.Linear(hidden, 10)

        def forward(self, x: Any) -> Any:
            h = torch.zeros(x.shape[1], hidden)
            for t in range(x.shape[0]):
                h = self.cell(x[t], h)
            return self.head(h)

    model = Reader()
    return train(torch, data, model, lambda x, y: F.cross_entropy(model(x), y), "Adam", 1e-3)


def pointwise(torch: Any, data: Data) -> Training:
    def loss(x: Any) -> Any:
        return (torch.tanh(x * 0.7 + 0.1) * torch.sigmoid(x) + torch.exp(-x * x)).mean()

    return leaves(torch, data, loss)


def layer_norm(torch: Any, data: Data) -> Training:
    F = torch.nn.functional

    def loss(x: Any, weight: Any, bias: Any, incoming: Any) -> Any:
        return ((x + F.gelu(F.layer_norm(x, x.shape[1:], weight, bias))) * incoming).mean()

    return leaves(torch, data, loss)


def cross_entropy(torch: Any, data: Data) -> Training:
    return leaves(torch, data, torch.nn.functional.cross_entropy)


WORKLOADS: dict[str, Callable[[Any, Data], Training]] = {
    "micrograd": micrograd,
    "makemore": makemore,
    "mnist": mnist,
    "gpt-small": functools.partial(gpt, GPT_SMALL),
    "gpt-medium": functools.partial(gpt, GPT_MEDIUM),
    "convnet": convnet,
    "gru": gru,
    "pointwise": pointwise,
    "layer-norm": layer_norm,
    "cross-entropy": cross_entropy,
    "tiny": functools.partial(gpt, GPT_TINY),
}


def training(torch: Any, name: str) -> Training:
    return WORKLOADS[name](torch, DATA[name]())
