"""Gradient rules: functions whose parameter names say what the tape has to save.

In

    primitive("mul", "pointwise", ufunc="multiply", grad={"a": lambda g, b: g * b, "b": lambda g, a: g * a})

the parameter names after `g` are what a node saves: an input by its name, `out` (the output; `out1` is the second of
several), `x_shape` (only the shape of input x), `inputs`/`shapes`/`outs` (all of them), the name of a `*rest` parameter
(all inputs it takes), `needs` (which inputs want a gradient), or an attribute. A single function instead of a dict
returns the gradients of all inputs at once; `gs` instead of `g` for ops with several outputs, unless these are `statistics`.
Gradients are written with public ops, so they can be recorded and differentiated again.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...arrays import devices
from ..tensor import Tensor, wrap
from .node import Node, edge_of, local, restore, save, save_output

if TYPE_CHECKING:
    from ..op import Op


# Kinds of parameters of a gradient rule, by their names.
INPUT, OUTPUT, INPUTS, OUTPUTS, SHAPE, SHAPES, NEEDS, ATTRIBUTE = range(8)
_SPECIAL = {"out": OUTPUT, "outs": OUTPUTS, "inputs": INPUTS, "shapes": SHAPES, "needs": NEEDS}


class Rules:
    """An op's gradient functions, and what each one needs, derived from its parameter names."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.joint: tuple[Any, list[tuple[str, int, int]]] | None = None
        self.single: list[tuple[Any, list[tuple[str, int, int]]] | None] = []
        self.plans: dict[int, tuple[tuple[str, int, int], ...]] = {}
        self.saves_tensors = False
        self.saves_outputs = False

    def compile(self) -> None:
        grad, inputs = self.op.grad, self.op.input_names or ()
        if grad is None:
            return
        if callable(grad):
            self.joint = (grad, self._needs(grad))
        else:
            unknown = set(grad) - set(inputs)
            if unknown:
                raise ValueError(f"op {self.op.name}: gradients for {unknown}, but the inputs are {inputs}")
            self.single = [None if grad.get(n) is None else (grad[n], self._needs(grad[n])) for n in inputs]
        rules = self.single if self.joint is None else [self.joint]
        kinds = {kind for rule in rules if rule for _, kind, _ in rule[1]}
        self.saves_tensors = bool(kinds & {INPUT, OUTPUT, INPUTS, OUTPUTS})
        self.saves_outputs = bool(kinds & {OUTPUT, OUTPUTS})

    def _needs(self, rule: Any) -> list[tuple[str, int, int]]:
        """Return (name, kind, index of the input or output) for each parameter after the gradient."""
        index, rest = _named_inputs(self.op)
        found = []
        for name in parameters(rule)[0][1:]:
            if name == rest:
                found.append((name, INPUTS, index[name]))
            elif name in index:
                found.append((name, INPUT, index[name]))
            elif name.endswith("_shape") and name[:-6] in index:
                found.append((name, SHAPE, index[name[:-6]]))
            elif name[:3] == "out" and name[3:].isdigit():
                found.append((name, OUTPUT, int(name[3:])))
            else:
                found.append((name, _SPECIAL.get(name, ATTRIBUTE), 0))
        return found

    def plan(self, wants: int) -> tuple[tuple[str, int, int], ...]:
        """Return what to save when the inputs in the bit mask `wants` need a gradient."""
        found = self.plans.get(wants)
        if found is None:
            rules = [self.joint] if self.joint else [r for i, r in enumerate(self.single) if wants >> i & 1]
            found = self.plans[wants] = tuple(dict.fromkeys(need for rule in rules if rule for need in rule[1]))
        return found

    def collect(
        self, wants: int, inputs: tuple[Any, ...], attrs: dict[str, Any], outputs: list[Tensor], target: Tensor | None
    ) -> dict[str, Any]:
        """Save what the node's rules need. Inputs that an in-place op (`target`) is about to overwrite are copied first."""
        if target is not None:
            inputs = tuple([_untouched(x, target) for x in inputs])
        saved: dict[str, Any] = {}
        for name, kind, i in self.plans.get(wants) or self.plan(wants):
            if kind == INPUT:
                saved[name] = save(inputs[i])
            elif kind == OUTPUT:
                saved[name] = save_output(outputs[i])
            elif kind == ATTRIBUTE:
                saved[name] = attrs[name]
            elif kind == SHAPE:
                saved[name] = shape_of(inputs[i])
            elif kind == INPUTS:
                saved[name] = tuple([save(x) for x in inputs[i:]])
            elif kind == OUTPUTS:
                saved[name] = tuple([save_output(t) for t in outputs])
            elif kind == SHAPES:
                saved[name] = tuple([shape_of(x) for x in inputs])
            else:
                saved[name] = tuple([bool(wants >> i & 1) for i in range(len(inputs))])
        return saved

    def gradients(self, node: Node, g: Any) -> Sequence[Tensor | None]:
        recording = local.state.grad
        if self.joint is not None:
            rule, needs = self.joint
            return rule(g, *[_value(node, need, recording) for need in needs])  # type: ignore[no-any-return]
        found: list[Tensor | None] = []
        for edge, pair in zip(node.edges, self.single):  # noqa: B905 -- one rule an input by construction; strict costs
            if edge is None or pair is None:
                found.append(None)
                continue
            rule, needs = pair
            if len(needs) == 1:
                found.append(rule(g, _value(node, needs[0], recording)))
            else:
                found.append(rule(g, *[_value(node, need, recording) for need in needs]))
        return found


def _value(node: Node, need: tuple[str, int, int], recording: bool) -> Any:
    """Return the value that a gradient rule asked for by name."""
    name, kind, i = need
    value = node.saved[name]
    if kind <= OUTPUT:
        if recording or type(value) is not tuple or value[1][0] != value[2]:
            return restore(node, value, i if kind == OUTPUT else None)
        tensor = object.__new__(Tensor)
        tensor.tj_array = value[0]
        return tensor
    if kind == INPUTS:
        return tuple([restore(node, v) for v in value])
    if kind == OUTPUTS:
        return tuple([restore(node, v, i) for i, v in enumerate(value)])
    return value


def shape_of(x: Any) -> tuple[int, ...]:
    """Return a tensor's shape as a plain tuple; () for a number."""
    return x.tj_array.shape if isinstance(x, Tensor) else ()


def _untouched(x: Any, target: Tensor) -> Any:
    if isinstance(x, Tensor) and (x is target or (x.tj_versions is not None and x.tj_versions is target.tj_versions)):
        copy = wrap(devices.copy(x.tj_array))
        copy.tj_requires_grad, copy.tj_node = x.tj_requires_grad, edge_of(x)
        return copy
    return x


def parameters(function: Any) -> tuple[list[str], str | None, list[str]]:
    """Return a function's positional parameters, the name of its `*rest`, and its keyword-only ones; `inspect` is slow."""
    code = getattr(function, "__wrapped__", function).__code__
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1])
    positional, keywords = names[: code.co_argcount], names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return positional, names[-1] if code.co_flags & inspect.CO_VARARGS else None, keywords


def _named_inputs(op: Op) -> tuple[dict[str, int], str | None]:
    """Return the index of each named input, and the name of their `*rest`, if there is one."""
    if op.run is None:
        return {n: i for i, n in enumerate(op.input_names or ())}, None
    positional, rest, _ = parameters(op.run)
    names = positional[1:] if rest is None else [*positional[1:], rest]
    return {n: i for i, n in enumerate(names)}, rest
