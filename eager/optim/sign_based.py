"""Lion and Rprop: steps whose size does not depend on that of the gradient, only on its sign."""

from __future__ import annotations

from typing import Any

from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from ..ops.pointwise import where
from .optimizer import Optimizer, as_number, check_betas, check_non_negative, init_state
from .update_kernels import run_update, update_mean

# ---- Lion


def run_lion(
    xp: Any, p: Any, g: Any, mean: Any, lr: float, beta1: float, beta2: float, weight_decay: float, *, maximize: bool
) -> None:
    def kernel(p: Any, g: Any, mean: Any) -> None:
        d = xp.negative(g) if maximize else g
        if weight_decay:
            xp.multiply(p, 1 - lr * weight_decay, out=p)
        work = xp.subtract(d, mean)
        xp.multiply(work, 1 - beta1, out=work)
        xp.add(work, mean, out=work)
        xp.sign(work, out=work)
        xp.multiply(work, lr, out=work)
        xp.subtract(p, work, out=p)
        update_mean(xp, mean, d, 1 - beta2)

    run_update(kernel, (p, g, mean), (0, 2))


def expand_lion(
    p: Tensor, g: Tensor, mean: Tensor, lr: float, beta1: float, beta2: float, weight_decay: float, *, maximize: bool
) -> None:
    d = -g if maximize else g
    p.mul_(1 - lr * weight_decay).sub_((mean + (d - mean) * (1 - beta1)).sign() * lr)
    mean.copy_(mean * beta2 + d * (1 - beta2))


LION_UPDATE = primitive("lion_update", "composite", run_lion, expand=expand_lion, upcast=False, mutates=(0, 2))


class Lion(Optimizer):
    """The sign of an interpolated momentum, with decoupled weight decay (Chen et al. 2023); half of Adam's memory."""

    hyper = ("lr", "betas", "weight_decay")
    switches = ("maximize", "differentiable")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_non_negative(lr=lr)
        check_betas(betas)
        check_non_negative(weight_decay=weight_decay)
        settings = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "maximize": maximize, "differentiable": differentiable})

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        hyper = (as_number(group["lr"]), *map(as_number, group["betas"]), as_number(group["weight_decay"]))
        attrs = {"maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state["exp_avg"] = init_state(p)
            apply(LION_UPDATE, (p, p.tj_grad, state["exp_avg"], *hyper), attrs)


# ---- Rprop


def run_rprop(
    xp: Any, p: Any, g: Any, before: Any, size: Any,
    shrink: float, grow: float, smallest: float, largest: float, *, maximize: bool,
) -> None:  # fmt: skip
    def kernel(p: Any, g: Any, before: Any, size: Any) -> None:
        d = xp.negative(g) if maximize else g
        turn = d * before
        turned = turn < 0
        xp.multiply(size, xp.where(turned, shrink, xp.where(turn > 0, grow, 1.0)).astype(size.dtype), out=size)
        xp.clip(size, smallest, largest, out=size)
        d = xp.where(turned, 0, d).astype(p.dtype)
        xp.subtract(p, xp.sign(d) * size, out=p)
        before[...] = d

    run_update(kernel, (p, g, before, size), (0, 2, 3))


def expand_rprop(
    p: Tensor, g: Tensor, before: Tensor, size: Tensor,
    shrink: float, grow: float, smallest: float, largest: float, *, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    turn = d * before
    new = where(turn < 0, size * shrink, where(turn > 0, size * grow, size)).clamp(smallest, largest)
    d = where(turn < 0, 0, d)
    p.sub_(d.sign() * new)
    size.copy_(new)
    before.copy_(d)


RPROP_UPDATE = primitive("rprop_update", "composite", run_rprop, expand=expand_rprop, upcast=False, mutates=(0, 2, 3))


class Rprop(Optimizer):
    """Each weight has a step size of its own, grown while the gradient keeps its sign and shrunk when it turns."""

    hyper = ("etas", "step_sizes")
    switches = ("maximize", "differentiable")
    counter = "step"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_non_negative(lr=lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        super().__init__(
            params,
            {
                "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize,
                "differentiable": differentiable, "capturable": capturable,
            },
        )  # fmt: skip

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        hyper = (*map(as_number, group["etas"]), *map(as_number, group["step_sizes"]))
        attrs = {"maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(step=0, prev=init_state(p), step_size=init_state(p, as_number(group["lr"])))
            state["step"] += 1
            apply(RPROP_UPDATE, (p, p.tj_grad, state["prev"], state["step_size"], *hyper), attrs)
