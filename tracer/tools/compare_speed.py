"""Measure a user's compiled function, eager against compiled, each in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import multiprocessing
import os
import random
import signal
import statistics
import tracemalloc
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import numpy as np

from ...eager.core.structure.pytree import leaves
from ...eager.core.tensor import Tensor
from ...eager.nn.module import Module
from ...eager.random import manual_seed
from ..api.compiled_function import CompiledFunction
from .files import RefusalError, module_of

TOLERANCE = 3e-4  # relative to a result's largest number: sums run in another order


SETTLED = 8  # calls after the first replay: by then native code has been timed against the reference program


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


NOTED = 8  # the script's own calls whose arguments are used


class Side:
    """The measured function, in this process."""

    def __init__(self, script: str, name: str) -> None:
        module, noted = loaded(script, name, "measured")
        inputs = getattr(module, "inputs", None)
        if inputs is None and not noted:
            call = found(module, script, name)
            if needs_arguments(compiled_in(call).function, call is not compiled_in(call)):
                module, noted = loaded(script, name, "__main__")
                if not noted:
                    reason = f"{script} never calls it, and has no function inputs() that returns them as a tuple"
                    raise RefusalError(f"{name} needs arguments, but {reason}")
        self.module = module  # keeps its globals alive
        self.call = found(module, script, name)
        self.compiled = compiled_in(self.call)
        self.given = itertools.cycle(noted or [((), {})]) if inputs is None else asked(inputs)

    def next_call(self) -> Any:
        """Bind the function to the arguments of the next call."""
        args, kwargs = next(self.given)
        return functools.partial(self.call, *args, **kwargs)

    def start(self, steps: int) -> dict[str, Any]:
        """Make the first calls. Returns their results, and the time until the first replay was done."""
        began, first, results = perf_counter(), None, []
        for _ in range(steps):
            results.append(list(numbers(self.next_call()())))
            if first is None and self.compiled.hits:
                first = perf_counter() - began
        for _ in range(SETTLED):
            self.next_call()()
        return {"results": results, "first": first, "native": any(s.native for s in segments(self.compiled))}

    def time(self, seconds: float) -> list[float]:
        times: list[float] = []
        end = perf_counter() + seconds
        while not times or perf_counter() < end:
            call = self.next_call()
            began = perf_counter()
            call()
            times.append(perf_counter() - began)
        return times

    def peak(self) -> int:
        return peak_bytes(lambda: self.next_call()(), self.compiled)


def asked(inputs: Any) -> Iterator[Arguments]:
    """Yield arguments from the script's `inputs()`."""
    while True:
        given = inputs()
        yield given if isinstance(given, tuple) else (given,), {}


class CallsNotedError(BaseException):
    """Stops a script once its calls have been noted."""


def loaded(script: str, name: str, as_name: str) -> tuple[Any, list[Arguments]]:
    """Load a script as a module, from fixed seeds. Also returns the arguments of the script's own first calls of the function.

    The script is stopped after those calls.
    """
    manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    noted: list[Arguments] = []
    call = CompiledFunction.__call__

    def noting(self: CompiledFunction, /, *args: Any, **kwargs: Any) -> Any:
        target = reached(module, name)
        if compiled_in(target) is self:
            bound = target is not self  # a bound method: the first argument is its object
            noted.append((args[bound:], kwargs))
            if len(noted) > NOTED:
                raise CallsNotedError
            return self.function(*args, **kwargs)  # nothing is compiled yet: the first step is measured later
        return call(self, *args, **kwargs)

    with module_of(script, as_name, []) as (module, code):
        CompiledFunction.__call__ = noting  # type: ignore[method-assign, assignment]
        try:
            exec(code, module.__dict__)
        except CallsNotedError:
            pass
        finally:
            CompiledFunction.__call__ = call  # type: ignore[method-assign]
    return module, noted[:NOTED]


def reached(module: Any, name: str) -> Any:
    """Look up a dotted name in a module; None if it is missing."""
    value = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def found(module: Any, script: str, name: str) -> Any:
    """Look up a compiled function by name; refuse a name that is missing or not compiled."""
    value = reached(module, name)
    if value is None:
        raise RefusalError(f"there is no {name} in {script}")
    if compiled_in(value) is None:
        raise RefusalError(f"{name} in {script} is not a compiled function: put @tj.compile above it")
    return value


