"""`tapejit.cuda`: asking about GPUs and choosing one. Tensors on them are CuPy arrays; see `eager/arrays/devices.py`.

Questions have answers on machines without a GPU (`is_available()` is False, `device_count()` is 0, memory use is 0);
what needs one says in one sentence what is missing.
"""

from __future__ import annotations

from typing import Any

from . import legacy, random
from .arrays import devices
from .core.tensor import Tensor

CUDA = devices.device("cuda")


def is_available() -> bool:
    """True if there is a GPU to use. Costs microseconds: no library is imported to answer it."""
    return devices.cuda_device_count() > 0


def device_count() -> int:
    """The number of GPUs."""
    return devices.cuda_device_count()


def is_initialized() -> bool:
    """True if a GPU has been used in this process."""
    return devices._cuda.module is not None


def init() -> None:
    """Get ready to use a GPU now rather than at the first tensor on one."""
    devices.module_for(CUDA)


def number_of(device: Any) -> int:
    """The number of a GPU given as a device, a string, a number or None (the current one)."""
    index = devices.as_device("cuda" if device is None else device).index
    if index is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return index


def current_device() -> int:
    """The number of the GPU that `device="cuda"` means."""
    return number_of(None)


def set_device(device: Any) -> None:
    """Make a GPU the current one."""
    xp = devices.module_for(CUDA)
    xp.cuda.Device(number_of(device)).use()


class device:  # noqa: N801 -- PyTorch's spelling
    """A context in which another GPU is the current one; None or a negative number changes nothing."""

    def __init__(self, device: Any) -> None:
        nowhere = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if nowhere else number_of(device)
        self._inner: list[Any] = []

    def __enter__(self) -> None:
        inner = devices.NOTHING if self.idx < 0 else devices.on(devices.device("cuda", self.idx))
        self._inner.append(inner)
        inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.pop().__exit__(*error)


class device_of(device):  # noqa: N801
    """A context in which a tensor's GPU is the current one; a CPU tensor changes nothing."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.device.index if tensor.is_cuda else None)


def synchronize(device: Any = None) -> None:
    """Wait until a GPU has done all it was given."""
    xp = devices.module_for(CUDA)
    xp.cuda.Device(number_of(device)).synchronize()


# ---- what they are


class DeviceProperties:
    """The result of `get_device_properties`."""

    def __init__(self, number: int) -> None:
        found = devices.module_for(CUDA).cuda.runtime.getDeviceProperties(number)
        name = found["name"]
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self.major, self.minor = int(found["major"]), int(found["minor"])
        self.total_memory = int(found["totalGlobalMem"])
        self.multi_processor_count = int(found["multiProcessorCount"])
        self.warp_size = int(found["warpSize"])

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count})"
        )


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name, compute capability, memory and size of a GPU."""
    return DeviceProperties(number_of(device))


def get_device_name(device: Any = None) -> str:
    """The name of a GPU."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU, (major, minor)."""
    found = get_device_properties(device)
    return found.major, found.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True if the current GPU computes in bfloat16 (by itself, or slowly where that counts too)."""
    return is_available() and (including_emulation or get_device_capability()[0] >= 8)


# ---- memory


class _Peaks:
    """The most bytes seen in use on each GPU. CuPy does not count peaks: this one knows what it was asked about."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def note(self, number: int, used: int) -> int:
        self.seen[number] = max(used, self.seen.get(number, 0))
        return self.seen[number]


_peaks = _Peaks()


def pool(number: int) -> Any:
    """CuPy's memory pool, and a context in which it speaks of one GPU."""
    return devices.module_for(CUDA).get_default_memory_pool(), devices.on(devices.device("cuda", number))


def memory_allocated(device: Any = None) -> int:
    """Bytes in use by tensors on a GPU; 0 before one is used."""
    if not is_initialized():
        return 0
    number = number_of(device)
    memory, there = pool(number)
    with there:
        used = int(memory.used_bytes())
    _peaks.note(number, used)
    return used


def memory_reserved(device: Any = None) -> int:
    """Bytes held on a GPU, in use or kept for later; 0 before one is used."""
    if not is_initialized():
        return 0
    memory, there = pool(number_of(device))
    with there:
        return int(memory.total_bytes())


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes `memory_allocated` has seen in use since the last reset: a lower bound of the true peak."""
    used = memory_allocated(device)
    return _peaks.seen.get(number_of(device), used) if is_initialized() else 0


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes held on a GPU. They are kept until `empty_cache`, so that is what is held now."""
    return memory_reserved(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Begin to look for the peak anew."""
    if is_initialized():
        _peaks.seen.pop(number_of(device), None)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of a GPU."""
    xp = devices.module_for(CUDA)
    with devices.on(devices.device("cuda", number_of(device))):
        free, total = xp.cuda.runtime.memGetInfo()
    return int(free), int(total)


def empty_cache() -> None:
    """Give memory that no tensor uses back to the system."""
    if is_initialized():
        devices.module_for(CUDA).get_default_memory_pool().free_all_blocks()


# ---- random numbers: one generator serves every device


def manual_seed(seed: int) -> None:
    """Seed the default generator, which all devices share."""
    random.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generator, which all devices share."""
    random.manual_seed(seed)


def seed() -> None:
    """Give the default generator an unpredictable seed."""
    random.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return random.initial_seed()


def get_rng_state(device: Any = None) -> Tensor:
    """The default generator's state."""
    return random.get_rng_state()


def set_rng_state(new_state: Tensor, device: Any = None) -> None:
    """Put the default generator back to a state."""
    random.set_rng_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    """The state of the default generator for each GPU."""
    return [random.get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Any) -> None:
    """Put the default generator back to a state of `get_rng_state_all`."""
    for state in new_states:
        random.set_rng_state(state)


globals().update(legacy.types(on_cuda=True))
