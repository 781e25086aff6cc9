"""Weight norm: a weight as length times direction, recomputed before every forward."""

from __future__ import annotations

from typing import Any, TypeVar

from ...core.tensor import Tensor
from ...ops.linalg.norms import vector_norm
from ..module import Module
from ..parameter import Parameter

T = TypeVar("T", bound=Module)


def norm_except_dim(v: Tensor, dim: int) -> Tensor:
    """The length of each slice along a dim, in a shape that broadcasts; -1 is for the length of all."""
    if dim == -1:
        return vector_norm(v)  # type: ignore[no-any-return]
    return vector_norm(v, dim=tuple(d for d in range(v.ndim) if d != dim), keepdim=True)  # type: ignore[no-any-return]


def scaled(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """v with the lengths g."""
    return v * (g / norm_except_dim(v, dim))


class WeightNorm:
    """The hook: computes a module's weight from `weight_g` and `weight_v`."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Tensor:
        return scaled(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)

    def __call__(self, module: Module, inputs: Any) -> None:
        module.__dict__[self.name] = self.compute_weight(module)  # not a change that a guard need see

    def add(self, module: Module) -> None:
        weight = getattr(module, self.name).detach()
        delattr(module, self.name)
        module.register_parameter(f"{self.name}_g", Parameter(norm_except_dim(weight, self.dim)))
        module.register_parameter(f"{self.name}_v", Parameter(weight))
        self(module, ())
        module.register_forward_pre_hook(self)

    def remove(self, module: Module) -> None:
        weight = self.compute_weight(module).detach()
        for name in (self.name, f"{self.name}_g", f"{self.name}_v"):
            delattr(module, name)
        setattr(module, self.name, Parameter(weight))


def find_hook(module: Module, kind: type, name: str) -> int | None:
    """The number of a module's forward pre-hook of a kind for a weight."""
    hooks = module._forward_pre_hooks.items()
    return next((key for key, (hook, _) in hooks if isinstance(hook, kind) and hook.name == name), None)  # type: ignore[attr-defined]


def take_off(module: Module, kind: type, name: str, label: str) -> None:
    """Remove such a hook; the weight becomes a parameter again."""
    key = find_hook(module, kind, name)
    if key is None:
        raise ValueError(f"{label} of '{name}' not found in {module}")
    hook, _ = module._forward_pre_hooks.pop(key)
    hook.remove(module)


def weight_norm(module: T, name: str = "weight", dim: int | None = 0) -> T:
    """Replace a weight by its lengths along `dim` (all in one for None) and its directions; returns the module."""
    if find_hook(module, WeightNorm, name) is not None:
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    WeightNorm(name, dim).add(module)
    return module


def remove_weight_norm(module: T, name: str = "weight") -> T:
    """Undo `weight_norm`."""
    take_off(module, WeightNorm, name, "weight_norm")
    return module
