"""Runs printed kernels on NumPy arrays, without a GPU, by Triton's interpreter, which is chosen for each call.

Triton means its interpreter to be chosen at import, and to be given torch's tensors. Here its parts are reassembled: the
language is replaced by the interpreter's while a kernel runs, device functions are called as Python, and arrays are passed by
address. Its defects are patched: bfloat16 is rounded to even and multiplied as numbers, a scalar condition can be combined with
a block of them, integers wrap around, and the math library, which it lacks, is NumPy and the eager ops' own functions.

Only one kernel runs at a time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from ....eager.arrays import special_functions as special
from ....tracer.trace.generated_python import file_name, run_module
from ..printing.kernel_text import Argument, Kernel, Printed

LOCK = threading.Lock()
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@cache
def load_module(source: str, interpreted: bool) -> dict[str, Any]:
    """Execute a printed module and return its namespace. Triton and `inspect` read its lines from Python's line cache."""
    space: dict[str, Any] = {"__name__": file_name("triton", source)}
    run_module(source, "triton", space)
    if interpreted:
        space["libdevice"] = numpy_libdevice()
    return space


def run_kernels(printed: Printed, buffers: dict[str, Any], numbers: dict[int, Any]) -> None:
    """Launch a nest's kernels on arrays, given by buffer name. Kernels write into them."""
    memory = dict(buffers)
    for name, (dtype, size) in printed.scratch.items():
        memory[name] = np.full(max(size, 1), 0xAB, np.dtype(dtype if dtype != "bool" else np.uint8))
    for name, words in printed.tables.items():
        memory[name] = np.array([table_word(w, memory, numbers) for w in words], np.int64)
    with LOCK, patch_triton() as interpreter:
        for kernel in printed.kernels:
            function = load_module(printed.source, True)[kernel.name]
            run_kernel(interpreter, function, kernel, memory, numbers)


def run_kernel(interpreter: Any, function: Any, kernel: Kernel, memory: dict[str, Any], numbers: dict[int, Any]) -> None:
    given: list[tuple[str, Any]] = []
    for a in kernel.arguments:
        if a.buffer:
            given.append((a.type, memory[a.buffer].ctypes.data))
        else:
            given.append((a.type, wrap_to_int64(numbers[a.number]) if a.type == "i64" else numbers[a.number]))
    run_programs(interpreter, function, given, (kernel.grid, 1, 1))


def run_programs(interpreter: Any, function: Any, given: list[tuple[str, Any]], grid: tuple[int, int, int]) -> None:
    """Run a kernel's grid on addresses and scalars, each with its type."""
    tensors = []
    for text, value in given:
        kind = interpreter.tl.str_to_ty(text, None)
        data = np.array([value], np.uint64 if text.startswith("*") else interpreter._get_np_dtype(kind))
        tensors.append(interpreter.tl.tensor(interpreter.TensorHandle(data, kind), kind))
    body = interpreter.InterpretedFunction(function.fn).rewrite()
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*[max(n, 1) for n in grid])
    for place in itertools.product(*map(range, grid)):
        builder.set_grid_idx(*place)
        body(*tensors)


def table_word(w: int | Argument, memory: dict[str, Any], numbers: dict[int, Any]) -> int:
    """Word of a table: an integer, the address of a buffer, or the bits of a scalar."""
    if isinstance(w, int):
        return w
    if w.buffer:
        return int(memory[w.buffer].ctypes.data)
    given = numbers[w.number]
    return int(np.float64(given).view(np.int64)) if w.type == "fp64" else wrap_to_int64(given)


def wrap_to_int64(n: int) -> int:
    """Reinterpret an integer in [0, 2**64) as the int64 with the same bits."""
    return (int(n) + (1 << 63)) % (1 << 64) - (1 << 63)


# ---- patches of the interpreter


