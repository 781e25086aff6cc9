"""`Module`: a tree of parameters, buffers and submodules with a `forward`.

Names, arguments, `state_dict` keys, repr and errors are PyTorch's. Every assignment to an attribute, train/eval switch
and hook registration bumps `_version_number`, a plain int that a compiled function's guard can read at no cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from ..dtypes import as_dtype, bfloat16, float16, float32, float64
from ..grad_mode import no_grad
from ..tape import RemovableHandle
from ..tensor import Tensor
from .parameter import Buffer, Parameter

T = TypeVar("T", bound="Module")
_TABLES = ("_parameters", "_buffers", "_modules")


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` returns: the keys that found no counterpart."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class Module:
    """Base class of all networks and layers. Call `super().__init__()` before assigning anything."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent: set[str]
    _version_number = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(
            training=True,
            _parameters={},
            _buffers={},
            _modules={},
            _non_persistent=set(),
            _forward_pre_hooks={},
            _forward_hooks={},
            _backward_pre_hooks={},
            _backward_hooks={},
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result. Every subclass defines it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    # ---- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__
        fields["_version_number"] = self._version_number + 1
        if "_parameters" not in fields:
            if isinstance(value, (Parameter, Module, Buffer)):
                kind = {Parameter: "parameters", Buffer: "buffers"}.get(type(value), "module")
                raise AttributeError(f"cannot assign {kind} before Module.__init__() call: call super().__init__() first")
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            self._make_room(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._make_room(name, "_modules")
            self._modules[name] = value
        elif isinstance(value, Buffer):
            self._make_room(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        else:
            table = next((t for t in _TABLES if name in fields[t]), None)
            if table is None:
                object.__setattr__(self, name, value)
                return
            if value is not None and not (table == "_buffers" and isinstance(value, Tensor)):
                what = {"_parameters": "parameter", "_modules": "child module", "_buffers": "buffer"}[table]
                wanted = {"_parameters": "nn.Parameter", "_modules": "nn.Module", "_buffers": "Tensor"}[table]
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as {what} '{name}' (tapejit.{wanted} or None expected)"
                )
            fields[table][name] = value

    def _make_room(self, name: str, table: str) -> None:
        """A name stands for one thing: take it out of wherever else it is."""
        self.__dict__.pop(name, None)
        for other in _TABLES:
            if other != table:
                self.__dict__[other].pop(name, None)
        self._non_persistent.discard(name)

    def __getattr__(self, name: str) -> Any:
        for table in _TABLES:
            members = self.__dict__.get(table)
            if members is not None and name in members:
                return members[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        self.__dict__["_version_number"] = self._version_number + 1
        for table in _TABLES:
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                self._non_persistent.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _check_name(self, name: str, kind: str, table: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got "{name}"')
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
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' (tapejit.nn.Parameter or None required)"
            )
        if param is not None and param._node is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To express "
                f"'{name}' as a function of another Tensor, compute the value in the forward() method."
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is part of the state (if `persistent`) and moves with the module, but is no parameter."""
        if "_buffers" not in self.__dict__:
            raise AttributeError("cannot assign buffer before Module.__init__() call")
        self._check_name(name, "buffer", "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (tapejit Tensor or None required)"
            )
        self._buffers[name] = tensor
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)
        self.__dict__["_version_number"] = self._version_number + 1

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name(name, "module", "_modules")
        self._modules[name] = module
        self.__dict__["_version_number"] = self._version_number + 1

    # ---- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._forward_pre_hooks or self._forward_hooks or self._backward_hooks or self._backward_pre_hooks):
            return self.forward(*args, **kwargs)
        return self._call_with_hooks(args, kwargs)

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook, with_kwargs in tuple(self._forward_pre_hooks.values()):
            found = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if with_kwargs and found is not None:
                args, kwargs = found
            elif found is not None:
                args = found if isinstance(found, tuple) else (found,)
        gate = None
        if self._backward_hooks or self._backward_pre_hooks:
            from .hooks import BackwardGate

            gate = BackwardGate(self, tuple(self._backward_hooks.values()), tuple(self._backward_pre_hooks.values()))
            args = gate.inputs(args)
        result, failed = None, True
        try:
            result = self.forward(*args, **kwargs)
            failed = False
        finally:
            for hook, with_kwargs, always in tuple(self._forward_hooks.values()):
                if failed and not always:
                    continue
                found = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                if found is not None:
                    result = found
        return result if gate is None else gate.outputs(result)

    def _add_hook(self, table: str, entry: Any, prepend: bool) -> RemovableHandle:
        hooks = self.__dict__[table]
        handle = RemovableHandle.add(hooks, entry)
        if prepend:
            others = {k: v for k, v in hooks.items() if k != handle.id}
            hooks.clear()
            hooks.update({handle.id: entry, **others})
        self.__dict__["_version_number"] = self._version_number + 1
        return handle

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; what it returns replaces the arguments."""
        return self._add_hook("_forward_pre_hooks", (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns replaces the output."""
        return self._add_hook("_forward_hooks", (hook, with_kwargs, always_call), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the inputs are there."""
        return self._add_hook("_backward_hooks", hook, prepend)

    register_backward_hook = register_full_backward_hook

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` when the gradients of the outputs are there; what it returns replaces them."""
        return self._add_hook("_backward_pre_hooks", hook, prepend)

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

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        for _, module in self.named_modules():
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
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}` (looking for '{target}')")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module (looking for '{target}')")
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path such as `encoder.weight`."""
        path, _, name = target.rpartition(".")
        found = getattr(self.get_submodule(path), name)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return getattr(module, name)  # type: ignore[no-any-return]

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
            if parameter._grad is None:
                continue
            if set_to_none:
                parameter._grad = None
            else:
                parameter._grad.detach_()
                parameter._grad.zero_()

    def _apply(self: T, convert: Callable[[Tensor], Tensor]) -> T:
        """Convert every parameter, gradient and buffer; the parameter objects stay the same, so optimizers keep them."""
        for module in self.modules():
            with no_grad():
                for parameter in module._parameters.values():
                    if parameter is not None:
                        parameter.data = convert(parameter.detach())
                        if parameter._grad is not None:
                            parameter._grad = convert(parameter._grad)
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = convert(buffer)
            module.__dict__["_version_number"] = module._version_number + 1
        return self

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """Move to a device and/or convert floating-point members to a dtype."""
        from ..ops.convert import conversion

        where, dtype, _ = conversion(args, kwargs)
        if dtype is not None and not as_dtype(dtype).is_floating_point:
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}")
        return self._apply(lambda t: t.to(device=where, dtype=dtype if t.is_floating_point() else None))

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

    def share_memory(self: T) -> T:
        """Accepted and without effect: worker processes are not given tensors in shared memory."""
        return self

    # ---- state

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """All parameters and persistent buffers by path, sharing memory with the module."""
        found: dict[str, Any] = OrderedDict() if destination is None else destination
        for name, parameter in self._parameters.items():
            if parameter is not None:
                found[prefix + name] = parameter if keep_vars else parameter.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._non_persistent:
                found[prefix + name] = buffer if keep_vars else buffer.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            found[prefix + "_extra_state"] = self.get_extra_state()
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        return found

    def get_extra_state(self) -> Any:
        """State that is no tensor, for subclasses to define together with `set_extra_state`."""
        raise RuntimeError("Reached a code path in Module.get_extra_state() that should never be called.")

    def set_extra_state(self, state: Any) -> None:
        """Take back what `get_extra_state` returned."""
        raise RuntimeError("Reached a code path in Module.set_extra_state() that should never be called.")

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Copy (or with `assign` take over) tensors by path. Nothing is written unless everything fits."""
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict).__name__}.")
        own = self.state_dict(keep_vars=True)
        missing = [key for key in own if key not in state_dict]
        unexpected = [key for key in state_dict if key not in own]
        problems = []
        if strict and unexpected:
            problems.append("Unexpected key(s) in state_dict: " + ", ".join(f'"{k}"' for k in unexpected) + ". ")
        if strict and missing:
            problems.append("Missing key(s) in state_dict: " + ", ".join(f'"{k}"' for k in missing) + ". ")
        shared = [key for key in own if key in state_dict and isinstance(own[key], Tensor)]
        problems += [line for key in shared if (line := mismatch(key, own[key], state_dict[key]))]
        if problems:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(problems))
        with no_grad():
            for key in shared:
                self._load(key, own[key], state_dict[key], assign)
        for path, module in self.named_modules():
            key = f"{path}._extra_state" if path else "_extra_state"
            if key in own and key in state_dict:
                module.set_extra_state(state_dict[key])
        return IncompatibleKeys(missing, unexpected)

    def _load(self, key: str, own: Tensor, given: Tensor, assign: bool) -> None:
        if not assign:
            own.copy_(given)
            return
        path, _, name = key.rpartition(".")
        module = self.get_submodule(path)
        if isinstance(own, Parameter):
            module._parameters[name] = given if isinstance(given, Parameter) else Parameter(given, own.requires_grad)
        else:
            module._buffers[name] = given
        module.__dict__["_version_number"] = module._version_number + 1

    # ---- printing and copying

    def extra_repr(self) -> str:
        """What stands between the parentheses of a layer's repr."""
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


def mismatch(key: str, own: Tensor, given: Any) -> str | None:
    """PyTorch's line for a state_dict entry that does not fit; None if it fits."""
    if not isinstance(given, Tensor):
        return f'While copying the parameter named "{key}", expected Tensor or Tensor-like object but received {type(given)}.'
    if own.shape != given.shape:
        return (
            f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, "
            f"the shape in current model is {own.shape}."
        )
    return None
