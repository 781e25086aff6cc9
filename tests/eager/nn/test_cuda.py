"""Modules on device "cuda", with a stand-in for CuPy: moving, training, clipping, saving."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
from tapejit import nn
from tapejit.eager.arrays import devices


@pytest.fixture(autouse=True)
def stand_in() -> Iterator[None]:
    before = devices.use_cuda_module(fake_cupy)
    yield
    devices.use_cuda_module(before)


def network() -> nn.Sequential:
    tj.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    head = nn.Sequential(nn.Flatten(), nn.LayerNorm(16), nn.utils.weight_norm(nn.Linear(16, 8)), nn.GELU(), nn.Linear(8, 3))
    return nn.Sequential(features, head)


def step(model: nn.Module, device: str) -> list[Any]:
    """Gradients, clipped, and the buffers after one forward and backward."""
    random = np.random.default_rng(0)
    x, y = (
        tj.tensor(random.normal(size=(5, 1, 4, 4)), dtype=tj.float32, device=device),
        tj.tensor([0, 1, 2, 0, 1], device=device),
    )
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)(model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return [loss, norm, *(p.grad for p in model.parameters()), *model.buffers()]


def test_a_step_is_the_same_as_on_the_cpu() -> None:
    expected = step(network(), "cpu")
    found = step(network().to("cuda"), "cuda")
    assert all(t.is_cuda for t in found)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.detach().cpu().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_moving_keeps_parameters_and_moves_gradients() -> None:
    model = network()
    step(model, "cpu")
    before = list(model.parameters())
    model.cuda()
    assert all(p is q and p.is_cuda and p.grad.is_cuda and p.is_leaf for p, q in zip(model.parameters(), before, strict=True))
    assert all(b.is_cuda for b in model.buffers())
    assert not any(p.is_cuda for p in model.cpu().parameters())


def test_state_travels_between_devices() -> None:
    source, target = network().cuda(), network()
    source[1][4].weight.data.fill_(3)
    target.load_state_dict(source.state_dict())
    assert not target[1][4].weight.is_cuda and (target[1][4].weight == 3).all()
    target.load_state_dict({k: v.cpu() for k, v in source.state_dict().items()}, assign=True)
    assert copy.deepcopy(network().cuda()[0])[0].weight.is_cuda


def test_layers_made_on_the_device() -> None:
    kinds: list[tuple[Any, tuple[int, ...]]] = [
        (nn.Linear, (3, 4)), (nn.Conv1d, (2, 3, 2)), (nn.BatchNorm1d, (3,)), (nn.Embedding, (4, 3, 0)), (nn.LayerNorm, (3,)),
        (nn.PReLU, ()), (nn.GroupNorm, (1, 2)), (nn.RMSNorm, (3,)), (nn.Bilinear, (2, 3, 4)),
    ]  # fmt: skip
    for kind, sizes in kinds:
        layer = kind(*sizes, device="cuda")
        assert all(t.is_cuda for t in (*layer.parameters(), *layer.buffers()))
    for fill in (nn.init.orthogonal_, nn.init.eye_, nn.init.trunc_normal_, nn.init.kaiming_normal_):
        assert fill(tj.empty(3, 4, device="cuda")).is_cuda


def test_losses_move_with_their_weights() -> None:
    loss = nn.CrossEntropyLoss(tj.tensor([1.0, 2.0, 3.0])).cuda()
    assert loss(tj.ones(2, 3, device="cuda"), tj.tensor([0, 1], device="cuda")).is_cuda


def test_mixed_devices_say_which_layer() -> None:
    with pytest.raises(RuntimeError, match=r"same device.* \(in 0\.0: Conv2d\(1, 4"):
        network()(tj.ones(1, 1, 4, 4, device="cuda"))


def test_norm_of_gradients_on_two_devices() -> None:
    a, b = nn.Parameter(tj.zeros(1)), nn.Parameter(tj.zeros(1, device="cuda"))
    a.grad, b.grad = tj.tensor([3.0]), tj.tensor([4.0], device="cuda")
    assert nn.utils.clip_grad_norm_([a, b], 1.0).item() == pytest.approx(5)
    assert b.grad.item() == pytest.approx(0.8, rel=1e-5)
