"""Seeds and generators. A generator is a seed and a count of the calls made so far; the bits are `philox.py`'s.

One default generator serves every device, so a seed gives the same numbers on all of them. Each random op takes one
call number, whatever its size, which is why a saved state is 16 bytes and a skipped call is an addition.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from .arrays import devices
from .core.tensor import Tensor, as_index, wrap

DEFAULT_SEED = 67280421310721  # PyTorch's seed of a fresh Generator
LIMIT = 1 << 64


class Generator:
    """A stream of random numbers: `Generator().manual_seed(0)`. `device` is kept for PyTorch's sake; it serves all of them."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = devices.device(device)
        self._lock = threading.Lock()
        self._seed, self._call = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Generator:
        """Begin the stream of `seed` anew."""
        number = as_seed(seed)
        with self._lock:
            self._seed, self._call = number, 0
        return self

    def seed(self) -> int:
        """Begin a stream nobody can foresee, and return its seed."""
        return self.manual_seed(unforeseen()).initial_seed()

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self._seed

    def take_call(self) -> tuple[int, int]:
        """(seed, call number) of the next random op."""
        with self._lock:
            call = self._call
            self._call = (call + 1) % LIMIT
            return self._seed, call

    def take_calls(self, count: int) -> tuple[int, int]:
        """The same for several random ops at once: the seed, and the call number of the first."""
        with self._lock:
            call = self._call
            self._call = (call + count) % LIMIT
            return self._seed, call

    def get_state(self) -> Tensor:
        """Seed and call number, as a tensor of 16 bytes."""
        with self._lock:
            return wrap(np.array([self._seed, self._call], "<u8").view(np.uint8))

    def set_state(self, new_state: Tensor) -> Generator:
        """Go on from a state that `get_state` returned."""
        if not isinstance(new_state, Tensor):
            raise TypeError(f"set_state(): expected a Tensor, but got {type(new_state).__name__}")
        array = devices.to_numpy(new_state._array)
        if array.dtype != np.uint8 or array.shape != (16,):
            raise RuntimeError(
                f"RNG state is wrong: expected the tensor of 16 bytes (uint8) that get_state() returns, "
                f"got {new_state.dtype} of shape {list(new_state.shape)}"
            )
        seed, call = np.ascontiguousarray(array).view("<u8").tolist()
        with self._lock:
            self._seed, self._call = seed, call
        return self

    def clone_state(self) -> Generator:
        """Another generator at the same place of the same stream."""
        return Generator(self.device).set_state(self.get_state())

    def __getstate__(self) -> dict[str, Any]:
        return {"device": self.device, "seed": self._seed, "call": self._call}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["device"])  # type: ignore[misc]
        self._seed, self._call = state["seed"], state["call"]

    def __repr__(self) -> str:
        return f"<tapejit.Generator seed={self._seed} call={self._call}>"


def as_seed(seed: Any) -> int:
    """A seed as 64 bits; negative ones count back from the top, as in PyTorch."""
    number = as_index(int(seed) if isinstance(seed, float) else seed, "a seed")
    if not -(LIMIT >> 1) <= number < LIMIT:
        raise ValueError(f"Overflow when unpacking a seed: {number} is not in [-0x8000_0000_0000_0000, 0xffff_ffff_ffff_ffff]")
    return number % LIMIT


def unforeseen() -> int:
    return int.from_bytes(os.urandom(8), "little")


class DefaultGenerator(Generator):
    """What is used where no generator is given: one for all threads, but for those that have a stream of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def separate(self) -> None:
        """From now on this thread has a stream of its own, as a worker process has."""
        self._own.stream = Generator()

    def manual_seed(self, seed: int) -> Generator:
        """Begin the stream of `seed` anew."""
        own = getattr(self._own, "stream", None)
        return super().manual_seed(seed) if own is None else own.manual_seed(seed)

    def initial_seed(self) -> int:
        """The seed of the stream."""
        own = getattr(self._own, "stream", None)
        return super().initial_seed() if own is None else own.initial_seed()

    def take_call(self) -> tuple[int, int]:
        """(seed, call number) of the next random op."""
        own = getattr(self._own, "stream", None)
        return super().take_call() if own is None else own.take_call()

    def take_calls(self, count: int) -> tuple[int, int]:
        """The same for several random ops at once: the seed, and the call number of the first."""
        own = getattr(self._own, "stream", None)
        return super().take_calls(count) if own is None else own.take_calls(count)

    def get_state(self) -> Tensor:
        """Seed and call number, as a tensor of 16 bytes."""
        own = getattr(self._own, "stream", None)
        return super().get_state() if own is None else own.get_state()

    def set_state(self, new_state: Tensor) -> Generator:
        """Go on from a state that `get_state` returned."""
        own = getattr(self._own, "stream", None)
        return super().set_state(new_state) if own is None else own.set_state(new_state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._seed, self._call = state["seed"], state["call"]


default_generator = DefaultGenerator()
default_generator.seed()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, for every device, and return it."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Give the default generator a seed nobody can foresee, and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The default generator's state."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Put the default generator back to a state."""
    default_generator.set_state(new_state)


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """Whatever is drawn inside, the default generator goes on afterwards as if nothing had been."""
    state = default_generator.get_state()
    try:
        yield
    finally:
        if enabled:
            default_generator.set_state(state)
