"""The arena that programs share: they take turns, it is as large as the largest needs, concurrent threads get their own."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.codegen.llvm.runtime import entry
from tapejit.codegen.llvm.runtime.arena import HostArena


def chain(rows: int) -> tuple[Any, Any, Any]:
    """A compiled function that needs an arena for matmuls of `rows` rows; what it is given; what it should give."""
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((rows, 24)), rng.standard_normal((24, 24))

    def matmuls(x: Any, w: Any) -> Any:
        return ((x @ w) @ w).tanh() @ w

    return tj.compile(matmuls, backend="llvm"), (tj.tensor(x), tj.tensor(w)), np.tanh(x @ w @ w) @ w


def warmed(rows: int) -> tuple[Any, Any, Any]:
    function, given, wanted = chain(rows)
    for _ in range(4):
        assert np.allclose(function(*given).numpy(), wanted)
    assert arena(function) > 0
    return function, given, wanted


def arena(function: Any) -> int:
    (segment,) = function.traces[0].programs.values()
    assert segment.native.executable.shares_arena
    return int(segment.native.executable.arena)


@pytest.fixture(autouse=True)
def alone(monkeypatch: Any) -> Any:
    """Programs of other tests do not count."""
    gc.collect()
    monkeypatch.setattr(entry._code(), "shared", HostArena(entry.shared_arena().take))


def test_programs_have_one_block_as_large_as_the_largest_wants() -> None:
    programs = [warmed(rows) for rows in (40, 300, 9)]
    sizes = [arena(function) for function, _, _ in programs]
    assert entry.shared_arena().size == max(sizes) == sizes[1]
    assert len(entry.shared_arena().programs) == 3
    for _ in range(2):
        for function, given, wanted in programs:
            assert np.allclose(function(*given).numpy(), wanted)


def test_it_shrinks_when_the_largest_is_gone() -> None:
    small, large = warmed(40), warmed(300)
    assert entry.shared_arena().size == arena(large[0])
    del large
    gc.collect()
    assert entry.shared_arena().size == arena(small[0])
    assert np.allclose(small[0](*small[1]).numpy(), small[2])


def test_a_block_in_use_neither_grows_nor_is_written() -> None:
    small = warmed(40)
    shared = entry.shared_arena()
    assert shared.take(shared.user.ctypes.data)  # as if another thread were running
    try:
        before = shared.block[0].copy()
        large = warmed(300)
        assert shared.size == arena(small[0])
        for function, given, wanted in (small, large):
            assert np.allclose(function(*given).numpy(), wanted)
        assert (shared.block[0] == before).all()
    finally:
        shared.user[0] = 0
    assert np.allclose(small[0](*small[1]).numpy(), small[2])


def test_results_outlive_the_runs_of_other_programs() -> None:
    programs = [warmed(rows) for rows in (40, 300)]
    results = [function(*given) for function, given, _ in programs]
    for function, given, _ in programs:
        function(*given)
    for result, (_, _, wanted) in zip(results, programs, strict=True):
        assert np.allclose(result.numpy(), wanted)


def test_threads_at_the_same_time() -> None:
    programs = [warmed(rows) for rows in (40, 300, 41)]
    wrong: list[int] = []

    def work(turn: int) -> None:
        for i in range(60):
            function, given, wanted = programs[(i + turn) % 3]
            if not np.allclose(function(*given).numpy(), wanted):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_in_a_child_nobody_uses_it() -> None:
    function, given, wanted = warmed(40)
    shared = entry.shared_arena()
    assert shared.take(shared.user.ctypes.data)
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            good = bool(shared.take(shared.user.ctypes.data))
            shared.user[0] = 0
            good = good and np.allclose(function(*given).numpy(), wanted)
        finally:
            os._exit(0 if good else 1)
    shared.user[0] = 0
    assert os.waitpid(pid, 0)[1] == 0
