"""Two pretended GPUs, and which of them is current in this thread."""

from __future__ import annotations

import threading
from typing import Any

COUNT = 2


class _Local(threading.local):
    current = 0


local = _Local()


def device_count() -> int:
    return COUNT


class Device:
    """`with Device(1):` makes the second GPU current."""

    def __init__(self, device: Any = None) -> None:
        self.id = local.current if device is None else int(device.id if isinstance(device, Device) else device)
        if not 0 <= self.id < COUNT:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(local.current)
        local.current = self.id
        return self

    def __exit__(self, *_: object) -> None:
        local.current = self._before.pop()

    def use(self) -> None:
        local.current = self.id

    compute_capability = "90"

    def synchronize(self) -> None: ...

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


def check(device: int) -> None:
    """Without peer access between devices, a kernel only reads arrays of the current one."""
    if device != local.current:
        raise ValueError(
            f"The device where the array resides ({device}) is different from the current device ({local.current}). "
            "Peer access is unavailable between these devices."
        )
