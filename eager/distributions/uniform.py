"""The uniform distribution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ..core.tensor import Tensor
from ..ops.pointwise import log
from ..ops.random import rand
from .constraints import DEPENDENT, Constraint
from .distribution import Distribution
from .utils import broadcast_all


class Uniform(Distribution):
    """Every value from `low` up to `high` is as probable as any other."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"low": DEPENDENT, "high": DEPENDENT}
    has_rsample = True

    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args:
            self._check_parameter("low", Constraint(f"LessThan(upper_bound={self.high})", lambda x: x < self.high))

    @property
    def support(self) -> Constraint:
        return Constraint(
            f"Interval(lower_bound={self.low}, upper_bound={self.high})", lambda x: (x >= self.low) & (x <= self.high)
        )

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        """No value is the most probable: NaN."""
        return math.nan * self.high

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / 12**0.5

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = rand(self._extended_shape(sample_shape), dtype=self.low.dtype, device=self.low.device)
        return self.low + drawn * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check_value(value)
        inside = (self.low <= value) & (self.high > value)
        return log(inside.to(self.low.dtype)) - log(self.high - self.low)

    def cdf(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return ((value - self.low) / (self.high - self.low)).clamp(min=0, max=1)  # type: ignore[no-any-return]

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return log(self.high - self.low)
