"""nn.functional beyond what samples say: in place, what is kept for the backward pass, extreme values, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit.eager.ops import softmax as softmax_kernels
from tapejit.eager.ops.neural import attention as attention_kernels

rng = np.random.default_rng(0)


def floats(*shape: int) -> tj.Tensor:
    return tj.tensor(rng.standard_normal(shape))


def gradients(function: Callable[..., tj.Tensor], *inputs: tj.Tensor) -> list[np.ndarray]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    weights = tj.tensor(np.cos(np.arange(out.numel())).reshape(out.shape), dtype=out.dtype)
    return [g.numpy() for g in tj.autograd.grad((out * weights).sum(), leaves)]


def kept(out: tj.Tensor) -> list[np.ndarray]:
    """The arrays that a tensor's node keeps for the backward pass."""
    assert out.grad_fn is not None
    return [v[0] for v in out.grad_fn.owner().saved.values() if isinstance(v, tuple) and v and isinstance(v[0], np.ndarray)]


def test_ways_to_import() -> None:
    import tapejit.nn
    from tapejit import nn

    assert tapejit.nn.functional is F
    assert nn.functional is F
    assert F.tanh is tj.tanh and F.sigmoid is tj.sigmoid


# ---- activations

IN_PLACE: dict[str, Any] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "leaky_relu falling": lambda x, **kw: F.leaky_relu(x, -0.3, **kw),
    "elu": F.elu,
    "elu falling": lambda x, **kw: F.elu(x, -0.3, **kw),
    "selu": F.selu,
    "celu": lambda x, **kw: F.celu(x, 0.5, **kw),
    "silu": F.silu,
    "mish": F.mish,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "rrelu": F.rrelu,
    "threshold": lambda x, **kw: F.threshold(x, 0.1, 2.0, **kw),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_activations(name: str) -> None:
    function = IN_PLACE[name]
    x = floats(3, 4)
    expected = function(x)
    y = x.clone()
    assert function(y, inplace=True) is y
    np.testing.assert_array_equal(y.numpy(), expected.numpy())

    def in_place(leaf: tj.Tensor) -> tj.Tensor:
        return function(leaf * 1, inplace=True)

    np.testing.assert_allclose(gradients(in_place, x)[0], gradients(function, x)[0], rtol=1e-12)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        function(x.clone().requires_grad_(), inplace=True)


@pytest.mark.parametrize("name", ["relu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "rrelu"])
def test_functions_with_an_underscore(name: str) -> None:
    x = floats(5)
    y = x.clone()
    assert getattr(F, name + "_")(y) is y
    np.testing.assert_array_equal(y.numpy(), getattr(F, name)(x).numpy())
    assert F.threshold_(x, 0.0, 1.0) is x


def test_relu_keeps_only_its_output() -> None:
    x = floats(4).requires_grad_() * 1
    out = F.relu(x)
    arrays = kept(out)
    assert len(arrays) == 1 and arrays[0] is out.tj_array
    x.add_(1)
    out.sum().backward()


@pytest.mark.parametrize("function", [F.leaky_relu, F.hardtanh, F.elu])
def test_in_place_keeps_no_copy(function: Any) -> None:
    y = floats(4).requires_grad_() * 1
    function(y, inplace=True)
    arrays = kept(y)
    assert len(arrays) == 1 and arrays[0] is y.tj_array


@pytest.mark.filterwarnings("ignore")
def test_a_dead_relu_stops_infinite_gradients() -> None:
    x = tj.tensor([-1.0, 2.0], requires_grad=True)
    F.relu(x).log().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.5]


def test_nan_passes_through() -> None:
    x = tj.tensor([math.nan, -1.0, 1.0], requires_grad=True)
    for function in (F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.softplus, F.hardshrink, F.softshrink):
        assert math.isnan(function(x)[0].item()), function.__name__
    (g,) = tj.autograd.grad(F.relu(x).sum(), x)
    assert g.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.5, math.inf, math.nan])
def test_slopes_below_zero_do_not_count_above(slope: float) -> None:
    assert F.leaky_relu(tj.tensor([2.0, math.inf]), slope).tolist() == [2.0, math.inf]


