"""Native code does what reference programs do: every op, many shapes and layouts, widths of vectors and numbers of threads.

Programs run under `shadow`: twice from the same memory, plainly and natively, and must agree up to the last bits of maths and
the order of sums. Many ops are compiled together, and without LLVM's optimisations, as compiling is what takes time here.
"""

from __future__ import annotations

import os
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import harness, random_programs, shadow
from support.codegen.programs import FUSIONS, IMPRECISE, LAYOUTS, STEPS, everything, one_of_each, run, slopes, train, values
from support.tolerances import spread, within
from tapejit.codegen.llvm import build as native_module
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.program import compile_graph
from tapejit.codegen.llvm.runtime import jit
from tapejit.tracer.execute import reference_program as program
from tapejit.tracer.execute import tiering
from tapejit.tracer.graph.functionalize import graph_of
from tapejit.tracer.graph.passes import optimize


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: Any) -> Iterator[None]:
    """One folder for all: kernels that occur twice are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed also runs natively."""
    with shadow.watching(monkeypatch) as found:
        yield found


@pytest.fixture
def hasty(monkeypatch: Any) -> None:
    """Code as LLVM writes it at first."""
    add = jit.Batch.add
    monkeypatch.setattr(jit.Batch, "add", lambda batch, text, opt=0, now=True: add(batch, text, 0, now))


# ---- every op


def in_batches(cases: list[harness.Case], size: int) -> list[Any]:
    parts = [cases[i : i + size] for i in range(0, len(cases), size)]
    return [pytest.param(p, id=f"{p[0].key}..{p[-1].key}") for p in parts]


DIFFERENTIABLE = [case for case in harness.ALL if case.differentiable]


def results(cases: list[harness.Case], dtype: Any) -> Callable[[], Any]:
    given = [harness.tensors(case, case.arrays(), dtype) for case in cases]
    return lambda: [case.call(x) for case, x in zip(cases, given, strict=True)]


@pytest.mark.parametrize("cases", in_batches(harness.ALL, 90))
def test_values(seen: Any, hasty: Any, cases: list[harness.Case]) -> None:
    seen.zero = 0.03  # sums of a few numbers of about 1, which are off by a few epsilons though they cancel out
    run(results(cases, tj.float32))


@pytest.mark.parametrize("cases", in_batches(one_of_each(harness.ALL)[::2], 120))
def test_values_in_double_precision(seen: Any, hasty: Any, cases: list[harness.Case]) -> None:
    run(results(cases, tj.float64))


@pytest.mark.parametrize("cases", in_batches(one_of_each(DIFFERENTIABLE), 70))
def test_gradients_in_double_precision(seen: Any, hasty: Any, cases: list[harness.Case]) -> None:
    seen.tolerance = 100
    run(slopes(cases, tj.float64))


@pytest.mark.parametrize("cases", in_batches([c for c in one_of_each(DIFFERENTIABLE) if c.key not in IMPRECISE][::4], 70))
def test_gradients(seen: Any, hasty: Any, cases: list[harness.Case]) -> None:
    seen.tolerance = 5
    run(slopes(cases, tj.float32))


