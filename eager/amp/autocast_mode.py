"""`autocast`: a context or a decorator in which matmuls run in low precision and delicate ops in float32.

The lists of ops and the casting are in `eager/core/autocast.py`.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

from .. import cuda
from ..arrays import dtypes
from ..core.autocast import AutocastSetting, install_setting, restore_setting, using_setting
from ..core.structure.pytree import map_leaves
from ..core.tape.node import local
from ..core.tensor import Tensor

KINDS = ("cpu", "cuda")
DEFAULTS = {"cpu": dtypes.bfloat16, "cuda": dtypes.float16}


def is_autocast_available(device_type: str) -> bool:
    """True if there is an autocast for a kind of device: "cpu" or "cuda"."""
    return device_type in KINDS


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """True if this thread is inside an enabled autocast for a kind of device; for "cuda" if none is given."""
    setting = local.state.autocast
    return setting is not None and (device_type or "cuda") in setting.low


def get_autocast_dtype(device_type: str) -> dtypes.dtype:
    """The low precision that autocast uses, or would use, on a kind of device."""
    if not is_autocast_available(device_type):
        raise RuntimeError(f"unsupported scalarType for autocast on device_type '{device_type}'")
    setting = local.state.autocast
    return DEFAULTS[device_type] if setting is None else setting.low.get(device_type, DEFAULTS[device_type])


def is_autocast_cache_enabled() -> bool:
    """True if weights are cast once for all ops of a region."""
    setting = local.state.autocast
    return True if setting is None else setting.caching


def clear_autocast_cache() -> None:
    """Forget the weights cast so far."""
    if local.state.autocast is not None:
        local.state.autocast.cache.clear()


class autocast:  # noqa: N801 -- PyTorch's spelling
    """Run ops of a kind of device ("cpu", "cuda"; both if none is given) in the dtype that suits each.

    Matmuls, convolutions and attention run in `dtype`, losses and what needs range or precision in float32. Wrap the
    forward pass and the loss, not the backward pass.
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: dtypes.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type is not None and not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if device_type is not None and not is_autocast_available(device_type):
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        self.device = device_type
        kinds = KINDS if device_type is None else (device_type,)
        self._low = {kind: get_autocast_dtype(kind) if dtype is None else dtype for kind in kinds}
        self.fast_dtype = self._low[kinds[0]]
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else bool(cache_enabled)
        self._enabled = bool(enabled) and self._usable()
        self._before: list[Any] = []

    def _usable(self) -> bool:
        if self.device == "cuda" and not cuda.is_available():
            warnings.warn("CUDA is not available. Disabling autocast.", UserWarning, stacklevel=3)
            return False
        supported = (dtypes.bfloat16, dtypes.float16)
        if self.fast_dtype not in supported:
            name = (self.device or "any").upper()
            warnings.warn(
                f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n{name} Autocast only "
                f"supports dtypes of {', '.join(map(str, supported))} currently.",
                UserWarning,
                stacklevel=3,
            )
            return False
        return True

    def __enter__(self) -> autocast:
        outer = local.state.autocast
        low = {} if outer is None else dict(outer.low)
        for kind, dtype in self._low.items():
            if self._enabled:
                low[kind] = dtype
            else:
                low.pop(kind, None)
        self._before.append(install_setting(local.state, AutocastSetting(low, self._cache_enabled, outer) if low else None))
        return self

    def __exit__(self, *_: object) -> None:
        restore_setting(local.state, self._before.pop())

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. Did you mean to use autocast as a "
                "context manager? For example:\n    with tapejit.autocast(device_type=...):\n        output = model(input)"
            )

        @functools.wraps(func)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return func(*args, **kwargs)

        return decorated

    def _again(self) -> autocast:
        """The same for one call: there may be calls in several threads."""
        twin = copy.copy(self)
        twin._before = []
        return twin


# ---- custom autograd functions


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: dtypes.dtype | None = None
) -> Callable[..., Any]:
    """Decorates the `forward` of a custom Function: with `cast_inputs`, it runs on inputs of that dtype, autocast off."""
    check_kind(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        enabled = is_autocast_enabled(device_type)
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = enabled and cast_inputs is None
        if not enabled or cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(ctx, *_cast(args, device_type, cast_inputs), **_cast(kwargs, device_type, cast_inputs))

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorates the `backward` of a custom Function: it runs with the autocast that `forward` had."""
    check_kind(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        used = ctx._fwd_used_autocast
        with using_setting(AutocastSetting({device_type: ctx._dtype}, True, None) if used else None):
            return bwd(ctx, *args, **kwargs)

    return decorated


def check_kind(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _cast(value: Any, kind: str, dtype: dtypes.dtype) -> Any:
    """Cast the floating-point tensors of a kind of device, also inside containers; float64 stays."""

    def cast(x: Any) -> Any:
        eligible = isinstance(x, Tensor) and x.is_floating_point() and x.device.type == kind and x.dtype is not dtypes.float64
        return x.to(dtype) if eligible else x

    return map_leaves(cast, value)
