"""Loops as Triton kernels: Triton's interpreter runs them on NumPy arrays, and they do what reference programs do; and they
compile for devices that are not here.

Programs run under `shadow`: twice from the same memory, plainly and by kernels. Nothing here has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import harness, random_programs, shadow
from support.codegen.programs import IMPRECISE, LAYOUTS, STEPS, everything, one_of_each, run, slopes, train, values
from tapejit.codegen.ir.expr import ExprBuilder
from tapejit.codegen.nests.loop_nest import Nest, Stage, Store
from tapejit.codegen.schedule.fusion import Domain
from tapejit.codegen.triton.loops.print_nest import print_nest
from tapejit.codegen.triton.printing.kernel_text import Printed
from tapejit.tracer.execute import reference_program as program

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

from support.codegen import interpreted
from tapejit.codegen.triton.device import compile as aot
from tapejit.codegen.triton.device.interpreter import run_kernels as launch
from tapejit.codegen.triton.printing import expr_printer as body

MAKE = program.make_program


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels."""
    with interpreted.watched(monkeypatch, tolerance=0.5) as found:  # float32 to 1e-5
        yield found


@pytest.fixture
def in_order(seen: shadow.Seen, monkeypatch: Any) -> None:
    """Make sums at indices be added in a fixed order."""
    monkeypatch.setattr(program, "make_program", interpreted.shadowed(seen, shadow.both, MAKE, deterministic=True))


def kernels(function: Callable[..., Any], *args: Any) -> list[Printed]:
    """The printed nests of a function."""
    found = [k for g in shadow.recorded(function, *args) for k in interpreted.Interpreted(g).kernels]
    return [k for k in found if k is not None]


def tensor(*shape: int) -> Any:
    return tj.from_numpy(values(shape))


# ---- every op

VALUES = one_of_each(harness.ALL)
SLOPES = [c for c in one_of_each([case for case in harness.ALL if case.differentiable]) if c.key not in IMPRECISE]


def batched(cases: list[harness.Case], n: int) -> list[list[harness.Case]]:
    return [cases[i : i + n] for i in range(0, len(cases), n)]


def called(cases: list[harness.Case], dtype: Any) -> Callable[[], Any]:
    given = [harness.tensors(case, case.arrays(), dtype) for case in cases]
    return lambda: [case.call(x) for case, x in zip(cases, given, strict=True)]


CALLED = {"sort", "topk", "median", "nanmedian", "searchsorted", "polygamma", "view_scatter"}  # the last one of diagonals
CALLED_BACKWARDS = {"scatter", "as_strided_sum", "ctc_backward"}  # of what is sorted, of `as_strided`, of `ctc_loss`


def test_a_disturbed_parser_reads_again() -> None:
    errors: list[Exception] = [SystemError("AST constructor recursion depth mismatch (before=90, after=98)")] * 2
    errors.append(ValueError("of a function that the kernel calls"))
    errors[-1].__cause__ = errors[0]

    def compile() -> str:
        if errors:
            raise errors.pop()
        return "compiled"

    assert aot.retry_parsing(compile) == "compiled"
    for error in (SystemError("something else"), ValueError("recursion depth mismatch")):
        errors.append(error)
        with pytest.raises(type(error)):
            aot.retry_parsing(compile)


def test_values(seen: Any) -> None:
    """These are the only ops without kernels; what looks at values, as linear algebra does, ends a segment before that."""
    seen.zero = 0.06  # sums of a few numbers of about 1, which are off by a few epsilons though they cancel out
    for cases in batched(VALUES, 20):
        run(called(cases, tj.float32))
    assert interpreted.called(seen) == CALLED


def test_values_in_double_precision(seen: Any) -> None:
    run(called(VALUES[::10], tj.float64))


def test_gradients(seen: Any) -> None:
    seen.tolerance = 5
    for case in SLOPES:
        run(slopes([case], tj.float32))
    assert interpreted.called(seen) == CALLED - {"searchsorted"} | CALLED_BACKWARDS


def test_gradients_in_double_precision(seen: Any) -> None:
    seen.tolerance = 100
    run(slopes(SLOPES[::12], tj.float64))


