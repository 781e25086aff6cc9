"""Launching on the pretended GPU: graphs, addresses, streams, the cache, configurations, and devices that refuse."""

from __future__ import annotations

import gc
import importlib
import json
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
from fake_cupy import driver, streams
from fake_cupy.errors import CUDADriverError
from support import fake_gpu, harness, random_programs, shadow
from support.codegen.programs import one_of_each, run
from support.paths import ROOT
from support.tolerances import assert_within, spread
from tapejit.tracer.execute import reference_program as program

pytest.importorskip("triton", reason="Triton has no wheel for this platform", exc_type=ImportError)

from support import on_fake_gpu
from tapejit.codegen.program import disk_cache as cache
from tapejit.codegen.triton.device import compile as aot
from tapejit.codegen.triton.program import GpuProgram
from tapejit.codegen.triton.runtime import autotune as tune
from tapejit.codegen.triton.runtime import cuda_graph as capture
from tapejit.codegen.triton.runtime import kernel_cache as binaries
from tapejit.codegen.triton.runtime.kernel_cache import Binary, CompileRequest, Compiling

from .test_compile import numbers, programs

F = tj.nn.functional


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TAPEJIT_BACKEND", "auto")
    with fake_gpu.gpu() as xp:
        yield xp


class Net:
    """A step that reads, writes and returns, and what it should come to."""

    def __init__(self, layers: int = 3) -> None:
        tj.manual_seed(0)
        self.w = [tj.randn(4, 4).cuda().requires_grad_() for _ in range(layers)]
        self.old = [w.detach().clone() for w in self.w]

    def step(self, x: Any) -> Any:
        for w in self.w:
            x = F.softmax(x * w, 1)
        loss = x[:, 0].sum()
        for w in self.w:
            w.grad = None
        loss.backward()
        with tj.no_grad():
            for w in self.w:
                w.sub_(w.grad * 0.1)
        return loss


def both(calls: list[Any], compile: Callable[[Any], Any] = tj.compile) -> tuple[Any, list[Any]]:
    """A step eagerly and compiled, on the same batches: the compiled function, and both weights, which have to agree."""
    eager, net = Net(), Net()
    compiled = compile(net.step)
    for x in calls:
        a, b = eager.step(x), compiled(x)
        np.testing.assert_allclose(b.item(), a.item(), 1e-5)
    for a, b in zip(eager.w, net.w, strict=True):
        np.testing.assert_allclose(b.detach().cpu().numpy(), a.detach().cpu().numpy(), 1e-5, 1e-6)
    return compiled, net.w


def batches(n: int) -> list[Any]:
    return [numbers(4, 4, seed=i) for i in range(n)]


# ---- graphs


