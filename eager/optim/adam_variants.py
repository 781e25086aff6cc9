"""Adamax, NAdam and RAdam: Adam by the largest gradient, with Nesterov momentum, and with a rectified start."""

from __future__ import annotations

from typing import Any

from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from .computed_hyperparameters import ComputedHyperparameters
from .optimizer import as_number, check_betas, check_non_negative, init_state
from .update_kernels import descent_direction, run_update, update_mean, update_mean_square, with_weight_decay


def moments(p: Tensor) -> dict[str, Any]:
    """The state of a parameter that was never updated."""
    return {"step": 0, "exp_avg": init_state(p), "exp_avg_sq": init_state(p)}


# ---- Adamax


def run_adamax(
    xp: Any, p: Any, g: Any, mean: Any, largest: Any,
    rate: float, beta1: float, beta2: float, eps: float, weight_decay: float, *, maximize: bool,
) -> None:  # fmt: skip
    def kernel(p: Any, g: Any, mean: Any, largest: Any) -> None:
        d = descent_direction(xp, p, g, weight_decay, maximize)
        work = update_mean(xp, mean, d, 1 - beta1)
        xp.abs(d, out=work)
        xp.add(work, eps, out=work)
        xp.multiply(largest, beta2, out=largest)
        xp.maximum(largest, work, out=largest)
        xp.divide(mean, largest, out=work)
        xp.multiply(work, rate, out=work)
        xp.subtract(p, work, out=p)

    run_update(kernel, (p, g, mean, largest), (0, 2, 3))


def expand_adamax(
    p: Tensor, g: Tensor, mean: Tensor, largest: Tensor,
    rate: float, beta1: float, beta2: float, eps: float, weight_decay: float, *, maximize: bool,
) -> None:  # fmt: skip
    d = with_weight_decay(-g if maximize else g, p, weight_decay)
    m, top = mean + (d - mean) * (1 - beta1), (largest * beta2).maximum(d.abs() + eps)
    mean.copy_(m)
    largest.copy_(top)
    p.sub_(m / top * rate)


ADAMAX_UPDATE = primitive("adamax_update", "composite", run_adamax, expand=expand_adamax, upcast=False, mutates=(0, 2, 3))