@pytest.mark.filterwarnings("ignore")
def test_extremes() -> None:
    far = tj.tensor([-1e4, 1e4])
    assert F.silu(far).tolist() == [0.0, 1e4]
    assert F.gelu(far).tolist() == [0.0, 1e4]
    assert F.softplus(far).tolist() == [0.0, 1e4]
    assert F.logsigmoid(far).tolist() == [-1e4, 0.0]
    assert F.elu(far).tolist() == [-1.0, 1e4]
    assert F.softplus(tj.tensor([-50.0])).item() == pytest.approx(math.exp(-50), rel=1e-6)


def test_gelu_in_float32_is_as_precise_as_float32() -> None:
    wide = tj.linspace(-9, 9, 20001, dtype=tj.float64)
    narrow = wide.float().requires_grad_()
    leaf = narrow.detach().double().requires_grad_()
    F.gelu(narrow).sum().backward()
    F.gelu(leaf).sum().backward()
    assert float((F.gelu(narrow).double() - F.gelu(leaf)).abs().max()) < 6e-7  # of up to 9
    assert float((narrow.grad.double() - leaf.grad).abs().max()) < 1.5e-7
    for x, slope in ((0.0, 0.5), (-0.0, 0.5), (1e30, 1.0), (-1e30, 0.0)):
        far = tj.tensor([x], requires_grad=True)
        F.gelu(far).backward()
        assert far.grad.tolist() == [slope]


def test_precision_of_float32() -> None:
    x = np.linspace(-9, 9, 20001)
    normal = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])
    leaf = tj.tensor(x, dtype=tj.float32).requires_grad_()
    out = F.gelu(leaf)
    np.testing.assert_allclose(out.detach().numpy(), x * normal, atol=1e-6)
    (g,) = tj.autograd.grad(out.sum(), leaf)
    slope = normal + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(g.numpy(), slope, atol=1e-6)
    small = tj.tensor([-1e-7, -1e-3], dtype=tj.float32)
    np.testing.assert_allclose(F.elu(small).numpy(), np.expm1([-1e-7, -1e-3]), rtol=1e-6)


def test_integers() -> None:
    x = tj.tensor([-2, 0, 7])
    assert F.relu(x).tolist() == [0, 0, 7] and F.relu(x).dtype is tj.int64
    assert F.relu6(x).tolist() == [0, 0, 6]
    assert F.softsign(x).dtype is tj.float32
    for function in (F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus, F.mish, F.hardswish):
        with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
            function(x)
    with pytest.raises(RuntimeError, match="Boolean inputs not supported"):
        F.relu(x > 0)


def test_activation_errors() -> None:
    x = floats(2, 3)
    with pytest.raises(RuntimeError, match="Found parameter numbers = 2 and channel size = 3"):
        F.prelu(x, floats(2))
    with pytest.raises(RuntimeError, match="scalar or 1D tensor, but got: ndim = 2"):
        F.prelu(x, floats(3, 1))
    with pytest.raises(RuntimeError, match="Not allow zero-dim input"):
        F.prelu(floats(), floats(3))
    with pytest.raises(RuntimeError, match="Halving dimension must be even, but dimension 1 is size 3"):
        F.glu(x)
    with pytest.raises(RuntimeError, match="does not support scalars"):
        F.glu(floats())
    with pytest.raises(RuntimeError, match="either none or tanh"):
        F.gelu(x, approximate="erf")
    with pytest.raises(RuntimeError, match="lambda must be greater or equal to 0"):
        F.softshrink(x, -1.0)
    with pytest.raises(ValueError, match="min_val cannot be greater than max_val"):
        F.hardtanh(x, 1.0, 0.0)
    with pytest.raises(RuntimeError, match="alpha cannot be 0"):
        F.celu(x, 0.0)
    with pytest.raises(RuntimeError, match="Lower bound should be less"):
        F.rrelu(x, 0.5, 0.1)
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        F.relu([1.0])


def test_rrelu_in_training() -> None:
    tj.manual_seed(0)
    x = tj.full((1000,), -1.0, requires_grad=True)
    out = F.rrelu(x, 0.2, 0.4, training=True)
    slopes = -out.detach().numpy()
    assert slopes.min() >= 0.2 and slopes.max() < 0.4 and 0.28 < slopes.mean() < 0.32
    out.sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), slopes)


# ---- softmax


