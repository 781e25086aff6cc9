"""The Laplace distribution."""

from __future__ import annotations

from typing import Any, ClassVar

from ..core.tensor import Tensor
from ..ops.pointwise import expm1, log, log1p, sign
from ..ops.random import rand
from .constraints import POSITIVE, REAL, Constraint
from .distribution import Distribution
from .utils import broadcast_all


class Laplace(Distribution):
    """Two exponential distributions back to back at `loc`, of width `scale`."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"loc": REAL, "scale": POSITIVE}
    support = REAL
    has_rsample = True

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return 2**0.5 * self.scale

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale**2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = rand(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.icdf(drawn.clamp(min=1e-7 if drawn.element_size() <= 4 else 1e-16))

    def log_prob(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return -log(2 * self.scale) - (value - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        self._check_value(value)
        difference = value - self.loc
        return 0.5 - 0.5 * sign(difference) * expm1(-difference.abs() / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * sign(term) * log1p(-2 * term.abs())

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)
