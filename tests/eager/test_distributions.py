"""Distributions against closed forms: probabilities, entropies, samples, gradients, shapes and refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import distributions
from tapejit.distributions import Bernoulli, Categorical, Normal, kl_divergence

WEIGHTS = np.random.default_rng(0).uniform(0.1, 1.0, (3, 4))
CHANCES = WEIGHTS / WEIGHTS.sum(1, keepdims=True)


def close(mine: Any, expected: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(mine.detach().numpy(), expected, rtol=tolerance, atol=tolerance)


def test_reachable_as_a_module() -> None:
    import tapejit.distributions as module

    assert module is distributions is tj.distributions


@pytest.mark.parametrize("given", [{"probs": tj.tensor(WEIGHTS)}, {"logits": tj.tensor(np.log(WEIGHTS) + 5)}])
def test_categorical(given: dict[str, tj.Tensor]) -> None:
    d = Categorical(**given)
    close(d.probs, CHANCES)
    close(d.logits, np.log(CHANCES))
    close(d.log_prob(tj.tensor([3, 0, 2])), np.log(CHANCES[[0, 1, 2], [3, 0, 2]]))
    close(d.log_prob(tj.tensor([[1], [2]])), np.log(CHANCES[:, [1, 2]]).T)
    close(d.entropy(), -(CHANCES * np.log(CHANCES)).sum(1))
    close(d.perplexity(), np.exp(-(CHANCES * np.log(CHANCES)).sum(1)))
    close(d.mode, CHANCES.argmax(1))
    assert (d.batch_shape, d.event_shape, d.param_shape) == ((3,), (), (3, 4))
    assert d.mean.isnan().all() and d.variance.isnan().all()
    assert d.enumerate_support().tolist() == [[k] * 3 for k in range(4)]
    assert d.enumerate_support(expand=False).shape == (4, 1)
    close(d.expand((2, 3)).log_prob(tj.tensor(1)), np.log(CHANCES[None, :, 1]).repeat(2, 0))


def test_categorical_samples() -> None:
    tj.manual_seed(3)
    d = Categorical(tj.tensor(WEIGHTS, dtype=tj.float32))
    drawn = d.sample((20000,))
    assert drawn.dtype is tj.int64 and drawn.shape == (20000, 3)
    frequencies = np.stack([np.bincount(column, minlength=4) / 20000 for column in drawn.numpy().T])
    np.testing.assert_allclose(frequencies, CHANCES, atol=0.015)
    assert d.sample().shape == (3,)
    assert Categorical(tj.ones(5)).sample().shape == ()
    assert Categorical(tj.ones(2, 3, 5)).sample((7, 2)).shape == (7, 2, 2, 3)


def test_a_category_that_never_comes() -> None:
    d = Categorical(logits=tj.tensor([0.0, -math.inf, 0.0]))
    close(d.entropy(), math.log(2))
    assert 1 not in d.sample((200,)).tolist()


def test_policy_gradient() -> None:
    """The gradient of log_prob by the logits is one-hot minus probabilities: what REINFORCE steps along."""
    logits = tj.tensor([0.3, -1.0, 2.0], dtype=tj.float64, requires_grad=True)
    d = Categorical(logits=logits)
    d.log_prob(tj.tensor(2)).backward()
    close(logits.grad, np.eye(3)[2] - d.probs.detach().numpy())
    assert not d.sample().requires_grad
    tj.autograd.gradcheck(lambda x: Categorical(logits=x).entropy(), (logits,))


def test_what_is_worked_out_under_no_grad_is_on_the_tape() -> None:
    logits = tj.zeros(3, requires_grad=True)
    d = Categorical(logits=logits)
    with tj.no_grad():
        d.sample()
    assert d.probs.requires_grad


@pytest.mark.parametrize("given", [{"probs": tj.tensor([0.2, 0.9])}, {"logits": tj.tensor([0.2, 0.9]).logit()}])
def test_bernoulli(given: dict[str, tj.Tensor]) -> None:
    p = np.array([0.2, 0.9])
    d = Bernoulli(**given)
    close(d.probs, p)
    close(d.logits, np.log(p / (1 - p)))
    close(d.log_prob(tj.tensor([1.0, 0.0])), np.log([0.2, 0.1]), 1e-5)
    close(d.entropy(), -(p * np.log(p) + (1 - p) * np.log(1 - p)))
    close(d.mean, p)
    close(d.variance, p * (1 - p))
    close(d.stddev, np.sqrt(p * (1 - p)))
    close(d.mode, [0, 1])
    assert d.enumerate_support().tolist() == [[0, 0], [1, 1]]
    tj.manual_seed(0)
    close(d.sample((20000,)).mean(0), p, 0.02)
    assert d.expand((5, 2)).sample().shape == (5, 2)


def test_bernoulli_of_a_number_and_a_tie() -> None:
    assert Bernoulli(0.3).batch_shape == ()
    close(Bernoulli(0.3).log_prob(tj.tensor([1.0, 0.0])), np.log([0.3, 0.7]))
    assert Bernoulli(tj.tensor(0.5)).mode.isnan()


def test_normal() -> None:
    loc, scale = np.array([0.5, -1.0]), np.array([0.7, 2.0])
    d = Normal(tj.tensor(loc), tj.tensor(scale))
    x = np.array([[0.1, 0.2], [1.0, -3.0]])
    density = np.exp(-0.5 * ((x - loc) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
    close(d.log_prob(tj.tensor(x)), np.log(density))
    close(d.entropy(), 0.5 * np.log(2 * math.pi * math.e * scale**2))
    close(d.cdf(tj.tensor(x)), 0.5 * (1 + np.vectorize(math.erf)((x - loc) / scale / math.sqrt(2))))
    close(d.icdf(d.cdf(tj.tensor(x))), x)
    for value, expected in ((d.mean, loc), (d.mode, loc), (d.stddev, scale), (d.variance, scale**2)):
        close(value, expected)
    tj.manual_seed(1)
    drawn = d.sample((20000,)).numpy()
    np.testing.assert_allclose(drawn.mean(0), loc, atol=0.05)
    np.testing.assert_allclose(drawn.std(0), scale, rtol=0.05)


def test_rsample_is_differentiable_and_sample_is_not() -> None:
    loc, scale = tj.zeros(3, requires_grad=True), tj.ones(3, requires_grad=True)
    d = Normal(loc, scale)
    assert not d.sample().requires_grad
    drawn = d.rsample((4,))
    drawn.sum().backward()
    close(loc.grad, np.full(3, 4.0))
    close(scale.grad, drawn.detach().sum(0).numpy(), 1e-5)
    assert Normal.has_rsample and not Categorical.has_rsample


def test_divergences() -> None:
    p, q = CHANCES, CHANCES[::-1].copy()
    close(kl_divergence(Categorical(tj.tensor(p)), Categorical(tj.tensor(q))), (p * np.log(p / q)).sum(1))
    a, b = Normal(1.0, 2.0), Normal(0.0, 1.0)
    close(kl_divergence(a, b), 0.5 * (4 + 1 - 1 - math.log(4)))
    c, d = Bernoulli(tj.tensor([0.2, 0.0])), Bernoulli(tj.tensor([0.5, 0.5]))
    close(kl_divergence(c, d), [0.2 * math.log(0.4) + 0.8 * math.log(1.6), math.log(2)], 1e-5)
    assert kl_divergence(d, c)[1] == math.inf
    with pytest.raises(NotImplementedError, match="Normal and q type Bernoulli"):
        kl_divergence(a, c)


def test_divergence_of_ones_own() -> None:
    class Mine(Normal):
        pass

    distributions.register_kl(Mine, Mine)(lambda p, q: tj.tensor(42.0))
    try:
        assert kl_divergence(Mine(0.0, 1.0), Mine(0.0, 1.0)) == 42
        assert kl_divergence(Normal(0.0, 1.0), Mine(0.0, 1.0)) == 0
    finally:
        del distributions.kl._DIVERGENCES[Mine, Mine]


REFUSALS = [
    (lambda: Categorical(tj.ones(2), tj.ones(2)), "Either `probs` or `logits` must be specified"),
    (lambda: Bernoulli(), "Either `probs` or `logits` must be specified"),
    (lambda: Categorical(tj.tensor(1.0)), "`probs` parameter must be at least one-dimensional"),
    (lambda: Categorical(tj.tensor([-1.0, 3.0])), r"parameter probs \(Tensor of shape \(2,\)\) .* constraint Simplex"),
    (lambda: Categorical(logits=tj.tensor([math.nan, 0.0])), "found invalid values"),
    (lambda: Bernoulli(tj.tensor([1.5])), r"Bernoulli\(probs: tensor\(\[1.5000\]\)\) .* Interval\(lower_bound=0.0"),
    (lambda: Normal(0.0, -1.0), r"scale .* GreaterThan\(lower_bound=0.0\)"),
    (lambda: Normal("0", 1.0), "instances of Number"),
    (lambda: Categorical(tj.ones(3)).log_prob(tj.tensor(3)), r"support \(IntegerInterval\(lower_bound=0, upper_bound=2"),
    (lambda: Categorical(tj.ones(3)).log_prob(1), "must be a Tensor"),
    (lambda: Categorical(tj.ones(3, 2)).log_prob(tj.tensor([0, 1])), "not broadcastable with batch_shape"),
    (lambda: Bernoulli(0.5).log_prob(tj.tensor(0.5)), r"Boolean\(\)"),
]  # fmt: skip


@pytest.mark.parametrize(("action", "sentence"), REFUSALS)
def test_refusals(action: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        action()


def test_checks_can_be_left_out() -> None:
    assert Normal(0.0, -1.0, validate_args=False).scale == -1
    distributions.Distribution.set_default_validate_args(False)
    try:
        Normal(0.0, -1.0)
    finally:
        distributions.Distribution.set_default_validate_args(True)


def test_repr() -> None:
    assert repr(Categorical(tj.ones(3))) == "Categorical(probs: tapejit.Size([3]))"
    assert repr(Normal(0.0, 2.0)) == "Normal(loc: 0.0, scale: 2.0)"


def test_samples_of_vectors_have_the_covariance():
    tj.manual_seed(0)
    covariance = tj.tensor([[2.0, 0.6], [0.6, 0.5]])
    d = tj.distributions.MultivariateNormal(tj.tensor([1.0, -2.0]), covariance)
    drawn = d.sample((20000,)).numpy()
    np.testing.assert_allclose(drawn.mean(0), [1, -2], atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), covariance.numpy(), atol=0.05)
    same = tj.distributions.MultivariateNormal(d.loc, precision_matrix=covariance.inverse())
    np.testing.assert_allclose(same.covariance_matrix.numpy(), covariance.numpy(), rtol=1e-4)
    assert tj.distributions.kl_divergence(d, same).abs() < 1e-4


def test_samples_of_more_distributions():
    tj.manual_seed(0)
    D = tj.distributions
    for d in (D.Uniform(-1.0, 3.0), D.Exponential(2.0), D.Laplace(0.5, 1.5)):
        drawn = d.sample((40000,))
        assert tj.isfinite(drawn).all() and d.support.check(drawn).all()
        np.testing.assert_allclose(drawn.mean().item(), d.mean.item(), atol=0.04)
        np.testing.assert_allclose(drawn.var().item(), d.variance.item(), rtol=0.06)
        np.testing.assert_allclose(d.icdf(d.cdf(drawn[:9])).numpy(), drawn[:9].numpy(), rtol=2e-3, atol=1e-3)
    base = D.Normal(tj.zeros(3, 4), tj.ones(3, 4))
    joined = D.Independent(base, 1)
    assert joined.batch_shape == (3,) and joined.event_shape == (4,)
    x = joined.rsample()
    np.testing.assert_allclose(joined.log_prob(x).numpy(), base.log_prob(x).sum(-1).numpy(), rtol=1e-6)


def test_pytorch_s_files_can_be_imported() -> None:
    from tapejit.distributions.categorical import Categorical as Same
    from tapejit.distributions.kl import kl_divergence as divergence
    from tapejit.distributions.normal import Normal as Bell

    assert Same is Categorical and Bell is Normal and divergence is kl_divergence
    assert tj.distributions.normal.Normal(0.0, 1.0).sample().shape == () and Bernoulli(0.5).sample().item() in (0, 1)
