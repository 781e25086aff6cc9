"""Executable of a GPU program: the plan of its launches, loaded from the disk cache and bound to a device.

Compiled kernels are entries of their own in the disk cache (`runtime/kernel_cache.py`); the plan names them by key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ...eager import backends
from ...eager.arrays.devices import device
from ...eager.backends import are_deterministic_algorithms_enabled
from ...tracer.graph.ir import Graph
from ..program.cache_key import program_key
from ..program.executable import Executable
from .runtime.driver import DeviceError, remedy
from .runtime.kernel_cache import Binary, load_binary, versions
from .runtime.launcher import OP, Launcher, LaunchPlan


@dataclass(kw_only=True)
class GpuExecutable(Executable):
    """Executable of one step: a call runs the whole plan, and returns True if all checks passed."""

    plan: LaunchPlan

    def code_keys(self) -> list[str]:
        return list(dict.fromkeys(x.binary for x in self.plan.rows))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        fields["plan"] = LaunchPlan.from_fields(fields["plan"])
        return super().from_fields(fields)

    @property
    def has_opaque_ops(self) -> bool:
        """True if it calls ops that exist only in the process that built it: it is not stored then."""
        return any(kind == OP for kind, _ in self.plan.order)


def key(graph: Graph, slots: int, target: str, *settings: str) -> str | None:
    """Cache key of a graph's executable; None if the graph holds something that cannot be named."""
    chosen = (str(are_deterministic_algorithms_enabled()), precision(), *settings)
    return program_key(graph, slots, "triton", target, *versions(), *chosen)


def load(name: str | None) -> tuple[GpuExecutable, dict[str, Binary]] | None:
    """Load an executable and the binaries of its kernels, if all of them are in the disk cache."""
    executable = GpuExecutable.load(name)
    if executable is None:
        return None
    found = {key: load_binary(key) for key in executable.code_keys()}
    return None if None in found.values() else (executable, {key: b for key, b in found.items() if b is not None})


def bind(executable: GpuExecutable, binaries: dict[str, Binary], xp: Any, where: device) -> Launcher:
    """Load the kernels onto a device, with memory for everything that persists between calls."""
    try:
        return Launcher(executable, executable.plan, binaries, xp, where)
    except xp.cuda.memory.OutOfMemoryError as reason:
        raise DeviceError(f"cannot allocate {executable.arena} bytes ({reason}); {remedy(str(reason))}") from reason


def precision() -> str:
    """Precision of float32 matmuls: "tf32" where the user has allowed it, otherwise "ieee"."""
    return "tf32" if backends.cuda.matmul.allow_tf32 or backends.get_float32_matmul_precision() != "highest" else "ieee"
