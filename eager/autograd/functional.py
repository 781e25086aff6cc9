"""`tapejit.autograd.functional`: Jacobians, Hessians and their products with vectors, of Python functions of tensors.

`jvp` and `hvp` use the double-backward trick: the product of a Jacobian with v is the gradient, by u, of v times the
product of u with the Jacobian, which is linear in u.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.tape.grad_mode import enable_grad
from ..core.tensor import Tensor
from ..ops.shape.reshape import stack

Tensors = tuple[Tensor, ...]


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """All partial derivatives: for each output and input, a tensor of the output's shape followed by the input's."""
    _reverse_only(strategy)
    with enable_grad():
        given, single_input = _tensors(inputs, "inputs", "jacobian")
        xs = _prepared(given, create_graph)
        ys, single_output = _computed(func, xs, "jacobian", strict)
        rows = [_rows(i, y, xs, create_graph, strict) for i, y in enumerate(ys)]
    found = tuple(_finished(row, create_graph) for row in rows)
    if single_input:
        found = tuple(row[0] for row in found)  # type: ignore[misc]
    return found[0] if single_output else found


def _rows(i: int, y: Tensor, xs: Tensors, create_graph: bool, strict: bool) -> Tensors:
    """The derivatives of one output, element by element."""
    flat = y.reshape(-1)
    rows = [_gradients((e,), xs, None, create_graph, keep=True) for e in (flat[k] for k in range(y.numel()))]
    found = []
    for j, x in enumerate(xs):
        if strict and any(row[j] is None for row in rows):
            raise RuntimeError(
                f"Output {i} of the user-provided function is independent of input {j}. This is not allowed in strict mode."
            )
        parts = [x.new_zeros(x.shape) if row[j] is None else row[j] for row in rows]
        found.append(stack(parts).reshape(*y.shape, *x.shape) if parts else x.new_zeros((*y.shape, *x.shape)))
    return tuple(found)


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """All second derivatives of a function with one element: for each pair of inputs, a tensor of both their shapes."""
    _reverse_only(outer_jacobian_strategy)
    given, single = _tensors(inputs, "inputs", "hessian")

    def first(*xs: Tensor) -> Tensors:
        return _slope(func, xs, "hessian", strict)[1]

    found = jacobian(first, given, create_graph, strict)
    return found[0][0] if single else found


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The function's value, and v times its Jacobian: a backward pass from v."""
    with enable_grad():
        given, single_input = _tensors(inputs, "inputs", "vjp")
        xs = _prepared(given, create_graph)
        ys, single_output = _computed(func, xs, "vjp", strict)
        weights = _weights(v, ys, "user-provided function returns")
        found = _filled(_gradients(ys, xs, weights, create_graph), xs, strict, "The output of the user-provided function")
    return _same(_finished(ys, create_graph), single_output), _same(_finished(found, create_graph), single_input)


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The function's value, and its Jacobian times v: how the outputs change as the inputs move along v."""
    with enable_grad():
        given, _ = _tensors(inputs, "inputs", "jvp")
        xs = _prepared(given, create_graph)
        weights = _weights(v, xs, "input to the user-provided function is")
        ys, single = _computed(func, xs, "jvp", strict)
        us = tuple(y.new_zeros(y.shape).requires_grad_() for y in ys)
        back = _filled(_gradients(ys, xs, us, True), xs, strict, "The output of the user-provided function")
        found = _filled(_gradients(back, us, weights, create_graph), us, False, "")
    return _same(_finished(ys, create_graph), single), _same(_finished(found, create_graph), single)


def vhp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The value of a function with one element, and v times its Hessian."""
    with enable_grad():
        given, single = _tensors(inputs, "inputs", "vhp")
        xs = _prepared(given, create_graph)
        weights = _weights(v, xs, "input to the user-provided function is")
        y, slope = _slope(func, xs, "vhp", strict)
        found = _filled(_gradients(slope, xs, weights, create_graph), xs, strict, "The hessian of the user-provided function")
    return _finished((y,), create_graph)[0], _same(_finished(found, create_graph), single)


def hvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The value of a function with one element, and its Hessian times v (`vhp` says the same in less time)."""
    with enable_grad():
        given, single = _tensors(inputs, "inputs", "hvp")
        xs = _prepared(given, create_graph)
        weights = _weights(v, xs, "input to the user-provided function is")
        y, slope = _slope(func, xs, "hvp", strict)
        us = tuple(x.new_zeros(x.shape).requires_grad_() for x in xs)
        back = _filled(_gradients(slope, xs, us, True), xs, strict, "The hessian of the user-provided function")
        found = _filled(_gradients(back, us, weights, create_graph), us, False, "")
    return _finished((y,), create_graph)[0], _same(_finished(found, create_graph), single)


