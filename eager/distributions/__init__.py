"""`tapejit.distributions`: Categorical, Bernoulli, Normal, more in `distributions_more.py`, with PyTorch's names and checks.

A distribution holds tensors of parameters, so that `log_prob`, `entropy` and `rsample` can be differentiated by them. Its
`batch_shape` is the shape of its parameters (without the categories). Arguments are checked, which reads values;
`validate_args=False` leaves that out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from ..arrays.dtypes import finfo, get_default_dtype
from ..core.tape.grad_mode import enable_grad, no_grad
from ..nn import functional as F
from ..ops.create import arange, full, tensor
from ..ops.pointwise import clamp, erf, erfinv, exp, log, log1p, where
from ..ops.random import bernoulli as draw_bernoulli
from ..ops.random import multinomial, randn
from ..ops.random import normal as draw_normal
from ..ops.shape.reshape import broadcast_tensors
from ..core.tensor import Size, Tensor

D = TypeVar("D", bound="Distribution")
Check = Callable[[Tensor], Tensor]


class Constraint:
    """A set of admissible values: its name in error messages, and a test of each element."""

    def __init__(self, name: str, check: Check) -> None:
        self.name, self.check = name, check

    def __repr__(self) -> str:
        return self.name


def integers(low: int, high: int) -> Constraint:
    return Constraint(
        f"IntegerInterval(lower_bound={low}, upper_bound={high})", lambda x: (x % 1 == 0) & (low <= x) & (x <= high)
    )


REAL = Constraint("Real()", lambda x: x == x)
REAL_VECTOR = Constraint("IndependentConstraint(Real(), 1)", lambda x: (x == x).all(-1))
POSITIVE = Constraint("GreaterThan(lower_bound=0.0)", lambda x: x > 0)
UNIT_INTERVAL = Constraint("Interval(lower_bound=0.0, upper_bound=1.0)", lambda x: (x >= 0) & (x <= 1))
SIMPLEX = Constraint("Simplex()", lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6))
BOOLEAN = Constraint("Boolean()", lambda x: (x == 0) | (x == 1))


class lazy_property:  # noqa: N801 -- PyTorch's name
    """A parameter worked out from the other one when first asked for, on the tape even under `no_grad`."""

    def __init__(self, compute: Callable[[Any], Tensor]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            found = instance.__dict__[self.compute.__name__] = self.compute(instance)
        return found


class Distribution:
    """The base of all distributions: shapes, checks and what follows from a subclass's parts."""

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    support: Any = None
    _validate_args = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check their arguments if `validate_args` is not given."""
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args: expected True or False, got {value!r}")
        Distribution._validate_args = value

    def __init__(
        self,
        batch_shape: Any = (),
        event_shape: Any = (),
        validate_args: bool | None = None,
    ) -> None:
        self.batch_shape, self.event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, constraint in self.arg_constraints.items():
                if name in self.__dict__:
                    self._check_parameter(name, constraint)

    def _check_parameter(self, name: str, constraint: Constraint) -> None:
        value = self.__dict__[name]
        if not bool(constraint.check(value.detach()).all()):
            raise ValueError(
                f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of distribution {self!r} to "
                f"satisfy the constraint {constraint!r}, but found invalid values:\n{value}"
            )

    def _check_value(self, value: Any) -> None:
        """Refuse a value to be scored that has the wrong shape or lies outside the support."""
        if not self._validate_args:
            return
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        expected = self.batch_shape + self.event_shape
        for i, j in zip(reversed(value.shape), reversed(expected), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ValueError(f"Value is not broadcastable with batch_shape+event_shape: {value.shape} vs {expected}.")
        if not bool(self.support.check(value.detach()).all()):
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be within the support "
                f"({self.support!r}) of the distribution {self!r}, but found invalid values:\n{value}"
            )

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        return Size(sample_shape) + self.batch_shape + self.event_shape

    def _expanded(self: D, batch_shape: Any, event: tuple[int, ...] = ()) -> D:
        """The same distribution with its parameters expanded; they were checked already."""
        new = type(self).__new__(type(self))
        shape = Size(batch_shape)
        for name in self.arg_constraints:
            if name in self.__dict__:
                new.__dict__[name] = self.__dict__[name].expand(shape + event)
        Distribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def expand(self: D, batch_shape: Any) -> D:
        """The same distribution over a larger batch, without copies."""
        return self._expanded(batch_shape)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        raise NotImplementedError(f"{type(self)} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw values of shape `sample_shape + batch_shape`, without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw values as a differentiable function of the parameters."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability (or its density) of a value."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of values up to this one."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution, along a new first dim."""
        raise NotImplementedError

    def _enumerated(self, count: int, expand: bool, like: Tensor, dtype: Any) -> Tensor:
        found = arange(count, dtype=dtype, device=like.device).view(-1, *(1,) * len(self.batch_shape))
        return found.expand(-1, *self.batch_shape) if expand else found  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        """The expected -log_prob."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """exp of the entropy."""
        return exp(self.entropy())

    def __repr__(self) -> str:
        given = {name: self.__dict__[name] for name in self.arg_constraints if name in self.__dict__}
        shown = (f"{name}: {value if value.numel() == 1 else value.size()}" for name, value in given.items())
        return f"{type(self).__name__}({', '.join(shown)})"


class Discrete(Distribution):
    """What is given by `probs` or by `logits`, of which the other one is worked out when asked for."""

    has_enumerate_support = True

    @property
    def _param(self) -> Tensor:
        return next(self.__dict__[name] for name in ("probs", "logits") if name in self.__dict__)  # type: ignore[no-any-return]

    @property
    def param_shape(self) -> Size:
        """The shape of `probs` and `logits`."""
        return self._param.shape


class Categorical(Discrete):
    """One of K categories, by `probs` (relative weights) or `logits` along the last dim. Values are int64."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"probs": SIMPLEX, "logits": REAL_VECTOR}

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None) -> None:
        given, name = one_of(probs, logits)
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
        return log(away_from_ends(self.probs))

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


