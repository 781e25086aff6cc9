"""Overflow, 0/0 and their like are silent, as in PyTorch, whichever function of NumPy they happen in.

The package hushes warnings that are raised by its own lines. Those that NumPy raises in its own name (`x.sum()` is Python
code of NumPy's) pass that filter, so kernels call the ufuncs themselves; every op is held to it here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.harness import ALL, floats

EXTREMES = {
    "infinite": [np.inf, -np.inf, 1.0],
    "everything": [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e308, -1e308, 1e-310],
    "huge": [1e308, -1e308, 1.7e308],
    "zero": [0.0],
}


@contextmanager
def strict() -> Iterator[None]:
    """Warnings are errors, but for those that the package itself hushes when it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"tapejit\.")
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


@pytest.mark.parametrize("key", sorted({case.key for case in ALL}))
def test_no_op_warns_of_what_numbers_do(key: str) -> None:
    random = np.random.default_rng(0)
    for case in (c for c in ALL if c.key == key):
        for values in EXTREMES.values():
            drawn = [random.choice(values, a.shape) if a.dtype.kind == "f" else a for a in case.arrays()]
            inputs = [tj.from_numpy(np.array(a)) for a in drawn]
            for i in case.differentiable:
                inputs[i].requires_grad_()
            with strict():
                try:
                    outputs = [t for t in floats(case.call(inputs)) if t.requires_grad]
                    if outputs:
                        tj.autograd.backward([t.sum() for t in outputs])
                except (RuntimeError, ValueError):
                    pass  # some ops refuse such numbers


LARGER: dict[str, Callable[[tj.Tensor], Any]] = {
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(1),
    "norm": lambda x: x.norm(),
    "cdist": lambda x: tj.cdist(x, x),
    "cross entropy": lambda x: F.cross_entropy(x, tj.arange(64), label_smoothing=0.1),
    "weighted cross entropy": lambda x: F.cross_entropy(x, tj.arange(64), weight=x[0].detach(), label_smoothing=0.1),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], 8),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None], 1),
    "max_norm": lambda x: F.embedding(tj.arange(64), x.detach().clone(), max_norm=1.0),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "to int": lambda x: x.long(),
    "to half": lambda x: x.half(),
    "print": lambda x: repr(x),
}


@pytest.mark.parametrize("name", LARGER)
@pytest.mark.parametrize("kind", EXTREMES)
def test_larger_tensors_do_not_warn_either(name: str, kind: str) -> None:
    x = tj.from_numpy(np.random.default_rng(1).choice(EXTREMES[kind], (64, 64))).requires_grad_()
    with strict():
        found = LARGER[name](x)
        if isinstance(found, tj.Tensor) and found.requires_grad:
            found.sum().backward()


def test_nothing_and_one_element() -> None:
    with strict():
        assert tj.zeros(0).mean().isnan()
        assert tj.zeros(0, 3).std(0).isnan().all()
        assert tj.ones(1).var().isnan()
        assert F.mse_loss(tj.zeros(0), tj.zeros(0)).isnan()
        assert (tj.tensor(2**62) * 4).item() == 0


def test_the_gradient_of_a_step_is_zero_whatever_arrives() -> None:
    for step in (tj.sign, tj.floor, tj.ceil, tj.round, tj.trunc):
        x = tj.tensor([0.5, 1.5], requires_grad=True)
        step(x).backward(tj.tensor([tj.inf, tj.nan]))
        assert x.grad.tolist() == [0, 0]
