"""Dtypes: PyTorch's promotion rules against a table written out by hand, weak operands, in-place stores, defaults."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from hypothesis import given
from hypothesis import strategies as st

NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
SHORT = dict(zip(("b1", "u1", "i1", "i2", "i4", "i8", "f2", "bf", "f4", "f8"), NAMES, strict=True))
DTYPES = {name: getattr(tj, name) for name in NAMES}

# https://docs.pytorch.org/docs/stable/tensor_attributes.html, the result for tensors with dimensions.
TABLE = """
     b1 u1 i1 i2 i4 i8 f2 bf f4 f8
b1   b1 u1 i1 i2 i4 i8 f2 bf f4 f8
u1   u1 u1 i2 i2 i4 i8 f2 bf f4 f8
i1   i1 i2 i1 i2 i4 i8 f2 bf f4 f8
i2   i2 i2 i2 i2 i4 i8 f2 bf f4 f8
i4   i4 i4 i4 i4 i4 i8 f2 bf f4 f8
i8   i8 i8 i8 i8 i8 i8 f2 bf f4 f8
f2   f2 f2 f2 f2 f2 f2 f2 f4 f4 f8
bf   bf bf bf bf bf bf f4 bf f4 f8
f4   f4 f4 f4 f4 f4 f4 f4 f4 f4 f8
f8   f8 f8 f8 f8 f8 f8 f8 f8 f8 f8
"""


def table() -> dict[tuple[str, str], str]:
    head, *rows = [[SHORT[word] for word in line.split()] for line in TABLE.strip().splitlines()]
    return {(row[0], column): cell for row in rows for column, cell in zip(head, row[1:], strict=True)}


PROMOTED = table()
CATEGORY = {name: 0 if name == "bool" else 1 if "int" in name else 2 for name in NAMES}
NUMBERS = {True: "bool", 3: "int64", 2.5: "float32"}


def strongest(*groups: list[str]) -> str:
    """The rule: within a group the table decides; a weaker group matters only by a higher category."""
    found: str | None = None
    for group in groups:
        if not group:
            continue
        weak = group[0]
        for name in group[1:]:
            weak = PROMOTED[weak, name]
        if found is None or CATEGORY[weak] > CATEGORY[found]:
            found = weak
    assert found is not None
    return found


def test_the_table_is_symmetric() -> None:
    assert all(PROMOTED[a, b] == PROMOTED[b, a] for a, b in PROMOTED)


@pytest.mark.parametrize("a", NAMES)
@pytest.mark.parametrize("b", NAMES)
def test_two_tensors(a: str, b: str) -> None:
    x, y = tj.ones(2, dtype=DTYPES[a]), tj.ones(2, dtype=DTYPES[b])
    expected = DTYPES[PROMOTED[a, b]]
    assert tj.promote_types(DTYPES[a], DTYPES[b]) == expected
    assert tj.result_type(x, y) == expected
    for function in (tj.add, tj.mul, tj.maximum):
        assert function(x, y).dtype == expected
    assert tj.where(tj.tensor([True, False]), x, y).dtype == expected
    assert tj.cat([x, y]).dtype == expected
    assert (x == y).dtype == tj.bool
    assert (x / y).dtype == (expected if expected.is_floating_point else tj.float32)


operands = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["tensor", "0-dim", "number"])), min_size=1, max_size=4)


@given(operands)
def test_weak_operands(drawn: list[tuple[str, str]]) -> None:
    """Tensors with dimensions decide, then 0-dim ones, then Python numbers."""
    groups: dict[str, list[str]] = {"tensor": [], "0-dim": [], "number": []}
    values: list[Any] = []
    for name, kind in drawn:
        if kind == "number":
            number = {0: True, 1: 3, 2: 2.5}[CATEGORY[name]]
            groups[kind].append(NUMBERS[number])
            values.append(number)
        else:
            groups[kind].append(name)
            values.append(tj.ones(() if kind == "0-dim" else 2, dtype=DTYPES[name]))
    expected = DTYPES[strongest(*groups.values())]
    assert tj.result_type(*values) == expected
    if len(values) >= 2 and any(isinstance(v, tj.Tensor) for v in values[:2]):
        assert (values[0] * values[1]).dtype == tj.result_type(values[0], values[1])
        assert (values[1] + values[0]).dtype == tj.result_type(values[0], values[1])


@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.booleans())
def test_storing_never_goes_down_a_category(target: str, source: str, zero_dim: bool) -> None:
    x, y = tj.ones(2, dtype=DTYPES[target]), tj.ones(() if zero_dim else 2, dtype=DTYPES[source])
    result = tj.result_type(x, y).name
    if CATEGORY[result] > CATEGORY[target]:
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            x.mul_(y)
        assert x._version == 0
    else:
        x *= y
        assert x.dtype == DTYPES[target]
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_python_numbers_are_weak(name: str) -> None:
    x = tj.ones(2, dtype=DTYPES[name])
    for number, kind in NUMBERS.items():
        expected = DTYPES[strongest([name], [], [kind])]
        for op in (operator.add, operator.mul):
            assert op(x, number).dtype == expected
            assert op(number, x).dtype == expected
    assert (x + np.float64(1)).dtype == (x + 1.0).dtype


@pytest.mark.parametrize("name", NAMES)
def test_division_and_float_functions(name: str) -> None:
    x = tj.ones(2, dtype=DTYPES[name])
    floating = DTYPES[name] if CATEGORY[name] == 2 else tj.float32
    assert (x / 2).dtype == floating
    assert x.exp().dtype == floating
    assert x.sqrt().dtype == floating


def test_sums_of_integers_are_int64() -> None:
    for name in NAMES:
        total = tj.ones(3, dtype=DTYPES[name]).sum()
        assert total.dtype == (DTYPES[name] if CATEGORY[name] == 2 else tj.int64)
    with pytest.raises(RuntimeError, match="floating point"):
        tj.ones(3, dtype=tj.int64).mean()


def test_the_default_dtype_decides_for_python_floats() -> None:
    assert tj.tensor(1.5).dtype == tj.float32
    tj.set_default_dtype(tj.float64)
    assert tj.tensor([1.5]).dtype == tj.zeros(2).dtype == (tj.tensor([1, 2]) / 2).dtype == tj.float64
    assert (tj.tensor([1, 2]) * 1.5).dtype == tj.float64
    with pytest.raises(TypeError, match="floating"):
        tj.set_default_dtype(tj.int64)


@pytest.mark.parametrize("a", NAMES)
@pytest.mark.parametrize("b", NAMES)
def test_conversion(a: str, b: str) -> None:
    x = tj.tensor([0, 1, 3], dtype=DTYPES[a]).to(DTYPES[b])
    assert x.dtype == DTYPES[b]
    assert x.tolist() == ([0, 1, 1] if "bool" in (a, b) else [0, 1, 3])


def test_conversion_carries_gradients_and_their_dtype() -> None:
    x = tj.tensor([1.0, 2.0], dtype=tj.float64, requires_grad=True)
    (x.to(tj.float16).float() * 3).sum().backward()
    assert x.grad.dtype == tj.float64
    assert x.grad.tolist() == [3, 3]


def test_only_floats_want_gradients() -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        tj.ones(2, dtype=tj.int64).requires_grad_()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_rounds_once(name: str) -> None:
    """Sums are made in float32: 4096 times 1 does not get stuck, and a product is the rounded exact product."""
    assert tj.ones(4096, dtype=DTYPES[name]).sum().item() == 4096
    x = tj.tensor([1.01, -3.3, 1e-3], dtype=DTYPES[name])
    exact = (x.double() * x.double()).to(DTYPES[name])
    assert (x * x).tolist() == exact.tolist()


def test_limits() -> None:
    assert tj.finfo(tj.float32).eps == 2**-23
    assert tj.finfo(tj.bfloat16).eps == 2**-7
    assert tj.iinfo(tj.int8).max == 127
    with pytest.raises(TypeError):
        tj.iinfo(tj.float32)
