"""The native runtime: the target, compiling and linking, threads that run a step together, programs as Python callables."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.codegen.native_steps import ROUNDS, relay, steps
from tapejit.codegen.llvm.ir import target
from tapejit.codegen.llvm.runtime import entry, jit
from tapejit.codegen.llvm.runtime import entry_ir as entry_text
from tapejit.codegen.llvm.runtime import perf_map as perf
from tapejit.codegen.llvm.runtime import thread_pool as threads
from tapejit.codegen.llvm.runtime import thread_pool_ir as pool
from tapejit.codegen.llvm.runtime.entry import ArgumentBinding, bind
from tapejit.codegen.program import disk_cache as cache

LINUX = sys.platform == "linux"
UNVERIFIED = """
define i32 @f(i32 %x) {
entry:
  br label %next
next:
  %y = phi i32 [ 1, %entry ], [ 2, %next ]
  ret i32 %y
}
"""
UNLINKABLE = """
declare void @nowhere()
define void @f() {
  call void @nowhere()
  ret void
}
"""
NESTED = """
define internal void @inner() noinline {
  ret void
}
define void @outer() {
  call void @inner()
  ret void
}
"""
SET_FLOAT_MODE = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @set(ptr %p) {
  call void @llvm.x86.sse.ldmxcsr(ptr %p)
  ret void
}
"""
SQUARE = """
define double @square(double %x) {
  %y = fmul double %x, %x
  ret double %y
}
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The number of threads is what it was."""
    count = tj.get_num_threads()
    yield
    tj.set_num_threads(count)


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for another thread to come somewhere; a test that hangs ends here."""
    for _ in range(20_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never happened")


# ---- the target


def test_the_host_has_vectors() -> None:
    host = target.host()
    assert host.bits in (64, 128, 256, 512)
    assert host.lanes("float") == 2 * host.lanes("double") == host.bits // 32
    assert host.lanes("i8") == host.bits // 8
    assert target.Target("", "", "+avx2,-avx512f", 64).lanes("double") == 1
    assert str(host.bits) in str(host)


def test_features_are_whole_words() -> None:
    some = target.Target("x86_64-linux", "some", "+avx,-avx512f,+fma", 256)
    assert some.has("avx")
    assert some.has("fma")
    assert not some.has("avx512f")
    assert not some.has("av")
    assert not some.has("fma4")


def test_vectors_can_be_narrowed_but_not_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_VECTOR_BITS", "128")
    assert target._requested_bits(512) == 128
    assert target.host.__wrapped__().bits == 128
    monkeypatch.setenv("TAPEJIT_VECTOR_BITS", "512")
    assert target._requested_bits(256) == 256
    monkeypatch.setenv("TAPEJIT_VECTOR_BITS", "100")
    with pytest.raises(ValueError, match=r"\[compile\] TAPEJIT_VECTOR_BITS is '100'"):
        target._requested_bits(512)


# ---- compiling and linking


def call(address: int, *args: float) -> float:
    return ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_double] * len(args))(address)(*args)


def test_text_becomes_a_function() -> None:
    for opt in range(4):
        library = jit.link([jit.compile_text(SQUARE, opt=opt)], {}, ["square"])
        assert call(library["square"], 3.0) == 9.0
    assert "square at 0x" in repr(library)


def test_objects_call_each_other_and_imports() -> None:
    given = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: x + 1)
    other = """
    declare double @square(double)
    declare double @given(double)
    define double @both(double %x) {
      %a = call double @square(double %x)
      %b = call double @given(double %a)
      ret double %b
    }
    """
    objects = jit.objects([other, SQUARE])
    address = ctypes.cast(given, ctypes.c_void_p).value or 0
    library = jit.link(objects, {"given": address}, ["both"])
    assert call(library["both"], 3.0) == 10.0


@pytest.mark.parametrize("count", [1, 2, 4])
def test_modules_compiled_together_keep_their_order(count: int) -> None:
    tj.set_num_threads(count)
    texts = [f"define double @f{i}() {{\n  ret double {i}.0\n}}" + "\n; long" * (i % 3) for i in range(9)]
    objects = jit.objects(texts)
    for i, data in enumerate(objects):
        library = jit.link([data], {}, [f"f{i}"])
        assert call(library[f"f{i}"]) == i
    assert jit.objects([]) == []


def test_what_llvm_refuses_is_a_sentence() -> None:
    with pytest.raises(jit.CompileFailed, match=r"\[compile\] LLVM cannot parse the generated code: .*expected"):
        jit.compile_text("define nonsense")
    with pytest.raises(jit.CompileFailed, match=r"\[compile\] LLVM rejects the generated code: "):
        jit.compile_text(UNVERIFIED)
    with pytest.raises(jit.CompileFailed, match=r"cannot link the generated code: .*missing"):
        jit.link([jit.compile_text(SQUARE)], {}, ["missing"])
    with pytest.raises(jit.CompileFailed, match="cannot link the generated code"):
        jit.link([jit.compile_text(UNLINKABLE)], {}, ["f"])
    with pytest.raises(jit.CompileFailed, match="no code generator"):
        jit.compile_text(SQUARE, target.Target("nocpu-unknown", "x", "", 128))


def test_one_bad_text_among_many() -> None:
    tj.set_num_threads(2)
    with pytest.raises(jit.CompileFailed, match="cannot parse"):
        jit.objects([SQUARE, "nonsense", SQUARE])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_texts_compile_while_others_are_written(count: int) -> None:
    tj.set_num_threads(count)
    batch = jit.Batch()
    texts = [f"define double @g{i}() {{\n  ret double {i}.0\n}}" + "\n; long" * (i % 3) for i in range(6)]
    for i, text in enumerate([*texts, *texts]):
        batch.add(text, opt=0 if i % 2 else 3)
        time.sleep(0.002 * (i == 3))
    found, keys = batch.objects(), batch.keys()
    assert len(found) == len(keys) == 6
    for i, data in enumerate(found):
        library = jit.link([data], {}, [f"g{i}"])
        assert call(library[f"g{i}"]) == i
    assert keys == [jit.object_key(text, opt=0 if i % 2 else 3) for i, text in enumerate(texts)]


def test_an_error_of_a_helper_is_raised_where_objects_are_wanted() -> None:
    tj.set_num_threads(3)
    batch = jit.Batch()
    batch.add("nonsense")
    batch.add(SQUARE)
    with pytest.raises(jit.CompileFailed, match="cannot parse"):
        batch.objects()


def test_a_library_that_is_gone_leaves_the_others() -> None:
    kept = jit.link([jit.compile_text(SQUARE)], {}, ["square"])
    for _ in range(5):
        jit.link([jit.compile_text(SQUARE)], {}, ["square"])
    assert call(kept["square"], 4.0) == 16.0


def test_assembly_is_for_people() -> None:
    assert "square" in jit.assembly(SQUARE)
    assert "mul" in jit.assembly(SQUARE)


def test_what_the_cache_has_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TAPEJIT_CACHE", raising=False)
    first = jit.objects([SQUARE, SQUARE + "; another"])
    monkeypatch.setattr(jit, "_emit", lambda *_, **__: pytest.fail("it is compiled again"))
    assert jit.objects([SQUARE, SQUARE + "; another"]) == first
    library = jit.link(jit.objects([SQUARE]), {}, ["square"])
    assert call(library["square"], 5.0) == 25.0
    narrower = target.Target(target.host().triple, "another", target.host().features, 128)
    with pytest.raises(pytest.fail.Exception):
        jit.objects([SQUARE], narrower)
    cache._cache_in.cache_clear()


@pytest.mark.skipif(not LINUX, reason="the profiler is Linux'")
def test_functions_have_names_in_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_PERF", "1")
    library = jit.link([jit.compile_text(NESTED)], {}, [])
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    lines = {line.split()[2]: line.split() for line in path.read_text().splitlines()}
    path.unlink()
    assert int(lines["outer"][0], 16) == library["outer"]
    assert {"inner", "outer"} <= set(lines)
    assert int(lines["inner"][1], 16) > 0
    assert list(perf.symbols(b"no ELF")) == []


# ---- threads


@pytest.fixture(scope="module", params=["the process's", "condition", "none"])
def some_pool(request: pytest.FixtureRequest) -> Iterator[threads.ThreadPool]:
    """The pool as it is on this system, one that parks as on others, and one without workers."""
    found = threads.process_pool() if request.param == "the process's" else threads.ThreadPool(request.param)
    yield found
    if found is not threads.process_pool():
        found.stop()


def run_relay(found: threads.ThreadPool, library: jit.Library, cells: int, rounds: int, most: int = 99) -> tuple[int, Any, Any]:
    """Return how it ran, what it computed, and what it should have computed."""
    first = np.arange(cells, dtype=np.int64)
    rows = [first.copy(), np.zeros(cells, np.int64)]
    table = np.array([rows[0].ctypes.data, rows[1].ctypes.data, cells, rounds], np.int64)
    how = found.run(library["relay"], table.ctypes.data, most)
    return how, rows[rounds % 2], relay(first, rounds)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_all_threads_meet_at_barriers(some_pool: threads.ThreadPool, count: int) -> None:
    tj.set_num_threads(count)
    library = steps(some_pool)
    for rounds in (0, 1, ROUNDS, ROUNDS + 1):
        how, found, expected = run_relay(some_pool, library, 13, rounds)
        assert np.array_equal(found, expected)
        assert (how > 0) == (count > 1 and some_pool.parking != "none")
    if some_pool.parking != "none" and count > 1:
        assert some_pool.threads == count


def test_a_step_runs_on_no_more_threads_than_it_has_room_for(some_pool: threads.ThreadPool) -> None:
    tj.set_num_threads(5)
    library = steps(some_pool)
    flag = np.ones(1, np.int64)
    for most in (3, 5, 1, 2, 9):
        how, found, expected = run_relay(some_pool, library, 13, ROUNDS, most)
        assert np.array_equal(found, expected)
        together = some_pool.parking != "none" and most > 1
        assert (how > 0) == together
        seen = np.zeros(5, np.int64)
        table = np.array([seen.ctypes.data, flag.ctypes.data], np.int64)
        some_pool.run(library["hold"], table.ctypes.data, most)
        taking = min(most, 5) if together else 1
        assert seen.tolist() == [taking] * taking + [0] * (5 - taking)


def test_the_number_of_threads_may_change_between_steps() -> None:
    found, library = threads.process_pool(), steps()
    for count in (2, 4, 1, 3, 2, 1, 2):
        tj.set_num_threads(count)
        _, got, expected = run_relay(found, library, 7, 9)
        assert np.array_equal(got, expected)


def test_workers_that_are_parked_wake_up() -> None:
    tj.set_num_threads(3)
    found, library = threads.process_pool(), steps()
    for _ in range(3):
        _, got, expected = run_relay(found, library, 7, 9)
        assert np.array_equal(got, expected)
        idle = ctypes.c_int32.from_address(found.address + pool.POOL_LAYOUT["idle"])
        eventually(lambda idle=idle: idle.value == 2)


@pytest.mark.parametrize("parking", ["futex", "condition"] if LINUX else ["condition"])
def test_waits_that_always_park_and_waits_that_sometimes_do(parking: str) -> None:
    own = threads.ThreadPool(parking)
    library = steps(own)
    for count, haste, patience in ((2, 0, 0), (4, 0, 0), (3, 20_000, 0), (3, 0, 20_000), (2, 2_000, 2_000)):
        tj.set_num_threads(count)
        own.word("haste").value, own.word("patience").value = haste, patience
        for rounds in range(30):
            how, got, expected = run_relay(own, library, 11, rounds)
            assert how > 0
            assert np.array_equal(got, expected)
    assert own.word("parks").value > 0
    assert own.stop()


def test_more_threads_than_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = ctypes.CDLL(None).pthread_create
    real.argtypes = [ctypes.c_void_p] * 4
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)

    @prototype
    def at_most_two(*args: int) -> int:
        made.append(len(made))
        return real(*args) if len(made) <= 2 else 11  # EAGAIN

    link = jit.link
    address = ctypes.cast(at_most_two, ctypes.c_void_p).value or 0
    monkeypatch.setattr(
        jit, "link", lambda objects, imports, exports: link(objects, {**imports, "pthread_create": address}, exports)
    )
    limited = threads.ThreadPool("futex" if LINUX else "condition")
    monkeypatch.undo()
    tj.set_num_threads(6)
    for _ in range(3):
        how, got, expected = run_relay(limited, steps(limited), 11, 20)
        assert how > 0
        assert np.array_equal(got, expected)
    assert limited.threads == 3
    assert made == [0, 1, 2]
    assert limited.stop()


def test_a_stopped_pool_runs_steps_alone() -> None:
    own = threads.ThreadPool(threads.process_pool().parking)
    tj.set_num_threads(2)
    library = steps(own)
    assert run_relay(own, library, 5, 4)[0] > 0
    assert own.stop()
    how, got, expected = run_relay(own, library, 5, 4)
    assert how == 0
    assert np.array_equal(got, expected)


def test_a_caller_that_finds_the_pool_busy_goes_alone() -> None:
    found, library = threads.process_pool(), steps()
    tj.set_num_threads(2)
    seen, flag = np.zeros(2, np.int64), np.zeros(1, np.int64)
    table = np.array([seen.ctypes.data, flag.ctypes.data], np.int64)
    first = threading.Thread(target=found.run, args=(library["hold"], table.ctypes.data))
    first.start()
    eventually(lambda: bool((seen == 2).all()))
    how, got, expected = run_relay(found, library, 9, 8)
    flag[0] = 1
    first.join()
    assert how == 0
    assert np.array_equal(got, expected)
    assert run_relay(found, library, 9, 8)[0] > 0


def test_many_callers_at_once() -> None:
    found, library = threads.process_pool(), steps()
    tj.set_num_threads(2)
    wrong: list[int] = []

    def caller(number: int) -> None:
        for k in range(40):
            _, got, expected = run_relay(found, library, 5 + number, 10 + k)
            if not np.array_equal(got, expected):
                wrong.append(number)

    callers = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


def test_workers_have_room_on_their_stacks() -> None:
    tj.set_num_threads(3)
    seen = np.zeros(3, np.int64)
    table = np.array([seen.ctypes.data])
    library = steps()
    threads.process_pool().run(library["spread"], table.ctypes.data)
    assert seen.tolist() == [1, 1, 1]


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_workers_get_no_signals() -> None:
    before = set(os.listdir("/proc/self/task"))
    own = threads.ThreadPool("futex")
    tj.set_num_threads(3)
    run_relay(own, steps(own), 5, 4)
    workers = set(os.listdir("/proc/self/task")) - before
    assert len(workers) == 2
    for worker in workers:
        status = Path(f"/proc/self/task/{worker}/status").read_text()
        blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
        for signal in (1, 2, 10, 14, 15, 17):
            assert blocked >> signal - 1 & 1
        assert not blocked >> 11 - 1 & 1  # a fault is still reported
    assert own.stop()
    assert not set(os.listdir("/proc/self/task")) & workers


@pytest.mark.skipif("x86_64" not in target.host().triple, reason="sets the mode as x86 does")
def test_workers_treat_denormals_as_the_caller_does() -> None:
    library = jit.link([jit.compile_text(SET_FLOAT_MODE)], {}, ["set"])
    set_mode = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library["set"])
    usual, flushing = np.array([0x1F80], np.uint32), np.array([0x1F80 | 0x8040], np.uint32)
    tj.set_num_threads(3)
    found, code = threads.process_pool(), steps()
    smallest = np.finfo(np.float64).tiny
    for mode, expected in ((usual, smallest / 2), (flushing, 0.0), (usual, smallest / 2)):
        values = np.full(3, smallest)
        table = np.array([values.ctypes.data], np.int64)
        set_mode(mode.ctypes.data)
        how = found.run(code["halve"], table.ctypes.data)
        set_mode(usual.ctypes.data)
        assert how > 0
        assert values.tolist() == [expected] * 3


def test_texts_for_other_systems_are_verified() -> None:
    for parking in ("futex", "condition", "none"):
        assert "tj_barrier" in pool.pool_ir("aarch64", parking)
        assert "$" not in pool.pool_ir("aarch64", parking)
    assert pool.pool_ir("riscv64", "futex") == pool.SINGLE_THREAD_IR
    assert "$" not in entry_text.entry_ir()


# ---- programs


def report(binding: ArgumentBinding, constants: tuple[int, ...] = (), **options: Any) -> entry.BoundProgram:
    library = steps()
    return bind(library["report"], binding, constants, keep=library, **options)


MIXED = ArgumentBinding((2,), ((1, "double"), (0, "i64"), (2, "double")))


@pytest.fixture(params=["native", "slow"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to bind."""
    if request.param == "slow":
        monkeypatch.setattr(entry, "_fields_are_known", lambda: False)
    return request.param


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("releases_gil", [False, True])
@pytest.mark.usefixtures("path")
def test_arrays_and_numbers_are_bound(parallel: bool, releases_gil: bool) -> None:
    tj.set_num_threads(2)
    program = report(MIXED, (2**64 - 5,), parallel=parallel, releases_gil=releases_gil)
    out = np.zeros(4, np.int64)
    for k in range(3):
        assert program([None, "unread", out, 5], [k - 1, 2.5 * k, np.float32(0.1)]) is True
        assert out[[0, 2]].view(np.float64).tolist() == [2.5 * k, float(np.float32(0.1))]
        assert out[[1, 3]].tolist() == [k - 1, -5]