# ---- the parts


def _reverse_only(strategy: str) -> None:
    if strategy != "reverse-mode":
        raise NotImplementedError(f"strategy {strategy!r}: there is only reverse mode here")


def _tensors(value: Any, what: str, name: str) -> tuple[Tensors, bool]:
    """A tuple of tensors, and whether it was given as one tensor."""
    single = isinstance(value, Tensor)
    found = (value,) if single else value
    if not isinstance(found, (tuple, list)):
        raise TypeError(
            f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but the given {what} has "
            f"type {type(value)}."
        )
    for i, t in enumerate(found):
        if not isinstance(t, Tensor):
            raise TypeError(
                f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but the value at index {i} of the "
                f"given {what} has type {type(t)}."
            )
    return tuple(found), single


def _prepared(xs: Tensors, create_graph: bool) -> Tensors:
    """Inputs to differentiate by: new leaves, or when the result is to be differentiated itself, views of the old ones."""
    return tuple(x.view(x.shape) if create_graph and x.requires_grad else x.detach().requires_grad_() for x in xs)


def _finished(ts: Tensors, create_graph: bool) -> Tensors:
    return ts if create_graph else tuple(t.detach() for t in ts)


def _same(ts: Tensors, single: bool) -> Any:
    return ts[0] if single else ts


def _computed(func: Callable[..., Any], xs: Tensors, name: str, strict: bool) -> tuple[Tensors, bool]:
    ys, single = _tensors(func(*xs), "outputs of the user-provided function", name)
    for i, y in enumerate(ys):
        if strict and not y.requires_grad:
            raise RuntimeError(
                f"Output {i} of the user-provided function does not require gradients. The outputs must be computed in a "
                "differentiable manner from the input when running in strict mode."
            )
    return ys, single


def _slope(func: Callable[..., Any], xs: Tensors, name: str, strict: bool) -> tuple[Tensor, Tensors]:
    """The value of a function with one element and its gradients, on the tape."""
    ys, _ = _computed(func, xs, name, strict)
    if len(ys) != 1:
        raise RuntimeError(f"The function given to {name} should return a single Tensor")
    if ys[0].numel() != 1:
        raise RuntimeError(f"The Tensor returned by the function given to {name} should contain a single element")
    found = _filled(_gradients(ys, xs, None, True), xs, strict, "The output of the user-provided function")
    for i, g in enumerate(found):
        if strict and not g.requires_grad:
            raise RuntimeError(
                f"While computing the hessian, found that the jacobian of the user-provided function with respect to input {i} "
                "is independent of the input. This is not allowed in strict mode. You should ensure that your function is "
                "twice differentiable and that the jacobian depends on the inputs (this would be violated by a linear function "
                "for example)."
            )
    return ys[0], found


def _weights(v: Any, like: Tensors, what: str) -> Tensors | None:
    """The vector of a product, checked against what it is to be multiplied with."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(f"The vector v can only be None if the {what} a single Tensor with a single element.")
        return (like[0].new_ones(like[0].shape),)
    found, _ = _tensors(v, "v", "the product")
    if len(found) != len(like):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got {len(found)}.")
    for i, (t, x) in enumerate(zip(found, like, strict=True)):
        if t.shape != x.shape:
            entry = f"Entry {i} in v" if len(like) > 1 else "v"
            raise RuntimeError(f"{entry} has invalid size: should be {x.shape} but got {t.shape}.")
    return tuple(t.to(x.dtype) for t, x in zip(found, like, strict=True))


def _gradients(
    ys: Tensors, xs: Tensors, weights: Tensors | None, create_graph: bool, keep: bool | None = None
) -> tuple[Tensor | None, ...]:
    """Gradients by `xs` of those `ys` that depend on anything."""
    from . import grad

    pairs = [(y, None if weights is None else weights[i]) for i, y in enumerate(ys) if y.requires_grad]
    if not pairs:
        return (None,) * len(xs)
    outputs, seeds = zip(*pairs, strict=True)
    return grad(outputs, xs, seeds, retain_graph=keep, create_graph=create_graph, allow_unused=True)


def _filled(found: tuple[Tensor | None, ...], like: Tensors, strict: bool, what: str) -> Tensors:
    """Zeros for what has no gradient; in strict mode that is an error."""
    for i, g in enumerate(found):
        if g is None and strict:
            raise RuntimeError(f"{what} is independent of input {i}. This is not allowed in strict mode.")
    return tuple(x.new_zeros(x.shape) if g is None else g for g, x in zip(found, like, strict=True))
