"""Triton kernels that add at indices: by sorting, in an order that is always the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from support.codegen.programs import run, values
from tapejit.codegen.ir.expr import ExprBuilder
from tapejit.codegen.ir.index import Index, IndirectIndex, atom
from tapejit.codegen.nests.loop_nest import Nest, Scatter
from tapejit.codegen.schedule.step import Domain

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

from support.codegen import interpreted
from tapejit.codegen.triton.device import compile as aot
from tapejit.codegen.triton.device.interpreter import run_kernels as launch
from tapejit.codegen.triton.loops.print_nest import print_nest


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels that add in a fixed order."""
    with interpreted.watched(monkeypatch, deterministic=True) as found:
        yield found


def added(rows: int, cols: int, targets: int, dtype: str, step: int = 0) -> Nest:
    """table[index[r] * step + c] += given[r, c]; rows begin `step` elements after each other, or side by side."""
    exprs, domain = ExprBuilder(), Domain(rows, cols)
    pick = IndirectIndex(exprs.load("index", domain.row, (), "int64"), targets)
    value = exprs.load("given", domain.row * cols + domain.col, (), dtype)
    place: Index = atom(pick) * (step or cols) + domain.col
    return Nest(domain, [], "c", (), ("index_sum",), (Scatter("table", place, value, dtype),))


def in_order(index: np.ndarray, given: np.ndarray, size: int, step: int = 0) -> np.ndarray:
    """One row after the other, in the dtype that sums are in."""
    wide = np.zeros(size, np.float32 if given.dtype.itemsize == 2 else given.dtype)
    for i, row in zip(index, given, strict=True):
        if i >= 0:
            wide[i * (step or len(row)) :][: len(row)] += row.astype(wide.dtype)
    return wide.astype(given.dtype)


@pytest.mark.parametrize(
    ("rows", "cols", "targets"), [(5, 3, 4), (1, 300, 2), (600, 2, 7), (2100, 1, 50), (1025, 5, 400), (40, 520, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_sum_is_added_up_in_order(rows: int, cols: int, targets: int, dtype: str) -> None:
    rng = np.random.default_rng(rows)
    index = rng.integers(0, targets, rows)
    given = (rng.standard_normal((rows, cols)) * 10.0 ** rng.integers(-3, 3, (rows, cols))).astype(dtype)
    target = np.full(targets * cols, 7, dtype)
    found = print_nest(added(rows, cols, targets, dtype), {"table": target.size}, deterministic=True)
    launch(found, {"index": index, "given": given, "table": target}, {})
    np.testing.assert_array_equal(target, in_order(index, given, target.size))


def test_rows_that_overlap_are_added_element_by_element() -> None:
    rng = np.random.default_rng(3)
    index, given = rng.integers(0, 4, 30), rng.standard_normal((30, 5)).astype(np.float32)
    target = np.zeros(4 * 2 + 5, np.float32)
    found = print_nest(added(30, 5, 4, "float32", step=2), {"table": target.size}, deterministic=True)
    launch(found, {"index": index, "given": given, "table": target}, {})
    np.testing.assert_array_equal(target, in_order(index, given, target.size, step=2))


def test_indices_out_of_bounds_add_nothing() -> None:
    index, given = np.array([1, 9_000_000_000, -3, 1]), np.ones((4, 3), np.float32)
    target = np.zeros(6, np.float32)
    launch(print_nest(added(4, 3, 2, "float32"), {"table": 6}, True), {"index": index, "given": given, "table": target}, {})
    assert target.tolist() == [0, 0, 0, 2, 2, 2]


def test_gradients_of_what_was_picked(seen: Any) -> None:
    seen.tolerance = 5
    table = tj.from_numpy(values((30, 6))).requires_grad_()
    index = tj.from_numpy(np.random.default_rng(0).integers(0, 30, (20, 60)))
    each = tj.from_numpy(np.random.default_rng(1).integers(0, 6, (30, 9)))

    def function() -> Any:
        found = F.embedding(index, table), table.gather(1, each), table[each[:, 0], each[:, 1]]
        return tj.autograd.grad(sum((t * t.detach().cos()).sum() for t in found), [table])

    run(function)
    names = {k.name for p in seen.programs for x in p.kernels if x for k in x.kernels}
    assert any(name.endswith("_ordered") for name in names) and any(name.endswith("_sorted") for name in names)


def test_kernels_compile() -> None:
    found = print_nest(added(2100, 256, 50, "bfloat16"), {"table": 50 * 256}, deterministic=True)
    for kernel in found.kernels:
        assert aot.resources(aot.compile_kernel(found, kernel, "sm_90"), "sm_90").spills == 0, kernel.name
