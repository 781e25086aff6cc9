"""Indexing and broadcasting against NumPy, on indices and shapes that hypothesis draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import tapejit as tj
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
few = settings(max_examples=120)


def values(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1.0, 1 + np.prod(shape)).reshape(shape)


def forward(index: Any) -> Any:
    """The index with the slices that PyTorch does not know, those of negative steps, turned round."""
    items = index if isinstance(index, tuple) else (index,)
    return tuple(slice(i.start, i.stop, abs(i.step)) if isinstance(i, slice) and i.step else i for i in items)


@st.composite
def basic(draw: Any) -> tuple[np.ndarray, Any]:
    shape = draw(shapes)
    return values(shape), forward(draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6)))


@st.composite
def advanced(draw: Any) -> tuple[np.ndarray, Any]:
    """Integer arrays and masks among slices, None and Ellipsis; no plain ints, which NumPy counts as arrays and PyTorch not."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    picked = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    items: list[Any] = []
    dims = list(shape)
    whole = draw(st.booleans())
    while dims and (whole or draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["array", "array", "slice", "new", "mask" if not picked or picked == (1,) else "array"]))
        if kind == "new":
            items.append(None)
            whole = False
        elif kind == "slice":
            items.append(forward((draw(st.slices(dims.pop(0))),))[0])
        elif kind == "mask":
            size = draw(st.integers(1, len(dims)))
            mask = np.zeros(dims[:size], bool)
            mask.flat[draw(st.integers(0, mask.size - 1))] = True
            items.append(mask)
            del dims[:size]
        else:
            n = dims.pop(0)
            items.append(draw(hnp.arrays(np.int64, broadcastable(draw, picked), elements=st.integers(-n, n - 1))))
    if draw(st.booleans()):
        items.insert(draw(st.sampled_from([0, len(items)])) if not dims else len(items), ...)
    if sum(isinstance(i, np.ndarray) for i in items) == 0:
        n = shape[0]
        items = [draw(hnp.arrays(np.int64, picked, elements=st.integers(-n, n - 1)))]
    return values(shape), tuple(i if not isinstance(i, np.ndarray) or i.ndim else i.reshape(1) for i in items)


def broadcastable(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`: some leading dims left out, some lengths 1."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(n if draw(st.booleans()) else 1 for n in kept)


def as_given(index: Any, form: int) -> Any:
    """Arrays of an index as tensors, as they are, or as lists."""

    def one(item: Any) -> Any:
        if not isinstance(item, np.ndarray) or form == 0:
            return item
        return tj.tensor(item) if form == 1 or not item.size else item.tolist()

    return tuple(one(i) for i in index)


def sums_at(shape: tuple[int, ...], index: Any, new: np.ndarray) -> np.ndarray:
    """Return what is left in each place after adding `new` where the index points, with repetition."""
    places = np.arange(np.prod(shape), dtype=int).reshape(shape)[index]
    return np.bincount(places.ravel(), np.broadcast_to(new, places.shape).ravel(), int(np.prod(shape))).reshape(shape)


@few
@given(basic())
def test_basic(pair: tuple[np.ndarray, Any]) -> None:
    array, index = pair
    x = tj.tensor(array)
    found = x[index]
    expected = array[index]
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found._base is x
    if found.numel():
        assert np.shares_memory(found.numpy(), x.numpy())


@few
@given(basic(), st.data())
def test_assigning_to_basic(pair: tuple[np.ndarray, Any], data: Any) -> None:
    array, index = pair
    x = tj.tensor(array)
    new = data.draw(st.just(7.0) | st.builds(lambda s: -values(s), st.just(broadcastable(data.draw, np.shape(array[index])))))
    x[index] = new if isinstance(new, float) else tj.tensor(new)
    array[index] = new
    np.testing.assert_array_equal(x.numpy(), array)


@few
@given(advanced(), st.integers(0, 2))
def test_advanced(pair: tuple[np.ndarray, Any], form: int) -> None:
    array, index = pair
    x = tj.tensor(array, requires_grad=True)
    found = x[as_given(index, form)]
    expected = array[index]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.detach().numpy(), expected)
    weights = values(expected.shape)
    (found * tj.tensor(weights)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), sums_at(array.shape, index, weights))


@few
@given(advanced(), st.data())
def test_assigning_to_advanced(pair: tuple[np.ndarray, Any], data: Any) -> None:
    array, index = pair
    new = -values(broadcastable(data.draw, array[index].shape))
    before = tj.tensor(array, requires_grad=True)
    value = tj.tensor(new, requires_grad=True)
    plain, x = tj.tensor(array), before * 1
    plain[index] = tj.tensor(new)
    x[index] = value
    array[index] = new
    np.testing.assert_array_equal(plain.numpy(), array)
    np.testing.assert_array_equal(x.detach().numpy(), array)
    x.sum().backward()
    untouched = np.ones(array.shape)
    untouched[index] = 0
    np.testing.assert_array_equal(before.grad.numpy(), untouched)
    assert value.grad.sum().item() == array[index].size


@few
@given(advanced(), st.data())
def test_accumulating(pair: tuple[np.ndarray, Any], data: Any) -> None:
    array, index = pair
    dims = [k for k, i in enumerate(index) if isinstance(i, np.ndarray)]
    leading = index[: len(dims)]
    if dims != list(range(len(dims))):
        return
    new = values(broadcastable(data.draw, array[leading].shape))
    found = tj.tensor(array).index_put(as_given(leading, 1), tj.tensor(new), accumulate=True)
    np.testing.assert_allclose(found.numpy(), array + sums_at(array.shape, leading, new))


@few
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=3))
def test_broadcasting(drawn: hnp.BroadcastableShapes) -> None:
    a, b = (tj.tensor(values(s), requires_grad=True) for s in drawn.input_shapes)
    found = a * b
    assert found.shape == drawn.result_shape
    np.testing.assert_allclose(found.detach().numpy(), values(drawn.input_shapes[0]) * values(drawn.input_shapes[1]))
    found.sum().backward()
    for x, other in ((a, b), (b, a)):
        assert x.grad.shape == x.shape
        stretched = np.broadcast_to(other.detach().numpy(), drawn.result_shape)
        np.testing.assert_allclose(x.grad.sum().item(), stretched.sum())
    for x, y in zip(tj.broadcast_tensors(a, b), np.broadcast_arrays(a.detach(), b.detach()), strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), y)


@few
@given(st.data())
def test_views_are_views_or_errors(data: Any) -> None:
    """`view` shares memory wherever NumPy can reshape without a copy, and refuses everywhere else."""
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    array = values(tuple(n * 2 for n in shape))[tuple(slice(None, None, data.draw(st.sampled_from([1, 2]))) for _ in shape)]
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    wanted = data.draw(st.sampled_from(factorisations(array.size)))
    x = tj.from_numpy(array)
    try:
        np.reshape(array, wanted, copy=False)
    except ValueError:
        try:
            x.view(wanted)
        except RuntimeError as error:
            assert "reshape" in str(error)
        else:
            raise AssertionError(f"view of {array.shape} with strides {array.strides} as {wanted} was not refused") from None
    else:
        assert np.shares_memory(x.view(wanted).numpy(), array)
    np.testing.assert_array_equal(x.reshape(wanted).numpy(), array.reshape(wanted))


def factorisations(n: int) -> list[tuple[int, ...]]:
    found = [(n,), (1, n), (n, 1)]
    for a in range(2, n + 1):
        if n % a == 0:
            found.append((a, n // a))
            found += [(a, b, n // a // b) for b in range(1, n // a + 1) if n // a % b == 0]
    return found[:60]
