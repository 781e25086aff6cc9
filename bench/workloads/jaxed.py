"""The workloads for JAX: one jitted function of (weights, state, batch) that gives all three anew, with donated buffers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .functional import Functional, Tree


class Jax:
    """The functions of a workload, by JAX's names."""

    channels_last, kernel = True, (2, 3, 1, 0)
    relu, sigmoid = staticmethod(jax.nn.relu), staticmethod(jax.nn.sigmoid)
    tanh, exp, sqrt, rsqrt = staticmethod(jnp.tanh), staticmethod(jnp.exp), staticmethod(jnp.sqrt), staticmethod(jax.lax.rsqrt)
    zeros, array = staticmethod(lambda *shape: jnp.zeros(shape)), staticmethod(jnp.asarray)

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def logsumexp(self, x: Any) -> Any:
        return jax.nn.logsumexp(x, -1)

    def average(self, x: Any) -> Any:
        return x.mean()

    def largest(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.max(axes)

    def mean(self, x: Any, axis: int, keep: bool = False) -> Any:
        return x.mean(axis, keepdims=keep)

    def variance(self, x: Any, axis: int, keep: bool = False) -> Any:
        return x.var(axis, keepdims=keep)

    def rows(self, table: Any, indices: Any) -> Any:
        return table[indices]

    def chosen(self, x: Any, indices: Any) -> Any:
        return jnp.take_along_axis(x, indices[..., None], -1)[..., 0]

    def thirds(self, x: Any) -> Any:
        return jnp.split(x, 3, -1)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def convolve(self, x: Any, weight: Any, bias: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=layout) + bias


class Stepper(Functional):
    """A jitted step."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Jax())
        self.jitted = jax.jit(self.train) if self.update is None else jax.jit(self.train, donate_argnums=(0, 1))

    def train(self, weights: Tree, state: Tree, *batch: Any) -> Any:
        (value, new), gradients = jax.value_and_grad(self.model, has_aux=True)(weights, state, *batch)
        if self.update is None:
            return value, gradients, new
        return value, *self.update(self.lib, weights, gradients, {**state, **new})

    def step(self, *batch: Any) -> Any:
        if self.update is None:
            loss, self.gradients, self.state = self.jitted(self.weights, self.state, *batch)
        else:
            loss, self.weights, self.state = self.jitted(self.weights, self.state, *batch)
        return loss

    def gradient_size(self) -> float:
        return float(np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for g in self.gradients.values())))

    def peak_bytes(self) -> int:
        """By XLA's own plan: its temporary buffers, and results that do not take the place of what was given."""
        plan = self.jitted.lower(self.weights, self.state, *self.batches[-1]).compile().memory_analysis()
        return int(plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes)
