"""A distribution whose last batch dims are one event."""

from __future__ import annotations

from typing import Any

from ..core.tape.grad_mode import no_grad
from ..core.tensor import Size, Tensor
from .constraints import Constraint
from .distribution import Distribution


class Independent(Distribution):
    """The last dims of another distribution's batch as one event: their log-probabilities are added up."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        batch, event, joined = base_distribution.batch_shape, base_distribution.event_shape, reinterpreted_batch_ndims
        if joined > len(batch):
            raise ValueError(
                f"Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual {joined} vs {len(batch)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, joined
        kept = len(batch) - joined
        super().__init__(batch[:kept], batch[kept:] + event, validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> Any:
        inner = self.base_dist.support
        return Constraint(f"IndependentConstraint({inner!r}, {self.reinterpreted_batch_ndims})", inner.check)

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def expand(self, batch_shape: Any) -> Independent:
        joined = self.base_dist.batch_shape[len(self.base_dist.batch_shape) - self.reinterpreted_batch_ndims :]
        return type(self)(self.base_dist.expand(Size(batch_shape) + joined), self.reinterpreted_batch_ndims, False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def _joined(self, terms: Tensor) -> Tensor:
        dims = tuple(range(-self.reinterpreted_batch_ndims, 0))
        return terms.sum(dims) if dims else terms  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        return self._joined(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self._joined(self.base_dist.entropy())

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"
