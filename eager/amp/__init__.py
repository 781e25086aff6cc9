"""`tapejit.amp`: mixed precision. `autocast` chooses each op's dtype, `GradScaler` keeps small gradients from vanishing.

In: a block of code, or a loss and an optimizer. Out: op calls in 16 bits, scaled gradients.
"""

from . import autocast_mode, cuda, grad_scaler
from .autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from .grad_scaler import GradScaler

__all__ = [
    "GradScaler",
    "autocast",
    "autocast_mode",
    "cuda",
    "custom_bwd",
    "custom_fwd",
    "grad_scaler",
    "is_autocast_available",
]
