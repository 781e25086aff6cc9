"""Adagrad and Adadelta: steps scaled by the sizes of all gradients so far, or of recent ones."""

from __future__ import annotations

from typing import Any

from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from ..ops.create import full_like
from .computed_hyperparameters import ComputedHyperparameters
from .optimizer import Optimizer, as_number, check_fused, check_non_negative, init_state
from .update_kernels import descent_direction, run_update, update_mean_square, with_weight_decay

# ---- Adagrad


def run_adagrad(xp: Any, p: Any, g: Any, total: Any, rate: float, eps: float, weight_decay: float, *, maximize: bool) -> None:
    def kernel(p: Any, g: Any, total: Any) -> None:
        d = descent_direction(xp, p, g, weight_decay, maximize)
        work = xp.multiply(d, d)
        xp.add(total, work, out=total)
        xp.sqrt(total, out=work)
        xp.add(work, eps, out=work)
        xp.divide(d, work, out=work)
        xp.multiply(work, rate, out=work)
        xp.subtract(p, work, out=p)

    run_update(kernel, (p, g, total), (0, 2))


def expand_adagrad(
    p: Tensor, g: Tensor, total: Tensor, rate: float, eps: float, weight_decay: float, *, maximize: bool
) -> None:
    d = with_weight_decay(-g if maximize else g, p, weight_decay)
    s = total + d * d
    total.copy_(s)
    p.sub_(d / (s.sqrt() + eps) * rate)


ADAGRAD_UPDATE = primitive("adagrad_update", "composite", run_adagrad, expand=expand_adagrad, upcast=False, mutates=(0, 2))


class Adagrad(ComputedHyperparameters):
    """The gradient divided by the root of the sum of all its squares so far."""

    changeable = ("lr", "lr_decay", "eps", "weight_decay")
    changing_state = ("step",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_non_negative(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay)
        check_non_negative(initial_accumulator_value=initial_accumulator_value, eps=eps)
        check_fused(fused, foreach, differentiable)
        super().__init__(
            params,
            {
                "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value, "foreach": foreach, "maximize": maximize,
                "differentiable": differentiable, "fused": fused,
            },
        )  # fmt: skip
        for group in self.param_groups:
            for p in group["params"]:
                self._begin(p)

    def _begin(self, p: Tensor) -> None:
        start = as_number(self.defaults["initial_accumulator_value"])
        self.state[p] = {"step": 0, "sum": full_like(p, start, requires_grad=False)}

    def share_memory(self) -> None:
        """For PyTorch's sake: sums are in this process's memory."""

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(as_number(group[name]) for name in self.changeable)

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        (lr, decay, eps, weight_decay), (step,) = settings, state
        return (lr / (1 + step * decay), eps, weight_decay), (step + 1,), None

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        settings, attrs = self.settings(group), {"maximize": bool(group["maximize"])}
        for p in params:
            if not self.state[p]:
                self._begin(p)
            state = self.state[p]
            numbers, _ = self.next_hyperparameters(settings, state)
            apply(ADAGRAD_UPDATE, (p, p.tj_grad, state["sum"], *numbers), attrs)


# ---- Adadelta


def run_adadelta(
    xp: Any, p: Any, g: Any, square: Any, moved: Any, lr: float, rho: float, eps: float, weight_decay: float, *, maximize: bool
) -> None:
    def kernel(p: Any, g: Any, square: Any, moved: Any) -> None:
        d = descent_direction(xp, p, g, weight_decay, maximize)
        work = xp.empty_like(p)
        update_mean_square(xp, square, d, rho, work)
        xp.add(square, eps, out=work)
        change = xp.add(moved, eps)
        xp.divide(change, work, out=change)
        xp.sqrt(change, out=change)
        xp.multiply(change, d, out=change)
        update_mean_square(xp, moved, change, rho, work)
        xp.multiply(change, lr, out=change)
        xp.subtract(p, change, out=p)

    run_update(kernel, (p, g, square, moved), (0, 2, 3))


def expand_adadelta(
    p: Tensor, g: Tensor, square: Tensor, moved: Tensor,
    lr: float, rho: float, eps: float, weight_decay: float, *, maximize: bool,
) -> None:  # fmt: skip
    d = with_weight_decay(-g if maximize else g, p, weight_decay)
    v = square * rho + d * d * (1 - rho)
    change = (moved + eps).sqrt() / (v + eps).sqrt() * d
    square.copy_(v)
    moved.copy_(moved * rho + change * change * (1 - rho))
    p.sub_(change * lr)


ADADELTA_UPDATE = primitive(
    "adadelta_update", "composite", run_adadelta, expand=expand_adadelta, upcast=False, mutates=(0, 2, 3)
)


class Adadelta(Optimizer):
    """The gradient scaled so that steps have the size of recent steps."""

    hyper = ("lr", "rho", "eps", "weight_decay")
    switches = ("maximize", "differentiable")
    counter = "step"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_non_negative(lr=lr)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        check_non_negative(eps=eps, weight_decay=weight_decay)
        super().__init__(
            params,
            {
                "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
                "capturable": capturable, "foreach": foreach, "differentiable": differentiable,
            },
        )  # fmt: skip

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        hyper = (as_number(group["lr"]), as_number(group["rho"]), as_number(group["eps"]), as_number(group["weight_decay"]))
        attrs = {"maximize": bool(group["maximize"])}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(step=0, square_avg=init_state(p), acc_delta=init_state(p))
            state["step"] += 1
            apply(ADADELTA_UPDATE, (p, p.tj_grad, state["square_avg"], state["acc_delta"], *hyper), attrs)
