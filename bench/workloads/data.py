"""The numbers of each workload: initial weights and batches as NumPy arrays, the same in every library and process.

Weights have PyTorch's names and shapes; `RandomState` is used because its numbers never change between NumPy's versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]
Batch = tuple[np.ndarray, ...]
BATCHES = 4


@dataclass
class Data:
    """`weights` are what is trained; `bytes_needed`, for a step bound by memory, is the least that it must read and write."""

    weights: Arrays
    batches: list[Batch]
    bytes_needed: int = 0


@dataclass(frozen=True)
class GPTSizes:
    layers: int
    heads: int
    width: int
    context: int
    batch: int
    vocabulary: int = 65


GPT_SMALL = GPTSizes(layers=4, heads=4, width=128, context=64, batch=16)
GPT_MEDIUM = GPTSizes(layers=6, heads=6, width=384, context=128, batch=8)
GPT_TINY = GPTSizes(layers=1, heads=2, width=16, context=8, batch=2)
LENGTHS = (5, 7, 9, 11)


class Numbers:
    """A stream of pseudo-random arrays."""

    def __init__(self, seed: int) -> None:
        self.state = np.random.RandomState(seed)

    def uniform(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.state.uniform(-scale, scale, shape)).astype(np.float32)

    def integers(self, below: int, *shape: int) -> np.ndarray:
        return self.state.randint(0, below, shape).astype(np.int64)

    def affine(self, name: str, *shape: int) -> Arrays:
        """Weight (outputs, inputs...) and bias, as PyTorch initialises them: by the number of inputs."""
        scale = 1 / math.sqrt(math.prod(shape[1:]))
        return {f"{name}.weight": self.uniform(*shape, scale=scale), f"{name}.bias": self.uniform(shape[0], scale=scale)}


def norm(name: str, width: int) -> Arrays:
    return {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}


def micrograd() -> Data:
    n = Numbers(1)
    weights = {**n.affine("0", 16, 2), **n.affine("2", 16, 16), **n.affine("4", 1, 16)}
    points = n.uniform(BATCHES, 100, 2, scale=2.0)
    labels = np.where(np.sin(2 * points[..., :1]) > points[..., 1:], 1, -1).astype(np.float32)
    return Data(weights, list(zip(points, labels, strict=True)))


def makemore() -> Data:
    n = Numbers(2)
    weights = {"embedding.weight": n.uniform(27, 10), "hidden.weight": n.uniform(200, 30, scale=0.18)}
    weights |= {**norm("norm", 200), **n.affine("head", 27, 200)}
    return Data(weights, [(n.integers(27, 32, 3), n.integers(27, 32)) for _ in range(BATCHES)])


def mnist() -> Data:
    n = Numbers(3)
    weights = {**n.affine("0", 512, 784), **n.affine("2", 256, 512), **n.affine("4", 10, 256)}
    return Data(weights, [(n.uniform(128, 784), n.integers(10, 128)) for _ in range(BATCHES)])


def gpt(sizes: GPTSizes) -> Data:
    n, d = Numbers(4), sizes.width
    weights = {
        "tokens.weight": n.uniform(sizes.vocabulary, d, scale=0.1),
        "positions.weight": n.uniform(sizes.context, d, scale=0.1),
    }
    for i in range(sizes.layers):
        b = f"blocks.{i}"
        weights |= {**norm(f"{b}.norm1", d), **n.affine(f"{b}.qkv", 3 * d, d), **n.affine(f"{b}.mix", d, d)}
        weights |= {**norm(f"{b}.norm2", d), **n.affine(f"{b}.up", 4 * d, d), **n.affine(f"{b}.down", d, 4 * d)}
    weights |= {**norm("norm", d), "head.weight": n.uniform(sizes.vocabulary, d, scale=1 / math.sqrt(d))}
    shape = (sizes.batch, sizes.context)
    return Data(weights, [(n.integers(sizes.vocabulary, *shape), n.integers(sizes.vocabulary, *shape)) for _ in range(BATCHES)])


def convnet() -> Data:
    n = Numbers(5)
    weights = {**n.affine("0", 16, 1, 3, 3), **n.affine("3", 32, 16, 3, 3), **n.affine("7", 10, 32 * 7 * 7)}
    return Data(weights, [(n.uniform(64, 1, 28, 28), n.integers(10, 64)) for _ in range(BATCHES)])


def gru(inputs: int = 32, hidden: int = 64) -> Data:
    n = Numbers(6)
    scale = 1 / math.sqrt(hidden)
    weights = {
        "cell.weight_ih": n.uniform(3 * hidden, inputs, scale=scale),
        "cell.weight_hh": n.uniform(3 * hidden, hidden, scale=scale),
        "cell.bias_ih": n.uniform(3 * hidden, scale=scale),
        "cell.bias_hh": n.uniform(3 * hidden, scale=scale),
        **n.affine("head", 10, hidden),
    }
    return Data(weights, [(n.uniform(length, 32, inputs), n.integers(10, 32)) for length in LENGTHS])


def pointwise(count: int = 4 * 2**20) -> Data:
    x = Numbers(7).uniform(count, scale=3.0)
    return Data({"x": x}, [()], 2 * x.nbytes)  # x is read, its gradient is written


def layer_norm(rows: int = 4096, width: int = 1024) -> Data:
    n = Numbers(8)
    x, incoming = n.uniform(rows, width, scale=3.0), 1 + n.uniform(rows, width)
    return Data({"x": x, **norm("norm", width)}, [(incoming,)], 3 * x.nbytes)  # x and `incoming` are read, the gradient written


def cross_entropy(rows: int = 4096, classes: int = 8192) -> Data:
    n = Numbers(9)
    x = n.uniform(rows, classes, scale=3.0)
    return Data({"x": x}, [(n.integers(classes, rows),)], 2 * x.nbytes)


DATA: dict[str, Callable[[], Data]] = {
    "micrograd": micrograd,
    "makemore": makemore,
    "mnist": mnist,
    "gpt-small": lambda: gpt(GPT_SMALL),
    "gpt-medium": lambda: gpt(GPT_MEDIUM),
    "convnet": convnet,
    "gru": gru,
    "pointwise": pointwise,
    "layer-norm": layer_norm,
    "cross-entropy": cross_entropy,
    "tiny": lambda: gpt(GPT_TINY),  # for the tests
}
