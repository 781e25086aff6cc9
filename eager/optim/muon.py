"""Muon: momentum, made orthogonal by a few Newton-Schulz iterations. For the matrices of hidden layers.

The iteration runs in bfloat16, as in PyTorch: it only has to bring all singular values near 1, and matmuls in
bfloat16 are what GPUs do best. On the CPU matmuls run in float32, and results are rounded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import dtypes
from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tensor import Tensor
from ..ops.linalg.matmul import addmm
from .computed_hyperparameters import ComputedHyperparameters
from .optimizer import as_number, check_non_negative, init_state
from .update_kernels import run_update

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic: the steepest at 0 that keeps [0, 1] near 1 (Jordan 2024)


def rounded(x: Any) -> Any:
    """float32 values as bfloat16 would hold them."""
    return x.astype(dtypes.bfloat16.numpy).astype(np.float32)


def orthogonal(xp: Any, x: Any, a: float, b: float, c: float, eps: float, steps: int) -> Any:
    """A matrix with x's singular vectors and singular values near 1."""
    wide = x.shape[0] <= x.shape[1]
    x = rounded(x if wide else x.T)
    length = rounded(xp.sqrt((x * x).sum()))
    x = rounded(x / xp.maximum(length, rounded(xp.asarray(eps, np.float32))))
    for _ in range(steps):
        gram = rounded(x @ x.T)
        x = rounded(a * x + rounded(b * gram + c * (gram @ gram)) @ x)
    return x if wide else x.T


def run_muon(
    xp: Any, p: Any, g: Any, buffer: Any, lr: float, momentum: float, weight_decay: float,
    a: float, b: float, c: float, eps: float, *, scale: float, nesterov: bool, steps: int,
) -> None:  # fmt: skip
    ahead = xp.empty(p.shape, np.float32)

    def gather(g: Any, buffer: Any, ahead: Any) -> None:
        xp.add(buffer, (g - buffer) * (1 - momentum), out=buffer)
        ahead[...] = g + (buffer - g) * momentum if nesterov else buffer

    def move(p: Any, change: Any) -> None:
        xp.subtract(p * (1 - lr * weight_decay), change * (lr * scale), out=p)

    run_update(gather, (g, buffer, ahead), (1, 2))
    run_update(move, (p, orthogonal(xp, ahead, a, b, c, eps, steps)), (0,))


def expand_muon(
    p: Tensor, g: Tensor, buffer: Tensor, lr: float, momentum: float, weight_decay: float,
    a: float, b: float, c: float, eps: float, *, scale: float, nesterov: bool, steps: int,
) -> None:  # fmt: skip
    buffer.add_((g - buffer) * (1 - momentum))
    x = (g + (buffer - g) * momentum if nesterov else buffer).to(dtypes.bfloat16)
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = addmm(x, addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    p.mul_(1 - lr * weight_decay).sub_((x if wide else x.T).to(p.dtype) * (lr * scale))


MUON_UPDATE = primitive("muon_update", "composite", run_muon, expand=expand_muon, upcast=False, mutates=(0, 2))


def adjustment(kind: str | None, rows: int, columns: int) -> float:
    """Return the factor on the step size that makes matrices of all shapes move alike."""
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


class Muon(ComputedHyperparameters):
    """Orthogonalised momentum with decoupled weight decay. Only matrices; use AdamW for biases and embeddings."""

    changeable = ("lr", "momentum", "weight_decay", "ns_coefficients", "eps")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        if isinstance(lr, Tensor):
            check_non_negative(lr=lr)
        for name, value in (("Learning rate", lr), ("momentum", momentum), ("weight decay", weight_decay)):
            if not value >= 0.0:
                raise ValueError(f"{name} should be >= 0 but is: {value}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        super().__init__(
            params,
            {
                "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
                "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
            },
        )  # fmt: skip
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}")

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        lr, momentum, weight_decay, eps = (as_number(group[name]) for name in ("lr", "momentum", "weight_decay", "eps"))
        return (lr, momentum, weight_decay, *map(as_number, group["ns_coefficients"]), eps)

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        return settings, (), None

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        if group["ns_steps"] >= 100:
            raise ValueError("Number of steps must be less than 100 for computational efficiency")
        if len(group["ns_coefficients"]) != 3:
            raise ValueError("Coefficients must be a tuple of exactly 3 values")
        settings, flags = self.settings(group), {"nesterov": bool(group["nesterov"]), "steps": int(group["ns_steps"])}
        for p in params:
            if p.ndim != 2:
                raise ValueError("Param gradient must be a 2D matrix")
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = init_state(p)
            numbers, _ = self.next_hyperparameters(settings, state)
            attrs = {"scale": adjustment(group["adjust_lr_fn"], *p.shape), **flags}
            apply(MUON_UPDATE, (p, p.tj_grad, state["momentum_buffer"], *numbers), attrs)
