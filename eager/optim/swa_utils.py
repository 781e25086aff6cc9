"""`tapejit.optim.swa_utils`: running averages of a model's weights, and the learning rate that goes with them.

`AveragedModel` keeps a copy of a model whose weights are the mean of all that were shown to it (SWA), or an exponential
moving average of them (EMA).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from ..arrays import dtypes
from ..core.dispatch import apply
from ..core.op import primitive
from ..core.tape.grad_mode import no_grad
from ..core.tensor import Tensor
from ..nn.module import Module
from ..nn.modules.batchnorm import _BatchNorm
from ..ops.create import tensor
from .lr_scheduler.base import LRScheduler, Rates, for_each_group
from .optimizer import Optimizer, as_number
from .update_kernels import run_update, update_mean

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]


def run_average(xp: Any, average: Any, value: Any, weight: float) -> None:
    run_update(lambda a, b: update_mean(xp, a, b, weight), (average, value), (0,))


AVERAGE_UPDATE = primitive(
    "average_update",
    "composite",
    run_average,
    expand=lambda average, value, weight: average.add_((value - average) * weight),
    upcast=False,
    mutates=(0,),
)


def move_towards(average: Tensor, value: Tensor, weight: float) -> None:
    """average += (value - average) * weight, in place; a whole number moves to the nearest below."""
    if average.is_floating_point():
        apply(AVERAGE_UPDATE, (average, value.to(average.dtype), weight))
    else:
        average.copy_(average * (1 - weight) + value * weight)


def check_decay(decay: float) -> None:
    if decay < 0.0 or decay > 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[..., None]:
    """A function that moves many averages by one step of an exponential moving average, in place."""
    check_decay(decay)

    @no_grad()
    def ema_update(ema_param_list: Iterable[Tensor], current_param_list: Iterable[Tensor], _: Any = None) -> None:
        for average, value in zip(ema_param_list, current_param_list, strict=True):
            move_towards(average, value, 1 - decay)

    return ema_update  # type: ignore[no-any-return]


def get_swa_multi_avg_fn() -> Callable[..., None]:
    """A function that takes one more of each into many plain means, in place."""

    @no_grad()
    def swa_update(averaged_param_list: Iterable[Tensor], current_param_list: Iterable[Tensor], num_averaged: Any) -> None:
        weight = 1 / (as_number(num_averaged) + 1)
        for average, value in zip(averaged_param_list, current_param_list, strict=True):
            move_towards(average, value, weight)

    return swa_update  # type: ignore[no-any-return]


def get_ema_avg_fn(decay: float = 0.999) -> Callable[..., Tensor]:
    """A function that returns an exponential moving average after one more value."""
    check_decay(decay)

    @no_grad()
    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        return decay * ema_param + (1 - decay) * current_param

    return ema_update  # type: ignore[no-any-return]


def get_swa_avg_fn() -> Callable[..., Tensor]:
    """A function that returns a plain mean after one more value."""

    @no_grad()
    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update  # type: ignore[no-any-return]


class AveragedModel(Module):
    """A copy of a model whose weights are an average: call `update_parameters(model)` after each step."""

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Callable[..., Tensor] | None = None,
        multi_avg_fn: Callable[..., None] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, dtype=dtypes.int64, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The averaged model's result."""
        return self.module(*args, **kwargs)

    def _averaged(self, model: Module) -> list[Tensor]:
        found = [*model.parameters(), *(model.buffers() if self.use_buffers else ())]
        return [t.detach() for t in found]

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Take the model's weights into the average; the first ones are the average."""
        own = self._averaged(self.module)
        new = [t.to(a.device) for t, a in zip(self._averaged(model), own, strict=True)]
        if self.n_averaged.item() == 0:
            for average, value in zip(own, new, strict=True):
                average.copy_(value)
        elif self.avg_fn is not None:
            for average, value in zip(own, new, strict=True):
                average.copy_(self.avg_fn(average, value, self.n_averaged.to(average.device)))
        else:
            update = self.multi_avg_fn or get_swa_multi_avg_fn()
            for averages, values in alike(own, new):
                update(averages, values, self.n_averaged.to(averages[0].device))
        if not self.use_buffers:  # statistics that are not averaged follow the model
            for buffer, value in zip(self.module.buffers(), model.buffers(), strict=True):
                buffer.detach().copy_(value.detach().to(buffer.device))
        self.n_averaged += 1


def alike(own: list[Tensor], new: list[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Pairs in groups of one device and dtype."""
    groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for average, value in zip(own, new, strict=True):
        averages, values = groups.setdefault((average.device, average.dtype), ([], []))
        averages.append(average)
        values.append(value)
    return list(groups.values())


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the statistics of batch norm layers anew, by one pass over data: those of averaged weights are unknown."""
    momenta = {module: module.momentum for module in model.modules() if isinstance(module, _BatchNorm)}
    if not momenta:
        return
    training = model.training
    model.train()
    for module in momenta:
        module.reset_running_stats()
        module.momentum = None  # the mean over all batches
    try:
        for batch in loader:
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(x if device is None else x.to(device))
    finally:
        for module, momentum in momenta.items():
            module.momentum = momentum
        model.train(training)


def _linear(t: float) -> float:
    return t


def _cosine(t: float) -> float:
    return (1 - math.cos(math.pi * t)) / 2


class SWALR(LRScheduler):
    """From each group's rate to `swa_lr` over `anneal_epochs`, and constant from there on."""

    _not_saved = ("optimizer", "anneal_func")

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        for rate, group in zip(for_each_group("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self._set_anneal_func(anneal_strategy)
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _set_anneal_func(self, anneal_strategy: str) -> None:
        self._anneal_strategy = anneal_strategy
        self.anneal_func = _cosine if anneal_strategy == "cos" else _linear

    def _progress(self, step: int) -> float:
        return self.anneal_func(max(0, min(1, step / max(1, self.anneal_epochs))))

    def get_lr(self) -> Rates:
        self._warn_outside()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._progress(step - 1), self._progress(step)
        rates = []
        for group in self.optimizer.param_groups:
            end = group["swa_lr"]
            start = end if before == 1 else (group["lr"] - before * end) / (1 - before)
            rates.append(end * now + start * (1 - now))
        return rates

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._set_anneal_func(self._anneal_strategy)
