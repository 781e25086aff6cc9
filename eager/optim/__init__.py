"""`tapejit.optim`: optimizers with PyTorch's names, defaults and state."""

from .adam import Adam, AdamW
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
