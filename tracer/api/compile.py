"""`compile`: the decorator and its options, for functions, methods, modules and classes of modules."""

from __future__ import annotations

from typing import Any

from ...eager.nn.module import Module
from ..execute.backends import backend_names
from .compiled_function import ALL, CompiledFunction


def compile(
    fn: Any = None,
    *,
    warmup: int = 2,
    backend: str = "auto",
    strict: bool = False,
    pure: bool = False,
    budget: int = 16,
    name: str | None = None,
    background: bool = False,
    tune: bool | None = None,
    disable: bool = False,
    **of_torch: Any,
) -> Any:
    """Record a function, then replay it; calls that differ from the recording run eagerly.

    Accepts functions, methods, `nn.Module` objects and classes (their `forward`). Python runs in each replay and is compared
    with the recording, unless it is proved that it only touches tensors; `pure` promises that it does. The first call is
    recorded without running ops and computed by its program; with a `warmup` above 2 it runs eagerly, and the second is the
    first compiled one. The first `warmup` calls may differ from each other: from the second on, each is compared with the one
    before and runs compiled if they are the same. `budget` bounds the number of recordings kept. `strict` raises a
    `CompileError` where a call would have to continue eagerly after the warm-up. `backend` is "llvm" for native code or "plain"
    for none; "auto" chooses by what the machine has. `background` compiles in another thread; calls run without native code
    until it is done. `tune` takes a second or two for each matmul shape that is new to this CPU: it times plans that give the
    same bits, and keeps the fastest, on disk too; if it is not given, TAPEJIT_TUNE=1 requests it. On a GPU it changes nothing:
    kernels for real devices are always tuned.

    PyTorch's options are accepted: `disable` returns its argument, the backend "inductor" is "auto" and "eager" is "plain"; the
    modes "max-autotune" and "max-autotune-no-cudagraphs" request `tune`; `fullgraph`, `dynamic`, other modes and `options`
    change nothing, as results are right in any case.
    """
    strange = [key for key in of_torch if key not in ("fullgraph", "dynamic", "mode", "options")]
    if strange:
        raise TypeError(f"compile: there is no option {strange[0]!r}")
    backend = {"inductor": "auto", "eager": "plain", "aot_eager": "plain"}.get(backend, backend)
    if backend not in backend_names():
        raise ValueError(f"compile: backend must be one of {backend_names()}, not {backend!r}")
    if warmup < 1 or budget < 1:
        raise ValueError(f"compile: warmup and budget must be at least 1, not {warmup} and {budget}")
    if tune is None and str(of_torch.get("mode")).startswith("max-autotune"):
        tune = True
    if tune is not None and not isinstance(tune, bool):
        raise ValueError(f"compile: tune must be True or False, or None for what TAPEJIT_TUNE says, not {tune!r}")

    def make(function: Any) -> Any:
        if isinstance(function, CompiledFunction) or disable:
            return function
        settings = (warmup, backend, strict, pure, budget, name, background, tune)
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(CompiledFunction(function.__func__, *settings))
        if isinstance(function, Module):
            return compiled_module(function, settings)
        if isinstance(function, type) and issubclass(function, Module):
            function.forward = CompiledFunction(function.forward, *settings)  # type: ignore[method-assign]
            return function
        if not callable(function):
            raise TypeError(f"compile: expected a function or a module, not {type(function).__name__}")
        return CompiledFunction(function, *settings)

    return make if fn is None else make(fn)


def compiled_module(module: Module, settings: tuple[Any, ...]) -> Module:
    """Return a module that shares all state with the given one, and whose forward is compiled."""
    cls = type(module)
    forward = CompiledFunction(cls.forward, *settings)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    subclass = type(cls.__name__, (cls,), {"forward": forward, "__reduce_ex__": _reduce_compiled, **names})
    subclass._compiled = (cls, settings)  # type: ignore[attr-defined]
    made = object.__new__(subclass)
    made.__dict__ = module.__dict__
    return made


def _compile_in_place(self: Module, *args: Any, **kwargs: Any) -> None:
    """Implement `model.compile()`: from now on the module's own calls are compiled."""
    self.__class__ = type(compile(self, *args, **kwargs))


Module.compile = _compile_in_place  # type: ignore[attr-defined]  # eager/ does not know this package


def _reduce_compiled(self: Any, protocol: Any) -> Any:
    """Pickle a compiled module as the plain module; it is compiled again when loaded."""
    cls, settings = type(self)._compiled
    plain = object.__new__(cls)
    plain.__dict__.update(self.__dict__)
    return compiled_module, (plain, settings)


def compile_stats() -> dict[str, dict[str, Any]]:
    """Return for each compiled function: calls, replays, recordings, divergences."""
    return {
        f.name: {
            "calls": f.calls, "replays": f.hits, "recordings": f.recordings, "divergences": sum(f.divergences.values()),
            "paths": len(f.traces), "evictions": f.evictions, "gave_up": f.gave_up,
        }
        for f in ALL
    }  # fmt: skip
