"""Scans in native code: as in eager execution, along any dim, in both directions, for any layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support import shadow
from tapejit.codegen.llvm.build import NativeBuild

SHAPES = [(1,), (5,), (300,), (3, 7), (16, 17), (5, 1), (1, 6), (4, 3, 33), (2, 70, 9), (40, 130)]
OPS = {
    "cumsum": tj.cumsum,
    "cumprod": tj.cumprod,
    "logcumsumexp": tj.logcumsumexp,
    "cummax": lambda x, d: tuple(tj.cummax(x, d)),
    "cummin": lambda x, d: tuple(tj.cummin(x, d)),
}


@pytest.fixture
def seen(monkeypatch: Any) -> Any:
    """Everything that is replayed also runs natively, on guarded memory, and is compared."""
    with shadow.watching(monkeypatch) as found:
        shadow.guard(found, monkeypatch)
        yield found
    assert all(launch.kind != "opaque" for p in found.programs for launch in p.launches)


def values(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Any:
    return tj.from_numpy(shadow.margined(np.random.default_rng(seed).uniform(-1.5, 1.5, shape).astype(dtype)))


def run(function: Any) -> None:
    compiled = tj.compile(function)
    for _ in range(3):
        compiled()


@pytest.mark.parametrize("name", OPS)
def test_any_shape_and_dim(seen: Any, name: str) -> None:
    op, given = OPS[name], [values(shape) for shape in SHAPES]
    run(lambda: [op(x, d) for x in given for d in range(x.ndim)])


@pytest.mark.parametrize("name", OPS)
def test_operands_that_are_views(seen: Any, name: str) -> None:
    op, x, row = OPS[name], values((9, 20, 33)), values((1, 33))
    run(lambda: [op(x.mT, 2), op(x[1::2, :, 3:], 1), op(x.permute(2, 0, 1), 0), op(row.expand(4, 33), 0), op(x[:, 3], 0)])


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32, np.uint8])
def test_dtypes(seen: Any, dtype: Any) -> None:
    x = tj.from_numpy(np.random.default_rng(0).integers(0, 5, (6, 19)).astype(dtype))
    run(lambda: [tj.cumsum(x, 1), tj.cumprod(x, 0), *tj.cummax(x, 1), *tj.cummin(x, 0)])


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16])
def test_halves(seen: Any, dtype: Any) -> None:
    x = values((6, 19)).to(dtype)
    run(lambda: [tj.cumsum(x, 1), tj.cumprod(x, 0), tj.logcumsumexp(x, 1), *tj.cummax(x, 1)])


def test_sums_are_eager_ones_to_the_bit() -> None:
    """One after the other in double precision, signs of zeros too."""
    x = values((70, 40))
    x[0] = -0.0
    compiled = tj.compile(lambda: [tj.cumsum(x, 0), tj.cumsum(x, 1), tj.cumprod(x, 0)], backend="llvm", strict=True)
    for _ in range(4):
        found = compiled()
    for got, want in zip(found, [tj.cumsum(x, 0), tj.cumsum(x, 1), tj.cumprod(x, 0)], strict=True):
        assert got.numpy().tobytes() == want.numpy().tobytes()


def test_extremes_with_nan_and_equals(seen: Any) -> None:
    """The latest of equals, and NaN above all."""
    nan, inf = float("nan"), float("inf")
    x = tj.tensor([[1.0, 3.0, 3.0, nan, 2.0, nan, inf], [-inf, -inf, inf, 0.0, inf, -inf, 5.0]])
    run(lambda: [*tj.cummax(x, 1), *tj.cummin(x, 1), *tj.cummax(x, 0)])
    values_of, places = tj.compile(lambda: tuple(tj.cummax(x, 1)))()
    assert places[0].tolist() == [0, 1, 2, 3, 3, 5, 5]
    assert places[1].tolist() == [0, 1, 2, 2, 4, 4, 4]
    assert values_of[1].tolist() == [-inf, -inf, inf, inf, inf, inf, inf]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradients(seen: Any, dim: int) -> None:
    """These run the other way round, and are linear recurrences."""
    seen.tolerance = 20
    x = values((4, 9, 21)).requires_grad_()

    def step() -> Any:
        x.grad = None
        found = tj.cumsum(x, dim).square() + tj.cumprod(x, dim) + tj.logcumsumexp(x, dim) + tj.cummax(x, dim).values
        found.sum().backward()
        return x.grad

    run(step)


def test_nothing_and_numbers_are_as_they_were() -> None:
    compiled = tj.compile(lambda x, y: (tj.cumsum(x, 0), tj.cumsum(y, 1)), backend="llvm")
    for _ in range(4):
        one, none = compiled(tj.tensor(3.0), tj.zeros(2, 0))
    assert one.item() == 3.0
    assert none.shape == (2, 0)


def test_threads_change_no_bit(monkeypatch: Any) -> None:
    x = values((300, 400))
    scans = lambda: [op(x, d) for op in (tj.cumsum, tj.logcumsumexp) for d in (0, 1)]
    assert len(shadow.bits_by_threads(monkeypatch, scans)) == 1


def test_a_scan_is_a_kernel_that_can_be_told_about() -> None:
    (graph, *_) = shadow.recorded(lambda x: tj.cumsum(x * 2, 0) + 1, tj.randn(300, 400))
    build = NativeBuild(graph, 100)
    (scan,) = [m for m in build.made if m is not None and m.launch.kind == "scan"]
    assert sum(p.pieces for p in scan.kernel.phases) > 1
    compiled = tj.compile(lambda x: tj.cumsum(x, 0), backend="llvm")
    for _ in range(4):
        compiled(tj.randn(30, 40))
    assert "cumsum of [30, 40] along dim 0" in str(compiled.explain(kernels=True))
