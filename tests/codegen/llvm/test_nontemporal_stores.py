"""Non-temporal stores: the same bits as ordinary stores, wherever arrays begin; and which results use them. Row prefetch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.codegen.kernels import OneKernel, guarded, native_of, target
from support.tolerances import assert_within, spread
from tapejit.codegen.llvm import nontemporal_stores
from tapejit.codegen.llvm.ir.target import CPUS, Target, _restrict, host, target_for
from tapejit.codegen.llvm.loops import row_prefetch
from tapejit.codegen.llvm.program import NativeProgram
from tapejit.codegen.llvm.runtime import jit
from tapejit.codegen.llvm.step_function import KernelEmitter
from tapejit.tracer.execute import tiering

pytestmark = pytest.mark.skipif(not host().has("sse2"), reason="these are for x86")

SMALL = 256  # bytes: rows that are long enough, here
MARGIN, FILL = 512, 0xA5  # bytes before and after an array that nobody may touch
LAST_CACHE = nontemporal_stores.last_level_cache_bytes


@pytest.fixture(autouse=True)
def near(monkeypatch: Any, tmp_path: Any) -> Iterator[None]:
    """As if there were no caches."""
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(nontemporal_stores, "last_level_cache_bytes", lambda: SMALL)
    monkeypatch.setattr(nontemporal_stores, "MIN_ROW_BYTES", SMALL)
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))  # native code is used however long it takes on a busy machine
    yield


def random(*shape: int, dtype: Any = tj.float32, grad: bool = False) -> Any:
    found = tj.tensor(np.random.default_rng(sum(shape)).standard_normal(shape), dtype=tj.float32).to(dtype)
    return found.requires_grad_(grad)


# ---- the same bits

CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Any]] = {
    "flat": (lambda x: tj.tanh(x), (20_011,), tj.float32),
    "rows": (lambda x: tj.softmax(x, -1), (7, 131), tj.float32),
    "rows of whole vectors": (lambda x: tj.softmax(x, -1), (5, 128), tj.float32),
    "doubles": (lambda x: tj.softmax(x, -1), (6, 77), tj.float64),
    "halves": (lambda x: x * x + x, (9_003,), tj.float16),
    "brain floats": (lambda x: x * x + x, (9_003,), tj.bfloat16),
    "flags": (lambda x: x > x * x, (30_001,), tj.float32),
    "two results": (lambda x: (x * x, tj.exp(x)), (17_003,), tj.float32),
    "two sizes": (lambda x: (x * x, x.double()), (17_003,), tj.float32),
}


def placed(form: Any, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """An array of a form so many bytes after a multiple of 64, and all of the memory around it."""
    room = np.full(form.nbytes + 2 * MARGIN + 128, FILL, np.uint8)
    start = -room.ctypes.data % 64 + MARGIN + offset
    return np.ndarray(form.shape, form.dtype, room, start), room


def cpus() -> list[Any]:
    narrow = [pytest.param(lambda bits=bits: target(bits), id=f"{bits} bits") for bits in (512, 256, 128)]
    less = [pytest.param(lambda cpu=cpu: runnable(cpu), id=cpu) for cpu in ("haswell", "x86-64-v2")]
    return [*narrow, *less]


def runnable(cpu: str) -> Target:
    if not all(host().has(word) for word in CPUS[cpu][1].split()):
        pytest.skip(f"this machine cannot run code for {cpu}")
    return _restrict(host(), cpu)


@pytest.mark.parametrize("cpu", cpus())
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_wherever_arrays_begin(name: str, cpu: Callable[[], Target]) -> None:
    """The first run has ordinary stores. Nothing is touched before the arrays or after them, whoever does which piece."""
    function, shape, dtype = CASES[name]
    x = random(*shape, dtype=dtype)
    native = native_of(function, x)
    build, kernel = native.build, OneKernel(native, cpu())
    stores, rng = build.nontemporal_stores(), np.random.default_rng(0)
    assert stores and kernel.made.kernel.nontemporal
    wanted: dict[str, bytes] = {}
    for again, offset in [(False, 0), *[(True, n) for n in (0, 8, 16, 24, 32, 40, 56, 2)]]:
        results = {s.buffer: placed(build.forms[s.buffer], offset + 16 * i) for i, s in enumerate(stores)}
        flags = {s.flag: np.array(again) for s in stores}
        arrays = {b: array for b, (array, _) in results.items()}
        kernel({next(iter(build.inputs)): guarded(x.tj_array), **flags, **arrays}, rng)
        for b, (array, room) in results.items():
            assert wanted.setdefault(b, array.tobytes()) == array.tobytes(), f"{b} at {offset}"
            array[...] = np.zeros((), array.dtype)
            assert np.count_nonzero(room == FILL) == room.size - array.nbytes, f"around {b} at {offset}"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(64, 1024), (63, 1031)])
def test_programs_give_the_same_bits(threads: int, shape: tuple[int, int], monkeypatch: Any) -> None:
    """The first run has new memory, the second one takes that again, and only that uses non-temporal stores."""
    x, y = random(*shape, grad=True), tj.arange(shape[0]) % shape[1]

    def step() -> Any:
        x.grad = None
        loss = F.cross_entropy(x, y)
        loss.backward()
        return loss

    native = native_of(step)
    (store,) = native.build.nontemporal_stores()
    slot = next(o.slot for o, v in native.build.work.outputs if v == store.buffer)
    assert native.executable.nontemporal == [native.build.outputs[store.buffer]]
    space, seen = native.run.__globals__, list[bool]()
    program = space["p0"]
    space["p0"] = lambda a, s: seen.append(bool(a[-1])) or program(a, s)
    before = tj.get_num_threads()
    tj.set_num_threads(threads)
    try:
        arrays: list[Any] = [None] * native.slots
        for given in native.build.work.inputs:
            arrays[given.slot] = x.tj_array if native.build.forms[given.name].ndim == 2 else y.tj_array
        native.run(arrays, [])
        first, address = arrays[slot].tobytes(), arrays[slot].ctypes.data
        arrays[slot][...] = 7
        native.run(arrays, [])
        assert arrays[slot].ctypes.data == address and arrays[slot].tobytes() == first
        held = arrays[slot]
        native.run(arrays, [])
        assert arrays[slot].ctypes.data != address and arrays[slot].tobytes() == first == held.tobytes()
    finally:
        tj.set_num_threads(before)
    assert seen == [False, True, False]
    monkeypatch.setattr(nontemporal_stores, "last_level_cache_bytes", lambda: 1 << 60)
    ordinary = native_of(step)
    assert not ordinary.build.nontemporal_stores()
    ordinary.run(arrays, [])
    assert arrays[slot].tobytes() == first


# ---- which results


def assembly(native: NativeProgram, cpu: Target | None = None) -> str:
    build = native.build
    kernels = [KernelEmitter(build.forms, cpu or host(), build.layout, build.plans).make(x) for x in build.steps]
    return "".join(jit.assembly(made.text, cpu) for made in kernels if made is not None)


def test_large_results_go_past_the_caches_and_small_ones_do_not(monkeypatch: Any) -> None:
    monkeypatch.setattr(nontemporal_stores, "last_level_cache_bytes", lambda: 1 << 18)
    large, small = (native_of(lambda x: tj.softmax(x, -1), random(rows, 1024)) for rows in (64, 63))
    assert "movnt" in assembly(large) and "# non-temporal" in str(large)
    assert "movnt" not in assembly(small) and "non-temporal" not in str(small)
    assert "sfence" in large.texts[-1] and "sfence" not in small.texts[-1]


@pytest.mark.parametrize(
    "cpu, instruction", [("haswell", "vmovntps\t%ymm"), ("x86-64-v2", "movntps\t%xmm"), ("x86-64-v4", "vmovntps\t%zmm")]
)
def test_all_x86_have_an_instruction_for_it(cpu: str, instruction: str) -> None:
    assert instruction in assembly(native_of(lambda x: tj.softmax(x, -1), random(64, 1024)), target_for(cpu))


def test_results_that_are_read_or_added_up_stay_near() -> None:
    x, w = random(64, 1024), random(64, 1024)
    assert not native_of(lambda x: (y := tj.tanh(x), y @ y.T), x).build.nontemporal_stores(), "read by a matmul"
    assert not native_of(lambda x: w.mul_(2).add_(x), x).build.nontemporal_stores(), "somebody's memory"
    assert not native_of(lambda x: F.dropout(x, 0.5), x).build.nontemporal_stores(), "random numbers are made in fours"
    assert not native_of(lambda x: x * 2, random(64, 4096).T[:, :40]).build.nontemporal_stores(), "short rows"
    both = native_of(lambda x: (y := tj.exp(x), y.sum(-1)), x).build
    assert not both.nontemporal_stores() and len(both.steps) == 1, "added up in the same loop"


def test_elements_are_not_computed_twice_where_that_shows() -> None:
    """An update beside a large result: its loop reads what it overwrites."""
    w = random(64, 1024)

    def step(x: Any) -> Any:
        w.mul_(0.5).add_(x)
        return x * 3

    x = random(64, 1024)
    expected = w.numpy().copy()
    made = tj.compile(step, backend="llvm")
    for _ in range(6):
        expected = expected * np.float32(0.5) + x.numpy()
        assert np.array_equal(made(x).numpy(), x.numpy() * 3)
    assert np.array_equal(w.numpy(), expected)


def test_how_large_the_last_cache_is(monkeypatch: Any, tmp_path: Any) -> None:
    known = LAST_CACHE.__wrapped__
    monkeypatch.setattr(nontemporal_stores, "CACHES", tmp_path)
    assert known() == nontemporal_stores.DEFAULT_CACHE_BYTES
    for i, size in enumerate(["32K\n", "1024K\n", "96M\n"]):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size)
    assert known() == 96 << 20
    (tmp_path / "index0" / "size").write_text("?")
    assert known() == nontemporal_stores.DEFAULT_CACHE_BYTES


# ---- the next row


def test_the_next_row_is_fetched_where_a_row_is_gone_through_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(nontemporal_stores, "last_level_cache_bytes", lambda: 1 << 60)
    monkeypatch.setattr(row_prefetch, "MIN_TOTAL_BYTES", 1 << 20)
    softmax, x = lambda x: tj.softmax(x, -1), random(64, 4096)
    assert "prefetcht1" in assembly(native_of(softmax, x))
    assert "prefetcht1" not in assembly(native_of(softmax, random(63, 4096))), "all of it may be near"
    assert "prefetcht1" not in assembly(native_of(softmax, random(4096, 64))), "short rows"
    assert "prefetcht1" not in assembly(native_of(softmax, random(2, 1 << 18))), "rows that would be gone again"
    assert "prefetcht1" not in assembly(native_of(lambda x: tj.exp(x).sum(-1), x)), "one loop over each row"


def test_there_may_be_no_next_row(monkeypatch: Any) -> None:
    """Behind the last one is a page that may not be touched."""
    monkeypatch.setattr(nontemporal_stores, "last_level_cache_bytes", lambda: 1 << 60)
    monkeypatch.setattr(row_prefetch, "MIN_TOTAL_BYTES", 0)
    x = random(5, 1040)
    native = native_of(lambda x: tj.softmax(x, -1), x)
    assert "llvm.prefetch" in native.texts[0]
    out = guarded(np.zeros((5, 1040), np.float32))
    OneKernel(native, host())({next(iter(native.build.inputs)): guarded(x.tj_array), next(iter(native.build.outputs)): out})
    assert np.allclose(out, tj.softmax(x, -1).numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("rows", "asks"), [(1100, True), (64, False)])
def test_what_follows_a_large_matmul_is_asked_for_before_its_tiles(rows: int, asks: bool) -> None:
    x, w, r = random(rows, 12), random(12, 1030), random(rows, 1030)
    fn = lambda x, w, r: tj.tanh(x @ w) * r
    native = native_of(fn, x, w, r)
    assert ("llvm.prefetch" in native.texts[0]) is asks
    compiled, (x, w, r) = tj.compile(fn)(x, w, r), (t.double() for t in (x, w, r))
    added = abs(x) @ abs(w) * abs(r)  # tanh makes no difference larger
    assert_within(compiled, fn(x, w, r), spread(added, 12) + spread(fn(x, w, r).abs(), 4))
