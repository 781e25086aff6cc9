"""The base class of learning-rate schedulers: counting epochs, writing rates into the groups, saving.

Attributes are named as PyTorch names them, because a scheduler's `state_dict` is its attributes. A scheduler computes a
rate either from the last one (`get_lr`, so that several schedulers can work on one optimizer) or at once for an epoch
(`_get_closed_form_lr`); the arithmetic is PyTorch's to the last bit.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...core.tensor import Tensor
from ..optimizer import Optimizer, as_number

EPOCH_WARNING = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. Please use "
    "`scheduler.step()` to step the scheduler. During the deprecation, if epoch is different from None, the closed form is "
    "used instead of the new chainable form, where available."
)
ORDER_WARNING = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. You should call them in the opposite order: "
    "`optimizer.step()` before `lr_scheduler.step()`. Failure to do this will result in skipping the first value of the "
    "learning rate schedule."
)
OVERRIDDEN_WARNING = (
    "Seems like `optimizer.step()` has been overridden after learning rate scheduler initialization. Please, make sure to "
    "call `optimizer.step()` before `lr_scheduler.step()`."
)
Rates = list[Any]  # one for each group: numbers, or 0-dim tensors


def check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def values_of(optimizer: Optimizer, key: str) -> Rates:
    """A setting of each group; tensors as copies."""
    return [copied(group[key]) for group in optimizer.param_groups]


def set_value(group: dict[str, Any], key: str, value: Any) -> None:
    """Change a setting; one that is a tensor keeps being the same tensor."""
    if isinstance(group[key], Tensor):
        group[key].fill_(as_number(value))
    else:
        group[key] = value


def for_each_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One value for each group: the list given, or the same for all."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [copied(value) for _ in range(count)]
    if len(value) != count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, param_groups has "
            f"{count}."
        )
    return [copied(v) for v in value]


class LRScheduler:
    """Base class: subclasses define `get_lr`, and may define `_get_closed_form_lr`."""

    optimizer: Optimizer
    base_lrs: Rates
    last_epoch: int
    _last_lr: Rates
    _step_count: int
    _get_lr_called_within_step = False
    _is_initial = False
    _not_saved: tuple[str, ...] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with last_epoch >= 0: "
                    "load the optimizer's state first, or leave last_epoch at -1 for a fresh run"
                )
        self.base_lrs = values_of(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        optimizer._now_scheduled()
        self._initial_step()

    def _initial_step(self) -> None:
        """Set the rates of the first epoch."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_last_lr(self) -> Rates:
        """The rates that the last step set."""
        return self._last_lr

    def get_lr(self) -> Rates:
        """The rates of this epoch, from those of the last one."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr()")

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, after the optimizer's steps of this one."""
        if self._step_count == 1:
            if not hasattr(self.optimizer.step, "hooked"):
                warnings.warn(OVERRIDDEN_WARNING, UserWarning, stacklevel=2)
            elif not self.optimizer._opt_called:
                warnings.warn(ORDER_WARNING, UserWarning, stacklevel=2)
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_WARNING, UserWarning, stacklevel=2)
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        with self._inside_step():
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            closed_form = getattr(self, "_get_closed_form_lr", None)
            self._set_rates(self.get_lr() if epoch is None or closed_form is None else closed_form())

    @contextmanager
    def _inside_step(self) -> Iterator[None]:
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _set_rates(self, rates: Rates) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_value(group, "lr", rate)
        self._last_lr = self._rates()

    # ---- for `get_lr`

    def _warn_outside(self) -> None:
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def _rates(self) -> Rates:
        """The groups' rates as they are."""
        return values_of(self.optimizer, "lr")

    def _scaled(self, factor: float) -> Rates:
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key not in self._not_saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        self.__dict__.update(state_dict)


def callable_state(function: Any) -> dict[str, Any] | None:
    """Return the saved state of a callable: the attributes of an object. A function is code, and is not saved."""
    return None if isinstance(function, types.FunctionType) else dict(function.__dict__)


class PerGroupLambda(LRScheduler):
    """A scheduler with a function of the epoch for each group."""

    _not_saved = ("optimizer", "lr_lambdas")

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        count = len(optimizer.param_groups)
        given = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * count
        if len(given) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(given)}")
        for function in given:
            if not callable(function):
                raise TypeError(f"lr_lambda should be a function, but got {type(function).__name__}")
        self.lr_lambdas: list[Callable[[int], float]] = given
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer; of the functions, only the attributes of callable objects."""
        return {**super().state_dict(), "lr_lambdas": [callable_state(f) for f in self.lr_lambdas]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; the functions stay, callable objects take over their attributes."""
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for function, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                function.__dict__.update(saved)