def test_softmax_of_large_logits() -> None:
    x = tj.tensor([[1e4, -1e4, 0.0], [1e4, 1e4, -math.inf]])
    assert F.softmax(x, 1).tolist() == [[1, 0, 0], [0.5, 0.5, 0]]
    assert F.log_softmax(x, 1)[0].tolist() == [0, -2e4, -1e4]


@pytest.mark.filterwarnings("ignore")
def test_softmax_of_nothing_is_nan() -> None:
    assert F.softmax(tj.full((1, 3), -math.inf), 1).isnan().all()
    assert F.softmax(tj.zeros(2, 0), 1).shape == (2, 0)
    assert F.softmax(tj.zeros(0, 2), 1).shape == (0, 2)


def test_softmax_arguments() -> None:
    x = floats(2, 3)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        np.testing.assert_array_equal(F.softmax(x).numpy(), F.softmax(x, 1).numpy())
    assert F.softmax(tj.tensor([1, 2]), 0, dtype=tj.float64).dtype is tj.float64
    assert x.float().softmax(0, tj.float64).dtype is tj.float64
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.softmax(tj.tensor([1, 2]), 0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        F.softmax(x, 2)


def test_log_softmax_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = floats(9, 5, 4)
    whole = F.log_softmax(x, 1).numpy()
    monkeypatch.setattr(softmax_kernels, "_PIECE", 40)
    np.testing.assert_allclose(F.log_softmax(x, 1).numpy(), whole, rtol=1e-12)


def test_gumbel_softmax() -> None:
    tj.manual_seed(0)
    logits = tj.tensor([[0.0, math.log(3.0)]]).expand(4000, 2).contiguous().requires_grad_()
    soft = F.gumbel_softmax(logits, tau=0.5)
    np.testing.assert_allclose(soft.sum(1).detach().numpy(), 1, rtol=1e-5)
    hard = F.gumbel_softmax(logits, hard=True)
    assert set(hard.detach().round().flatten().tolist()) == {0.0, 1.0}
    assert 0.72 < hard[:, 1].mean().item() < 0.78
    hard[:, 0].sum().backward()
    assert logits.grad is not None and bool((logits.grad != 0).any())


# ---- normalisation


def test_batch_norm_follows_the_statistics() -> None:
    x = floats(5, 3, 4)
    mean, var = tj.zeros(3, dtype=tj.float64), tj.ones(3, dtype=tj.float64)
    F.batch_norm(x, mean, var, training=True, momentum=0.25)
    values = x.numpy().transpose(1, 0, 2).reshape(3, -1)
    np.testing.assert_allclose(mean.numpy(), 0.25 * values.mean(1))
    np.testing.assert_allclose(var.numpy(), 0.75 + 0.25 * values.var(1, ddof=1))
    before = mean.clone()
    F.batch_norm(x, mean, var)
    assert mean.equal(before)


def test_instance_norm_follows_the_statistics() -> None:
    x = floats(5, 3, 4)
    mean, var = tj.zeros(3, dtype=tj.float64), tj.ones(3, dtype=tj.float64)
    F.instance_norm(x, mean, var, momentum=0.25)
    np.testing.assert_allclose(mean.numpy(), 0.25 * x.numpy().mean((0, 2)))
    np.testing.assert_allclose(var.numpy(), 0.75 + 0.25 * x.numpy().var(2, ddof=1).mean(0))


def test_norms_keep_statistics_and_not_copies() -> None:
    x = floats(6, 8).requires_grad_() * 1
    weight = floats(8).requires_grad_()
    assert sorted(a.size for a in kept(F.layer_norm(x, (8,), weight))) == [6, 6, 8, 48]
    assert any(a is x.tj_array for a in kept(F.layer_norm(x, (8,), weight)))


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16])
def test_half_input_with_float_parameters(dtype: Any) -> None:
    x = floats(4, 6).to(dtype)
    weight, bias = floats(6).float(), floats(6).float()
    exact = F.layer_norm(x.double(), (6,), weight.double(), bias.double()).numpy()
    found = F.layer_norm(x, (6,), weight, bias)
    assert found.dtype is dtype
    np.testing.assert_allclose(found.double().numpy(), exact, atol=0.05)
    mean, var = tj.zeros(6), tj.ones(6)
    for training in (True, False):
        assert F.batch_norm(x, mean, var, weight, bias, training).dtype is dtype
    assert mean.dtype is tj.float32