def test_numbers_that_are_not_finite(seen: Any) -> None:
    special = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, -2.5, 2.5, 0.5]
    a, b = tj.tensor(special).reshape(-1, 1), tj.tensor(special)

    def function() -> Any:
        both = [a + b, a - b, a * b, a / b, tj.maximum(a, b), tj.minimum(a, b), tj.fmax(a, b), tj.fmin(a, b), a < b, a == b]
        both += [a >= b, a != b, tj.remainder(a, b), tj.fmod(a, b), a // b, a**b, tj.atan2(a, b), tj.copysign(a, b)]
        one = [b.exp(), b.log(), b.tanh(), b.sigmoid(), b.sqrt(), b.abs(), b.sign(), b.floor(), b.round(), b.trunc(), -b]
        one += [b.isnan(), b.isinf(), b.isfinite(), tj.signbit(b), b.clamp(-1, 1), F.relu(b), F.gelu(b), b.sin(), b.erf()]
        rows = [a.expand(12, 12).amax(1), a.expand(12, 12).amin(0), b.sum(), b.amax(), F.softmax(b, 0), b.log1p()]
        return [*both, *one, *rows, tj.signbit(-b), tj.signbit(tj.maximum(a, b)), b.to(tj.int32), b.to(tj.int8), b.bool()]

    run(function)


def test_integers_and_booleans(seen: Any) -> None:
    random = np.random.default_rng(0)
    whole = [np.int64, np.int32, np.int16, np.int8, np.uint8]
    given = [tj.from_numpy(random.integers(0 if k is np.uint8 else -100, 100, (3, 5)).astype(k)) for k in whole]
    flags = tj.from_numpy(random.random((3, 5)) < 0.5)

    def function() -> Any:
        found = []
        for x, y in zip(given, given[1:] + given[:1], strict=True):
            found += [
                x + y,
                x - y,
                x * y,
                x / 3,
                x < y,
                x == y,
                tj.maximum(x, y),
                x.abs(),
                -x,
                x & y,
                x | y,
                ~x,
                x.sign(),
                x**2,
            ]
            found += [x.sum(), x.sum(0), x.prod(1), x.amax(1), x.amin(0), x.any(1), x.all(0), x.float(), x.double(), x.bool()]
            divisor = y.abs() + 1
            found += [x // divisor, x % divisor, x // -3, x % -3, tj.fmod(x, 3), tj.div(x, divisor, rounding_mode="trunc")]
            found += [x << 1, x >> 1, x << y.clamp(0, 70), x >> y.clamp(0, 70), x ** y.clamp(0, 5), x**3]
            found += [tj.where(flags, x, y), x.clamp(-3, 50), x.to(tj.uint8), x.to(tj.int16), x.float().mean(1)]
        found += [flags + flags, flags * flags, flags & ~flags, flags ^ flags, flags.sum(), flags.any(0), flags.all(1)]
        return [*found, flags.float(), flags.logical_not(), flags.to(tj.int8), flags == flags, flags.amax(0), flags < flags]

    run(function)


def of_two(name: str, dtype: str, size: int) -> Printed:
    """The kernel of an op of two arrays."""
    exprs, domain = ExprBuilder(), Domain(1, size)
    a, b = (exprs.load(x, domain.col, (), dtype) for x in "ab")
    store = Store("found", domain.col, exprs.op(name, dtype, a, b), dtype)
    return print_nest(Nest(domain, [Stage(stores=[store])], "c", (), (name,)))


INTEGER_OPS: dict[str, Callable[..., Any]] = {
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "fmod": np.fmod,
    "trunc_divide": lambda a, b: (a - np.fmod(a, b)) // b,
    "pow": lambda a, b: np.power(a, abs(b)),
    "bitwise_left_shift": lambda a, b: np.left_shift(a, abs(b)),
    "bitwise_right_shift": lambda a, b: np.right_shift(a, abs(b)),
}


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_division_powers_and_shifts_of_integers(dtype: str) -> None:
    info = np.iinfo(dtype)
    a, b = np.meshgrid([info.min, info.max, 0, 1, 3, 7, 100, *([-1, -7] if info.min else [])], [1, 2, 3, 7, 9, 33, 70])
    b = np.concatenate([b, -b]) if info.min else b
    a, b = np.resize(a, b.shape).astype(dtype).ravel(), b.astype(dtype).ravel()
    for name, function in INTEGER_OPS.items():
        divisor = abs(b) if "shift" in name or name == "pow" else b
        found = np.zeros_like(a)
        with np.errstate(all="ignore"):
            launch(of_two(name, dtype, a.size), {"a": a, "b": divisor, "found": found}, {})
            np.testing.assert_array_equal(found, function(a, divisor), err_msg=name)


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16])
def test_half_precision(seen: Any, dtype: Any) -> None:
    x, y = (tensor(4, 19 + k)[:, :19].to(dtype).requires_grad_() for k in range(2))

    def function() -> Any:
        found = [x + y, x * 0.1, x / 3, x**3, x**1.5, tj.sqrt(x * x), F.gelu(x), F.softmax(x, 1), x.sum(0), x.sum(1), x.mean()]
        found += [F.layer_norm(x, (19,)), x.amax(1), x > 0.1, x.to(tj.float64), x.to(tj.int32), x.round(decimals=1)]
        loss = (F.silu(x) * y + tj.tanh(y)).float().pow(2).mean()
        return [*found, loss, tj.autograd.grad(loss, [x, y])]

    run(function)


