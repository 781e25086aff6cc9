"""Tests of the known holes of compilers: a script runs eagerly and compiled, and does the same.

A script is run twice: with `compile` leaving functions as they are, and with `compile` being `tj.compile`. All that it notes,
prints and raises is compared bit for bit; `replayed` then says how often the compiled function must have been replayed, so that
no test passes because everything ran eagerly.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import tapejit as tj
from tapejit import nn

from support.scripts import Script, batch
from support.snippets import DIMS, KEPT, SNIPPETS, compiled_double
from support.traced import seen


def history(script: Script, compile: Callable[[Any], Any]) -> list[Any]:
    """All that a script notes and prints."""
    tj.manual_seed(0)
    random.seed(0)
    log: list[Any] = []
    out = io.StringIO()

    def note(*things: Any) -> None:
        log.append((out.getvalue(), [seen(t) for t in things]))

    with contextlib.redirect_stdout(out):
        script(compile, note)
    return [*log, out.getvalue()]


def both(script: Script, replayed: int | None = None, divergences: int | None = None, **settings: Any) -> Any:
    """Compare a script's two histories; returns the last function it compiled."""
    made: list[Any] = []

    def compile(function: Any) -> Any:
        made.append(tj.compile(function, **settings))
        return made[-1]

    expected = history(script, lambda function: function)
    found = history(script, compile)
    f = made[-1]
    f = type(f).forward if isinstance(f, nn.Module) else f.forward if inspect.isclass(f) else f
    for i, (e, c) in enumerate(zip(expected, found, strict=True)):
        assert c == e, f"note {i} differs:\neager    {e}\ncompiled {c}\n{f.explain()}"
    if replayed is not None:
        assert f.hits >= replayed, f.explain()
        assert f.gave_up is None
    if divergences is not None:
        assert sum(f.divergences.values()) <= divergences, f.explain()
    return f


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 2))


def snippet_script(name: str) -> Script:
    """Calls a small program a dozen times."""

    def script(compile: Any, note: Any) -> None:
        DIMS[:] = 0, 1
        KEPT.clear()
        compiled_double.reset()
        w = tj.tensor([1.0, 0.5, -1.0], requires_grad=True)
        f = compile(SNIPPETS[name])
        for i in range(12):
            x = batch(i)
            note(f(x, w, i), x, w)

    return script


def entered(f: Any) -> Counter[str]:
    """Count how often the regions of a compiled function were entered, by their title."""
    found: Counter[str] = Counter()
    for trace in f.traces:
        for regions in trace.regions.values():
            for region in regions.values():
                found[region.title] += region.entered
    return found


def inputs(seed: int = 0, n: int = 5) -> Any:
    return tj.tensor(np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32))
