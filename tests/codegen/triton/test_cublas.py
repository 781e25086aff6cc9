"""Matmuls as calls of cuBLAS: which, by the table and by measuring; that they give what eager execution gives; and what
happens with streams, graphs, odd addresses, the cache, and a library that refuses.

Here matmuls are small, so tests that run them say themselves that cuBLAS wins. On the stand-in it is NumPy, as strict as the
library (`fake_cupy/cublas.py`).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
from fake_cupy import cublas, driver, streams
from support import fake_gpu
from support.tolerances import assert_matmul, assert_within, epsilon, spread
from tapejit.codegen.ir.expr import ExprBuilder
from tapejit.codegen.nests.loop_nest import Nest, Stage, Store
from tapejit.codegen.schedule.step import Domain

pytest.importorskip("triton", reason="Triton has no wheel for this platform", exc_type=ImportError)

from tapejit.codegen.triton.device.specs import DEVICES
from tapejit.codegen.triton.export import ahead_of_time, bytes_moved, units_of
from tapejit.codegen.triton.matmul import cublas as blas
from tapejit.codegen.triton.matmul import cublas_or_triton as choice
from tapejit.codegen.triton.matmul.cublas_gemm import plan_cublas
from tapejit.codegen.triton.matmul.problem import Contraction, batch_of
from tapejit.codegen.triton.runtime.launcher import GEMM, KERNEL, OP
from tapejit.tracer.tools.cli.aot import recording
from tapejit.tracer.tools.report.data import gather
from tapejit.tracer.tools.report.page import page

from .test_compile import BACKENDS, numbers, programs, same

F = tj.nn.functional
PRINTS = "tapejit.codegen.triton.launches.print_launch"


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TAPEJIT_BACKEND", "auto")
    monkeypatch.setenv("TAPEJIT_CACHE", "0")  # it does not know who says that cuBLAS wins
    with fake_gpu.gpu() as xp:
        yield xp


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cuBLAS can do, it does."""
    monkeypatch.setattr(f"{PRINTS}.worth_measuring", lambda *_: True)
    monkeypatch.setattr(f"{PRINTS}.library_wins", lambda *_: True)


def order(program: Any) -> list[str]:
    return [kind for kind, _ in program.executable.plan.order]


def compared(
    function: Callable[..., Any], *inputs: Any, terms: int = 24, bound: Callable[..., Any] | None = None, calls: int = 4
) -> Any:
    """The program of a function of tensors: eagerly and compiled it has to give what it gives in float64.

    Which is up to a bound. Without one, the function of absolute values says how much is added up, and `terms` of how many.
    """
    wide = [x.cpu().double() for x in inputs]
    exact = several(function(*wide))
    bounds = several(bound(*wide) if bound is not None else [spread(y, terms) for y in several(function(*map(abs, wide)))])
    dtypes: list[Any] = []

    def script(compile: Any) -> list[Any]:
        made = compile(function)
        found: list[Any] = []
        for _ in range(calls):
            results = several(made(*inputs))
            dtypes[:] = [y.dtype.numpy for y in results]
            found += [y.float() if y.dtype.itemsize == 2 else y for y in results]
        return found

    def judge(found: list[Any], expected: list[Any]) -> None:
        for i, results in enumerate(zip(found, expected, strict=True)):
            at = i % len(exact)
            for y in results:
                assert_within(y, exact[at], bounds[at], dtypes[at])

    (program,) = programs(same(script, judge=judge))
    return program


