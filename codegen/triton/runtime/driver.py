"""Loads compiled kernels into a device through CuPy's driver, and names its architecture."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from ....eager.arrays.devices import device, module_for
from ....tracer.graph.ir import GraphError
from ..device.specs import is_hip
from .kernel_cache import Binary

MAX_DEFAULT_SHARED = 48 << 10  # bytes of shared memory that a kernel gets without asking
SHARED_SIZE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class DeviceError(Exception):
    """Device cannot run a binary compiled for it; the message gives the reason and a remedy."""


class LoadedKernel:
    """Kernel loaded into a device; unloaded when this is collected."""

    def __init__(self, xp: Any, binary: Binary) -> None:
        driver = xp.cuda.driver
        try:
            self.module = driver.moduleLoadData(binary.code)
        except Exception as reason:
            raise DeviceError(f"the driver rejects {binary.name} ({reason}); {remedy(str(reason))}") from reason
        self._unload = weakref.finalize(self, unload_module, driver, self.module)
        self._unload.atexit = False
        self.function = driver.moduleGetFunction(self.module, binary.name)
        # AMD's devices give all they have, and CuPy's function fails there
        if binary.shared > MAX_DEFAULT_SHARED and not is_hip(xp):
            try:
                driver.funcSetAttribute(self.function, SHARED_SIZE, binary.shared)
            except Exception as reason:
                what = f"{binary.name} wants {binary.shared} bytes of shared memory, more than the device has"
                raise DeviceError(f"{what} ({reason}); {remedy(what)}") from reason


def unload_module(driver: Any, module: int) -> None:
    with contextlib.suppress(Exception):  # the device may be gone already
        driver.moduleUnload(module)


_loaded: weakref.WeakValueDictionary[tuple[int, int, str], LoadedKernel] = weakref.WeakValueDictionary()


def load_kernel(xp: Any, where: device, key: str, binary: Binary) -> LoadedKernel:
    """Load a kernel into a device, once for all programs."""
    place = (id(xp), where.index or 0, key)
    found = _loaded.get(place)
    if found is None:
        found = _loaded[place] = LoadedKernel(xp, binary)
    return found


def remedy(reason: str) -> str:
    """Advice for an error of the driver."""
    if "INVALID_IMAGE" in reason or "NO_BINARY" in reason or "UNSUPPORTED_PTX" in reason or "INVALID_PTX" in reason:
        return "update the NVIDIA driver, or use an older Triton"
    if "OUT_OF_MEMORY" in reason or "Out of memory" in reason:
        return "use smaller batches; tapejit.cuda.empty_cache() frees memory that is cached"
    if "OUT_OF_RESOURCES" in reason or "shared memory" in reason:
        return 'compile this function with backend="plain", and please report the kernel'
    return 'compile this function with backend="plain" if it happens again'


def target(where: device) -> str:
    """Name of a device's architecture: sm_90, gfx942."""
    xp = module_for(where)
    if is_hip(xp):
        name = xp.cuda.runtime.getDeviceProperties(where.index or 0)["gcnArchName"]
        return str(name.decode() if isinstance(name, bytes) else name).split(":")[0]
    found = str(xp.cuda.Device(where.index or 0).compute_capability)
    if not found.isdigit() or int(found) < 80:
        raise GraphError(f"the GPU has compute capability {found}; kernels need 80 or newer")
    return f"sm_{found}"
