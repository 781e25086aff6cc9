"""The Bernoulli distribution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ..core.tape.grad_mode import no_grad
from ..core.tensor import Tensor
from ..nn import functional as F
from ..ops.pointwise import log, log1p, where
from ..ops.random import bernoulli as draw_bernoulli
from .constraints import BOOLEAN, REAL, UNIT_INTERVAL, Constraint
from .distribution import Discrete
from .utils import broadcast_all, clamp_probs, lazy_property, probs_or_logits


class Bernoulli(Discrete):
    """0 or 1, by the probability of 1 (`probs`) or its log-odds (`logits`). Values have the parameters' dtype."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"probs": UNIT_INTERVAL, "logits": REAL}
    support = BOOLEAN

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        given, name = probs_or_logits(probs, logits)
        (parameter,) = broadcast_all(given)
        self.__dict__[name] = parameter
        super().__init__(parameter.shape, validate_args=validate_args)

    @lazy_property
    def logits(self) -> Tensor:
        """log(p / (1 - p))."""
        p = clamp_probs(self.probs)
        return log(p) - log1p(-p)

    @lazy_property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return self.logits.sigmoid()  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return self.probs  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        """The likelier value; NaN where both are."""
        return where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return draw_bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._check_value(value)
        logits, target = broadcast_all(self.logits, value)
        return -F.binary_cross_entropy_with_logits(logits, target, reduction="none")  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")  # type: ignore[no-any-return]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(2, expand, self._param, self._param.dtype)