def test_numbers_that_are_not_finite(seen: Any, hasty: Any) -> None:
    special = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, -2.5, 2.5, 0.5]
    for dtype in (tj.float32, tj.float64):
        a = tj.tensor(special, dtype=dtype).reshape(-1, 1)
        b = tj.tensor(special, dtype=dtype)

        def function(a: Any = a, b: Any = b) -> Any:
            both = [a + b, a - b, a * b, a / b, tj.maximum(a, b), tj.minimum(a, b), tj.fmax(a, b), tj.fmin(a, b), a < b, a == b]
            both += [a >= b, a != b, tj.remainder(a, b), tj.fmod(a, b), a // b, a**b, tj.atan2(a, b), tj.copysign(a, b)]
            one = [b.exp(), b.log(), b.tanh(), b.sigmoid(), b.sqrt(), b.abs(), b.sign(), b.floor(), b.round(), b.trunc(), -b]
            one += [b.isnan(), b.isinf(), b.isfinite(), tj.signbit(b), b.clamp(-1, 1), F.relu(b), F.gelu(b), b.sin(), b.erf()]
            rows = [
                a.expand(12, 12).amax(1),
                a.expand(12, 12).amin(0),
                b.sum(),
                b.amax(),
                F.softmax(b, 0),
                b.log1p(),
                b.expm1(),
            ]
            return [*both, *one, *rows, b.to(tj.int32), b.bool(), tj.nan_to_num(b), b.reciprocal(), b.rsqrt(), b.logical_not()]

        run(function)


@pytest.mark.parametrize("columns", [3, 7, 40])
def test_flipped_reshapes(columns: int, seen: Any, hasty: Any) -> None:
    """Indices that run backwards are divided."""
    x = tj.arange(2 * columns, dtype=tj.float32).view(2, columns)

    def function() -> Any:
        y = x.repeat_interleave(3)
        y.add_(y.flip(-1))
        folded = x.flip(0, 1).reshape(columns, 2)
        return [
            y,
            x.repeat_interleave(2, 1).flip(1) + 1,
            folded + 1,
            folded.flip(0).reshape(-1) * 2,
            x.T.flip(0).reshape(2, -1) + 1,
        ]

    run(function)


def test_rows_in_which_members_of_a_step_do_not_meet(seen: Any, hasty: Any) -> None:
    """Products of all pairs of joined rows: only rows as short as those of the result have both members at the same place."""
    x, y = tj.arange(120.0).view(8, 15), tj.arange(15.0).view(1, 15)

    def function() -> Any:
        z = tj.kron(tj.cat([x, y]), x)
        return z, tj.nan_to_num(z)

    run(function)


def test_limits_that_a_dtype_does_not_hold(seen: Any, hasty: Any) -> None:
    """Negative ones wrap round in unsigned integers; others are refused before there is a graph."""
    x = tj.tensor([0, 1, 2, 3, 100, 127, 200, 255], dtype=tj.uint8)

    def function() -> Any:
        limited = [
            f(x.to(d)) for d in (tj.uint8, tj.int8) for f in (F.relu6, lambda y: y.clamp(-100, 100), lambda y: y.clamp(-100))
        ]
        return [*limited, F.hardtanh(x.to(tj.int8)), F.hardtanh(x, 1, 100)]

    run(function)


def test_integers_and_booleans(seen: Any, hasty: Any) -> None:
    random = np.random.default_rng(0)
    whole = [np.int64, np.int32, np.int16, np.int8, np.uint8]
    given = [tj.from_numpy(random.integers(0 if k is np.uint8 else -100, 100, (3, 5)).astype(k)) for k in whole]
    flags = tj.from_numpy(random.random((3, 5)) < 0.5)

    def function() -> Any:
        found = []
        for x, y in zip(given, given[1:] + given[:1], strict=True):
            divisor = y.abs() + 1
            found += [x + y, x - y, x * y, x // divisor, x % divisor, tj.div(x, divisor, rounding_mode="trunc"), x / divisor]
            found += [x < y, x == y, tj.maximum(x, y), x.abs(), -x, x & y, x | y, x ^ y, ~x, x << 1, x >> 1, x.sign(), x**2]
            found += [x.sum(), x.sum(0), x.prod(1), x.amax(1), x.amin(0), x.any(1), x.all(0), x.float(), x.double(), x.bool()]
            found += [tj.where(flags, x, y), x.clamp(-3, 50), x.to(tj.uint8), x.to(tj.int16), x.float().mean(1), x.to(tj.int64)]
        found += [flags + flags, flags * flags, flags & ~flags, flags ^ flags, flags.sum(), flags.any(0), flags.all(1)]
        found += [
            flags.float(),
            flags.logical_not(),
            flags | flags,
            flags.to(tj.int8),
            flags == flags,
            flags.amax(0),
            flags < flags,
        ]
        return found

    run(function)


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16])
def test_half_precision(seen: Any, hasty: Any, dtype: Any) -> None:
    random = np.random.default_rng(0)
    x, y = (tj.from_numpy(random.uniform(-2, 2, (4, 19)).astype(np.float32)).to(dtype).requires_grad_() for _ in range(2))

    def function() -> Any:
        found = [x + y, x * 0.1, x / 3, x**3, x**1.5, tj.sqrt(x * x), F.gelu(x), F.softmax(x, 1), x.sum(0), x.sum(1), x.mean()]
        found += [
            F.layer_norm(x, (19,)),
            x.amax(1),
            x > 0.1,
            x.to(tj.float32),
            x.to(tj.float64),
            x.to(tj.int32),
            x.round(decimals=1),
        ]
        loss = (F.silu(x) * y + tj.tanh(y)).float().pow(2).mean()
        return [*found, loss, tj.autograd.grad(loss, [x, y])]

    run(function)


