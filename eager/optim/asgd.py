"""Averaged stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from .computed_hyperparameters import ComputedHyperparameters
from .optimizer import as_number, check_non_negative, init_state
from .update_kernels import descent_direction, run_update, update_mean, with_weight_decay


def run_asgd(
    xp: Any, p: Any, g: Any, average: Any, eta: float, mu: float, lambd: float, weight_decay: float, *, maximize: bool
) -> None:
    def kernel(p: Any, g: Any, average: Any) -> None:
        d = descent_direction(xp, p, g, weight_decay, maximize)
        work = xp.multiply(d, eta)
        xp.multiply(p, 1 - lambd * eta, out=p)
        xp.subtract(p, work, out=p)
        update_mean(xp, average, p, mu)

    run_update(kernel, (p, g, average), (0, 2))


def expand_asgd(
    p: Tensor, g: Tensor, average: Tensor, eta: float, mu: float, lambd: float, weight_decay: float, *, maximize: bool
) -> None:
    d = with_weight_decay(-g if maximize else g, p, weight_decay)
    p.mul_(1 - lambd * eta).sub_(d * eta)
    average.add_((p - average) * mu)


ASGD_UPDATE = primitive("asgd_update", "composite", run_asgd, expand=expand_asgd, upcast=False, mutates=(0, 2))


class ASGD(ComputedHyperparameters):
    """Gradient descent that also averages, in `state["ax"]`, the parameters of all steps after `t0`."""

    numbers = {"step": int, "eta": float, "mu": float}
    changeable = ("lr", "lambd", "alpha", "t0", "weight_decay")
    changing_state = ("step", "eta", "mu")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_non_negative(lr=lr, weight_decay=weight_decay)
        super().__init__(
            params,
            {
                "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "foreach": foreach,
                "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
            },
        )  # fmt: skip

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(as_number(group[name]) for name in self.changeable)

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (lr, lambd, alpha, t0, weight_decay), (step, eta, mu) = settings, state
        step += 1
        after = (step, lr / (1 + lambd * lr * step) ** alpha, 1 / max(1, step - t0))
        return (eta, mu, lambd, weight_decay), after, None

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        settings, attrs = self.settings(group), {"maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(step=0, eta=settings[0], mu=1.0, ax=init_state(p))
            numbers, _ = self.next_hyperparameters(settings, state)
            apply(ASGD_UPDATE, (p, p.tj_grad, state["ax"], *numbers), attrs)
