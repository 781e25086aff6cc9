"""Compiled functions called within themselves, by signal handlers, and from several threads at once.

What a handler interrupts is up to chance, in eager mode too. So the functions here do the same whatever the order is: all calls
count, no result is lost, and no memory is mixed up. Their Python is skipped: docs/soundness.md has what holds while it runs.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from typing import Any

import pytest
import tapejit as tj
from tapejit import nn

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no interval timers")
CALLS = 400
PURE = pytest.mark.parametrize("pure", [False, True], ids=["proof", "promise"])


def counting(pure: bool) -> tuple[Any, Any]:
    total = tj.zeros(4)

    def add(x: Any) -> Any:
        total.add_(1)
        return x * 2

    return tj.compile(add, pure=pure, backend="llvm"), total


def interrupted(call: Any, handler: Any, times: int = 60) -> tuple[int, int]:
    """Call something while a timer runs a handler; returns how often both ran."""
    ran = 0

    def handle(*_: Any) -> None:
        nonlocal ran
        if ran < times:
            ran += 1
            handler()

    gc.collect()
    gc.disable()  # finalizers of other tests are not to be interrupted
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        calls = 0
        while calls < CALLS or (ran < times and calls < 200 * CALLS):
            call(calls)
            calls += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    return calls, ran


@PURE
def test_a_handler_that_calls_the_function_it_interrupts(pure: bool) -> None:
    f, total = counting(pure)
    for i in range(14):
        f(tj.full((3,), float(i)))
    wrong: list[Any] = []

    def check(i: int) -> None:
        found = f(tj.full((3,), float(i)))
        if found.tolist() != [2.0 * i] * 3:
            wrong.append((i, found))

    calls, ran = interrupted(check, lambda: check(-1))
    assert not wrong
    assert ran > 0 and total.tolist() == [14.0 + calls + ran] * 4
    assert sum(t.skipped for t in f.traces) > 0
    assert total._version == 14 + calls + ran


def test_a_handler_that_trains() -> None:
    """Each step of SGD takes the same away, whatever came before it."""
    net = nn.Linear(3, 1, bias=False)
    with tj.no_grad():
        net.weight.zero_()
    opt = tj.optim.SGD(net.parameters(), lr=1.0)

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step()
        return x * 3

    f = tj.compile(step, pure=True, backend="llvm")
    for _ in range(14):
        f(tj.ones(1, 3))
    wrong: list[Any] = []

    def check(i: int) -> None:
        if f(tj.ones(1, 3)).tolist() != [[3.0] * 3]:
            wrong.append(i)

    interrupted(check, lambda: check(-1))
    assert not wrong
    before = net.weight.tolist()
    f(tj.ones(1, 3))
    assert net.weight.tolist() == [[w - 1 for w in before[0]]]


def test_threads_that_call_one_function() -> None:
    f, total = counting(True)
    for i in range(14):
        f(tj.full((3,), float(i)))
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(200):
            if f(tj.full((3,), float(k * i))).tolist() != [2.0 * k * i] * 3:
                wrong.append((k, i))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong and total.tolist() == [814.0] * 4
