"""Adamax, NAdam and RAdam: Adam by the largest gradient, with Nesterov momentum, and with a rectified start."""

from __future__ import annotations

from typing import Any

from ..core.op import apply, primitive
from ..core.tensor import Tensor
from .computed_hyperparameters import Foretold
from .update_kernels import averaged, averaged_square, decayed, descent, updated
from .optimizer import begun, non_negative, number, unit_interval


def moments(p: Tensor) -> dict[str, Any]:
    """The state of a parameter that was never updated."""
    return {"step": 0, "exp_avg": begun(p), "exp_avg_sq": begun(p)}


# ---- Adamax


def run_adamax(
    xp: Any, p: Any, g: Any, mean: Any, largest: Any,
    rate: float, beta1: float, beta2: float, eps: float, weight_decay: float, *, maximize: bool,
) -> None:  # fmt: skip
    def kernel(p: Any, g: Any, mean: Any, largest: Any) -> None:
        d = descent(xp, p, g, weight_decay, maximize)
        work = averaged(xp, mean, d, 1 - beta1)
        xp.abs(d, out=work)
        xp.add(work, eps, out=work)
        xp.multiply(largest, beta2, out=largest)
        xp.maximum(largest, work, out=largest)
        xp.divide(mean, largest, out=work)
        xp.multiply(work, rate, out=work)
        xp.subtract(p, work, out=p)

    updated(kernel, (p, g, mean, largest), (0, 2, 3))


def expand_adamax(
    p: Tensor, g: Tensor, mean: Tensor, largest: Tensor,
    rate: float, beta1: float, beta2: float, eps: float, weight_decay: float, *, maximize: bool,
) -> None:  # fmt: skip
    d = decayed(-g if maximize else g, p, weight_decay)
    m, top = mean + (d - mean) * (1 - beta1), (largest * beta2).maximum(d.abs() + eps)
    mean.copy_(m)
    largest.copy_(top)
    p.sub_(m / top * rate)


ADAMAX_UPDATE = primitive("adamax_update", "composite", run_adamax, expand=expand_adamax, upcast=False, mutates=(0, 2, 3))


