"""The choice between all threads and one, by measurement, here with a clock that only runs when it is told."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import tapejit as tj
from support import shadow
from support.codegen.native_steps import steps
from tapejit.codegen.llvm.build import NativeBuild
from tapejit.codegen.llvm.runtime import entry
from tapejit.codegen.llvm.runtime import thread_choice_ir as choice
from tapejit.codegen.llvm.runtime import thread_pool as threads
from tapejit.codegen.llvm.runtime.entry import ArgumentBinding, bind


class Clock:
    """Stands for the counter and the pool: a run takes as many ticks as it is said to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.alone, self.together, self.how = 1, 0, 0, 1
        self.runs: list[str] = []
        self.most: int | None = None
        pointer = ctypes.c_void_p
        ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: self.now)
        run = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, pointer, ctypes.c_int64)(self.ran_together)
        step = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64, ctypes.c_int64, pointer)(self.ran_alone)
        addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (ticks, run, step)]
        code = entry._Code({"tj_ticks": addresses[0], "tj_run": addresses[1]})
        monkeypatch.setattr(entry, "_instances", [code])
        self.program = bind(addresses[2], ArgumentBinding(()), releases_gil=False, max_threads=7, keep=(ticks, run, step, code))

    def ran_together(self, _pool: int, _step: int, _table: int, most: int) -> int:
        self.now += self.together
        self.most = most
        self.runs.append("together")
        return self.how

    def ran_alone(self, _table: int, _thread: int, _threads: int, _pool: int) -> None:
        self.now += self.alone
        self.runs.append("alone")

    def run(self, times: int) -> list[str]:
        """Return which way each run went."""
        self.runs.clear()
        for _ in range(times):
            assert self.program([], [])
        return list(self.runs)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_program_says_how_many_threads_it_has_room_for(clock: Clock) -> None:
    assert clock.run(1) == ["together"]
    assert clock.most == 7


def brief() -> int:
    """Ticks."""
    return threads.process_pool().word("brief").value


def test_a_program_that_is_quicker_alone_comes_to_run_alone(clock: Clock) -> None:
    clock.alone, clock.together = 100, 200
    assert clock.run(choice.FIRST_TRIAL) == ["together"] * choice.FIRST_TRIAL
    for interval in (0, 16, 32, 64, 128, 256, 512, 1024, 1024):  # the other way is tried, less and less often
        assert clock.run(interval) == ["alone"] * interval
        assert clock.run(choice.RUNS_PER_TRIAL) == ["together" if interval else "alone"] * choice.RUNS_PER_TRIAL
    found = entry.thread_timings(clock.program)
    rate = threads.process_pool().ticks_per_second
    assert found == {"together": 200 / rate, "alone": 100 / rate, "runs alone": 1.0}


def test_a_brief_program_that_is_quicker_together_tries_the_other_way_seldom(clock: Clock) -> None:
    clock.alone, clock.together = 200, 100
    clock.run(choice.FIRST_TRIAL + choice.RUNS_PER_TRIAL)
    assert clock.run(32) == ["together"] * 32
    assert clock.run(choice.RUNS_PER_TRIAL) == ["alone"] * choice.RUNS_PER_TRIAL
    assert clock.run(64) == ["together"] * 64


def test_a_small_difference_changes_nothing(clock: Clock) -> None:
    clock.alone, clock.together = 100, 103
    clock.run(choice.FIRST_TRIAL + choice.RUNS_PER_TRIAL)
    assert clock.run(8) == ["together"] * 8


def test_one_disturbed_try_does_not_decide(clock: Clock) -> None:
    clock.alone, clock.together = 100, 200
    clock.run(choice.FIRST_TRIAL)
    for ticks in (9000, 100, 100):
        clock.alone = ticks
        assert clock.run(1) == ["alone"]
    assert clock.run(8) == ["alone"] * 8


def test_a_long_program_is_not_tried_alone(clock: Clock) -> None:
    clock.together = 2 * brief()
    assert set(clock.run(3000)) == {"together"}


def test_a_long_program_is_tried_alone_when_most_waits_park(clock: Clock) -> None:
    clock.together, clock.alone = 4 * brief(), 3 * brief()
    clock.run(choice.FIRST_TRIAL)
    assert clock.run(5) == ["together"] * 5
    clock.how = 2
    assert set(clock.run(choice.PARKED_INTERVAL + 1)) == {"together"}
    assert clock.run(choice.RUNS_PER_TRIAL + 10) == ["alone"] * (choice.RUNS_PER_TRIAL + 10)


def test_a_long_program_that_is_hopeless_alone_is_tried_once_at_a_time(clock: Clock) -> None:
    clock.together, clock.alone, clock.how = 2 * brief(), 100 * brief(), 2
    assert clock.run(choice.FIRST_TRIAL + 6) == ["together"] * choice.FIRST_TRIAL + ["alone"] + ["together"] * 5


def test_when_cores_become_free_a_program_comes_back(clock: Clock) -> None:
    clock.together, clock.alone, clock.how = 9 * brief(), 4 * brief(), 2
    assert clock.run(1000)[-1] == "alone"
    clock.together, clock.how = 2 * brief(), 1
    runs = clock.run(choice.MAX_INTERVAL_IF_LONG + choice.RUNS_PER_TRIAL + 1)
    assert runs[-1] == "together"
    assert set(clock.run(100)) == {"together"}


def test_when_cores_are_taken_a_program_goes_alone(clock: Clock) -> None:
    clock.together, clock.alone = 100, 200
    clock.run(500)
    clock.together, clock.how = 900, 2
    assert clock.run(choice.PARKED_INTERVAL + choice.RUNS_PER_TRIAL + 9)[-1] == "alone"


def test_a_busy_pool_or_one_thread_is_not_measured(clock: Clock) -> None:
    clock.how = 0
    assert clock.run(100) == ["together"] * 100
    assert entry.thread_timings(clock.program) == {"together": 0.0, "alone": 0.0, "runs alone": 0.0}


def test_programs_choose_by_the_real_clock_too() -> None:
    count = tj.get_num_threads()
    tj.set_num_threads(2)
    library, rate = steps(), threads.process_pool().ticks_per_second
    program = bind(library["waste"], ArgumentBinding(()), [0, int(1e-4 * rate)], keep=library)
    while entry.thread_timings(program)["runs alone"] != 1:  # on a busy machine it may take a few trials
        assert program([], [])
    tj.set_num_threads(count)
    assert 0 < entry.thread_timings(program)["alone"] < entry.thread_timings(program)["together"]


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda a, b: a.T @ b, [(8192, 64), (8192, 64)], True),  # few results, and much to do for each
        (lambda a, b: a @ b, [(1 << 20,), (1 << 20,)], True),
        (lambda a, b: a.T @ b, [(64, 16), (64, 16)], False),
        (lambda a, b: a + b, [(1000,), (1000,)], False),
    ],
)
def test_which_programs_may_have_several_threads(function: Any, shapes: list[tuple[int, ...]], expected: bool) -> None:
    (graph, *_) = shadow.recorded(function, *[tj.randn(*shape) for shape in shapes])
    assert NativeBuild(graph, 100).executable([]).parallel is expected
