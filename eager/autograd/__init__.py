"""`tapejit.autograd`: backward passes, gradients of chosen tensors, custom functions and tools to check them.

In: tensors with a tape. Out: their gradients; for a custom Function, a node on the tape.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..core.dispatch import apply
from ..core.tape import engine
from ..core.tape.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from ..core.tape.node import local
from ..core.tensor import Tensor
from ..ops.create import FULL
from ..ops.shape.reshape import stack
from ..viz.tape_graph import draw
from . import functional, hooks
from .anomaly import detect_anomaly, is_anomaly_check_nan_enabled, is_anomaly_enabled, set_detect_anomaly
from .function import Function
from .gradcheck import GradcheckError, gradcheck, gradgradcheck
from .variable import Variable

__all__ = [
    "Function",
    "GradcheckError",
    "Variable",
    "backward",
    "detect_anomaly",
    "draw",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "hooks",
    "inference_mode",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]


def _sequence(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, Tensor) or not hasattr(value, "__iter__") else tuple(value)


def _seeds(roots: tuple[Tensor, ...], given: Any) -> list[Tensor]:
    """The gradient to begin with for each root: the one given, or 1 for a scalar."""
    gradients = _sequence(given) if given is not None else (None,) * len(roots)
    if len(gradients) != len(roots):
        raise RuntimeError(f"got {len(roots)} tensors and {len(gradients)} gradients")
    seeds = []
    for i, (root, g) in enumerate(zip(roots, gradients, strict=True)):
        if not root.requires_grad:
            raise RuntimeError(f"element {i} of tensors does not require grad and does not have a grad_fn")
        if g is None:
            if root.numel() != 1:
                raise RuntimeError(
                    f"grad can be implicitly created only for scalar outputs, but this one has shape {list(root.shape)}; "
                    "reduce it first, for example with .sum(), or pass gradient="
                )
            g = apply(FULL, (1,), {"shape": root.tj_array.shape, "dtype": root.dtype, "device": root.device})
        elif not isinstance(g, Tensor):
            raise TypeError(f"gradients can be either Tensors or None, but got {type(g).__name__}")
        if g.shape != root.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {list(g.shape)} and output[{i}] has a shape of "
                f"{list(root.shape)}."
            )
        seeds.append(g if g.dtype is root.dtype else g.to(root.dtype))
    return seeds


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of `tensors` to `.grad` of the leaves they depend on (or only of `inputs`)."""
    roots = _sequence(tensors)
    keep = create_graph if retain_graph is None else retain_graph
    wanted = None if inputs is None else _sequence(inputs)
    if wanted is not None and not wanted:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    for w in wanted or ():
        if not w.requires_grad:
            raise RuntimeError("backward(): one of `inputs` does not require grad")
    engine.backward(roots, _seeds(roots, grad_tensors), keep, create_graph, wanted)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, leaving every `.grad` as it is.

    With `is_grads_batched` the first dim of each of `grad_outputs` counts gradients to begin with, and that of each result
    the ones that came of them.
    """
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To accumulate gradient for other parts "
            "of the graph, please use autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    roots, wanted = _sequence(outputs), _sequence(inputs)
    if not wanted:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    keep = create_graph if retain_graph is None else retain_graph
    if is_grads_batched:
        batches = list(zip(*[g.unbind(0) for g in _sequence(grad_outputs)], strict=True))
        last = len(batches) - 1
        rows = [
            grad(roots, wanted, gs, keep or i < last, create_graph, True, allow_unused, False, materialize_grads)
            for i, gs in enumerate(batches)
        ]
        return tuple(None if column[0] is None else stack(column) for column in zip(*rows, strict=True))
    for w in wanted:
        if not w.requires_grad:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    found = engine.backward(roots, _seeds(roots, grad_outputs), keep, create_graph, wanted, accumulate=False)
    if materialize_grads:
        return tuple(w.new_zeros(w.shape) if g is None else g for g, w in zip(found, wanted, strict=True))
    for i, g in enumerate(found):
        if g is None and not allow_unused:
            raise RuntimeError(
                f"The differentiated Tensor at index {i} appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
    return tuple(found)


def _backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
) -> None:
    """Add this tensor's gradients to `.grad` of the leaves it depends on."""
    tracer = local.state.tracer
    plain = gradient is None and inputs is None and not create_graph
    if tracer is not None and plain and self.tj_requires_grad and self.tj_array.size == 1:
        tracer.backward((self,), None, bool(retain_graph), False, None, True)
        return
    backward(self, gradient, retain_graph, create_graph, inputs)


Tensor.backward = _backward  # type: ignore[attr-defined]