def several(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


# ---- what is computed


LAYOUTS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "as they are": (lambda a, b: a @ b, (16, 24), (24, 40)),
    "left transposed": (lambda a, b: a.t() @ b, (24, 16), (24, 40)),
    "right transposed": (lambda a, b: a @ b.t(), (16, 24), (40, 24)),
    "both transposed": (lambda a, b: a.t() @ b.t(), (24, 16), (40, 24)),
    "the result in columns": (lambda a, b: (a @ b).t(), (16, 24), (24, 40)),
    "the result in columns, of columns": (lambda a, b: (a.t() @ b.t()).t(), (24, 16), (40, 24)),
    "parts of rows": (lambda a, b: a[:, 4:28] @ b[3:27, 8:], (16, 32), (32, 48)),
    "square": (lambda a, b: a @ b, (16, 16), (16, 16)),
    "by itself": (lambda a, b: a @ a.t(), (16, 24), (24, 40)),
    "rows of a batch": (lambda a, b: a @ b, (3, 8, 24), (24, 40)),
    "batches": (lambda a, b: a @ b, (3, 8, 24), (3, 24, 40)),
    "batches, transposed": (lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2), (3, 24, 8), (3, 40, 24)),
    "batches of batches": (lambda a, b: a @ b, (2, 3, 8, 24), (2, 3, 24, 40)),
    "heads side by side": (
        lambda a, b: a.view(8, 3, 24).transpose(0, 1) @ b.view(40, 3, 24).permute(1, 2, 0),
        (8, 72),
        (40, 72),
    ),
    "one left matrix for all": (lambda a, b: a @ b, (8, 24), (3, 24, 40)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, always: None) -> None:
    function, left, right = LAYOUTS[name]
    program = compared(function, numbers(*left), numbers(*right, seed=1))
    assert order(program) == [GEMM] and len(cublas.called) == 3  # the first call is recorded, the others are replayed


@pytest.mark.skipif(BACKENDS == ["stand-in"], reason="there is no GPU here")
def test_layouts_on_a_real_device(always: None) -> None:
    with fake_gpu.gpu(stand_in=False):
        for function, left, right in LAYOUTS.values():
            for dtype in (tj.float32, tj.float16, tj.bfloat16):
                assert order(compared(function, numbers(*left).to(dtype), numbers(*right, seed=1).to(dtype))) == [GEMM]


def test_what_cannot_be_one_call_is_a_kernel(always: None) -> None:
    """Heads that no one distance leads from one to the next."""
    a, b = numbers(2, 8, 72), numbers(2, 40, 72, seed=1)
    program = compared(
        lambda a, b: a.view(2, 8, 3, 24).transpose(1, 2) @ b.view(2, 40, 3, 24).permute(0, 2, 3, 1), a, b, calls=3
    )
    assert GEMM in order(program) and OP not in order(program)  # operands are put in order first
    assert order(program).count(KERNEL) >= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str, always: None) -> None:
    """They are added up in float32 to the end, and rounded once, by the call."""
    a, b, bias = (numbers(*s, seed=i).to(getattr(tj, dtype)) for i, s in enumerate([(16, 96), (96, 24), (24,)]))
    program = compared(lambda a, b: a @ b, a, b, terms=96)
    assert order(program) == [GEMM]
    kind = {"float16": cublas.CUDA_R_16F, "bfloat16": cublas.CUDA_R_16BF}[dtype]
    (call, *_) = cublas.called
    assert call["Atype"] == call["Btype"] == call["Ctype"] == kind and call["computeType"] == cublas.CUBLAS_COMPUTE_32F
    rounded = epsilon(a.dtype.numpy)  # the matmul is, and the sum: each by half of this at most
    bound = lambda a, b, bias: spread(abs(a) @ abs(b), 96) + rounded * (abs(a @ b) + abs(bias)).numpy()
    program = compared(lambda a, b, bias: F.relu(a @ b + bias), a, b, bias, bound=bound)
    assert order(program) == [GEMM, KERNEL] and cublas.called[-1]["Ctype"] == kind
    assert cublas.getMathMode(cublas.get_cublas_handle()) == cublas.CUBLAS_DEFAULT_MATH


def test_sums_of_halves_that_somebody_wants_stay_float32(always: None) -> None:
    a, b = (numbers(*s).to(tj.float16) for s in [(16, 96), (96, 24)])
    program = compared(lambda a, b: a.float() @ b.float(), a, b, terms=96)
    assert order(program) == [GEMM]
    assert (cublas.called[0]["Atype"], cublas.called[0]["Ctype"]) == (cublas.CUDA_R_16F, cublas.CUDA_R_32F)