@pytest.mark.usefixtures("path")
def test_each_call_binds_anew() -> None:
    program = report(MIXED, (7,))
    for k in range(4):
        fresh = np.zeros(4, np.int64)
        program([None, None, fresh[:]], [k, 0.0, 0.0])
        assert fresh.tolist() == [0, k, 0, 7]


def test_numbers_as_python_takes_them() -> None:
    program = report(MIXED, (0,))
    out = np.zeros(4, np.int64)
    for x in (0.0, -0.0, -1.0, 1e-320, float("inf"), True, 3, -1, np.float64(2.5), np.int8(-4), 2**70):
        for n in (0, -1, True, 2**63 - 1, -(2**63), np.int32(5)):
            assert program([0, 0, out], [n, x, 1.0])
            assert out[0] == np.float64(x).view(np.int64)
            assert out[1] == int(n)
    assert program([0, 0, out], [0, float("nan"), 1.0])
    assert np.isnan(out[:1].view(np.float64)[0])


@pytest.mark.usefixtures("path")
def test_bits_of_integers_of_any_size() -> None:
    program = report(ArgumentBinding((0,), ((0, "bits"), (1, "bits"))), (1, 2))
    out = np.zeros(4, np.uint64)
    for x in (0, 1, -1, 2**63, 2**64 - 1, 2**64 + 5, -(2**63), np.uint64(2**63 + 7)):
        assert program([out], [x, 3])
        assert out.tolist() == [int(x) % 2**64, 3, 1, 2]


