"""`tapejit.random`: seeds and states of the default generator, which is `eager/core/generator.py`'s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .core.generator import Generator, default_generator
from .core.tensor import Tensor


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, for every device, and return it."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Give the default generator an unpredictable seed, and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The default generator's state."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Set the default generator's state."""
    default_generator.set_state(new_state)


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """Restore the default generator's state on exit, whatever was drawn inside."""
    state = default_generator.get_state()
    try:
        yield
    finally:
        if enabled:
            default_generator.set_state(state)
