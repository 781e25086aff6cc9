"""`tapejit.optim.lr_scheduler`: schedules of the learning rate over epochs or steps.

In: an optimizer, and counts or a metric. Out: its learning rates and momenta, set.
"""

from __future__ import annotations

from .base import LRScheduler
from .composite import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from .cyclic import CyclicLR, OneCycleLR
from .epoch_based import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

_LRScheduler = LRScheduler  # the old name