class Derived(np.ndarray):  # type: ignore[type-arg]
    pass


def test_mistakes_are_errors_and_the_program_goes_on() -> None:
    program = report(MIXED, (0,))
    out = np.zeros(4, np.int64)
    good: list[Any] = [None, None, out]
    numbers: list[Any] = [1, 2.0, 3.0]
    untyped: Callable[..., Any] = program
    mistakes: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        ((), TypeError, "takes a list"),
        ((good,), TypeError, "takes a list"),
        ((good, numbers, numbers), TypeError, "takes a list"),
        ((tuple(good), numbers), TypeError, "takes a list"),
        ((good, None), TypeError, "takes a list"),
        ((good[:2], numbers), TypeError, "too short"),
        (([], numbers), TypeError, "too short"),
        ((good, numbers[:2]), TypeError, "too short"),
        (([None] * 3, numbers), TypeError, "holds something other than an array"),
        ((good, [1, "x", 3.0]), TypeError, "must be real number"),
        ((good, [1.5, 2.0, 3.0]), TypeError, "."),
        ((good, [2**63, 2.0, 3.0]), OverflowError, "too"),
        ((good, [1, None, 3.0]), TypeError, "."),
    ]
    for args, kind, says in mistakes:
        with pytest.raises(kind, match=says):
            untyped(*args)
        assert program(good, numbers) is True
    assert program([None, None, out.view(Derived)], numbers) is True


