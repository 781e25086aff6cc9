"""SparseAdam: PyTorch's Adam for sparse gradients. There are none here, so it only says so."""

from __future__ import annotations

from typing import Any

from ..core.tensor import Tensor
from .optimizer import Optimizer, check_betas


class SparseAdam(Optimizer):
    """Takes PyTorch's arguments; a step on dense gradients is the error that it is there too."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        if not lr > 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not eps > 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        check_betas(betas)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        """Refuse dense gradients."""
        if params:
            raise RuntimeError("SparseAdam does not support dense gradients, please consider Adam instead")
