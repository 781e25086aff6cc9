"""Call signatures of public functions: argument aliases, `out=`, and errors that name the argument.

A call goes straight to the function; only one that fails is examined, so the wrapper costs one frame and no more. PyTorch takes
other names for some arguments (NumPy's `axis` and `keepdims`), and `out=` where a function makes new tensors. A non-tensor
where a tensor is expected gets an error that names the argument. Any error gets a note that shows the call.
"""

from __future__ import annotations

import functools
from typing import Any

from ..arrays.dtypes import can_cast
from .errors import describe
from .tape.gradient_rules import parameters
from .tape.node import local
from .tensor import Tensor, tensor_changed

ARGUMENT_ALIASES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "split_size": "split_size_or_sections",
    "sections": "indices_or_sections",
    "indices": "indices_or_sections",
}
TENSOR, OPTIONAL_TENSOR = "Tensor", "Tensor | None"  # annotations


def with_call_signature(function: Any, space: str, name: str, takes_out: bool, traced: bool = False) -> Any:
    """Wrap a public function with PyTorch's call signature; if `traced`, the tracer takes its calls as a whole."""
    names = parameters(function)
    known = {*names[0], *names[2]}
    renamed = {old: new for old, new in ARGUMENT_ALIASES.items() if new in known and old not in known}
    takes_out = takes_out and "out" not in known

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if traced and (tracer := local.state.tracer) is not None:
                return tracer.call_functional(function, args, kwargs)
            return function(*args, **kwargs)
        except Exception as error:
            said = takes_out and "out" in kwargs
            out = kwargs.pop("out") if said else None
            if not said and not any(old in kwargs for old in renamed):
                wrong = not_a_tensor(function, name, args, kwargs)
                add_call_note(wrong or error, name, args, kwargs)
                if wrong is None:
                    raise
                raise wrong from None
        if any(new in kwargs for old, new in renamed.items() if old in kwargs):
            raise TypeError(f"{name}(): one argument was given by two of its names, of {renamed}")
        found = call(*args, **{renamed.get(k, k): v for k, v in kwargs.items()})
        return found if out is None else write_result_into(out, found, name)

    call.__name__ = call.__qualname__ = name
    call.__module__ = f"tapejit.{space}" if space else "tapejit"  # pickle looks it up there
    return call


def needs_call_signature(function: Any, as_method: bool) -> bool:
    """True if the wrapper has something to do. The first argument of a method is a tensor for sure."""
    positional, _, keywords = parameters(function)
    named = (*positional[as_method:], *keywords)
    return any(p in ARGUMENT_ALIASES.values() or expects_tensor(function, p) for p in named)


def expects_tensor(function: Any, parameter: str) -> bool:
    return function.__annotations__.get(parameter) in (TENSOR, OPTIONAL_TENSOR)


def not_a_tensor(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
    """Return the error for the first argument that should be a tensor and is not; None if all are."""
    positional, _, _ = parameters(function)
    given = {**dict(zip(positional, args, strict=False)), **kwargs}
    for parameter, value in given.items():
        fits = isinstance(value, Tensor) or (value is None and function.__annotations__.get(parameter) == OPTIONAL_TENSOR)
        if expects_tensor(function, parameter) and not fits:
            return TypeError(f"{name}(): argument '{parameter}' must be Tensor, not {type(value).__name__}")
    return None


CALL_NOTE = "in the call "


def add_call_note(error: Exception, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the call in an error, for its traceback. The outermost call, which is the user's, replaces those inside it."""
    text = ", ".join([describe_argument(a) for a in args] + [f"{k}={describe_argument(v)}" for k, v in kwargs.items()])
    notes = getattr(error, "__notes__", None)
    if notes and notes[-1].startswith(CALL_NOTE):
        notes.pop()
    error.add_note(f"{CALL_NOTE}{name}({text})")


def describe_argument(x: Any) -> str:
    """Describe an argument for a note: tensors by dtype and shape."""
    if isinstance(x, Tensor):
        return describe(x)
    if isinstance(x, (tuple, list)) and any(isinstance(v, Tensor) for v in x):
        return f"[{', '.join(describe_argument(v) for v in x[:4])}{', ...' if len(x) > 4 else ''}]"
    return f"a {type(x).__name__} of {len(x)}" if hasattr(x, "__len__") and len(x) > 40 else f"{x!r:.60}"


def write_result_into(out: Any, value: Any, name: str) -> Any:
    """Write a function's result into the tensor or tensors given as `out=`, and return these."""
    if isinstance(value, tuple):
        if not isinstance(out, (tuple, list)) or len(out) != len(value):
            raise TypeError(f"{name}(): argument 'out' must be a tuple of {len(value)} Tensors")
        for o, v in zip(out, value, strict=True):
            check_out(o, v, name)
        found = [store_out(o, v, name) for o, v in zip(out, value, strict=True)]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    check_out(out, value, name)
    return store_out(out, value, name)


def check_out(out: Any, value: Tensor, name: str) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if local.state.grad and (value.requires_grad or out.requires_grad):
        raise out_requires_grad_error(name)
    if not can_cast(value.dtype, out.dtype):
        raise RuntimeError(
            f"{name}(): result type {value.dtype.legacy} can't be cast to the desired output type {out.dtype.legacy}"
        )


def out_requires_grad_error(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
        "requires grad."
    )


def store_out(out: Tensor, value: Tensor, name: str) -> Tensor:
    """Write a value into `out`; an `out` without elements takes the value's shape."""
    from .dispatch import write

    if out.tj_array.size == 0 and out.tj_base is None and out.tj_array.shape != value.tj_array.shape:
        if local.state.tracer is not None:
            local.state.tracer.graph_break(_resize_out, "out= is resized", out, value)
        else:
            _resize_out(out, value)
        return out
    return write(out, value, name)


def _resize_out(out: Tensor, value: Tensor) -> None:
    """Give `out` the value's shape, and memory of its own."""
    out.tj_array = value.to(out.dtype).clone().tj_array
    tensor_changed()