# ---- fusions of many shapes


SHAPES = [(0, 3), (3, 0), (1, 1), (1, 7), (5, 3), (3, 15), (2, 16), (17, 17), (3, 31), (33, 8), (40, 64)]
LARGE = [(3, 5000), (2500, 9), (300, 129)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fusions(seen: Any, shape: tuple[int, ...]) -> None:
    seen.tolerance = 5
    x = tj.from_numpy(values(shape)).requires_grad_()
    run(lambda: everything(x))


def test_large_fusions(seen: Any, hasty: Any) -> None:
    seen.tolerance = 20
    given = [tj.from_numpy(values(shape)).requires_grad_() for shape in LARGE]
    run(lambda: [fusion(x) for fusion in FUSIONS for x in given])


@pytest.mark.parametrize("columns", [1025, 1033, 17, 40])
def test_rows_that_are_kept_do_not_reach_into_each_other(seen: Any, hasty: Any, columns: int) -> None:
    """If float32 decides how many lanes there are, a vector of float64 is two registers; and the last one is whole."""
    x = tj.from_numpy(np.random.default_rng(0).standard_normal((3, columns))).requires_grad_()

    def function() -> Any:
        waves, far = x.sin(), tj.hypot(x.amax(-1, keepdim=True), x.float())
        return tj.autograd.grad((waves * far).sum() + far.sum() + (waves.exp() * far.tanh()).sum(), x)

    run(function)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(seen: Any, hasty: Any, layout: str) -> None:
    seen.tolerance = 5
    x = tj.from_numpy(LAYOUTS[layout](values((9, 33)))).requires_grad_()
    run(lambda: everything(x))


def test_fields_of_records_stay_plain(seen: Any, hasty: Any) -> None:
    """Their elements do not stand a whole number of elements apart."""
    x = tj.from_numpy(np.ones(10, [("a", "f4"), ("b", "i2")])["a"])
    run(lambda: (x * 2).sum())
    assert len(seen.left) == 1
    assert "strides (6,)" in seen.left[0]
    seen.runs += 1


# ---- arithmetic, to the bit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_arithmetic_gives_the_same_bits(seen: Any, dtype: Any) -> None:
    """Nothing is contracted, reassociated or flushed to 0."""
    seen.exact = True
    random = np.random.default_rng(0)
    scales = 10.0 ** random.integers(-30, 30, (3, 500))
    a, b, c = (tj.from_numpy((random.normal(size=500) * s).astype(dtype)) for s in scales)

    def function() -> Any:
        found = [a + b, a - b, a * b, a / b, a * b + c, a * b - c, (a + b) * (a - b), a / b / c, (a * a).sqrt(), -a, a.abs()]
        found += [a.floor(), a.ceil(), a.trunc(), a.round(), a.reciprocal(), a.square(), a**2, a**3, tj.maximum(a, b)]
        found += [
            tj.where(a > b, a, b * 2),
            a.clamp(-1, 1),
            F.relu(a),
            F.leaky_relu(a, 0.1),
            F.hardtanh(a),
            a.sign(),
            a * 1e-20,
        ]
        found += [a.to(tj.float64), a.to(tj.float32), a.to(tj.float16), a.to(tj.bfloat16), a.clamp(-9, 9).to(tj.int32), a < b]
        return [*found, a.addcmul(b, c), a.addcdiv(b, c), a.lerp(b, 0.3), tj.minimum(a, c), a.amax(), a.amin(), a.fmod(b)]

    run(function)


# ---- widths and threads


def native_of(function: Callable[..., Any], *args: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """The native programs of a function, with the arrays and numbers that each was called with."""
    programs: list[Any] = []
    given: dict[int, tuple[list[Any], list[Any]]] = {}  # by program: of its first run
    make = program.make_program

    def noting(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        plain, place = make(trace, start, stop, keep), len(programs)
        programs.append(compile_graph(optimize(graph_of(trace, start, stop, keep)), len(trace.roots), plain))

        def noted(arrays: Any, scalars: Any) -> None:
            given.setdefault(place, (list(arrays), list(scalars)))
            plain(arrays, scalars)

        return noted

    program.make_program = noting  # type: ignore[assignment]
    try:
        compiled = tj.compile(function)
        for _ in range(2):
            compiled(*args)
    finally:
        program.make_program = make
    return programs, [given[i][0] for i in range(len(programs))], [given[i][1] for i in range(len(programs))]


def bits(fast: Any, arrays: list[Any], scalars: list[Any]) -> list[bytes]:
    """Return what a program makes of arrays, which stay as they are."""
    mine = [a.copy(order="K") if type(a) is np.ndarray else a for a in arrays]
    fast.run(mine, scalars)
    slots = [o.slot for o in fast.graph.outputs] + [w.input.slot for w in fast.graph.write_backs]
    return [mine[s].tobytes() for s in slots]


@pytest.mark.parametrize("width", [64, 128, 256])
def test_widths_of_vectors(seen: Any, hasty: Any, monkeypatch: Any, width: int) -> None:
    """LLVM takes any width on any machine."""
    seen.tolerance = 5
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(native_module, "host", lambda: replace(host(), bits=width))
    x = tj.from_numpy(values((5, 19))).requires_grad_()
    run(lambda: everything(x))


@pytest.fixture
def threads() -> Iterator[None]:
    before = tj.get_num_threads()
    yield
    tj.set_num_threads(before)


def test_threads_change_no_bit(hasty: Any, threads: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(native_module, "MIN_PARALLEL_OPS", 0)
    monkeypatch.setattr(native_module, "MIN_THREAD_SPEEDUP", 0)
    tables = [tj.from_numpy(values(shape)) for shape in [(300, 129), (2500, 9), (40, 700)]]
    weight, loss_of = tj.from_numpy(values((129, 40))), tj.arange(300) % 40

    def function() -> Any:
        found: list[Any] = [fusion(x) for fusion in FUSIONS for x in tables]
        w = weight.clone().requires_grad_()
        loss = F.cross_entropy(F.gelu(tables[0] @ w), loss_of)
        return [*found, loss, tj.autograd.grad(loss, [w])]

    programs, arrays, scalars = native_of(function)
    assert any(m is not None and any(p.pieces > 1 for p in m.kernel.phases) for m in programs[0].made)
    for fast, a, s in zip(programs, arrays, scalars, strict=True):
        tj.set_num_threads(1)
        alone = bits(fast, a, s)
        for count in (2, 3, 2):
            tj.set_num_threads(count)
            assert all(bits(fast, a, s) == alone for _ in range(5))


# ---- whole steps


@pytest.mark.parametrize("name", STEPS)
def test_training_steps(seen: Any, name: str) -> None:
    train(name, seen, 8)
    assert not seen.opaque(), "a step is one native call"
    whole = max(seen.programs, key=lambda p: len(p.launches))
    assert whole.graph.write_backs


OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda p: tj.optim.SGD(p, lr=0.1, weight_decay=0.1, momentum=0.9, nesterov=True),
    lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: tj.optim.Adam(p, lr=0.1),
    lambda p: tj.optim.AdamW(p, lr=0.1, amsgrad=True),
    lambda p: tj.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    tj.optim.Adagrad,
    tj.optim.Adadelta,
    tj.optim.Adamax,
    tj.optim.NAdam,
    tj.optim.RAdam,
    tj.optim.ASGD,
    tj.optim.Rprop,
]


@pytest.mark.parametrize("dtype", [tj.float32, tj.bfloat16])
def test_optimizers(seen: Any, hasty: Any, dtype: Any) -> None:
    """Parameters that are infinite, too: without weight decay they have no influence on their own."""
    params = [[tj.randn(5, 7).to(dtype).requires_grad_(), tj.tensor([1.0, np.inf, -2.0]).to(dtype)] for _ in OPTIMIZERS]
    optimizers = [make(p) for make, p in zip(OPTIMIZERS, params, strict=True)]

    def step() -> None:
        for group, optimizer in zip(params, optimizers, strict=True):
            for p in group:
                p.grad = (p.detach() * 0.1 + 1).nan_to_num(0.5, 0.5, 0.5)
            optimizer.step()

    run(step, calls=5)
    assert not seen.opaque()


def test_random_programs(seen: Any, hasty: Any) -> None:
    seen.tolerance, seen.zero = 20, 0.3  # they normalise what is all the same, and the like
    for seed in (60898, *range(1000, 1040)):  # the first is one that went wrong
        random_programs.compare(random_programs.write(Random(seed)))
    assert len(seen.programs) > 40


def test_random_programs_of_more_than_a_vector(seen: Any, hasty: Any) -> None:
    seen.tolerance, seen.zero = 100, 0.3
    for seed in range(3000, 3060):
        random_programs.compare(random_programs.write(Random(seed), wide=True))
    assert len(seen.programs) > 60


# ---- nothing is read or written beside


def test_margins_stay_untouched(seen: Any, hasty: Any, monkeypatch: Any) -> None:
    seen.tolerance, seen.zero = 5, 0.1  # slopes of what is normalised afterwards are sums of dozens of terms that cancel out
    shadow.guard(seen, monkeypatch)
    for shape in [(3, 17), (7, 5), (40, 33)]:
        x = tj.from_numpy(shadow.margined(values(shape))).requires_grad_()
        w = tj.from_numpy(shadow.margined(values((shape[1], 11))))

        def function(x: Any = x, w: Any = w) -> Any:
            found = everything(x)
            return [*found, F.gelu(x @ w + 1), (x.t() @ x).sum(0), (x @ w).t()]

        run(function)
    for name in ("convnet", "transformer"):
        make, _, inputs, words, _, _ = STEPS[name]
        model = make()
        batch = tj.from_numpy(np.ones(inputs, np.int64) if words else values(inputs))

        def grads(model: Any = model, batch: Any = batch) -> Any:
            return tj.autograd.grad(model(batch).square().sum(), list(model.parameters()))

        run(grads)


@pytest.mark.parametrize("columns", [1025, 17, 40])
def test_memory_that_threads_have_for_themselves_has_margins(seen: Any, hasty: Any, monkeypatch: Any, columns: int) -> None:
    shadow.guard(seen, monkeypatch)
    seen.tolerance = 1e6  # what float32 is in float64
    x = tj.from_numpy(np.random.default_rng(0).standard_normal((2, columns)))
    run(lambda: (x.float().sum(-1, keepdim=True) * x.exp(), (x.exp() / x.exp().sum(-1, keepdim=True)).float()))
    assert any(made.kernel.scratch for p in seen.programs for made in p.made if made is not None)


def test_narrow_elements_leave_margins_untouched(seen: Any, monkeypatch: Any) -> None:
    """LLVM's code for one lane of a vector that is converted to something narrower writes as much as there was before."""
    shadow.guard(seen, monkeypatch)
    kinds = [tj.int8, tj.uint8, tj.int16, tj.int32, tj.bool, tj.float16, tj.bfloat16, tj.float32]
    given = [tj.arange(n, dtype=dtype) + 1 for n in (1, 3, 9, 17, 33) for dtype in (tj.int32, tj.int64, tj.float32, tj.float64)]
    run(lambda: [x.to(kind) for x in given for kind in kinds if kind is not x.dtype])


def test_random_programs_leave_margins_untouched(seen: Any, hasty: Any, monkeypatch: Any) -> None:
    seen.tolerance, seen.zero = 20, 0.3
    shadow.guard(seen, monkeypatch)
    for seed in range(2020, 2040):  # none of them has a norm of nothing but rounding errors
        random_programs.compare(random_programs.write(Random(seed)))


# ---- what goes wrong


def wrong_indices() -> list[Any]:
    table, x = tj.from_numpy(values((5, 3))), tj.from_numpy(values((4, 6)))
    return [
        (lambda i: F.embedding(i, table), [0, 4], [0, 5]),
        (lambda i: F.embedding(i, table), [0, 4], [-1, 4]),
        (lambda i: x.gather(1, i[:, None].expand(-1, 2)[:2]), [0, 5], [0, 6]),
        (lambda i: x[i], [0, -4], [0, -5]),
        (lambda i: x[:, i + 1], [0, -7], [0, 5]),
        (lambda i: F.cross_entropy(table[:2], i), [0, 2], [0, 3]),
        (lambda i: F.nll_loss(table[:2], i), [-100, 2], [-2, 1]),
        (lambda i: tj.zeros(4, 3).index_add(0, i, table[:2]), [0, 3], [0, 4]),
        (lambda i: 7 // i + 1, [2, -3], [2, 0]),
        (lambda i: tj.arange(2) % i, [2, -3], [0, 1]),
    ]


def test_indices_out_of_bounds_raise_what_eager_execution_raises(seen: Any, hasty: Any) -> None:
    for function, right, wrong in wrong_indices():
        compiled = tj.compile(function)
        for _ in range(4):
            compiled(tj.tensor(right))
        with pytest.raises(Exception) as eager:
            function(tj.tensor(wrong))
        with pytest.raises(type(eager.value), match=None) as found:
            compiled(tj.tensor(wrong))
        assert str(found.value) == str(eager.value)
        compiled(tj.tensor(right))


@pytest.fixture
def real(monkeypatch: Any) -> None:
    """Compiled functions run natively, as users have it, however long that takes on a busy machine."""
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))
    monkeypatch.setenv("TAPEJIT_BACKEND", "llvm")
    monkeypatch.setenv("TAPEJIT_STRICT_BACKEND", "1")


def test_a_step_that_fails_writes_nothing(real: Any, hasty: Any) -> None:
    weight = tj.from_numpy(values((5, 3))).requires_grad_()
    opt = tj.optim.SGD([weight], lr=0.1, momentum=0.5)

    @tj.compile
    def step(index: Any) -> Any:
        loss = F.embedding(index, weight).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for _ in range(5):
        step(tj.tensor([0, 4, 4]))
    before = weight.detach().numpy().copy()
    with pytest.raises(IndexError):
        step(tj.tensor([0, 5, 4]))
    np.testing.assert_array_equal(weight.detach().numpy(), before)
    step(tj.tensor([0, 3, 4]))
    assert (weight.detach().numpy()[[0, 3, 4]] != before[[0, 3, 4]]).any()


def test_what_an_op_raises_after_writes_leaves_what_eager_execution_leaves(real: Any, hasty: Any) -> None:
    def function(p: Any, x: Any) -> Any:
        p.mul_(2.0)
        return tj.linalg.cholesky(x) + p

    compiled = tj.compile(function)
    good, bad = tj.eye(3), -tj.eye(3)
    p = tj.ones(3, 3)
    for _ in range(4):
        compiled(p, good)
    assert p[0, 0] == 16
    with pytest.raises(RuntimeError):
        compiled(p, bad)
    assert p[0, 0] == 32


def test_code_that_cannot_be_compiled_is_not_used(monkeypatch: Any) -> None:
    monkeypatch.setenv("TAPEJIT_BACKEND", "llvm")
    monkeypatch.delenv("TAPEJIT_STRICT_BACKEND", raising=False)

    def broken(*_: Any, **__: Any) -> Any:
        raise jit.CompileFailed("[compile] no such instruction")

    monkeypatch.setattr(jit.Batch, "objects", broken)
    x = tj.from_numpy(values((4, 5)))

    @tj.compile
    def function(x: Any) -> Any:
        return (x * 2 + 1).sum(1)

    with pytest.warns(RuntimeWarning, match="no such instruction"):
        for _ in range(6):
            found = function(x)
    np.testing.assert_array_equal(found.numpy(), (x.numpy() * 2 + 1).sum(1))


def test_gradients_that_nobody_looked_at_do_not_need_room_twice(real: Any, hasty: Any) -> None:
    weight = tj.tensor(values((300, 200))).requires_grad_()

    def step(x: Any) -> Any:
        loss = ((x @ weight) ** 2).mean()
        weight.grad = None
        loss.backward()
        return loss

    compiled, x = tj.compile(step, pure=True), tj.tensor(values((32, 300)))
    for _ in range(6):
        compiled(x)
    tracemalloc.start()
    try:
        compiled(x)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        compiled(x)
        assert tracemalloc.get_traced_memory()[1] - before < 300 * 200 * 4 / 2
    finally:
        tracemalloc.stop()
    seen = weight.grad.numpy()
    once = seen.copy()
    compiled(x * 2)
    assert np.array_equal(seen, once)  # it was looked at, so it stays
    with tj.eager():
        step(x * 2)
        wanted = weight.grad.numpy()
    weight.grad = None
    compiled(x * 2)
    assert np.allclose(weight.grad.numpy(), wanted, 1e-4, 1e-4)


def test_calls_from_several_python_threads(real: Any, hasty: Any) -> None:
    @tj.compile
    def function(x: Any) -> Any:
        return F.softmax(x * 2, 1) @ x.t(), x.sum(0)

    given = [values((16, 64)) + i for i in range(4)]
    for _ in range(4):
        function(tj.tensor(given[0]))
    wrong: list[str] = []

    def call(array: Any) -> None:
        with tj.eager():
            wanted = (F.softmax(tj.tensor(array) * 2, 1) @ tj.tensor(array).t()).numpy()
        for _ in range(30):
            found, total = function(tj.tensor(array))
            sums = within(total, array.sum(0, np.float64), spread(abs(array).sum(0, np.float64), len(array)))
            if not np.allclose(found.numpy(), wanted, 1e-4, 1e-4) or not sums.all():
                wrong.append(str(array[0, 0]))

    workers = [threading.Thread(target=call, args=(a,)) for a in given]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_goes_on(real: Any, hasty: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(native_module, "MIN_PARALLEL_OPS", 0)
    monkeypatch.setattr(native_module, "MIN_THREAD_SPEEDUP", 0)
    x = tj.from_numpy(values((64, 300)))

    @tj.compile
    def function(x: Any) -> Any:
        return tj.tanh(x * 2).sum(0)

    for _ in range(5):
        function(x)
    wanted = np.tanh(x.numpy() * 2).sum(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, about forking with threads
        child = os.fork()
    if child == 0:
        good = all(np.allclose(function(x).numpy(), wanted, 1e-4, 1e-4) for _ in range(5))
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.allclose(function(x).numpy(), wanted, 1e-4, 1e-4)
