"""Device "cuda": the op table's samples give what they give on the CPU, tensors travel, devices do not mix.

Runs on a stand-in for CuPy everywhere, and on real CuPy where there is a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
from support.harness import Case, assert_same, cases, flat, floats, gradients, tensors, value
from tapejit.eager.arrays import devices

GPUS = devices._driver_device_count()
BACKENDS = ["stand-in", "cupy"] if GPUS else ["stand-in"]


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cupy":
        yield "cupy"
        return
    before = devices.use_cuda_module(fake_cupy)
    yield "stand-in"
    devices.use_cuda_module(before)


# ---- every op


def on_cuda(case: Case, arrays: list[np.ndarray], dtype: Any = None, grad: bool = False) -> list[Any]:
    return tensors(case, arrays, dtype, grad, device="cuda")


def loose(backend: str) -> dict[str, float]:
    """A GPU rounds in other places than NumPy; the stand-in is NumPy."""
    return {"rtol": 1e-12, "atol": 1e-13} if backend == "stand-in" else {"rtol": 1e-9, "atol": 1e-10}


@pytest.mark.parametrize("case", cases(lambda c: bool(c.specs)))
def test_op(case: Case, backend: str) -> None:
    found = case.call(on_cuda(case, case.arrays()))
    expected = case.call(tensors(case, case.arrays()))
    for t in flat(found):
        assert not isinstance(t, tj.Tensor) or t.is_cuda
    for t, reference in zip(flat(found), flat(expected), strict=True):
        assert getattr(t, "dtype", None) == getattr(reference, "dtype", None)
    assert_same(found, expected, **loose(backend))


@pytest.mark.parametrize("case", cases(lambda c: bool(c.differentiable)))
def test_gradient(case: Case, backend: str) -> None:
    again = case.sample.gradgrad
    found = gradients(case, on_cuda(case, case.arrays(), grad=True), create_graph=again)
    expected = gradients(case, tensors(case, case.arrays(), grad=True), create_graph=again)
    assert all(g is None or g.is_cuda for g in found)
    assert_same(found, expected, **loose(backend))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", cases(lambda c: any(s.kind == "float" for s in c.specs)))
def test_half(case: Case, dtype: str) -> None:
    half = getattr(tj, dtype)
    try:
        expected = case.call(tensors(case, case.arrays(), half))
    except RuntimeError:
        return  # not implemented for half precision on the CPU either
    found = case.call(on_cuda(case, case.arrays(), half))
    for t, reference in zip(flat(found), flat(expected), strict=True):
        assert getattr(t, "dtype", None) == getattr(reference, "dtype", None)
    assert_same(floats(found), floats(expected), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("case", cases(lambda c: c.op.inplace and bool(c.specs) and c.sample.args[0] is c.specs[0]))
def test_in_place(case: Case, backend: str) -> None:
    def in_place(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.clone(), case.op.name + "_")(*args, **kwargs)

    try:
        expected = case.call(tensors(case, case.arrays()), in_place)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            case.call(on_cuda(case, case.arrays()), in_place)
        return
    assert_same(case.call(on_cuda(case, case.arrays()), in_place), expected, **loose(backend))


# ---- making and moving tensors


def test_factories() -> None:
    for t in (
        tj.zeros(2, device="cuda"),
        tj.ones(2, device="cuda:0"),
        tj.full((2,), 3.0, device=tj.device("cuda", 0)),
        tj.tensor([1, 2], device="cuda"),
        tj.as_tensor([1, 2], device="cuda"),
        tj.Tensor([1.0, 2.0], device="cuda"),
        tj.zeros(2, device="cuda").new_ones(2),
    ):
        assert t.is_cuda
        assert t.device == tj.device("cuda:0")
        assert str(t.device) == "cuda:0"


def test_the_default_device() -> None:
    tj.set_default_device("cuda")
    assert tj.zeros(2).is_cuda and tj.tensor(1.0).is_cuda
    assert not tj.zeros(2, device="cpu").is_cuda


def test_there_and_back() -> None:
    x = tj.tensor([[1.0, 2.0], [3.0, 4.0]])
    y = x.cuda()
    assert y.is_cuda and not y.cpu().is_cuda
    assert y.cpu().tolist() == y.tolist() == x.tolist()
    assert y.to("cuda") is y and x.to("cpu") is x
    assert y.to("cpu", tj.float64).dtype == tj.float64
    assert x.to(y).is_cuda
    assert y[0, 1].item() == 2 and float(y.sum()) == 10 and bool(y.sum() > 1)


def test_gradients_travel() -> None:
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    (x.cuda() * 3).sum().cpu().backward()
    assert not x.grad.is_cuda and x.grad.tolist() == [3, 3]


def test_values_are_not_handed_out_without_a_word() -> None:
    x = tj.ones(2, device="cuda")
    with pytest.raises(TypeError, match=r"Tensor\.cpu"):
        x.numpy()
    with pytest.raises(TypeError, match=r"Tensor\.cpu"):
        np.asarray(x)


def test_views_and_in_place_writes_share_memory() -> None:
    x = tj.zeros(2, 3, device="cuda")
    row = x[1]
    row += 1
    x.T[0] = 5
    assert x.tolist() == [[5, 0, 0], [5, 1, 1]]
    assert row.data_ptr() == x.data_ptr() + 3 * x.element_size()
    x[:, 1:] = x[:, :-1]
    assert x.tolist() == [[5, 5, 0], [5, 5, 1]]


def test_in_place_under_autograd() -> None:
    x = tj.ones(3, device="cuda", requires_grad=True)
    y = x * 2
    y[1:] *= 3
    y.exp_()
    y.sum().backward()
    np.testing.assert_allclose(value(x.grad), np.array([2, 6, 6]) * np.exp([2, 6, 6]), rtol=1e-6)


def test_training_step() -> None:
    tj.manual_seed(0)
    w = tj.randn(3, 2, device="cuda", requires_grad=True)
    x = tj.randn(5, 3, device="cuda")
    losses = []
    for _ in range(5):
        loss = ((x @ w).tanh() - 1).square().mean()
        loss.backward()
        with tj.no_grad():
            w -= 0.5 * w.grad
            w.grad.zero_()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_random_numbers_are_those_of_the_cpu() -> None:
    tj.manual_seed(3)
    here = tj.rand(7)
    tj.manual_seed(3)
    there = tj.rand(7, device="cuda")
    assert there.is_cuda and there.tolist() == here.tolist()


# ---- mixing


@pytest.mark.parametrize(
    "operation",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b.T,
        lambda a, b: a.add_(b),
        lambda a, b: tj.cat([a, b]),
        lambda a, b: tj.where(a > 0, a, b),
        lambda a, b: tj.maximum(b, a),
    ],
)
def test_mixing_devices_is_an_error_that_names_both(operation: Any) -> None:
    a, b = tj.ones(2, 2, device="cuda"), tj.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"two devices.*(cuda:0.*cpu|cpu.*cuda:0)"):
        operation(a, b)
    with pytest.raises(RuntimeError, match=r"two devices.*(cuda:0.*cpu|cpu.*cuda:0)"):
        operation(b, a)
    assert a.tolist() == b.tolist() == [[1, 1], [1, 1]]


def test_numbers_on_the_cpu_mix_with_anything() -> None:
    """A 0-dim CPU tensor is a number with a dtype."""
    x, number = tj.ones(2, device="cuda"), tj.tensor(3.0, requires_grad=True)
    y = x * number
    assert y.is_cuda and y.tolist() == [3, 3]
    assert (number - x).is_cuda
    y.sum().backward()
    assert not number.grad.is_cuda and number.grad.item() == 2
    x += tj.tensor(1)
    x[0] = tj.tensor(7.0)
    assert x.tolist() == [7, 2]
    with pytest.raises(RuntimeError, match="two devices"):
        tj.ones(2) + tj.tensor(1.0, device="cuda")


# ---- several GPUs; only the stand-in is sure to have two


@pytest.fixture
def two(backend: str) -> None:
    if devices.cuda_device_count() < 2:
        pytest.skip("one GPU")


@pytest.mark.usefixtures("two")
def test_work_happens_where_the_tensors_are() -> None:
    x = tj.tensor([1.0, 2.0], device="cuda:1", requires_grad=True)
    y = (x * 2).exp().sum()
    assert y.device == tj.device("cuda:1")
    y.backward()
    assert x.grad.device == tj.device("cuda:1")
    with tj.no_grad():
        x -= 0.1 * x.grad
        x[0] = 5.0
        x[1:].copy_(tj.zeros(1))
    assert x.device == tj.device("cuda:1") and x.tolist() == [5, 0]


@pytest.mark.usefixtures("two")
def test_from_one_gpu_to_another() -> None:
    x = tj.ones(2, device="cuda:0", requires_grad=True)
    y = x.to("cuda:1") * 3
    assert y.device == tj.device("cuda:1")
    y.sum().backward()
    assert x.grad.device == tj.device("cuda:0") and x.grad.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cuda:1"):
        x + y


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(RuntimeError, match="cuda:99"):
        tj.zeros(2, device="cuda:99")


# ---- without a GPU


@pytest.mark.skipif(GPUS > 0, reason="this machine has a GPU")
def test_without_a_gpu_one_sentence_says_so() -> None:
    devices.use_cuda_module(None)
    for call in (lambda: tj.zeros(2, device="cuda"), lambda: tj.ones(2).cuda()):
        with pytest.raises(RuntimeError, match="no NVIDIA driver"):
            call()


def test_assignment_between_views_of_one_tensor() -> None:
    x = tj.arange(6.0, device="cuda").reshape(3, 2)
    x[:2] = x[1:]
    assert x.tolist() == [[2, 3], [4, 5], [4, 5]]
    x[1:] = x[:2]
    assert x.tolist() == [[2, 3], [2, 3], [4, 5]]


def test_asking_for_a_gpu_is_quick() -> None:
    cuda = pytest.importorskip("tapejit.cuda", reason="there is no tapejit.cuda yet")
    cuda.is_available()
    start = time.perf_counter()
    for _ in range(100):
        cuda.is_available()
    assert (time.perf_counter() - start) / 100 < 1e-3
