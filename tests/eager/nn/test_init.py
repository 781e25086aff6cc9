"""nn.init: distributions, shapes, errors; and the initial values of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import nn
from tapejit.nn import init


@pytest.fixture(autouse=True)
def seeded() -> None:
    tj.manual_seed(0)


def uniform_within(x: Any, bound: float) -> None:
    """x looks like draws from U(-bound, bound)."""
    values = x.detach().numpy().ravel()
    assert np.abs(values).max() <= bound * (1 + 1e-6)
    assert np.abs(values).max() > bound * (1 - 20 / values.size)
    normal_like(values, bound / math.sqrt(3))


def normal_like(x: Any, std: float, mean: float = 0.0) -> None:
    """x has about this mean and standard deviation."""
    values = np.asarray(x.detach().numpy() if isinstance(x, tj.Tensor) else x).ravel()
    assert abs(values.mean() - mean) < 5 * std / math.sqrt(values.size)
    assert abs(values.std() - std) < 5 * std / math.sqrt(values.size)


def is_normal(x: Any) -> None:
    """Kurtosis tells a normal distribution from a uniform one."""
    values = x.detach().numpy().ravel()
    assert abs(((values - values.mean()) ** 4).mean() / values.var() ** 2 - 3) < 0.3


@pytest.mark.parametrize(
    ("name", "param", "gain"),
    [("linear", None, 1), ("conv2d", None, 1), ("sigmoid", None, 1), ("tanh", None, 5 / 3), ("relu", None, math.sqrt(2)),
     ("selu", None, 0.75), ("leaky_relu", None, math.sqrt(2 / 1.0001)), ("leaky_relu", 0.2, math.sqrt(2 / 1.04)),
     ("leaky_relu", 1, 1)],
)  # fmt: skip
def test_gains(name: str, param: Any, gain: float) -> None:
    assert init.calculate_gain(name, param) == pytest.approx(gain)


def test_gains_refuse() -> None:
    with pytest.raises(ValueError, match="Unsupported nonlinearity mish"):
        init.calculate_gain("mish")
    with pytest.raises(ValueError, match="negative_slope True not a valid number"):
        init.calculate_gain("leaky_relu", True)


def test_plain_fills() -> None:
    x = tj.empty(100, 100)
    assert init.uniform_(x) is x and x.min() >= 0 and x.max() < 1
    normal_like(x - 0.5, 1 / math.sqrt(12))
    init.normal_(x, 2.0, 0.5)
    normal_like(x, 0.5, 2.0)
    is_normal(x)
    assert init.constant_(x, 3).unique().tolist() == [3] and init.ones_(x).sum() == 10000 and init.zeros_(x).sum() == 0
    assert init.eye_(tj.empty(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_fans() -> None:
    """Weights of shape (20, 30, 5, 4): fan_in 600, fan_out 400."""
    x = tj.empty(20, 30, 5, 4)
    uniform_within(init.xavier_uniform_(x, 2.0), 2 * math.sqrt(6 / 1000))
    normal_like(init.xavier_normal_(x, 2.0), 2 * math.sqrt(2 / 1000))
    uniform_within(init.kaiming_uniform_(x, nonlinearity="relu"), math.sqrt(6 / 600))
    uniform_within(init.kaiming_uniform_(x, a=1, mode="fan_out"), math.sqrt(3 / 400))
    normal_like(init.kaiming_normal_(x, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 400))
    is_normal(init.kaiming_normal_(x))
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        init.xavier_uniform_(tj.empty(3))
    with pytest.raises(ValueError, match="Mode fan_both not supported"):
        init.kaiming_uniform_(x, mode="fan_both")
    with pytest.warns(UserWarning, match="zero-element"):
        init.kaiming_normal_(tj.empty(0, 3))


@pytest.mark.parametrize("dtype", [tj.float32, tj.float64, tj.float16])
def test_trunc_normal(dtype: Any) -> None:
    x = init.trunc_normal_(tj.empty(200, 200, dtype=dtype), 0.5, 2.0, -1.0, 3.0).float()
    assert x.min() >= -1 and x.max() <= 3
    edges = np.linspace(-1, 3, 9)
    below = np.array([0.5 * (1 + math.erf((e - 0.5) / (2.0 * math.sqrt(2)))) for e in edges])
    expected = np.diff(below) / (below[-1] - below[0])
    found = np.histogram(x.numpy(), edges)[0] / x.numel()
    np.testing.assert_allclose(found, expected, atol=0.01)
    with pytest.warns(UserWarning, match="more than 2 std"):
        init.trunc_normal_(tj.empty(3), 10.0)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (4, 2, 3)])
@pytest.mark.parametrize("dtype", [tj.float32, tj.float64])
def test_orthogonal(shape: tuple[int, ...], dtype: Any) -> None:
    x = init.orthogonal_(tj.empty(*shape, dtype=dtype), gain=2.0)
    assert x.dtype is dtype and x.shape == shape
    m = x.numpy().reshape(shape[0], -1)
    square = m @ m.T if m.shape[0] <= m.shape[1] else m.T @ m
    np.testing.assert_allclose(square, 4 * np.eye(len(square)), atol=1e-5 if dtype is tj.float32 else 1e-13)
    with pytest.raises(ValueError, match="2 or more dimensions"):
        init.orthogonal_(tj.empty(3))


def test_dirac_passes_channels_through() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1, bias=False, groups=2)
    init.dirac_(conv.weight, groups=2)
    x = tj.randn(1, 4, 5, 5)
    assert conv(x).tolist() == x.tolist()
    assert init.dirac_(tj.empty(2, 3, 3)).sum() == 2 and init.dirac_(tj.empty(2, 1, 1, 1, 3)).sum() == 1
    with pytest.raises(ValueError, match="3, 4, or 5 dimensions"):
        init.dirac_(tj.empty(3, 3))
    with pytest.raises(ValueError, match="divisible by groups"):
        init.dirac_(tj.empty(3, 3, 3), groups=2)


def test_sparse() -> None:
    x = init.sparse_(tj.empty(100, 50), 0.25, std=0.1)
    assert ((x == 0).sum(0) == 25).all()
    normal_like(x[x != 0], 0.1)


def test_generators_and_gradients() -> None:
    a, b = nn.Parameter(tj.empty(5, 5)), nn.Parameter(tj.empty(5, 5))
    for p in (a, b):
        init.xavier_normal_(p, generator=tj.Generator().manual_seed(3))
        assert p.is_leaf and p.requires_grad
    assert a.tolist() == b.tolist()


def test_old_names_warn() -> None:
    with pytest.warns(FutureWarning, match="deprecated in favor of `nn.init.xavier_uniform_`"):
        init.xavier_uniform(tj.empty(2, 2))


# ---- layers

BOUNDS: list[tuple[Callable[[], nn.Module], float]] = [
    (lambda: nn.Linear(300, 100), 1 / math.sqrt(300)),
    (lambda: nn.Bilinear(100, 20, 30), 1 / math.sqrt(100)),
    (lambda: nn.Conv1d(60, 200, 5), 1 / math.sqrt(300)),
    (lambda: nn.Conv2d(40, 200, (3, 5), groups=2), 1 / math.sqrt(300)),
    (lambda: nn.Conv3d(20, 200, (1, 3, 5)), 1 / math.sqrt(300)),
    (lambda: nn.ConvTranspose1d(50, 200, 5), 1 / math.sqrt(1000)),
    (lambda: nn.ConvTranspose2d(40, 200, 5, groups=4), 1 / math.sqrt(1250)),
    (lambda: nn.ConvTranspose3d(20, 200, (1, 1, 5)), 1 / math.sqrt(1000)),
]


@pytest.mark.parametrize(("make", "bound"), BOUNDS)
def test_uniform_layers(make: Callable[[], Any], bound: float) -> None:
    layer = make()
    uniform_within(layer.weight, bound)
    assert layer.bias.abs().max() <= bound * (1 + 1e-6)
    if layer.bias.numel() >= 100:
        normal_like(layer.bias, bound / math.sqrt(3))
    before = layer.weight.tolist()
    layer.reset_parameters()
    assert layer.weight.tolist() != before
    uniform_within(layer.weight, bound)


def test_other_layers() -> None:
    for table in (nn.Embedding(300, 100), nn.EmbeddingBag(300, 100)):
        normal_like(table.weight, 1.0)
        is_normal(table.weight)
    for norm in (nn.BatchNorm1d(3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm1d(3, affine=True)):
        assert norm.weight.tolist() == [1, 1, 1] and norm.bias.tolist() == [0, 0, 0]
    assert nn.RMSNorm(2).weight.tolist() == [1, 1] and nn.PReLU(2).weight.tolist() == [0.25, 0.25]


def test_seeds_and_dtypes() -> None:
    tj.manual_seed(5)
    a = nn.Linear(3, 3)
    tj.manual_seed(5)
    b = nn.Linear(3, 3)
    assert a.weight.tolist() == b.weight.tolist()
    layers = [nn.Linear(2, 2, dtype=tj.float64), nn.Conv2d(1, 1, 1, dtype=tj.float64), nn.Embedding(2, 2, dtype=tj.float64)]
    layers += [nn.BatchNorm1d(2, dtype=tj.float64), nn.LayerNorm(2, dtype=tj.float64), nn.PReLU(dtype=tj.float64)]
    assert all(p.dtype is tj.float64 for layer in layers for p in layer.parameters())
    assert nn.Linear(2, 2, dtype=tj.bfloat16).weight.dtype is tj.bfloat16
