"""Register functions of the op table under their public names, as methods of `Tensor` and as in-place methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..arrays.op_samples import Sample
from .autocast import with_autocast, without_autocast
from .call_signature import needs_call_signature, with_call_signature
from .dispatch import InPlace, overwrite
from .op import OPS, PRIMITIVES, Op
from .tape.gradient_rules import parameters
from .tensor import Tensor

TRUST = "ops"  # see core/library.py: what is here does nothing but run ops


def public(
    *namespaces: str,
    name: str | None = None,
    samples: Sequence[Sample] = (),
    method: bool | None = None,
    inplace: bool = False,
    op: Op | None = None,
    checked: bool = False,
) -> Callable[[Any], Any]:
    """Register a function in the op table and in public namespaces ("" is `tapejit` itself, "nn.functional", "linalg", ...).

    `method` attaches it to Tensor (the default for ""); `inplace` attaches `name_` too. Without `op` it is a composite.
    `checked`: the function checks itself that its arguments are tensors.
    """

    def register(function: Any) -> Any:
        key = name or function.__name__
        spaces = namespaces or ("",)
        table_key = key if "" in spaces or "nn.functional" in spaces else f"{spaces[0]}.{key}"
        if table_key in OPS:
            raise ValueError(f"public op {table_key!r} is registered twice")
        record = op or PRIMITIVES.get(key)
        if record is None or record.function is not None:
            record = Op(key, "composite")
            record.expand = function
        plain, function = function, with_autocast(table_key, function)
        record.function, record.namespaces, record.samples = function, spaces, tuple(samples)
        record.method = ("" in spaces) if method is None else method
        record.inplace = inplace
        OPS[table_key] = record
        with_signature = with_call_signature(function, spaces[0], key, spaces != ("nn.functional",), "nn.functional" in spaces)
        record.public_function = with_signature if needs_call_signature(plain, False) and not checked else function
        if record.method and not hasattr(Tensor, key):
            setattr(Tensor, key, with_signature if needs_call_signature(plain, True) and not checked else function)
        if inplace:
            setattr(Tensor, key + "_", inplace_version(without_autocast(table_key, plain), key))
        return function

    return register


def inplace_version(function: Any, name: str) -> Any:
    """`x.name_(...)` from `name(x, ...)`: the same value, written into x."""
    positional, _, keywords = parameters(function)
    names = (*positional, *keywords)
    if "out" in names:

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return function(self, *args, out=InPlace(self), **kwargs)  # type: ignore[no-any-return]
    elif "inplace" in names:

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return function(self, *args, inplace=True, **kwargs)  # type: ignore[no-any-return]
    else:

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return overwrite(self, function, args, kwargs, name + "_")

    method.__name__ = name + "_"
    method.__doc__ = f"`{name}`, written into this tensor."
    return method
