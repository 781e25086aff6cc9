"""Each workload as a function of weights, state and batch, for libraries that compile functions: JAX, MLX, tinygrad.

What they call differently is in a `Library`; each has one, in a file of its own. Matrices are (inputs, outputs) here, and
images have their channels last where a library likes them there. The weights are those of the other workloads, in that form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from .data import DATA, GPT_MEDIUM, GPT_SMALL, GPT_TINY, Arrays, Data, GPTSizes

Tree = dict[str, Any]
Model = Callable[..., Any]
Update = Callable[["Library", Tree, Tree, Tree], tuple[Tree, Tree]]


class Library(Protocol):
    """The functions that a workload is made of. Axes are the last one where nothing is said."""

    channels_last: bool
    kernel: tuple[int, ...]  # the order of (outputs, inputs, height, width) in the weights of a convolution
    relu: Any
    tanh: Any
    sigmoid: Any
    exp: Any
    gelu: Any
    sqrt: Any
    rsqrt: Any
    logsumexp: Any

    def average(self, x: Any) -> Any: ...
    def largest(self, x: Any, axes: tuple[int, ...]) -> Any: ...
    def mean(self, x: Any, axis: int, keep: bool = False) -> Any: ...
    def variance(self, x: Any, axis: int, keep: bool = False) -> Any: ...
    def rows(self, table: Any, indices: Any) -> Any: ...
    def chosen(self, x: Any, indices: Any) -> Any: ...
    def thirds(self, x: Any) -> Any: ...
    def attend(self, q: Any, k: Any, v: Any) -> Any: ...
    def convolve(self, x: Any, weight: Any, bias: Any) -> Any: ...
    def zeros(self, *shape: int) -> Any: ...
    def array(self, values: np.ndarray) -> Any: ...


# ---- optimizers: from weights, gradients and state to weights and state


def sgd(lr: float) -> Update:
    def update(lib: Library, weights: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
        return {name: w - lr * gradients[name] for name, w in weights.items()}, state

    return update


def adam(lr: float, decay: float = 0.0, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Update:
    """PyTorch's Adam, and AdamW where the weights decay."""

    def update(lib: Library, weights: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
        t = state["t"] + 1
        new, after = {}, {"t": t}
        size, correction = lr / (1 - b1**t), lib.sqrt(1 - b2**t)
        for name, w in weights.items():
            g = gradients[name]
            m = after[f"first.{name}"] = b1 * state[f"first.{name}"] + (1 - b1) * g
            v = after[f"second.{name}"] = b2 * state[f"second.{name}"] + (1 - b2) * g * g
            new[name] = w * (1 - lr * decay) - size * m / (lib.sqrt(v) / correction + eps)
        return new, after

    return update


# ---- layers


def linear(w: Tree, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def layer_norm(lib: Library, x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    # with the mean written out in the variance, XLA computes it again for each element: half as quick
    return (x - lib.mean(x, -1, True)) * lib.rsqrt(lib.variance(x, -1, True) + eps) * weight + bias


def cross_entropy(lib: Library, logits: Any, targets: Any) -> Any:
    return lib.average(lib.logsumexp(logits) - lib.chosen(logits, targets))


def max_pool(lib: Library, x: Any) -> Any:
    if lib.channels_last:
        batch, height, width, channels = x.shape
        return lib.largest(x.reshape(batch, height // 2, 2, width // 2, 2, channels), (2, 4))
    batch, channels, height, width = x.shape
    return lib.largest(x.reshape(batch, channels, height // 2, 2, width // 2, 2), (3, 5))


# ---- models: losses of (library, weights, state, *batch), which also give the new state


def micrograd(lib: Library, w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = lib.relu(linear(w, "0", x))
    h = lib.relu(linear(w, "2", h))
    return lib.average(lib.relu(1 - y * linear(w, "4", h))), state


def makemore(lib: Library, w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = lib.rows(w["embedding.weight"], x).reshape(-1, 30) @ w["hidden.weight"]
    mean, variance = lib.mean(h, 0), lib.variance(h, 0)
    normal = (h - mean) * lib.rsqrt(variance + 1e-5) * w["norm.weight"] + w["norm.bias"]
    unbiased = variance * (h.shape[0] / (h.shape[0] - 1))
    running = {"mean": 0.9 * state["mean"] + 0.1 * mean, "variance": 0.9 * state["variance"] + 0.1 * unbiased}
    return cross_entropy(lib, linear(w, "head", lib.tanh(normal)), y), running


def mnist(lib: Library, w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = lib.relu(linear(w, "0", x))
    h = lib.relu(linear(w, "2", h))
    return cross_entropy(lib, linear(w, "4", h), y), state


def gpt(sizes: GPTSizes, lib: Library, w: Tree, state: Tree, x: Any, y: Any) -> Any:
    batch, length = x.shape
    d, heads = sizes.width, sizes.heads
    h = lib.rows(w["tokens.weight"], x) + w["positions.weight"][:length]
    for i in range(sizes.layers):
        b = f"blocks.{i}"
        normal = layer_norm(lib, h, w[f"{b}.norm1.weight"], w[f"{b}.norm1.bias"])
        q, k, v = (t.reshape(batch, length, heads, d // heads) for t in lib.thirds(linear(w, f"{b}.qkv", normal)))
        h = h + linear(w, f"{b}.mix", lib.attend(q, k, v).reshape(batch, length, d))
        normal = layer_norm(lib, h, w[f"{b}.norm2.weight"], w[f"{b}.norm2.bias"])
        h = h + linear(w, f"{b}.down", lib.gelu(linear(w, f"{b}.up", normal)))
    logits = layer_norm(lib, h, w["norm.weight"], w["norm.bias"]) @ w["head.weight"]
    return cross_entropy(lib, logits, y), state


def convnet(lib: Library, w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = max_pool(lib, lib.relu(lib.convolve(x, w["0.weight"], w["0.bias"])))
    h = max_pool(lib, lib.relu(lib.convolve(h, w["3.weight"], w["3.bias"])))
    return cross_entropy(lib, linear(w, "7", h.reshape(h.shape[0], -1)), y), state


def gru(lib: Library, w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = lib.zeros(x.shape[1], w["cell.weight_hh"].shape[0])
    for t in range(x.shape[0]):
        ir, iz, i_new = lib.thirds(x[t] @ w["cell.weight_ih"] + w["cell.bias_ih"])
        hr, hz, h_new = lib.thirds(h @ w["cell.weight_hh"] + w["cell.bias_hh"])
        r, z = lib.sigmoid(ir + hr), lib.sigmoid(iz + hz)
        h = (1 - z) * lib.tanh(i_new + r * h_new) + z * h
    return cross_entropy(lib, linear(w, "head", h), y), state


def pointwise(lib: Library, w: Tree, state: Tree) -> Any:
    x = w["x"]
    return lib.average(lib.tanh(x * 0.7 + 0.1) * lib.sigmoid(x) + lib.exp(-x * x)), state


def norm_gelu(lib: Library, w: Tree, state: Tree, incoming: Any) -> Any:
    normal = layer_norm(lib, w["x"], w["norm.weight"], w["norm.bias"])
    return lib.average((w["x"] + lib.gelu(normal)) * incoming), state


def classes(lib: Library, w: Tree, state: Tree, targets: Any) -> Any:
    return cross_entropy(lib, w["x"], targets), state


MODELS: dict[str, Model] = {
    "micrograd": micrograd,
    "makemore": makemore,
    "mnist": mnist,
    "gpt-small": functools.partial(gpt, GPT_SMALL),
    "gpt-medium": functools.partial(gpt, GPT_MEDIUM),
    "convnet": convnet,
    "gru": gru,
    "pointwise": pointwise,
    "layer-norm": norm_gelu,
    "cross-entropy": classes,
    "tiny": functools.partial(gpt, GPT_TINY),
}
ADAMS = ("mnist", "gpt-small", "gpt-medium", "gru", "tiny")
UPDATES: dict[str, Update] = {
    "micrograd": sgd(0.05),
    "makemore": sgd(0.1),
    "mnist": adam(1e-3),
    "gpt-small": adam(3e-4, decay=0.01),
    "gpt-medium": adam(3e-4, decay=0.01),
    "convnet": sgd(0.05),
    "gru": adam(1e-3),
    "tiny": adam(3e-4, decay=0.01),
}


# ---- a step


class Functional:
    """A workload's values, from which its steps go on, and its loss as a function of them."""

    def __init__(self, name: str, lib: Library) -> None:
        data = DATA[name]()
        self.lib = lib
        self.update = UPDATES.get(name)
        self.model = functools.partial(MODELS[name], lib)
        self.weights: Tree = {k: lib.array(converted(name, k, a, lib)) for k, a in data.weights.items()}
        self.state: Tree = {k: lib.array(a) for k, a in first_state(name, data.weights, lib).items()}
        self.batches = [tuple(lib.array(a) for a in batch) for batch in batches(name, data, lib.channels_last)]
        self.gradients: Tree = {}  # of the last step, where there is no optimizer


def first_state(name: str, weights: Arrays, lib: Library) -> Arrays:
    """The state of the optimizer, or the statistics of batch norm."""
    if name == "makemore":
        return {"mean": np.zeros(200, np.float32), "variance": np.ones(200, np.float32)}
    if name not in ADAMS:
        return {}
    zeros = {k: np.zeros_like(converted(name, k, a, lib)) for k, a in weights.items()}
    averages = {f"{which}.{k}": z for which in ("first", "second") for k, z in zeros.items()}
    return {"t": np.zeros((), np.float32), **averages}


def converted(name: str, key: str, array: np.ndarray, lib: Library) -> np.ndarray:
    """A weight in the order of dimensions that is used here."""
    if array.ndim == 4:
        return np.ascontiguousarray(array.transpose(lib.kernel))
    if name == "convnet" and key == "7.weight" and lib.channels_last:  # its inputs are a flattened image
        array = array.reshape(10, 32, 7, 7).transpose(0, 2, 3, 1).reshape(10, -1)
    keep = key in ("x", "embedding.weight", "tokens.weight", "positions.weight")
    return array if keep or array.ndim != 2 else np.ascontiguousarray(array.T)


def batches(name: str, data: Data, channels_last: bool) -> list[tuple[np.ndarray, ...]]:
    if name == "convnet" and channels_last:
        return [(x.transpose(0, 2, 3, 1), y) for x, y in data.batches]
    return data.batches