class Adamax(Foretold):
    """Adam with the largest recent gradient in place of the root mean square."""

    changeable = ("lr", "betas", "eps", "weight_decay")
    remembers = ("step",)

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
        non_negative(lr=lr, eps=eps)
        unit_interval(betas)
        non_negative(weight_decay=weight_decay)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
                "differentiable": differentiable, "capturable": capturable,
            },
        )  # fmt: skip

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (number(group["lr"]), *map(number, group["betas"]), number(group["eps"]), number(group["weight_decay"]))

    @staticmethod
    def foretell(settings: tuple[Any, ...], *remembered: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (lr, beta1, *rest), step = settings, remembered[0] + 1
        return (lr / (1 - beta1**step), beta1, *rest), (step,), None

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        settings, attrs = self.settings(group), {"maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(step=0, exp_avg=begun(p), exp_inf=begun(p))
            numbers, _ = self.foretold(settings, state)
            apply(ADAMAX_UPDATE, (p, p._grad, state["exp_avg"], state["exp_inf"], *numbers), attrs)


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
        d = descent(xp, p, g, 0 if decoupled else weight_decay, maximize)
        work = averaged(xp, mean, d, 1 - beta1)
        averaged_square(xp, square, d, beta2, work)
        ahead = xp.multiply(mean, of_mean * root)
        xp.multiply(d, of_gradient * root, out=work)
        xp.add(ahead, work, out=ahead)
        xp.sqrt(square, out=work)
        xp.add(work, eps * root, out=work)
        xp.divide(ahead, work, out=work)
        xp.subtract(p, work, out=p)

    updated(kernel, (p, g, mean, square), (0, 2, 3))


def expand_nadam(
    p: Tensor, g: Tensor, mean: Tensor, square: Tensor,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, of_gradient: float, of_mean: float, step: int,
    *, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    if decoupled:
        p.mul_(1 - lr * weight_decay)
    else:
        d = decayed(d, p, weight_decay)
    m, v = mean + (d - mean) * (1 - beta1), square * beta2 + d * d * (1 - beta2)
    mean.copy_(m)
    square.copy_(v)
    p.sub_((d * of_gradient + m * of_mean) / ((v / (1 - beta2**step)).sqrt() + eps))


NADAM_UPDATE = primitive("nadam_update", "composite", run_nadam, expand=expand_nadam, upcast=False, mutates=(0, 2, 3))


class NAdam(Foretold):
    """Adam with Nesterov momentum, the weight of which grows along a schedule."""

    changeable = ("lr", "betas", "eps", "weight_decay", "momentum_decay")
    remembers = ("step", "mu_product")

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
        non_negative(lr=lr, eps=eps)
        unit_interval(betas)
        non_negative(weight_decay=weight_decay, momentum_decay=momentum_decay)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
                "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "foreach": foreach,
                "capturable": capturable, "differentiable": differentiable,
            },
        )  # fmt: skip

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        rest = (number(group[name]) for name in ("eps", "weight_decay", "momentum_decay"))
        return (number(group["lr"]), *map(number, group["betas"]), *rest)

    @staticmethod
    def foretell(settings: tuple[Any, ...], *remembered: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (*hyper, decay), (step, product) = settings, remembered
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
            numbers, _ = self.foretold(settings, state)
            apply(NADAM_UPDATE, (p, p._grad, state["exp_avg"], state["exp_avg_sq"], *numbers), attrs)


# ---- RAdam


def run_radam(
    xp: Any, p: Any, g: Any, mean: Any, square: Any,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, rate: float,
    *, rectified: bool, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    def kernel(p: Any, g: Any, mean: Any, square: Any) -> None:
        if decoupled and weight_decay:
            xp.multiply(p, 1 - lr * weight_decay, out=p)
        d = descent(xp, p, g, 0 if decoupled else weight_decay, maximize)
        work = averaged(xp, mean, d, 1 - beta1)
        averaged_square(xp, square, d, beta2, work)
        if rectified:
            xp.sqrt(square, out=work)
            xp.add(work, eps, out=work)
            xp.divide(mean, work, out=work)
            xp.multiply(work, rate, out=work)
        else:
            xp.multiply(mean, rate, out=work)
        xp.subtract(p, work, out=p)

    updated(kernel, (p, g, mean, square), (0, 2, 3))


def expand_radam(
    p: Tensor, g: Tensor, mean: Tensor, square: Tensor,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, rate: float,
    *, rectified: bool, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    if decoupled:
        p.mul_(1 - lr * weight_decay)
    else:
        d = decayed(d, p, weight_decay)
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


class RAdam(Foretold):
    """Adam that does not divide by the root mean square before enough gradients were seen to trust it."""

    changeable = ("lr", "betas", "eps", "weight_decay")
    remembers = ("step",)

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
        non_negative(lr=lr, eps=eps)
        unit_interval(betas)
        non_negative(weight_decay=weight_decay)
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, "foreach": foreach,
                "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
            },
        )  # fmt: skip

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (number(group["lr"]), *map(number, group["betas"]), number(group["eps"]), number(group["weight_decay"]))

    @staticmethod
    def foretell(settings: tuple[Any, ...], *remembered: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (lr, beta1, beta2, *_), step = settings, remembered[0] + 1
        rate, rectified = rectification(lr, beta1, beta2, step)
        return (*settings, rate), (step,), rectified

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        settings = self.settings(group)
        flags = {"decoupled": bool(group["decoupled_weight_decay"]), "maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(moments(p))
            numbers, rectified = self.foretold(settings, state)
            attrs = {"rectified": rectified, **flags}
            apply(RADAM_UPDATE, (p, p._grad, state["exp_avg"], state["exp_avg_sq"], *numbers), attrs)
