"""Shapes beyond what samples say: dtypes, errors, edge cases of joining, parting, padding and arranging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj

F = tj.nn.functional


def numbers(*shape: int) -> tj.Tensor:
    return tj.tensor(np.arange(np.prod(shape), dtype=np.float64).reshape(shape))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.permute(0), RuntimeError, r"input.dim\(\) = 2 is not equal to len\(dims\) = 1"),
        (lambda x: x.permute(0, 0), RuntimeError, "duplicate dims"),
        (
            lambda x: x.transpose(0, 2),
            IndexError,
            r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 2\)",
        ),
        (lambda x: x[None].t(), RuntimeError, r"t\(\) expects a tensor with <= 2 dimensions"),
        (lambda x: x.squeeze((0, 0)), RuntimeError, "appears multiple times"),
        (lambda x: x.unsqueeze(4), IndexError, "Dimension out of range"),
        (lambda x: x.expand(4), RuntimeError, r"number of sizes provided \(1\) must be greater or equal"),
        (lambda x: x.expand(2, 4), RuntimeError, r"The expanded size of the tensor \(2\) must match the existing size \(3\)"),
        (lambda x: x.expand(-1, 3, 4), RuntimeError, "-1 is not allowed"),
        (lambda x: x.flatten(1, 0), RuntimeError, "start_dim 1 cannot come after end_dim 0"),
        (lambda x: x.unflatten(1, (3, 2)), RuntimeError, "don't multiply up to the size of dim 1"),
        (lambda x: x.movedim((0, 1), (0,)), RuntimeError, "same number of dims"),
        (lambda x: x[0].mT, RuntimeError, "Got 1-D tensor"),
        (lambda x: x[0].H, RuntimeError, "Got 1-D tensor"),
        (lambda x: x.diagonal(0, 1, 1), RuntimeError, "cannot be identical"),
        (lambda x: x.unfold(1, 5, 1), RuntimeError, "maximum size for tensor at dimension 1 is 4 but size is 5"),
        (lambda x: x.unfold(1, 2, 0), RuntimeError, "step is 0 but must be > 0"),
        (lambda x: tj.broadcast_tensors(x, x[:, :3]), RuntimeError, "must match the size"),
        (lambda x: tj.cat([]), ValueError, "non-empty list"),
        (lambda x: tj.cat(x), TypeError, "must be tuple of Tensors, not Tensor"),
        (lambda x: tj.cat([x, 1]), TypeError, "found int"),
        (lambda x: tj.cat([x, x[0]]), RuntimeError, "same number of dimensions: got 2 and 1"),
        (lambda x: tj.cat([x, x[:, :2]]), RuntimeError, "must match except in dimension 0"),
        (lambda x: tj.cat([x[0, 0], x[0, 0]]), RuntimeError, "zero-dimensional"),
        (lambda x: tj.stack([x, x[:2]]), RuntimeError, r"equal size, but got \[3, 4\] at entry 0 and \[2, 4\] at entry 1"),
        (lambda x: tj.stack([]), RuntimeError, "non-empty TensorList"),
        (lambda x: x.split(-1), RuntimeError, "non-negative"),
        (lambda x: x.split([1, 1]), RuntimeError, "sum exactly to 3"),
        (lambda x: x[0, 0].split(1), RuntimeError, "at least a 1-dimensional"),
        (lambda x: x[0, 0].unbind(), IndexError, "no dimensions"),
        (lambda x: x.chunk(0), RuntimeError, "greater than 0"),
        (lambda x: x.tensor_split(0), RuntimeError, "larger than 0"),
        (lambda x: x.hsplit(3), RuntimeError, "not divisible by the split_size 3"),
        (lambda x: x[0].vsplit(2), RuntimeError, "at least 2 dimensions"),
        (lambda x: x.dsplit(2), RuntimeError, "at least 3 dimensions"),
        (lambda x: tj.meshgrid(x, indexing="ij"), RuntimeError, "0D or 1D"),
        (lambda x: tj.meshgrid(x[0], indexing="ab"), RuntimeError, "xy"),
        (lambda x: tj.meshgrid(x[0], x[0].float(), indexing="ij"), RuntimeError, "same dtype"),
        (lambda x: tj.cartesian_prod(x), RuntimeError, "1D vector"),
        (lambda x: tj.combinations(x), RuntimeError, "1D vector"),
        (lambda x: tj.block_diag(x[None]), RuntimeError, "2 or fewer dimensions"),
        (lambda x: x.repeat(2), RuntimeError, "can not be smaller than number of dimensions"),
        (lambda x: x.repeat_interleave(-1), RuntimeError, "non-negative"),
        (lambda x: x.repeat_interleave(tj.tensor([1, 2]), 0), RuntimeError, "same size as input along dim"),
        (lambda x: x.repeat_interleave(tj.tensor([1, -2, 0]), 0), RuntimeError, "negative"),
        (lambda x: x.roll((1, 2), (0,)), RuntimeError, "must align"),
        (lambda x: x.flip(0, 0), RuntimeError, "multiple times"),
        (lambda x: x[0].fliplr(), RuntimeError, ">= 2-d"),
        (lambda x: x.rot90(1, (0, 0)), RuntimeError, "different"),
        (lambda x: x[0].tril(), RuntimeError, "at least 2 dimensions"),
        (lambda x: x[None].diag(), RuntimeError, "1D or 2D"),
        (lambda x: x.diag_embed(0, 1, 1), RuntimeError, "cannot be identical"),
        (lambda x: F.pad(x, (1,)), RuntimeError, "divisible by 2"),
        (lambda x: F.pad(x, (1,) * 6), RuntimeError, "two times the input dimension"),
        (lambda x: F.pad(x, (-3, -2)), RuntimeError, "negative output size"),
        (lambda x: F.pad(x, (4, 0), mode="reflect"), RuntimeError, "less than the corresponding input dimension"),
        (lambda x: F.pad(x, (5, 0), mode="circular"), RuntimeError, "more than once"),
        (lambda x: F.pad(x, (1, 1), mode="mirror"), NotImplementedError, "Unrecognised padding mode mirror"),
        (lambda x: F.pad(x, (1, 1), mode="reflect", value=1.0), RuntimeError, "doesn't take in value"),
        (lambda x: F.pad(x[0], (1, 1), mode="reflect"), NotImplementedError, "Only 2D"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(numbers(3, 4))


def test_joining_promotes() -> None:
    whole, real = tj.tensor([1, 2]), tj.tensor([0.5])
    assert tj.cat([whole, real]).dtype == tj.float32
    assert tj.cat([whole, tj.tensor([True])]).tolist() == [1, 2, 1]
    assert tj.stack([whole, whole.to(tj.int8)]).dtype == tj.int64
    assert tj.block_diag(whole, real).dtype == tj.float32
    assert tj.cat([tj.zeros(0), tj.zeros(2, 3)]).shape == (2, 3)
    joined = tj.cat([real.requires_grad_(), whole])
    joined.sum().backward()
    assert real.grad.tolist() == [1]


def test_joining_into_out() -> None:
    out = tj.zeros(4)
    assert tj.cat([tj.ones(2), tj.ones(2)], out=out) is out
    assert out.tolist() == [1, 1, 1, 1]
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        tj.cat([tj.ones(2, requires_grad=True), tj.ones(2)], out=out)


def test_parts_of_nothing() -> None:
    assert [p.shape for p in tj.zeros(0, 2).split(3)] == [(0, 2)]
    assert [p.shape for p in tj.zeros(0, 2).chunk(2)] == [(0, 2), (0, 2)]
    assert tj.zeros(0, 2).unbind() == ()
    assert [p.numel() for p in numbers(5).tensor_split((3, 1))] == [3, 0, 4]
    assert [p.numel() for p in numbers(5).chunk(4)] == [2, 2, 1]


def test_numbers_have_a_dim_when_asked() -> None:
    x = tj.tensor(3.0)
    for same in (x.transpose(0, -1), x.T, x.H, x.squeeze(0), x.movedim(0, 0), x.flip(0), x.roll(1), x.t(), x.adjoint()):
        assert same.shape == ()
        assert same.item() == 3
    assert x.flatten().shape == x.unfold(0, 1, 1).shape == x.expand(1).shape == (1,)
    assert x.repeat(2, 2).shape == (2, 2)
    assert x.repeat_interleave(2).tolist() == [3, 3]


def test_padding_keeps_integers_and_bools() -> None:
    assert F.pad(tj.tensor([1, 2]), (1, 0), value=3).tolist() == [3, 1, 2]
    assert F.pad(tj.tensor([True]), (1, 1)).tolist() == [False, True, False]
    assert F.pad(numbers(2).to(tj.bfloat16), (1, 0), value=0.5).dtype == tj.bfloat16
    assert F.pad(numbers(2), ()).tolist() == [0, 1]


def test_padding_takes_away() -> None:
    x = numbers(1, 5)
    assert F.pad(x, (-1, -2)).tolist() == [[1, 2]]
    assert F.pad(x, (-1, 2), mode="reflect").tolist() == [[1, 2, 3, 4, 3, 2]]
    assert F.pad(x, (-1, 2), mode="replicate").tolist() == [[1, 2, 3, 4, 4, 4]]
    assert F.pad(x, (-1, 2), mode="circular").tolist() == [[1, 2, 3, 4, 1, 2]]
    same = F.pad(x, (0, 0), mode="reflect")
    same.zero_()
    assert x.sum().item() == 10


def test_meshgrid_warns_about_its_default() -> None:
    with pytest.warns(UserWarning, match="indexing"):
        rows, _ = tj.meshgrid(numbers(2), numbers(3))
    assert rows.shape == (2, 3)


def test_repeats_may_be_counted() -> None:
    assert tj.repeat_interleave(tj.tensor([2, 0, 1])).tolist() == [0, 0, 2]
    assert numbers(3).repeat_interleave(tj.tensor([2, 0, 1]), output_size=3).tolist() == [0, 0, 2]
    with pytest.raises(RuntimeError, match="output_size"):
        numbers(3).repeat_interleave(tj.tensor([2, 0, 1]), output_size=4)


def test_sizes_may_be_tensors_and_numpy_numbers() -> None:
    x = numbers(6)
    assert x.reshape(tj.tensor(2), np.int64(3)).shape == (2, 3)
    assert x.view(tj.Size([3, 2])).shape == (3, 2)
    assert x.expand(x.shape).shape == (6,)
    assert x.narrow(0, tj.tensor(2), 1).item() == 2
    with pytest.raises(TypeError, match="size"):
        x.reshape(2.0, 3)


def test_triangles_in_place() -> None:
    x = tj.ones(3, 3)
    assert x.tril_() is x
    assert x.triu_().numpy().tolist() == np.eye(3).tolist()


def test_copies_are_copies() -> None:
    x = numbers(2, 2)
    for copy in (x.flip(0), x.roll(0), x.rot90(0), x.diag(), x.repeat(1, 1), x.tril(2), F.pad(x, (0, 0)), tj.cat([x])):
        copy.zero_()
    assert x.tolist() == [[0, 1], [2, 3]]


def test_same_size() -> None:
    assert numbers(2, 3).is_same_size(tj.zeros(2, 3, dtype=tj.int8))
    assert not numbers(2, 3).is_same_size(numbers(3, 2))
    assert tj.numel(numbers(2, 3)) == 6


def test_a_slice_gradient_of_infinity_stays_outside() -> None:
    """Zeros, not zeros times the gradient, where a value was written over."""
    a = numbers(3).requires_grad_()
    x = a * 1
    x[0] = 0.0
    (x * tj.tensor([float("inf"), 1.0, 1.0], dtype=tj.float64)).sum().backward()
    assert a.grad.tolist() == [0, 1, 1]


def test_reversed() -> None:
    assert reversed(tj.arange(6).reshape(3, 2)).tolist() == [[4, 5], [2, 3], [0, 1]]
    assert reversed(tj.tensor(3)).item() == 3
