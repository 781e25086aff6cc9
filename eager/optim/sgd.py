"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from ..blocks import in_blocks
from ..op import apply, primitive
from ..tensor import Tensor
from .optimizer import Optimizer, non_negative


def run_sgd(
    xp: Any, p: Any, g: Any, buffer: Any, lr: float, momentum: float, dampening: float, weight_decay: float, *, nesterov: bool, maximize: bool
) -> None:
    def kernel(p: Any, g: Any, buffer: Any) -> None:
        d = xp.negative(g) if maximize else g
        if weight_decay:
            d = d + weight_decay * p
        if buffer is not None:
            xp.multiply(buffer, momentum, out=buffer)
            xp.add(buffer, d * (1 - dampening) if dampening else d, out=buffer)
            d = d + momentum * buffer if nesterov else buffer
        xp.subtract(p, lr * d, out=p)

    in_blocks(kernel, p, g, buffer)


def expand_sgd(
    p: Tensor, g: Tensor, buffer: Tensor | None, lr: float, momentum: float, dampening: float, weight_decay: float, *, nesterov: bool, maximize: bool
) -> None:
    d = -g if maximize else g
    d = d + weight_decay * p
    if buffer is not None:
        buffer.mul_(momentum).add_(d * (1 - dampening))
        d = d + momentum * buffer if nesterov else buffer
    p.sub_(lr * d)


SGD_UPDATE = primitive("sgd_update", "composite", run_sgd, expand=expand_sgd, upcast=False, mutates=(0, 2))


class SGD(Optimizer):
    """p -= lr * g, with momentum, dampening, Nesterov momentum and weight decay as in PyTorch."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        non_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(
            params,
            {
                "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
                "maximize": maximize, "foreach": foreach, "differentiable": differentiable, "fused": fused,
            },
        )  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        momentum, dampening = group["momentum"], group["dampening"]
        buffer = state.get("momentum_buffer")
        if momentum and buffer is None:  # the first time the buffer is the gradient, undamped
            buffer = state["momentum_buffer"] = p.new_zeros(p.shape)
            dampening = 0.0
        numbers = (group["lr"], momentum, dampening, group["weight_decay"])
        attrs = {"nesterov": group["nesterov"], "maximize": group["maximize"]}
        apply(SGD_UPDATE, (p, g, buffer if momentum else None, *numbers), attrs)
