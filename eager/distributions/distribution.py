"""The base class of all distributions: shapes, checks, and methods that follow from a subclass's parts."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from ..core.tape.grad_mode import no_grad
from ..core.tensor import Size, Tensor
from ..ops.create import arange
from ..ops.pointwise import exp
from .constraints import Constraint

D = TypeVar("D", bound="Distribution")


class Distribution:
    """The base of all distributions: shapes, checks and what follows from a subclass's parts."""

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    support: Any = None
    _validate_args = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Set whether distributions check their arguments if `validate_args` is not given."""
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
    """A discrete distribution given by `probs` or by `logits`; the other one is computed when first read."""

    has_enumerate_support = True

    @property
    def _param(self) -> Tensor:
        return next(self.__dict__[name] for name in ("probs", "logits") if name in self.__dict__)  # type: ignore[no-any-return]

    @property
    def param_shape(self) -> Size:
        """The shape of `probs` and `logits`."""
        return self._param.shape
