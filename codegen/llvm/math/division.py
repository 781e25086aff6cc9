"""Vector math: division with remainder, of floats and of integers, as in NumPy.

The quotient of two integers of up to 32 bits is computed in double, which is exact and a vector instruction. A divisor of 0
gives 0 here and does not trap: the error that eager execution raises is the caller's business.
"""

from __future__ import annotations

import math

from ..ir.builder import BYTES, Function, Value, constant
from .common import branch_rarely, call_each_lane, constant_like, magnitude, with_sign

# ---- floats and integers


def fmod(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    """Remainder with the sign of the dividend."""
    if a.type.floating:
        return fmod_floats(f, a, b)
    return f.sub(a, f.mul(quotient(f, a, b, unsigned), b))


def remainder(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    """Remainder with the sign of the divisor."""
    rest = fmod(f, a, b, unsigned)
    if unsigned:
        return rest
    zero = constant(0, a.type)
    none = f.compare("eq", rest, zero)
    crossed = f.and_(f.not_(none), f.xor(f.compare("lt", rest, zero), f.compare("lt", b, zero)))
    value = f.select(crossed, f.add(rest, b), rest)
    return f.select(none, with_sign(f, zero, b), value) if a.type.floating else value


def floor_divide(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    if a.type.floating:
        return floor_divide_floats(f, a, b)
    whole = quotient(f, a, b, unsigned)
    if unsigned:
        return whole
    zero = constant(0, a.type)
    rest = f.sub(a, f.mul(whole, b))
    crossed = f.and_(f.compare("ne", rest, zero), f.xor(f.compare("lt", rest, zero), f.compare("lt", b, zero)))
    return f.add(whole, f.convert("sext", crossed, a.type.scalar))


def trunc_divide(f: Function, a: Value, b: Value, unsigned: bool = False) -> Value:
    """Integer division towards zero."""
    return quotient(f, a, b, unsigned)


# ---- floats


def fmod_floats(f: Function, a: Value, b: Value) -> Value:
    """Quotients that a float holds exactly are multiplied back, exactly; others go to the C library."""
    size, divisor = magnitude(f, a), magnitude(f, b)
    ratio = f.div(size, divisor)
    usual = f.and_(f.compare("lt", ratio, constant_like(2.0**20, a)), f.compare("lt", divisor, constant_like(math.inf, a)))
    whole = f.intrinsic("trunc", ratio)
    rest = f.fma(f.neg(whole), divisor, size)
    rest = f.select(f.compare("lt", rest, constant_like(0.0, a)), f.add(rest, divisor), rest)  # the ratio was rounded up
    value = with_sign(f, rest, a)
    return branch_rarely(f, f.not_(usual), value, lambda: f.select(usual, value, call_each_lane(f, "fmod", a, b)))


def floor_divide_floats(f: Function, a: Value, b: Value) -> Value:
    """Floor division by way of the remainder, as the rounded quotient may already be the next integer."""
    zero, one = constant_like(0.0, a), constant_like(1.0, a)
    rest = fmod_floats(f, a, b)
    value = f.div(f.sub(a, rest), b)
    crossed = f.and_(f.compare("ne", rest, zero), f.xor(f.compare("lt", rest, zero), f.compare("lt", b, zero)))
    value = f.select(crossed, f.sub(value, one), value)
    whole = f.intrinsic("floor", value)
    whole = f.select(f.compare("gt", f.sub(value, whole), constant_like(0.5, a)), f.add(whole, one), whole)
    ratio = f.div(a, b)
    whole = f.select(f.compare("eq", value, zero), with_sign(f, zero, ratio), whole)
    return f.select(f.compare("eq", b, zero), ratio, whole)


# ---- integers


def quotient(f: Function, a: Value, b: Value, unsigned: bool) -> Value:
    """Quotient towards zero. The least integer divided by -1 wraps around to itself."""
    zero, one = constant(0, a.type), constant(1, a.type)
    nothing = f.compare("eq", b, zero)
    if BYTES[a.type.scalar] <= 4:
        to, back = ("uitofp", "fptoui") if unsigned else ("sitofp", "fptosi")
        ratio = f.div(f.convert(to, a, "double"), f.convert(to, f.select(nothing, one, b), "double"))
        whole = f.convert("trunc", f.convert(back, ratio, "i64"), a.type.scalar)
    elif unsigned:
        whole = f.binary("udiv", a, f.select(nothing, one, b))
    else:
        minus = f.compare("eq", b, constant(-1, a.type))
        whole = f.div(a, f.select(f.or_(nothing, minus), one, b))
        whole = f.select(minus, f.neg(a), whole)
    return f.select(nothing, zero, whole)
