"""The base of all optimizers: parameter groups, state, and saving both.

An update is one op per parameter, in place, applied through the same interception point as everything else, so that a
compiled step contains the optimizer too. Hyperparameters are read from the groups at every step and passed as numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ..grad_mode import enable_grad, no_grad
from ..tape import RemovableHandle
from ..tensor import Tensor

REQUIRED = object()  # a default that has to be given


class Optimizer:
    """Subclasses set `defaults`, and `update(parameter, gradient, state, group)` for one parameter."""

    param_groups: list[dict[str, Any]]
    state: dict[Tensor, dict[str, Any]]

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got a single Tensor; "
                "put it into a list"
            )
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        self._pre_hooks: dict[int, Any] = {}
        self._post_hooks: dict[int, Any] = {}
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; the defaults fill what is not given."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group).__name__}")
        if isinstance(param_group.get("params"), set):
            raise TypeError("optimizer parameters need to be organized in ordered collections, but a set has no order. Use a list.")
        given = param_group["params"]
        group = {**param_group, "params": [given] if isinstance(given, Tensor) else named_apart(list(given))}
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, default in self.defaults.items():
            if default is REQUIRED and name not in group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            group.setdefault(name, default)
        seen = {id(p) for g in self.param_groups for p in g["params"]}
        if len({id(p) for p in group["params"]}) != len(group["params"]):
            raise ValueError("some parameters appear more than once in the parameter group")
        if any(id(p) in seen for p in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if p._grad is None:
                    continue
                if set_to_none:
                    p._grad = None
                else:
                    p._grad.detach_()
                    p._grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. `closure` evaluates the loss anew and returns it."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for hook in tuple(self._pre_hooks.values()):
            hook(self, (), {})
        with no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p._grad is not None:
                        self.update(p, p._grad, self.state[p], group)
        for hook in tuple(self._post_hooks.values()):
            hook(self, (), {})
        return loss

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter in place."""
        raise NotImplementedError(f"{type(self).__name__} does not define update()")

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each step."""
        return RemovableHandle.add(self._pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return RemovableHandle.add(self._post_hooks, hook)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Groups and state, with parameters replaced by their numbers, in PyTorch's layout."""
        number = {id(p): i for i, p in enumerate(self._all_parameters())}
        groups = [
            {**{k: v for k, v in g.items() if k != "params"}, "params": [number[id(p)] for p in g["params"]]}
            for g in self.param_groups
        ]
        state = {number[id(p)]: dict(values) for p, values in self.state.items() if values}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and state; tensors are copied to each parameter's device and dtype."""
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if any(len(a["params"]) != len(b["params"]) for a, b in zip(groups, self.param_groups, strict=True)):
            raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
        number = {i: p for g, own in zip(groups, self.param_groups, strict=True) for i, p in zip(g["params"], own["params"], strict=True)}
        state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        for i, values in state_dict["state"].items():
            if i in number:
                state[number[i]] = {k: taken_over(k, v, number[i]) for k, v in values.items()}
        self.state = state
        for given, own in zip(groups, self.param_groups, strict=True):
            own.update({k: v for k, v in given.items() if k != "params"})

    def _all_parameters(self) -> list[Tensor]:
        return [p for g in self.param_groups for p in g["params"]]

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def named_apart(params: list[Any]) -> list[Any]:
    """`named_parameters()` may be given in place of `parameters()`."""
    return [p[1] if isinstance(p, tuple) else p for p in params]


def taken_over(key: str, value: Any, parameter: Tensor) -> Any:
    """A loaded state value: a step count as a number, a tensor as a copy of the parameter's kind."""
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        return int(value.item())
    dtype = parameter.dtype if value.is_floating_point() else value.dtype
    return value.detach().to(device=parameter.device, dtype=dtype).clone()


def non_negative(**values: float) -> None:
    """Refuse negative hyperparameters, with PyTorch's sentence."""
    for name, value in values.items():
        if not value >= 0.0:
            label = {"lr": "learning rate", "eps": "epsilon value", "weight_decay": "weight_decay value"}.get(name, f"{name} value")
            raise ValueError(f"Invalid {label}: {value}")


def unit_interval(betas: Iterable[float]) -> None:
    """Refuse decay rates outside [0, 1)."""
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
