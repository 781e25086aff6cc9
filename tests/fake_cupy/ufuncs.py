"""Ufuncs with CuPy's loops: a call runs in the first loop that all arguments fit in."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .array import element_numbers, ndarray, prepared, quiet, spots_of, unwrap, wrap

INTEGERS = "bBhHiIlLqQ"
FLOATS = "eEfd"  # float16, bfloat16, float32, float64


def loops(inputs: int, kinds: str, result: str = "") -> tuple[str, ...]:
    return tuple(f"{k * inputs}->{result or k}" for k in kinds)


COMPARE = ("??->?", "qq->?", "QQ->?", "qQ->?", "Qq->?", *loops(2, FLOATS, "?"))
LOOPS: dict[str, tuple[str, ...]] = {}
for _names, _loops in {
    "abs absolute ceil fix floor negative positive trunc": loops(1, "?" + INTEGERS + FLOATS),
    "acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cbrt cos cosh deg2rad degrees exp exp2 "
    "expm1 fabs log log10 log1p log2 rad2deg radians rint sin sinc sinh sqrt tan tanh": loops(1, FLOATS),
    "add fmax fmin maximum minimum multiply subtract": loops(2, "?" + INTEGERS + FLOATS),
    "arctan2 atan2 copysign heaviside hypot logaddexp logaddexp2 nextafter": loops(2, FLOATS),
    "bitwise_and bitwise_or bitwise_xor gcd lcm": loops(2, "?" + INTEGERS),
    "bitwise_invert bitwise_not invert": loops(1, "?" + INTEGERS),
    "bitwise_left_shift bitwise_right_shift left_shift right_shift": loops(2, INTEGERS),
    "reciprocal sign square": loops(1, INTEGERS + FLOATS),
    "divide true_divide": ("qq->d", "qQ->d", "Qq->d", "QQ->d", *loops(2, FLOATS)),
    "equal greater greater_equal less less_equal logical_and logical_or not_equal": COMPARE,
    "floor_divide fmod mod remainder": loops(2, INTEGERS + FLOATS),
    "isfinite isinf isnan signbit": loops(1, FLOATS, "?"),
    "logical_not": loops(1, "?" + INTEGERS + "efd", "?"),
    "logical_xor": loops(2, "?" + INTEGERS + "efd", "?"),
    "pow power": ("??->b", *loops(2, INTEGERS + FLOATS)),
    "modf": tuple(f"{k}->{k}{k}" for k in FLOATS),
    "frexp": tuple(f"{k}->{k}i" for k in FLOATS),
}.items():
    LOOPS.update(dict.fromkeys(_names.split(), _loops))

# What `ufunc.at` can do, and for which dtypes.
WIDE = ("int32", "int64", "uint32", "uint64")
AT = {
    "add": (*WIDE, "float16", "float32", "float64"),
    "subtract": ("int32", "uint32"),
    "maximum": (*WIDE, "float32", "float64"),
    "minimum": (*WIDE, "float32", "float64"),
    "bitwise_and": WIDE,
    "bitwise_or": WIDE,
    "bitwise_xor": WIDE,
}


def as_dtype(char: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if char == "E" else np.dtype(char)


def rank(value: Any) -> int:
    """bool, integer, float: how high a kind of number an argument is."""
    if isinstance(value, (ndarray, np.generic)):
        return {"b": 0, "i": 1, "u": 1}.get(value.dtype.kind, 2)
    return 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1


def fits(value: Any, char: str, weak: bool) -> bool:
    """True if an argument can be used in a loop: by safe casting, or a weak Python number by its kind."""
    if isinstance(value, (ndarray, np.generic)):
        return bool(np.can_cast(value.dtype, as_dtype(char)))
    if weak:
        return rank(value) <= (0 if char == "?" else 1 if char in INTEGERS else 2)
    return bool(np.can_cast(np.asarray(value).dtype, as_dtype(char)))


class ufunc:  # noqa: N801 -- CuPy's name
    """A function over arrays element by element."""

    def __init__(self, name: str, types: tuple[str, ...], function: Any = None) -> None:
        self.name, self.types = name, list(types)
        self.function = function or getattr(np, name)
        inputs, outputs = types[0].split("->")
        self.nin, self.nout = len(inputs), len(outputs)

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind", **kwargs: Any) -> Any:
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        if not self.nin <= len(args) <= self.nin + self.nout:
            raise TypeError(f"Wrong number of arguments for {self.name!r}")
        if len(args) > self.nin:
            args, out = args[: self.nin], args[self.nin]
        for a in args:
            if not isinstance(a, (ndarray, bool, int, float, np.generic)):
                raise TypeError(f"Unsupported type {type(a)}")
        inputs, outputs = self.loop(args, dtype)
        with quiet():
            results = self.compute([unwrap(a) for a in args], inputs, outputs)
        if out is None:
            return wrap(results[0]) if self.nout == 1 else tuple(wrap(r) for r in results)
        if not isinstance(out, ndarray):
            raise TypeError(f"Unsupported type {type(out)} for out")
        if out.shape != results[0].shape:
            raise ValueError("Out shape is mismatched")
        if not np.can_cast(results[0].dtype, out.dtype, casting):
            raise TypeError(f"output (typecode {results[0].dtype}) could not be coerced to {out.dtype} by the rule {casting!r}")
        unwrap(out)[...] = results[0]
        return out

    def loop(self, args: tuple[Any, ...], dtype: Any) -> tuple[str, str]:
        if self.name in ("subtract", "negative", "positive") and all(getattr(a, "dtype", None) == np.bool_ for a in args):
            raise TypeError(f"cupy boolean {self.name} is not supported")
        numbers = [a for a in args if not isinstance(a, (ndarray, np.generic))]
        arrays = [a for a in args if isinstance(a, (ndarray, np.generic))]
        weak = bool(arrays and numbers) and max(map(rank, arrays)) >= max(map(rank, numbers))
        for types in self.types:
            inputs, outputs = types.split("->")
            if dtype is not None:
                if as_dtype(outputs[0]) == np.dtype(dtype):
                    return inputs, outputs
            elif all(fits(a, c, weak) for a, c in zip(args, inputs, strict=True)):
                return inputs, outputs
        given = [getattr(a, "dtype", type(a)) for a in args]
        raise TypeError(f"Wrong type ({given}) of arguments for cupy_{self.name}")

    def compute(self, arrays: list[Any], inputs: str, outputs: str) -> list[np.ndarray]:
        arrays = [np.asarray(a).astype(as_dtype(c)) for a, c in zip(arrays, inputs, strict=True)]
        if "E" in inputs:  # bfloat16 is computed in float32, as CuPy does
            arrays = [a.astype(np.float32) if a.dtype.name == "bfloat16" else a for a in arrays]
        found = self.function(*arrays)
        results = found if isinstance(found, tuple) else (found,)
        return [np.asarray(r).astype(as_dtype(c)) for r, c in zip(results, outputs, strict=True)]

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        if self.name not in ("add", "multiply"):
            raise NotImplementedError(f"`cupy_{self.name}.reduce` is not supported yet")
        return getattr(array, "sum" if self.name == "add" else "prod")(axis, dtype, out, keepdims)

    def accumulate(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
        if self.name not in ("add", "multiply"):
            raise NotImplementedError(f"`cupy_{self.name}.accumulate` is not supported yet")
        return getattr(array, "cumsum" if self.name == "add" else "cumprod")(axis, dtype, out)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        if self.name not in AT:
            raise NotImplementedError(f"`cupy_{self.name}.at` is not supported yet")
        target = unwrap(a)
        places, _ = prepared(a, indices)
        if target.dtype.name not in AT[self.name]:
            raise TypeError(f"cupy.{self.name}.at only supports {', '.join(AT[self.name])} as data type, not {target.dtype}")
        scattered = element_numbers(target, places)
        values = np.broadcast_to(np.asarray(unwrap(b)).astype(target.dtype), scattered.shape)
        with quiet():
            self.function.at(*spots_of(target, scattered.reshape(-1)), values.reshape(-1))

    def outer(self, A: Any, B: Any, **kwargs: Any) -> Any:  # noqa: N803 -- CuPy's names
        return self(A.reshape(A.shape + (1,) * B.ndim), B.reshape((1,) * A.ndim + B.shape), **kwargs)


UFUNCS = {name: ufunc(name, types) for name, types in LOOPS.items()}
