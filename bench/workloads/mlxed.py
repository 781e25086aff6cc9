"""The workloads for MLX: one compiled function of (weights, state, batch) that gives all three anew."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np

from .functional import Functional, Tree


class Mlx:
    """The functions of a workload, by MLX's names."""

    channels_last, kernel = True, (0, 2, 3, 1)
    relu, sigmoid = staticmethod(mlx.nn.relu), staticmethod(mx.sigmoid)
    tanh, exp, sqrt, rsqrt = staticmethod(mx.tanh), staticmethod(mx.exp), staticmethod(mx.sqrt), staticmethod(mx.rsqrt)
    gelu, zeros = staticmethod(mlx.nn.gelu), staticmethod(lambda *shape: mx.zeros(shape))

    def array(self, values: np.ndarray) -> Any:
        return mx.array(np.ascontiguousarray(values, np.int32 if values.dtype == np.int64 else None))

    def logsumexp(self, x: Any) -> Any:
        return mx.logsumexp(x, axis=-1)

    def average(self, x: Any) -> Any:
        """By rows: it adds floats up one after the other, and is off by 4e-3 after four million of them."""
        return x.reshape(-1, 1024).mean(-1).mean() if x.size > 2**20 else x.mean()

    def largest(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.max(axes)

    def mean(self, x: Any, axis: int, keep: bool = False) -> Any:
        return mx.mean(x, axis=axis, keepdims=keep)

    def variance(self, x: Any, axis: int, keep: bool = False) -> Any:
        return mx.var(x, axis=axis, keepdims=keep)

    def rows(self, table: Any, indices: Any) -> Any:
        return table[indices]

    def chosen(self, x: Any, indices: Any) -> Any:
        return mx.take_along_axis(x, indices[..., None], axis=-1)[..., 0]

    def thirds(self, x: Any) -> Any:
        return mx.split(x, 3, axis=-1)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (t.transpose(0, 2, 1, 3) for t in (q, k, v))
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")
        return mixed.transpose(0, 2, 1, 3)

    def convolve(self, x: Any, weight: Any, bias: Any) -> Any:
        return mx.conv2d(x, weight, padding=1) + bias


class Stepper(Functional):
    """A compiled step. MLX computes when it is asked to: that is left to its own stream until the loss is wanted."""

    def __init__(self, name: str) -> None:
        mx.set_default_device(mx.cpu)
        super().__init__(name, Mlx())
        self.compiled = mx.compile(self.train)

    def train(self, weights: Tree, state: Tree, *batch: Any) -> Any:
        (value, new), gradients = mx.value_and_grad(self.model)(weights, state, *batch)
        if self.update is None:
            return value, gradients, new
        return value, *self.update(self.lib, weights, gradients, {**state, **new})

    def step(self, *batch: Any) -> Any:
        if self.update is None:
            loss, self.gradients, self.state = self.compiled(self.weights, self.state, *batch)
        else:
            loss, self.weights, self.state = self.compiled(self.weights, self.state, *batch)
        mx.async_eval(loss, self.gradients, self.weights, self.state)
        return loss

    def finish(self) -> None:
        mx.eval(self.gradients, self.weights, self.state)

    def gradient_size(self) -> float:
        return float(np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for g in self.gradients.values())))

    def peak_bytes(self) -> int:
        self.finish()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        self.step(*self.batches[-1])
        self.finish()
        return int(mx.get_peak_memory() - before)
