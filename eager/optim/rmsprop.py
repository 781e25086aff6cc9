"""RMSprop: the gradient over a running root mean square of it."""

from __future__ import annotations

from typing import Any

from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from .optimizer import Optimizer, as_number, check_non_negative, init_state
from .update_kernels import descent_direction, run_update, update_mean, update_mean_square, with_weight_decay


def run_rmsprop(
    xp: Any, p: Any, g: Any, square: Any, mean: Any, buffer: Any,
    lr: float, alpha: float, eps: float, weight_decay: float, momentum: float, *, maximize: bool,
) -> None:  # fmt: skip
    def kernel(p: Any, g: Any, square: Any, mean: Any, buffer: Any) -> None:
        d = descent_direction(xp, p, g, weight_decay, maximize)
        work = xp.empty_like(p)
        update_mean_square(xp, square, d, alpha, work)
        if mean is None:
            xp.sqrt(square, out=work)
        else:
            update_mean(xp, mean, d, 1 - alpha)
            xp.multiply(mean, mean, out=work)
            xp.subtract(square, work, out=work)
            xp.sqrt(work, out=work)
        xp.add(work, eps, out=work)
        xp.divide(d, work, out=work)
        if buffer is not None:
            xp.multiply(buffer, momentum, out=buffer)
            xp.add(buffer, work, out=buffer)
            xp.multiply(buffer, lr, out=work)
        else:
            xp.multiply(work, lr, out=work)
        xp.subtract(p, work, out=p)

    run_update(kernel, (p, g, square, mean, buffer), (0, 2, 3, 4))


def expand_rmsprop(
    p: Tensor, g: Tensor, square: Tensor, mean: Tensor | None, buffer: Tensor | None,
    lr: float, alpha: float, eps: float, weight_decay: float, momentum: float, *, maximize: bool,
) -> None:  # fmt: skip
    d = with_weight_decay(-g if maximize else g, p, weight_decay)
    v = square * alpha + d * d * (1 - alpha)
    square.copy_(v)
    if mean is not None:
        m = mean + (d - mean) * (1 - alpha)
        mean.copy_(m)
        v = v - m * m
    change = d / (v.sqrt() + eps)
    if buffer is not None:
        change = buffer * momentum + change
        buffer.copy_(change)
    p.sub_(change * lr)


RMSPROP_UPDATE = primitive(
    "rmsprop_update", "composite", run_rmsprop, expand=expand_rmsprop, upcast=False, mutates=(0, 2, 3, 4)
)


class RMSprop(Optimizer):
    """The gradient divided by a running root mean square; `centered` by a running standard deviation."""

    hyper = ("lr", "alpha", "eps", "weight_decay", "momentum")
    switches = ("momentum", "centered", "maximize", "differentiable")
    counter = "step"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_non_negative(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        super().__init__(
            params,
            {
                "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered, "weight_decay": weight_decay,
                "capturable": capturable, "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            },
        )  # fmt: skip

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        momentum, centered = as_number(group["momentum"]), group["centered"]
        hyper = (
            as_number(group["lr"]),
            as_number(group["alpha"]),
            as_number(group["eps"]),
            as_number(group["weight_decay"]),
            momentum,
        )
        attrs = {"maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = 0
                state["square_avg"] = init_state(p)
                if momentum > 0:
                    state["momentum_buffer"] = init_state(p)
                if centered:
                    state["grad_avg"] = init_state(p)
            state["step"] += 1
            mean = state["grad_avg"] if centered else None
            buffer = state["momentum_buffer"] if momentum > 0 else None
            apply(RMSPROP_UPDATE, (p, p.tj_grad, state["square_avg"], mean, buffer, *hyper), attrs)
