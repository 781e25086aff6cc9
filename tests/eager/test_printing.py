"""Tensors as text, compared with what PyTorch 2 prints (with its name in the place of ours)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import fake_cupy
import pytest
import tapejit as tj
from tapejit.eager.arrays import devices


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    yield
    tj.set_printoptions(profile="default")


def text(s: str) -> str:
    return textwrap.dedent(s).strip("\n")


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (tj.tensor(3), "tensor(3)"),
        (tj.tensor(1.5), "tensor(1.5000)"),
        (tj.tensor(2.0), "tensor(2.)"),
        (tj.tensor(True), "tensor(True)"),
        (tj.tensor([]), "tensor([])"),
        (tj.tensor([], dtype=tj.int64), "tensor([], dtype=tapejit.int64)"),
        (tj.zeros(2, 0), "tensor([], size=(2, 0))"),
        (tj.zeros(0, 3, dtype=tj.bool), "tensor([], size=(0, 3), dtype=tapejit.bool)"),
        (tj.tensor([1, -20, 300]), "tensor([  1, -20, 300])"),
        (tj.tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (tj.tensor([1.0, 2.5]), "tensor([1.0000, 2.5000])"),
        (tj.tensor([-1.0, 0.25]), "tensor([-1.0000,  0.2500])"),
        (tj.tensor([True, False]), "tensor([ True, False])"),
        (tj.tensor([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
        (tj.tensor([1e9, 1.0]), "tensor([1.0000e+09, 1.0000e+00])"),
        (tj.tensor([1000.5, 1.0]), "tensor([1.0005e+03, 1.0000e+00])"),
        (tj.tensor([float("nan"), 1.0]), "tensor([nan, 1.])"),
        (tj.tensor([float("inf"), -float("inf"), 1.5]), "tensor([   inf,   -inf, 1.5000])"),
        (tj.tensor([float("nan")]), "tensor([nan])"),
        (tj.tensor([0.0, 0.0]), "tensor([0., 0.])"),
        (tj.tensor([-0.0]), "tensor([-0.])"),
        (tj.tensor([1, 2], dtype=tj.int32), "tensor([1, 2], dtype=tapejit.int32)"),
        (tj.tensor([1.5], dtype=tj.float64), "tensor([1.5000], dtype=tapejit.float64)"),
        (tj.tensor([1.5], dtype=tj.float16), "tensor([1.5000], dtype=tapejit.float16)"),
        (tj.tensor([1.5, 300], dtype=tj.bfloat16), "tensor([  1.5000, 300.0000], dtype=tapejit.bfloat16)"),
        (tj.tensor([1.5], requires_grad=True), "tensor([1.5000], requires_grad=True)"),
        (tj.tensor([[1.0, 2.0], [3.0, 4.0]]), "tensor([[1., 2.],\n        [3., 4.]])"),
        (tj.arange(6).reshape(2, 3).T, "tensor([[0, 3],\n        [1, 4],\n        [2, 5]])"),
        (tj.arange(4).reshape(2, 1, 2), "tensor([[[0, 1]],\n\n        [[2, 3]]])"),
        (tj.arange(4).reshape(1, 2, 1, 2), "tensor([[[[0, 1]],\n\n         [[2, 3]]]])"),
    ],
)
def test_text(tensor: tj.Tensor, expected: str) -> None:
    assert repr(tensor) == str(tensor) == expected


def test_lines_are_broken() -> None:
    assert repr(tj.arange(30)) == text("""
        tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,
                18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29])
    """)
    x = (tj.arange(8) * 0.123).double().requires_grad_()
    assert repr(x) == text("""
        tensor([0.0000, 0.1230, 0.2460, 0.3690, 0.4920, 0.6150, 0.7380, 0.8610],
               dtype=tapejit.float64, requires_grad=True)
    """)


def test_large_tensors_are_cut() -> None:
    assert repr(tj.arange(1000)).count(",") == 999
    assert repr(tj.arange(1001)) == "tensor([   0,    1,    2,  ...,  998,  999, 1000])"
    assert repr(tj.arange(2000).reshape(20, 100)) == text("""
        tensor([[   0,    1,    2,  ...,   97,   98,   99],
                [ 100,  101,  102,  ...,  197,  198,  199],
                [ 200,  201,  202,  ...,  297,  298,  299],
                ...,
                [1700, 1701, 1702,  ..., 1797, 1798, 1799],
                [1800, 1801, 1802,  ..., 1897, 1898, 1899],
                [1900, 1901, 1902,  ..., 1997, 1998, 1999]])
    """)
    assert repr(tj.zeros(2, 1000)) == text("""
        tensor([[0., 0., 0.,  ..., 0., 0., 0.],
                [0., 0., 0.,  ..., 0., 0., 0.]])
    """)
    hidden = tj.zeros(2000)
    hidden[1000] = 0.5  # what is not shown does not choose the format
    assert repr(hidden) == "tensor([0., 0., 0.,  ..., 0., 0., 0.])"


def test_options() -> None:
    x = tj.tensor([1.23456, 100.0])
    tj.set_printoptions(precision=2)
    assert repr(x) == "tensor([  1.23, 100.00])"
    tj.set_printoptions(sci_mode=True)
    assert repr(x) == "tensor([1.23e+00, 1.00e+02])"
    tj.set_printoptions(profile="default")
    assert repr(x) == "tensor([  1.2346, 100.0000])"
    assert repr(tj.tensor([1e-5])) == "tensor([1.0000e-05])"
    tj.set_printoptions(sci_mode=False)
    assert repr(tj.tensor([1e-5])) == "tensor([0.0000])"
    tj.set_printoptions(profile="default", threshold=5, edgeitems=1)
    assert repr(tj.arange(10)) == "tensor([0,  ..., 9])"
    tj.set_printoptions(profile="full")
    assert "..." not in repr(tj.zeros(2000))
    tj.set_printoptions(profile="default", linewidth=30)
    assert repr(tj.arange(10)) == "tensor([0, 1, 2, 3, 4, 5, 6,\n        7, 8, 9])"
    with tj.printoptions(precision=1):
        assert repr(tj.tensor(1.25)) == "tensor(1.2)"
        assert tj.get_printoptions()["precision"] == 1
    assert tj.get_printoptions()["precision"] == 4
    tj.set_printoptions(threshold=2, edgeitems=0)
    assert repr(tj.arange(5)) == "tensor([...], size=(5,))"
    with pytest.raises(ValueError, match="profile"):
        tj.set_printoptions(profile="loud")


def test_history() -> None:
    x = tj.ones(2, requires_grad=True)
    assert repr(x * 2) == "tensor([2., 2.], grad_fn=<MulBackward0>)"
    with tj.no_grad():
        assert repr(x * 2) == "tensor([2., 2.])"
        assert repr(x) == "tensor([1., 1.], requires_grad=True)"
    y = x * 2
    repr(y)
    y.sum().backward()
    assert x.grad is not None
    assert repr(x.grad) == "tensor([2., 2.])"
    assert y._version == 0


def test_formats() -> None:
    assert f"{tj.tensor(1.5)}" == "1.5"
    assert f"{tj.tensor(2.567, requires_grad=True) * 1:.2f}" == "2.57"
    assert f"{tj.tensor(7):03d}" == "007"
    assert f"{tj.tensor([1.5])}" == "tensor([1.5000])"
    with pytest.raises(TypeError):
        f"{tj.tensor([1.5]):.2f}"


def test_subclasses_say_their_name() -> None:
    class Weight(tj.Tensor):
        pass

    assert repr(Weight([1.0, 2.0])) == "Weight([1., 2.])"


def test_devices_are_named() -> None:
    before = devices.use_cuda_module(fake_cupy)
    try:
        assert repr(tj.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"
        large = tj.arange(2000.0, device="cuda:1").to(tj.float64)
        assert repr(large) == text("""
            tensor([0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 1.9970e+03, 1.9980e+03,
                    1.9990e+03], device='cuda:1', dtype=tapejit.float64)
        """)
    finally:
        devices.use_cuda_module(before)