class Adamax(ComputedHyperparameters):
    """Adam with the largest recent gradient in place of the root mean square."""

    changeable = ("lr", "betas", "eps", "weight_decay")
    changing_state = ("step",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_non_negative(lr=lr, eps=eps)
        check_betas(betas)
        check_non_negative(weight_decay=weight_decay)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
                "differentiable": differentiable, "capturable": capturable,
            },
        )  # fmt: skip

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (
            as_number(group["lr"]),
            *map(as_number, group["betas"]),
            as_number(group["eps"]),
            as_number(group["weight_decay"]),
        )

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (lr, beta1, *rest), step = settings, state[0] + 1
        return (lr / (1 - beta1**step), beta1, *rest), (step,), None

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        settings, attrs = self.settings(group), {"maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(step=0, exp_avg=init_state(p), exp_inf=init_state(p))
            numbers, _ = self.next_hyperparameters(settings, state)
            apply(ADAMAX_UPDATE, (p, p.tj_grad, state["exp_avg"], state["exp_inf"], *numbers), attrs)


# ---- NAdam


def run_nadam(
    xp: Any, p: Any, g: Any, mean: Any, square: Any,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, of_gradient: float, of_mean: float, step: int,
    *, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    root = (1 - beta2**step) ** 0.5  # taken out of the denominator

    def kernel(p: Any, g: Any, mean: Any, square: Any) -> None:
        if decoupled and weight_decay:
            xp.multiply(p, 1 - lr * weight_decay, out=p)
        d = descent_direction(xp, p, g, 0 if decoupled else weight_decay, maximize)
        work = update_mean(xp, mean, d, 1 - beta1)
        update_mean_square(xp, square, d, beta2, work)
        ahead = xp.multiply(mean, of_mean * root)
        xp.multiply(d, of_gradient * root, out=work)
        xp.add(ahead, work, out=ahead)
        xp.sqrt(square, out=work)
        xp.add(work, eps * root, out=work)
        xp.divide(ahead, work, out=work)
        xp.subtract(p, work, out=p)

    run_update(kernel, (p, g, mean, square), (0, 2, 3))


def expand_nadam(
    p: Tensor, g: Tensor, mean: Tensor, square: Tensor,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, of_gradient: float, of_mean: float, step: int,
    *, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    if decoupled:
        p.mul_(1 - lr * weight_decay)
    else:
        d = with_weight_decay(d, p, weight_decay)
    m, v = mean + (d - mean) * (1 - beta1), square * beta2 + d * d * (1 - beta2)
    mean.copy_(m)
    square.copy_(v)
    p.sub_((d * of_gradient + m * of_mean) / ((v / (1 - beta2**step)).sqrt() + eps))


NADAM_UPDATE = primitive("nadam_update", "composite", run_nadam, expand=expand_nadam, upcast=False, mutates=(0, 2, 3))


class NAdam(ComputedHyperparameters):
    """Adam with Nesterov momentum, the weight of which grows along a schedule."""

    changeable = ("lr", "betas", "eps", "weight_decay", "momentum_decay")
    changing_state = ("step", "mu_product")

    numbers = {"step": int, "mu_product": float}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_non_negative(lr=lr, eps=eps)
        check_betas(betas)
        check_non_negative(weight_decay=weight_decay, momentum_decay=momentum_decay)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
                "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "foreach": foreach,
                "capturable": capturable, "differentiable": differentiable,
            },
        )  # fmt: skip

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        rest = (as_number(group[name]) for name in ("eps", "weight_decay", "momentum_decay"))
        return (as_number(group["lr"]), *map(as_number, group["betas"]), *rest)

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (*hyper, decay), (step, product) = settings, state
        lr, beta1, step = hyper[0], hyper[1], step + 1
        mu, next_mu = (beta1 * (1 - 0.5 * 0.96 ** (t * decay)) for t in (step, step + 1))
        product *= mu
        parts = (lr * (1 - mu) / (1 - product), lr * next_mu / (1 - product * next_mu))
        return (*hyper, *parts, step), (step, product), None

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        settings = self.settings(group)
        attrs = {"decoupled": bool(group["decoupled_weight_decay"]), "maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update({"step": 0, "mu_product": 1.0, **moments(p)})
            numbers, _ = self.next_hyperparameters(settings, state)
            apply(NADAM_UPDATE, (p, p.tj_grad, state["exp_avg"], state["exp_avg_sq"], *numbers), attrs)


# ---- RAdam


def run_radam(
    xp: Any, p: Any, g: Any, mean: Any, square: Any,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, rate: float,
    *, rectified: bool, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    def kernel(p: Any, g: Any, mean: Any, square: Any) -> None:
        if decoupled and weight_decay:
            xp.multiply(p, 1 - lr * weight_decay, out=p)
        d = descent_direction(xp, p, g, 0 if decoupled else weight_decay, maximize)
        work = update_mean(xp, mean, d, 1 - beta1)
        update_mean_square(xp, square, d, beta2, work)
        if rectified:
            xp.sqrt(square, out=work)
            xp.add(work, eps, out=work)
            xp.divide(mean, work, out=work)
            xp.multiply(work, rate, out=work)
        else:
            xp.multiply(mean, rate, out=work)
        xp.subtract(p, work, out=p)

    run_update(kernel, (p, g, mean, square), (0, 2, 3))


def expand_radam(
    p: Tensor, g: Tensor, mean: Tensor, square: Tensor,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, rate: float,
    *, rectified: bool, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    if decoupled:
        p.mul_(1 - lr * weight_decay)
    else:
        d = with_weight_decay(d, p, weight_decay)
    m, v = mean + (d - mean) * (1 - beta1), square * beta2 + d * d * (1 - beta2)
    mean.copy_(m)
    square.copy_(v)
    p.sub_((m / (v.sqrt() + eps) if rectified else m) * rate)


RADAM_UPDATE = primitive("radam_update", "composite", run_radam, expand=expand_radam, upcast=False, mutates=(0, 2, 3))


def rectification(lr: float, beta1: float, beta2: float, step: int) -> tuple[float, bool]:
    """The size of a step, and whether the variance is known well enough to divide by its root."""
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    most = 2 / (1 - beta2) - 1
    length = most - 2 * step * beta2**step / correction2
    if length <= 5:
        return lr / correction1, False
    factor = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
    return lr / correction1 * (factor * correction2) ** 0.5, True


class RAdam(ComputedHyperparameters):
    """Adam that does not divide by the root mean square before enough gradients were seen to trust it."""

    changeable = ("lr", "betas", "eps", "weight_decay")
    changing_state = ("step",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_non_negative(lr=lr, eps=eps)
        check_betas(betas)
        check_non_negative(weight_decay=weight_decay)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, "foreach": foreach,
                "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
            },
        )  # fmt: skip

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (
            as_number(group["lr"]),
            *map(as_number, group["betas"]),
            as_number(group["eps"]),
            as_number(group["weight_decay"]),
        )

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (lr, beta1, beta2, *_), step = settings, state[0] + 1
        rate, rectified = rectification(lr, beta1, beta2, step)
        return (*settings, rate), (step,), rectified

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        settings = self.settings(group)
        flags = {"decoupled": bool(group["decoupled_weight_decay"]), "maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(moments(p))
            numbers, rectified = self.next_hyperparameters(settings, state)
            attrs = {"rectified": rectified, **flags}
            apply(RADAM_UPDATE, (p, p.tj_grad, state["exp_avg"], state["exp_avg_sq"], *numbers), attrs)
