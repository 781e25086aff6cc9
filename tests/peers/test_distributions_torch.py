"""Distributions against PyTorch's: the same attributes, values, gradients, shapes, reprs and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from peers.common import assert_alike

RNG = np.random.default_rng(0)
WEIGHTS, OTHERS = (RNG.uniform(0.1, 1, (3, 4)).astype(np.float32) for _ in range(2))
REALS = RNG.normal(size=(3, 4)).astype(np.float32)
ZEROS = np.array([[0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]], np.float32)

MAKERS: dict[str, Callable[[Any], Any]] = {
    "categorical of probs": lambda lib: lib.distributions.Categorical(lib.tensor(WEIGHTS)),
    "categorical of logits": lambda lib: lib.distributions.Categorical(logits=lib.tensor(REALS)),
    "bernoulli of probs": lambda lib: lib.distributions.Bernoulli(lib.tensor(WEIGHTS)),
    "bernoulli of logits": lambda lib: lib.distributions.Bernoulli(logits=lib.tensor(REALS)),
    "bernoulli of a number": lambda lib: lib.distributions.Bernoulli(0.3),
    "normal": lambda lib: lib.distributions.Normal(lib.tensor(REALS), lib.tensor(WEIGHTS)),
    "normal of numbers": lambda lib: lib.distributions.Normal(0, 2.0),
}
ATTRIBUTES = ("probs", "logits", "loc", "scale", "mean", "mode", "variance", "stddev")
SHAPES = ("batch_shape", "event_shape", "param_shape")


@pytest.mark.parametrize("name", MAKERS)
def test_attributes(name: str) -> None:
    mine, theirs = MAKERS[name](tj), MAKERS[name](torch)
    for attribute in ATTRIBUTES:
        assert hasattr(mine, attribute) == hasattr(theirs, attribute), attribute
        if hasattr(theirs, attribute):
            assert_alike(getattr(mine, attribute), getattr(theirs, attribute), 1e-5, 1e-6)
    for attribute in SHAPES:
        assert tuple(getattr(mine, attribute, ())) == tuple(getattr(theirs, attribute, ()))
    assert_alike(mine.entropy(), theirs.entropy(), 1e-5, 1e-6)
    assert_alike(mine.perplexity(), theirs.perplexity(), 1e-5, 1e-6)
    assert repr(mine).replace("tapejit", "torch") == repr(theirs)
    for sample_shape in ((), (2, 5)):
        assert mine.sample(sample_shape).shape == theirs.sample(sample_shape).shape
        assert str(mine.sample().dtype).split(".")[1] == str(theirs.sample().dtype).split(".")[1]
    if theirs.has_enumerate_support:
        for expand in (True, False):
            assert_alike(mine.enumerate_support(expand), theirs.enumerate_support(expand), 0, 0)
    larger = (2, *theirs.batch_shape)
    assert_alike(mine.expand(larger).entropy(), theirs.expand(larger).entropy(), 1e-5, 1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_log_prob_and_its_gradient(name: str) -> None:
    results = []
    for lib in (tj, torch):
        parameter = lib.tensor(REALS if "logits" in name else WEIGHTS, requires_grad=True)
        D = lib.distributions
        kind, value = {
            "c": (D.Categorical, lib.tensor([0, 3, 1])),
            "b": (D.Bernoulli, lib.tensor(ZEROS)),
            "n": (D.Normal, lib.tensor(OTHERS)),
        }[name[0]]
        d = (
            kind(parameter, parameter * 2)
            if kind is D.Normal
            else kind(**{"logits" if "logits" in name else "probs": parameter})
        )
        found = d.log_prob(value)
        (found.sum() + d.entropy().sum()).backward()
        results.append((found.detach(), parameter.grad))
    assert_alike(results[0], results[1], 1e-5, 1e-5)


@pytest.mark.parametrize("pair", [(WEIGHTS, OTHERS), (ZEROS, OTHERS), (WEIGHTS, ZEROS)])
def test_divergences(pair: tuple[Any, Any]) -> None:
    for kind in ("Categorical", "Bernoulli"):
        found = []
        for lib in (tj, torch):
            p, q = (getattr(lib.distributions, kind)(lib.tensor(a)) for a in pair)
            found.append(lib.distributions.kl_divergence(p, q))
        assert_alike(found[0], found[1], 1e-4, 1e-6)


def test_functions_of_normal() -> None:
    mine, theirs = MAKERS["normal"](tj), MAKERS["normal"](torch)
    for method in ("cdf", "icdf", "log_prob"):
        assert_alike(getattr(mine, method)(tj.tensor(OTHERS)), getattr(theirs, method)(torch.tensor(OTHERS)), 1e-4, 1e-5)


REFUSALS: list[Callable[[Any], Any]] = [
    lambda lib: lib.distributions.Categorical(),
    lambda lib: lib.distributions.Categorical(lib.ones(2), lib.ones(2)),
    lambda lib: lib.distributions.Categorical(lib.tensor(1.0)),
    lambda lib: lib.distributions.Categorical(lib.tensor([-1.0, 2.0])),
    lambda lib: lib.distributions.Categorical(logits=lib.tensor([math.nan, 1.0])),
    lambda lib: lib.distributions.Categorical(lib.ones(3)).log_prob(lib.tensor(3)),
    lambda lib: lib.distributions.Categorical(lib.ones(3)).log_prob(1),
    lambda lib: lib.distributions.Categorical(lib.ones(3, 2)).log_prob(lib.tensor([0, 1])),
    lambda lib: lib.distributions.Bernoulli(lib.tensor([1.5, 0.0])),
    lambda lib: lib.distributions.Bernoulli(0.5).log_prob(lib.tensor(0.5)),
    lambda lib: lib.distributions.Normal(0.0, -1.0),
    lambda lib: lib.distributions.Normal(0.0, 1.0).log_prob(lib.tensor(math.nan)),
]


@pytest.mark.parametrize("action", REFUSALS)
def test_refusals(action: Callable[[Any], Any]) -> None:
    sentences = []
    for lib in (tj, torch):
        with pytest.raises(ValueError) as error:
            action(lib)
        sentences.append(str(error.value).replace("tapejit", "torch"))
    assert sentences[0] == sentences[1]
