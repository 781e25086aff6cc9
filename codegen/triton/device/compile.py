"""Compiles printed kernels for targets that need not be present, and reads their resource use.

Registers and spills are what NVIDIA's assembler, which Triton brings along, and AMD's assembly say; the width of memory
accesses is counted in the assembly. The compiler releases Python's lock: kernels can be compiled in a pool of threads.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..printing.kernel_text import Argument, Kernel, Printed
from .cubin import read_thread_use, register_candidates
from .interpreter import load_module
from .specs import shared_memory

TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
MAX_WARPS = 8  # upper bound when a spilling kernel is given more warps
WARP_SIZE = 32  # threads of NVIDIA's warps
MAX_PARSES = 4  # attempts to parse a kernel's source
POINTER_ALIGNMENT = 16  # bytes that pointers are multiples of: loads of several elements need it


@dataclass
class Resources:
    """Resource use of a compiled kernel."""

    registers: int  # registers per thread
    spills: int  # bytes of each thread that are in memory for want of registers
    shared: int  # bytes of each program
    loads: dict[int, int] = field(default_factory=dict)  # bits of a load from memory: how many there are
    stores: dict[int, int] = field(default_factory=dict)


def target_of(name: str) -> tuple[str, int | str, int]:
    """Parse a target name (sm_90, gfx942) into backend, architecture and warp size."""
    if name in TARGETS:
        return TARGETS[name]
    if name.startswith("sm_") and name[3:].isdigit():
        return "cuda", int(name[3:]), 32
    if name.startswith("gfx"):
        return "hip", name, 64 if name.startswith("gfx9") else 32
    raise ValueError(f"[compile] {name!r} is no target: there are sm_80, sm_90 and so on, and gfx942 and so on")


def retry_parsing(compile: Callable[[], Any]) -> Any:
    """Compile, and retry if Python's parser was disturbed: all threads share its recursion depth (python/cpython issue 106905,
    in 3.11 and 3.12), and kernels are compiled in several."""
    for _ in range(MAX_PARSES - 1):
        try:
            return compile()
        except Exception as error:
            if not is_parser_race(error):
                raise
    return compile()


def is_parser_race(error: BaseException | None) -> bool:
    """True if an error, or one that caused it, is that race: Triton parses device functions as it compiles."""
    while error is not None:
        if isinstance(error, SystemError) and "recursion depth mismatch" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def compile_kernel(printed: Printed, kernel: Kernel, target: str, unaligned: frozenset[str] = frozenset()) -> Any:
    """Compile a kernel for a target; returns Triton's object, which holds the assembly and the binary. Plain arithmetic is
    never contracted, so that it is rounded as eager's is. The addresses of `unaligned` buffers need not be multiples of 16
    bytes. A kernel that exceeds the device's shared memory is recompiled with fewer pipeline stages, and one that spills with
    more registers or threads."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kind, arch, threads = target_of(target)
    function = load_module(printed.source, False)[kernel.name]
    attrs = {(i,): [["tt.divisibility", POINTER_ALIGNMENT]] for i, a in enumerate(kernel.arguments) if is_aligned(a, unaligned)}
    source = ASTSource(function, signature={a.name: a.type for a in kernel.arguments}, constexprs={}, attrs=attrs)
    options = {"num_warps": warps_for(printed, kernel, threads), "num_stages": kernel.stages, "enable_fp_fusion": False}
    if kind == "cuda":
        options["enable_reflect_ftz"] = False  # subnormal numbers are numbers

    def made(**more: int) -> Any:
        return retry_parsing(lambda: triton.compile(source, target=GPUTarget(kind, arch, threads), options=options | more))

    found = made()
    while found.metadata.shared > shared_memory(target) and options["num_stages"] > 1:
        options["num_stages"] -= 1
        found = made()
    least = spilled_bytes(found, target)
    for more in settings_with_more_registers(found, target) if least else ():
        other = made(**more)
        spills = spilled_bytes(other, target)
        if spills < least:
            found, least = other, spills
        if not least:
            break
    return found


