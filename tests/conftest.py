"""What all tests share: every test begins with the same random state and default dtype, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tapejit as tj


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Settings that a test changes do not reach the next one."""
    dtype, device = tj.get_default_dtype(), tj.get_default_device()
    yield
    tj.set_default_dtype(dtype)
    tj.set_default_device(device)
