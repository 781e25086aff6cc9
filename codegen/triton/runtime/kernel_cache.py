"""Compiled kernels: several at a time in threads, each once, and from the disk cache where they were compiled before.

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
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ...program import disk_cache as cache
from ..printing.kernel_text import Kernel, Printed


class CompileError(Exception):
    """A kernel that does not compile: which, why, and what to do."""


END = b"\n"  # between what is told of a binary and its code


@dataclass(frozen=True)
class Wanted:
    """A kernel that is to be compiled, and the buffers whose addresses may be no multiples of 16 bytes."""

    printed: Printed
    kernel: Kernel
    unaligned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Binary:
    """Code for a device, and what it takes to launch it."""

    name: str  # of the function
    threads: int  # of each program
    shared: int  # bytes of each program
    scratch: int  # bytes of memory that each program wants besides
    code: bytes

    def entry(self) -> bytes:
        """As it is in the disk cache."""
        told = {k: v for k, v in asdict(self).items() if k != "code"}
        return json.dumps(told).encode() + END + self.code


def from_entry(data: bytes) -> Binary:
    told, _, code = data.partition(END)
    return Binary(code=code, **json.loads(told))


Compiler = Callable[[Wanted, str], Binary]


def compiled(wanted: Wanted, target: str) -> Binary:
    """A kernel by Triton's compiler."""
    from ..device.compile import compiled, target_of

    if importlib.util.find_spec("triton") is None:
        raise CompileError("Triton is not installed, which compiles kernels for GPUs; pip install 'tapejit[gpu]'")
    made = compiled(wanted.printed, wanted.kernel, target, wanted.unaligned)
    told = made.metadata
    return Binary(
        name=told.name,
        threads=told.num_warps * target_of(target)[2],
        shared=int(told.shared),
        scratch=int(getattr(told, "global_scratch_size", 0) or 0),
        code=bytes(made.asm["hsaco" if target.startswith("gfx") else "cubin"]),
    )


class Compiling:
    """How kernels are compiled; tests have devices of their own."""

    compiler: Compiler = staticmethod(compiled)


def binaries(wanted: Sequence[Wanted], target: str) -> list[tuple[str, Binary]]:
    """For each kernel its key and its code."""
    keys = [key(x, target) for x in wanted]
    known: dict[str, Binary] = {}
    missing: dict[str, Wanted] = {}
    for k, x in zip(keys, wanted, strict=True):
        if k not in known and k not in missing:
            found = kept(k)
            if found is None:
                missing[k] = x
            else:
                known[k] = found
    missing = dict(sorted(missing.items(), key=lambda x: -effort(x[1])))  # what takes long first: nobody waits for it alone
    if len(missing) == 1 or os.cpu_count() == 1:
        made = [one(x, target) for x in missing.values()]
    else:
        with ThreadPoolExecutor(os.cpu_count(), "tapejit-triton") as pool:
            made = list(pool.map(lambda x: one(x, target), missing.values()))
    for k, binary in zip(missing, made, strict=True):
        cache.put(k, binary.entry())
        known[k] = binary
    return [(k, known[k]) for k in keys]


def effort(wanted: Wanted) -> int:
    """Roughly how long a kernel takes to compile: by its text, and products ten times as long."""
    source = wanted.printed.source
    return len(source) * (10 if "tl.dot" in source else 1)


def one(wanted: Wanted, target: str) -> Binary:
    try:
        return Compiling.compiler(wanted, target)
    except CompileError:
        raise
    except Exception as reason:
        told = (str(reason).strip().splitlines() or [type(reason).__name__])[-1]
        what = f"Triton cannot compile {wanted.kernel.name} for {target} ({told})"
        raise CompileError(f'{what}; compile with backend="plain" there, and please report the kernel') from reason


def kept(key: str) -> Binary | None:
    """A binary from the disk cache."""
    data = cache.get(key)
    if data is None:
        return None
    try:
        return from_entry(data)
    except (ValueError, TypeError):  # written by another version
        return None


# ---- which kernels are the same


def key(wanted: Wanted, target: str) -> str:
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
    """What the same text may be compiled otherwise by."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    files = [Path(__file__).parent / name for name in ("maths.py", "aot.py", "cubin.py", "devices.py")]
    return triton, *[hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@functools.cache
def parsed(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the user's lines are in docstrings
        return ast.parse(source)


def nameless(source: str, name: str) -> str:
    """The text of a kernel, and of what it may call, without docstrings and with other names."""
    tree = parsed(source)
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