@contextmanager
def patch_triton() -> Iterator[Any]:
    """Replace Triton's language by the interpreter's within the context."""
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    from ..printing import device_functions as maths

    tl = interpreter.tl
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    builder = interpreter.interpreter_builder

    def called(function: Any, *args: Any, **settings: Any) -> Any:
        return interpreter.InterpretedFunction(function.fn).rewrite()(*args, **settings)

    def sort(x: Any) -> Any:  # the interpreter's own exchanges elements as a GPU does, and takes a second
        return tl.tensor(interpreter.TensorHandle(np.sort(x.handle.data), x.dtype), x.type)

    def reduce(x: Any, axis: Any, combine: Any, keep_dims: Any = False, **_: Any) -> Any:
        axis, keep = unwrap(axis), bool(unwrap(keep_dims))
        ops = interpreter.ReduceOps(axis, combine, keep)
        for known, ufunc in ((maths.maximum, np.maximum), (maths.minimum, np.minimum), (maths.product, np.multiply)):
            if combine is known:  # the interpreter would go through it element by element
                return ops.to_tensor(ufunc.reduce(x.handle.data, axis=axis, keepdims=keep), x.dtype)
        return ops.apply(x)

    def scan(x: Any, axis: Any, combine: Any, reverse: Any = False, **_: Any) -> Any:
        """Scan in log2(n) rounds, each of which doubles the span of the results; the interpreter would go element by
        element."""
        several, axis = isinstance(x, tuple), unwrap(axis)
        given = x if several else (x,)
        pack = interpreter.ScanOps(axis, combine, False).to_tensor
        data = [np.flip(t.handle.data, axis) if unwrap(reverse) else t.handle.data for t in given]
        place = np.arange(data[0].shape[axis]).reshape([-1 if i == axis else 1 for i in range(data[0].ndim)])
        step = 1
        while step < place.size:
            before = [pack(np.roll(d, step, axis), t.dtype) for d, t in zip(data, given, strict=True)]
            found = combine.fn(*before, *[pack(d, t.dtype) for d, t in zip(data, given, strict=True)])
            joined = found if several else (found,)
            data = [np.where(place >= step, j.handle.data, d) for j, d in zip(joined, data, strict=True)]
            step *= 2
        data = [np.ascontiguousarray(np.flip(d, axis) if unwrap(reverse) else d) for d in data]
        packed = tuple(pack(d, t.dtype) for d, t in zip(data, given, strict=True))
        return packed if several else packed[0]

    try:
        scope.set_attr(JITFunction, "__call__", called)
        scope.set_attr(builder, "cast_impl", patched_cast(interpreter, builder.cast_impl))
        scope.set_attr(builder, "create_splat", patched_splat(interpreter))
        scope.set_attr(builder, "create_dot", patched_dot(interpreter))
        scope.set_attr(builder, "options", replace(builder.options, sanitize_overflow=False))  # integers wrap around
        scope.set_attr(maths, "libdevice", numpy_libdevice())
        for name, value in list(vars(maths).items()):
            if isinstance(value, tl.constexpr):
                scope.set_attr(maths, name, value.value)
        for language in (tl, tl.core):
            scope.set_attr(language, "reduce", reduce)
            scope.set_attr(language, "associative_scan", scan)
        scope.set_attr(tl, "sort", sort)
        with np.errstate(all="ignore"):
            yield interpreter
    finally:
        scope.restore()


def unwrap(x: Any) -> Any:
    return getattr(x, "value", x)


def patched_cast(interpreter: Any, usual: Callable[..., Any]) -> Callable[..., Any]:
    """Patch the cast: bfloat16 is rounded to even, and NaN stays NaN."""
    tl = interpreter.tl

    def cast(source: Any, kind: Any) -> Any:
        before, after = source.dtype.scalar, kind.scalar
        if after == tl.bfloat16 and before != after:
            data = source.data.astype(np.float32).astype(BFLOAT16).view(np.uint16)
        elif before == tl.bfloat16 and before != after:
            data = source.data.view(BFLOAT16).astype(np.float32).astype(interpreter._get_np_dtype(kind))
        else:
            return usual(source, kind)
        return interpreter.TensorHandle(data, after)

    return cast


def patched_splat(interpreter: Any) -> Callable[..., Any]:
    """Patch the splat: a comparison of scalars is a boolean, whatever type it is recorded as."""

    def splat(kind: Any, scalar: Any) -> Any:
        return interpreter.TensorHandle(np.full(kind.shape, scalar.data.reshape(-1)[0], scalar.data.dtype), scalar.dtype.scalar)

    return splat


def patched_dot(interpreter: Any) -> Callable[..., Any]:
    """Patch the matmul: halves are multiplied in float32, as on devices; bfloat16 would be taken for integers."""

    def numbers(x: Any) -> Any:
        return x.data.view(BFLOAT16).astype(np.float32) if x.dtype.scalar == interpreter.tl.bfloat16 else x.data

    def dot(a: Any, b: Any, total: Any, *_: Any) -> Any:
        wide = total.data.dtype
        found = np.matmul(numbers(a).astype(wide), numbers(b).astype(wide)) + total.data
        return interpreter.TensorHandle(found, total.dtype.scalar)

    return dot


@cache
def numpy_libdevice() -> Any:
    """Math functions of libdevice, on the interpreter's values."""
    from triton.runtime import interpreter

    tl = interpreter.tl
    names = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
    names |= {"atan2": "arctan2", "pow": "power"}
    same = ("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot")
    names |= {name: name for name in (*same, "fmod", "copysign", "rint", "trunc", "floor", "ceil")}
    functions: dict[str, Any] = {name: getattr(np, ufunc) for name, ufunc in names.items()}
    for name in ("erf", "erfc", "erfinv", "lgamma"):
        functions[name] = partial(getattr(special, name), np)

    def wrapped(function: Any) -> Any:
        def call(*args: Any) -> Any:
            blocks = [a for a in args if a.type.is_block()]
            data = function(*[a.handle.data for a in args]).astype(args[0].handle.data.dtype)
            kind = tl.block_type(args[0].dtype, list(data.shape)) if blocks else args[0].dtype
            return tl.tensor(interpreter.TensorHandle(data, args[0].dtype), kind)

        return call

    return SimpleNamespace(**{name: wrapped(f) for name, f in functions.items()})
