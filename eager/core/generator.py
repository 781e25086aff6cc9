"""Random number generators: a seed and a count of the calls made so far; the bits are `eager/arrays/philox.py`'s.

One default generator serves every device, so a seed gives the same numbers on all of them. Each random op takes one
call number, whatever its size, which is why a saved state is 16 bytes and a skipped call is an addition.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from ..arrays import devices
from .tensor import Tensor, as_index, wrap

DEFAULT_SEED = 67280421310721  # PyTorch's seed of a fresh Generator
UINT64_MODULUS = 1 << 64


class Generator:
    """A stream of random numbers: `Generator().manual_seed(0)`. It serves every device, whatever `device` says."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = devices.device(device)
        self._lock = threading.Lock()
        self._seed, self._call = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Generator:
        """Restart the stream of `seed`."""
        number = as_seed(seed)
        with self._lock:
            self._seed, self._call = number, 0
        return self

    def seed(self) -> int:
        """Begin a stream with an unpredictable seed, and return the seed."""
        return self.manual_seed(random_seed()).initial_seed()

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self._seed

    def take_call(self) -> tuple[int, int]:
        """Take and return (seed, call number) for the next random op."""
        with self._lock:
            call = self._call
            self._call = (call + 1) % UINT64_MODULUS
            return self._seed, call

    def take_calls(self, count: int) -> tuple[int, int]:
        """Take call numbers for several random ops at once: return the seed, and the call number of the first."""
        with self._lock:
            call = self._call
            self._call = (call + count) % UINT64_MODULUS
            return self._seed, call

    def get_state(self) -> Tensor:
        """Return seed and call number, as a tensor of 16 bytes."""
        with self._lock:
            return wrap(np.array([self._seed, self._call], "<u8").view(np.uint8))

    def set_state(self, new_state: Tensor) -> Generator:
        """Continue from a state that `get_state` returned."""
        if not isinstance(new_state, Tensor):
            raise TypeError(f"set_state(): expected a Tensor, but got {type(new_state).__name__}")
        array = devices.to_numpy(new_state.tj_array)
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
        """Return another generator at the same position of the same stream."""
        return Generator(self.device).set_state(self.get_state())

    def __getstate__(self) -> dict[str, Any]:
        return {"device": self.device, "seed": self._seed, "call": self._call}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["device"])  # type: ignore[misc]
        self._seed, self._call = state["seed"], state["call"]

    def __repr__(self) -> str:
        return f"<tapejit.Generator seed={self._seed} call={self._call}>"


def as_seed(seed: Any) -> int:
    """Convert a seed to 64 bits; negative ones count back from the top, as in PyTorch."""
    number = as_index(int(seed) if isinstance(seed, float) else seed, "a seed")
    if not -(UINT64_MODULUS >> 1) <= number < UINT64_MODULUS:
        raise ValueError(f"Overflow when unpacking a seed: {number} is not in [-0x8000_0000_0000_0000, 0xffff_ffff_ffff_ffff]")
    return number % UINT64_MODULUS


def random_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


class DefaultGenerator(Generator):
    """The generator used where none is given: one for all threads, except those that have a stream of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def separate(self) -> None:
        """Give this thread a stream of its own from now on, as a worker process has."""
        self._own.stream = Generator()

    def manual_seed(self, seed: int) -> Generator:
        """Restart the stream of `seed`."""
        own = getattr(self._own, "stream", None)
        return super().manual_seed(seed) if own is None else own.manual_seed(seed)

    def initial_seed(self) -> int:
        """The seed of the stream."""
        own = getattr(self._own, "stream", None)
        return super().initial_seed() if own is None else own.initial_seed()

    def take_call(self) -> tuple[int, int]:
        """Take and return (seed, call number) for the next random op."""
        own = getattr(self._own, "stream", None)
        return super().take_call() if own is None else own.take_call()

    def take_calls(self, count: int) -> tuple[int, int]:
        """Take call numbers for several random ops at once: return the seed, and the call number of the first."""
        own = getattr(self._own, "stream", None)
        return super().take_calls(count) if own is None else own.take_calls(count)

    def get_state(self) -> Tensor:
        """Return seed and call number, as a tensor of 16 bytes."""
        own = getattr(self._own, "stream", None)
        return super().get_state() if own is None else own.get_state()

    def set_state(self, new_state: Tensor) -> Generator:
        """Continue from a state that `get_state` returned."""
        own = getattr(self._own, "stream", None)
        return super().set_state(new_state) if own is None else own.set_state(new_state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._seed, self._call = state["seed"], state["call"]


default_generator = DefaultGenerator()
default_generator.seed()
