"""`distributed`: a group of one process, so that scripts that can run on several run on one.

Collectives leave tensors as they are, because that is what they do in such a group. More processes are refused.
"""

from __future__ import annotations

import os
from typing import Any

from .core.tensor import Tensor

_initialized = False


class ReduceOp:
    """Reductions that `all_reduce` takes."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "product", "min", "max"


def is_available() -> bool:
    """True if there is this package: always."""
    return True


def is_initialized() -> bool:
    """True if `init_process_group` was called."""
    return _initialized


def init_process_group(
    backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1, **options: Any
) -> None:
    """Begin a group of one process."""
    global _initialized
    if _initialized:
        raise ValueError("trying to initialize the default process group twice!")
    size = world_size if world_size != -1 else int(os.environ.get("WORLD_SIZE", "1"))
    if size != 1:
        raise NotImplementedError(f"init_process_group(): a group of {size} processes; here there are only groups of one")
    _initialized = True


def destroy_process_group(group: Any = None) -> None:
    """End the group."""
    global _initialized
    check_group()
    _initialized = False


def check_group() -> None:
    """Raise what PyTorch raises where there is no group."""
    if not _initialized:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")


def get_rank(group: Any = None) -> int:
    """This process's number: 0."""
    check_group()
    return 0


def get_world_size(group: Any = None) -> int:
    """The number of processes: 1."""
    check_group()
    return 1


def get_backend(group: Any = None) -> str:
    """There is none."""
    check_group()
    return "none"


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> None:
    """Wait for nobody."""
    check_group()


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> None:
    """Combine the tensors of all processes: of one, it is what it was."""
    check_group()


def reduce(tensor: Tensor, dst: int = 0, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> None:
    """Combine the tensors of all processes: of one, it is what it was."""
    check_group()


def broadcast(tensor: Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> None:
    """Send a tensor to all others: there are none."""
    check_group()


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> None:
    """Collect the tensors of all processes."""
    check_group()
    tensor_list[0].copy_(tensor)
