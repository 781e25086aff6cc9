"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from .optimizer import Optimizer, as_number, check_fused, check_non_negative, init_state
from .update_kernels import descent_direction, run_update, with_weight_decay


def run_sgd(
    xp: Any, p: Any, g: Any, buffer: Any, lr: float, momentum: float, dampening: float, weight_decay: float,
    *, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    def kernel(p: Any, g: Any, buffer: Any) -> None:
        d = descent_direction(xp, p, g, weight_decay, maximize)
        if buffer is None:
            xp.subtract(p, lr * d, out=p)
            return
        xp.multiply(buffer, momentum, out=buffer)
        xp.add(buffer, d * (1 - dampening) if dampening else d, out=buffer)
        work = buffer * momentum if nesterov else buffer * lr
        if nesterov:
            xp.add(work, d, out=work)
            xp.multiply(work, lr, out=work)
        xp.subtract(p, work, out=p)

    run_update(kernel, (p, g, buffer), (0, 2))


def expand_sgd(
    p: Tensor, g: Tensor, buffer: Tensor | None, lr: float, momentum: float, dampening: float, weight_decay: float,
    *, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    d = -g if maximize else g
    d = with_weight_decay(d, p, weight_decay)
    if buffer is not None:
        b = buffer * momentum + d * (1 - dampening)
        buffer.copy_(b)
        d = d + momentum * b if nesterov else b
    p.sub_(lr * d)


SGD_UPDATE = primitive("sgd_update", "composite", run_sgd, expand=expand_sgd, upcast=False, mutates=(0, 2))


class SGD(Optimizer):
    """p -= lr * g, with momentum, dampening, Nesterov momentum and weight decay as in PyTorch."""

    hyper = ("lr", "momentum", "dampening", "weight_decay")
    switches = ("momentum", "nesterov", "maximize", "differentiable")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
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
        check_non_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        check_fused(fused, foreach, differentiable)
        super().__init__(
            params,
            {
                "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
                "maximize": maximize, "foreach": foreach, "differentiable": differentiable, "fused": fused,
            },
        )  # fmt: skip

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        lr, momentum, weight_decay = as_number(group["lr"]), as_number(group["momentum"]), as_number(group["weight_decay"])
        dampening = as_number(group["dampening"])
        attrs = {"nesterov": bool(group["nesterov"]), "maximize": bool(group["maximize"])}
        for p in params:
            buffer, damp = None, dampening
            if momentum:
                state = self.state[p]
                buffer = state.get("momentum_buffer")
                if buffer is None:  # the first time the buffer is the gradient, undamped
                    buffer = state["momentum_buffer"] = p.new_zeros(p.shape) if dampening else init_state(p)
                    damp = type(dampening)(0)
            apply(SGD_UPDATE, (p, p.tj_grad, buffer, lr, momentum, damp, weight_decay), attrs)
