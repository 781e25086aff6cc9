"""`tapejit.cuda.amp`: the old names of autocast and GradScaler for GPUs."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from .. import cuda
from ..arrays import dtypes
from . import autocast_mode, grad_scaler

__all__ = ["GradScaler", "amp_definitely_not_available", "autocast", "custom_bwd", "custom_fwd"]


def _deprecated(name: str) -> None:
    warnings.warn(
        f"`tapejit.cuda.amp.{name}(args...)` is deprecated. Please use `tapejit.amp.{name}('cuda', args...)` instead.",
        FutureWarning,
        stacklevel=3,
    )


def amp_definitely_not_available() -> bool:
    """True if there is no GPU to use mixed precision on."""
    return not cuda.is_available()


class autocast(autocast_mode.autocast):  # noqa: N801
    """`tapejit.amp.autocast("cuda", ...)`."""

    def __init__(self, enabled: bool = True, dtype: dtypes.dtype = dtypes.float16, cache_enabled: bool = True) -> None:
        _deprecated("autocast")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(grad_scaler.GradScaler):
    """`tapejit.amp.GradScaler("cuda", ...)`."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _deprecated("GradScaler")
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd: Any = functools.partial(autocast_mode.custom_fwd, device_type="cuda")
custom_bwd: Any = functools.partial(autocast_mode.custom_bwd, device_type="cuda")
