"""Broadcasting, over shapes drawn at random: NumPy's values, and gradients summed back to the operands' shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
from hypothesis import given
from hypothesis import strategies as st

OPERATIONS = {
    "add": (tj.add, np.add),
    "mul": (tj.mul, np.multiply),
    "div": (tj.div, np.divide),
    "maximum": (tj.maximum, np.maximum),
    "atan2": (tj.atan2, np.arctan2),
    "lt": (tj.lt, np.less),
}


@st.composite
def shapes(draw: Any) -> list[tuple[int, ...]]:
    """Two or three shapes that broadcast: a common one with dims left off in front and set to 1."""
    full = draw(st.lists(st.integers(0, 4), max_size=4))
    found = []
    for _ in range(draw(st.integers(2, 3))):
        kept = full[draw(st.integers(0, len(full))) :]
        found.append(tuple(1 if draw(st.booleans()) else n for n in kept))
    return found


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).uniform(0.5, 2, shape))


@given(shapes(), st.sampled_from(sorted(OPERATIONS)))
def test_values(drawn: list[tuple[int, ...]], name: str) -> None:
    ours, numpys = OPERATIONS[name]
    a, b = (values(shape, i) for i, shape in enumerate(drawn[:2]))
    found = ours(tj.from_numpy(a), tj.from_numpy(b))
    assert found.shape == np.broadcast_shapes(a.shape, b.shape)
    np.testing.assert_allclose(found.numpy(), numpys(a, b), rtol=1e-14)


@given(shapes())
def test_gradients_have_the_operands_shapes(drawn: list[tuple[int, ...]]) -> None:
    leaves = [tj.from_numpy(values(shape, i)).requires_grad_() for i, shape in enumerate(drawn)]
    total = leaves[0]
    for leaf in leaves[1:]:
        total = total * leaf
    total.sum().backward()
    product = np.ones(np.broadcast_shapes(*drawn))
    for leaf in leaves:
        product = product * leaf.detach().numpy()
    for leaf in leaves:
        extra = product.ndim - leaf.ndim
        summed = tuple(d for d in range(product.ndim) if d < extra or leaf.shape[d - extra] == 1)
        expected = product.sum(summed, keepdims=True).reshape(leaf.shape) / leaf.detach().numpy()
        np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-12)


@given(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 3), max_size=3))
def test_shapes_that_do_not_fit(a: list[int], b: list[int]) -> None:
    x, y = tj.ones(a), tj.ones(b)
    try:
        expected = np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        with pytest.raises(RuntimeError, match="must match the size of tensor b"):
            x + y
        with pytest.raises(RuntimeError, match="broadcast"):
            tj.broadcast_shapes(tuple(a), tuple(b))
        return
    assert (x + y).shape == expected == tj.broadcast_shapes(tuple(a), tuple(b))
    assert [t.shape for t in tj.broadcast_tensors(x, y)] == [expected, expected]


@given(shapes())
def test_in_place_only_into_the_full_shape(drawn: list[tuple[int, ...]]) -> None:
    a, b = (values(shape, i) for i, shape in enumerate(drawn[:2]))
    x = tj.from_numpy(a.copy())
    if np.broadcast_shapes(a.shape, b.shape) == a.shape:
        x += tj.from_numpy(b)
        np.testing.assert_allclose(x.numpy(), a + b)
    else:
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            x += tj.from_numpy(b)
        np.testing.assert_array_equal(x.numpy(), a)


@given(shapes())
def test_expand_is_a_view_that_sums_its_gradient(drawn: list[tuple[int, ...]]) -> None:
    full = np.broadcast_shapes(*drawn)
    x = tj.from_numpy(values(drawn[0], 0)).requires_grad_()
    wide = x.expand(full)
    assert wide.data_ptr() == x.data_ptr() or not x.numel() or not wide.numel()
    wide.sum().backward()
    count = int(np.prod(full)) / max(x.numel(), 1)
    assert x.grad.shape == x.shape
    np.testing.assert_allclose(x.grad.numpy(), np.full(x.shape, count))
