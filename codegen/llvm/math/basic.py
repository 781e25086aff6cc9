"""Vector math that is an instruction or two, exactly as in NumPy."""

from __future__ import annotations

import math

from ..ir.builder import Function, Value, constant
from .common import as_bits, constant_like, magnitude, with_sign


def sqrt(f: Function, x: Value) -> Value:
    return f.intrinsic("sqrt", x)


def rsqrt(f: Function, x: Value) -> Value:
    return f.div(constant_like(1.0, x), sqrt(f, x))


def reciprocal(f: Function, x: Value) -> Value:
    return f.div(constant_like(1.0, x), x)


def floor(f: Function, x: Value) -> Value:
    return f.intrinsic("floor", x) if x.type.floating else x


def ceil(f: Function, x: Value) -> Value:
    return f.intrinsic("ceil", x) if x.type.floating else x


def trunc(f: Function, x: Value) -> Value:
    return f.intrinsic("trunc", x) if x.type.floating else x


def round(f: Function, x: Value) -> Value:
    """Round half to even. Decimals are the caller's business."""
    return f.intrinsic("roundeven", x) if x.type.floating else x


def square(f: Function, x: Value) -> Value:
    return f.mul(x, x)


def abs(f: Function, x: Value, unsigned: bool = False) -> Value:
    if x.type.floating:
        return magnitude(f, x)
    return x if unsigned else f.select(f.compare("lt", x, constant(0, x.type)), f.neg(x), x)


def maximum(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    """NaN if either is NaN; of two equal operands, such as 0 and -0, the second."""
    return nan_from(f, a, f.select(f.compare("gt", a, b, unsigned), a, b))


def minimum(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    return nan_from(f, a, f.select(f.compare("lt", a, b, unsigned), a, b))


def nan_from(f: Function, a: Value, value: Value) -> Value:
    return f.select(f.is_nan(a), a, value) if a.type.floating else value


def fmax(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    """The other operand if one is NaN."""
    return unless_nan(f, b, a, f.select(f.compare("gt", a, b, unsigned), a, b))


def fmin(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    return unless_nan(f, b, a, f.select(f.compare("lt", a, b, unsigned), a, b))


def unless_nan(f: Function, b: Value, a: Value, value: Value) -> Value:
    return f.select(f.is_nan(b), a, value) if a.type.floating else value


def sign(f: Function, x: Value, unsigned: bool = False) -> Value:
    """1, 0 or -1; 0 for NaN."""
    zero, one = constant(0, x.type), constant(1, x.type)
    value = f.select(f.compare("gt", x, zero, unsigned), one, zero)
    return value if unsigned else f.select(f.compare("lt", x, zero), constant(-1, x.type), value)


def copysign(f: Function, a: Value, b: Value) -> Value:
    return with_sign(f, a, b)


# ---- predicates: their results are i1


def isnan(f: Function, x: Value) -> Value:
    return f.is_nan(x) if x.type.floating else constant(False, x.type.of("i1"))


def isinf(f: Function, x: Value) -> Value:
    if not x.type.floating:
        return constant(False, x.type.of("i1"))
    return f.compare("eq", magnitude(f, x), constant_like(math.inf, x))


def isfinite(f: Function, x: Value) -> Value:
    if not x.type.floating:
        return constant(True, x.type.of("i1"))
    return f.compare("lt", magnitude(f, x), constant_like(math.inf, x))


def signbit(f: Function, x: Value, unsigned: bool = False) -> Value:
    if unsigned:
        return constant(False, x.type.of("i1"))
    bits = as_bits(f, x) if x.type.floating else x
    return f.compare("lt", bits, constant(0, bits.type))