def compiled_in(value: Any) -> Any:
    """Find the compiled function that a call runs: a function, a bound method, or the forward of a module."""
    if isinstance(value, Module):
        value = type(value).forward
    value = getattr(value, "__func__", value)
    return value if isinstance(value, CompiledFunction) else None


def needs_arguments(function: Any, bound: bool) -> bool:
    try:
        wanted = list(inspect.signature(function).parameters.values())[int(bound) :]
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in wanted)


def numbers(result: Any) -> Iterator[list[float]]:
    """Yield the numbers in a result, tensor by tensor."""
    for x in leaves(result):
        if isinstance(x, Tensor):
            yield np.asarray(x.detach().cpu().numpy(), np.float64).ravel().tolist()
        elif isinstance(x, (int, float)):
            yield [float(x)]


def segments(compiled: CompiledFunction) -> list[Any]:
    return [s for t in compiled.traces for s in t.programs.values()] + [p.segment for p in compiled.skipped_calls]


def peak_bytes(step: Any, compiled: CompiledFunction | None) -> int:
    """Peak memory of a call above what was alive before it: arrays, Python objects, and the arenas of native programs."""
    step()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        step()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return peak + arena_bytes([] if compiled is None else segments(compiled))


def arena_bytes(segments: Iterable[Any]) -> int:
    """Bytes of the arenas that native programs keep between runs; most share one."""
    natives = {id(s.native): s.native for s in segments}.values()
    executables = [native.executable for native in natives if getattr(native, "executable", None) is not None]
    common = [r.arena for r in executables if getattr(r, "shares", True)]  # on a GPU all share it
    return max(common, default=0) + sum(r.arena for r in executables) - sum(common)


def serve(answers: Connection, script: str, name: str, way: str) -> None:
    """Serve requests of the parent process until it sends None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    try:
        if way == "eager":
            os.environ["TAPEJIT"] = "eager"
        side = Side(script, name)
        answers.send(("found", None))
        while (question := answers.recv()) is not None:
            method, *given = question
            answers.send(("found", getattr(side, method)(*given)))
    except RefusalError as reason:
        give_up(answers, str(reason))
    except EOFError:
        pass
    except Exception as error:
        give_up(answers, f"{name} fails when run {way}: {type(error).__name__}: {error}")


def give_up(answers: Connection, reason: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent process has already given up
        answers.send(("refused", reason))


class Other:
    """Child process that runs one side."""

    def __init__(self, script: str, name: str, way: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.questions, answers = context.Pipe()
        self.process = context.Process(target=serve, args=(answers, script, name, way), daemon=True)
        self.process.start()
        answers.close()
        self.times: list[float] = []

    def answer(self) -> Any:
        try:
            kind, value = self.questions.recv()
        except EOFError:
            raise RefusalError("the measured process died") from None
        if kind == "refused":
            raise RefusalError(value)
        return value

    def ask(self, *question: Any) -> Any:
        self.questions.send(question)
        return self.answer()

    def close(self) -> None:
        self.questions.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


def agree(eager: list[Any], compiled: list[Any]) -> float | None:
    """Return the largest relative difference of the results, None without results; refuse if it is above the tolerance."""
    largest = None
    for step, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        for x, y in zip(a, b, strict=True):
            difference = distance(x, y)
            if difference > TOLERANCE:
                raise RefusalError(
                    f"eager and compiled results differ by {difference:.1e} at call {step + 1}, so no times are printed; "
                    "a script that draws random numbers by other means has to seed them"
                )
            largest = max(difference, largest or 0.0)
    return largest


def distance(a: list[float], b: list[float]) -> float:
    if len(a) != len(b):
        return math.inf
    x, y = np.array(a), np.array(b)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if same.all():
        return 0.0
    if not (np.isfinite(x[~same]).all() and np.isfinite(y[~same]).all()):
        return math.inf
    return float(np.abs(x - y)[~same].max() / max(np.abs(x[np.isfinite(x)]).max(), 1e-6))


def figures(side: Other) -> dict[str, Any]:
    first, middle, last = statistics.quantiles(side.times, n=4) if len(side.times) > 1 else side.times * 3
    return {"median": middle, "spread": (last - first) / 2 / middle, "best": min(side.times), "peak": side.ask("peak")}
