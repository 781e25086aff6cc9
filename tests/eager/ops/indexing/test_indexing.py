"""Indexing beyond what samples say: every form of subscript, assignment, errors, dtypes, in-place ops and their histories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj


def numbers(*shape: int) -> tj.Tensor:
    return tj.tensor(np.arange(np.prod(shape), dtype=np.float64).reshape(shape))


# ---- subscripts

X = np.arange(24.0).reshape(2, 3, 4)
FORMS: dict[str, Any] = {
    "int": 1,
    "negative": (-1, -2),
    "numpy int": np.int64(1),
    "slice": slice(1, None),
    "steps": (slice(None, None, 2), slice(2, 0)),
    "numpy slice": slice(np.int32(0), np.int64(1)),
    "none": (None, slice(None), None),
    "ellipsis": (..., 1),
    "everything": (),
    "whole": ...,
    "list": [1, 0, 1],
    "tuple in a tuple": ((0, 1),),
    "range": range(2),
    "array": np.array([[0, 1], [1, 1]]),
    "int32": np.array([1, 0], np.int32),
    "two arrays": ([0, 1], [2, 0]),
    "arrays apart": ([0, 1], slice(None), [2, 0]),
    "arrays and ellipsis": (..., [2, 0]),
    "broadcast arrays": (np.array([[0], [1]]), np.array([[0, 1, 2]])),
    "arrays after a slice": (slice(None), [0, 2], [1, 1]),
    "array and none": (None, [0, 1], None),
    "mask": X > 5,
    "mask of rows": np.array([True, False]),
    "mask of two dims": X[:, :, 0] > 3,
    "mask after a slice": (slice(None), np.array([True, False, True])),
    "mask and array": (np.array([True, True]), [0, 2]),
    "list of bools": [True, False],
    "empty mask": X > 99,
    "empty list": np.array([], int),
    "true": True,
    "false": False,
    "true and a slice": (True, slice(1)),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("form", ["as it is", "tensors"])
def test_forms(name: str, form: str) -> None:
    index = FORMS[name]
    given = index
    if form == "tensors":
        items = index if isinstance(index, tuple) else (index,)
        given = tuple(tj.tensor(i) if isinstance(i, (np.ndarray, np.bool_, np.integer)) else i for i in items)
    np.testing.assert_array_equal(tj.tensor(X)[given].numpy(), X[index])
    x, array = tj.tensor(X), X.copy()
    x[given] = -1
    array[index] = -1
    np.testing.assert_array_equal(x.numpy(), array)
    x, array = tj.tensor(X), X.copy()
    new = np.arange(X[index].size).reshape(X[index].shape) + 100.0
    x[given] = tj.tensor(new)
    array[index] = new
    np.testing.assert_array_equal(x.numpy(), array)


def test_an_int_is_basic_even_beside_tensors() -> None:
    """NumPy would count it as an array and put the picked dim in front; PyTorch does not."""
    x = numbers(2, 3, 4)
    assert x[0, :, [1, 2]].shape == (3, 2)
    assert x[tj.tensor(0), :, [1, 2]].shape == (3, 2)
    assert x[[0, 1], :, [1, 2]].shape == (2, 3)


def test_a_zero_dim_tensor_is_an_int_and_gives_a_view() -> None:
    x = numbers(3, 2)
    assert x[tj.tensor(1)]._base is x
    assert x[tj.tensor(1) :].shape == (2, 2)
    assert x[tj.tensor(True)].shape == (1, 3, 2)


def test_lists_that_hold_more_than_numbers_are_tuples_with_a_warning() -> None:
    x = numbers(2, 3)
    with pytest.warns(UserWarning, match="non-tuple sequence"):
        assert x[[0, slice(None)]].shape == (3,)
    with pytest.warns(UserWarning, match="non-tuple sequence"):
        assert x[[[0, 1], [2, 2]]].tolist() == [2, 5]
    with pytest.warns(UserWarning, match="uint8"):
        assert x[tj.tensor([0, 1], dtype=tj.uint8)].tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (5, IndexError, "index 5 is out of bounds for dimension 0 with size 2"),
        ((0, -4), IndexError, "index -4 is out of bounds for dimension 1 with size 3"),
        ([0, 2], IndexError, "index 2 is out of bounds for dimension 0 with size 2"),
        ((slice(None), [-4]), IndexError, "index -4 is out of bounds for dimension 1 with size 3"),
        (([0, 1], [0, 3]), IndexError, "index 3 is out of bounds for dimension 1 with size 3"),
        ((0, 0, 0, 0), IndexError, "too many indices for tensor of dimension 3"),
        (slice(None, None, -1), ValueError, "step must be greater than zero"),
        (slice(None, None, 0), ValueError, "slice step cannot be zero"),
        (slice(0, 1.5), TypeError, "slice indices must be integers"),
        (1.0, IndexError, "only integers, slices"),
        ("a", TypeError, "'a'"),
        (np.array([0.5]), IndexError, "tensors used as indices must be long, int, byte or bool"),
        (np.array([1], np.int16), IndexError, "tensors used as indices"),
        ([True, False, True], IndexError, r"The shape of the mask \[3\] at index 0 does not match .* \[2, 3, 4\] at index 0"),
        (([0, 1], [0, 1, 2]), IndexError, r"could not be broadcast together with shapes \[2\], \[3\]"),
    ],
)
def test_wrong_indices(index: Any, error: type[Exception], message: str) -> None:
    x = tj.tensor(X)
    with pytest.raises(error, match=message):
        x[index]
    with pytest.raises(error, match=message):
        x[index] = 0
    assert x._version == 0


def test_a_number_has_nothing_to_index() -> None:
    with pytest.raises(IndexError, match="0-dim tensor"):
        tj.tensor(1.0)[0]
    assert tj.tensor(1.0)[()].item() == 1
    assert tj.tensor(1.0)[None].shape == (1,)
    assert tj.tensor(1.0)[..., None].shape == (1,)


# ---- assignment


def test_assigned_values_are_broadcast_and_converted() -> None:
    x = tj.zeros(2, 3, dtype=tj.int64)
    x[0] = 2.7
    assert x[0].tolist() == [2, 2, 2]
    x[1] = tj.tensor([1.5, 2.5, 3.5])
    assert x[1].tolist() == [1, 2, 3]
    x[:, 0] = tj.ones(1, 1, 1, 2, dtype=tj.int64) * 7
    assert x[:, 0].tolist() == [7, 7]
    x[...] = True
    assert x.sum().item() == 6
    x[[0]] = np.int64(4)
    assert x[0].tolist() == [4, 4, 4]
    big = tj.zeros(100, 100)
    big[1:] = 3
    assert big.sum().item() == 29700


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (0, tj.ones(5), RuntimeError, r"The expanded size of the tensor \(4\) must match the existing size \(5\)"),
        (
            [0],
            tj.ones(5),
            RuntimeError,
            r"value tensor of shape \[5\] cannot be broadcast to indexing result of shape \[1, 3, 4\]",
        ),
        (
            X > 3,
            tj.ones(5),
            RuntimeError,
            r"value tensor of shape \[5\] cannot be broadcast to indexing result of shape \[20\]",
        ),
        (
            [0],
            tj.ones(4, dtype=tj.int64),
            RuntimeError,
            "source and destination dtypes match, got Float for the destination and Long",
        ),
        (0, [1, 2], TypeError, "can't assign a list to a tapejit.FloatTensor"),
        (0, "a", TypeError, "can't assign a str"),
    ],
)
def test_wrong_assignments(index: Any, value: Any, error: type[Exception], message: str) -> None:
    x = tj.tensor(X, dtype=tj.float32)
    with pytest.raises(error, match=message):
        x[index] = value
    assert x._version == 0
    np.testing.assert_array_equal(x.numpy(), X)


def test_numbers_that_do_not_fit() -> None:
    for x, value in ((tj.zeros(2, dtype=tj.int8), 300), (tj.zeros(2, dtype=tj.int64), float("inf")), (tj.zeros(2), 1e39)):
        with pytest.raises(RuntimeError, match="without overflow"):
            x[0] = value
        with pytest.raises(RuntimeError, match="without overflow"):
            x.masked_fill(x == 0, value)
    x = tj.zeros(2).half()
    x[0] = -float("inf")
    assert x.tolist() == [-float("inf"), 0]
    with pytest.raises(RuntimeError, match="without overflow"):
        x.masked_fill(x == 0, -1e9)


@pytest.mark.parametrize("index", [1, slice(1, None), [1], [False, True, False]])
@pytest.mark.parametrize(("dtype", "value"), [(tj.float16, -1e9), (tj.bfloat16, 1e39)])
def test_what_halves_do_not_hold_is_infinite(dtype: Any, value: float, index: Any) -> None:
    x = tj.ones(3, dtype=dtype)
    x[tj.tensor(index) if isinstance(index, list) else index] = value
    assert x[1].item() == math.copysign(math.inf, value)
    assert x[0].item() == 1


def test_assignment_to_a_leaf_is_refused_under_the_tape() -> None:
    x = tj.zeros(3, requires_grad=True)
    for index in (0, [0, 1], slice(None), tj.tensor([True, False, True])):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            x[index] = 1
        with tj.no_grad():
            x[index] = 1
    assert x.tolist() == [1, 1, 1]
    assert x.is_leaf


def test_assignment_overlapping_itself() -> None:
    x = numbers(5)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]
    x[[0, 1, 2]] = x[2:5]
    assert x.tolist() == [1, 2, 3, 2, 3]
    x.index_add_(0, tj.tensor([0, 0, 0]), x[:3])
    assert x[0].item() == 7
    x.scatter_(0, tj.tensor([1, 2, 0]), x[:3])
    assert x[:3].tolist() == [3, 7, 2]


def test_assignment_makes_history() -> None:
    a, b = numbers(3, 2).requires_grad_(), tj.ones(2, dtype=tj.float64, requires_grad=True)
    x = a * 2
    x[[2, 0]] = b * 3
    x[x > 1e9] = 0
    x[1, 1] = 7
    x.sum().backward()
    assert a.grad.tolist() == [[0, 0], [2, 0], [0, 0]]
    assert b.grad.tolist() == [6, 6]


def test_a_plain_tensor_gets_history_by_assignment() -> None:
    buffer, w = tj.zeros(4), tj.tensor(2.0, requires_grad=True)
    buffer[1:3] = w
    buffer[[3]] = w * w
    buffer[buffer == 0] = w * 5
    assert buffer.requires_grad
    buffer.sum().backward()
    assert w.grad.item() == 2 + 4 + 5


def test_overwritten_saved_values_are_noticed() -> None:
    a = numbers(3).requires_grad_()
    x = a * 1
    y = x * x
    x[[0]] = 5
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_was_indexed_may_change_afterwards() -> None:
    """The gradient of a pick needs the indices only."""
    a = numbers(4).requires_grad_()
    x = a * 1
    y, z = x[[0, 0, 3]], x.gather(0, tj.tensor([1, 1]))
    x += 1
    (y.sum() + z.sum()).backward()
    assert a.grad.tolist() == [2, 2, 0, 1]


def test_indices_saved_for_the_gradient_may_not_change() -> None:
    a, index = numbers(4).requires_grad_(), tj.tensor([0, 1])
    y = a[index]
    index += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_iteration_and_membership() -> None:
    x = numbers(3, 2)
    assert [row.tolist() for row in x] == x.tolist()
    assert 5 in x
    assert 9 not in x
    assert tj.tensor(3.0) in x
    assert len(x) == 3
    first, *_ = x
    first.zero_()
    assert x[0].tolist() == [0, 0]
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(tj.tensor(1.0))
    with pytest.raises(RuntimeError, match="__contains__"):
        "a" in x  # noqa: B015


# ---- gather and scatter


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, i: x.gather(0, i([[0, 5]])), RuntimeError, "index 5 is out of bounds for dimension 0 with size 3"),
        (lambda x, i: x.gather(1, i([[-1]])), RuntimeError, "index -1 is out of bounds for dimension 1 with size 4"),
        (lambda x, i: x.gather(0, i([0])), RuntimeError, "same number of dimensions"),
        (lambda x, i: x.gather(0, i([[0] * 5])), RuntimeError, "Size does not match at dimension 1"),
        (lambda x, i: x.gather(0, i([[0.0]])), RuntimeError, "int32/int64"),
        (lambda x, i: x.gather(2, i([[0]])), IndexError, "Dimension out of range"),
        (lambda x, i: x.scatter(0, i([[3]]), 1.0), RuntimeError, "index 3 is out of bounds for dimension 0 with size 3"),
        (lambda x, i: x.scatter(0, i([[0, 1]]), x[:1, :1]), RuntimeError, "no larger size than src"),
        (lambda x, i: x.scatter(0, i([[0] * 5]), 1.0), RuntimeError, "to be no larger than self"),
        (lambda x, i: x.scatter(0, i([[0]]), i([[1]])), RuntimeError, "self.dtype to be equal to src.dtype"),
        (lambda x, i: x.scatter(0, i([[0]]), 1.0, reduce="min"), RuntimeError, "add or multiply"),
        (lambda x, i: x.scatter_add(0, i([[0, 0]]), x[:1, :1]), RuntimeError, "no larger size than src"),
        (lambda x, i: x.scatter_reduce(0, i([[0]]), x, "median"), RuntimeError, "sum, prod, mean, amax or amin, got median"),
        (lambda x, i: x.index_select(0, i([3])), IndexError, "out of range in self"),
        (lambda x, i: x.index_select(0, i([-1])), IndexError, "out of range in self"),
        (lambda x, i: x.index_select(0, i([[0]])), IndexError, "supposed to be a vector"),
        (lambda x, i: x.index_add(0, i([3]), x[:1]), RuntimeError, "index 3 is out of bounds"),
        (lambda x, i: x.index_add(0, i([-1]), x[:1]), RuntimeError, "index -1 is out of bounds"),
        (
            lambda x, i: x.index_add(0, i([0, 1]), x),
            RuntimeError,
            r"Number of indices \(2\) should be equal to source.size\(dim\)",
        ),
        (lambda x, i: x.index_add(0, i([0]), x[:1, :2]), RuntimeError, "source tensor shape must match self tensor shape"),
        (lambda x, i: x.index_add(0, i([0]), x[:1].float()), RuntimeError, "same scalar type"),
        (lambda x, i: x.index_copy(0, i([3]), x[:1]), IndexError, "index 3 is out of bounds"),
        (lambda x, i: x.index_copy(0, i([0]), x[:1].float()), RuntimeError, "same dtype"),
        (lambda x, i: x.index_fill(0, i([3]), 0.0), IndexError, "index 3 is out of bounds"),
        (lambda x, i: x.index_fill(0, i([0]), x[0]), RuntimeError, "0-dimensional value tensor"),
        (lambda x, i: x.index_put((i([3]),), x[0]), IndexError, "index 3 is out of bounds"),
        (lambda x, i: x.index_put((i([3]),), x[0], accumulate=True), IndexError, "index 3 is out of bounds"),
        (lambda x, i: x.index_put((i([0]),), x[0].float()), RuntimeError, "dtypes match"),
        (lambda x, i: x.index_put((None,), x[0]), TypeError, "expected Tensor as element 0"),
        (lambda x, i: x.take(i([12])), IndexError, "index 12 is out of bounds"),
        (lambda x, i: x.take(i([0.0])), RuntimeError, "long tensor for index, but got"),
        (lambda x, i: x.put(i([0, 1]), x[0]), IndexError, "same number of elements"),
        (lambda x, i: x.take_along_dim(i([0]), 1), RuntimeError, "same number of dimensions"),
        (lambda x, i: x.masked_select(i([1, 0, 1, 0])), RuntimeError, "boolean masks"),
        (lambda x, i: x.masked_select(x[:, 0] > 1), RuntimeError, "must match the size"),
        (lambda x, i: x.masked_fill(i([1, 0, 1, 0]), 0), RuntimeError, "boolean masks"),
        (lambda x, i: x.masked_fill(x > 1, x[0]), RuntimeError, "0-dimensional value tensor"),
        (lambda x, i: x.masked_scatter(x > 1, x[0]), RuntimeError, "source < number of ones in mask"),
        (lambda x, i: x.select(0, 3), IndexError, r"select\(\): index 3 out of range"),
        (lambda x, i: x.narrow(0, 2, 2), RuntimeError, "exceeds dimension size"),
        (lambda x, i: x.narrow(0, 4, 0), IndexError, "start out of range"),
        (lambda x, i: x.narrow(0, 0, -1), RuntimeError, "non-negative"),
        (lambda x, i: x.slice_scatter(x, start=1), RuntimeError, "size equal to the slice of self"),
        (lambda x, i: x.select_scatter(x, 0, 1), RuntimeError, "size equal to the slice of self"),
        (lambda x, i: tj.nn.functional.one_hot(i([0, 2]), 2), RuntimeError, "smaller than num_classes"),
        (lambda x, i: tj.nn.functional.one_hot(i([-1])), RuntimeError, "non-negative"),
        (lambda x, i: tj.nn.functional.one_hot(x), RuntimeError, "LongTensor"),
        (lambda x, i: x[0].clone().fill_diagonal_(1), RuntimeError, "dimensions"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], message: str) -> None:
    x = numbers(3, 4)
    with pytest.raises(error, match=message):
        call(x, tj.tensor)
    np.testing.assert_array_equal(x.numpy(), np.arange(12.0).reshape(3, 4))


IN_PLACE: dict[str, Any] = {
    "scatter_": lambda x, i, v: x.scatter_(0, i, v),
    "scatter_add_": lambda x, i, v: x.scatter_add_(0, i, v),
    "index_add_": lambda x, i, v: x.index_add_(0, i, v),
    "index_copy_": lambda x, i, v: x.index_copy_(0, i, v),
    "index_put_": lambda x, i, v: x.index_put_((i,), v),
    "index_put_ adding": lambda x, i, v: x.index_put_((i,), v, accumulate=True),
    "index_fill_": lambda x, i, v: x.index_fill_(0, i, 2.0),
    "masked_fill_": lambda x, i, v: x.masked_fill_(x > 2, 1.0),
    "masked_scatter_": lambda x, i, v: x.masked_scatter_(tj.tensor([True, False, True, False, True]), v),
    "scatter_reduce_": lambda x, i, v: x.scatter_reduce_(0, i, v, "amax"),
    "put_": lambda x, i, v: x.put_(i, v),
    "subscript": lambda x, i, v: x.__setitem__(i, v),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("dtype", [tj.float64, tj.float32, tj.float16, tj.bfloat16])
def test_in_place_with_and_without_history(name: str, dtype: Any) -> None:
    """The quick way on the memory itself and the way on the tape give the same; views of odd strides too."""
    index, new = tj.tensor([4, 0, 2]), tj.tensor([10.0, 20.0, 30.0], dtype=dtype)
    plain = numbers(5).to(dtype)
    IN_PLACE[name](plain, index, new)
    assert plain._version == 1
    scattered = tj.zeros(5, 2, dtype=dtype)[:, 1]
    scattered.copy_(numbers(5))
    IN_PLACE[name](scattered, index, new)
    leaf = numbers(5).to(dtype).requires_grad_()
    recorded = leaf * 1
    IN_PLACE[name](recorded, index, new.requires_grad_())
    assert recorded.requires_grad
    assert plain.tolist() == scattered.tolist() == recorded.tolist()
    recorded.sum().backward()
    assert leaf.grad is not None


def test_index_add_repeats() -> None:
    x = tj.zeros(3, dtype=tj.int8)
    x.index_add_(0, tj.tensor([1, 1, 1]), tj.ones(3, dtype=tj.int8))
    assert x.tolist() == [0, 3, 0]
    x.index_add_(0, tj.tensor([0]), tj.ones(1, dtype=tj.int8), alpha=5)
    assert x.tolist() == [5, 3, 0]
    half = tj.zeros(1, dtype=tj.float16)
    half.index_add_(0, tj.zeros(4096, dtype=tj.int64), tj.ones(4096, dtype=tj.float16))
    assert half.item() == 4096  # summed in float32: float16 alone would stop at 2048


def test_sums_of_many_rows() -> None:
    """Large enough for several pieces, with indices in the middle and in front."""
    random = np.random.default_rng(0)
    weight, index = random.normal(size=(7, 40, 30)), random.integers(-40, 40, 2000)
    for dim in (0, 1, 2):
        x = tj.tensor(np.moveaxis(weight, 1, dim).copy(), requires_grad=True)
        place = (slice(None),) * dim + (tj.tensor(index),)
        y = x[place]
        g = random.normal(size=y.shape)
        (y * tj.tensor(g)).sum().backward()
        expected = np.zeros(x.shape)
        for k, i in enumerate(index):
            expected[(slice(None),) * dim + (i,)] += g[(slice(None),) * dim + (k,)]
        np.testing.assert_allclose(x.grad.numpy(), expected, atol=1e-12)


def test_gather_of_nothing() -> None:
    x = numbers(3, 4).requires_grad_()
    empty = tj.zeros(0, dtype=tj.int64)
    assert x.gather(0, empty).shape == (0,)
    assert x.scatter(0, empty, 1.0).tolist() == x.tolist()
    assert x.scatter_add(0, empty, tj.zeros(0, dtype=tj.float64)).tolist() == x.tolist()
    assert x.index_select(1, empty).shape == (3, 0)
    assert x[empty].shape == (0, 4)
    assert tj.zeros(0, 3)[:, [0, 1]].shape == (0, 2)
    with pytest.raises(IndexError, match="size 0"):
        tj.zeros(0, 3)[[0]]


def test_scatter_reduce_of_integers() -> None:
    x, index, src = tj.tensor([0, 4, 8]), tj.tensor([1, 1]), tj.tensor([4, -20])
    assert x.scatter_reduce(0, index, src, "mean").tolist() == [0, -4, 8]
    assert x.scatter_reduce(0, index, src, "amax", include_self=False).tolist() == [0, 4, 8]
    assert x.scatter_reduce(0, index, src, "amin", include_self=False).tolist() == [0, -20, 8]
    assert x.scatter_reduce(0, index, src, "prod").tolist() == [0, -320, 8]


def test_scatter_reduce_shares_the_gradient_among_ties() -> None:
    x, src = tj.tensor([3.0, 1.0], requires_grad=True), tj.tensor([3.0, 3.0, 0.0], requires_grad=True)
    x.scatter_reduce(0, tj.tensor([0, 0, 1]), src, "amax").sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1 / 3, 1])
    np.testing.assert_allclose(src.grad.numpy(), [1 / 3, 1 / 3, 0])


def test_scatter_product_with_zeros() -> None:
    x, src = tj.tensor([2.0, 0.0], requires_grad=True), tj.tensor([0.0, 3.0, 5.0, 0.0, 0.0], requires_grad=True)
    x.scatter_reduce(0, tj.tensor([0, 0, 1, 1, 1]), src, "prod").sum().backward()
    assert x.grad.tolist() == [0, 0]
    assert src.grad.tolist() == [6, 0, 0, 0, 0]


def test_masks_wider_than_the_tensor() -> None:
    x, mask = numbers(2), tj.tensor([[True, False], [False, True]])
    assert x.masked_fill(mask, 9).tolist() == [[9, 1], [0, 9]]
    assert x.masked_select(mask).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.masked_fill_(mask, 9)


def test_nonzero_of_a_number() -> None:
    assert tj.tensor(3.0).nonzero().shape == (1, 0)
    assert tj.tensor(0.0).nonzero().shape == (0, 0)
    assert tj.tensor(3.0).nonzero(as_tuple=True)[0].tolist() == [0]
    assert tj.where(tj.tensor([0, 2, 3]))[0].tolist() == [1, 2]


def test_fill_diagonal() -> None:
    assert tj.zeros(3, 4).fill_diagonal_(2).numpy().tolist() == (2 * np.eye(3, 4)).tolist()
    cube = tj.zeros(3, 3, 3).fill_diagonal_(1)
    assert cube.sum().item() == 3
    assert cube[1, 1, 1].item() == 1
    tall = np.zeros((7, 3))
    np.fill_diagonal(tall, 1, wrap=True)
    assert tj.zeros(7, 3).fill_diagonal_(1, wrap=True).tolist() == tall.tolist()
    a = numbers(2, 2).requires_grad_()
    (a * 3).fill_diagonal_(0).sum().backward()
    assert a.grad.tolist() == [[0, 3], [3, 0]]


def test_one_hot_counts_classes() -> None:
    one_hot = tj.nn.functional.one_hot
    assert one_hot(tj.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert one_hot(tj.tensor(1), 3).tolist() == [0, 1, 0]
    assert one_hot(tj.zeros(0, dtype=tj.int64), 3).shape == (0, 3)
    with pytest.raises(RuntimeError, match="empty tensor"):
        one_hot(tj.zeros(0, dtype=tj.int64))


def test_second_gradient_through_subscripts() -> None:
    x = numbers(4).requires_grad_()
    y = (x[[1, 1, 2]] ** 3).sum() + (x[1:] ** 3).sum() + (x[x > 1.5] ** 3).sum()
    (g,) = tj.autograd.grad(y, x, create_graph=True)
    g.sum().backward()
    assert x.grad.tolist() == [0, 18, 36, 36]
