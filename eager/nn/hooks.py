"""Backward hooks of modules: two gates on the tape, one behind the outputs and one before the inputs of a call."""

from __future__ import annotations

from typing import Any

from ..autograd.function import Function
from ..tensor import Tensor


class BackwardGate:
    """One call of a module with backward hooks: sees the gradients of its outputs, then those of its inputs."""

    def __init__(self, module: Any, hooks: tuple[Any, ...], pre_hooks: tuple[Any, ...]) -> None:
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.grad_output: tuple[Tensor | None, ...] = ()
        self.input_count = 0
        self.gated = False  # an input wants a gradient, so the hooks wait for it

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        self.input_count = len(args)
        if not any(args[i].requires_grad for i in places):
            return args
        self.gated = True
        passed = _as_tuple(Gate.apply(self._inputs_done, places, *[args[i] for i in places]))
        return tuple(passed[places.index(i)] if i in places else a for i, a in enumerate(args))

    def outputs(self, result: Any) -> Any:
        several = isinstance(result, (tuple, list))
        items = tuple(result) if several else (result,)
        places = [i for i, r in enumerate(items) if isinstance(r, Tensor) and r.requires_grad]
        if not places:
            return result
        passed = _as_tuple(Gate.apply(self._outputs_done, list(range(len(places))), *[items[i] for i in places]))
        found = tuple(passed[places.index(i)] if i in places else r for i, r in enumerate(items))
        return type(result)(found) if type(result) in (tuple, list) else found if several else found[0]

    def _outputs_done(self, gradients: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
        for hook in self.pre_hooks:
            replaced = hook(self.module, gradients)
            if replaced is not None:
                gradients = _as_tuple(replaced)
        self.grad_output = gradients
        if not self.gated:
            self._run_hooks((None,) * self.input_count)
        return gradients

    def _inputs_done(self, gradients: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
        full: list[Any] = [None] * self.input_count
        for i, g in zip(places, gradients, strict=True):
            full[i] = g
        found = self._run_hooks(tuple(full))
        return tuple(found[i] for i in places)

    def _run_hooks(self, grad_input: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self.hooks:
            replaced = hook(self.module, grad_input, self.grad_output)
            if replaced is not None:
                grad_input = _as_tuple(replaced)
        self.grad_output = ()
        return grad_input


class Gate(Function):
    """Passes tensors through and shows their gradients to `done` on the way back."""

    @staticmethod
    def forward(ctx: Any, done: Any, places: list[int], *tensors: Tensor) -> Any:
        ctx.done, ctx.places = done, places
        ctx.set_materialize_grads(False)
        passed = tuple(t.view_as(t) for t in tensors)
        return passed if len(passed) > 1 else passed[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *ctx.done(gradients, ctx.places))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
