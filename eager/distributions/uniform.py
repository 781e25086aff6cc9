"""More of `tapejit.distributions`: Uniform, Exponential, Laplace, MultivariateNormal, and Independent, which joins dims."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from . import POSITIVE, REAL, REAL_VECTOR, Constraint, Distribution, broadcast_all, kl_divergence, lazy_property, register_kl
from ..core.tape.grad_mode import no_grad
from ..linalg import cholesky, cholesky_ex, solve_triangular
from ..ops.create import eye
from ..ops.pointwise import expm1, log, log1p, sign, where
from ..ops.random import rand, randn
from ..ops.shape.reshape import broadcast_shapes
from ..core.tensor import Size, Tensor

NON_NEGATIVE = Constraint("GreaterThanEq(lower_bound=0.0)", lambda x: x >= 0)
DEPENDENT = Constraint("Dependent()", lambda x: x == x)


def _is_triangular(x: Tensor) -> Tensor:
    return (x.tril() == x).all(-1).all(-1) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1)  # type: ignore[no-any-return]


def _is_definite(x: Tensor) -> Tensor:
    symmetric = ((x - x.mT).abs() < 1e-6).all(-1).all(-1)
    return symmetric & (cholesky_ex(x).info == 0)  # type: ignore[no-any-return]


LOWER_CHOLESKY = Constraint("LowerCholesky()", _is_triangular)
POSITIVE_DEFINITE = Constraint("PositiveDefinite()", _is_definite)


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
        apart = value - self.loc
        return 0.5 - 0.5 * sign(apart) * expm1(-apart.abs() / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * sign(term) * log1p(-2 * term.abs())

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)


class MultivariateNormal(Distribution):
    """The normal distribution of vectors, by its mean and a covariance, a precision (its inverse) or a Cholesky factor."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": REAL_VECTOR, "covariance_matrix": POSITIVE_DEFINITE, "precision_matrix": POSITIVE_DEFINITE,
        "scale_tril": LOWER_CHOLESKY,
    }  # fmt: skip
    support = REAL_VECTOR
    has_rsample = True

    loc: Tensor

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        matrices = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        given = {name: matrix for name, matrix in matrices.items() if matrix is not None}
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if len(given) != 1:
            raise ValueError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        ((name, matrix),) = given.items()
        if matrix.dim() < 2:
            raise ValueError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
        batch = broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        self.__dict__[name] = matrix.expand(*batch, -1, -1)
        self.loc = loc.expand(*batch, -1)
        super().__init__(batch, self.loc.shape[-1:], validate_args)
        self._unbroadcasted_scale_tril = self._factor(name, matrix)

    def _factor(self, name: str, matrix: Tensor) -> Tensor:
        if name == "scale_tril":
            return matrix
        if name == "covariance_matrix":
            return cholesky(matrix)  # type: ignore[no-any-return]
        inverse = cholesky(matrix.flip(-2, -1)).flip(-2, -1).mT  # lower triangular, with precision = inverse.mT @ inverse
        return solve_triangular(inverse, self._identity(matrix), upper=False)  # type: ignore[no-any-return]

    def _identity(self, like: Tensor) -> Tensor:
        return eye(like.shape[-1], dtype=like.dtype, device=like.device)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The lower triangular factor of the covariance."""
        return self._unbroadcasted_scale_tril.expand(*self.batch_shape, -1, -1)  # type: ignore[no-any-return]

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """scale_tril @ scale_tril.mT."""
        factor = self._unbroadcasted_scale_tril
        return (factor @ factor.mT).expand(*self.batch_shape, -1, -1)  # type: ignore[no-any-return]

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        inverse = solve_triangular(self._unbroadcasted_scale_tril, self._identity(self.loc), upper=False)
        return (inverse.mT @ inverse).expand(*self.batch_shape, -1, -1)  # type: ignore[no-any-return]

    def expand(self, batch_shape: Any) -> MultivariateNormal:
        new = MultivariateNormal.__new__(type(self))
        shape = Size(batch_shape)
        for name in self.arg_constraints:
            if name in self.__dict__:
                new.__dict__[name] = self.__dict__[name].expand(shape + self.event_shape * (1 if name == "loc" else 2))
        new._unbroadcasted_scale_tril = self._unbroadcasted_scale_tril
        Distribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self._unbroadcasted_scale_tril.square().sum(-1).expand(self._extended_shape())  # type: ignore[no-any-return]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self._unbroadcasted_scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_determinant(self) -> Tensor:
        return log(self._unbroadcasted_scale_tril.diagonal(dim1=-2, dim2=-1)).sum(-1)  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        self._check_value(value)
        apart = whitened(self._unbroadcasted_scale_tril, value - self.loc)
        constant = self.event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + apart.square().sum(-1)) - self._half_log_determinant()  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        found = 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self._half_log_determinant()
        return found.expand(self.batch_shape)  # type: ignore[no-any-return]


def whitened(factor: Tensor, vectors: Tensor) -> Tensor:
    """The vectors x of factor @ x = vectors; batches of either broadcast."""
    batch = broadcast_shapes(factor.shape[:-2], vectors.shape[:-1])
    factor, vectors = factor.expand(*batch, -1, -1), vectors.expand(*batch, -1)
    return solve_triangular(factor, vectors.unsqueeze(-1), upper=False).squeeze(-1)  # type: ignore[no-any-return]


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


@register_kl(Uniform, Uniform)
def kl_uniform(p: Uniform, q: Uniform) -> Tensor:
    outside = (q.low > p.low) | (q.high < p.high)
    return where(outside, math.inf, log((q.high - q.low) / (p.high - p.low)))


@register_kl(Exponential, Exponential)
def kl_exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - log(ratio) - 1


@register_kl(Laplace, Laplace)
def kl_laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, apart = p.scale / q.scale, (p.loc - q.loc).abs()
    return -log(ratio) + apart / q.scale + ratio * (-apart / p.scale).exp() - 1


@register_kl(MultivariateNormal, MultivariateNormal)
def kl_multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError("KL-divergence between two Multivariate Normals with different event shapes cannot be computed")
    batch = broadcast_shapes(p.batch_shape, q.batch_shape)
    left, right = (d._unbroadcasted_scale_tril.expand(*batch, -1, -1) for d in (p, q))
    spread = solve_triangular(right, left, upper=False).square().sum((-2, -1))
    apart = whitened(q._unbroadcasted_scale_tril, q.loc - p.loc).square().sum(-1)
    return q._half_log_determinant() - p._half_log_determinant() + 0.5 * (spread + apart - p.event_shape[0])  # type: ignore[no-any-return]


@register_kl(Independent, Independent)
def kl_independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return p._joined(kl_divergence(p.base_dist, q.base_dist))
