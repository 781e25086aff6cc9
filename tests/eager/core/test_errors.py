"""Bad input: an exception of PyTorch's type, whose sentence names what went wrong; tensors are left as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.harness import ALL, Case, cases, tensors
from tapejit.eager.core.op import OPS

# The call, the exception's type, and what its sentence must contain.
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shapes that do not broadcast": (
        lambda: tj.ones(2, 3) + tj.ones(4),
        RuntimeError,
        r"size of tensor a \(3\) must match the size of tensor b \(4\) at non-singleton dimension 1",
    ),
    "shapes of a matrix product": (
        lambda: tj.ones(2, 3) @ tj.ones(4, 5),
        RuntimeError,
        r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 4x5\)|\[2, 3\] and \[4, 5\]",
    ),
    "dtypes of a matrix product": (lambda: tj.ones(2, 2) @ tj.ones(2, 2, dtype=tj.float64), RuntimeError, "dtype"),
    "a shape for too many elements": (
        lambda: tj.ones(2, 3).reshape(7),
        RuntimeError,
        r"shape '\[7\]' is invalid for input of size 6",
    ),
    "a view across memory": (lambda: tj.ones(2, 3).T.view(6), RuntimeError, r"Use \.reshape"),
    "a dim that is not there": (lambda: tj.ones(2, 3).sum(2), IndexError, r"expected to be in range of \[-2, 1\], but got 2"),
    "a dim named twice": (lambda: tj.ones(2, 3).sum((0, 0)), RuntimeError, "appears multiple times"),
    "an index out of range": (lambda: tj.ones(3)[3], IndexError, "index 3 is out of bounds for dimension 0 with size 3"),
    "too many indices": (lambda: tj.ones(3)[0, 0], IndexError, "too many indices"),
    "an index tensor out of range": (lambda: tj.ones(3)[tj.tensor([5])], IndexError, "index 5"),
    "a mask of another shape": (lambda: tj.ones(3)[tj.tensor([True])], IndexError, "mask"),
    "gathering out of range": (lambda: tj.ones(2, 3).gather(1, tj.tensor([[7]])), RuntimeError, "index 7 is out of bounds"),
    "a class that is not there": (
        lambda: F.cross_entropy(tj.ones(1, 3), tj.tensor([3])),
        IndexError,
        "Target 3 is out of bounds",
    ),
    "an embedding that is not there": (lambda: F.embedding(tj.tensor([9]), tj.ones(3, 2)), IndexError, "out of range"),
    "the maximum of nothing": (lambda: tj.zeros(0).max(), RuntimeError, "numel"),
    "the mean of integers": (lambda: tj.ones(2, dtype=tj.int64).mean(), RuntimeError, "floating point.*Long"),
    "a boolean minus": (lambda: tj.tensor([True]) - tj.tensor([True]), RuntimeError, "logical_not"),
    "bits of floats": (lambda: ~tj.ones(2), TypeError, "integer and Boolean"),
    "integer division by zero": (lambda: tj.tensor([1]) // tj.tensor([0]), RuntimeError, "ZeroDivisionError"),
    "one number of many": (lambda: tj.ones(3).item(), RuntimeError, "3 elements cannot be converted to Scalar"),
    "the truth of many": (lambda: bool(tj.ones(3)), RuntimeError, "ambiguous"),
    "ragged data": (lambda: tj.tensor([[1, 2], [3]]), ValueError, "length"),
    "data that is no number": (lambda: tj.tensor("a"), TypeError, "str"),
    "a device that does not exist": (lambda: tj.zeros(2, device="tpu"), RuntimeError, "tpu"),
    "a dtype that is none": (lambda: tj.zeros(2, dtype="float"), TypeError, "dtype"),
    "gradients of integers": (lambda: tj.tensor([1], requires_grad=True), RuntimeError, "floating point"),
    "backward of many": (lambda: (tj.ones(2, requires_grad=True) * 2).backward(), RuntimeError, "scalar outputs"),
    "backward of a constant": (lambda: tj.ones(()).backward(), RuntimeError, "does not require grad"),
    "writing to a leaf": (lambda: tj.ones(2, requires_grad=True).add_(1), RuntimeError, "leaf Variable"),
    "writing to expanded memory": (lambda: tj.ones(1).expand(3).add_(1), RuntimeError, "single memory location"),
    "writing floats into integers": (lambda: tj.ones(2, dtype=tj.int64).add_(1.5), RuntimeError, "Float can't be cast.*Long"),
    "writing something larger": (lambda: tj.ones(3).add_(tj.ones(2, 3)), RuntimeError, r"\[3\].*broadcast shape \[2, 3\]"),
    "cat of nothing": (lambda: tj.cat([]), (RuntimeError, ValueError), "non-empty list"),
    "cat of other shapes": (lambda: tj.cat([tj.ones(2, 3), tj.ones(2, 4)]), RuntimeError, "Sizes of tensors must match"),
    "a kernel larger than its input": (
        lambda: F.conv2d(tj.ones(1, 1, 2, 2), tj.ones(1, 1, 3, 3)),
        RuntimeError,
        "Kernel size can't be greater than actual input size",
    ),
    "channels that do not match": (lambda: F.conv2d(tj.ones(1, 2, 4, 4), tj.ones(1, 3, 2, 2)), RuntimeError, "channels"),
    "a probability above 1": (lambda: F.dropout(tj.ones(2), 1.5), ValueError, "1.5"),
    "a singular matrix": (lambda: tj.linalg.inv(tj.zeros(2, 2)), RuntimeError, "singular"),
    "a matrix that is not square": (lambda: tj.linalg.inv(tj.ones(2, 3)), RuntimeError, "square"),
    "more than there are": (lambda: tj.ones(3).topk(5), RuntimeError, "range"),
    "an operand that is no number": (lambda: tj.ones(3) + "a", TypeError, "str"),  # type: ignore[operator]
    "out= under the tape": (lambda: tj.exp(tj.ones(2, requires_grad=True), out=tj.zeros(2)), RuntimeError, "out="),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_call(name: str) -> None:
    call, kind, words = BAD[name]
    with pytest.raises(kind, match=words):
        call()


# ---- every op, with what no op takes

FIRST = {c.key: c for c in reversed(ALL) if c.specs}


@pytest.mark.parametrize("key", FIRST)
def test_no_op_takes_a_string_for_a_tensor(key: str) -> None:
    case = FIRST[key]
    with pytest.raises((TypeError, RuntimeError, ValueError, AttributeError)):
        case.call(["words"] * len(case.specs))


@pytest.mark.parametrize("key", sorted(OPS))
def test_no_op_takes_a_keyword_it_does_not_know(key: str) -> None:
    with pytest.raises(TypeError):
        OPS[key].function(no_such_keyword=1)  # type: ignore[misc]


def has_dim(case: Case) -> bool:
    return isinstance(case.sample.kwargs.get("dim"), int)


@pytest.mark.parametrize("case", cases(has_dim))
def test_a_dim_that_is_not_there_is_an_index_error(case: Case) -> None:
    def far(*args: Any, **kwargs: Any) -> Any:
        assert case.op.function is not None
        return case.op.function(*args, **{**kwargs, "dim": 99})

    inputs = tensors(case, case.arrays())
    with pytest.raises((IndexError, RuntimeError, ValueError)) as caught:
        case.call(inputs, far)
    assert "99" in str(caught.value) or "dim" in str(caught.value).lower()


# ---- what was wrong leaves no trace


def test_failed_writes_change_nothing() -> None:
    x = tj.arange(6.0).reshape(2, 3)
    before = x.tolist()
    for write in (
        lambda: x.add_(tj.ones(4)),
        lambda: x.__setitem__(5, 1.0),
        lambda: x.__setitem__((slice(None), 0), tj.ones(7)),
        lambda: x.copy_(tj.ones(9)),
        lambda: x.index_add_(0, tj.tensor([5]), tj.ones(1, 3)),
        lambda: x.scatter_(1, tj.tensor([[9]]), 1.0),
        lambda: x.masked_fill_(tj.tensor([True]), "a"),
        lambda: x.clamp_(),
    ):
        with pytest.raises((RuntimeError, IndexError, TypeError)):
            write()
    assert x.tolist() == before
    assert x._version == 0


def test_a_failed_backward_leaves_no_gradient() -> None:
    x = tj.ones(2, requires_grad=True)
    y = x.exp()
    loss = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*version 1; expected version 0"):
        loss.backward()
    assert x.grad is None


def test_a_second_backward_says_what_to_do() -> None:
    x = tj.ones(2, requires_grad=True)
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()
    assert x.grad.tolist() == [2, 2]