def parts(program: Any) -> list[Any]:
    return [launches for _, _, launches, _ in program.launcher.parts if launches is not None]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any launches are worth a graph."""
    monkeypatch.setattr("tapejit.codegen.triton.runtime.launcher.MIN_GRAPH_LAUNCHES", 1)
    monkeypatch.setattr("tapejit.codegen.triton.program.MIN_GRAPH_LAUNCHES", 1)
    monkeypatch.setattr("tapejit.codegen.triton.build.MIN_GRAPH_LAUNCHES", 1)


def test_launches_are_replayed_as_a_graph(few: None) -> None:
    x = numbers(4, 4)
    compiled, _ = both([x] * 8)
    (program,) = programs(compiled)
    (launches,) = parts(program)
    assert launches.replays >= 3 and len(launches.graphs) <= 2 and not program.stopped  # two losses are alive at a time


def test_another_address_is_another_graph(few: None) -> None:
    a, b = batches(2)
    compiled, _ = both([a, b] * 5)
    (launches,) = parts(programs(compiled)[0])
    assert launches.replays >= 3 and 2 <= len(launches.graphs) <= 4


def test_addresses_that_keep_changing_are_given_up(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_NEW_KEYS", 3)
    compiled, _ = both(batches(10))
    (launches,) = parts(programs(compiled)[0])
    assert launches.given_up and not launches.graphs and launches.replays == 0


def test_numbers_that_change_do_not_hinder_a_graph(few: None) -> None:
    w = numbers(4)
    f = tj.compile(lambda x, n: F.dropout(x * w, 0.5) * n)
    x = numbers(4)
    for i in range(8):
        tj.manual_seed(i)
        found = f(x, float(i))
        tj.manual_seed(i)
        expected = F.dropout(x * w, 0.5) * float(i)
        np.testing.assert_array_equal(found.cpu().numpy(), expected.cpu().numpy())
        del found
    (program,) = programs(f)
    assert parts(program)[0].replays >= 3 and program.executable.plan.tables


def test_a_capture_that_fails_is_one_warning(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_capture(self: Any, mode: Any = None) -> None:
        raise RuntimeError("streams cannot be captured here")

    monkeypatch.setattr(streams.Stream, "begin_capture", begin_capture)
    with pytest.warns(RuntimeWarning, match="not replayed as a CUDA graph: streams cannot") as seen:
        compiled, _ = both([numbers(4, 4)] * 6)
    assert len(seen) == 1 and not programs(compiled)[0].stopped


def test_outputs_that_somebody_has_are_left_alone(few: None) -> None:
    f = tj.compile(lambda x: F.softmax(x * 2, 0))
    kept = [f(numbers(5, seed=i)) for i in range(8)]
    views = [f(numbers(5, seed=i))[1:3] for i in range(8)]
    for i, (y, view) in enumerate(zip(kept, views, strict=True)):
        expected = F.softmax(numbers(5, seed=i) * 2, 0).cpu().numpy()
        np.testing.assert_allclose(y.cpu().numpy(), expected, 1e-6)
        np.testing.assert_allclose(view.cpu().numpy(), expected[1:3], 1e-6)


# ---- what the stand-in refuses


def test_a_captured_stream_takes_nothing_but_launches(gpu: Any) -> None:
    stream = gpu.cuda.Stream(non_blocking=True)
    with pytest.raises(RuntimeError, match="default stream"):
        gpu.cuda.Stream(null=True).begin_capture()
    stream.begin_capture()
    for refused in (lambda: gpu.cuda.alloc(8), stream.synchronize, gpu.cuda.Event().record, gpu.cuda.Event().synchronize):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            refused()
    stream.end_capture()
    gpu.cuda.alloc(8)


def test_copies_to_the_cpu_are_there_when_somebody_has_waited(gpu: Any) -> None:
    runtime, host = gpu.cuda.runtime, gpu.cuda.alloc_pinned_memory(4)
    x, stream = gpu.asarray(np.array([7], np.int32)), gpu.cuda.get_current_stream()
    seen = np.frombuffer(host, np.int32)
    runtime.memcpyAsync(host.ptr, x.data.ptr, 4, runtime.memcpyDeviceToHost, stream.ptr)
    event = stream.record()
    assert seen[0] == 0
    event.synchronize()
    assert seen[0] == 7


# ---- addresses and streams


def test_arrays_at_odd_addresses(gpu: Any) -> None:
    def f(x: Any, w: Any) -> Any:
        w.mul_(2)
        return (x * w).sum(0) + 1

    compiled = tj.compile(f)
    long, w = tj.arange(41.0).cuda(), tj.arange(8.0).cuda()
    x = long[1:].view(5, 8)  # 4 bytes after a multiple of 16
    assert x.tj_array.data.ptr % 16 == 4
    for _ in range(4):
        expected = (x * (w * 2)).sum(0) + 1
        found = compiled(x, w)
        np.testing.assert_allclose(found.cpu().numpy(), expected.cpu().numpy())
    (program,) = programs(compiled)
    assert len(program.variants) == 1 and not program.stopped
    found = compiled(long[:40].view(5, 8), w)  # and at good ones again
    np.testing.assert_allclose(found.cpu().numpy(), ((long[:40].view(5, 8) * w).sum(0) + 1).cpu().numpy())


def test_more_odd_addresses_than_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapejit.codegen.triton.program.MAX_VARIANTS", 1)
    compiled = tj.compile(lambda x, y: (x * 2 + y).exp())
    memory = [numbers(9, seed=i) for i in range(2)]
    for odd in [(0, 0), (0, 0), (0, 0), (1, 0), (0, 1), (1, 1), (0, 0)]:
        x, y = (m[i : i + 8] for m, i in zip(memory, odd, strict=True))
        np.testing.assert_allclose(compiled(x, y).cpu().numpy(), (x * 2 + y).exp().cpu().numpy(), 1e-6)
    assert any(len(p.variants) == 1 for p in programs(compiled))


def test_kernels_for_odd_addresses_that_do_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    compiled, memory = tj.compile(lambda x: (x * 2).exp()), numbers(9)
    for _ in range(3):
        compiled(memory[:8])

    def compiler(wanted: CompileRequest, target: str) -> Binary:
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(Compiling, "compiler", staticmethod(compiler))
    match = r"test_launcher\.py:\d+ runs as the reference program .* not multiples of 16 bytes: Triton cannot compile"
    with pytest.warns(RuntimeWarning, match=match) as seen:
        for _ in range(3):
            np.testing.assert_allclose(compiled(memory[1:]).cpu().numpy(), (memory[1:] * 2).exp().cpu().numpy(), 1e-6)
    assert len(seen) == 1 and not programs(compiled)[0].stopped
    np.testing.assert_allclose(compiled(memory[:8]).cpu().numpy(), (memory[:8] * 2).exp().cpu().numpy(), 1e-6)


def test_another_stream_waits_for_the_arena(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    usual = streams.Stream.wait_event

    def wait_event(self: Any, event: Any) -> None:
        waits.append(self.ptr)
        usual(self, event)

    monkeypatch.setattr(streams.Stream, "wait_event", wait_event)
    f, x = tj.compile(lambda x: F.softmax(x, 0) * 2), numbers(6)
    for _ in range(4):
        f(x)
    assert not waits
    with gpu.cuda.Stream(non_blocking=True) as stream:
        for _ in range(2):
            found = f(x)
    assert waits == [stream.ptr]
    np.testing.assert_allclose(found.cpu().numpy(), (F.softmax(x, 0) * 2).cpu().numpy(), 1e-6)


# ---- the arena


def large(x: Any) -> Any:
    y = F.softmax(x * 2, 1)
    return (y @ y.transpose(0, 1)).softmax(0) @ x


def right(found: Any, x: Any) -> None:
    """Compare with `large` in float64, but for its sums, which are of rows that add up to one: their errors do not grow."""
    x = x.cpu().double()
    rows, cols = x.shape
    y = F.softmax(x * 2, 1)
    assert_within(found.cpu(), large(x), spread((y @ y.transpose(0, 1)).softmax(0) @ abs(x), 2 * (rows + cols)))


def test_programs_share_one_arena(few: None) -> None:
    """It grows, and is somewhere else then, for graphs too."""
    f, g, small, wide = tj.compile(large), tj.compile(large), numbers(3, 4), numbers(6, 20)
    for x, made in [(small, f)] * 5 + [(wide, g)] * 3 + [(small, f)] * 5 + [(wide, g)]:
        right(made(x), x)
    (one,), (other,) = programs(f), programs(g)
    assert one.executable.arena < other.executable.arena == one.launcher.arena.size
    assert one.launcher.memory is other.launcher.memory
    assert sum(p.replays for p in parts(one)) >= 4


def test_an_arena_that_cannot_grow(gpu: Any) -> None:
    f, g, small, wide = tj.compile(large), tj.compile(large), numbers(3, 4), numbers(40, 30)
    for _ in range(3):
        f(small)
    gc.collect()  # what other tests have left behind
    pool = gpu.get_default_memory_pool()
    pool.set_limit(pool.used_bytes() + 4000)
    with pytest.warns(RuntimeWarning, match="without its kernels.*Out of memory allocating.*smaller batches"):
        for _ in range(3):
            right(g(wide), wide)
    right(f(small), small)
    assert programs(g)[0].stopped and not programs(f)[0].stopped


def test_threads_take_turns() -> None:
    functions = [tj.compile(lambda x, n=n: F.softmax(x * n, 1).sum(0)) for n in (1, 2)]
    x = numbers(4, 6)
    for _ in range(3):
        for f in functions:
            f(x)
    found: list[Any] = []

    def work(f: Any, n: int) -> None:
        for _ in range(5):
            found.append((n, f(x)))

    threads = [threading.Thread(target=work, args=(f, n)) for n, f in enumerate(functions, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 10
    for n, y in found:
        np.testing.assert_allclose(y.cpu().numpy(), F.softmax(x * n, 1).sum(0).cpu().numpy(), 1e-5)


# ---- packing


def test_parameters_are_those_of_compiled_kernels() -> None:
    """The launcher packs what PTX says that the kernels take."""
    compiled, _ = both(batches(3))
    (program,) = programs(compiled)
    units = [x for x in program.build.units() if x.kernel is not None]
    for row, unit in zip(program.executable.plan.rows, units, strict=True):
        sizes = aot.parameter_sizes(aot.compile_kernel(unit.printed, unit.kernel, "sm_90"))
        assert sizes == aot.launched_parameter_sizes(unit.kernel) and len(sizes) == len(row.words)


def test_a_compiled_kernel_is_told_with_what_it_takes_to_launch_it() -> None:
    program = fresh(lambda x: x * 2 + 1, numbers(2048))
    (unit,) = program.build.units()
    assert unit.printed is not None and unit.kernel is not None
    made = binaries.compile_binary(CompileRequest(unit.printed, unit.kernel), "sm_90")
    assert made.threads == 32 * unit.kernel.warps and made.code[:4] == b"\x7fELF" and made.name == unit.kernel.name
    assert binaries.from_entry(made.entry()) == made
    loose = binaries.compile_binary(
        CompileRequest(unit.printed, unit.kernel, frozenset(a.buffer for a in unit.kernel.arguments)), "sm_90"
    )
    assert loose.code != made.code


# ---- compiling once


def test_kernels_that_differ_in_names_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    compiled_kernels: list[str] = []

    def compiler(wanted: CompileRequest, target: str) -> Binary:
        compiled_kernels.append(wanted.kernel.name)
        return fake_gpu.binary(wanted, target)

    monkeypatch.setattr(Compiling, "compiler", staticmethod(compiler))

    def f(x: Any) -> Any:
        for _ in range(4):
            x = F.softmax(x * 3, 1).cumsum(1)  # nothing is fused across a scan
        return x

    made, x = tj.compile(f), numbers(3, 5)
    for _ in range(3):
        found = made(x)
    np.testing.assert_allclose(found.cpu().numpy(), f(x).cpu().numpy(), 1e-5)
    assert len(compiled_kernels) < len(programs(made)[0].executable.plan.rows)


def test_nameless_texts() -> None:
    text = "import triton\n\n\n@triton.jit\ndef {0}({1}, n):\n    {3}\n    {2} = tl.load({1} + n)\n    tl.store({1}, {2})\n"
    a = text.format("f", "x0", "total", '"""One."""')
    b = text.format("g", "e7", "mean", '"""Another."""')
    c = text.format("g", "e7", "mean", '"""Another."""').replace("+ n", "- n")
    assert binaries.nameless(a, "f") == binaries.nameless(b, "g") != binaries.nameless(c, "g")


# ---- the disk cache


def fresh(function: Any, x: Any) -> GpuProgram:
    f = tj.compile(function)
    for _ in range(3):
        f(x)
    (found,) = programs(f)
    return found


def test_a_program_from_the_disk_cache_compiles_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    function, x = (lambda x: F.softmax(x * 2, 1).sum(0)), numbers(3, 7)
    first = fresh(function, x)
    assert not first.from_disk

    def compiler(wanted: CompileRequest, target: str) -> Binary:
        raise AssertionError("it is there already")

    monkeypatch.setattr(Compiling, "compiler", staticmethod(compiler))
    second = fresh(function, x)
    assert second.from_disk and second.executable == first.executable


def test_broken_entries_are_made_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    function, x = (lambda x: F.softmax(x * 2, 1).sum(0)), numbers(3, 7)
    fresh(function, x)
    for path in (tmp_path / "cache").iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    again = fresh(function, x)
    assert not again.from_disk and not again.stopped
    assert fresh(function, x).from_disk


def test_entries_of_another_kind_are_made_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    function, x = (lambda x: F.softmax(x * 2, 1).sum(0)), numbers(3, 7)
    first = fresh(function, x)
    for row in first.executable.plan.rows:
        cache.put(row.binary, b"something else")
    assert not fresh(function, x).from_disk


# ---- configurations


def test_the_configuration_that_events_say_is_quickest(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here each launch takes as many milliseconds as this says."""
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TAPEJIT_TUNE", "1")
    seen: list[int] = []
    clock = [0.0]
    costs: dict[int, float] = {}

    def launched(*given: int) -> None:
        threads, f = given[4], given[0]
        source = driver.functions[f]["source"]
        seen.append(hash(source))
        costs.setdefault(hash(source), 5.0 - len(costs) if len(costs) < 3 else 9.0)
        clock[0] += costs[hash(source)]
        usual(*given)
        assert threads > 0

    usual = driver.launchKernel
    monkeypatch.setattr(driver, "launchKernel", launched)
    monkeypatch.setattr(streams.Event, "clock", staticmethod(lambda: clock[0]))
    choices: list[Any] = []
    best = tune.Tuner.best

    def noted(self: Any, given: Any, forms: Any) -> Any:
        found = best(self, given, forms)
        choices.append((list(given), found))
        return found

    monkeypatch.setattr(tune.Tuner, "best", noted)
    a, b = numbers(40, 24), numbers(24, 70)
    made = fresh(lambda a: a @ b, a)
    (given, found) = choices[0]
    third = min(len(given), 3) - 1
    assert len(given) > 1 and found is given[third] and not made.stopped
    count = len(seen)
    choices.clear()
    again = tj.compile(lambda a: (a @ b, a.sum()))  # another program, the same matmul: it was measured before
    again(a), again(a)
    assert len(seen) <= count + 4


