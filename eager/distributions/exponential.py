"""The exponential distribution."""

from __future__ import annotations

from typing import Any, ClassVar

from ..core.tensor import Tensor
from ..ops.pointwise import expm1, log, log1p
from ..ops.random import rand
from .constraints import NON_NEGATIVE, POSITIVE, Constraint
from .distribution import Distribution
from .utils import broadcast_all


class Exponential(Distribution):
    """The time until something happens that happens `rate` times per unit of time."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": POSITIVE}
    support = NON_NEGATIVE
    has_rsample = True

    rate: Tensor

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        return self.rate * 0

    @property
    def stddev(self) -> Tensor:
        return self.rate.reciprocal()  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        return self.rate.pow(-2)  # type: ignore[no-any-return]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = rand(self._extended_shape(sample_shape), dtype=self.rate.dtype, device=self.rate.device)
        return -log1p(-drawn) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return log(self.rate) - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return -expm1(-self.rate * value)

    def icdf(self, value: Tensor) -> Tensor:
        return -log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        return 1 - log(self.rate)