def test_a_program_keeps_what_it_needs() -> None:
    program = report(MIXED, (0,))
    before = sys.getrefcount(program)
    out = np.zeros(4, np.int64)
    references = sys.getrefcount(out)
    for _ in range(1000):
        program([None, None, out], [1, 2.0, 3.0])
    assert sys.getrefcount(out) == references
    assert sys.getrefcount(program) == before
    assert sys.getrefcount(None) > 0
    del program  # and everything it kept
    assert report(MIXED, (0,))([None, None, out], [1, 2.0, 3.0])


def test_one_run_at_a_time() -> None:
    library = steps()
    program = bind(library["hold"], ArgumentBinding((0, 1)), parallel=False, keep=library)
    seen, flag = np.zeros(1, np.int64), np.zeros(1, np.int64)
    results: list[bool] = []
    first = threading.Thread(target=lambda: results.append(program([seen, flag], [])))
    first.start()
    eventually(lambda: seen[0] == 1)  # which also shows that the GIL is free while it runs
    others = np.zeros(1, np.int64), np.ones(1, np.int64)
    assert program([*others], []) is False
    assert others[0][0] == 0
    flag[0] = 1
    first.join()
    assert results == [True]
    assert program([*others], []) is True
    assert others[0][0] == 1


def test_a_hundred_slots() -> None:
    library = steps()
    order = tuple(np.random.default_rng(0).permutation(100).tolist())
    program = bind(library["report"], ArgumentBinding(order), keep=library)
    arrays: list[Any] = [np.zeros(4, np.int64) for _ in range(100)]
    program(arrays, [])
    assert arrays[order[0]].tolist() == [arrays[slot].ctypes.data for slot in order[1:5]]
