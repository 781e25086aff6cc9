"""Each workload written by hand for JAX: one jitted function of (weights, state, batch) that gives all three anew.

Where JAX has a form of its own that is quicker than a translation, that is used: matrices as (inputs, outputs), images with
channels last, donated buffers. The weights are those of the other libraries, put in that form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .data import DATA, GPT_MEDIUM, GPT_SMALL, GPT_TINY, Data, GPTSizes

Tree = dict[str, Any]
Loss = Callable[..., Any]
Update = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


# ---- optimizers: from weights, gradients and state to weights and state


def sgd(lr: float) -> Update:
    def update(weights: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
        return {name: w - lr * gradients[name] for name, w in weights.items()}, state

    return update


def adam(lr: float, decay: float = 0.0, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Update:
    """PyTorch's Adam, and AdamW where the weights decay."""

    def update(weights: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
        t = state["t"] + 1
        first = {name: b1 * m + (1 - b1) * gradients[name] for name, m in state["first"].items()}
        second = {name: b2 * v + (1 - b2) * gradients[name] ** 2 for name, v in state["second"].items()}
        size, correction = lr / (1 - b1**t), jnp.sqrt(1 - b2**t)
        new = {
            name: w * (1 - lr * decay) - size * first[name] / (jnp.sqrt(second[name]) / correction + eps)
            for name, w in weights.items()
        }
        return new, {**state, "t": t, "first": first, "second": second}

    return update


def adam_state(weights: Tree) -> Tree:
    def zeros() -> Tree:
        return {name: jnp.zeros_like(w) for name, w in weights.items()}

    return {"t": jnp.zeros((), jnp.float32), "first": zeros(), "second": zeros()}


# ---- layers


def linear(w: Tree, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    # with the mean written out here, XLA computes it again for each element: half as quick
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def cross_entropy(logits: Any, targets: Any) -> Any:
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def max_pool(x: Any) -> Any:
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


def convolve(w: Tree, name: str, x: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w[f"{name}.weight"], (1, 1), "SAME", dimension_numbers=layout) + w[f"{name}.bias"]


# ---- models: losses of (weights, state, *batch) that also give the new state


def micrograd(w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = jax.nn.relu(linear(w, "0", x))
    h = jax.nn.relu(linear(w, "2", h))
    return jax.nn.relu(1 - y * linear(w, "4", h)).mean(), state


def makemore(w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = w["embedding.weight"][x].reshape(-1, 30) @ w["hidden.weight"]
    mean, variance = h.mean(0), h.var(0)
    normal = (h - mean) * jax.lax.rsqrt(variance + 1e-5) * w["norm.weight"] + w["norm.bias"]
    unbiased = variance * (len(h) / (len(h) - 1))
    running = {"mean": 0.9 * state["mean"] + 0.1 * mean, "variance": 0.9 * state["variance"] + 0.1 * unbiased}
    return cross_entropy(linear(w, "head", jnp.tanh(normal)), y), running


def mnist(w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = jax.nn.relu(linear(w, "0", x))
    h = jax.nn.relu(linear(w, "2", h))
    return cross_entropy(linear(w, "4", h), y), state


def gpt(sizes: GPTSizes, w: Tree, state: Tree, x: Any, y: Any) -> Any:
    batch, length = x.shape
    d, heads = sizes.width, sizes.heads
    h = w["tokens.weight"][x] + w["positions.weight"][:length]
    for i in range(sizes.layers):
        b = f"blocks.{i}"
        normal = layer_norm(h, w[f"{b}.norm1.weight"], w[f"{b}.norm1.bias"])
        q, k, v = (t.reshape(batch, length, heads, d // heads) for t in jnp.split(linear(w, f"{b}.qkv", normal), 3, -1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        h = h + linear(w, f"{b}.mix", mixed.reshape(batch, length, d))
        normal = layer_norm(h, w[f"{b}.norm2.weight"], w[f"{b}.norm2.bias"])
        h = h + linear(w, f"{b}.down", jax.nn.gelu(linear(w, f"{b}.up", normal), approximate=False))
    logits = layer_norm(h, w["norm.weight"], w["norm.bias"]) @ w["head.weight"]
    return cross_entropy(logits, y), state


def convnet(w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = max_pool(jax.nn.relu(convolve(w, "0", x)))
    h = max_pool(jax.nn.relu(convolve(w, "3", h)))
    return cross_entropy(linear(w, "7", h.reshape(len(h), -1)), y), state


def gru(w: Tree, state: Tree, x: Any, y: Any) -> Any:
    h = jnp.zeros((x.shape[1], w["cell.weight_hh"].shape[0]))
    for t in range(x.shape[0]):
        ir, iz, i_new = jnp.split(x[t] @ w["cell.weight_ih"] + w["cell.bias_ih"], 3, -1)
        hr, hz, h_new = jnp.split(h @ w["cell.weight_hh"] + w["cell.bias_hh"], 3, -1)
        r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
        candidate = jnp.tanh(i_new + r * h_new)
        h = (1 - z) * candidate + z * h
    return cross_entropy(linear(w, "head", h), y), state


def pointwise(w: Tree, state: Tree) -> Any:
    x = w["x"]
    return (jnp.tanh(x * 0.7 + 0.1) * jax.nn.sigmoid(x) + jnp.exp(-x * x)).mean(), state


def norm_gelu(w: Tree, state: Tree, incoming: Any) -> Any:
    normal = layer_norm(w["x"], w["norm.weight"], w["norm.bias"])
    return ((w["x"] + jax.nn.gelu(normal, approximate=False)) * incoming).mean(), state


def classes(w: Tree, state: Tree, targets: Any) -> Any:
    return cross_entropy(w["x"], targets), state


LOSSES: dict[str, Loss] = {
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
ADAMS = ("mnist", "gpt-small", "gpt-medium", "gru", "tiny")


# ---- a step


class Stepper:
    """A jitted step and the values it goes on from. `gradients` are those of the last step where there is no optimizer."""

    def __init__(self, name: str) -> None:
        data = DATA[name]()
        self.weights = {key: jnp.asarray(native(name, key, array)) for key, array in data.weights.items()}
        self.state: Tree = adam_state(self.weights) if name in ADAMS else {}
        if name == "makemore":
            self.state = {"mean": jnp.zeros(200), "variance": jnp.ones(200)}
        self.batches = [tuple(jnp.asarray(a) for a in batch) for batch in native_batches(name, data)]
        self.gradients: Tree = {}
        self.trains = name in UPDATES
        self.jitted = jitted(LOSSES[name], UPDATES.get(name))

    def step(self, *batch: Any) -> Any:
        if self.trains:
            loss, self.weights, self.state = self.jitted(self.weights, self.state, *batch)
        else:
            loss, self.gradients, self.state = self.jitted(self.weights, self.state, *batch)
        return loss

    def peak_bytes(self) -> int:
        """By XLA's own plan: its temporary buffers, and results that do not take the place of what was given."""
        plan = self.jitted.lower(self.weights, self.state, *self.batches[-1]).compile().memory_analysis()
        return int(plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes)


def jitted(loss: Loss, update: Update | None) -> Any:
    def train(weights: Tree, state: Tree, *batch: Any) -> Any:
        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(weights, state, *batch)
        if update is None:
            return value, gradients, new
        return value, *update(weights, gradients, new)

    return jax.jit(train) if update is None else jax.jit(train, donate_argnums=(0, 1))


def native(name: str, key: str, array: np.ndarray) -> np.ndarray:
    """A weight in JAX's order of dimensions."""
    if name == "convnet" and key == "7.weight":  # its inputs are a flattened image, with channels last here
        return array.reshape(10, 32, 7, 7).transpose(2, 3, 1, 0).reshape(-1, 10)
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    keep = key in ("x", "embedding.weight", "tokens.weight", "positions.weight")
    return array if keep or array.ndim < 2 else np.ascontiguousarray(array.T)


def native_batches(name: str, data: Data) -> list[tuple[np.ndarray, ...]]:
    if name == "convnet":
        return [(x.transpose(0, 2, 3, 1), y) for x, y in data.batches]
    return data.batches
