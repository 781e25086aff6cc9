"""The categorical distribution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ..arrays.dtypes import finfo
from ..core.tensor import Size, Tensor
from ..ops.create import full
from ..ops.pointwise import clamp, log
from ..ops.random import multinomial
from ..ops.shape.reshape import broadcast_tensors
from .constraints import REAL_VECTOR, SIMPLEX, Constraint, integers
from .distribution import Discrete
from .utils import clamp_probs, lazy_property, probs_or_logits


class Categorical(Discrete):
    """One of K categories, by `probs` (relative weights) or `logits` along the last dim. Values are int64."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"probs": SIMPLEX, "logits": REAL_VECTOR}

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None) -> None:
        given, name = probs_or_logits(probs, logits)
        if given.dim() < 1:
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        if name == "probs":
            self.probs = given / given.sum(-1, keepdim=True)
        else:
            self.logits = given - given.logsumexp(dim=-1, keepdim=True)
        super().__init__(given.shape[:-1], validate_args=validate_args)

    @lazy_property
    def logits(self) -> Tensor:
        """Normalised logarithms of the probabilities."""
        return log(clamp_probs(self.probs))

    @lazy_property
    def probs(self) -> Tensor:
        """The probabilities; they add up to 1."""
        return self.logits.softmax(-1)  # type: ignore[no-any-return]

    @property
    def _num_events(self) -> int:
        return int(self._param.shape[-1])

    @property
    def support(self) -> Constraint:
        return integers(0, self._num_events - 1)

    def expand(self, batch_shape: Any) -> Categorical:
        return self._expanded(batch_shape, (self._num_events,))

    @property
    def mean(self) -> Tensor:
        """Categories have no mean: NaN."""
        return full(self._extended_shape(), math.nan, dtype=self.probs.dtype, device=self.probs.device)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(dim=-1)  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        """Categories have no variance: NaN."""
        return self.mean

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = Size(sample_shape)
        rows = self.probs.detach().reshape(-1, self._num_events)
        drawn = multinomial(rows, shape.numel(), True)
        return drawn.transpose(0, 1).reshape(self._extended_shape(shape))  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        self._check_value(value)
        index, table = broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return table.gather(-1, index[..., :1]).squeeze(-1)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        finite = clamp(self.logits, min=finfo(self.logits.dtype).min)  # 0 * -inf is to be 0
        return -(finite * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(self._num_events, expand, self._param, None)
