"""`tapejit.nn.attention`: PyTorch's choice between kernels for scaled dot product attention; here there is one."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator


class SDPBackend(enum.Enum):
    """PyTorch's kernels for attention."""

    MATH = enum.auto()
    FLASH_ATTENTION = enum.auto()
    EFFICIENT_ATTENTION = enum.auto()
    CUDNN_ATTENTION = enum.auto()


@contextlib.contextmanager
def sdpa_kernel(backends: SDPBackend | list[SDPBackend], set_priority: bool = False) -> Iterator[None]:
    """Accept PyTorch's choice of a kernel, and change nothing: there is one implementation."""
    wanted = backends if isinstance(backends, list) else [backends]
    if not wanted or not all(isinstance(b, SDPBackend) for b in wanted):
        raise TypeError(f"sdpa_kernel: expected an SDPBackend or a list of them, not {backends!r}")
    yield
