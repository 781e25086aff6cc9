"""A user's own compiled function, eager against compiled: `tapejit bench script.py:step`.

The script is loaded as a module. If it has a function `inputs()`, that gives the arguments of each call, as a tuple, outside of
what is timed. Otherwise they are those of the first calls that the script makes itself, in turn; it is run as `__main__` up to
there, if it makes none when it is loaded.

    @tj.compile
    def step(x, y): ...

    def inputs():
        return tj.randn(32, 10), tj.randint(0, 5, (32,))

Each side is a process of its own, from the same seeds, and rounds take turns. The results of the first calls are compared
before any time is printed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
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

from ....eager.nn.module import Module
from ....eager.random import manual_seed
from ....eager.core.tensor import Tensor
from ..files import RefusalError, module_of, source_of
from .run import duration
from ...api.compile import Compiled

TOLERANCE = 3e-4  # relative to the largest of a result's numbers: sums in another order
SIDES = ("eager", "compiled")
SETTLED = 8  # calls after the first replay: native code has been compared with a plain program by then
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
NOTED = 8  # calls of the script itself whose arguments are used


class Side:
    """The function in this process."""

    def __init__(self, script: str, name: str) -> None:
        module, noted = loaded(script, name, "measured")
        inputs = getattr(module, "inputs", None)
        if inputs is None and not noted:
            call = found(module, script, name)
            if needs_arguments(compiled_in(call).function, call is not compiled_in(call)):
                module, noted = loaded(script, name, "__main__")
                if not noted:
                    reason = f"{script} never calls it, and has no function inputs() that gives them, as a tuple"
                    raise RefusalError(f"{name} needs arguments, but {reason}")
        self.module = module  # its globals live as long as it does
        self.call = found(module, script, name)
        self.compiled = compiled_in(self.call)
        self.given = itertools.cycle(noted or [((), {})]) if inputs is None else asked(inputs)

    def next_call(self) -> Any:
        """The function with the arguments of the next call."""
        args, kwargs = next(self.given)
        return functools.partial(self.call, *args, **kwargs)

    def start(self, steps: int) -> dict[str, Any]:
        """The first calls: their results, and when the first replay was over."""
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
    """What a script's own function gives."""
    while True:
        given = inputs()
        yield given if isinstance(given, tuple) else (given,), {}


class EnoughError(BaseException):
    """Ends a script whose calls have been noted."""


def loaded(script: str, name: str, as_name: str) -> tuple[Any, list[Arguments]]:
    """A script as a module, from fixed seeds; and the arguments of the first calls of a function, if it makes some itself.

    After those the script is not run any further.
    """
    manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    noted: list[Arguments] = []
    call = Compiled.__call__

    def noting(self: Compiled, /, *args: Any, **kwargs: Any) -> Any:
        target = reached(module, name)
        if compiled_in(target) is self:
            bound = target is not self  # the first argument is the object that it is a method of
            noted.append((args[bound:], kwargs))
            if len(noted) > NOTED:
                raise EnoughError
            return self.function(*args, **kwargs)  # nothing is compiled yet: the first step is measured later
        return call(self, *args, **kwargs)

    with module_of(script, as_name, []) as (module, code):
        Compiled.__call__ = noting  # type: ignore[method-assign, assignment]
        try:
            exec(code, module.__dict__)
        except EnoughError:
            pass
        finally:
            Compiled.__call__ = call  # type: ignore[method-assign]
    return module, noted[:NOTED]


def reached(module: Any, name: str) -> Any:
    """What has this name in a module; None if nothing has."""
    value = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def found(module: Any, script: str, name: str) -> Any:
    """What has this name in a script, if it is compiled."""
    value = reached(module, name)
    if value is None:
        raise RefusalError(f"there is no {name} in {script}")
    if compiled_in(value) is None:
        raise RefusalError(f"{name} in {script} is no compiled function: put @tj.compile above it")
    return value


def compiled_in(value: Any) -> Any:
    """The compiled function that a call runs: a function, a bound method, or the forward of a module."""
    if isinstance(value, Module):
        value = type(value).forward
    value = getattr(value, "__func__", value)
    return value if isinstance(value, Compiled) else None


