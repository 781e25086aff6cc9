"""Scans as Triton kernels, run by Triton's interpreter: equal to eager execution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support import shadow
from support.codegen.programs import run, values

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

from support.codegen import interpreted
from tapejit.codegen.triton.device import compile as aot

SCANS = {"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "recurrence"}


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels, scans among them."""
    with interpreted.watched(monkeypatch) as found:
        yield found
    left = [x.node.op.name for p in found.programs for x, k in zip(p.launches, p.kernels, strict=True) if k is None]
    assert not SCANS & set(left)


def all_scans(x: Any, dim: int) -> list[Any]:
    return [x.cumsum(dim), x.cumprod(dim), x.logcumsumexp(dim), *x.cummax(dim), *x.cummin(dim)]


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 4, 3), (1, 2500), (70, 3, 2), (130, 40)], ids=str)
def test_along_each_dim(seen: Any, shape: tuple[int, ...]) -> None:
    x = tj.from_numpy(values(shape))
    run(lambda: [all_scans(x, dim) for dim in range(len(shape))])


def test_few_long_rows(seen: Any) -> None:
    """They are cut into parts, each of which begins with what all before it come to; those from the end too."""
    x, tall = (tj.from_numpy(values(shape) * 0.1 + 1).requires_grad_() for shape in ((1, 9000), (300, 3)))

    def function() -> Any:
        found = [x.cumsum(1), x.logcumsumexp(1), x.cummax(1)[0], tall.cumprod(0), tall.cummin(0)[0]]
        return [found, x.cummax(1)[1], tj.autograd.grad(sum((y * 0.01).cos().sum() for y in found), [x, tall])]

    seen.tolerance = 5
    run(function)
    names = {k.name for p in seen.programs for x in p.kernels if x for k in x.kernels}
    assert {"cumsum_parts", "recurrence_parts", "cummax_parts"} <= names


def test_gradients(seen: Any) -> None:
    """Gradients of sums and products go from the end to the beginning; those of products are recurrences."""
    seen.tolerance = 5
    x = tj.from_numpy(values((4, 9))).requires_grad_()
    long = tj.from_numpy(values((2, 2100))).requires_grad_()

    def function() -> Any:
        found = [y for d in range(2) for y in (x.cumsum(d), x.cumprod(d), x.logcumsumexp(d), x.cummax(d)[0], x.cummin(d)[0])]
        of_x = tj.autograd.grad(sum((y * y.detach().cos()).sum() for y in found), [x])
        return of_x, tj.autograd.grad((long.cumsum(1) * long.detach().cos()).sum() + (long.logcumsumexp(1) ** 2).sum(), [long])

    run(function)


def test_numbers_that_are_not_finite(seen: Any) -> None:
    special = [1.0, np.nan, -np.inf, np.inf, 2.0, -0.0, 0.0, 3.0, -np.inf]
    rows = tj.from_numpy(np.array([np.roll(special, k) for k in range(9)] + [[-np.inf] * 9, [2.0] * 9], np.float32))
    run(lambda: [all_scans(rows, 1), all_scans(rows, 0), all_scans(rows.double(), 1)])


@pytest.mark.parametrize("dtype", [tj.int64, tj.int32, tj.int8, tj.uint8, tj.bool, tj.float16, tj.bfloat16])
def test_dtypes(seen: Any, dtype: Any) -> None:
    x = tj.from_numpy(np.random.default_rng(0).integers(0, 4, (5, 20))).to(dtype)
    run(lambda: [x.cumsum(1), x.cumprod(1), x.cumsum(0), *x.cummax(1), *x.cummin(0)])


def test_views(seen: Any) -> None:
    x = tj.from_numpy(values((6, 8, 5)))
    run(
        lambda: [
            x.transpose(0, 2).cumsum(1),
            x[::2, 1:].cumsum(2),
            x[:, :1].expand(6, 4, 5).cumsum(1),
            x.permute(2, 0, 1).cummax(0)[1],
        ]
    )


def test_kernels_compile() -> None:
    x, tall = tj.from_numpy(values((64, 4096))), tj.from_numpy(values((4096, 64)))
    graphs = shadow.recorded(lambda: [x.cumsum(1), tall.cumsum(0), *x.cummax(1)])
    for printed in [k for g in graphs for k in interpreted.Interpreted(g).kernels if k is not None]:
        for kernel in printed.kernels:
            used = aot.resources(aot.compile_kernel(printed, kernel, "sm_90"), "sm_90")
            assert used.spills == 0, (kernel.name, used)
            if kernel.name == "cumsum":
                assert set(used.loads) == {128} and set(used.stores) == {128}, used
