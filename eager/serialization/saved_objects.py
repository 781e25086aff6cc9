"""Objects in checkpoints: a class by the name it is imported by, and the state that makes an instance of it.

An object is rebuilt without its constructor: an empty instance is made and given its state, as `copy.copy` does it. What
needs more than that cannot be stored. A file names classes; whether they are looked up at all is the reader's decision,
because importing a module runs it: see `load(weights_only=...)` and `add_safe_globals`.
"""

from __future__ import annotations

import copyreg
import importlib
import itertools
import pickle
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.library import is_library
from ..core.tape.node import RemovableHandle
from .safetensors import FileError

ROOT = __name__.split(".")[0]
_PUBLIC = ("nn", "nn.functional", "optim", "optim.lr_scheduler", "optim.swa_utils", "utils.data", "distributions", "amp", "")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
ALWAYS_SAFE = {"builtins:list", "builtins:dict", "builtins:set", "builtins:int", "builtins:float", "builtins:str"}
_safe: dict[str, Any] = {}


class WeightsOnlyError(FileError, pickle.UnpicklingError):
    """A file with more in it than tensors and plain containers, loaded with `weights_only=True`."""


# ---- names


def name_of(thing: Any) -> str | None:
    """The name a class or function is imported by, `module:name`; None if that leads nowhere or to something else."""
    name: Any = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    home = getattr(thing, "__module__", None) or ("numpy" if type(thing).__name__ == "ufunc" else "")
    public = [f"{ROOT}.{space}".rstrip(".") for space in _PUBLIC] if str(home).startswith(f"{ROOT}.eager.") else []
    for module in (*public, home):
        if _attribute(sys.modules.get(module), name) is thing:
            return f"{module}:{name}"
    return None


def _attribute(found: Any, name: str) -> Any:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def find(name: str) -> Any:
    """The class or function of a name. This imports its module."""
    module, _, path = name.partition(":")
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError:
        home = None
        found = _moved(module, path)
        if found is None:
            raise
    else:
        found = _attribute(home, path) or _moved(module, path)
    if found is None:
        raise AttributeError(f"Can't get attribute '{path}' on {home}: the file was saved by a program that has it there")
    return found


def _moved(module: str, path: str) -> Any:
    """Look up a library class or function by name alone: files may have been saved when its module lay elsewhere.

    None unless exactly one object of the library goes by this name.
    """
    if not is_library(module):
        return None
    homes = [m for name, m in list(sys.modules.items()) if is_library(name, "eager")]
    found = {id(x): x for x in (_attribute(m, path) for m in homes) if x is not None and is_library(x, "eager")}
    return next(iter(found.values())) if len(found) == 1 else None


def find_safe(name: str) -> Any:
    """The class or function of a name if it was declared safe, with no import; otherwise an error that says what to do."""
    if name in ALWAYS_SAFE:
        return find(name)
    if name in _safe:
        return _safe[name]
    dotted = name.replace(":", ".")
    raise WeightsOnlyError(
        f"Weights only load failed. The file holds a {dotted}, which is more than tensors and plain containers. Loading with "
        "`weights_only=False` will likely succeed, but imports what the file names: do it only if you got the file from a "
        f"trusted source. Or allow this one by `{ROOT}.serialization.add_safe_globals([{dotted}])` if you trust it. Files "
        "that hold only `model.state_dict()` load as they are."
    )


def add_safe_globals(safe_globals: Sequence[Any]) -> None:
    """Let `load(weights_only=True)` rebuild objects of these classes, and find these functions."""
    for thing in safe_globals:
        thing, name = thing if isinstance(thing, tuple) else (thing, name_of(thing))
        if name is None:
            raise ValueError(f"add_safe_globals(): {thing!r} cannot be imported by name")
        _safe[name if ":" in name else ":".join(name.rsplit(".", 1))] = thing


def get_safe_globals() -> list[Any]:
    """Return the classes and functions that were declared safe."""
    return list(_safe.values())


def clear_safe_globals() -> None:
    """Declare nothing safe any more."""
    _safe.clear()


@contextmanager
def safe_globals(safe_globals: Sequence[Any]) -> Iterator[None]:
    """`add_safe_globals` for a block of code."""
    before = dict(_safe)
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        _safe.clear()
        _safe.update(before)


# ---- state


def is_function(value: Any) -> bool:
    """True if it is stored by its name alone: functions, classes, ufuncs."""
    return isinstance(value, _FUNCTIONS) or type(value).__name__ == "ufunc"


def state_of(value: Any) -> tuple[Any, Any]:
    """Return (state, reason): what turns an empty instance into this object, and why that is not enough, if so."""
    try:
        reduced = value.__reduce_ex__(2)
    except Exception as error:
        return None, str(error)
    if isinstance(reduced, str):
        return None, "it is a constant of its module"
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    builtin = (list, dict)  # items of their subclasses are stored beside the state
    plain = make is copyreg.__newobj__ and arguments == (type(value),)  # type: ignore[attr-defined, comparison-overlap]
    if not plain or ((items or pairs) is not None and not isinstance(value, builtin)):
        return None, "it has a way of its own to be copied"
    return state, None


def restore(made: Any, state: Any) -> None:
    """Give an empty instance its state, by the rules of `copy`."""
    if state is None:
        return
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    fields, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if fields:
        made.__dict__.update(fields)
    for name, value in (slots or {}).items():
        setattr(made, name, value)
    _reserve_handles(fields or {})


def _reserve_handles(fields: dict[str, Any]) -> None:
    """Hooks that came with an object keep their keys, so these must not be given out again."""
    keys = [key for name, table in fields.items() if name.endswith("tj_hooks") and isinstance(table, dict) for key in table]
    if keys:
        RemovableHandle._ids = itertools.count(max(next(RemovableHandle._ids), max(keys) + 1))
