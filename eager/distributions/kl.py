"""Kullback-Leibler divergences between distributions, and the registry of their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..core.tensor import Tensor
from ..nn import functional as F
from ..ops.linalg.api import solve_triangular
from ..ops.pointwise import log, where
from ..ops.shape.reshape import broadcast_shapes
from .bernoulli import Bernoulli
from .categorical import Categorical
from .distribution import Distribution
from .exponential import Exponential
from .independent import Independent
from .laplace import Laplace
from .multivariate_normal import MultivariateNormal, whiten
from .normal import Normal
from .uniform import Uniform


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The expected log p(x) - log q(x) for x from p."""
    for (left, right), formula in _DIVERGENCES.items():
        if isinstance(p, left) and isinstance(q, right):
            return formula(p, q)
    raise NotImplementedError(f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}")


def register_kl(type_p: type, type_q: type) -> Callable[[Any], Any]:
    """Let `kl_divergence` know a formula for two classes of distributions; the last one registered is asked first."""

    def register(formula: Any) -> Any:
        others = dict(_DIVERGENCES)
        _DIVERGENCES.clear()
        _DIVERGENCES.update({(type_p, type_q): formula, **others})
        return formula

    return register


_DIVERGENCES: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


@register_kl(Categorical, Categorical)
def kl_categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    return _with_zeros(terms, p.probs, q.probs).sum(-1)  # type: ignore[no-any-return]


@register_kl(Bernoulli, Bernoulli)
def kl_bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    ones = p.probs * (F.softplus(-q.logits) - F.softplus(-p.logits))
    zeros = (1 - p.probs) * (F.softplus(q.logits) - F.softplus(p.logits))
    return _with_zeros(ones, p.probs, q.probs) + _with_zeros(zeros, 1 - p.probs, 1 - q.probs)


@register_kl(Normal, Normal)
def kl_normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - log(ratio))


def _with_zeros(terms: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Set terms with p = 0 to 0, and those with q = 0 and p > 0 to infinity."""
    return where(p == 0, 0.0, where(q == 0, math.inf, terms))


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
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -log(ratio) + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@register_kl(MultivariateNormal, MultivariateNormal)
def kl_multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError("KL-divergence between two Multivariate Normals with different event shapes cannot be computed")
    batch = broadcast_shapes(p.batch_shape, q.batch_shape)
    left, right = (d._unbroadcasted_scale_tril.expand(*batch, -1, -1) for d in (p, q))
    spread = solve_triangular(right, left, upper=False).square().sum((-2, -1))
    distance = whiten(q._unbroadcasted_scale_tril, q.loc - p.loc).square().sum(-1)
    return q._half_log_determinant() - p._half_log_determinant() + 0.5 * (spread + distance - p.event_shape[0])  # type: ignore[no-any-return]


@register_kl(Independent, Independent)
def kl_independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return p._joined(kl_divergence(p.base_dist, q.base_dist))
