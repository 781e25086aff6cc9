"""Hooks of modules: before and after a forward, before and after its backward; of one module or of all of them.

A backward hook needs to know when gradients enter and leave one call of a module. For this its inputs and outputs pass
through two gates on the tape, `Gate`, that hand the gradients they see to a `BackwardGate`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ..autograd.function import Function
from ..core.tape.grad_mode import is_grad_enabled
from ..core.tape.node import RemovableHandle
from ..core.tensor import Tensor

GLOBAL_HOOKS: dict[int, tuple[str, Any]] = {}  # hooks of all modules: (the table they would stand in, the entry)


class ModuleHandle(RemovableHandle):
    """Removes a module's hook, and tells the module that it has changed."""

    module: Any

    def remove(self) -> None:
        super().remove()
        self.module._changed()


class HooksMixin:
    """Methods of a module that register and run hooks. An entry of a table is a hook with its options."""

    _forward_pre_hooks: dict[int, tuple[Any, bool]]
    _forward_hooks: dict[int, tuple[Any, bool, bool]]
    _backward_pre_hooks: dict[int, Any]
    _backward_hooks: dict[int, Any]

    forward: Callable[..., Any]
    _changed: Callable[[], None]

    def _add_hook(self, table: str, entry: Any, prepend: bool = False) -> RemovableHandle:
        hooks = self.__dict__[table]
        handle = ModuleHandle.add(hooks, entry)
        handle.module = self  # type: ignore[attr-defined]
        if prepend:
            others = {k: v for k, v in hooks.items() if k != handle.id}
            hooks.clear()
            hooks.update({handle.id: entry, **others})
        self._changed()
        return handle

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before each forward; what it returns replaces the arguments."""
        return self._add_hook("_forward_pre_hooks", (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after each forward; what it returns replaces the output."""
        return self._add_hook("_forward_hooks", (hook, with_kwargs, always_call), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the inputs are there."""
        return self._add_hook("_backward_hooks", hook, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """The old name of `register_full_backward_hook`, and here the same."""
        return self.register_full_backward_hook(hook)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` when the gradients of the outputs are there; what it returns replaces them."""
        return self._add_hook("_backward_pre_hooks", hook, prepend)

    def _hooks_of(self, table: str) -> tuple[Any, ...]:
        own = self.__dict__[table].values()
        return (*(entry for kind, entry in GLOBAL_HOOKS.values() if kind == table), *own) if GLOBAL_HOOKS else tuple(own)

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        after = list(self._hooks_of("_forward_hooks"))
        result = None
        try:
            args, kwargs = self._before_forward(args, kwargs)
            gate = None
            backward, backward_pre = self._hooks_of("_backward_hooks"), self._hooks_of("_backward_pre_hooks")
            if backward or backward_pre:
                gate = BackwardGate(self, backward, backward_pre)
                args = gate.inputs(args)
            result = self.forward(*args, **kwargs)
            while after:
                hook, with_kwargs, _ = after.pop(0)
                found = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                result = result if found is None else found
            return result if gate is None else gate.outputs(result)
        except Exception:
            self._after_failure([entry for entry in after if entry[2]], args, kwargs, result)
            raise

    def _before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for hook, with_kwargs in self._hooks_of("_forward_pre_hooks"):
            found = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if found is None:
                continue
            if not with_kwargs:
                args = found if isinstance(found, tuple) else (found,)
            elif isinstance(found, tuple) and len(found) == 2:
                args, kwargs = found
            else:
                raise RuntimeError(f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {found}.")
        return args, kwargs

    def _after_failure(self, entries: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Hooks that want to be called whatever happens; the error under way matters more than theirs."""
        for hook, with_kwargs, _ in entries:
            try:
                found = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                result = result if found is None else found
            except Exception as error:
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as another error "
                    f"was raised in forward: {error}",
                    stacklevel=3,
                )


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, args)` before each forward of every module."""
    return RemovableHandle.add(GLOBAL_HOOKS, ("_forward_pre_hooks", (hook, False)))


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call `hook(module, args, output)` after each forward of every module."""
    return RemovableHandle.add(GLOBAL_HOOKS, ("_forward_hooks", (hook, with_kwargs, always_call)))


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` after each backward of every module."""
    return RemovableHandle.add(GLOBAL_HOOKS, ("_backward_hooks", hook))


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_output)` before each backward of every module."""
    return RemovableHandle.add(GLOBAL_HOOKS, ("_backward_pre_hooks", hook))


# ---- the backward pass


class BackwardGate:
    """One call of a module with backward hooks: sees the gradients of its outputs, then those of its inputs."""

    def __init__(self, module: Any, hooks: tuple[Any, ...], pre_hooks: tuple[Any, ...]) -> None:
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.grad_output: tuple[Tensor | None, ...] | None = None
        self.input_count = self.output_count = 0
        self.gated = False  # an input wants a gradient, so the hooks wait for it

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.input_count = len(args)
        passed = _through_gate(self._inputs_done, args, zeros=True)
        self.gated = passed is not args
        return passed

    def outputs(self, result: Any) -> Any:
        if not isinstance(result, (Tensor, tuple)):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(result)}",
                stacklevel=3,
            )
        items = result if isinstance(result, tuple) else (result,)
        self.output_count = len(items)
        passed = _through_gate(self._outputs_done, items, zeros=False)
        return passed if isinstance(result, tuple) else passed[0]

    def _outputs_done(self, gradients: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
        found = _spread(gradients, places, self.output_count)
        for hook in self.pre_hooks:
            found = _replaced(hook(self.module, found), found, "Backward pre hook", "grad_output")
        self.grad_output = found
        if not self.gated:
            self._without_inputs()
        return tuple(found[i] for i in places)

    def _without_inputs(self) -> None:
        warnings.warn(
            "Full backward hook is firing when gradients are computed with respect to module outputs since no inputs require "
            "gradients.",
            stacklevel=5,
        )
        for hook in self.hooks:
            found = hook(self.module, (None,) * self.input_count, self.grad_output)
            if found is not None and not (isinstance(found, tuple) and all(g is None for g in found)):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always return None or None for all "
                    "gradients."
                )
        self.grad_output = None

    def _inputs_done(self, gradients: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
        if self.grad_output is None:  # the gradient did not come through the outputs, as in a double backward
            return gradients
        found = _spread(gradients, places, self.input_count)
        for hook in self.hooks:
            found = _replaced(hook(self.module, found, self.grad_output), found, "Backward hook", "grad_input")
        self.grad_output = None
        return tuple(found[i] for i in places)


class Gate(Function):
    """Passes tensors through and shows their gradients to `done` on the way back."""

    @staticmethod
    def forward(ctx: Any, done: Any, places: list[int], zeros: bool, *tensors: Tensor) -> Any:
        ctx.done, ctx.places = done, places
        ctx.set_materialize_grads(zeros)
        passed = tuple(t.view_as(t) for t in tensors)
        ctx.mark_non_differentiable(*[view for view, t in zip(passed, tensors, strict=True) if not t.requires_grad])
        return passed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, None, *ctx.done(gradients, ctx.places))


def _through_gate(done: Any, items: Any, zeros: bool) -> Any:
    """The tuple with its tensors led through a gate; itself if none of them wants a gradient. A gradient that does not
    come is None, or with `zeros` that: PyTorch's hooks see the one for outputs and the other for inputs."""
    places = [i for i, item in enumerate(items) if isinstance(item, Tensor)]
    if not is_grad_enabled() or not any(items[i].requires_grad for i in places):
        return items
    found = list(items)
    for i, t in zip(places, Gate.apply(done, places, zeros, *[items[i] for i in places]), strict=True):
        found[i] = t
    return tuple(found) if type(items) is tuple else type(items)(*found)  # a named tuple stays one


def _spread(gradients: tuple[Any, ...], places: list[int], count: int) -> tuple[Any, ...]:
    found: list[Any] = [None] * count
    for i, g in zip(places, gradients, strict=True):
        found[i] = g
    return tuple(found)


def _replaced(given: Any, gradients: tuple[Any, ...], who: str, what: str) -> tuple[Any, ...]:
    if given is None:
        return gradients
    given = (given,) if isinstance(given, Tensor) else tuple(given)
    if len(given) != len(gradients):
        raise RuntimeError(f"{who} returned an invalid number of {what}, got {len(given)}, but expected {len(gradients)}")
    return given
