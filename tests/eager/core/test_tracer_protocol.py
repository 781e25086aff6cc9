"""The tracer's side satisfies the protocol by which eager calls it, and eager calls nothing else."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from support.paths import ROOT
from tapejit.eager.core.tracer_protocol import Tracer
from tapejit.tracer.first_call.abstract_recorder import AbstractRecorder
from tapejit.tracer.record.recorder import Recorder
from tapejit.tracer.replay.replayer import Replayer

METHODS = [name for name, x in vars(Tracer).items() if inspect.isfunction(x) and x.__doc__]


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Kinds, and the names of those that callers may pass by keyword."""
    found = list(inspect.signature(function).parameters.values())[1:]
    return [("" if p.kind is p.POSITIONAL_ONLY else p.name, p.kind) for p in found]


@pytest.mark.parametrize("cls", [Recorder, Replayer, AbstractRecorder])
def test_recorders_and_the_replayer_satisfy_the_protocol(cls: Any) -> None:
    assert issubclass(cls, Tracer)
    assert len(METHODS) == 10  # the handler's call, and nine more
    for name in METHODS:
        if name != "__call__":
            assert parameters(getattr(cls, name)) == parameters(getattr(Tracer, name)), name
    arity = len(inspect.signature(cls.__call__).parameters)
    assert arity == len(inspect.signature(Tracer.__call__).parameters)


def test_eager_calls_nothing_else() -> None:
    called = set()
    for path in (ROOT / "eager").rglob("*.py"):
        called.update(re.findall(r"\btracer\.(\w+)\(", path.read_text(encoding="utf-8")))
    assert called == {name for name in METHODS if name != "__call__"}