class Bernoulli(Discrete):
    """0 or 1, by the probability of 1 (`probs`) or its log-odds (`logits`). Values have the parameters' dtype."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"probs": UNIT_INTERVAL, "logits": REAL}
    support = BOOLEAN

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        given, name = one_of(probs, logits)
        (parameter,) = broadcast_all(given)
        self.__dict__[name] = parameter
        super().__init__(parameter.shape, validate_args=validate_args)

    @lazy_property
    def logits(self) -> Tensor:
        """log(p / (1 - p))."""
        p = away_from_ends(self.probs)
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


class Normal(Distribution):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

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
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            return draw_normal(self.loc.expand(shape), self.scale.expand(shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return -((value - self.loc) ** 2) / (2 * self.variance) - log(self.scale) - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return 0.5 * (1 + erf((value - self.loc) / self.scale / math.sqrt(2)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + log(self.scale)


# ---- how far two distributions are apart


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
    """What never happens under p adds nothing; what happens under p and never under q is infinitely surprising."""
    return where(p == 0, 0.0, where(q == 0, math.inf, terms))


# ---- parameters


def one_of(probs: Any, logits: Any) -> tuple[Any, str]:
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    return (logits, "logits") if probs is None else (probs, "probs")


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors of one shape; numbers become tensors like the first one that is there."""
    if not all(isinstance(v, (Tensor, int, float)) for v in values):
        raise ValueError("Input arguments must all be instances of Number or tapejit.Tensor.")
    first = next((v for v in values if isinstance(v, Tensor)), None)
    dtype, device = (get_default_dtype(), None) if first is None else (first.dtype, first.device)
    tensors = [v if isinstance(v, Tensor) else tensor(v, dtype=dtype, device=device) for v in values]
    return broadcast_tensors(*tensors)  # type: ignore[no-any-return]


def away_from_ends(probs: Tensor) -> Tensor:
    """Probabilities inside (0, 1), so that their logarithms are finite."""
    eps = finfo(probs.dtype).eps
    return clamp(probs, min=eps, max=1 - eps)


# They are made of what stands above.
from .uniform import Exponential, Independent, Laplace, MultivariateNormal, Uniform  # noqa: E402, F401

# PyTorch's files, one for each distribution, which programs import from. Here they are names of this one.
FILES = (
    "bernoulli", "categorical", "distribution", "exponential", "independent", "kl", "laplace", "multivariate_normal", "normal",
    "uniform",
)  # fmt: skip
