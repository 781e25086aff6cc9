"""The normal distribution of vectors."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ..core.tensor import Size, Tensor
from ..ops.create import eye
from ..ops.linalg.api import linalg_cholesky, solve_triangular
from ..ops.pointwise import log
from ..ops.random import randn
from ..ops.shape.reshape import broadcast_shapes
from .constraints import LOWER_CHOLESKY, POSITIVE_DEFINITE, REAL_VECTOR, Constraint
from .distribution import Distribution
from .utils import lazy_property


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
            return linalg_cholesky(matrix)  # type: ignore[no-any-return]
        inverse = linalg_cholesky(matrix.flip(-2, -1)).flip(-2, -1).mT  # lower triangular: precision = inverse.mT @ inverse
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
        standardized = whiten(self._unbroadcasted_scale_tril, value - self.loc)
        constant = self.event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + standardized.square().sum(-1)) - self._half_log_determinant()  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        found = 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self._half_log_determinant()
        return found.expand(self.batch_shape)  # type: ignore[no-any-return]


def whiten(factor: Tensor, vectors: Tensor) -> Tensor:
    """The vectors x of factor @ x = vectors; batches of either broadcast."""
    batch = broadcast_shapes(factor.shape[:-2], vectors.shape[:-1])
    factor, vectors = factor.expand(*batch, -1, -1), vectors.expand(*batch, -1)
    return solve_triangular(factor, vectors.unsqueeze(-1), upper=False).squeeze(-1)  # type: ignore[no-any-return]