@pytest.mark.parametrize("which", [0, 1])
def test_configurations_that_do_not_compile_are_not_taken(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are they a reason to do without all kernels."""
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setenv("TAPEJIT_TUNE", "1")
    texts: list[str] = []

    def compiler(wanted: CompileRequest, target: str) -> Binary:
        text = wanted.printed.source
        if "tl.dot" in text:
            texts.extend([text] * (text not in texts))
            if texts.index(text) == which:
                raise RuntimeError("PassManager::run failed")
        return fake_gpu.binary(wanted, target)

    monkeypatch.setattr(Compiling, "compiler", staticmethod(compiler))
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # so that they come in their order
    a, b = numbers(40, 24), numbers(24, 70)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = fresh(lambda a: a @ b, a)
    assert len(texts) >= 2 and not made.stopped
    assert all(texts[which] != x.printed.source for x in made.build.units() if x.printed is not None)


def test_no_memory_to_try_configurations_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setenv("TAPEJIT_TUNE", "1")

    def measured(self: Any, choices: Any, forms: Any) -> int:
        raise fake_cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 64 bytes")

    monkeypatch.setattr(tune.Tuner, "measured", measured)
    a, b = numbers(40, 24), numbers(24, 70)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fresh(lambda a: a @ b, a).stopped


def test_without_a_device_it_is_the_first_of_the_table() -> None:
    assert not tune.is_enabled(fake_cupy)


# ---- devices that refuse


def refused(x: Any, match: str, strict: bool = False) -> Any:
    """A step on a device that refuses is one warning, and goes on as eager execution would."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compiled, _ = both([x] * 5)
    warned = [str(w.message) for w in seen if issubclass(w.category, RuntimeWarning)]
    assert len(warned) == 1 and re.search(match, warned[0]), warned
    return compiled


def error(name: str, text: str = "no") -> CUDADriverError:
    return CUDADriverError(name, text)


def test_a_driver_that_is_too_old() -> None:
    driver.failing["moduleLoadData"] = error("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid")
    compiled = refused(numbers(4, 4), "INVALID_IMAGE.*update the NVIDIA driver")
    assert "reference program, as compiling failed" in str(compiled.explain())


def test_too_much_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(wanted: CompileRequest, target: str) -> Binary:
        return replace(fake_gpu.binary(wanted, target), shared=500_000)

    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(Compiling, "compiler", staticmethod(compiler))
    refused(numbers(4, 4), "wants 500000 bytes of shared memory.*compile this function with backend=.plain.")


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(wanted: CompileRequest, target: str) -> Binary:
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(Compiling, "compiler", staticmethod(compiler))
    refused(numbers(4, 4), "Triton cannot compile .* for sm_90 .PassManager::run failed.; compile this function with backend")


def test_triton_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(Compiling, "compiler", staticmethod(binaries.compile_binary))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(numbers(4, 4), "Triton, which compiles GPU kernels, is not installed: pip install 'tapejit.gpu.'")


@pytest.mark.parametrize("launches", [0, 1])
def test_a_launch_that_fails_the_first_time(launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written before is put back."""
    usual, count = driver.launchKernel, [0]

    def launched(*given: int) -> None:
        count[0] += 1
        if count[0] > launches:
            raise error("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch")
        usual(*given)

    monkeypatch.setattr(driver, "launchKernel", launched)
    compiled = refused(numbers(4, 4), "without its kernels from now on: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
    assert programs(compiled)[0].stopped


def test_a_launch_that_fails_later() -> None:
    """Before anything was written it is a warning, afterwards an error that says so."""
    f, x = tj.compile(lambda x: F.softmax(x * 2, 0).sum()), numbers(4)
    for _ in range(3):
        f(x)
    driver.failing["launchKernel"] = error("CUDA_ERROR_LAUNCH_FAILED")
    with pytest.warns(RuntimeWarning, match="CUDA_ERROR_LAUNCH_FAILED"):
        assert f(x).item() == pytest.approx(1)
    driver.failing.clear()
    net = Net()
    step = tj.compile(net.step)
    for _ in range(3):
        step(numbers(4, 4))
    (program,) = programs(step)
    driver.failing[driver.launched[-1]] = error("CUDA_ERROR_LAUNCH_FAILED")
    assert program.executable.plan.first_write < len(program.executable.plan.order)
    with pytest.raises(RuntimeError, match="in the middle of a program"):
        step(numbers(4, 4))


def test_no_memory_for_the_arena(gpu: Any) -> None:
    gpu.get_default_memory_pool().set_limit(1)
    refused(numbers(4, 4), "cannot allocate .* bytes.*use smaller batches")


def test_no_memory_to_be_careful_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that will be overwritten cannot be kept: it runs all the same."""

    def copy(self: Any, order: str = "C") -> Any:
        if order == "K":
            raise fake_cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 64 bytes")
        return usual(self, order)

    usual = fake_cupy.ndarray.copy
    monkeypatch.setattr(fake_cupy.ndarray, "copy", copy)
    compiled, _ = both(batches(4))
    assert not programs(compiled)[0].stopped


def test_no_memory_for_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = tj.compile(lambda x: F.softmax(x * 2, 0)), numbers(4)
    for _ in range(3):
        f(x)
    (program,) = programs(f)

    def none_left(shape: Any, dtype: Any) -> Any:
        raise fake_cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 16 bytes")

    program.inner.__globals__["empty0"] = none_left
    with pytest.warns(RuntimeWarning, match="use smaller batches"):
        found = f(x)
    np.testing.assert_allclose(found.cpu().numpy(), F.softmax(x * 2, 0).cpu().numpy(), 1e-6)


# ---- which device it is


def test_targets(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tapejit.codegen.triton.runtime.driver import target

    where = tj.device("cuda:0")
    assert target(where) == "sm_90"
    monkeypatch.setattr(gpu.cuda.Device, "compute_capability", "120")
    assert target(where) == "sm_120" and aot.target_of("sm_120") == ("cuda", 120, 32)
    monkeypatch.setattr(gpu.cuda.runtime, "is_hip", True)
    properties = {"gcnArchName": b"gfx942:sramecc+:xnack-"}
    monkeypatch.setattr(gpu.cuda.runtime, "getDeviceProperties", lambda n: properties, raising=False)
    assert target(where) == "gfx942" and aot.target_of("gfx1100") == ("hip", "gfx1100", 32)


def test_a_device_of_amd(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads go together by 64, and it gives a program all of its shared memory. CuPy has no function to ask for that."""
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(gpu.cuda.runtime, "is_hip", True)
    named = lambda n: {"gcnArchName": b"gfx942:sramecc+:xnack-"}
    monkeypatch.setattr(gpu.cuda.runtime, "getDeviceProperties", named, raising=False)
    monkeypatch.setattr(driver, "DEFAULT_SHARED", 64 << 10)
    driver.failing["funcSetAttribute"] = error("hipErrorUnknown")

    def compiler(wanted: CompileRequest, target: str) -> Binary:
        made = json.loads(fake_gpu.binary(wanted, target).code) | {"shared": 60_000}
        return Binary(made["name"], made["threads"], made["shared"], 0, json.dumps(made).encode())

    monkeypatch.setattr(Compiling, "compiler", staticmethod(compiler))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled, _ = both(batches(4))
    (program,) = programs(compiled)
    assert program.target == "gfx942" and not program.stopped
    assert {given[4] % 64 for given, _ in program.launcher.rows} == {0}


def test_an_old_device_runs_the_reference_program(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.cuda.Device, "compute_capability", "61")
    f, x = tj.compile(lambda x: x * 2 + 1), numbers(3)
    for _ in range(3):
        f(x)
    assert "compute capability 61; kernels need 80 or newer" in str(f.explain())


# ---- whatever is recorded


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[shadow.Seen]:
    """Everything that is replayed on the CPU is launched on the stand-in too."""
    found = shadow.Seen()
    monkeypatch.setenv("TAPEJIT_BACKEND", "plain")
    monkeypatch.setattr(program, "make_program", on_fake_gpu.shadowed(found, shadow.both, program.make_program))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about infinities
        yield found
    assert found.runs and not any(p.gpu.stopped for p in found.programs)


def test_random_programs(seen: shadow.Seen) -> None:
    seen.tolerance, seen.zero = 20, 0.3  # they normalise what is all the same, and the like
    for seed in range(4000, 4006):
        random_programs.compare(random_programs.write(Random(seed)))


def test_every_twentieth_op(seen: shadow.Seen) -> None:
    cases = one_of_each(harness.ALL)[::20]
    inputs = [harness.tensors(case, case.arrays(), tj.float32) for case in cases]
    run(lambda: [case.call(x) for case, x in zip(cases, inputs, strict=True)])


def test_everything_can_be_imported_without_triton_and_cupy() -> None:
    text = "import sys; sys.modules['triton'] = sys.modules['cupy'] = None; import tapejit.codegen.triton.program"
    subprocess.run([sys.executable, "-c", text], check=True, capture_output=True)


def test_the_benchmark_of_steps_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses agree, and launches are described. Nothing is timed."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setitem(sys.modules, "torch", None)  # it takes seconds to import
    bench = importlib.import_module("gpu")
    monkeypatch.setattr(bench, "FIRST", 2)
    eager, compiled = bench.compared("tiny", 0, 0)
    assert len(eager.losses) == len(compiled.losses) == 2
    assert re.fullmatch(r"Triton kernels for sm_90, \d+ launches", bench.launches(compiled.step))
