"""`Module`: a tree of parameters, buffers and submodules with a `forward`.

Names, arguments, `state_dict` keys, repr and errors are PyTorch's. Every assignment to an attribute, train/eval switch
and change of hooks bumps `_version_number`, a plain int that a compiled function's guard can read at no cost. Hooks are in
`module_hooks.py`, saving and loading in `state_dict.py`, errors that say their module's path in `error_location.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..arrays.dtypes import as_dtype, bfloat16, float16, float32, float64
from ..core.tape.grad_mode import no_grad
from ..core.tape.node import local
from ..core.tensor import Tensor, tensor_changed
from ..ops.convert import parse_to_arguments
from ..ops.create import empty_like
from .error_location import LOCATABLE_ERRORS, add_location
from .module_hooks import (
    GLOBAL_HOOKS,
    HooksMixin,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from .mutation_counter import ModuleTable, count_mutation
from .parameter import Buffer, Parameter
from .state_dict import StateDictMixin

__all__ = [
    "Module",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "typename",
]

T = TypeVar("T", bound="Module")
_HOOKS = (
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks",
    "_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def typename(value: Any) -> str:
    """Describe the kind of a value, for an error message."""
    if isinstance(value, Tensor):
        return value.type()  # type: ignore[no-any-return]
    kind = value if isinstance(value, type) else type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Module(HooksMixin, StateDictMixin):
    """Base class of all networks and layers. Call `super().__init__()` before assigning anything."""

    training: bool
    call_super_init = False  # with other base classes beside Module: whether to call their __init__ too
    _version_number = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and kwargs:
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument '{next(iter(kwargs))}'")
        if not self.call_super_init and args:
            raise TypeError(f"{type(self).__name__}.__init__() takes 1 positional argument but {len(args) + 1} were given")
        self.__dict__.update(
            training=True,
            _parameters=ModuleTable(),
            _buffers=ModuleTable(),
            _modules=ModuleTable(),
            _non_persistent_buffers_set=set(),
        )
        self.__dict__.update({table: {} for table in _HOOKS})
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result. Every subclass defines it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if (
                self._forward_pre_hooks
                or self._forward_hooks
                or self._backward_hooks
                or self._backward_pre_hooks
                or GLOBAL_HOOKS
            ):
                return self._call_with_hooks(args, kwargs)
            tracer = local.state.tracer
            if tracer is not None:
                return tracer.call_module(self, args, kwargs)
            return self.forward(*args, **kwargs)
        except LOCATABLE_ERRORS as error:
            add_location(error, self)
            raise

    def _changed(self) -> None:
        """Note that the module is not what it was, for guards."""
        self.__dict__["_version_number"] = self._version_number + 1
        count_mutation()

    # ---- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        self._changed()
        fields = self.__dict__
        if "_parameters" not in fields:
            if isinstance(value, (Parameter, Module, Buffer)):
                kind = "parameters" if isinstance(value, Parameter) else "module" if isinstance(value, Module) else "buffer"
                raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            self._make_room(name, "_parameters")
            self.register_parameter(name, value)
        elif name in fields["_parameters"]:
            self._refuse(value, "parameter", name, "nn.Parameter")
            self.register_parameter(name, None)
        elif isinstance(value, Module):
            self._make_room(name, "_modules")
            self._modules[name] = value
        elif name in fields["_modules"]:
            self._refuse(value, "child module", name, "nn.Module")
            self._modules[name] = None
        elif isinstance(value, Buffer) or name in fields["_buffers"]:
            if not isinstance(value, Tensor):
                self._refuse(value, "buffer", name, "nn.Buffer, tapejit.Tensor")
            persistent = value.persistent if isinstance(value, Buffer) else name not in self._non_persistent_buffers_set
            self.register_buffer(name, value, persistent)
        else:
            object.__setattr__(self, name, value)

    def _refuse(self, value: Any, what: str, name: str, expected: str) -> None:
        if value is not None:
            raise TypeError(f"cannot assign '{typename(value)}' as {what} '{name}' (tapejit.{expected} or None expected)")

    def _make_room(self, name: str, table: str) -> None:
        """A name stands for one thing: take it out of wherever else it is."""
        fields = self.__dict__
        fields.pop(name, None)
        for other in ("_parameters", "_buffers", "_modules"):
            if other != table:
                fields[other].pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        if "_parameters" in fields:  # no loop: every use of a weight comes through here
            if name in fields["_parameters"]:
                return fields["_parameters"][name]
            if name in fields["_modules"]:
                return fields["_modules"][name]
            if name in fields["_buffers"]:
                return fields["_buffers"][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        self._changed()
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*dir(type(self)), *self.__dict__, *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[:1].isdigit())

    def _check_name(self, name: Any, kind: str, table: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {typename(name)}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[table]:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter under a name."""
        if "_parameters" not in self.__dict__:
            raise AttributeError("cannot assign parameter before Module.__init__() call")
        self._check_name(name, "parameter", "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{typename(param)}' object to parameter '{name}' (tapejit.nn.Parameter or None required)"
            )
        if param is not None and param.grad_fn is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To express "
                f"'{name}' as a function of another Tensor, compute the value in the forward() method."
            )
        self._parameters[name] = param
        self._changed()

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is part of the state (if `persistent`) and moves with the module, but is no parameter."""
        if "_buffers" not in self.__dict__:
            raise AttributeError("cannot assign buffer before Module.__init__() call")
        self._check_name(name, "buffer", "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"cannot assign '{typename(tensor)}' object to buffer '{name}' (tapejit Tensor or None required)")
        self._buffers[name] = tensor
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)
        self._changed()

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{typename(module)} is not a Module subclass")
        self._check_name(name, "module", "_modules")
        self._modules[name] = module
        self._changed()

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    # ---- the tree

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with their paths; each one once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all below it."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules with their names; each one once."""
        seen = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        for _, child in self.named_children():
            yield child

    def _named_members(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, member in module.__dict__[table].items():
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield (f"{path}.{name}" if path else name), member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters with their paths; tied ones once."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, as optimizers want them."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers with their paths."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """The submodule at a path such as `encoder.layers.2`."""
        module: Any = self
        for name in target.split(".") if target else []:
            module = module._attribute(name, target)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module (looking for '{target}')")
        return module

    def _attribute(self, name: str, target: str) -> Any:
        if not hasattr(self, name):
            raise AttributeError(f"{self._get_name()} has no attribute `{name}` (looking for '{target}')")
        return getattr(self, name)

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module at a path; with `strict` there has to be one already."""
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if (strict or hasattr(parent, name)) and not isinstance(parent._attribute(name, target), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path such as `encoder.weight`."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._attribute(name, target)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        found = module._attribute(name, target)
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return found  # type: ignore[no-any-return]

    def apply(self: T, fn: Callable[[Module], Any]) -> T:
        """Call `fn` on every submodule and on this one, children first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ---- modes and conversions

    def train(self: T, mode: bool = True) -> T:
        """Training behaviour for dropout, batch norm and their like."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: T) -> T:
        """Evaluation behaviour."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Freeze or thaw all parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the parameters' gradients, or fill them with zeros."""
        for parameter in self.parameters():
            gradient = parameter.tj_grad
            if gradient is not None and set_to_none:
                parameter.tj_grad = None
                tensor_changed()
            elif gradient is not None:
                if gradient.grad_fn is not None:
                    gradient.detach_()
                gradient.requires_grad_(False).zero_()

    def _apply(self: T, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> T:
        """Convert every parameter, gradient and buffer; the parameter objects stay the same, so optimizers keep them."""
        if recurse:
            for child in self.children():
                child._apply(fn)
        with no_grad():
            for parameter in self._parameters.values():
                if parameter is not None:
                    replace(parameter, fn)
                    if parameter.tj_grad is not None:
                        replace(parameter.tj_grad, fn)
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[name] = fn(buffer)
        self._changed()
        return self

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """Move to a device and/or convert floating-point members to a dtype."""
        where, dtype, _ = parse_to_arguments(args, kwargs)
        if dtype is not None and not as_dtype(dtype).is_floating_point:
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}")
        return self._apply(lambda t: t.to(device=where, dtype=dtype if t.is_floating_point() else None))

    def to_empty(self: T, *, device: Any, recurse: bool = True) -> T:
        """Move to a device without the values."""
        return self._apply(lambda t: empty_like(t, device=device), recurse)

    def cuda(self: T, device: Any = None) -> T:
        """Move to a GPU."""
        return self._apply(lambda t: t.cuda(device))

    def cpu(self: T) -> T:
        """Move to the CPU."""
        return self._apply(lambda t: t.cpu())

    def type(self: T, dst_type: Any) -> T:
        """Convert all members to a dtype."""
        return self._apply(lambda t: t.type(dst_type))

    def _floats(self: T, dtype: Any) -> T:
        return self._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)

    def float(self: T) -> T:
        """Floating-point members as float32."""
        return self._floats(float32)

    def double(self: T) -> T:
        """Floating-point members as float64."""
        return self._floats(float64)

    def half(self: T) -> T:
        """Floating-point members as float16."""
        return self._floats(float16)

    def bfloat16(self: T) -> T:
        """Floating-point members as bfloat16."""
        return self._floats(bfloat16)

    # ---- printing

    def extra_repr(self) -> str:
        """Text between the parentheses of a layer's repr."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        own = self.extra_repr()
        lines = own.split("\n") if own else []
        children = []
        for name, child in self._modules.items():
            text = repr(child).replace("\n", "\n  ")
            children.append(f"({name}): {text}")
        if len(lines) == 1 and not children:
            return f"{self._get_name()}({lines[0]})"
        body = lines + children
        return f"{self._get_name()}(" + ("\n  " + "\n  ".join(body) + "\n" if body else "") + ")"


def replace(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> None:
    """Let a tensor show its converted values, and leave it alone if that changes nothing."""
    found = fn(tensor.detach())
    if found is tensor:  # one without a shape: it has noted what was wanted
        return
    if found.tj_array is not tensor.tj_array:
        tensor.data = found  # type: ignore[attr-defined]
