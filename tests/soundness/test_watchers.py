"""Debuggers, profilers and coverage tools see all that eager execution would show them, and nothing is learned meanwhile."""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tapejit as tj
from support.scripts import batch
from tapejit import nn

CALLS = 12


def helper(x: Any) -> Any:
    return x * 2


def make(pure: bool) -> Any:
    tj.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    opt = tj.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        loss = helper(net(x)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return tj.compile(step, pure=pure)


def skipped(f: Any) -> int:
    return sum(trace.skipped for trace in f.traces)


Watch = Callable[[list[str]], Any]


@contextmanager
def by_settrace(seen: list[str]) -> Iterator[None]:
    def trace(frame: Any, event: str, arg: Any) -> Any:
        if event == "call":
            seen.append(frame.f_code.co_name)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def by_setprofile(seen: list[str]) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def by_cprofile(seen: list[str]) -> Iterator[None]:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()
        for (_, _, name), (_, count, *_) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
            seen += [name] * count


@contextmanager
def by_monitoring(seen: list[str]) -> Iterator[None]:
    monitoring = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool = monitoring.COVERAGE_ID
    monitoring.use_tool_id(tool, "watcher")
    monitoring.register_callback(tool, monitoring.events.PY_START, lambda code, _: seen.append(code.co_name))
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


WATCHES: dict[str, Watch] = {"settrace": by_settrace, "setprofile": by_setprofile, "cProfile": by_cprofile}
if sys.version_info >= (3, 12):
    WATCHES["monitoring"] = by_monitoring


@pytest.mark.parametrize("pure", [False, True], ids=["proof", "promise"])
@pytest.mark.parametrize("name", WATCHES)
def test_a_function_that_skips_is_seen_and_skips_again(name: str, pure: bool) -> None:
    f = make(pure)
    for i in range(CALLS):
        f(batch(i, 4, 3))
    assert skipped(f) > 0
    before, seen = skipped(f), []
    with WATCHES[name](seen):
        for i in range(20):
            f(batch(i, 4, 3))
    assert seen.count("helper") == 20 and seen.count("step") >= 20
    assert skipped(f) == before
    for i in range(4):
        f(batch(i, 4, 3))
    assert skipped(f) >= before + 3, f.explain()


@pytest.mark.parametrize("pure", [False, True], ids=["proof", "promise"])
@pytest.mark.parametrize("name", WATCHES)
def test_nothing_is_learned_while_somebody_watches(name: str, pure: bool) -> None:
    f = make(pure)
    seen: list[str] = []
    with WATCHES[name](seen):
        for i in range(20):
            f(batch(i, 4, 3))
    assert seen.count("helper") == 20
    assert f.recordings == 0 and not f.traces
    assert "a debugger, profiler or coverage tool is active" in str(f.explain())
    for i in range(CALLS):
        f(batch(i, 4, 3))
    assert skipped(f) > 0, f.explain()


def test_reset_forgets_that_guards_failed() -> None:
    f = make(False)
    f.stable_path, f.undecided_calls = False, 99
    f.reset()
    for i in range(CALLS):
        f(batch(i, 4, 3))
    assert skipped(f) > 0, f.explain()


def test_a_debugger_that_starts_inside_a_call() -> None:
    f = make(False)
    results = []
    before = sys.gettrace()

    @tj.compile
    def g(x: Any) -> Any:
        y = x * 2
        sys.settrace(lambda *_: None)
        return y + 1

    for i in range(6):
        try:
            results.append(g(batch(i)).tolist())
        finally:
            sys.settrace(before)
    assert results == [(batch(i) * 2 + 1).tolist() for i in range(6)]
    assert not g.traces and f.calls == 0