# ---- fusions, many shapes, whole steps


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 7), (5, 3), (17, 17), (40, 64)], ids=str)
def test_fusions(seen: Any, shape: tuple[int, ...]) -> None:
    seen.tolerance = 5
    x = tensor(*shape).requires_grad_()
    run(lambda: everything(x))


def test_layouts(seen: Any) -> None:
    seen.tolerance = 5
    given = [tj.from_numpy(layout(values((9, 33)))) for layout in LAYOUTS.values()]
    run(lambda: [(F.softmax(x, 1), x.sum(0), x.t() * 2, x.exp(), x[:, ::2].sum(1), F.layer_norm(x, (33,))) for x in given])


def test_long_rows(seen: Any) -> None:
    """Rows that do not fit into registers are done tile after tile; so are the columns' totals beside them."""
    x, w = tensor(6, 9001).requires_grad_(), tensor(9001).requires_grad_()

    def function() -> Any:
        y = F.layer_norm(x, (9001,), w)
        return [y, F.softmax(x, 1), x.amax(1), tj.autograd.grad((y * y.detach().cos()).sum(), [x, w])]

    seen.tolerance = 5
    run(function)
    assert any("for start in range(0, 9001, 2048)" in k.source for p in seen.programs for k in p.kernels if k)


def test_totals_of_many_rows(seen: Any) -> None:
    """Pieces of the rows have their own totals, which a second kernel puts together."""
    x, w = tensor(300, 129).requires_grad_(), tensor(129).requires_grad_()

    def function() -> Any:
        y = F.layer_norm(x, (129,), w)
        return [(x * 2).sum(0), (x.detach() > 1).any(0), tj.autograd.grad((y * y.detach().cos()).sum(), [x, w])]

    seen.tolerance = 5
    run(function)
    assert any(len(k.kernels) > 1 for p in seen.programs for k in p.kernels if k)


def test_few_long_rows(seen: Any) -> None:
    """They are cut into parts, which a second kernel puts together, and goes on with what depends on them."""
    x, tall = tensor(3, 9000), tensor(5000, 6)
    run(
        lambda: [
            x.sum(1) * 2 + 1,
            x.amax(1),
            (x > 1.9).any(1),
            x.exp().sum(),
            tall.sum(0),
            tall.amin(0),
            (tall * 0 + 1).prod(0),
        ]
    )
    names = [k.name for p in seen.programs for x in p.kernels if x for k in x.kernels]
    assert any(name.endswith("_whole") for name in names)


def looked_up(dtype: Any) -> Callable[[], Any]:
    table = tensor(7, 5).to(dtype).requires_grad_()
    index = tj.tensor([[0, 6, 6], [2, 6, 0]])
    rows, cols = tj.tensor([1, 4, 1, 1]), tj.tensor([0, 2, 0, 3])

    def function() -> Any:
        found = F.embedding(index, table, padding_idx=2), table[rows, cols], table.gather(1, index.t() % 5)
        total = sum((t.float() * (1 + t.detach().float())).sum() for t in found)
        return [*found, tj.autograd.grad(total, [table])]

    return function


def test_picked_by_indices(seen: Any) -> None:
    for dtype in (tj.float32, tj.float64, tj.float16, tj.bfloat16):
        run(looked_up(dtype))


def test_picked_by_indices_in_order(seen: Any, in_order: None) -> None:
    run(looked_up(tj.float32))
    run(looked_up(tj.bfloat16))


def test_indices_out_of_bounds_touch_nothing(seen: Any) -> None:
    """Whoever looks at the flag does it later; until then nothing outside of the table may be read or written."""
    table, index = np.arange(8, dtype=np.float32), np.array([1, 9_000_000_000, -9_000_000_000, 3])
    taken = tj.compile(lambda i: tj.from_numpy(table)[i])
    for _ in range(3):
        taken(tj.tensor([1, 2, 3, 4]))
    (fast,) = seen.programs
    arrays: list[Any] = [None] * (1 + max(x.slot for x in (*fast.graph.inputs, *fast.graph.outputs)))
    for x in fast.graph.inputs:
        arrays[x.slot] = index if fast.graph.forms[x.name].dtype == np.int64 else table
    fast.run(arrays, [])
    assert [*arrays[fast.graph.outputs[0].slot]] == [1.0, 0.0, 0.0, 3.0]