def warps_for(printed: Printed, kernel: Kernel, threads: int) -> int:
    """Warps of a program. Loops are tiled for warps of 32 threads with 8 elements each: halves by 128 bits. Matmuls and
    attention have tables by device."""
    return kernel.warps if "tl.dot(" in printed.source else max(kernel.warps * WARP_SIZE // threads, 1)


def settings_with_more_registers(made: Any, target: str) -> list[dict[str, int]]:
    """Settings with which a kernel may spill less: more registers, if NVIDIA's assembler has left some, or more threads."""
    warps, threads = made.metadata.num_warps, target_of(target)[2]
    registers = [] if target.startswith("gfx") else register_candidates(read_thread_use(made.asm["cubin"]), warps * threads)
    return [*[{"maxnreg": n} for n in registers], *[{"num_warps": 2 * warps}] * (warps < MAX_WARPS)]


def spilled_bytes(made: Any, target: str) -> int:
    """Bytes spilled per thread. NVIDIA's code may use local memory for other purposes."""
    if target.startswith("gfx"):
        return amd_resources(made).spills
    return nvidia_resources(made).spills if read_thread_use(made.asm["cubin"]).frame else 0


def is_aligned(argument: Argument, unaligned: frozenset[str]) -> bool:
    return bool(argument.buffer) and argument.buffer not in unaligned


def resources(made: Any, target: str) -> Resources:
    return amd_resources(made) if target.startswith("gfx") else nvidia_resources(made)


def parameter_sizes(made: Any) -> list[int]:
    """Bytes of a compiled kernel's parameters, in order, as declared in its assembly."""
    if "ptx" in made.asm:
        entry = re.search(r"\.entry[^(]*\(([^)]*)\)", made.asm["ptx"])
        assert entry is not None
        return [int(bits) // 8 for bits in re.findall(r"\.param\s+\.[a-z]+(\d+)", entry[1])]
    arguments = made.asm["amdgcn"].partition("amdhsa.kernels:")[2].partition(".group_segment_fixed_size")[0]
    return [int(size) for size in re.findall(r"\.size:\s+(\d+)", arguments)]


def launched_parameter_sizes(kernel: Kernel) -> list[int]:
    """Bytes of a kernel's parameters, as the launcher passes them; the last two are Triton's own."""
    return [8 if a.type.startswith("*") else max(int(a.type.lstrip("abfinptu")) // 8, 1) for a in kernel.arguments] + [8, 8]


def nvidia_resources(made: Any) -> Resources:
    notes = ptxas_notes(made.asm["ptx"], made.metadata.target.arch)
    registers, spills = re.search(r"Used (\d+) registers", notes), re.search(r"(\d+) bytes spill stores", notes)
    assert registers is not None and spills is not None
    found = Resources(int(registers[1]), int(spills[1]), int(made.metadata.shared))
    for line in made.asm["ptx"].splitlines():
        access = re.search(r"\b(ld|st)\.global[\w.:]*?(?:\.v(\d))?\.[bfsu](\d+)", line)
        if access:
            count_access(found, access[1] == "ld", int(access[2] or 1) * int(access[3]))
        copy = re.search(r"cp\.async\.c[ag]\.shared\.global[^;]*\], *\[[^\]]*\], *(0x[0-9a-f]+|\d+)", line)
        if copy:  # to shared memory, so many bytes
            count_access(found, True, 8 * int(copy[1], 0))
    return found


def amd_resources(made: Any) -> Resources:
    text = made.asm["amdgcn"]

    def figure(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    spills = 4 * figure("vgpr_spill_count")  # scalars without a register go to lanes of vector registers, not to memory
    found = Resources(figure("vgpr_count"), spills, int(made.metadata.shared))
    widths = {"dwordx4": 128, "dwordx3": 96, "dwordx2": 64, "dword": 32}
    for verb, width in re.findall(r"(?:buffer|global|flat)_(load|store)_(\w+)", text):
        size = re.search(r"dword(?:x\d)?", width)
        count_access(found, verb == "load", widths[size[0]] if size else 8 if "byte" in width else 16)
    return found


def count_access(found: Resources, loads: bool, bits: int) -> None:
    kind = found.loads if loads else found.stores
    kind[bits] = kind.get(bits, 0) + 1


def ptxas_notes(ptx: str, arch: int) -> str:
    """Run NVIDIA's assembler for its notes on a kernel, which Triton does not keep."""
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"\.target (\w+)", ptx)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        options = ["-v", "--fmad=false", "--regAllocOptLevel=2", f"--gpu-name={target[1]}", file.name, "-o", os.devnull]
        done = subprocess.run([get_ptxas(arch).path, *options], capture_output=True, text=True, check=True)
    return done.stderr
