"""`tapejit.distributions`: probability distributions with PyTorch's names, file names and argument checks.

In: tensors of parameters. Out: samples, log-probabilities, entropies and divergences.

A distribution holds tensors of parameters, so that `log_prob`, `entropy` and `rsample` can be differentiated by them. Its
`batch_shape` is the shape of its parameters (without the categories). Arguments are checked, which reads values;
`validate_args=False` leaves that out.
"""

from __future__ import annotations

from .bernoulli import Bernoulli
from .categorical import Categorical
from .distribution import Distribution
from .exponential import Exponential
from .independent import Independent
from .kl import kl_divergence, register_kl
from .laplace import Laplace
from .multivariate_normal import MultivariateNormal
from .normal import Normal
from .uniform import Uniform

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Exponential",
    "Independent",
    "Laplace",
    "MultivariateNormal",
    "Normal",
    "Uniform",
    "kl_divergence",
    "register_kl",
]