def test_doubles(always: None) -> None:
    a, b = numbers(16, 24).double(), numbers(24, 40, seed=1).double()
    program = compared(lambda a, b: a @ b, a, b, bound=lambda a, b: spread(abs(a) @ abs(b), 24, np.float64))
    assert order(program) == [GEMM] and cublas.called[0]["computeType"] == cublas.CUBLAS_COMPUTE_64F


def test_float32_is_multiplied_as_the_user_says(always: None) -> None:
    """tf32 where it is allowed; else not, even where somebody has set the handle to it, which stays as it was."""
    a, b, handle = numbers(16, 240), numbers(240, 40, seed=1), cublas.get_cublas_handle()
    cublas.setMathMode(handle, cublas.TF32_MATH)
    try:
        compared(lambda a, b: a @ b, a, b, terms=240)
        assert cublas.getMathMode(handle) == cublas.TF32_MATH
        assert cublas.called[-1]["computeType"] == cublas.CUBLAS_COMPUTE_32F
    finally:
        cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
    tj.backends.cuda.matmul.allow_tf32 = True
    try:
        compared(lambda a, b: a @ b + 0, a, b, bound=lambda a, b: 2**-10 * (abs(a) @ abs(b)).numpy())  # of factors of 11 bits
        with pytest.raises(AssertionError, match="Mismatch"):
            compared(lambda a, b: (a @ b) * 1, a, b, terms=240)
        assert cublas.called[-1]["computeType"] == cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    finally:
        tj.backends.cuda.matmul.allow_tf32 = False


# ---- what is around a call


def test_what_follows_is_a_kernel_of_its_own(always: None) -> None:
    a, b, bias, rest = (numbers(*s, seed=i) for i, s in enumerate([(16, 24), (24, 40), (40,), (16, 40)]))
    program = compared(lambda a, b, bias, rest: F.gelu(a @ b + bias) + rest, a, b, bias, rest)
    assert order(program) == [GEMM, KERNEL]
    matmul = lambda a, b, bias: a.view(2, 8, 24) @ b.view(1, 24, 40).expand(2, 24, 40) + bias
    bound = lambda *given: spread(matmul(*map(abs, given)), 25)
    program = compared(lambda *given: matmul(*given).tanh(), a, b, bias, bound=bound)
    assert order(program) == [GEMM, KERNEL]


def test_a_matmul_that_is_kept_is_written_to_where_it_belongs(always: None) -> None:
    """The epilogue reads it from there: nothing is in memory for the call alone."""
    program = compared(lambda a, b: ((y := a @ b), F.gelu(y) * 2), numbers(16, 24), numbers(24, 40, seed=1))
    assert order(program) == [GEMM, KERNEL] and program.executable.arena == 0


def test_operands_that_are_computed_are_computed_first(always: None) -> None:
    a, b = numbers(16, 24), numbers(24, 40, seed=1)
    program = compared(lambda a, b: a @ (b * 2), a, b)
    assert order(program) == [KERNEL, GEMM]
    a, b = numbers(3, 8, 24).to(tj.float16), numbers(3, 24, 40, seed=1)  # one is widened, the other is float32
    program = compared(lambda a, b: a.to(b.dtype) @ b, a, b)
    assert order(program) == [KERNEL, GEMM] and cublas.called[-1]["batchCount"] == 3


