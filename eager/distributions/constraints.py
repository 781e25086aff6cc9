"""Constraints: sets of admissible parameters and values, each with its name in error messages."""

from __future__ import annotations

from collections.abc import Callable

from ..core.tensor import Tensor
from ..ops.linalg.api import cholesky_ex

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
NON_NEGATIVE = Constraint("GreaterThanEq(lower_bound=0.0)", lambda x: x >= 0)
UNIT_INTERVAL = Constraint("Interval(lower_bound=0.0, upper_bound=1.0)", lambda x: (x >= 0) & (x <= 1))
SIMPLEX = Constraint("Simplex()", lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6))
BOOLEAN = Constraint("Boolean()", lambda x: (x == 0) | (x == 1))
DEPENDENT = Constraint("Dependent()", lambda x: x == x)


def _is_triangular(x: Tensor) -> Tensor:
    return (x.tril() == x).all(-1).all(-1) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1)  # type: ignore[no-any-return]


def _is_definite(x: Tensor) -> Tensor:
    symmetric = ((x - x.mT).abs() < 1e-6).all(-1).all(-1)
    return symmetric & (cholesky_ex(x).info == 0)  # type: ignore[no-any-return]


LOWER_CHOLESKY = Constraint("LowerCholesky()", _is_triangular)
POSITIVE_DEFINITE = Constraint("PositiveDefinite()", _is_definite)
