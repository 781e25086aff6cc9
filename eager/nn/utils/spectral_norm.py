"""Spectral norm: a weight divided by its largest singular value, which a power iteration follows in training."""

from __future__ import annotations

from typing import Any, TypeVar

from ...core.tape.grad_mode import no_grad
from ...core.tensor import Tensor
from ...ops.random import randn
from .. import functional as F
from ..module import Module
from ..modules.conv import _ConvTransposeNd
from ..parameter import Parameter
from .weight_norm import find_hook, take_off

T = TypeVar("T", bound=Module)


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """A weight as a matrix whose rows are its slices along a dim."""
    return weight.movedim(dim, 0).flatten(1)  # type: ignore[no-any-return]


def random_direction(weight: Tensor, size: int, eps: float) -> Tensor:
    return F.normalize(randn(size, dtype=weight.dtype, device=weight.device), dim=0, eps=eps)  # type: ignore[no-any-return]


def divided(weight: Tensor, dim: int, u: Tensor, v: Tensor) -> Tensor:
    """The weight divided by u W v. Copies of u and v are used: a second forward before the backward changes the originals."""
    u, v = u.clone(), v.clone()
    return weight / u.dot(as_matrix(weight, dim).mv(v))


def output_dim(module: Module) -> int:
    """The dim of a layer's weight that counts its outputs."""
    return 1 if isinstance(module, _ConvTransposeNd) else 0


class SpectralNorm:
    """The hook: computes a module's weight from `weight_orig` and the buffers `weight_u` and `weight_v`."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        if n_power_iterations <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
        self.name, self.n_power_iterations, self.dim, self.eps = name, n_power_iterations, dim, eps

    def _parts(self, module: Module) -> tuple[Tensor, Tensor, Tensor]:
        return getattr(module, f"{self.name}_orig"), getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        weight, u, v = self._parts(module)
        if do_power_iteration:
            with no_grad():
                matrix = as_matrix(weight, self.dim)
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(matrix.t().mv(u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(matrix.mv(v), dim=0, eps=self.eps))
        return divided(weight, self.dim, u, v)

    def __call__(self, module: Module, inputs: Any) -> None:
        module.__dict__[self.name] = self.compute_weight(module, module.training)  # not a change that a guard need see

    def add(self, module: Module) -> None:
        weight = module._parameters[self.name]
        if weight is None:
            raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{self.name}` is None")
        rows, columns = as_matrix(weight.detach(), self.dim).shape
        delattr(module, self.name)
        module.register_parameter(f"{self.name}_orig", weight)
        module.__dict__[self.name] = weight.detach()
        module.register_buffer(f"{self.name}_u", random_direction(weight, rows, self.eps))
        module.register_buffer(f"{self.name}_v", random_direction(weight, columns, self.eps))
        module.register_forward_pre_hook(self)

    def remove(self, module: Module) -> None:
        weight = self.compute_weight(module, do_power_iteration=False).detach()
        for name in (self.name, f"{self.name}_u", f"{self.name}_v", f"{self.name}_orig"):
            delattr(module, name)
        module.register_parameter(self.name, Parameter(weight))


def spectral_norm(
    module: T, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> T:
    """Divide a module's weight by its largest singular value before every forward; returns the module."""
    if find_hook(module, SpectralNorm, name) is not None:
        raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
    SpectralNorm(name, n_power_iterations, output_dim(module) if dim is None else dim, eps).add(module)
    return module


def remove_spectral_norm(module: T, name: str = "weight") -> T:
    """Undo `spectral_norm`."""
    take_off(module, SpectralNorm, name, "spectral_norm")
    return module
