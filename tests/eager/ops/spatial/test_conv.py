"""Convolutions beyond their samples: layouts, blocks, memory, errors, and how the three kernels belong together."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.eager.core import shape_inference as infer
from tapejit.eager.ops.spatial import conv, windows
from tapejit.nn import functional as F

random = np.random.default_rng(5)


def normal(*shape: int, grad: bool = False) -> tj.Tensor:
    return tj.tensor(random.standard_normal(shape), requires_grad=grad)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-11)


def everything(x: tj.Tensor, w: tj.Tensor, bias: tj.Tensor, **kwargs: Any) -> list[tj.Tensor]:
    """The value and all gradients to second order."""
    y = F.conv2d(x, w, bias, **kwargs)
    first = tj.autograd.grad((y * y).sum(), [x, w, bias], create_graph=True)
    second = tj.autograd.grad(sum((g * g).sum() for g in first), [x, w, bias])
    return [y, *first, *second]


@pytest.mark.parametrize("many", [1, 100])
@pytest.mark.parametrize("block", [1, 3000])
@pytest.mark.parametrize(
    "settings", [{}, {"stride": 2, "groups": 2}, {"padding": 4}, {"stride": (1, 3), "dilation": 2, "padding": 1}]
)
def test_layouts_and_blocks_do_not_change_results(
    monkeypatch: pytest.MonkeyPatch, many: int, block: int, settings: dict[str, Any]
) -> None:
    x, bias = normal(3, 4, 7, 6, grad=True), normal(6, grad=True)
    w = normal(6, 4 // settings.get("groups", 1), 3, 2, grad=True)
    expected = everything(x, w, bias, **settings)
    monkeypatch.setattr(conv, "MIN_ROW_CHANNELS", many)
    monkeypatch.setattr(windows, "CPU_BLOCK", block)
    for a, b in zip(everything(x, w, bias, **settings), expected, strict=True):
        close(a, b)


def test_transposed_convolution_is_the_adjoint() -> None:
    x, w = normal(2, 4, 9, 7), normal(6, 2, 3, 3)
    settings: dict[str, Any] = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    y = F.conv2d(x, w, **settings)
    g = normal(*y.shape)
    back = F.conv_transpose2d(g, w, output_padding=(0, 2), **settings)
    assert back.shape == x.shape
    close((y * g).sum(), (x * back).sum())


def test_depthwise() -> None:
    x, w = normal(2, 5, 6, 6), normal(5, 1, 3, 3)
    alone = [F.conv2d(x[:, i : i + 1], w[i : i + 1], padding=1) for i in range(5)]
    close(F.conv2d(x, w, padding=1, groups=5), tj.cat(alone, 1))


@pytest.mark.parametrize("stride", [1, 2])
def test_empty_batch(stride: int) -> None:
    x, w = tj.zeros(0, 2, 5, 5, requires_grad=True), tj.ones(3, 2, 3, 3, requires_grad=True)
    y = F.conv2d(x, w, stride=stride)
    assert y.shape == ((0, 3, 3, 3) if stride == 1 else (0, 3, 2, 2))
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert w.grad.abs().sum() == 0


def test_a_gradient_costs_nothing_where_none_is_wanted() -> None:
    x, w = normal(1, 2, 4, 4), normal(2, 2, 3, 3, grad=True)
    node = F.conv2d(x, w).grad_fn
    assert node.next_functions[0][0] is None
    assert set(node.saved) == {"x", "geometry"}


def test_half_precision_accumulates_in_float32() -> None:
    x, w = tj.full((1, 4096, 1, 1), 1.0, dtype=tj.float16), tj.full((1, 4096, 1, 1), 1.0, dtype=tj.float16)
    assert F.conv2d(x, w).item() == 4096
    assert F.conv2d(x, w).dtype is tj.float16


def test_columns_are_bounded() -> None:
    x, w = tj.zeros(1, 32, 128, 128, requires_grad=True), tj.zeros(16, 32, 3, 3, requires_grad=True)
    columns = x.nbytes * 9
    F.conv2d(x, w, padding=1).sum().backward()
    tracemalloc.start()
    try:
        F.conv2d(x, w, padding=1).sum().backward()
        assert tracemalloc.get_traced_memory()[1] < columns
    finally:
        tracemalloc.stop()


def test_shapes_without_running() -> None:
    geometry = windows.exact((7, 6), (3, 2), (2, 1), ((1, 1), (0, 0)), (1, 2), 2)
    x, w = infer.Spec((3, 4, 7, 6), tj.float32), infer.Spec((6, 2, 3, 2), tj.float32)
    (y,) = infer.infer(conv.CONV, (x, w), {"geometry": geometry})
    assert y == infer.Spec((3, 6, 4, 4), tj.float32)
    assert infer.infer(conv.CONV_INPUT_GRAD, (y, w), {"geometry": geometry}) == (x,)
    assert infer.infer(conv.CONV_WEIGHT_GRAD, (x, y), {"geometry": geometry}) == (w,)


ones = tj.ones


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (
            lambda: F.conv2d(ones(1, 3, 4, 4), ones(2, 4, 3, 3)),
            RuntimeError,
            r"Given groups=1, weight of size \[2, 4, 3, 3\], expected input\[1, 3, 4, 4\] to have 4 channels, but got 3",
        ),
        (
            lambda: F.conv2d(ones(1, 3, 4, 4), ones(2, 3, 5, 5), padding=(0, 1)),
            RuntimeError,
            r"padded input size per channel: \(4 x 6\). Kernel size: \(5 x 5\). Kernel size can't be greater than actual input",
        ),
        (
            lambda: F.conv2d(ones(3, 4), ones(2, 3, 3, 3)),
            RuntimeError,
            r"Expected 3D \(unbatched\) or 4D \(batched\) input to conv2d",
        ),
        (lambda: F.conv1d(ones(1, 3, 4), ones(2, 3, 3, 3)), RuntimeError, "Expected 3D weight for conv1d"),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(3, 2, 3, 3), groups=2), RuntimeError, "to be divisible by 2 at dimension 0"),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(1, 2, 3, 3), groups=2), RuntimeError, "to be at least 2 at dimension 0"),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), groups=0), RuntimeError, "non-positive groups"),
        (
            lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), ones(3)),
            RuntimeError,
            r"expected bias to be 1-dimensional with 2 elements, but got bias of size \[3\]",
        ),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), stride=0), RuntimeError, "non-positive stride is not supported"),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), padding=-1), RuntimeError, "negative padding is not supported"),
        (
            lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), dilation=0),
            RuntimeError,
            "dilation should be greater than zero",
        ),
        (
            lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), stride=(1, 1, 1)),
            RuntimeError,
            r"expected stride to be a single integer value or a list of 2 values .* but got stride=\[1, 1, 1\]",
        ),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), stride=1.5), TypeError, "stride of a convolution must be an int"),
        (
            lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), padding="same", stride=2),
            RuntimeError,
            "padding='same' is not supported for strided convolutions",
        ),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), padding="all"), RuntimeError, "Invalid padding string: 'all'"),
        (
            lambda: F.conv2d(ones(1, 4, 4, 4).double(), ones(2, 4, 3, 3)),
            RuntimeError,
            r"Input type \(float64\) and weight type",
        ),
        (lambda: F.conv2d(ones(1, 4, 4, 4), ones(2, 4, 3, 3), ones(2).double()), RuntimeError, r"and bias type \(float64\)"),
        (lambda: F.conv2d(ones(1, 4, 4, 4).bool(), ones(2, 4, 3, 3).bool()), NotImplementedError, "not implemented for 'Bool'"),
        (lambda: F.conv2d([1.0], ones(2, 4, 3, 3)), TypeError, "argument 'input' must be Tensor, not list"),
        (lambda: F.conv2d(ones(1, 4, 0, 4), ones(2, 4, 3, 3), padding=2), RuntimeError, "Only zero batch or zero channel"),
        (
            lambda: F.conv_transpose2d(ones(1, 4, 4, 4), ones(3, 2, 3, 3)),
            RuntimeError,
            r"Given transposed=1, weight of size \[3, 2, 3, 3\], expected input\[1, 4, 4, 4\] to have 3 channels",
        ),
        (
            lambda: F.conv_transpose2d(ones(1, 4, 4, 4), ones(4, 2, 3, 3), output_padding=1),
            RuntimeError,
            "output padding must be smaller than either stride or dilation",
        ),
        (
            lambda: F.conv_transpose1d(ones(1, 4, 1), ones(4, 2, 1), padding=1),
            RuntimeError,
            r"Calculated output size per channel: \(-1\). Output size is too small",
        ),
        (lambda: F.unfold(ones(1, 2, 4, 4), 5), RuntimeError, r"shape of the array of sliding blocks as \(0, 0\)"),
        (lambda: F.unfold(ones(4, 4), 2), RuntimeError, r"Expected 3D or 4D .* but got: \[4, 4\]"),
        (lambda: F.fold(ones(1, 17, 4), 4, 3), RuntimeError, "to be divisible by the product of kernel_size"),
        (lambda: F.fold(ones(1, 18, 5), 4, 3), RuntimeError, r"number of sliding blocks 2 \* 2 = 4, but got input.size\(2\)=5"),
    ],
)
def test_errors(call: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        call()


def test_fold_undoes_unfold_up_to_how_often_an_element_was_taken() -> None:
    x = normal(2, 3, 6, 5)
    taken = F.fold(F.unfold(tj.ones_like(x), 3, padding=1), (6, 5), 3, padding=1)
    close(F.fold(F.unfold(x, 3, padding=1), (6, 5), 3, padding=1), x * taken)
