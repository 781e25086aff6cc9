"""Parametrizations: a module's parameter or buffer as a function of other tensors, computed whenever it is read.

`register_parametrization(layer, "weight", f)` makes `layer.weight` stand for `f(layer.parametrizations.weight.original)`.
The layer gets a class of its own, in which `weight` is a property. Where `f.right_inverse` exists, it says which original
gives a wanted value; if it returns several tensors they are `original0`, `original1` and so on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ...core.tape.grad_mode import no_grad
from ...core.tensor import Tensor
from ..module import Module
from ..modules.container import ModuleDict, ModuleList
from ..parameter import Parameter

_cache: dict[tuple[int, str], Tensor] | None = None


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor only once within this block."""
    global _cache
    outer = _cache
    _cache = {} if outer is None else outer
    try:
        yield
    finally:
        _cache = outer


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, applied in turn, and the tensors they start from."""

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = original.shape, original.dtype
        new: Any = original
        with no_grad():
            for module in reversed(list(self)):
                new = _inverted(module, new)
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            _same(
                original,
                new,
                "right_inverse(original)",
                "When `right_inverse` outputs one tensor, it may not change the dtype.",
                False,
            )
            if new is not original:
                original.data = new.detach()  # type: ignore[attr-defined]
            _register(self, "original", original)
        else:
            for i, part in enumerate(new):
                wants = original.requires_grad
                _register(self, f"original{i}", Parameter(part, wants) if isinstance(original, Parameter) else part)
        if not unsafe:
            _check(self(), shape, dtype)

    def right_inverse(self, value: Any) -> None:
        """Change the originals so that the parametrized tensor becomes `value`."""
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
                value = module.right_inverse(value)
        values = [value] if self.is_tensor else list(value)
        if len(values) != self.ntensors:
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors of length {self.ntensors}. Got a sequence of length "
                f"{len(values)}."
            )
        for original, new in zip(self._originals(), values, strict=True):
            if original.dtype != new.dtype:
                raise ValueError(
                    f"The tensor returned by `right_inverse` has dtype {new.dtype} while `original` has dtype {original.dtype}"
                )
            original.data = new.detach()  # type: ignore[attr-defined]

    def _originals(self) -> list[Tensor]:
        names = ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]
        return [getattr(self, name) for name in names]

    def forward(self) -> Tensor:
        first, *others = self
        value = first(*self._originals())
        for module in others:
            value = module(value)
        return value  # type: ignore[no-any-return]


def _inverted(module: Module, value: Any) -> Any:
    if not hasattr(module, "right_inverse"):
        return value
    try:
        return module.right_inverse(value)
    except NotImplementedError:
        return value


def _register(module: Module, name: str, tensor: Tensor) -> None:
    (module.register_parameter if isinstance(tensor, Parameter) else module.register_buffer)(name, tensor)  # type: ignore[arg-type]


def _same(original: Tensor, new: Tensor, label: str, reason: str, shape: bool) -> None:
    if original.dtype != new.dtype:
        raise ValueError(f"{reason}\noriginal.dtype: {original.dtype}\n{label}.dtype: {new.dtype}")
    if shape and original.shape != new.shape:
        raise ValueError(f"{reason}\noriginal.shape: {original.shape}\n{label}.shape: {new.shape}")


def _check(value: Any, shape: Any, dtype: Any) -> None:
    """A parametrized tensor has to be one like the tensor it replaces."""
    if not isinstance(value, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(value).__name__}.")
    for what, before, after in (("dtype", dtype, value.dtype), ("shape", shape, value.shape)):
        if before != after:
            raise ValueError(
                f"Registering a parametrization may not change the {what} of the tensor, unless `unsafe` flag is enabled.\n"
                f"unparametrized {what}: {before}\nparametrized {what}: {after}"
            )


# ---- the class of a parametrized module


def _refuse_pickle(self: Module) -> NoReturn:
    raise RuntimeError("Serialization of parametrized modules is only supported through state_dict().")


def _deepcopy(self: Module, memo: dict[int, Any]) -> Module:
    if id(self) not in memo:
        memo[id(self)] = replica = object.__new__(type(self))
        replica.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return memo[id(self)]  # type: ignore[no-any-return]


def _property(name: str) -> property:
    def get(self: Any) -> Any:
        if _cache is None:
            return self.parametrizations[name]()
        key = (id(self), name)
        if key not in _cache:
            _cache[key] = self.parametrizations[name]()
        return _cache[key]

    def set_original(self: Any, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(get, set_original)


def register_parametrization(module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> Module:
    """Make a tensor of a module a function of what it was; `unsafe` skips the check that shape and dtype stay."""
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            before = getattr(module, tensor_name)
            _check(parametrization(before), before.shape, before.dtype)
        module.parametrizations[tensor_name].append(parametrization)
        module.parametrizations[tensor_name].unsafe |= unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        listed = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe=unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            cls = type(module)
            members = {"__getstate__": _refuse_pickle, "__deepcopy__": getattr(cls, "__deepcopy__", _deepcopy)}
            module.__class__ = type(f"Parametrized{cls.__name__}", (cls,), members)
            module.parametrizations = ModuleDict()
        setattr(type(module), tensor_name, _property(tensor_name))
        module.parametrizations._modules[tensor_name] = listed
    else:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name '{tensor_name}'"
        )
    module._changed()
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """True if a module, or one of its tensors, is parametrized."""
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a tensor plain again: with the value it has, or (`leave_parametrized=False`) the one it started from."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    listed = module.parametrizations[tensor_name]
    if not listed.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a sequence "
            "of tensors."
        )
    value = getattr(module, tensor_name)
    if listed.is_tensor:
        original = listed.original
        if leave_parametrized:
            original.data = value.detach()
    else:
        original = Parameter(value) if value.requires_grad else value
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    module._changed()
    return module


def type_before_parametrizations(module: Module) -> type:
    """The class a module had before it was parametrized."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)
