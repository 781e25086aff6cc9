"""nn.utils: clipping, parameters as a vector, reparametrised weights, folded batch norms."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.tolerances import assert_within, spread
from tapejit import nn
from tapejit.nn import utils
from tapejit.nn.utils import parametrizations, parametrize


@pytest.fixture(autouse=True)
def seeded() -> None:
    tj.manual_seed(0)


def with_gradients(*values: list[float]) -> list[nn.Parameter]:
    parameters = []
    for v in values:
        p = nn.Parameter(tj.zeros(len(v)))
        p.grad = tj.tensor(v)
        parameters.append(p)
    return parameters


# ---- clipping


@pytest.mark.parametrize(
    ("norm_type", "norm"), [(2.0, 13.0), (1.0, 19.0), (math.inf, 12.0), (3, (27 + 64 + 1728) ** (1 / 3)), ("inf", 12.0)]
)
def test_clip_by_norm(norm_type: Any, norm: float) -> None:
    parameters = with_gradients([3.0, 4.0], [12.0])
    total = utils.clip_grad_norm_(parameters, 1.0, norm_type)
    assert total.item() == pytest.approx(norm) and total.ndim == 0
    found = [g for p in parameters for g in p.grad.tolist()]
    np.testing.assert_allclose(found, np.array([3, 4, 12]) / (norm + 1e-6), rtol=1e-6)


def test_small_gradients_are_left_as_they_are() -> None:
    parameters = [*with_gradients([3.0, 4.0]), nn.Parameter(tj.zeros(1))]
    assert utils.clip_grad_norm_(iter(parameters), 10.0).item() == 5 and parameters[0].grad.tolist() == [3, 4]
    assert utils.clip_grad_norm_(parameters[0], 2.5).item() == 5
    np.testing.assert_allclose(parameters[0].grad.tolist(), [1.5, 2], rtol=1e-5)


def test_nothing_to_clip() -> None:
    assert utils.clip_grad_norm_([nn.Parameter(tj.zeros(2))], 1.0).item() == 0
    assert utils.clip_grad_norm_([], 1.0).item() == 0
    with pytest.warns(UserWarning, match="empty generator"):
        utils.clip_grad_norm_((p for p in []), 1.0)


def test_norms_of_mixed_and_half_gradients() -> None:
    parameters = with_gradients([3.0, 4.0], [12.0])
    for dtype in (tj.float64, tj.bfloat16):
        parameters[1].data = parameters[1].data.to(dtype)
        parameters[1].grad = tj.tensor([12.0], dtype=dtype)
        assert utils.get_total_norm([p.grad for p in parameters]).item() == pytest.approx(13)
    halves = [tj.tensor([300.0, 400.0], dtype=tj.float16), tj.zeros(0, dtype=tj.float16)]
    assert utils.get_total_norm(halves).item() == 500 and utils.get_total_norm(halves).dtype is tj.float16


def test_nonfinite_gradients() -> None:
    with pytest.raises(RuntimeError, match=r"The total norm of order 2\.0 for gradients from `parameters` is non-finite"):
        utils.clip_grad_norm_(with_gradients([math.inf]), 1.0, error_if_nonfinite=True)
    parameters = with_gradients([math.nan], [1.0])
    assert math.isnan(utils.clip_grad_norm_(parameters, 1.0)) and math.isnan(parameters[1].grad)


def test_clip_in_two_steps_and_by_value() -> None:
    parameters = with_gradients([3.0, -4.0])
    norm = utils.get_total_norm([p.grad for p in parameters])
    utils.clip_grads_with_norm_(parameters, 1.0, norm)
    np.testing.assert_allclose(parameters[0].grad.tolist(), [0.6, -0.8], rtol=1e-5)
    utils.clip_grad_value_(parameters, 0.7)
    np.testing.assert_allclose(parameters[0].grad.tolist(), [0.6, -0.7], rtol=1e-5)
    with pytest.warns(FutureWarning, match="clip_grad_norm_"):
        utils.clip_grad_norm(parameters, 1.0)


def test_clipping_keeps_gradients_in_place() -> None:
    p = with_gradients([3.0, 4.0])[0]
    gradient = p.grad
    utils.clip_grad_norm_(p, 1.0)
    assert p.grad is gradient


# ---- vectors


def test_parameters_as_a_vector_and_back() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    vector = utils.parameters_to_vector(model.parameters())
    assert vector.shape == (13,) and vector.requires_grad
    vector.sum().backward()
    assert model[0].weight.grad.tolist() == [[1, 1]] * 3
    utils.vector_to_parameters(tj.arange(13.0), model.parameters())
    assert model[0].bias.tolist() == [6, 7, 8] and model[1].weight.tolist() == [[9, 10, 11]] and model[1].bias.is_leaf
    with pytest.raises(TypeError, match=r"expected tapejit\.Tensor, but got: list"):
        utils.vector_to_parameters([1.0], model.parameters())


# ---- weight norm


@pytest.mark.parametrize(("dim", "shape"), [(0, (3, 1)), (1, (1, 4)), (None, ())])
def test_weight_norm(dim: Any, shape: tuple[int, ...]) -> None:
    layer, x = nn.Linear(4, 3), tj.randn(5, 4)
    expected, weight = layer(x).tolist(), layer.weight.detach().clone()
    assert utils.weight_norm(layer, dim=dim) is layer
    assert [n for n, _ in layer.named_parameters()] == ["bias", "weight_g", "weight_v"] and layer.weight_g.shape == shape
    np.testing.assert_allclose(layer(x).tolist(), expected, rtol=1e-5, atol=1e-6)
    layer(x).sum().backward()
    if dim is None:  # the gradient along v is that of the length alone
        assert (layer.weight_v * layer.weight_v.grad).sum().abs() < 1e-5
    with tj.no_grad():
        layer.weight_g.mul_(2)
    layer(x)
    np.testing.assert_allclose(layer.weight.tolist(), (2 * weight).tolist(), rtol=1e-5)
    with pytest.raises(RuntimeError, match="two weight_norm hooks"):
        utils.weight_norm(layer, dim=dim)
    utils.remove_weight_norm(layer)
    assert [n for n, _ in layer.named_parameters()] == ["bias", "weight"] and not layer._forward_pre_hooks
    np.testing.assert_allclose(layer.weight.tolist(), (2 * weight).tolist(), rtol=1e-5)
    with pytest.raises(ValueError, match="weight_norm of 'weight' not found"):
        utils.remove_weight_norm(layer)


def test_weight_norm_as_a_parametrization() -> None:
    layer, x = nn.Conv1d(2, 3, 2), tj.randn(1, 2, 5)
    expected = layer(x).tolist()
    parametrizations.weight_norm(layer)
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]
    np.testing.assert_allclose(layer(x).tolist(), expected, rtol=1e-5, atol=1e-6)
    old = utils.weight_norm(nn.Conv1d(2, 3, 2))
    layer.load_state_dict(old.state_dict())
    sizes = nn.functional.conv1d(x.abs(), old.weight.abs(), old.bias.abs()).detach()
    assert_within(
        layer(x).detach(), old(x).detach(), spread(sizes, 2 * 2 + 1 + 6)
    )  # weights are rounded, too: a norm of 4, a quotient
    layer.weight = tj.ones(3, 2, 2)
    assert layer.parametrizations.weight.original0.flatten().tolist() == [2, 2, 2]
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Conv1d and list(layer.state_dict()) == ["bias", "weight"] and (layer.weight == 1).all()


# ---- spectral norm


def test_spectral_norm() -> None:
    layer = utils.spectral_norm(nn.Linear(5, 4), n_power_iterations=30)
    x = tj.randn(3, 5)
    layer(x)
    assert np.linalg.norm(layer.weight.detach().numpy(), 2) == pytest.approx(1, rel=1e-4)
    assert sorted(layer.state_dict()) == ["bias", "weight_orig", "weight_u", "weight_v"]
    before = layer.weight_u.tolist()
    layer.eval()(x)
    assert layer.weight_u.tolist() == before
    loss = layer.train()(x).sum() + layer(x).sum()  # two forwards before a backward, as in a GAN
    loss.backward()
    assert layer.weight_orig.grad is not None
    utils.remove_spectral_norm(layer)
    assert [n for n, _ in layer.named_parameters()] == ["bias", "weight"]


def test_spectral_norm_as_a_parametrization() -> None:
    layer = parametrizations.spectral_norm(nn.ConvTranspose2d(2, 3, 2), n_power_iterations=20)
    matrix = layer.weight.detach().numpy().transpose(1, 0, 2, 3).reshape(3, -1)
    assert np.linalg.norm(matrix, 2) == pytest.approx(1, rel=1e-3)
    assert "parametrizations.weight.0._u" in layer.state_dict()
    with pytest.raises(ValueError, match="has no parameter or buffer with name 'kernel'"):
        parametrizations.spectral_norm(layer, "kernel")


# ---- parametrizations of users


class Symmetric(nn.Module):
    def forward(self, x: tj.Tensor) -> tj.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x: tj.Tensor) -> tj.Tensor:
        return x.triu()


class Doubled(nn.Module):
    calls = 0

    def forward(self, x: tj.Tensor) -> tj.Tensor:
        Doubled.calls += 1
        return 2 * x


def test_parametrizations_apply_in_turn() -> None:
    layer = nn.Linear(3, 3)
    weight = layer.weight
    parametrize.register_parametrization(layer, "weight", Symmetric())
    assert layer.weight.tolist() == layer.weight.T.tolist() and layer.parametrizations.weight.original is weight
    once = layer.weight.tolist()
    parametrize.register_parametrization(layer, "weight", Doubled())
    assert layer.weight.tolist() == (2 * tj.tensor(once)).tolist()
    assert parametrize.is_parametrized(layer) and parametrize.is_parametrized(layer, "weight")
    assert parametrize.type_before_parametrizations(layer) is nn.Linear and type(layer).__name__ == "ParametrizedLinear"
    layer(tj.ones(1, 3)).sum().backward()
    assert weight.grad is not None
    twin = copy.deepcopy(layer)
    assert twin.weight.tolist() == layer.weight.tolist()
    with pytest.raises(RuntimeError, match="state_dict"):
        pickle.dumps(layer)
    with pytest.raises(RuntimeError, match="Doubled does not implement right_inverse"):
        layer.weight = tj.ones(3, 3)
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert type(layer) is nn.Linear and layer.weight is weight


def test_cached_parametrizations() -> None:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "bias", Doubled())
    Doubled.calls = 0
    with parametrize.cached():
        assert layer.bias is layer.bias
    assert Doubled.calls == 1 and layer.bias is not layer.bias


def test_parametrizations_may_not_change_shapes() -> None:
    class Row(nn.Module):
        def forward(self, x: tj.Tensor) -> tj.Tensor:
            return x[0]

    with pytest.raises(ValueError, match="may not change the shape of the tensor"):
        parametrize.register_parametrization(nn.Linear(2, 2), "weight", Row())
    with pytest.raises(ValueError, match="does not have a parameter, a buffer, or a parametrized element with name 'w'"):
        parametrize.register_parametrization(nn.Linear(2, 2), "w", Row())


# ---- fusion


def test_folded_batch_norms() -> None:
    for conv, bn, x in (
        (nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), tj.randn(4, 2, 5, 5)),
        (nn.ConvTranspose1d(2, 3, 2), nn.BatchNorm1d(3, affine=False), tj.randn(4, 2, 5)),
        (nn.Linear(2, 3), nn.BatchNorm1d(3), tj.randn(4, 2)),
    ):
        bn(conv(x))
        with pytest.raises(AssertionError, match="Fusion only for eval!"):
            utils.fuse_conv_bn_eval(conv, bn)
        conv.eval()
        bn.eval()
        if isinstance(conv, nn.Linear):
            fused = utils.fuse_linear_bn_eval(conv, bn)
        else:
            fused = utils.fuse_conv_bn_eval(conv, bn, transpose=isinstance(conv, nn.ConvTranspose1d))
        np.testing.assert_allclose(fused(x).tolist(), bn(conv(x)).tolist(), rtol=1e-4, atol=1e-5)
        assert type(fused) is type(conv) and fused is not conv
