"""Adam and AdamW, one kernel for both."""

from __future__ import annotations

import math
from typing import Any

from ..blocks import in_blocks
from ..op import apply, primitive
from ..tensor import Tensor
from .optimizer import Optimizer, non_negative, unit_interval


def run_adam(
    xp: Any, p: Any, g: Any, mean: Any, square: Any, largest: Any,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int, *, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    rate, root = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)

    def kernel(p: Any, g: Any, mean: Any, square: Any, largest: Any) -> None:
        d = xp.negative(g) if maximize else g
        if weight_decay and decoupled:
            xp.multiply(p, 1 - lr * weight_decay, out=p)
        elif weight_decay:
            d = d + weight_decay * p
        work = xp.multiply(d, 1 - beta1)
        xp.multiply(mean, beta1, out=mean)
        xp.add(mean, work, out=mean)
        xp.multiply(d, d, out=work)
        xp.multiply(work, 1 - beta2, out=work)
        xp.multiply(square, beta2, out=square)
        xp.add(square, work, out=square)
        if largest is not None:
            xp.maximum(largest, square, out=largest)
            square = largest
        xp.sqrt(square, out=work)
        xp.divide(work, root, out=work)
        xp.add(work, eps, out=work)
        xp.divide(mean, work, out=work)
        xp.multiply(work, rate, out=work)
        xp.subtract(p, work, out=p)

    in_blocks(kernel, p, g, mean, square, largest)


def expand_adam(
    p: Tensor, g: Tensor, mean: Tensor, square: Tensor, largest: Tensor | None,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int, *, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    if decoupled:
        p.mul_(1 - lr * weight_decay)
    else:
        d = d + weight_decay * p
    mean.mul_(beta1).add_(d * (1 - beta1))
    square.mul_(beta2).add_(d * d * (1 - beta2))
    if largest is not None:
        square = largest.copy_(largest.maximum(square))
    p.sub_(mean / (square.sqrt() / math.sqrt(1 - beta2**step) + eps) * (lr / (1 - beta1**step)))


ADAM_UPDATE = primitive("adam_update", "composite", run_adam, expand=expand_adam, upcast=False, mutates=(0, 2, 3, 4))


class Adam(Optimizer):
    """Adaptive moments, with bias correction; weight decay is added to the gradient."""

    decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        non_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        unit_interval(betas)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize,
                "foreach": foreach, "capturable": capturable, "differentiable": differentiable, "fused": fused,
            },
        )  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["step"] = 0
            state["exp_avg"] = p.new_zeros(p.shape)
            state["exp_avg_sq"] = p.new_zeros(p.shape)
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = p.new_zeros(p.shape)
        state["step"] += 1
        tensors = (p, g, state["exp_avg"], state["exp_avg_sq"], state["max_exp_avg_sq"] if group["amsgrad"] else None)
        numbers = (group["lr"], *group["betas"], group["eps"], group["weight_decay"], state["step"])
        apply(ADAM_UPDATE, (*tensors, *numbers), {"decoupled": self.decoupled, "maximize": group["maximize"]})


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    decoupled = True

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, **options: Any) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