def needs_arguments(function: Any, bound: bool) -> bool:
    try:
        wanted = list(inspect.signature(function).parameters.values())[int(bound) :]
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in wanted)


def numbers(result: Any) -> Iterator[list[float]]:
    """The numbers in a result, tensor by tensor."""
    if isinstance(result, Tensor):
        yield np.asarray(result.detach().cpu().numpy(), np.float64).ravel().tolist()
    elif isinstance(result, (int, float)):
        yield [float(result)]
    elif isinstance(result, (tuple, list)):
        for x in result:
            yield from numbers(x)
    elif isinstance(result, dict):
        yield from numbers(list(result.values()))


def segments(compiled: Compiled) -> list[Any]:
    return [s for t in compiled.traces for s in t.programs.values()] + [p.segment for p in compiled.pures]


def peak_bytes(step: Any, compiled: Compiled | None) -> int:
    """The most bytes alive during a call above those before it: arrays, Python's objects, and what native programs keep."""
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
    """The memory that native programs keep from run to run; most have it in common."""
    natives = {id(s.native): s.native for s in segments}.values()
    recipes = [native.recipe for native in natives if getattr(native, "recipe", None) is not None]
    common = [r.arena for r in recipes if getattr(r, "shares", True)]  # on a GPU all have
    return max(common, default=0) + sum(r.arena for r in recipes) - sum(common)


# ---- two processes


def serve(answers: Connection, script: str, name: str, way: str) -> None:
    """Answer questions until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
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
        give_up(answers, f"{name} fails when it is run {way}: {type(error).__name__}: {error}")


def give_up(answers: Connection, reason: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the other side has given up before
        answers.send(("refused", reason))


class Other:
    """A process with one of the sides."""

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
            raise RefusalError("the process that was measured died") from None
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


def bench(script: str, name: str, options: Any) -> int:
    source_of(script)
    sides: dict[str, Other] = {}
    try:
        for way in SIDES:
            sides[way] = Other(script, name, way)
        for side in sides.values():
            side.answer()
        starts = {way: side.ask("start", options.steps) for way, side in sides.items()}
        difference = agree(*[starts[way]["results"] for way in SIDES])
        for i in range(options.rounds):
            for way in SIDES if i % 2 else reversed(SIDES):
                sides[way].times += sides[way].ask("time", options.seconds)
        rows = {way: {**figures(side), "first": starts[way]["first"]} for way, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    print("\n".join(table(script, name, options.steps, difference, rows, starts["compiled"]["native"])))
    if options.json:
        options.json.write_text(json.dumps({"name": name, "difference": difference, "sides": rows}, indent=1))
    return 0


def agree(eager: list[Any], compiled: list[Any]) -> float | None:
    """The largest difference of the results, relative; None if there were none."""
    largest = None
    for step, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        for x, y in zip(a, b, strict=True):
            difference = distance(x, y)
            if difference > TOLERANCE:
                raise RefusalError(
                    f"eager and compiled results differ by {difference:.1e} at call {step + 1}, so no time is worth printing; "
                    "if the script draws random numbers of its own, it has to seed them"
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


def table(script: str, name: str, steps: int, difference: float | None, rows: dict[str, Any], native: bool) -> list[str]:
    agreed = "it returns nothing to compare" if difference is None else f"{steps} results agree to {difference:.0e}"
    lines = [f"{name} of {script}: {agreed}", f"  {'':10} {'median':>10} {'+-':>5} {'best':>10} {'/ eager':>8}"]
    lines[-1] += f" {'first step':>11} {'peak':>11}"
    for way, row in rows.items():
        times = f"{duration(row['median']):>10} {row['spread']:>5.0%} {duration(row['best']):>10}"
        first = "-" if row["first"] is None else duration(row["first"])
        ratio = f"{row['best'] / rows['eager']['best']:8.2f}"
        lines.append(f"  {way:10} {times} {ratio} {first:>11} {row['peak'] / 2**20:7.2f} MiB")
    if rows["compiled"]["first"] is None:
        lines.append(f"  it was never replayed: `print({name}.explain())` says why")
    elif not native:
        lines.append("  no native code: the eager kernels, replayed")
    return lines
