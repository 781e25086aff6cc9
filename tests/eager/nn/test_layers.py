"""Layers and losses as modules: closed forms in NumPy, what their settings do, their reprs, what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import nn

Array = np.ndarray


def draw(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape)


def call(layer: nn.Module, *arrays: Array) -> Array:
    """A layer in float64 on NumPy arrays."""
    return layer.double()(*[tj.tensor(a) for a in arrays]).detach().numpy()


def value(parameter: Any) -> Array:
    return parameter.detach().numpy()


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# ---- activations

ACTIVATIONS: list[tuple[nn.Module, Callable[[Array], Array], str]] = [
    (nn.Threshold(0.1, 3.0), lambda x: np.where(x > 0.1, x, 3.0), "Threshold(threshold=0.1, value=3.0)"),
    (nn.ReLU(), lambda x: np.maximum(x, 0), "ReLU()"),
    (nn.ReLU6(), lambda x: np.clip(x, 0, 6), "ReLU6()"),
    (nn.Hardtanh(-0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), "Hardtanh(min_val=-0.5, max_val=0.7)"),
    (nn.Sigmoid(), sigmoid, "Sigmoid()"),
    (nn.Hardsigmoid(), lambda x: np.clip(x / 6 + 0.5, 0, 1), "Hardsigmoid()"),
    (nn.Tanh(), np.tanh, "Tanh()"),
    (nn.SiLU(), lambda x: x * sigmoid(x), "SiLU()"),
    (nn.Mish(), lambda x: x * np.tanh(np.log1p(np.exp(x))), "Mish()"),
    (nn.Hardswish(), lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "Hardswish()"),
    (nn.ELU(0.7), lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)), "ELU(alpha=0.7)"),
    (nn.CELU(0.7), lambda x: np.where(x > 0, x, 0.7 * np.expm1(x / 0.7)), "CELU(alpha=0.7)"),
    (nn.SELU(), lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), "SELU()"),
    (nn.GLU(), lambda x: x[..., :2] * sigmoid(x[..., 2:]), "GLU(dim=-1)"),
    (nn.GELU(), lambda x: x * np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x), "GELU(approximate='none')"),
    (
        nn.GELU("tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "GELU(approximate='tanh')",
    ),
    (nn.Hardshrink(), lambda x: np.where(np.abs(x) > 0.5, x, 0), "Hardshrink(0.5)"),
    (nn.Softshrink(0.3), lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.3, 0), "Softshrink(0.3)"),
    (nn.LeakyReLU(0.2), lambda x: np.where(x > 0, x, 0.2 * x), "LeakyReLU(negative_slope=0.2)"),
    (nn.LogSigmoid(), lambda x: np.log(sigmoid(x)), "LogSigmoid()"),
    (
        nn.Softplus(2.0, 1.5),
        lambda x: np.where(2 * x > 1.5, x, np.log1p(np.exp(2 * x)) / 2),
        "Softplus(beta=2.0, threshold=1.5)",
    ),
    (nn.PReLU(init=0.1), lambda x: np.where(x > 0, x, 0.1 * x), "PReLU(num_parameters=1)"),
    (nn.Softsign(), lambda x: x / (1 + np.abs(x)), "Softsign()"),
    (nn.Tanhshrink(), lambda x: x - np.tanh(x), "Tanhshrink()"),
    (nn.Softmin(1), lambda x: softmax(-x, 1), "Softmin(dim=1)"),
    (nn.Softmax(-1), lambda x: softmax(x, -1), "Softmax(dim=-1)"),
    (nn.LogSoftmax(0), lambda x: np.log(softmax(x, 0)), "LogSoftmax(dim=0)"),
    (nn.RReLU().eval(), lambda x: np.where(x > 0, x, x * (1 / 8 + 1 / 3) / 2), "RReLU(lower=0.125, upper=0.3333333333333333)"),
    (nn.Identity(5), lambda x: x, "Identity()"),
]


@pytest.mark.parametrize(("layer", "formula", "text"), ACTIVATIONS, ids=lambda v: v if isinstance(v, str) else "")
def test_activation(layer: nn.Module, formula: Callable[[Array], Array], text: str) -> None:
    x = draw(3, 4)
    np.testing.assert_allclose(call(layer, x), formula(x), rtol=1e-6, atol=1e-7)
    assert repr(layer) == text


@pytest.mark.parametrize("kind", [nn.ReLU, nn.ELU, nn.SELU, nn.CELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.LeakyReLU, nn.ReLU6])
def test_in_place(kind: Any) -> None:
    x = tj.tensor(draw(5))
    expected = kind()(x).tolist()
    assert kind(inplace=True)(x) is x and x.tolist() == expected


def test_rrelu_draws_slopes_in_training() -> None:
    tj.manual_seed(0)
    out = value(nn.RReLU(0.2, 0.4)(-tj.ones(1000)))
    assert -0.4 <= out.min() < -0.38 and -0.22 < out.max() <= -0.2


def test_softmax2d_is_over_channels() -> None:
    x = draw(2, 3, 2, 2)
    np.testing.assert_allclose(call(nn.Softmax2d(), x), softmax(x, 1), rtol=1e-12)


# ---- linear and shapes


def test_linear_and_bilinear() -> None:
    layer, x = nn.Linear(4, 3), draw(2, 5, 4)
    np.testing.assert_allclose(call(layer, x), x @ value(layer.weight).T + value(layer.bias), rtol=1e-12)
    assert nn.Linear(4, 3, bias=False).bias is None
    both, y = nn.Bilinear(2, 3, 4), draw(5, 3, seed=1)
    x = draw(5, 2)
    expected = np.einsum("ni,oij,nj->no", x, value(both.double().weight), y) + value(both.bias)
    np.testing.assert_allclose(call(both, x, y), expected, rtol=1e-12)
    assert repr(both) == "Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)"


def test_flatten_and_unflatten() -> None:
    x = draw(2, 3, 4)
    assert call(nn.Flatten(), x).shape == (2, 12) and call(nn.Flatten(0, 1), x).shape == (6, 4)
    assert call(nn.Unflatten(-1, (2, 2)), x).shape == (2, 3, 2, 2)
    assert repr(nn.Unflatten(1, (2, 3))) == "Unflatten(dim=1, unflattened_size=(2, 3))"


# ---- convolutions


def slow_conv(x: Array, w: Array, stride: int = 1, dilation: int = 1) -> Array:
    """Convolution of sequences, place by place."""
    span = dilation * (w.shape[2] - 1) + 1
    starts = range(0, x.shape[2] - span + 1, stride)
    return np.stack([np.einsum("nck,ock->no", x[:, :, s : s + span : dilation], w) for s in starts], axis=2)


@pytest.mark.parametrize(
    ("mode", "numpy_mode"), [("zeros", "constant"), ("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]
)
@pytest.mark.parametrize("padding", [2, "same", "valid"])
def test_conv1d(mode: str, numpy_mode: Any, padding: Any) -> None:
    layer, x = nn.Conv1d(2, 3, 4, padding=padding, padding_mode=mode), draw(2, 2, 7)
    layer.double()
    before, after = {2: (2, 2), "same": (1, 2), "valid": (0, 0)}[padding]
    padded = np.pad(x, ((0, 0), (0, 0), (before, after)), mode=numpy_mode)
    np.testing.assert_allclose(call(layer, x), slow_conv(padded, value(layer.weight)) + value(layer.bias)[:, None], rtol=1e-9)


def test_conv_shapes_and_reprs() -> None:
    assert nn.Conv2d(4, 6, (3, 2), groups=2).weight.shape == (6, 2, 3, 2)
    assert nn.ConvTranspose2d(4, 6, 3, groups=2).weight.shape == (4, 3, 3, 3)
    assert nn.Conv3d(1, 2, 3, bias=False).bias is None
    assert repr(nn.Conv2d(1, 2, 3)) == "Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))"
    assert repr(nn.Conv1d(2, 2, 3, 2, "valid", 2, 2, False, "reflect")) == (
        "Conv1d(2, 2, kernel_size=(3,), stride=(2,), padding=valid, dilation=(2,), groups=2, bias=False, padding_mode=reflect)"
    )
    assert repr(nn.ConvTranspose1d(1, 1, 2, 3, 1, 1)) == (
        "ConvTranspose1d(1, 1, kernel_size=(2,), stride=(3,), padding=(1,), output_padding=(1,))"
    )


def test_transposed_conv_is_the_adjoint() -> None:
    conv, back = (
        nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False).double(),
        nn.ConvTranspose2d(3, 2, 3, 2, 1, bias=False).double(),
    )
    back.weight = conv.weight
    x, y = draw(1, 2, 7, 9), draw(1, 3, 4, 5, seed=1)
    np.testing.assert_allclose((call(conv, x) * y).sum(), (x * call(back, y)).sum(), rtol=1e-10)


def test_output_size_of_transposed_convs() -> None:
    layer, x = nn.ConvTranspose1d(1, 1, 3, stride=3), tj.ones(1, 1, 4)
    assert [layer(x, output_size=[n]).shape[2] for n in (12, 13, 14)] == [12, 13, 14] and layer(x).shape[2] == 12
    assert layer(x[0], output_size=(1, 13)).shape == (1, 13)
    with pytest.raises(ValueError, match=r"requested an output size of \[15\], but valid sizes range from \[12\] to \[14\]"):
        layer(x, output_size=[15])
    with pytest.raises(ValueError, match=r"output_size must have 1 or 3 elements \(got 2\)"):
        layer(x, output_size=[1, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 1, groups=2), "in_channels must be divisible by groups"),
        (lambda: nn.Conv2d(4, 3, 1, groups=2), "out_channels must be divisible by groups"),
        (lambda: nn.Conv2d(4, 4, 1, groups=-1), "groups must be a positive integer"),
        (lambda: nn.Conv2d(4, 4, 1, padding="x"), "Invalid padding string 'x'"),
        (lambda: nn.Conv2d(4, 4, 1, 2, "same"), "padding='same' is not supported for strided convolutions"),
        (lambda: nn.Conv2d(4, 4, 1, padding_mode="x"), "padding_mode must be one of"),
        (lambda: nn.ConvTranspose1d(4, 4, 1, padding_mode="reflect"), 'Only "zeros" padding mode is supported'),
        (lambda: nn.GroupNorm(3, 4), r"num_channels \(4\) must be divisible by num_groups \(3\)"),
        (lambda: nn.Dropout(1.1), "dropout probability has to be between 0 and 1, but got 1.1"),
        (lambda: nn.MultiMarginLoss(3), "only p == 1 and p == 2 supported"),
        (lambda: nn.TripletMarginLoss(-1), "expected margin to be greater than 0, got -1 instead"),
        (lambda: nn.BatchNorm2d(3)(tj.ones(2, 3)), r"expected 4D input \(got 2D input\)"),
        (lambda: nn.InstanceNorm1d(2, affine=True)(tj.ones(1, 3, 4)), r"size at dim=1 to match num_features \(2\), but got: 3"),
    ],
)
def test_refused_settings(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---- pooling and images


def test_pooling() -> None:
    x = draw(1, 2, 6, 6)
    blocks = x.reshape(1, 2, 3, 2, 3, 2)
    np.testing.assert_array_equal(call(nn.MaxPool2d(2), x), blocks.max((3, 5)))
    np.testing.assert_allclose(call(nn.AvgPool2d(2), x), blocks.mean((3, 5)))
    np.testing.assert_allclose(call(nn.AdaptiveAvgPool2d(3), x), blocks.mean((3, 5)))
    np.testing.assert_array_equal(call(nn.AdaptiveMaxPool2d((3, 3)), x), blocks.max((3, 5)))
    np.testing.assert_allclose(call(nn.LPPool2d(2, 2), x), np.sqrt((blocks**2).sum((3, 5))), rtol=1e-6)
    np.testing.assert_allclose(call(nn.AvgPool2d(2, divisor_override=3), x), blocks.sum((3, 5)) / 3)
    values, places = nn.MaxPool2d(2, return_indices=True)(tj.tensor(x))
    back = nn.MaxUnpool2d(2)(values, places).numpy()
    np.testing.assert_array_equal(back, np.where(np.isin(x, values.numpy()), x, 0))
    assert repr(nn.MaxPool2d(2)) == "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)"
    assert repr(nn.AvgPool1d(2)) == "AvgPool1d(kernel_size=(2,), stride=(2,), padding=(0,))"
    assert repr(nn.AdaptiveAvgPool2d((1, None))) == "AdaptiveAvgPool2d(output_size=(1, None))"


def test_pads() -> None:
    x = draw(1, 2, 4, 5)
    widths = ((0, 0), (0, 0), (1, 2), (3, 0))
    for kind, mode in (
        (nn.ReflectionPad2d, "reflect"),
        (nn.ReplicationPad2d, "edge"),
        (nn.CircularPad2d, "wrap"),
        (nn.ZeroPad2d, "constant"),
    ):
        np.testing.assert_array_equal(call(kind((3, 0, 1, 2)), x), np.pad(x, widths, mode=mode))
        assert repr(kind(2)) == f"{kind.__name__}((2, 2, 2, 2))"
    np.testing.assert_array_equal(call(nn.ConstantPad2d((3, 0, 1, 2), 5.0), x), np.pad(x, widths, constant_values=5.0))
    assert repr(nn.ConstantPad1d(1, 3)) == "ConstantPad1d(padding=(1, 1), value=3)"
    assert isinstance(nn.ZeroPad3d(1), nn.ConstantPad3d)


def test_images() -> None:
    x = draw(1, 4, 2, 3)
    np.testing.assert_array_equal(call(nn.Upsample(scale_factor=2), x), x.repeat(2, 2).repeat(2, 3))
    shuffled = call(nn.PixelShuffle(2), x)
    assert shuffled.shape == (1, 1, 4, 6)
    np.testing.assert_array_equal(call(nn.PixelUnshuffle(2), shuffled), x)
    np.testing.assert_array_equal(call(nn.ChannelShuffle(2), x), x[:, [0, 2, 1, 3]])
    columns = call(nn.Unfold(2), x)
    assert columns.shape == (1, 16, 2)
    np.testing.assert_allclose(call(nn.Fold((2, 3), 2), columns), x * np.array([1, 2, 1]))
    assert repr(nn.Upsample(scale_factor=2, mode="bilinear")) == "Upsample(scale_factor=2.0, mode='bilinear')"
    assert repr(nn.Upsample(size=(3, 4))) == "Upsample(size=(3, 4), mode='nearest')"


# ---- norms


def normalised(x: Array, axes: tuple[int, ...], eps: float = 1e-5) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_batch_norm_and_its_running_statistics() -> None:
    layer = nn.BatchNorm1d(3, momentum=0.2).double()
    mean, var = np.zeros(3), np.ones(3)
    for step in range(3):
        x = draw(5, 3, 2, seed=step)
        np.testing.assert_allclose(call(layer, x), normalised(x, (0, 2)), rtol=1e-9)
        mean = 0.8 * mean + 0.2 * x.mean((0, 2))
        var = 0.8 * var + 0.2 * x.var((0, 2), ddof=1)
    np.testing.assert_allclose(value(layer.running_mean), mean, rtol=1e-12)
    np.testing.assert_allclose(value(layer.running_var), var, rtol=1e-12)
    assert layer.num_batches_tracked.item() == 3 and layer.num_batches_tracked.dtype is tj.int64
    layer.eval()
    np.testing.assert_allclose(call(layer, x), (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5), rtol=1e-9)
    assert layer.num_batches_tracked.item() == 3
    layer.reset_running_stats()
    assert layer.running_var.tolist() == [1, 1, 1] and layer.num_batches_tracked.item() == 0


def test_batch_norm_without_momentum_averages_all_batches() -> None:
    layer, batches = nn.BatchNorm1d(2, momentum=None).double(), [draw(4, 2, seed=s) for s in range(5)]
    for x in batches:
        call(layer, x)
    np.testing.assert_allclose(value(layer.running_mean), np.mean([x.mean(0) for x in batches], 0), rtol=1e-9)


def test_batch_norm_without_running_statistics_or_affine() -> None:
    layer, x = nn.BatchNorm2d(2, track_running_stats=False, affine=False), draw(3, 2, 2, 2)
    assert list(layer.state_dict()) == [] and list(layer.parameters()) == []
    layer.eval()
    np.testing.assert_allclose(call(layer, x), normalised(x, (0, 2, 3)), rtol=1e-9)
    assert repr(layer) == "BatchNorm2d(2, eps=1e-05, momentum=0.1, affine=False, bias=False, track_running_stats=False)"


def test_statistics_are_not_moved_by_frozen_layers() -> None:
    layer = nn.BatchNorm1d(2).eval()
    layer(tj.tensor(draw(4, 2)).float())
    assert layer.running_mean.tolist() == [0, 0]
    state = nn.BatchNorm1d(2).state_dict()
    del state["num_batches_tracked"]
    layer.load_state_dict(dict(state))  # as saved before there was a count


def test_norms_within_a_sample() -> None:
    x = draw(2, 4, 3, 3)
    np.testing.assert_allclose(call(nn.LayerNorm((3, 3)), x), normalised(x, (2, 3)), rtol=1e-9)
    np.testing.assert_allclose(call(nn.InstanceNorm2d(4), x), normalised(x, (2, 3)), rtol=1e-9)
    np.testing.assert_allclose(call(nn.InstanceNorm2d(4), x[0]), normalised(x[0], (1, 2)), rtol=1e-9)
    grouped = normalised(x.reshape(2, 2, 2, 3, 3), (2, 3, 4)).reshape(x.shape)
    np.testing.assert_allclose(call(nn.GroupNorm(2, 4), x), grouped, rtol=1e-9)
    rms = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1)
    np.testing.assert_allclose(call(nn.RMSNorm(3, eps=0.1), x), rms, rtol=1e-9)
    squares = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    near = (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]) / 3
    np.testing.assert_allclose(call(nn.LocalResponseNorm(3, alpha=0.5), x), x / (1 + 0.5 * near) ** 0.75, rtol=1e-6)
    assert repr(nn.LayerNorm(3, bias=False)) == "LayerNorm((3,), eps=1e-05, elementwise_affine=True, bias=False)"
    assert list(nn.LayerNorm(3, bias=False).state_dict()) == ["weight"]


def test_instance_norm_of_another_size_warns_unless_affine() -> None:
    with pytest.warns(UserWarning, match="does not match num_features"):
        nn.InstanceNorm1d(3)(tj.ones(1, 4, 2))


# ---- tables


def test_embedding() -> None:
    layer = nn.Embedding(5, 3, padding_idx=-1)
    assert layer.padding_idx == 4 and layer.weight[4].tolist() == [0, 0, 0]
    index = tj.tensor([[0, 4], [2, 0]])
    np.testing.assert_array_equal(value(layer(index)), value(layer.weight)[index.numpy()])
    layer(index).sum().backward()
    assert layer.weight.grad.sum(1).tolist() == [6, 0, 3, 0, 0]
    assert repr(nn.Embedding(5, 3, 0, 1.0, 1.0, True)) == (
        "Embedding(5, 3, padding_idx=0, max_norm=1.0, norm_type=1.0, scale_grad_by_freq=True)"
    )


def test_embedding_shortens_rows_it_uses() -> None:
    layer = nn.Embedding.from_pretrained(tj.tensor([[3.0, 4.0], [3.0, 4.0]]), max_norm=1.0)
    assert not layer.weight.requires_grad
    np.testing.assert_allclose(value(layer(tj.tensor([1])))[0], [0.6, 0.8], rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(value(layer.weight), axis=1), [5, 1], rtol=1e-4)
    assert nn.Embedding.from_pretrained(tj.ones(2, 2), freeze=False).weight.requires_grad


def test_embedding_refuses() -> None:
    with pytest.raises(AssertionError, match="Padding_idx must be within num_embeddings"):
        nn.Embedding(3, 2, padding_idx=3)
    with pytest.raises(AssertionError, match="expected to be 2-dimensional"):
        nn.Embedding.from_pretrained(tj.ones(3))
    with pytest.raises(AssertionError, match="Shape of weight does not match"):
        nn.Embedding(3, 2, _weight=tj.ones(2, 2))
    with pytest.raises(IndexError, match=r"in words: Embedding\(3, 2\)"):
        Words()(tj.tensor([3]))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(3, 2)

    def forward(self, index: tj.Tensor) -> tj.Tensor:
        return self.words(index)


@pytest.mark.parametrize(("mode", "pool"), [("sum", np.sum), ("mean", np.mean), ("max", np.max)])
def test_embedding_bag(mode: str, pool: Any) -> None:
    layer, index = nn.EmbeddingBag(6, 3, mode=mode), tj.tensor([0, 2, 1, 5, 5])
    rows = value(layer.weight)[index.numpy()]
    expected = [pool(rows[:2], axis=0), pool(rows[2:], axis=0)]
    np.testing.assert_allclose(value(layer(index, tj.tensor([0, 2]))), expected, rtol=1e-6)
    assert repr(layer) == f"EmbeddingBag(6, 3, mode='{mode}')"


# ---- dropout


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_dropout(kind: Any) -> None:
    tj.manual_seed(0)
    n = {"Dropout": 1, "Dropout1d": 1, "Dropout2d": 2, "Dropout3d": 3}[kind.__name__]
    x = tj.ones(20, 50, *(3,) * n)
    out = value(kind(0.3)(x))
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / 0.7)}
    kept = (out != 0).reshape(20, 50, -1)
    whole = (kept.all(2) | ~kept.any(2)).mean()
    assert whole == 1 if kind is not nn.Dropout else whole < 0.6
    assert abs(kept.mean() - 0.7) < 0.06
    assert kind(0.3).eval()(x).tolist() == x.tolist() and (kind(1.0)(x) == 0).all()
    assert repr(kind(0.3)) == f"{kind.__name__}(p=0.3, inplace=False)"


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    tj.manual_seed(0)
    x = tj.randn(100, 500)
    for layer in (nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)):
        out = value(layer(x.unsqueeze(-1)))
        assert abs(out.mean()) < 0.05 and abs(out.std() - 1) < 0.05
        assert layer.eval()(x) is x or layer.eval()(x).tolist() == x.tolist()


# ---- losses

A, B, C = draw(3, 4), draw(3, 4, seed=1), draw(3, 4, seed=2)
P, Q = draw(3, 4, low=0.1, high=0.9), draw(3, 4, low=0.1, high=0.9, seed=1)
CLASSES, SIGNS = np.array([1, 0, 3]), np.array([1.0, -1.0, 1.0])
WEIGHT = np.array([1.0, 2.0, 3.0, 4.0])
LOG_P = np.log(softmax(A, 1))


def far(a: Array, b: Array) -> Array:
    return np.sqrt(((a - b + 1e-6) ** 2).sum(-1))


def cosine(a: Array, b: Array) -> Array:
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


LOSSES: list[tuple[nn.Module, tuple[Array, ...], Any]] = [
    (nn.L1Loss(), (A, B), np.abs(A - B).mean()),
    (nn.MSELoss(), (A, B), ((A - B) ** 2).mean()),
    (nn.MSELoss(reduction="none"), (A, B), (A - B) ** 2),
    (nn.SmoothL1Loss(beta=0.5), (A, B), np.where(np.abs(A - B) < 0.5, (A - B) ** 2, np.abs(A - B) - 0.25).mean()),
    (nn.HuberLoss("sum", 0.5), (A, B), np.where(np.abs(A - B) < 0.5, (A - B) ** 2 / 2, 0.5 * (np.abs(A - B) - 0.25)).sum()),
    (nn.CrossEntropyLoss(), (A, CLASSES), -LOG_P[range(3), CLASSES].mean()),
    (nn.CrossEntropyLoss(reduction="none"), (A, P), -(P * LOG_P).sum(1)),
    (nn.CrossEntropyLoss(ignore_index=0), (A, CLASSES), -LOG_P[[0, 2], [1, 3]].mean()),
    (
        nn.CrossEntropyLoss(label_smoothing=0.2),
        (A, CLASSES),
        -(0.8 * LOG_P[range(3), CLASSES] + 0.2 * LOG_P.mean(1)).mean(),
    ),
    (
        nn.CrossEntropyLoss(tj.tensor(WEIGHT)),
        (A, CLASSES),
        -(WEIGHT[CLASSES] * LOG_P[range(3), CLASSES]).sum() / WEIGHT[CLASSES].sum(),
    ),
    (nn.NLLLoss(reduction="sum"), (A, CLASSES), -A[range(3), CLASSES].sum()),
    (nn.NLLLoss(tj.tensor(WEIGHT)), (A, CLASSES), -(WEIGHT[CLASSES] * A[range(3), CLASSES]).sum() / WEIGHT[CLASSES].sum()),
    (nn.BCELoss(), (P, Q), -(Q * np.log(P) + (1 - Q) * np.log(1 - P)).mean()),
    (nn.BCELoss(tj.tensor(WEIGHT)), (P, Q), -(WEIGHT * (Q * np.log(P) + (1 - Q) * np.log(1 - P))).mean()),
    (nn.BCEWithLogitsLoss(), (A, Q), -(Q * np.log(sigmoid(A)) + (1 - Q) * np.log(1 - sigmoid(A))).mean()),
    (
        nn.BCEWithLogitsLoss(pos_weight=tj.tensor(WEIGHT)),
        (A, Q),
        -(WEIGHT * Q * np.log(sigmoid(A)) + (1 - Q) * np.log(1 - sigmoid(A))).mean(),
    ),
    (nn.KLDivLoss(reduction="batchmean"), (A, Q), (Q * (np.log(Q) - A)).sum() / 3),
    (nn.KLDivLoss(reduction="sum", log_target=True), (A, B), (np.exp(B) * (B - A)).sum()),
    (nn.PoissonNLLLoss(), (A, Q), (np.exp(A) - Q * A).mean()),
    (nn.PoissonNLLLoss(log_input=False, eps=0.1), (P, Q), (P - Q * np.log(P + 0.1)).mean()),
    (nn.GaussianNLLLoss(), (A, B, P), (np.log(P) + (A - B) ** 2 / P).mean() / 2),
    (nn.GaussianNLLLoss(full=True), (A, B, P), (np.log(P) + (A - B) ** 2 / P).mean() / 2 + np.log(2 * np.pi) / 2),
    (
        nn.HingeEmbeddingLoss(0.7),
        (A, np.sign(B)),
        np.where(B > 0, A, np.maximum(0, 0.7 - A)).mean(),
    ),
    (nn.SoftMarginLoss(), (A, np.sign(B)), np.log1p(np.exp(-np.sign(B) * A)).mean()),
    (
        nn.MultiLabelSoftMarginLoss(),
        (A, Q),
        -(Q * np.log(sigmoid(A)) + (1 - Q) * np.log(1 - sigmoid(A))).mean(),
    ),
    (
        nn.MultiMarginLoss(2, 0.5),
        (A, CLASSES),
        np.mean([sum(max(0, 0.5 - A[i, c] + A[i, j]) ** 2 for j in range(4) if j != c) / 4 for i, c in enumerate(CLASSES)]),
    ),
    (
        nn.MultiLabelMarginLoss(),
        (A, np.array([[2, 0, -1, 1]] * 3)),
        np.mean([sum(max(0, 1 - (a[y] - a[i])) for y in (2, 0) for i in (1, 3)) / 4 for a in A]),
    ),
    (
        nn.CosineEmbeddingLoss(0.1),
        (A, B, SIGNS),
        np.where(SIGNS > 0, 1 - cosine(A, B), np.maximum(0, cosine(A, B) - 0.1)).mean(),
    ),
    (nn.MarginRankingLoss(0.3), (A[0, :3], B[0, :3], SIGNS), np.maximum(0, -SIGNS * (A[0, :3] - B[0, :3]) + 0.3).mean()),
    (nn.TripletMarginLoss(), (A, B, C), np.maximum(0, far(A, B) - far(A, C) + 1).mean()),
    (
        nn.TripletMarginWithDistanceLoss(distance_function=lambda x, y: (x - y).abs().sum(-1), swap=True, margin=0.5),
        (A, B, C),
        np.maximum(0, np.abs(A - B).sum(-1) - np.minimum(np.abs(A - C).sum(-1), np.abs(B - C).sum(-1)) + 0.5).mean(),
    ),
    (nn.PairwiseDistance(1.0, keepdim=True), (A, B), np.abs(A - B + 1e-6).sum(-1, keepdims=True)),
    (nn.CosineSimilarity(), (A, B), cosine(A, B)),
]


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"), LOSSES, ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else ""
)
def test_loss(layer: nn.Module, inputs: tuple[Array, ...], expected: Any) -> None:
    np.testing.assert_allclose(call(layer, *inputs), expected, rtol=1e-6)
    if isinstance(layer, nn.modules.loss._Loss) and not list(layer.children()):
        assert repr(layer) == f"{type(layer).__name__}()"


def test_weights_of_losses_are_buffers() -> None:
    loss = nn.BCEWithLogitsLoss(pos_weight=tj.ones(2))
    assert list(loss.state_dict()) == ["pos_weight"] and loss.double().pos_weight.dtype is tj.float64
    assert list(nn.CrossEntropyLoss(tj.ones(3)).state_dict()) == ["weight"]


def test_old_reduction_arguments() -> None:
    with pytest.warns(UserWarning, match="please use reduction='sum' instead"):
        assert nn.MSELoss(size_average=False).reduction == "sum"
    with pytest.raises(ValueError, match="median is not a valid value for reduction"):
        nn.L1Loss(reduction="median")(tj.ones(1), tj.ones(1))


def test_ctc_loss() -> None:
    """Two steps, two classes and blank: the label [1] by 1-, -1 and 11."""
    x = np.log(softmax(draw(2, 1, 3), 2))
    p = np.exp(x[:, 0])
    expected = -np.log(p[0, 1] * p[1, 0] + p[0, 0] * p[1, 1] + p[0, 1] * p[1, 1])
    given = (tj.tensor([[1, 2]]), tj.tensor([2]), tj.tensor([1]))
    np.testing.assert_allclose(nn.CTCLoss()(tj.tensor(x), *given).item(), expected, rtol=1e-9)
    assert nn.CTCLoss()(tj.tensor(x), tj.tensor([[1, 1]]), (2,), (2,)).item() == math.inf  # a blank has to stand between
    assert nn.CTCLoss(zero_infinity=True)(tj.tensor(x), tj.tensor([1, 1]), (2,), (2,)).item() == 0
    for lengths, message in ((((3,), (1,)), "input_lengths to have value"), (((2, 2), (1,)), "must be of size batch_size")):
        with pytest.raises(RuntimeError, match=message):
            nn.CTCLoss()(tj.tensor(x), tj.tensor([[1, 2]]), *lengths)
    with pytest.raises(RuntimeError, match="blank must be in label range"):
        nn.CTCLoss(blank=3)(tj.tensor(x), *given)


def test_adaptive_softmax() -> None:
    tj.manual_seed(0)
    layer, x, target = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=2.0), tj.randn(20, 8), tj.arange(20)
    logs = layer.log_prob(x)
    np.testing.assert_allclose(value(logs.exp().sum(1)), np.ones(20), rtol=1e-5)
    output, loss = layer(x, target)
    np.testing.assert_allclose(value(output), np.diag(value(logs)), rtol=1e-4)
    assert loss.item() == pytest.approx(-output.mean().item()) and layer(x[3], target[3]).output.ndim == 0
    assert layer.predict(x).tolist() == logs.argmax(1).tolist()
    with pytest.raises(ValueError, match="cutoffs should be a sequence of unique, positive integers"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 5])
    with pytest.raises(RuntimeError, match=r"Target values should be in \[0, 19\]"):
        layer(x, target + 1)


# ---- training


def test_a_small_network_learns() -> None:
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))
    x = tj.randn(64, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    loss = nn.CrossEntropyLoss()
    first = loss(model(x), y).item()
    for _ in range(150):
        model.zero_grad()
        loss(model(x), y).backward()
        with tj.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad
    assert loss(model(x), y).item() < first / 4
