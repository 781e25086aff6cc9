"""Compiles kernels in a pool of threads, each once, and keeps their binaries in the disk cache.

Kernels whose texts differ only in names and in docstrings are the same: the names of the graph's values are in the texts, so
that people can read them, and each layer of a model has others. Whoever comes first gives the binary its name.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ...program import disk_cache as cache
from ..device import compile as aot
from ..device import cubin
from ..device import specs as devices
from ..printing.kernel_text import MATHS, Kernel, Printed, parse_source


class KernelCompileError(Exception):
    """Kernel does not compile; the message names it, and gives the reason and a remedy."""


END = b"\n"  # between the JSON header of an entry and the code


@dataclass(frozen=True)
class CompileRequest:
    """Kernel to compile, and the buffers whose addresses need not be multiples of 16 bytes."""

    printed: Printed
    kernel: Kernel
    unaligned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Binary:
    """Binary of a kernel for a device, and its launch parameters."""

    name: str  # name of the function
    threads: int  # threads per program
    shared: int  # bytes of each program
    scratch: int  # bytes of memory that each program wants besides
    code: bytes

    def entry(self) -> bytes:
        """Disk cache entry: a JSON header, then the code."""
        header = {k: v for k, v in asdict(self).items() if k != "code"}
        return json.dumps(header).encode() + END + self.code


def from_entry(data: bytes) -> Binary:
    header, _, code = data.partition(END)
    return Binary(code=code, **json.loads(header))


Compiler = Callable[[CompileRequest, str], Binary]


def compile_binary(wanted: CompileRequest, target: str) -> Binary:
    """Compile a kernel by Triton."""
    from ..device.compile import compile_kernel, target_of

    if importlib.util.find_spec("triton") is None:
        raise KernelCompileError("Triton, which compiles GPU kernels, is not installed: pip install 'tapejit[gpu]'")
    made = compile_kernel(wanted.printed, wanted.kernel, target, wanted.unaligned)
    metadata = made.metadata
    return Binary(
        name=metadata.name,
        threads=metadata.num_warps * target_of(target)[2],
        shared=int(metadata.shared),
        scratch=int(getattr(metadata, "global_scratch_size", 0) or 0),
        code=bytes(made.asm["hsaco" if target.startswith("gfx") else "cubin"]),
    )


class Compiling:
    """Compiler in use; tests replace it."""

    compiler: Compiler = staticmethod(compile_binary)


def compile_kernels(wanted: Sequence[CompileRequest], target: str) -> list[tuple[str, Binary]]:
    """Load or compile each kernel; returns cache keys and binaries."""
    keys = [key(x, target) for x in wanted]
    known: dict[str, Binary] = {}
    missing: dict[str, CompileRequest] = {}
    for k, x in zip(keys, wanted, strict=True):
        if k not in known and k not in missing:
            found = load_binary(k)
            if found is None:
                missing[k] = x
            else:
                known[k] = found
    missing = dict(sorted(missing.items(), key=lambda x: -effort(x[1])))  # longest first, so that none runs alone at the end
    if len(missing) == 1 or os.cpu_count() == 1:
        made = [one(x, target) for x in missing.values()]
    else:
        with ThreadPoolExecutor(os.cpu_count(), "tapejit-triton") as pool:
            made = list(pool.map(lambda x: one(x, target), missing.values()))
    for k, binary in zip(missing, made, strict=True):
        cache.put(k, binary.entry())
        known[k] = binary
    return [(k, known[k]) for k in keys]


def effort(wanted: CompileRequest) -> int:
    """Estimate compile time roughly: by the length of the text, times ten with matmuls."""
    source = wanted.printed.source
    return len(source) * (10 if "tl.dot" in source else 1)


def one(wanted: CompileRequest, target: str) -> Binary:
    try:
        return Compiling.compiler(wanted, target)
    except KernelCompileError:
        raise
    except Exception as reason:
        last_line = (str(reason).strip().splitlines() or [type(reason).__name__])[-1]
        what = f"Triton cannot compile {wanted.kernel.name} for {target} ({last_line})"
        raise KernelCompileError(
            f'{what}; compile this function with backend="plain", and please report the kernel'
        ) from reason


def load_binary(key: str) -> Binary | None:
    """Load a binary from the disk cache."""
    data = cache.get(key)
    if data is None:
        return None
    try:
        return from_entry(data)
    except (ValueError, TypeError):  # written by another version
        return None


# ---- cache keys: equality of kernels


def key(wanted: CompileRequest, target: str) -> str:
    kernel = wanted.kernel
    rows = [
        "triton",
        target,
        *versions(),
        *[f"{a.type} {a.buffer in wanted.unaligned}" for a in kernel.arguments],
        f"{kernel.warps} {kernel.stages}",
        nameless(wanted.printed.source, kernel.name),
    ]
    return cache.key(*rows)


@functools.cache
def versions() -> tuple[str, ...]:
    """Versions of everything besides the text that a binary depends on."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    return triton, *[
        hashlib.sha256(file_of(name).read_bytes()).hexdigest()
        for name in (MATHS, aot.__name__, cubin.__name__, devices.__name__)
    ]


def file_of(module: str) -> Path:
    """Source file of a module, found without importing it: device functions import Triton."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the source of {module} is part of the kernels' cache key and cannot be found")
    return Path(found.origin)


def nameless(source: str, name: str) -> str:
    """Normalise the text of a kernel, and of the functions it may call, for the cache key: no docstrings, canonical names."""
    tree = parse_source(source)
    functions = [x for x in tree.body if isinstance(x, ast.FunctionDef)]
    own = next(x for x in functions if x.name == name)
    called = {x.id for x in ast.walk(own) if isinstance(x, ast.Name)}
    helpers = [ast.unparse(x) for x in tree.body if not isinstance(x, ast.FunctionDef) or (x.name in called and x is not own)]
    stored = [x.id for x in ast.walk(own) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
    names = [*[a.arg for a in own.args.args], *stored]
    others = {x: f"v{i}" for i, x in enumerate(dict.fromkeys(names))}
    body = own.body[1:] if ast.get_docstring(own) is not None else own.body
    lines = [ast.unparse(Renamed(others).visit(ast.parse(ast.unparse(x)))) for x in body]
    return "\n".join([*helpers, ", ".join(others[a.arg] for a in own.args.args), *lines])


class Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node
