"""The workloads for tinygrad: a `TinyJit` for each shape of batch, in which weights and state are assigned anew."""

from __future__ import annotations

from typing import Any

import numpy as np
from tinygrad import Device, Tensor, TinyJit

from .functional import Functional


class Tinygrad:
    """The functions of a workload, by tinygrad's names."""

    channels_last, kernel = False, (0, 1, 2, 3)
    relu, sigmoid, tanh = staticmethod(Tensor.relu), staticmethod(Tensor.sigmoid), staticmethod(Tensor.tanh)
    exp, sqrt, rsqrt = staticmethod(Tensor.exp), staticmethod(Tensor.sqrt), staticmethod(Tensor.rsqrt)
    zeros = staticmethod(Tensor.zeros)

    def array(self, values: np.ndarray) -> Any:
        return Tensor(np.ascontiguousarray(values, np.int32 if values.dtype == np.int64 else None)).realize()

    def gelu(self, x: Any) -> Any:
        """Its own is the approximation by tanh."""
        return x * 0.5 * (1 + (x * 0.5**0.5).erf())

    def logsumexp(self, x: Any) -> Any:
        return x.logsumexp(-1)

    def average(self, x: Any) -> Any:
        return x.mean()

    def largest(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.max(axes)

    def mean(self, x: Any, axis: int, keep: bool = False) -> Any:
        return x.mean(axis, keepdim=keep)

    def variance(self, x: Any, axis: int, keep: bool = False) -> Any:
        return x.var(axis, keepdim=keep, correction=0)

    def rows(self, table: Any, indices: Any) -> Any:
        return table[indices]

    def chosen(self, x: Any, indices: Any) -> Any:
        return x.gather(-1, indices.unsqueeze(-1)).squeeze(-1)

    def thirds(self, x: Any) -> Any:
        return x.chunk(3, -1)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)

    def convolve(self, x: Any, weight: Any, bias: Any) -> Any:
        return x.conv2d(weight, bias, padding=1)


class Stepper(Functional):
    """Jitted steps: the first call of each shape runs, the second is captured, later ones are replayed."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Tinygrad())
        self.jits: dict[Any, Any] = {}
        self.calls = 0

    def step(self, *batch: Any) -> Any:
        shapes = tuple(x.shape for x in batch)
        if shapes not in self.jits:
            self.jits[shapes] = TinyJit(self.train)
        self.calls += 1
        loss, *gradients = self.jits[shapes](*batch)
        self.gradients = dict(zip(self.weights, gradients, strict=False))
        return loss

    def train(self, *batch: Any) -> Any:
        loss, new = self.model(self.weights, self.state, *batch)
        gradients = dict(zip(self.weights, loss.gradient(*self.weights.values()), strict=True))
        if self.update is None:
            Tensor.realize(loss, *gradients.values())
            return loss, *gradients.values()
        weights, state = self.update(self.lib, self.weights, gradients, {**self.state, **new})
        after = [(self.weights[k], v) for k, v in weights.items()] + [(self.state[k], v) for k, v in state.items()]
        Tensor.realize(loss, *[old.assign(value) for old, value in after])
        return (loss,)

    def captured(self) -> bool:
        return self.calls > 1

    def finish(self) -> None:
        Device[Device.DEFAULT].synchronize()

    def gradient_size(self) -> float:
        return float(np.sqrt(sum((g.numpy().astype(np.float64) ** 2).sum() for g in self.gradients.values())))
