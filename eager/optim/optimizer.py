"""The base of all optimizers: parameter groups, state, hooks, and saving.

An update is one op per parameter, in place, applied through the same interception point as everything else, so that a
compiled step contains the optimizer too. Hyperparameters are read from the groups at every step and passed as numbers.
What a step needs to know as a number (`step` above all) is kept as one, so that no step reads a tensor; in `state_dict()`
it is the 0-dim tensor that PyTorch keeps.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ..arrays import dtypes
from ..core.tape.grad_mode import enable_grad
from ..core.tape.node import RemovableHandle, local
from ..core.tensor import Tensor, tensor_changed
from ..ops.create import tensor

Hooks = dict[int, Callable[..., Any]]

REQUIRED = object()  # a default that has to be given
PRE_HOOKS: Hooks = {}  # of the steps of all optimizers
POST_HOOKS: Hooks = {}
_HOOKS = (
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks",
)  # fmt: skip


def with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a `step` method to run hooks before and after it, and to let schedulers know that it was called."""

    @functools.wraps(step)
    def call(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._stepping:  # a step that calls its parent's is one step
            return step(self, *args, **kwargs)
        self._opt_called = self._stepping = True
        try:
            if not (PRE_HOOKS or POST_HOOKS or self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks):
                tracer = local.state.tracer
                if tracer is not None and not args and not kwargs:
                    return tracer.optimizer_step(self, step)
                return step(self, *args, **kwargs)
            given = (self, *args)
            for hook in (*PRE_HOOKS.values(), *self._optimizer_step_pre_hooks.values()):
                found = hook(self, given, kwargs)
                if found is None:
                    continue
                if not (isinstance(found, tuple) and len(found) == 2):
                    raise RuntimeError(f"{step} must return None or a tuple of (new_args, new_kwargs), but got {found}.")
                given, kwargs = found
            value = step(*given, **kwargs)
            for hook in (*self._optimizer_step_post_hooks.values(), *POST_HOOKS.values()):
                hook(self, given, kwargs)
            return value
        finally:
            self._stepping = False

    call.hooked = True  # type: ignore[attr-defined]
    return call


class OptimizerState(defaultdict[Any, dict[str, Any]]):
    """The state of an optimizer by parameter. While a compiled step defers its counts, its class is another (below)."""

    __slots__ = ("owner",)
    owner: Any  # who defers

    def __repr__(self) -> str:
        return f"defaultdict({self.default_factory!r}, {dict.__repr__(self)})"

    def __reduce__(self) -> Any:
        return defaultdict, (self.default_factory,), None, None, iter(self.items())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


class DeferredOptimizerState(OptimizerState):
    """A state whose counts are behind: whoever reads it gets it as it should be by now."""

    __slots__ = ()


def _materialising(name: str) -> Any:
    def method(self: OptimizerState, *args: Any, **kwargs: Any) -> Any:
        self.owner.look()
        return getattr(self, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__reversed__", "__eq__", "__ne__", "__repr__", "__or__",
    "__ror__", "__ior__", "__copy__", "__reduce__", "__missing__", "get", "items", "values", "keys", "pop", "popitem",
    "setdefault", "update", "clear", "copy",
):  # fmt: skip
    setattr(DeferredOptimizerState, _name, _materialising(_name))


class Optimizer:
    """Subclasses give `defaults` and either `update(params, group)`, for the parameters that have a gradient, or `step`."""

    defaults: dict[str, Any]
    param_groups: list[dict[str, Any]]
    state: dict[Any, dict[str, Any]]
    numbers: dict[str, type] = {"step": int}  # state that is a number here and a 0-dim tensor in a state_dict
    # Declarations for the tracer, for an `update` that applies one op to each parameter, its gradient and its state: the op's
    # scalars are these settings of the group, in this order, and perhaps a counter; all else depends on the switches' truth.
    hyper: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    counter: str | None = None  # state that each step adds 1 to

    _opt_called = False  # True once step() was called after a scheduler was made, which checks it
    _scheduled = False
    _stepping = False

    _optimizer_step_pre_hooks: Hooks
    _optimizer_step_post_hooks: Hooks
    _optimizer_state_dict_pre_hooks: Hooks
    _optimizer_state_dict_post_hooks: Hooks
    _optimizer_load_state_dict_pre_hooks: Hooks
    _optimizer_load_state_dict_post_hooks: Hooks

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got a Tensor; "
                "put it into a list"
            )
        # a dict of its own: attributes of one that shares its keys with others are looked for in vain before they are found
        self.__dict__ = {**self.__dict__, "defaults": defaults, **{name: {} for name in _HOOKS}}
        self.state = OptimizerState(dict)
        self.param_groups = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = with_hooks(cls.step)  # type: ignore[method-assign]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; the defaults fill what is not given."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        param_group["params"], names = split_names(param_group["params"])
        if names:
            param_group["param_names"] = names
        for p in param_group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not self.defaults.get("differentiable") and not (p.is_leaf or p.retains_grad):
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, default in self.defaults.items():
            if default is REQUIRED and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        self._check_new(param_group)
        self.param_groups.append(param_group)

    def _check_new(self, group: dict[str, Any]) -> None:
        """Each parameter in one group, and all groups with names or none."""
        found = {id(p) for p in group["params"]}
        if len(found) != len(group["params"]):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause an error; "
                "see github.com/pytorch/pytorch/issues/40967 for more information",
                stacklevel=3,
            )
        for other in self.param_groups:
            if ("param_names" in group) != ("param_names" in other):
                kind = "with names" if "param_names" in group else "without names"
                raise ValueError(
                    f"all optimizer param groups should be with/without names. cannot add param group {kind} to the optimizer"
                )
            if any(id(p) in found for p in other["params"]):
                raise ValueError("some parameters appear in more than one parameter group")

    # ---- a step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros."""
        dropped = False
        for group in self.param_groups:
            for p in group["params"]:
                gradient = p.tj_grad
                if gradient is None:
                    continue
                if set_to_none:
                    p.tj_grad = None
                    dropped = True
                    continue
                if gradient.tj_node is not None:
                    gradient.detach_()
                else:
                    gradient.requires_grad_(False)
                gradient.zero_()
        if dropped:
            tensor_changed()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. `closure` evaluates the loss anew and returns it."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        state = local.state
        was, state.grad = state.grad, bool(self.defaults.get("differentiable"))
        try:
            for group in self.param_groups:
                self.update([p for p in group["params"] if p.tj_grad is not None], group)
        finally:
            state.grad = was
        return loss

    def update(self, params: list[Any], group: dict[str, Any]) -> None:
        """Update parameters of a group, all of which have a gradient, in place."""
        raise NotImplementedError(f"{type(self).__name__} defines neither step() nor update()")

    def _now_scheduled(self) -> None:
        """A scheduler was made: from the first one on it matters whether step() was called."""
        if not self._scheduled:
            self._scheduled, self._opt_called = True, False

    # ---- hooks

    def _add_hook(self, table: str, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        hooks = self.__dict__[table]
        handle = RemovableHandle.add(hooks, hook)
        if prepend:
            others = {k: v for k, v in hooks.items() if k != handle.id}
            hooks.clear()
            hooks.update({handle.id: hook, **others})
        return handle

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each step; it may return new (args, kwargs)."""
        return self._add_hook("_optimizer_step_pre_hooks", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return self._add_hook("_optimizer_step_post_hooks", hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` before each `state_dict()`."""
        return self._add_hook("_optimizer_state_dict_pre_hooks", hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` after each `state_dict()`; what it returns replaces the result."""
        return self._add_hook("_optimizer_state_dict_post_hooks", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` before a state is loaded; what it returns is loaded instead."""
        return self._add_hook("_optimizer_load_state_dict_pre_hooks", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` after a state has been loaded."""
        return self._add_hook("_optimizer_load_state_dict_post_hooks", hook, prepend)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Groups and state, with parameters replaced by their numbers, in PyTorch's layout."""
        for hook in tuple(self._optimizer_state_dict_pre_hooks.values()):
            hook(self)
        number: dict[int, int] = {}
        groups = []
        start = 0
        for group in self.param_groups:
            for i, p in enumerate(group["params"], start):
                number.setdefault(id(p), i)
            start += len(group["params"])
            saved = {key: value for key, value in group.items() if key != "params"}
            groups.append({**saved, "params": [number[id(p)] for p in group["params"]]})
        state = {number.get(id(p), p): self._saved(values) for p, values in self.state.items() if values}
        found = {"state": state, "param_groups": groups}
        for hook in tuple(self._optimizer_state_dict_post_hooks.values()):
            replaced = hook(self, found)
            found = found if replaced is None else replaced
        return found

    def _saved(self, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        wide = dtypes.float64 if dtypes.get_default_dtype() is dtypes.float64 else dtypes.float32
        return {k: tensor(float(v), dtype=wide, device="cpu") if k in self.numbers else v for k, v in values.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and state; tensors get each parameter's device and dtype."""
        state_dict = dict(state_dict)
        for hook in tuple(self._optimizer_load_state_dict_pre_hooks.values()):
            replaced = hook(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        groups = copy.deepcopy(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        pairs = list(zip(groups, self.param_groups, strict=True))
        if any(len(given["params"]) != len(own["params"]) for given, own in pairs):
            raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
        parameters = {i: p for given, own in pairs for i, p in zip(given["params"], own["params"], strict=True)}
        state = OptimizerState(dict)
        for key, values in state_dict["state"].items():
            if key in parameters:
                state[parameters[key]] = self._loaded(values, parameters[key])
            else:
                state[key] = values
        for given, own in pairs:
            given["params"] = own["params"]
            if "param_names" in own:
                given.setdefault("param_names", own["param_names"])
        self.__setstate__({"state": state, "param_groups": groups})
        for hook in tuple(self._optimizer_load_state_dict_post_hooks.values()):
            hook(self)

    def _loaded(self, value: Any, parameter: Tensor, key: Any = None) -> Any:
        """A loaded value: numbers as numbers, tensors of the parameter's kind, also inside containers."""
        if key in self.numbers:
            return self.numbers[key](as_number(value))
        if isinstance(value, Tensor):
            dtype = parameter.dtype if parameter.is_floating_point() else value.dtype
            return value.detach().to(device=parameter.device, dtype=dtype, copy=True)
        if isinstance(value, dict):
            return {k: self._loaded(v, parameter, k) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._loaded(v, parameter) for v in value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also fill settings that what was saved does not know of."""
        self.__dict__ = {**{name: {} for name in _HOOKS}, **self.__dict__, **state}
        if type(self.state) is defaultdict:  # that of a copy, or of a file
            self.state = OptimizerState(self.state.default_factory, self.state)
        tensor_changed()
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)

    def __repr__(self) -> str:
        text = f"{type(self).__name__} ("
        for i, group in enumerate(self.param_groups):
            settings = [f"    {key}: {group[key]}\n" for key in sorted(group) if key != "params"]
            text += f"\nParameter Group {i}\n" + "".join(settings)
        return text + ")"


def replayable_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a `step` method to return at once where the tracer replays the step."""

    @functools.wraps(step)
    def call(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            return step(self, closure)
        tracer = local.state.tracer
        if tracer is not None and tracer.replay_optimizer_step(self):
            self._opt_called = True
            return None
        return step(self)

    return call


Optimizer.step = replayable_step(with_hooks(Optimizer.step))  # type: ignore[method-assign]


def split_names(params: Any) -> tuple[list[Any], list[str]]:
    """Split a group into parameters, and their names if `named_parameters()` was given."""
    if isinstance(params, Tensor):
        return [params], []
    if isinstance(params, set):
        raise TypeError(
            "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets will "
            "change between runs. Please use a list instead."
        )
    given = list(params)
    names = [p[0] for p in given if isinstance(p, tuple)]
    if names and len(names) != len(given):
        raise ValueError("all optimizer params should be with/without names. Some param names are missing")
    return [p[1] for p in given] if names else given, names


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` before each step of every optimizer."""
    return RemovableHandle.add(PRE_HOOKS, hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` after each step of every optimizer."""
    return RemovableHandle.add(POST_HOOKS, hook)


# ---- state


def init_state(p: Tensor, value: float = 0) -> Tensor:
    """Make a state tensor for a parameter. It is made now and not recorded: the first compiled step then finds its state there,
    as all later ones do, so that one recording serves all."""
    tracer = local.state.tracer
    return p.new_full(p.shape, value) if tracer is None else tracer.run_untraced(p.new_full, p.shape, value)  # type: ignore[no-any-return]


# ---- hyperparameters


def as_number(value: Any) -> Any:
    """Convert a hyperparameter, perhaps a 0-dim tensor or a NumPy number, to a plain number."""
    return value if type(value) is float or type(value) is int else value.item() if hasattr(value, "item") else value


_LABELS = {"lr": "learning rate", "eps": "epsilon value"}


def check_non_negative(**values: Any) -> None:
    """Refuse negative hyperparameters, with PyTorch's sentence."""
    for name, value in values.items():
        if name == "lr" and isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not value >= 0.0:
            raise ValueError(f"Invalid {_LABELS.get(name, f'{name} value')}: {value}")


def check_betas(betas: Iterable[Any]) -> tuple[float, ...]:
    """Convert decay rates to numbers; refuse those outside [0, 1)."""
    found = tuple(as_number(beta) for beta in betas)
    for i, beta in enumerate(found):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
    return found


def check_fused(fused: bool | None, foreach: bool | None, differentiable: bool) -> None:
    """Refuse PyTorch's contradictory choices of an implementation; here there is only one."""
    if fused and differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    if fused and foreach:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
