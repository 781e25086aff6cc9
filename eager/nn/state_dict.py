"""A module's state: `state_dict`, `load_state_dict`, and what subclasses and hooks may do about them.

Keys, order, errors and the methods to override are PyTorch's. One thing is stricter: nothing is written into the module
unless everything fits.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ..core.tape.grad_mode import no_grad
from ..core.tape.node import RemovableHandle
from ..core.tensor import Tensor
from .parameter import Parameter

EXTRA = "_extra_state"
_WRITES = "writes"  # in a module's metadata while loading: where to put writes until it is known that everything fits


class IncompatibleKeys(NamedTuple):
    """The result of `load_state_dict`: the keys that found no counterpart."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class StateDictMixin:
    """Methods of a module that save and load its state."""

    _version = 1  # of the layout of this class's state, for `_load_from_state_dict` to look at
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]
    _state_dict_pre_hooks: dict[int, Any]
    _state_dict_hooks: dict[int, tuple[Any, bool]]
    _load_state_dict_pre_hooks: dict[int, Any]
    _load_state_dict_post_hooks: dict[int, Any]
    _add_hook: Callable[..., RemovableHandle]

    # ---- saving

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """All parameters and persistent buffers by path, sharing memory with the module."""
        if args:
            warnings.warn("Positional args are being deprecated, use kwargs instead.", FutureWarning, stacklevel=2)
            given: list[Any] = [*args, *(destination, prefix, keep_vars)[len(args) :]]
            destination, prefix, keep_vars = given
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for hook in tuple(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook, may_replace in tuple(self._state_dict_hooks.values()):
            found = hook(self, destination, prefix, metadata)
            if found is not None and not may_replace:
                raise RuntimeError("state_dict post-hook must return None")
            destination = destination if found is None else found
        return destination

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put this module's own state, without that of its submodules, into `destination`."""
        for name, tensor in self._own_state().items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if type(self).get_extra_state is not StateDictMixin.get_extra_state:
            destination[prefix + EXTRA] = self.get_extra_state()

    def _own_state(self) -> dict[str, Tensor]:
        persistent = {k: v for k, v in self._buffers.items() if k not in self._non_persistent_buffers_set}
        return {k: v for k, v in (*self._parameters.items(), *persistent.items()) if v is not None}

    def get_extra_state(self) -> Any:
        """State that is no tensor, for subclasses to define together with `set_extra_state`."""
        raise RuntimeError("Reached a code path in Module.get_extra_state() that should never be called.")

    def set_extra_state(self, state: Any) -> None:
        """Take back what `get_extra_state` returned."""
        raise RuntimeError("Reached a code path in Module.set_extra_state() that should never be called.")

    # ---- loading

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Copy (or with `assign` take over) tensors by path. Nothing is written unless everything fits."""
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        keys, errors = IncompatibleKeys([], []), list[str]()
        metadata = getattr(state_dict, "_metadata", None) or {}
        writes: list[Callable[[], None]] = []
        loaded: list[Any] = []

        def load(module: Any, state: dict[str, Any], prefix: str) -> None:
            about = {**metadata.get(prefix[:-1], {}), "assign_to_params_buffers": assign, _WRITES: writes}
            module._load_from_state_dict(state, prefix, about, True, *keys, errors)
            for name, child in module._modules.items():
                if child is not None:
                    below = f"{prefix}{name}."
                    load(child, {k: v for k, v in state.items() if k.startswith(below)}, below)
            loaded.append(module)

        load(self, OrderedDict(state_dict), "")
        hooked = [m for m in loaded if m._load_state_dict_post_hooks]
        self._complain(keys, errors, strict and not hooked)  # such hooks may take keys off the lists
        for write in writes:
            write()
        for module in hooked:
            for hook in tuple(module._load_state_dict_post_hooks.values()):
                if hook(module, keys) is not None:
                    raise AssertionError(
                        "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new values, "
                        "if incompatible_keys need to be modified, it should be done inplace."
                    )
        self._complain(keys, errors, strict)
        return keys

    def _complain(self, keys: IncompatibleKeys, errors: list[str], strict: bool) -> None:
        found = list(errors)
        for which, names in (("Unexpected", keys.unexpected_keys), ("Missing", keys.missing_keys)):
            if strict and names:
                found.insert(0, f"{which} key(s) in state_dict: " + ", ".join(f'"{k}"' for k in names) + ". ")
        if found:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(found))

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this module's own state, without that of its submodules. Subclasses may change `state_dict` first."""
        for hook in tuple(self._load_state_dict_pre_hooks.values()):
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        own, extra = self._own_state(), prefix + EXTRA
        writes: list[Callable[[], None]] = []
        for name, tensor in own.items():
            key = prefix + name
            if key in state_dict:
                given, problem = match_entry(key, tensor, state_dict[key])
                if problem is not None:
                    error_msgs.append(problem)
                else:
                    assign = local_metadata.get("assign_to_params_buffers", False)
                    writes.append(partial(self._take, name, tensor, given, assign))
            elif strict:
                missing_keys.append(key)
        if type(self).set_extra_state is not StateDictMixin.set_extra_state:
            if extra in state_dict:
                writes.append(partial(self.set_extra_state, state_dict[extra]))
            elif strict:
                missing_keys.append(extra)
        elif strict and extra in state_dict:
            unexpected_keys.append(extra)
        if strict:
            unexpected_keys += [
                k for k in state_dict if k.startswith(prefix) and k != extra and self._is_unknown(k[len(prefix) :], own)
            ]
        if _WRITES in local_metadata:
            local_metadata[_WRITES] += writes
        else:
            for write in writes:
                write()

    def _is_unknown(self, path: str, own: dict[str, Tensor]) -> bool:
        name, dot, _ = path.partition(".")
        return name not in (self._modules if dot else own)

    def _take(self, name: str, tensor: Tensor, given: Tensor, assign: bool) -> None:
        with no_grad():
            if not assign:
                tensor.copy_(given)
                return
            if isinstance(tensor, Parameter):
                given = given if isinstance(given, Parameter) else Parameter(given)
                given.requires_grad_(tensor.requires_grad)
            setattr(self, name, given)

    # ---- hooks

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before the state is collected."""
        return self._add_hook("_state_dict_pre_hooks", hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after the state is collected, to change it in place."""
        return self._add_hook("_state_dict_hooks", (hook, False))

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """As `register_state_dict_post_hook`, but what the hook returns replaces the state."""
        return self._add_hook("_state_dict_hooks", (hook, True))

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)` first."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(self, hook: Callable[..., Any], with_module: bool = False) -> RemovableHandle:
        """The same, with the module as first argument only if asked for."""
        return self._add_hook("_load_state_dict_pre_hooks", WithModule(hook, self) if with_module else hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading; it may change the lists of keys in place."""
        return self._add_hook("_load_state_dict_post_hooks", hook)


class WithModule:
    """A hook with its module as first argument; a class, so that modules with hooks can be copied and pickled."""

    def __init__(self, hook: Callable[..., Any], module: Any) -> None:
        self.hook, self.module = hook, module

    def __call__(self, *args: Any) -> Any:
        return self.hook(self.module, *args)


def match_entry(key: str, own: Tensor, given: Any) -> tuple[Any, str | None]:
    """A state_dict's entry as it is to be written, and PyTorch's line of complaint if it does not fit."""
    if not isinstance(given, Tensor):
        return given, (
            f'While copying the parameter named "{key}", expected Tensor or Tensor-like object from checkpoint but received '
            f"{type(given)}"
        )
    if own.ndim == 0 and given.shape == (1,):  # what 0-dim tensors were saved as, long ago
        given = given[0]
    if own.shape != given.shape:
        return given, (
            f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, "
            f"the shape in current model is {own.shape}."
        )
    return given, None
