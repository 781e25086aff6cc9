"""The outside of public functions: what a call may say that the function itself does not take.

A call goes straight to the function, and only one that fails is looked at again, so the rest costs a frame and no more.
PyTorch takes other names of some arguments (NumPy's `axis` and `keepdims`), and `out=` where a function makes new tensors; and
what is no tensor where one is due gets an error that names the argument. Any error gets a note that shows the call.
"""

from __future__ import annotations

import functools
from typing import Any

from ..arrays.dtypes import can_cast
from .errors import describe
from .tape.gradient_rules import parameters
from .tape.node import local
from .tensor import Tensor, tensor_changed

OTHER_NAMES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "split_size": "split_size_or_sections",
    "sections": "indices_or_sections",
    "indices": "indices_or_sections",
}
TENSOR, MAYBE = "Tensor", "Tensor | None"  # annotations


def faced(function: Any, space: str, name: str, takes_out: bool, traced: bool = False) -> Any:
    """A public function with its outside; `traced` is one that a tracer takes as a whole."""
    names = parameters(function)
    known = {*names[0], *names[2]}
    renamed = {old: new for old, new in OTHER_NAMES.items() if new in known and old not in known}
    takes_out = takes_out and "out" not in known

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if traced and (tracer := local.state.tracer) is not None:
                return tracer.functional(function, args, kwargs)
            return function(*args, **kwargs)
        except Exception as error:
            said = takes_out and "out" in kwargs
            out = kwargs.pop("out") if said else None
            if not said and not any(old in kwargs for old in renamed):
                wrong = not_a_tensor(function, name, args, kwargs)
                note(wrong or error, name, args, kwargs)
                if wrong is None:
                    raise
                raise wrong from None
        if any(new in kwargs for old, new in renamed.items() if old in kwargs):
            raise TypeError(f"{name}(): one argument was given by two of its names, of {renamed}")
        found = call(*args, **{renamed.get(k, k): v for k, v in kwargs.items()})
        return found if out is None else into(out, found, name)

    call.__name__ = call.__qualname__ = name
    call.__module__ = f"tapejit.{space}" if space else "tapejit"  # where it is found by those who pickle it
    return call


def wants_face(function: Any, as_method: bool) -> bool:
    """Whether there is something for a face to do: a method's first tensor is one for sure."""
    positional, _, keywords = parameters(function)
    named = (*positional[as_method:], *keywords)
    return any(p in OTHER_NAMES.values() or is_due(function, p) for p in named)


def is_due(function: Any, parameter: str) -> bool:
    return function.__annotations__.get(parameter) in (TENSOR, MAYBE)


def not_a_tensor(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
    """The error for the first argument that should be a tensor and is none."""
    positional, _, _ = parameters(function)
    given = {**dict(zip(positional, args, strict=False)), **kwargs}
    for parameter, value in given.items():
        fits = isinstance(value, Tensor) or (value is None and function.__annotations__.get(parameter) == MAYBE)
        if is_due(function, parameter) and not fits:
            return TypeError(f"{name}(): argument '{parameter}' must be Tensor, not {type(value).__name__}")
    return None


IN = "in the call "


def note(error: Exception, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say in an error's notes, which its traceback shows, what was called with what: the outermost call is the user's."""
    text = ", ".join([described(a) for a in args] + [f"{k}={described(v)}" for k, v in kwargs.items()])
    notes = getattr(error, "__notes__", None)
    if notes and notes[-1].startswith(IN):
        notes.pop()
    error.add_note(f"{IN}{name}({text})")


def described(x: Any) -> str:
    """An argument in a note: tensors by dtype and shape."""
    if isinstance(x, Tensor):
        return describe(x)
    if isinstance(x, (tuple, list)) and any(isinstance(v, Tensor) for v in x):
        return f"[{', '.join(described(v) for v in x[:4])}{', ...' if len(x) > 4 else ''}]"
    return f"a {type(x).__name__} of {len(x)}" if hasattr(x, "__len__") and len(x) > 40 else f"{x!r:.60}"


def into(out: Any, value: Any, name: str) -> Any:
    """What a function found, in the tensor or tensors given as `out=`."""
    if isinstance(value, tuple):
        if not isinstance(out, (tuple, list)) or len(out) != len(value):
            raise TypeError(f"{name}(): argument 'out' must be a tuple of {len(value)} Tensors")
        for o, v in zip(out, value, strict=True):
            check_out(o, v, name)
        found = [stored(o, v, name) for o, v in zip(out, value, strict=True)]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    check_out(out, value, name)
    return stored(out, value, name)


def check_out(out: Any, value: Tensor, name: str) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if local.state.grad and (value.requires_grad or out.requires_grad):
        raise no_gradients(name)
    if not can_cast(value.dtype, out.dtype):
        raise RuntimeError(
            f"{name}(): result type {value.dtype.legacy} can't be cast to the desired output type {out.dtype.legacy}"
        )


def no_gradients(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
        "requires grad."
    )


def stored(out: Tensor, value: Tensor, name: str) -> Tensor:
    """A value written into `out`; one without elements takes the value's shape."""
    from .op import write

    if out._array.size == 0 and out._base is None and out._array.shape != value._array.shape:
        if local.state.tracer is not None:
            local.state.tracer.outside(_show, "out= is resized", out, value)
        else:
            _show(out, value)
        return out
    return write(out, value, name)


def _show(out: Tensor, value: Tensor) -> None:
    """Let `out` have a value's shape and a memory of its own."""
    out._array = value.to(out.dtype).clone()._array
    tensor_changed()
