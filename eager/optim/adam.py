"""Adam and AdamW, one kernel for both."""

from __future__ import annotations

from typing import Any

from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from .optimizer import Optimizer, as_number, check_betas, check_fused, check_non_negative, init_state
from .update_kernels import descent_direction, run_update, update_mean, update_mean_square, with_weight_decay


def run_adam(
    xp: Any, p: Any, g: Any, mean: Any, square: Any, largest: Any,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int, *, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    root = (1 - beta2**step) ** 0.5
    rate = lr / (1 - beta1**step) * root  # the root is taken out of the denominator: one pass less

    def kernel(p: Any, g: Any, mean: Any, square: Any, largest: Any) -> None:
        if decoupled and weight_decay:
            xp.multiply(p, 1 - lr * weight_decay, out=p)
        d = descent_direction(xp, p, g, 0 if decoupled else weight_decay, maximize)
        work = update_mean(xp, mean, d, 1 - beta1)
        update_mean_square(xp, square, d, beta2, work)
        if largest is not None:
            xp.maximum(largest, square, out=largest)
            square = largest
        xp.sqrt(square, out=work)
        xp.add(work, eps * root, out=work)
        xp.divide(mean, work, out=work)
        xp.multiply(work, rate, out=work)
        xp.subtract(p, work, out=p)

    run_update(kernel, (p, g, mean, square, largest), (0, 2, 3, 4))


def expand_adam(
    p: Tensor, g: Tensor, mean: Tensor, square: Tensor, largest: Tensor | None,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int, *, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    if decoupled:
        p.mul_(1 - lr * weight_decay)
    else:
        d = with_weight_decay(d, p, weight_decay)
    m, v = mean + (d - mean) * (1 - beta1), square * beta2 + d * d * (1 - beta2)
    mean.copy_(m)
    square.copy_(v)
    if largest is not None:
        v = largest.clone().maximum(v)
        largest.copy_(v)
    p.sub_(m / (v.sqrt() / (1 - beta2**step) ** 0.5 + eps) * (lr / (1 - beta1**step)))


ADAM_UPDATE = primitive("adam_update", "composite", run_adam, expand=expand_adam, upcast=False, mutates=(0, 2, 3, 4))


class Adam(Optimizer):
    """Adaptive moments, with bias correction; weight decay is added to the gradient unless it is decoupled."""

    hyper = ("lr", "betas", "eps", "weight_decay")
    switches = ("amsgrad", "maximize", "decoupled_weight_decay", "differentiable")
    counter = "step"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if foreach and not capturable and isinstance(lr, Tensor):
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        check_non_negative(lr=lr, eps=eps)
        betas = check_betas(betas)  # type: ignore[assignment]
        check_non_negative(weight_decay=weight_decay)
        check_fused(fused, foreach, differentiable)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize,
                "foreach": foreach, "capturable": capturable, "differentiable": differentiable, "fused": fused,
                "decoupled_weight_decay": decoupled_weight_decay,
            },
        )  # fmt: skip

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        hyper = (
            as_number(group["lr"]),
            as_number(beta1),
            as_number(beta2),
            as_number(group["eps"]),
            as_number(group["weight_decay"]),
        )
        attrs = {"decoupled": bool(group["decoupled_weight_decay"]), "maximize": bool(group["maximize"])}
        amsgrad = group["amsgrad"]
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = 0
                state["exp_avg"] = init_state(p)
                state["exp_avg_sq"] = init_state(p)
                if amsgrad:
                    state["max_exp_avg_sq"] = init_state(p)
            state["step"] += 1
            largest = state["max_exp_avg_sq"] if amsgrad else None
            tensors = (p, p.tj_grad, state["exp_avg"], state["exp_avg_sq"], largest)
            apply(ADAM_UPDATE, (*tensors, *hyper, state["step"]), attrs)


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # whatever was saved, and by which version
            group["decoupled_weight_decay"] = True