def test_a_result_in_the_memory_of_an_operand(always: None) -> None:
    """The library must not write it while it reads it. These numbers are added up exactly, in any order."""

    def script(compile: Any) -> list[Any]:
        w, x = (numbers(16, 16, seed=i).round().clamp(-2, 2) for i in range(2))

        @compile
        def step() -> None:
            w.copy_(x @ w * 0.5)

        for _ in range(4):
            step()
        return [w]

    (program,) = programs(same(script, rtol=0, atol=0))
    assert GEMM in order(program)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_training(kind: str, always: None) -> None:
    """Gradients, updates in place, a dropout, and a seed that each call brings."""

    def script(compile: Any) -> list[Any]:
        first, last = tj.nn.Linear(12, 24).to("cuda"), tj.nn.Linear(24, 6).to("cuda")
        optimizer = getattr(tj.optim, kind)([*first.parameters(), *last.parameters()], lr=0.05)

        @compile
        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(last(F.dropout(F.gelu(first(x)), 0.2)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        losses = [step(numbers(8, 12, seed=i), numbers(8, 6, seed=10 + i)) for i in range(6)]
        return [*losses, *first.parameters(), *last.parameters()]

    (program,) = programs(same(script, rtol=1e-4, atol=1e-5))
    assert order(program).count(GEMM) == 5 and OP not in order(program)


# ---- which matmuls


def contraction(rows: int, cols: int, depth: int, dtype: str = "float16", batches: int = 1, then: str = "") -> Contraction:
    """A matmul of matrices as they are, and perhaps something that follows."""
    exprs, number = ExprBuilder(), batch_of(batches)
    outer, inner, own = Domain(rows, depth), Domain(depth, cols), Domain(rows, cols)
    a = exprs.load("a", number * (rows * depth) + outer.row * depth + outer.col, (), dtype)
    b = exprs.load("b", number * (depth * cols) + inner.row * cols + inner.col, (), dtype)
    matmul = exprs.cast(exprs.matmul("float32" if dtype in ("float16", "bfloat16") else dtype), dtype)
    result = exprs.op(then, dtype, matmul) if then else matmul
    store = Store("y", number * (rows * cols) + own.row * cols + own.col, result, dtype)
    nest = Nest(own, [Stage(stores=[store])], "c", (), ("matmul", then) if then else ("matmul",))
    return Contraction(batches, rows, cols, depth, a, b, nest, "")


def chosen(work: Contraction, target: str, precision: str = "ieee") -> bool:
    plan = plan_cublas(work, precision)
    assert plan is not None
    return choice.worth_measuring(work, target, precision) and choice.library_wins(work, plan, target, precision)


@pytest.mark.parametrize(
    ("work", "target", "precision", "expected"),
    [
        (contraction(4096, 4096, 4096), "sm_90", "ieee", True),
        (contraction(4096, 4096, 4096, "bfloat16"), "sm_100", "ieee", True),
        (contraction(4096, 4096, 4096), "sm_80", "ieee", False),  # a kernel is as good there
        (contraction(8192, 8192, 8192, "float32"), "sm_90", "ieee", False),
        (contraction(8192, 8192, 8192, "float32"), "sm_90", "tf32", True),
        (contraction(8192, 8192, 8192, "float32"), "gfx942", "tf32", False),  # another library
        (contraction(4096, 4096, 4096), "sm_89", "ieee", False),  # matrix units of sm_80
        (contraction(8192, 8192, 8192), "sm_120", "ieee", False),
        (contraction(8192, 8192, 8192), "sm_103", "ieee", True),
        (contraction(1024, 1024, 1024), "sm_90", "ieee", False),  # small
        (contraction(64, 16384, 65536), "sm_90", "ieee", False),  # narrow
        (contraction(512, 512, 1 << 20), "sm_90", "ieee", False),  # in parts: few tiles
        (contraction(512, 512, 4096, batches=64), "sm_90", "ieee", True),
        (contraction(4096, 4096, 4096, then="tanh"), "sm_90", "ieee", False),  # the result would be moved twice more
        (contraction(4096, 4096, 32768, then="tanh"), "sm_90", "ieee", True),  # and is little beside such a depth
    ],
)
def test_the_table(work: Contraction, target: str, precision: str, expected: bool) -> None:
    assert chosen(work, target, precision) is expected


def test_what_a_call_costs_more() -> None:
    plain, more = (plan_cublas(contraction(512, 256, 128, then=t), "ieee") for t in ("", "tanh"))
    assert plain is not None and more is not None
    assert (plain.more_bytes, plain.more_kernels) == (0, 0)
    assert (more.more_bytes, more.more_kernels) == (2 * 2 * 512 * 256, 1)  # halves, written and read
    work = contraction(512, 256, 128)
    scaled = plan_cublas(replace(work, a=ExprBuilder().op("neg", "float16", work.a)), "ieee")
    assert scaled is not None and (scaled.more_bytes, scaled.more_kernels) == (2 * 2 * 512 * 128, 1)


def test_sizes_that_the_library_cannot_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_cublas(contraction(1 << 31, 2, 2), "ieee") is None
    assert plan_cublas(contraction(1, 256, 128), "ieee") is None  # a row is no matrix
    plan = plan_cublas(contraction(4, 4, (1 << 31) - 1), "ieee")
    assert plan is not None and not plan.before


def test_small_matmuls_are_kernels() -> None:
    program = compared(lambda a, b: a @ b, numbers(16, 24), numbers(24, 40, seed=1))
    assert order(program) == [KERNEL] and not cublas.called


def test_no_cublas(monkeypatch: pytest.MonkeyPatch, always: None) -> None:
    """It is not installed, or not wanted; or results are to be the same on each stream."""
    a, b = numbers(16, 24), numbers(24, 40, seed=1)
    tj.use_deterministic_algorithms(True)
    try:
        assert order(compared(lambda a, b: a @ b, a, b)) == [KERNEL]
    finally:
        tj.use_deterministic_algorithms(False)
    monkeypatch.setenv("TAPEJIT_CUBLAS", "0")
    assert order(compared(lambda a, b: a @ b, a, b)) == [KERNEL]
    monkeypatch.delenv("TAPEJIT_CUBLAS")
    assert order(compared(lambda a, b: a @ b, a, b)) == [GEMM]
    monkeypatch.setattr(fake_cupy.cuda.runtime, "is_hip", True)
    assert not blas.usable(fake_cupy)
    monkeypatch.setattr(fake_cupy.cuda.runtime, "is_hip", False)
    monkeypatch.delattr(fake_cupy.cuda, "cublas")
    assert order(compared(lambda a, b: a @ b, a, b)) == [KERNEL]


def test_calls_do_not_go_along_with_kernels(monkeypatch: pytest.MonkeyPatch, always: None) -> None:
    """Matmuls that do not wait for each other are one launch, but not if they are calls."""
    function = lambda a, b: (a @ b, a @ (b + 1).exp())
    a, b = numbers(16, 24), numbers(24, 40, seed=1)
    assert sorted(order(compared(function, a, b))) == [GEMM, GEMM, KERNEL]
    monkeypatch.setenv("TAPEJIT_CUBLAS", "0")
    assert set(order(compared(function, a, b))) == {KERNEL}


# ---- which is quicker


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """Each launch takes as many milliseconds as this says; matmuls may be tried as calls, whatever their size."""
    monkeypatch.setenv("TAPEJIT_CACHE", "1")
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TAPEJIT_TUNE", "1")
    monkeypatch.setattr(f"{PRINTS}.worth_measuring", lambda *_: True)
    costs, clock, usual = {"kernel": 1.0, "call": 1.0, "calls": 0.0}, [0.0], driver.launchKernel
    multiply = cublas.multiply

    def launched(*given: int) -> None:
        clock[0] += costs["kernel"]
        usual(*given)

    def multiplied(g: dict[str, Any]) -> None:
        clock[0] += costs["call"]
        costs["calls"] += 1
        multiply(g)

    monkeypatch.setattr(driver, "launchKernel", launched)
    monkeypatch.setattr(cublas, "multiply", multiplied)
    monkeypatch.setattr(streams.Event, "clock", staticmethod(lambda: clock[0]))
    return costs


@pytest.mark.parametrize(
    ("kernel", "call", "expected"),
    [(1.0, 0.5, [GEMM]), (0.5, 1.0, [KERNEL]), (1.0, 0.99, [KERNEL])],  # a call has to be clearly better
)
def test_what_events_say_is_quicker(kernel: float, call: float, expected: list[str], timed: dict[str, float]) -> None:
    timed |= {"kernel": kernel, "call": call}
    a, b = numbers(16, 24), numbers(24, 40, seed=1)
    assert order(compared(lambda a, b: a @ b, a, b)) == expected
    assert timed["calls"] > 2  # it was tried in each case


def test_what_is_around_a_call_is_measured_with_it(timed: dict[str, float]) -> None:
    a, b = numbers(16, 24), numbers(24, 40, seed=1)
    timed |= {"kernel": 1.0, "call": 0.5}
    bound = lambda a, b: spread(abs(a) @ abs(b), 24)
    assert order(compared(lambda a, b: (a @ b).tanh(), a, b, bound=bound)) == [KERNEL]  # 1.5 ms against 1
    assert order(compared(lambda a, b: (a @ b, (a @ b).sum(0)), a, b, terms=24 + 16))[0] == GEMM


def test_a_choice_is_kept(timed: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the disk cache: another program with the same matmul measures nothing; another library is measured again."""
    a, b = numbers(16, 24), numbers(24, 40, seed=1)
    timed["call"] = 0.5
    assert order(compared(lambda a, b: a @ b, a, b, calls=3)) == [GEMM]
    timed |= {"call": 2.0, "calls": 0}
    assert GEMM in order(compared(lambda a, b: (a @ b, a.sum()), a, b, terms=16 * 24, calls=3))
    assert timed["calls"] == 2  # those that were replayed
    monkeypatch.setattr(cublas, "getVersion", lambda handle: 130000)
    assert GEMM not in order(compared(lambda a, b: (a @ b, a.amax()), a, b, calls=3))


def test_a_library_that_refuses_is_not_quicker(timed: dict[str, float]) -> None:
    timed["call"] = 0.0
    driver.failing["gemmEx"] = cublas.CUBLASError(15)
    assert order(compared(lambda a, b: a @ b, numbers(16, 24), numbers(24, 40, seed=1))) == [KERNEL]


def test_small_matmuls_are_not_tried(timed: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PRINTS}.worth_measuring", choice.worth_measuring)
    timed["call"] = 0.0
    assert order(compared(lambda a, b: a @ b, numbers(16, 24), numbers(24, 40, seed=1))) == [KERNEL] and not timed["calls"]


# ---- running


def test_calls_stand_between_graphs(monkeypatch: pytest.MonkeyPatch, always: None) -> None:
    """CuPy refuses them while a stream is captured: what is before and after them is replayed, they are called each time."""
    for module in ("runtime.launcher", "program", "build"):
        monkeypatch.setattr(f"tapejit.codegen.triton.{module}.MIN_GRAPH_LAUNCHES", 1)
    w = numbers(24, 40)
    made, x = tj.compile(lambda x: F.softmax(F.softmax(x * 2, 1) @ w, 1)), numbers(16, 24)
    first, last = F.softmax(x.cpu().double() * 2, 1), w.cpu().double()
    exact = F.softmax(first @ last, 1).numpy()
    # twice as much as the largest logit of a row is off, in relation to each; and the sums of both softmaxes
    bound = exact * (2 * spread(first @ abs(last), 2 * 24).max(1, keepdims=True) + spread(1, 40 + 24))
    for _ in range(8):
        found = made(x)
        assert_within(found.cpu(), exact, bound)
        del found
    (program,) = programs(made)
    kinds = [(kind, launches) for kind, _, launches, _ in program.launcher.parts]
    assert [kind for kind, _ in kinds] == [KERNEL, GEMM, KERNEL]
    graphs = [launches for kind, launches in kinds if kind == KERNEL]
    assert all(g.replays >= 3 and not g.given_up for g in graphs)
    assert len(cublas.called) > max(g.replays for g in graphs)  # before them all was launched one by one


def test_the_stand_in_refuses_calls_while_it_is_captured(gpu: Any) -> None:
    x, y, one = gpu.zeros((4, 4), np.float32), gpu.zeros((4, 4), np.float32), np.array([1, 0], np.float32)
    given = (0, 0, 4, 4, 4, one.ctypes.data, x.data.ptr, 0, 4, x.data.ptr, 0, 4, one.ctypes.data + 4)
    stream = gpu.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="during stream capture"):
            cublas.gemmEx(cublas.get_cublas_handle(), *given, y.data.ptr, 0, 4, 68, -1)
        stream.end_capture()
    with pytest.raises(AssertionError, match="in the memory of an operand"):
        cublas.gemmEx(cublas.get_cublas_handle(), *given, x.data.ptr, 0, 4, 68, -1)
    for wrong in ((y.data.ptr, 0, 3, 68, -1), (y.data.ptr, 1, 4, 68, -1), (y.data.ptr, 0, 4, 70, -1)):
        with pytest.raises(cublas.CUBLASError):
            cublas.gemmEx(cublas.get_cublas_handle(), *given, *wrong)


def test_calls_go_to_the_current_stream(gpu: Any, always: None) -> None:
    w, x = numbers(24, 40), numbers(16, 24)
    made = tj.compile(lambda x: (x @ w).tanh())
    for _ in range(3):
        made(x)
    assert cublas.called[-1]["stream"] == 0
    with gpu.cuda.Stream(non_blocking=True) as stream:
        found = made(x)
    assert cublas.called[-1]["stream"] == stream.ptr
    assert_within(found.cpu(), *tanh_of(x, w))


def tanh_of(x: Any, w: Any) -> tuple[Any, Any]:
    """Compute a matmul in float64, and its bound: tanh makes no difference larger."""
    x, w = x.cpu().double(), w.cpu().double()
    return (x @ w).tanh(), spread(abs(x) @ abs(w), x.shape[-1])


def test_another_device(always: None) -> None:
    """Its handle is another one."""
    w, x = numbers(24, 40).to("cuda:1"), numbers(16, 24).to("cuda:1")
    made = tj.compile(lambda x: x @ w)
    for _ in range(4):
        found = made(x)
    assert len(cublas.called) == 3 and found.device.index == 1
    assert_matmul(found, x, w)


def test_threads_have_handles_of_their_own(always: None) -> None:
    w, x = numbers(24, 40), numbers(16, 24)
    made = tj.compile(lambda x: x @ w)
    for _ in range(3):
        made(x)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(made(x))) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({call["handle"] for call in cublas.called}) == 3 and len(found) == 2
    for y in found:
        assert_matmul(y, x, w)


def test_odd_addresses(always: None) -> None:
    """They are all the same to the library; kernels around it are others."""
    long, w = numbers(16 * 24 + 1), numbers(24, 40)
    made = tj.compile(lambda x: (x @ w).tanh())
    for begin in (0, 0, 0, 1, 1):
        x = long[begin : begin + 16 * 24].view(16, 24)
        assert_within(made(x).cpu(), *tanh_of(x, w))
    assert any(call["B"] % 16 == 4 for call in cublas.called)
    assert all(order(p) == [GEMM, KERNEL] and not p.stopped for p in programs(made))


def test_programs_with_calls_come_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: None) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "1")
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    a, b = numbers(16, 24), numbers(24, 40, seed=1)
    function = lambda a, b: F.gelu(a @ b)
    first, second = compared(function, a, b), compared(function, a, b)
    assert not first.from_disk and second.from_disk and second.executable == first.executable and second.executable.plan.calls
    monkeypatch.delattr(fake_cupy.cuda, "cublas")  # an executable with calls is of no use then
    third = compared(function, a, b)
    assert not third.from_disk and order(third) == [KERNEL]


# ---- a library that refuses


def stepping() -> tuple[Any, Any]:
    w = numbers(16, 16)

    def step(x: Any) -> Any:
        loss = (x @ w).sum()
        w.sub_(w * 0.1)
        return loss

    return w, step


def test_a_refusal_is_one_warning_and_kernels_from_there(always: None) -> None:
    (expected, eager), (w, step), x = stepping(), stepping(), numbers(8, 16)
    driver.failing["gemmEx"] = cublas.CUBLASError(13)
    made = tj.compile(step)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            bound = spread((abs(x.cpu().double()) @ abs(expected.cpu().double())).sum(), 16 + 8 * 16)
            assert_within(made(x).item(), eager(x).item(), bound)
    warned = [str(y.message) for y in seen if issubclass(y.category, RuntimeWarning)]
    assert len(warned) == 1 and "without cuBLAS from now on" in warned[0] and "CUBLAS_STATUS_EXECUTION_FAILED" in warned[0]
    np.testing.assert_allclose(w.cpu().numpy(), expected.cpu().numpy(), 1e-6)
    (program,) = programs(made)
    assert not program.stopped and GEMM not in order(program) and KERNEL in order(program)


def test_a_refusal_later(always: None) -> None:
    """As long as nothing was written it is the same; afterwards it is an error that says so."""
    w = numbers(24, 40)
    made, x = tj.compile(lambda x: x @ w), numbers(16, 24)
    for _ in range(4):
        made(x)
    driver.failing["gemmEx"] = cublas.CUBLASError(13)
    with pytest.warns(RuntimeWarning, match="without cuBLAS from now on"):
        assert_matmul(made(x), x, w)
    driver.failing.clear()
    v = numbers(16, 24)

    def step() -> Any:
        v.mul_(2)
        return v @ w

    late = tj.compile(step)
    for _ in range(4):
        late()
    (program,) = programs(late)
    assert order(program)[-1] == GEMM and program.executable.plan.first_write < len(program.executable.plan.order) - 1
    driver.failing["gemmEx"] = cublas.CUBLASError(13)
    with pytest.raises(RuntimeError, match=r"in the middle of a program.*cuBLAS refuses a matmul"):
        late()


# ---- descriptions


def recorded(function: Callable[..., Any], *inputs: Any) -> Any:
    made = tj.compile(function)
    with recording(100) as found:
        for _ in range(3):
            made(*inputs)
    ((_, graph),) = found.graphs
    return graph


def test_explain_says_which_matmuls_are_calls(always: None) -> None:
    w, x = numbers(24, 40), numbers(16, 24)
    made = tj.compile(lambda x: (x @ w).tanh())
    for _ in range(4):
        made(x)
    explained = str(made.explain(kernels=True))
    assert "a call of cuBLAS: [16, 24] @ [24, 40] of float32 to float32" in explained and "the rest of the matmul" in explained
    (program,) = programs(made)
    assert program.what == "Triton kernels for sm_90, 1 launch, 1 matmul by cuBLAS"
    assert "a call of cuBLAS" in page(gather([made], "gpu"))
    call, rest = program.report()["kernels"]
    assert call["kind"] == "matmul" and call["flops"] == 2 * 16 * 24 * 40 + 16 * 40 and rest["flops"] == 0
    assert call["bytes"] == 4 * (16 * 24 + 24 * 40 + 16 * 40)


def test_the_table_of_kernels_ahead_of_time(tmp_path: Path, always: None) -> None:
    a, b = tj.randn(16, 24), tj.randn(24, 40)
    graph = recorded(lambda a, b: (a @ b, (a + 1) @ (b + 1)), a, b)
    units, forms = units_of(graph, "sm_90")
    calls = [x for x in units if x.gemm is not None]
    assert len(calls) == 2 and all(bytes_moved(x, forms) == 4 * (16 * 24 + 24 * 40 + 16 * 40) for x in calls)
    (program,) = ahead_of_time([("step", recorded(lambda a, b: a @ b, a, b))], DEVICES["H100"], tmp_path, lambda *_: None)
    text = (tmp_path / "step" / "table.txt").read_text()
    assert "cublas_matmul is a call of cuBLAS: [16, 24] @ [24, 40] of float32 to float32" in text
    assert "0 launches of 0 kernels and 1 call of cuBLAS" in text
    (row,) = program.rows
    assert row.kind == "cuBLAS" and row.launches == 1 and not row.files and row.flops == 2 * 16 * 24 * 40


def test_bytes_of_what_is_around_a_call_are_counted(always: None) -> None:
    graph = recorded(lambda a, b: (a @ b).tanh(), tj.randn(16, 24), tj.randn(24, 40))
    units, forms = units_of(graph, "sm_90")
    call, rest = units
    assert bytes_moved(call, forms) == 4 * (16 * 24 + 24 * 40 + 16 * 40) and bytes_moved(rest, forms) == 4 * 2 * 16 * 40