def test_layer_norm_of_a_large_mean() -> None:
    x = tj.tensor(1e4 + rng.standard_normal((4, 64)), dtype=tj.float32)
    exact = x.double().numpy()
    exact = (exact - exact.mean(1, keepdims=True)) / exact.std(1, keepdims=True)
    np.testing.assert_allclose(F.layer_norm(x, (64,)).numpy(), exact, atol=5e-3)


def test_empty_norms() -> None:
    assert F.layer_norm(tj.zeros(0, 3), (3,)).shape == (0, 3)
    assert F.layer_norm(tj.zeros(2, 0), (0,)).shape == (2, 0)
    assert F.batch_norm(tj.zeros(0, 3), tj.zeros(3), tj.ones(3), training=True).shape == (0, 3)


def test_norm_errors() -> None:
    x = floats(2, 4)
    with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[3\], expected input with shape \[\*, 3\]"):
        F.layer_norm(x, (3,))
    with pytest.raises(RuntimeError, match=r"got weight of shape \[2\] and normalized_shape = \[4\]"):
        F.layer_norm(x, (4,), floats(2))
    with pytest.raises(RuntimeError, match="at least one element"):
        F.layer_norm(x, ())
    with pytest.raises(TypeError, match="must be tuple of ints"):
        F.layer_norm(x, 4)
    with pytest.raises(NotImplementedError, match="'Long'"):
        F.layer_norm(tj.ones(2, 3).long(), (3,))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        F.batch_norm(floats(1, 3), None, None, training=True)
    with pytest.raises(RuntimeError, match="running_mean must be defined in evaluation mode"):
        F.batch_norm(x, None, None)
    with pytest.raises(RuntimeError, match="running_mean should contain 4 elements not 3"):
        F.batch_norm(x, tj.zeros(3), tj.ones(3))
    with pytest.raises(ValueError, match="neither be None"):
        F.batch_norm(x, tj.zeros(4), None)
    with pytest.raises(TypeError, match="'momentum' must be float"):
        F.batch_norm(x, tj.zeros(4), tj.ones(4), momentum=None)
    with pytest.raises(RuntimeError, match="divisible by num_groups"):
        F.group_norm(x, 3)
    with pytest.raises(RuntimeError, match="vector of size equal to the number of channels"):
        F.group_norm(x, 2, floats(3))
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        F.group_norm(floats(4), 2)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        F.instance_norm(floats(2, 3, 1))
    with pytest.raises(RuntimeError, match="when use_input_stats is false"):
        F.instance_norm(floats(2, 3, 4), use_input_stats=False)
    with pytest.raises(ValueError, match="3D or higher"):
        F.local_response_norm(x, 2)


# ---- embeddings


def test_embedding_gradient() -> None:
    table = floats(4, 2).requires_grad_()
    indices = tj.tensor([[0, 1, 0], [3, 0, 1]])
    F.embedding(indices, table, padding_idx=1).sum().backward()
    assert table.grad is not None and table.grad.tolist() == [[3, 3], [0, 0], [0, 0], [1, 1]]
    (g,) = tj.autograd.grad(F.embedding(indices, table, scale_grad_by_freq=True).sum(), table)
    assert g.tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]]


def test_embedding_second_gradient_with_padding() -> None:
    table = floats(4, 2).requires_grad_()
    weights = floats(3, 2).requires_grad_()
    out = F.embedding(tj.tensor([0, 1, 0]), table, padding_idx=1, scale_grad_by_freq=True)
    (g,) = tj.autograd.grad((out * weights).sum(), table, create_graph=True)
    (again,) = tj.autograd.grad(g.sum(), weights)
    assert again.tolist() == [[0.5, 0.5], [0, 0], [0.5, 0.5]]


def test_embedding_of_many_rows() -> None:
    table = tj.zeros(5, 700, requires_grad=True)
    indices = rng.integers(0, 5, 1000)
    F.embedding(tj.tensor(indices), table).sum().backward()
    assert table.grad is not None
    np.testing.assert_array_equal(table.grad.numpy()[:, 0], np.bincount(indices, minlength=5))


