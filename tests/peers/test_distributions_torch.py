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


COVARIANCE = (REALS @ REALS.T + 2 * np.eye(3)).astype(np.float32)
MORE: dict[str, Callable[[Any, Any, Any], Any]] = {  # of two parameters, a of any sign and b above 0, both [3, 4]
    "uniform": lambda lib, a, b: lib.distributions.Uniform(a - 3, a + b + 3),
    "exponential": lambda lib, a, b: lib.distributions.Exponential(b),
    "laplace": lambda lib, a, b: lib.distributions.Laplace(a, b),
    "independent": lambda lib, a, b: lib.distributions.Independent(lib.distributions.Normal(a, b), 1),
    "independent, both dims": lambda lib, a, b: lib.distributions.Independent(lib.distributions.Laplace(a, b), 2),
    "vectors": lambda lib, a, b: lib.distributions.MultivariateNormal(a.T, lib.tensor(COVARIANCE) * b[0, 0]),
    "vectors by precision": lambda lib, a, b: lib.distributions.MultivariateNormal(
        a[:, 0], precision_matrix=lib.tensor(COVARIANCE) * b[0, 0]
    ),
    "vectors by factor": lambda lib, a, b: lib.distributions.MultivariateNormal(a, scale_tril=lib.diag_embed(b)),
}


def more(lib: Any, name: str, a: Any, b: Any) -> Any:
    return MORE[name](lib, a, b)


@pytest.mark.parametrize("name", MORE)
def test_more_distributions(name: str) -> None:
    results, shapes = [], []
    for lib in (tj, torch):
        a, b = (lib.tensor(x, requires_grad=True) for x in (REALS, WEIGHTS))
        d, other = more(lib, name, a, b), more(lib, name, lib.tensor(OTHERS), lib.tensor(OTHERS) * 2)
        text = repr(d).replace("tapejit", "torch")
        shape = tuple(d.batch_shape + d.event_shape)
        value = lib.tensor(np.resize(OTHERS, shape))
        found = [d.log_prob(value), d.entropy(), d.mean, d.variance, d.stddev]
        found += [d.expand((2, *d.batch_shape)).log_prob(value)]
        for method in ("cdf", "icdf"):
            if name in ("uniform", "exponential", "laplace"):
                found.append(getattr(d, method)(value))
        for matrix in ("covariance_matrix", "precision_matrix", "scale_tril"):
            if hasattr(d, matrix):
                found.append(getattr(d, matrix))
        if name != "uniform":
            found.append(lib.distributions.kl_divergence(d, other))
        sum(x.sum() for x in found).backward()
        gradients = [x.grad if x.grad is not None else lib.zeros(1) for x in (a, b)]
        results.append([x.detach() for x in found] + gradients)
        drawn = d.rsample((5,))
        shapes.append((text, tuple(drawn.shape), drawn.requires_grad, d.sample().requires_grad, d.has_rsample, shape))
    assert_alike(results[0], results[1], 1e-3, 1e-4)
    assert shapes[0] == shapes[1]


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
    lambda lib: lib.distributions.Uniform(1.0, 0.0),
    lambda lib: lib.distributions.Exponential(-1.0),
    lambda lib: lib.distributions.Exponential(1.0).log_prob(lib.tensor(-1.0)),
    lambda lib: lib.distributions.MultivariateNormal(lib.zeros(2)),
    lambda lib: lib.distributions.MultivariateNormal(lib.zeros(2), lib.tensor([[1.0, 2.0], [2.0, 1.0]])),
    lambda lib: lib.distributions.Independent(lib.distributions.Normal(0.0, 1.0), 1),
]


@pytest.mark.parametrize("action", REFUSALS)
def test_refusals(action: Callable[[Any], Any]) -> None:
    sentences = []
    for lib in (tj, torch):
        with pytest.raises(ValueError) as error:
            action(lib)
        sentences.append(str(error.value).replace("tapejit", "torch"))
    assert sentences[0] == sentences[1]
