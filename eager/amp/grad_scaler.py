"""`GradScaler`: the loss times a large number, so that small gradients do not vanish in float16.

Gradients are divided by that number again before the step. If one of them has overflowed, the step is left out and the
number becomes smaller; after many good steps it becomes larger.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any

from .. import cuda
from ..arrays import dtypes
from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tape.grad_mode import no_grad
from ..core.tensor import Tensor
from ..ops.create import full
from ..ops.pointwise import isfinite
from ..optim.optimizer import Optimizer
from ..optim.update_kernels import run_update


def run_unscale(xp: Any, g: Any, found: Any, inverse: float) -> None:
    def kernel(g: Any) -> None:
        xp.maximum(found, xp.logical_not(xp.isfinite(g).all()), out=found)
        xp.multiply(g, inverse, out=g)

    run_update(kernel, (g,), (0,))


def expand_unscale(g: Tensor, found: Tensor, inverse: float) -> None:
    found.copy_(found.maximum((~isfinite(g)).any().to(found.dtype)))
    g.mul_(inverse)


# Divides a gradient by the scale, and sets `found` to 1 if one of its elements is not finite.
UNSCALE_UPDATE = primitive("unscale_update", "composite", run_unscale, expand=expand_unscale, upcast=False, mutates=(0, 1))


class OptState(Enum):
    """The stage of an optimizer within an iteration."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _fresh() -> dict[str, Any]:
    return {"stage": OptState.READY, "found_inf_per_device": {}}


class GradScaler:
    """`scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()`."""

    _scale: Tensor | None
    _growth_tracker: Tensor | None
    _per_optimizer_states: dict[int, dict[str, Any]]

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if enabled and device == "cuda" and not cuda.is_available():
            warnings.warn("GradScaler is enabled, but CUDA is not available. Disabling.", UserWarning, stacklevel=2)
            self._enabled = False
        if not self._enabled:
            return
        if growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._init_scale = init_scale
        self._scale = None  # made where the first loss is
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._init_growth_tracker = 0
        self._growth_tracker = None
        self._per_optimizer_states = defaultdict(_fresh)

    # ---- an iteration

    def scale(self, outputs: Any) -> Any:
        """A loss, or an iterable of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._begin(outputs.device)
            assert self._scale is not None
            return outputs * self._scale.to(outputs.device)
        if not isinstance(outputs, Iterable):
            raise ValueError("outputs must be a Tensor or an iterable of Tensors")
        scaled = (self.scale(value) for value in outputs)
        return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled  # type: ignore[call-arg]

    def _begin(self, device: Any) -> None:
        self._scale = full((), self._init_scale, dtype=dtypes.float32, device=device)
        self._growth_tracker = full((), self._init_growth_tracker, dtype=dtypes.int32, device=device)

    def _begun(self, what: str) -> tuple[Tensor, Tensor]:
        if self._scale is None or self._growth_tracker is None:
            raise AssertionError(
                f"Attempted {what} but _scale is None.  This may indicate your script did not use scaler.scale(loss or "
                "outputs) earlier in the iteration."
            )
        return self._scale, self._growth_tracker

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, once an iteration: before clipping them, for one."""
        if not self._enabled:
            return
        scale, _ = self._begun("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, 1.0 / scale.item())
        state["stage"] = OptState.UNSCALED

    @no_grad()
    def _unscale_grads_(self, optimizer: Optimizer, inverse: float) -> dict[Any, Tensor]:
        """For each device, whether gradients there overflowed."""
        found: dict[Any, Tensor] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                gradient = p.tj_grad
                if gradient is None:
                    continue
                if gradient.dtype is dtypes.float16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                device = gradient.device
                if device not in found:
                    found[device] = full((), 0.0, dtype=dtypes.float32, device=device)
                apply(UNSCALE_UPDATE, (gradient, found[device], inverse))
        return found

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients, unless that is done, and call `optimizer.step(...)` if all of them are finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._begun("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        found = state["found_inf_per_device"]
        if not found:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        value = None if any(t.item() for t in found.values()) else optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return value

    @no_grad()
    def update(self, new_scale: Any = None) -> None:
        """Adapt the scale, at the end of an iteration, or set it to `new_scale`."""
        if not self._enabled:
            return
        scale, tracker = self._begun("update")
        if new_scale is not None:
            self._set(scale, new_scale)
        else:
            found = [t for state in self._per_optimizer_states.values() for t in state["found_inf_per_device"].values()]
            if not found:
                raise AssertionError("No inf checks were recorded prior to update.")
            self._adapt(scale, tracker, any(t.item() for t in found))
        self._per_optimizer_states = defaultdict(_fresh)

    def _set(self, scale: Tensor, new_scale: Any) -> None:
        if isinstance(new_scale, float):
            scale.fill_(new_scale)
            return
        if new_scale.device.type != self._device or new_scale.numel() != 1 or new_scale.requires_grad:
            raise AssertionError(
                f"new_scale should be a float or a 1-element FloatTensor on {self._device} with requires_grad=False."
            )
        scale.copy_(new_scale.reshape(()))

    def _adapt(self, scale: Tensor, tracker: Tensor, overflowed: bool) -> None:
        if overflowed:
            scale.mul_(self._backoff_factor)
            tracker.zero_()
        elif tracker.item() + 1 == self._growth_interval:
            grown = scale * self._growth_factor
            if math.isfinite(grown.item()):
                scale.copy_(grown)
            tracker.zero_()
        else:
            tracker.add_(1)

    # ---- settings

    def get_scale(self) -> float:
        """The scale; 1.0 if scaling is disabled."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else float(self._scale.item())

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        return self._init_growth_tracker if self._growth_tracker is None else int(self._growth_tracker.item())

    def get_growth_factor(self) -> float:
        """The factor on the scale after `growth_interval` steps without overflow."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by after many good steps."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor on the scale after an overflow."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by after an overflow."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of consecutive steps without overflow after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set how many good steps in a row make the scale grow."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """True if this scaler does anything."""
        return self._enabled

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and count of good steps; empty if disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._init_scale = state_dict["scale"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        if self._scale is not None and self._growth_tracker is not None:
            self._scale.fill_(self._init_scale)
            self._growth_tracker.fill_(self._init_growth_tracker)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._enabled:
            if self._per_optimizer_states:
                raise AssertionError(
                    "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
                    "scaler.update()."
                )
            state.update(_init_scale=self.get_scale(), _init_growth_tracker=self._get_growth_tracker())
            state.update(_scale=None, _growth_tracker=None)
        return state