def test_embedding_shortens_rows_in_place() -> None:
    table = tj.tensor([[3.0, 4.0], [0.1, 0.0], [6.0, 8.0]], requires_grad=True)
    out = F.embedding(tj.tensor([0, 1, 0]), table, max_norm=1.0)
    np.testing.assert_allclose(out.detach().numpy(), [[0.6, 0.8], [0.1, 0], [0.6, 0.8]], rtol=1e-5)
    np.testing.assert_allclose(table.detach().numpy(), [[0.6, 0.8], [0.1, 0], [6, 8]], rtol=1e-5)
    out.sum().backward()
    assert table._version == 1
    other = tj.tensor([[3.0, 4.0]])
    F.embedding(tj.tensor([0]), other, max_norm=1.0, norm_type=1.0)
    np.testing.assert_allclose(other.numpy(), [[3 / 7, 4 / 7]], rtol=1e-5)


def test_embedding_errors() -> None:
    table = floats(4, 3)
    before = table.clone()
    for wrong in (4, -1):
        with pytest.raises(IndexError, match="index out of range in self"):
            F.embedding(tj.tensor([0, wrong]), table, max_norm=0.1)
    assert table.equal(before)
    with pytest.raises(RuntimeError, match="scalar types: Long, Int; but got Float"):
        F.embedding(tj.tensor([0.0]), table)
    with pytest.raises(RuntimeError, match="'weight' must be 2-D"):
        F.embedding(tj.tensor([0]), floats(3))
    with pytest.raises(AssertionError, match="Padding_idx must be within num_embeddings"):
        F.embedding(tj.tensor([0]), table, padding_idx=4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_different_lengths(mode: str) -> None:
    indices, offsets = tj.tensor([0, 1, 2, 0, 3]), tj.tensor([0, 0, 2, 5])

    def ragged(table: tj.Tensor) -> tj.Tensor:
        return F.embedding_bag(indices, table, offsets, mode=mode, padding_idx=3)

    def by_hand(table: tj.Tensor) -> tj.Tensor:
        pool = {"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}[mode]
        empty = table[0] * 0
        return tj.stack([empty, pool(table[tj.tensor([0, 1])]), pool(table[tj.tensor([2, 0])]), empty])

    table = floats(4, 3)
    np.testing.assert_allclose(ragged(table).numpy(), by_hand(table).numpy())
    np.testing.assert_allclose(gradients(ragged, table)[0], gradients(by_hand, table)[0])
    cut = F.embedding_bag(indices, table, offsets, mode=mode, padding_idx=3, include_last_offset=True)
    np.testing.assert_allclose(cut.numpy(), ragged(table).numpy()[:3])


def test_bag_errors() -> None:
    table, indices = floats(4, 3), tj.tensor([0, 1])
    with pytest.raises(ValueError, match="1D Tensor but got None"):
        F.embedding_bag(indices, table)
    with pytest.raises(ValueError, match="offsets has to be None"):
        F.embedding_bag(indices.reshape(1, 2), table, tj.tensor([0]))
    with pytest.raises(RuntimeError, match=r"offsets\[0\] has to be 0.*got 1"):
        F.embedding_bag(indices, table, tj.tensor([1]))
    with pytest.raises(RuntimeError, match=r"offsets\[-1\] can not be greater than input's length 2"):
        F.embedding_bag(indices, table, tj.tensor([0, 3]))
    with pytest.raises(ValueError, match="1D or 2D Tensor, but got Tensor of dimension 3"):
        F.embedding_bag(indices.reshape(1, 1, 2), table)
    with pytest.raises(ValueError, match="sum, mean or max"):
        F.embedding_bag(indices, table, tj.tensor([0]), mode="min")
    with pytest.raises(NotImplementedError, match="only supported for mode='sum'"):
        F.embedding_bag(indices, table, tj.tensor([0]), per_sample_weights=floats(2))
    with pytest.raises(ValueError, match="same shape as the input"):
        F.embedding_bag(indices, table, tj.tensor([0]), mode="sum", per_sample_weights=floats(3))


# ---- attention


def attend(*args: Any, **kwargs: Any) -> tj.Tensor:
    return F.scaled_dot_product_attention(*args, **kwargs)


@pytest.mark.parametrize("form", ["plain", "causal", "mask", "heads"])
def test_attention_in_pieces(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = floats(2, 4, 6, 3), floats(2, 2, 7, 3), floats(2, 2, 7, 5)
    options: dict[str, Any] = {"enable_gqa": True, "is_causal": form == "causal"}
    if form == "mask":
        options["attn_mask"] = tj.tensor(rng.random((2, 1, 6, 7)) < 0.7)
    if form == "heads":
        options["attn_mask"] = floats(4, 1, 7)

    def function(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
        return attend(q, k, v, **options)

    whole, slopes = function(query, key, value).numpy(), gradients(function, query, key, value)
    monkeypatch.setattr(attention_kernels, "_BUFFER", 30)
    monkeypatch.setattr(attention_kernels, "_CAUSAL_ROWS", 2)
    np.testing.assert_allclose(function(query, key, value).numpy(), whole, rtol=1e-10)
    for found, expected in zip(gradients(function, query, key, value), slopes, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1, 30])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_small_and_large_scores_and_of_transposed_heads(size: int, causal: bool) -> None:
    query, key, value = (floats(2, 5, 3, 4).transpose(1, 2) for _ in range(3))
    query = query * size

    def by_hand(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
        scores = q @ k.mT / 2
        return F.softmax(scores.masked_fill(tj.ones(5, 5).triu(1).bool(), -math.inf) if causal else scores, -1) @ v

    def function(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
        return attend(q, k, v, is_causal=causal)

    np.testing.assert_allclose(function(query, key, value).numpy(), by_hand(query, key, value).numpy(), rtol=1e-9)
    for a, b in zip(gradients(function, query, key, value), gradients(by_hand, query, key, value), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def test_attention_of_nan_and_infinity() -> None:
    query, key, value = floats(1, 2, 3), floats(1, 2, 3), floats(1, 2, 3)
    query[0, 0, 0] = math.nan
    out = attend(query, key, value)
    assert bool(out[0, 0].isnan().all()) and bool(out[0, 1].isfinite().all())


def test_attention_keeps_no_matrix() -> None:
    query, key, value = (floats(1, 2, 50, 4).requires_grad_() for _ in range(3))
    out = attend(query, key, value, is_causal=True)
    assert max(a.size for a in kept(out)) == 400


def test_rows_that_see_nothing_are_zero() -> None:
    query, key, value = (floats(1, 2, 3).requires_grad_() for _ in range(3))
    mask = tj.tensor([[True, False], [False, False]])
    for form in (mask, tj.zeros(2, 2, dtype=tj.float64).masked_fill(~mask, -math.inf)):
        out = attend(query, key, value, form)
        assert out[0, 1].tolist() == [0, 0, 0]
        for g in tj.autograd.grad(out.sum(), (query, key, value)):
            assert bool(g.isfinite().all())
        (g,) = tj.autograd.grad(attend(query, key, value, form)[0, 1].sum(), query, create_graph=True)
        assert not g.any()


def test_attention_shares_heads() -> None:
    query, key, value = floats(2, 4, 3, 2), floats(2, 2, 3, 2), floats(2, 2, 3, 2)
    repeated = [x.repeat_interleave(2, dim=1) for x in (key, value)]
    np.testing.assert_allclose(attend(query, key, value, enable_gqa=True).numpy(), attend(query, *repeated).numpy(), rtol=1e-12)


def test_grouped_attention_over_several_batches_of_keys() -> None:
    query, key, value = floats(1, 4, 2, 3), floats(2, 2, 5, 3), floats(2, 2, 5, 3)
    repeated = (tj.repeat_interleave(x, 2, 1) for x in (key, value))
    found = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    np.testing.assert_allclose(found.numpy(), F.scaled_dot_product_attention(query, *repeated).numpy(), rtol=1e-12)


def test_attention_mask_gets_a_gradient() -> None:
    query, key, value, mask = floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 4), floats(3, 5)

    def by_hand(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor, m: tj.Tensor) -> tj.Tensor:
        return F.softmax(q @ k.mT / 2 + m, -1) @ v

    for a, b in zip(gradients(attend, query, key, value, mask), gradients(by_hand, query, key, value, mask), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_attention_with_dropout() -> None:
    tj.manual_seed(0)
    query, key, value = floats(1, 400, 4), floats(1, 8, 4), tj.ones(1, 8, 1, dtype=tj.float64)
    out = attend(query, key, value, dropout_p=0.5)
    assert 0.9 < out.mean().item() < 1.1 and out.std().item() > 0.1
    assert not attend(query, key, value, dropout_p=1.0).any()


def test_attention_errors() -> None:
    query, key, value = floats(1, 1, 2, 4), floats(1, 1, 3, 4), floats(1, 1, 3, 4)
    with pytest.raises(RuntimeError, match=r"same floating-point dtype, but got query\.dtype: float64"):
        attend(query, key, value.float())
    with pytest.raises(RuntimeError, match="at least 2 dimensional"):
        attend(floats(4), floats(4), floats(4))
    with pytest.raises(RuntimeError, match="same last dimension"):
        attend(query, floats(1, 1, 3, 5), value)
    with pytest.raises(RuntimeError, match="same number of rows"):
        attend(query, key, floats(1, 1, 2, 4))
    with pytest.raises(RuntimeError, match="attn_mask dtype"):
        attend(query, key, value, tj.ones(2, 3).long())
    with pytest.raises(RuntimeError, match=r"attn_mask of shape \[5, 3\] does not broadcast"):
        attend(query, key, value, tj.ones(5, 3).bool())
    with pytest.raises(RuntimeError, match=r"between 0 and 1, but got 1\.5"):
        attend(query, key, value, dropout_p=1.5)
    with pytest.raises(RuntimeError, match="must divide the number of heads"):
        attend(floats(1, 4, 2, 4), floats(1, 3, 3, 4), floats(1, 3, 3, 4), enable_gqa=True)
    with pytest.raises(RuntimeError, match=r"size of tensor a \(4\) must match the size of tensor b \(2\)"):
        attend(floats(1, 4, 2, 4), floats(1, 2, 3, 4), floats(1, 2, 3, 4))
    assert attend(query, floats(1, 1, 0, 4), floats(1, 1, 0, 4)).tolist() == [[[[0.0] * 4] * 2]]
    assert attend(floats(1, 1, 0, 4), key, value).shape == (1, 1, 0, 4)


def test_a_padding_row_that_is_not_finite_counts_for_nothing() -> None:
    weight = tj.tensor([[1.0, 2.0], [tj.nan, tj.inf], [3.0, 4.0]], requires_grad=True)
    found = F.embedding_bag(tj.tensor([[0, 1], [1, 2]]), weight, mode="sum", padding_idx=1)
    assert found.tolist() == [[1, 2], [3, 4]]
    found.sum().backward()
    assert weight.grad.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_glu_of_nothing() -> None:
    assert tuple(F.glu(tj.zeros(0, 3), dim=0).shape) == (0, 3)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "bilinear": (lambda: F.bilinear(tj.ones(2, 3), tj.ones(2, 3), tj.ones(3, 3)), RuntimeError, r"3 dimensions.*\[3, 3\]"),
    "cross_entropy": (lambda: F.cross_entropy(tj.ones(2, 3), tj.ones(1, 3)), ValueError, r"batch_size \(2\).*\(1\)"),
    "vector_norm": (lambda: tj.linalg.vector_norm(tj.ones(2), "a"), TypeError, "'ord' must be Number, not str"),
    "logspace": (lambda: tj.logspace(0, 1, 3, base="a"), TypeError, "'base' must be float, not str"),
    "type_as": (lambda: tj.ones(2).type_as(3), TypeError, "'other' must be Tensor, not int"),
    "aminmax": (lambda: tj.ones(2).aminmax(dim=(0,)), TypeError, "'dim' must be int, not tuple"),
    "quantile": (lambda: tj.tensor(1.0).quantile(0.5, dim=1), IndexError, "but got 1"),
    "promote_types": (lambda: tj.promote_types(1, tj.int8), TypeError, "two dtypes"),
    "result_type": (lambda: tj.result_type("a", 1), TypeError, "a number, got str"),
    "grad": (lambda: tj.autograd.grad(tj.ones((), requires_grad=True) * 2, []), RuntimeError, "cannot be empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    call, kind, words = BAD[name]
    with pytest.raises(kind, match=words):
        call()
