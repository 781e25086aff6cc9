"""Functions of vectors, compiled and run over arrays for tests: the loop around what an emitter writes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tapejit.codegen.llvm.ir.builder import I64, PTR, Function, Module, Type, Value
from tapejit.codegen.llvm.ir.target import Target, host
from tapejit.codegen.llvm.runtime import jit

SCALARS = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "bool": "i8",
    **{f"{u}int{b}": f"i{b}" for u in ("", "u") for b in (8, 16, 32, 64)},
}
Body = Callable[..., Value]


def any_cpu() -> Target:
    """This machine without AVX-512."""
    here = host()
    features = ",".join(f for f in here.features.split(",") if "avx512" not in f)
    return Target(here.triple, "x86-64-v3" if "x86_64" in here.triple else here.cpu, features, min(here.bits, 256))


def scalar(dtype: Any) -> str:
    return SCALARS[np.dtype(dtype).name]


class Emitted:
    """`body(f, *operands)`, as many lanes at a time, over arrays of `dtype`, to one of `result` or the same."""

    def __init__(self, body: Body, dtype: Any, lanes: int, operands: int = 1, result: Any = None, target: Target | None = None):
        self.lanes, self.result = lanes, np.dtype(dtype if result is None else result)
        module = Module((target or host()).features)
        f = module.function("run", [(f"p{i}", PTR) for i in range(operands + 1)] + [("n", I64)])
        *places, out, n = f.params
        with f.loop(0, n, lanes) as loop:
            kind = Type(scalar(dtype), lanes)
            found = body(f, *(f.load(f.pointer(p, loop.index, kind.scalar), kind) for p in places))
            store(f, found, out, loop.index)
        f.ret()
        self.library = jit.link([jit.compile_text(str(module), target)], {}, ["run"])
        self.function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (operands + 1), ctypes.c_int64)(self.library["run"])

    def __call__(self, *arrays: Any) -> Any:
        """The function of arrays of one dimension; the last vector is filled up."""
        n = len(arrays[0])
        padded = [np.concatenate([a, np.ones(-n % self.lanes, a.dtype)]) for a in arrays]
        out = np.zeros(len(padded[0]), self.result)
        self.function(*(a.ctypes.data for a in padded), out.ctypes.data, len(out))
        return out[:n]


def store(f: Function, value: Value, out: Value, index: Value) -> None:
    if value.type.scalar == "i1":
        value = f.convert("zext", value, "i8")
    f.store(value, f.pointer(out, index, value.type.scalar))


def units(found: Any, exact: Any) -> Any:
    """Return the error of results, in units in the last place of the exact ones, which have more bits. Infinity for NaN or an
    infinity out of place."""
    info = np.finfo(found.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        finite = np.isfinite(exact) & (exact != 0)
        exponents = np.frexp(np.where(finite, exact, 1))[1] - 1
        unit = np.ldexp(np.ones((), exact.dtype), np.maximum(exponents, info.minexp) - info.nmant)
        off = np.abs(found.astype(exact.dtype) - exact) / unit
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    return np.where(np.isfinite(off), off, np.where(same, 0, np.inf))


def worst(found: Any, exact: Any, *inputs: Any) -> tuple[float, str]:
    """The largest distance, and where it is."""
    off = units(found, exact)
    i = int(off.argmax())
    return float(off[i]), f"{off[i]:.3f} units off at {[x[i] for x in inputs]}: {found[i]!r}, not {exact[i]!r}"


def alike(found: Any, wanted: Any) -> bool:
    """The same bits, but that a NaN is a NaN."""
    kind = np.dtype(f"u{found.itemsize}")
    return bool(np.all((found.view(kind) == wanted.view(kind)) | (np.isnan(found) & np.isnan(wanted))))


def patterns(dtype: Any, count: int) -> Any:
    """Floats of all exponents and signs, infinities and NaN among them: evenly spaced bits."""
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    step = (np.iinfo(bits).max // count) | 1
    return (np.arange(count, dtype=bits) * bits.type(step)).view(dtype)


def specials(dtype: Any, more: Sequence[float] = ()) -> Any:
    info = np.finfo(dtype)
    sizes = [0.0, 0.5, 1.0, 2.0, 3.0, np.inf, info.max, info.tiny, info.smallest_subnormal, 1e-3, 40.0, *more]
    return np.array([*sizes, *(-s for s in sizes), np.nan], dtype)
