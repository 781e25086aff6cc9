"""`nn.parallel`: PyTorch's wrappers for several devices, on the one that there is.

A DataParallel on a machine with at most one GPU is the module itself, with the `module.` in its keys that checkpoints have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..arrays.devices import cuda_device_count
from ..distributed import check_group
from .module import Module

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]


def _devices(device_ids: Any) -> list[int]:
    """The GPUs to use: one at most, because batches are not split here."""
    if device_ids is None:
        return [0] if cuda_device_count() else []
    found = [getattr(device, "index", device) for device in device_ids]
    if len(found) > 1:
        raise NotImplementedError(
            f"DataParallel over {len(found)} devices ({found}): batches are not split over GPUs here. Leave device_ids out, or "
            "give one."
        )
    return found


class DataParallel(Module):
    """The module, called as it is."""

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        self.device_ids, self.dim, self.module = _devices(device_ids), dim, module
        self.output_device = self.device_ids[0] if output_device is None and self.device_ids else output_device
        if self.device_ids:
            self.module.cuda(self.device_ids[0])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


def data_parallel(
    module: Module, inputs: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0, module_kwargs: Any = None
) -> Any:
    """Call the module once, as it is."""
    _devices(device_ids)
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))


class DistributedDataParallel(Module):
    """The module, called as it is: a group of one process has nobody to average gradients with."""

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0, **options: Any) -> None:
        super().__init__()
        check_group()
        if not any(p.requires_grad for p in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
            )
        self.module, self.device_ids, self.output_device, self.dim = module, device_ids, output_device, dim
        self.require_backward_grad_sync = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A block in which gradients are not averaged."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)
