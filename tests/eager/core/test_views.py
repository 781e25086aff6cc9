"""Views: memory is shared both ways, histories stay right when either side is written, and what cannot be a view says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj


def numbers(*shape: int) -> tj.Tensor:
    return tj.tensor(np.arange(1.0, 1 + np.prod(shape)).reshape(shape))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(3, 2, 4),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(1),
    "ravel": lambda x: x.ravel(),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "view_as": lambda x: x.view_as(tj.zeros(6, 4)),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, 2),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "squeeze": lambda x: x[:1].squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "slice": lambda x: x[:, 1:, ::2],
    "int": lambda x: x[1, -1],
    "number": lambda x: x[1, 2, 3],
    "empty index": lambda x: x[()],
    "none": lambda x: x[None, ..., None],
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(2, 2)[1],
    "tensor_split": lambda x: x.tensor_split((1, 2), 1)[2],
    "unbind": lambda x: x.unbind(1)[2],
    "iteration": lambda x: list(x)[1],
    "diagonal": lambda x: x.diagonal(0, 0, 2),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 4), 5),
    "expand alike": lambda x: x.expand(2, 3, 4),
    "atleast_3d": lambda x: tj.atleast_3d(x[0]),
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_memory_is_shared_both_ways(name: str) -> None:
    x = numbers(2, 3, 4)
    v = VIEWS[name](x)
    v.fill_(-1)
    assert (x == -1).sum().item() == v.numel()
    x.fill_(5)
    assert (v == 5).all()
    assert v._version == x._version == 2


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "detach"])
def test_gradients_after_writing_through_a_view(name: str) -> None:
    """Half of x comes from a, the part that the view shows from b."""
    a = numbers(2, 3, 4).requires_grad_()
    x = a * 2
    v = VIEWS[name](x)
    b = tj.ones(v.shape, dtype=tj.float64, requires_grad=True)
    v.copy_(b * 3)
    (x * 10).sum().backward()
    covered = tj.zeros(2, 3, 4)
    VIEWS[name](covered).fill_(1)
    assert (b.grad == 30).all()
    assert (a.grad == 20 * (1 - covered)).all()


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "detach"])
def test_gradients_of_a_view_after_writing_under_it(name: str) -> None:
    a = numbers(2, 3, 4).requires_grad_()
    x = a * 2
    v = VIEWS[name](x)
    x *= 5
    v.sum().backward()
    covered = tj.zeros(2, 3, 4)
    VIEWS[name](covered).fill_(1)
    assert (a.grad == 10 * covered).all()


def test_views_of_views_follow_each_other() -> None:
    a = numbers(4, 4).requires_grad_()
    x = a * 1
    rows = x[1:3]
    column = rows.t()[2]
    column *= 10
    rows[0] += 1
    (x.sum() + 2 * column.sum()).backward()
    expected = np.ones((4, 4))
    expected[1:3, 2] = 30
    assert (a.grad.numpy() == expected).all()
    assert x[1, 2].item() == 71


def test_writing_into_all_parts_of_a_split() -> None:
    a = numbers(2, 6).requires_grad_()
    x = a * 1
    first, second, third = x.split(2, dim=1)
    first *= 2
    second.mul_(3)
    third[:] = first + second
    x.sum().backward()
    assert a.grad.tolist() == [[4, 4, 6, 6, 0, 0]] * 2


def test_writing_into_unbound_rows() -> None:
    a = numbers(3, 2).requires_grad_()
    x = a * 1
    for i, row in enumerate(x.unbind()):
        row *= i
    x.sum().backward()
    assert a.grad.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_an_expanded_tensor_refuses_to_be_written() -> None:
    x = numbers(3, 1)
    wide = x.expand(3, 4)
    assert wide.stride() == (1, 0)
    x[0] = 9
    assert (wide[0] == 9).all()
    with pytest.raises(RuntimeError, match="clone"):
        wide.add_(1)
    with pytest.raises(RuntimeError, match="clone"):
        wide[0] = 1
    assert x.tolist() == [[9], [2], [3]]


def test_a_view_is_not_its_base() -> None:
    x = numbers(2, 2)
    for same in (x.expand(2, 2), x.view(2, 2), x[:], x.squeeze(), x.reshape(2, 2)):
        assert same is not x
        assert same._base is x
    assert x.contiguous() is x


# ---- what cannot be a view


def test_view_needs_memory_in_order() -> None:
    x = numbers(3, 4)
    with pytest.raises(RuntimeError, match=r"view size is not compatible .* Use \.reshape"):
        x.t().view(12)
    assert x.t().reshape(12).tolist() == x.numpy().T.ravel().tolist()
    assert x.t().view(2, 2, 3)._base is x
    copy = x.t().reshape(12)
    copy.zero_()
    assert x.sum().item() == 78


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5,), "shape '\\[5\\]' is invalid for input of size 12"),
        ((-1, 5), "is invalid for input of size 12"),
        ((-1, -1), "only one dimension can be inferred"),
        ((-2, 6), "invalid shape dimension"),
    ],
)
def test_impossible_shapes(shape: tuple[int, ...], message: str) -> None:
    for method in ("view", "reshape"):
        with pytest.raises(RuntimeError, match=message):
            getattr(numbers(3, 4), method)(shape)


def test_minus_one_of_nothing_is_ambiguous() -> None:
    assert tj.zeros(0, 3).reshape(-1, 3).shape == (0, 3)
    with pytest.raises(RuntimeError, match="ambiguous"):
        tj.zeros(0, 3).reshape(0, -1)


def test_view_as_another_dtype() -> None:
    x = tj.tensor([1.0, -2.0])
    bits = x.view(tj.int32)
    assert bits.tolist() == [0x3F800000, -0x40000000]
    bits[0] = 0
    assert x.tolist() == [0, -2]
    assert x.view(tj.uint8).shape == (8,)
    assert x.view(tj.float64).shape == (1,)
    with pytest.raises(RuntimeError, match="divisible"):
        tj.zeros(3).view(tj.float64)
    with pytest.raises(RuntimeError, match="contiguous"):
        tj.zeros(4, 4).t().view(tj.float64)


# ---- any strides


def test_as_strided_shows_the_whole_memory() -> None:
    x = numbers(3, 4)
    assert x[1:, 1:].storage_offset() == 5
    assert x[1:, 1:].as_strided((2, 2), (4, 1)).tolist() == [[6, 7], [10, 11]]
    assert x[1:, 1:].as_strided((2,), (1,), 0).tolist() == [1, 2]
    assert x.t().as_strided((3,), (1,)).tolist() == [1, 2, 3]
    assert (x.t() + 0).as_strided((3,), (1,)).numel() == 3
    diagonal = x.as_strided((3,), (5,))
    diagonal.zero_()
    assert (x == 0).sum().item() == 3


def test_as_strided_sums_gradients_of_elements_it_shows_twice() -> None:
    x = numbers(5).requires_grad_()
    windows = x.as_strided((3, 3), (1, 1))
    (windows * windows).sum().backward()
    assert x.grad.tolist() == [2, 8, 18, 16, 10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 4), (4, 1)), "out of bounds for storage of 12"),
        (((2,), (1,), 11), "out of bounds"),
        (((2,), (-1,)), "Negative strides"),
        (((2,), (1, 2)), "mismatch in length"),
    ],
)
def test_as_strided_stays_inside_its_memory(arguments: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        numbers(3, 4).as_strided(*arguments)


def test_as_strided_of_memory_with_gaps() -> None:
    with pytest.raises(RuntimeError, match="gaps"):
        tj.from_numpy(np.zeros((4, 4))[:, ::2]).as_strided((2,), (1,))


# ---- shapes in place


@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("unsqueeze_", (1,), (2, 1, 3)),
        ("squeeze_", (), (2, 3)),
        ("transpose_", (0, 1), (3, 2)),
        ("swapaxes_", (0, 1), (3, 2)),
        ("t_", (), (3, 2)),
    ],
)
def test_shapes_in_place(name: str, arguments: tuple[int, ...], shape: tuple[int, ...]) -> None:
    a = numbers(2, 3).requires_grad_()
    x = a * 2
    pointer = x.data_ptr()
    assert getattr(x, name)(*arguments) is x
    assert x.shape == shape
    assert x.data_ptr() == pointer
    (x * x).sum().backward()
    assert (a.grad == 8 * a).all()
    with pytest.raises(RuntimeError, match="leaf"):
        getattr(a, name)(*arguments)
    with tj.no_grad():
        assert getattr(a, name)(*arguments).shape == shape
    assert a.is_leaf
    assert a.requires_grad


def test_shapes_in_place_of_a_view() -> None:
    a = numbers(3, 4).requires_grad_()
    x = a * 1
    v = x[1:]
    v.t_()
    v[0] = 0
    v *= 2
    assert v.shape == (4, 2)
    x.sum().backward()
    assert a.grad.tolist() == [[1, 1, 1, 1], [0, 2, 2, 2], [0, 2, 2, 2]]


def test_views_made_before_their_base_changed_shape() -> None:
    a = numbers(3, 3).requires_grad_()
    x = a * 1
    row = x[0]
    x.t_()
    column = x[:, 1]
    x.unsqueeze_(0)
    row *= 10
    column *= 100
    x[0, 2] = 0
    assert x.tolist() == [[[10, 400, 7], [20, 500, 8], [0, 0, 0]]]
    (x.sum() + row.sum() + column.sum()).backward()
    assert a.grad.tolist() == [[20, 20, 0], [200, 200, 0], [1, 1, 0]]