def test_random_numbers(seen: Any) -> None:
    """The bits are those of eager execution."""
    x = tensor(5, 40)

    def function() -> Any:
        found = [
            F.dropout(x, 0.3),
            tj.rand(3, 7),
            tj.rand(9, dtype=tj.float64),
            tj.rand(9).half(),
            tj.rand(5, dtype=tj.bfloat16),
        ]
        found += [tj.randint(-3, 1000, (11,)), tj.randint(0, 1 << 20, (11,)), tj.randint(-(1 << 62), 1 << 62, (11,))]
        return [*found, tj.empty(6).uniform_(-2, 3), (tj.rand(40) < 0.5).any()]

    run(function, calls=5)
    assert any("maths.random_mask" in k.source for p in seen.programs for k in p.kernels if k)
    run(lambda: [tj.randn(4, 9), tj.randn(9, dtype=tj.float64), tj.randn(33).to(tj.float16)])


@pytest.mark.parametrize("name", STEPS)
def test_training_steps(seen: Any, name: str) -> None:
    train(name, seen, 4)
    assert not interpreted.called(seen), "a step has kernels for all that it does"
    assert max(seen.programs, key=lambda p: len(p.launches)).graph.write_backs


def test_random_programs(seen: Any) -> None:
    seen.tolerance, seen.zero = 20, 0.3  # they normalise what is all the same, and the like
    for seed in range(3000, 3012):
        random_programs.compare(random_programs.write(Random(seed)))
    assert interpreted.called(seen) <= CALLED


def test_indices_of_64_bits(seen: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(body, "LARGE", 1)
    seen.tolerance = 5
    x = tensor(12, 33).requires_grad_()
    run(lambda: everything(x))
    assert any("tl.cast(" in k.source for p in seen.programs for k in p.kernels if k)


def test_odd_numbers_of_elements(seen: Any) -> None:
    given = [tensor(n) for n in (1023, 1025, 3001)]
    run(lambda: [(F.gelu(x) * 2 + 1, x[1:] + x[:-1], F.pad(x, (1, 2))) for x in given])


# ---- what is printed


def test_kernels_can_be_read() -> None:
    x = tensor(7, 50)
    (found,) = kernels(lambda: F.softmax(x, 1))
    assert "def amax_exp_sum_true_divide(" in found.source
    assert "test_nest_printer.py:" in found.source and "for c in range(50)" in found.source
    assert len(found.kernels) == 1 and found.kernels[0].grid == 1


# ---- compiled for devices that are not here


def compiled(found: list[Printed], target: str) -> list[tuple[Any, Any]]:
    jobs = [(p, k) for p in found for k in p.kernels]
    aot.compile_kernel(*jobs[0], target)  # what is loaded once
    with ThreadPoolExecutor(2) as pool:
        return [(k, m) for (_, k), m in zip(jobs, pool.map(lambda job: aot.compile_kernel(*job, target), jobs), strict=True)]


def compiled_step() -> list[Printed]:
    """Pointwise, rows, totals beside, picked and added at indices, random bits, halves."""
    x, w, b = tensor(64, 256).requires_grad_(), tensor(256).requires_grad_(), tensor(256).requires_grad_()
    table, index = tensor(100, 256).requires_grad_(), tj.arange(64) % 100

    def function() -> Any:
        h = F.dropout(F.gelu(x + F.embedding(index, table)), 0.1)
        y = F.layer_norm(h, (256,), w, b)
        loss = F.cross_entropy(y, index)
        return [loss, tj.autograd.grad(loss, [x, w, b, table]), y.detach().t().to(tj.bfloat16) * 2]

    return kernels(function)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_compile(target: str) -> None:
    for kernel, made in compiled(compiled_step(), target):
        used = aot.resources(made, target)
        assert used.spills == 0 and used.registers <= 128, (kernel.name, used)
        assert aot.parameter_sizes(made) == aot.launched_parameter_sizes(kernel)


@pytest.mark.parametrize("target", aot.TARGETS)
def test_contiguous_accesses_are_of_128_bits(target: str) -> None:
    x, wide, halves = tensor(64, 1024), tensor(1 << 16), tensor(1 << 16).to(tj.bfloat16)
    for function in (lambda: F.softmax(x, 1), lambda: wide.to(tj.bfloat16).exp(), lambda: halves * 2, lambda: halves.float()):
        for _, made in compiled(kernels(function), target):
            used = aot.resources(made, target)
            assert set(used.loads) == {128} and set(used.stores) == {128}, used


def test_whole_tiles_are_read_by_128_bits_however_many_elements_there_are() -> None:
    x = tensor(4099)
    ((_, made),) = compiled(kernels(lambda: x * 2 + 1), "sm_90")
    assert 128 in aot.resources(made, "sm_90").loads and 128 in aot.resources(made, "sm_90").stores
