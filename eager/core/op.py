"""The op table: `Op` records, and `primitive`, which makes one.

An `Op` is one record: how it runs, its gradient, its meaning for the compiler and the inputs that generate its tests.
`dispatch.py` runs ops; `registration.py` gives them their public names. Gradient rules name what they need
(`tape/gradient_rules.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.op_samples import Sample
from .tape.gradient_rules import Rules, parameters

TRUST = "ops"  # see core/library.py: what is here does nothing but run ops

KINDS = ("pointwise", "reduce", "movement", "contraction", "index", "scan", "random", "create", "opaque", "composite")
NO_ATTRS: dict[str, Any] = {}


class Op:
    """One operation: see the module's docstring. Made by `primitive` and `registration.public`."""

    __slots__ = (
        "body",
        "data_dependent",
        "expand",
        "function",
        "grad",
        "infer",
        "inplace",
        "input_names",
        "kind",
        "method",
        "mutates",
        "name",
        "namespaces",
        "numpy_function",
        "ordered",
        "public_function",
        "rules",
        "run",
        "samples",
        "statistics",
        "ufunc",
        "upcast",
        "view",
    )

    def __init__(self, name: str, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"op {name}: kind {kind!r} is none of {KINDS}")
        self.name = name
        self.kind = kind
        self.run: Callable[..., Any] | None = None  # run(xp, *arrays, **attrs), one body for numpy and cupy
        self.ufunc: str | None = None  # or the name of a ufunc that is all of it
        self.numpy_function: Any = None
        self.infer: Callable[..., Any] | None = None
        self.grad: Any = None
        self.rules: Rules = Rules(self)
        self.body: Callable[..., Any] | None = None  # pointwise and reduce: the scalar expression, over a builder
        self.expand: Callable[..., Any] | None = None  # a composite's meaning in other ops
        self.input_names: tuple[str, ...] | None = None  # None: any number of inputs
        self.mutates: tuple[int, ...] = ()  # the inputs that `run` writes into (optimizer updates); it returns None
        self.data_dependent = False  # the result's shape depends on values
        self.view = False  # the result shares the first input's memory
        self.ordered = False  # the result's memory is in order, so that `.view()` works on it; pointwise ops keep their input's
        self.statistics = False  # outputs after the first are for the gradient rule to save, and have no gradient themselves
        self.upcast = False  # float16 and bfloat16 are computed in float32 and rounded once
        # the public side
        self.function: Callable[..., Any] | None = None
        self.public_function: Callable[..., Any] | None = None  # the function as users have it: see `call_signature.py`
        self.namespaces: tuple[str, ...] = ()
        self.method = False
        self.inplace = False
        self.samples: tuple[Sample, ...] = ()

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.kind}>"


PRIMITIVES: dict[str, Op] = {}  # ops that `apply` runs: primitives and composites with a kernel of their own
OPS: dict[str, Op] = {}  # the table: every public function


def primitive(
    name: str,
    kind: str,
    run: Callable[..., Any] | None = None,
    *,
    ufunc: str | None = None,
    grad: Any = None,
    body: Callable[..., Any] | None = None,
    infer: Callable[..., Any] | None = None,
    expand: Callable[..., Any] | None = None,
    view: bool = False,
    upcast: bool | None = None,
    mutates: tuple[int, ...] = (),
    data_dependent: bool = False,
    statistics: bool = False,
) -> Op:
    """Register an op that `apply` runs. `expand` makes it a composite with a kernel: the compiler looks through it, and
    where it has no `grad` it is differentiated through it."""
    if name in PRIMITIVES:
        raise ValueError(f"op {name!r} is registered twice")
    op = Op(name, kind)
    op.run, op.ufunc, op.grad, op.body, op.infer, op.expand, op.view = run, ufunc, grad, body, infer, expand, view
    op.ordered = not view and kind not in ("pointwise", "create")
    op.mutates, op.data_dependent, op.statistics = mutates, data_dependent, statistics
    op.upcast = kind in ("pointwise", "reduce", "contraction", "composite", "scan") if upcast is None else upcast
    if ufunc is not None:
        op.numpy_function = getattr(np, ufunc)
        op.input_names = ("x",) if op.numpy_function.nin == 1 else ("a", "b")
    else:
        op.input_names = _input_names(run)
    if kind == "pointwise" and body is None:
        op.body = lambda b, *xs: getattr(b, name)(*xs)
    op.rules.compile()
    PRIMITIVES[name] = op
    return op


def _input_names(run: Any) -> tuple[str, ...] | None:
    """Return the names of the inputs: `run`'s positional parameters after xp; None for `*arrays`, any number."""
    positional, rest, _ = parameters(run)
    return tuple(positional[1:]) if rest is None else None


def exported(space: str) -> dict[str, Any]:
    """Return the public functions of a namespace, by name."""
    return {record.name: record.public_function for record in OPS.values() if space in record.namespaces}
