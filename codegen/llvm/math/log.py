"""Vector math: logarithms, inverse hyperbolic functions, logaddexp and xlogy.

log(x) = n ln 2 + log(m), where x = m 2^n and m is from 0.75 to 1.5. The polynomials are minimax fits (Remez's exchange, 50
digits), rounded from the lowest coefficient up with the rest fitted again each time, highest power first.
"""

from __future__ import annotations

import math

from ..ir.builder import Function, Value
from .common import (
    NearestInteger,
    at_most,
    constant_like,
    format_of,
    has_avx512_instructions,
    horner,
    magnitude,
    mantissa_and_exponent,
    power_of_two,
    round_to_type,
    with_sign,
)
from .exp import LN2, LOG2_E, exp, exp2

# (log(1 + t) - t + t^2 / 2) / t^3, for t from -0.25 to 0.5; relative error of log 4.9e-9
LOG_FLOAT = (
    -0.04515458270907402,
    0.10474660992622375,
    -0.13166239857673645,
    0.14478400349617004,
    -0.16646865010261536,
    0.19990800321102142,
    -0.25000104308128357,
    0.3333345055580139,
)
# (log((1 + s) / (1 - s)) / s - 2) / s^2 in s^2, for |s| < 0.2; error 3.7e-17
LOG_DOUBLE = (
    0.13706836597783795,
    0.13196625298497464,
    0.15389551548313615,
    0.1818172002073855,
    0.22222223279285763,
    0.2857142856584668,
    0.4000000000001122,
    0.6666666666666666,
)

# log10(2) in two parts, the first with few bits
LOG10_2 = {"float": (0.301025390625, 4.605039066518657e-06), "double": (0.3010299955494702, 1.1451100898021838e-10)}


def log(f: Function, x: Value) -> Value:
    m, n = mantissa_and_exponent(f, x)
    t = f.sub(m, constant_like(1.0, x))
    return at_edges(f, x, log_of_parts(f, t, n))


def log_of_parts(f: Function, t: Value, n: Value, more: Value | None = None) -> Value:
    """log((1 + t + more) * 2^n)."""
    high, low = LN2[t.type.scalar]
    rest = log_rest(f, t) if more is None else f.add(log_rest(f, t), more)
    rest = f.fma(n, constant_like(low, t), rest)
    return f.fma(n, constant_like(high, t), f.add(t, rest))


def log2(f: Function, x: Value) -> Value:
    return log_to_base(f, x, LOG2_E, 2.0355273740931033e-17, (1.0, 0.0))


def log10(f: Function, x: Value) -> Value:
    return log_to_base(f, x, 0.4342944819032518, 1.098319650216765e-17, LOG10_2[x.type.scalar])


def log_to_base(f: Function, x: Value, factor: float, factor_low: float, of_2: tuple[float, float]) -> Value:
    """log(x) * factor, given log(2) * factor in two parts. t, the greatest part, is multiplied by twice the bits."""
    m, n = mantissa_and_exponent(f, x)
    t = f.sub(m, constant_like(1.0, x))
    rounded = round_to_type(factor, x)
    low = factor - rounded if rounded != factor else factor_low
    value = f.fma(log_rest(f, t), constant_like(rounded, x), f.mul(t, constant_like(low, x)))
    if of_2[1]:
        value = f.fma(n, constant_like(of_2[1], x), value)
    value = f.fma(t, constant_like(rounded, x), value)
    return at_edges(f, x, f.fma(n, constant_like(of_2[0], x), value))


def log1p(f: Function, x: Value, low: Value | None = None) -> Value:
    """log of the sum 1 + x + low, where what rounding took from the sum is added to its mantissa again."""
    one = constant_like(1.0, x)
    total = f.add(x, one)
    back = f.sub(total, one)
    lost = f.add(f.sub(one, f.sub(total, back)), f.sub(x, back))
    lost = f.select(f.compare("lt", total, constant_like(math.inf, x)), lost, constant_like(0.0, x))
    m, n = mantissa_and_exponent(f, total)
    magic = format_of(x).magic
    inverse = NearestInteger(n, f.sub(constant_like(magic, x), at_most(f, n, format_of(x).bias - 1)))
    power = power_of_two(f, inverse)
    t = f.fma(lost, power, f.sub(m, one))
    low = None if low is None else f.mul(low, power)
    return with_sign(f, at_edges(f, total, log_of_parts(f, t, n, low)), x)


def log_rest(f: Function, t: Value) -> Value:
    """log(1 + t) - t, for t from -0.25 to 0.5."""
    square = f.mul(t, t)
    if t.type.scalar == "float":
        return f.fma(square, constant_like(-0.5, t), f.mul(f.mul(square, t), horner(f, t, LOG_FLOAT)))
    s = f.div(t, f.add(t, constant_like(2.0, t)))
    z = f.mul(s, s)
    half = f.mul(square, constant_like(0.5, t))
    return f.sub(f.mul(s, f.fma(z, horner(f, z, LOG_DOUBLE), half)), half)


def at_edges(f: Function, x: Value, value: Value) -> Value:
    """Correct a logarithm at 0, at infinity and below 0. AVX-512's instructions handle these already."""
    if has_avx512_instructions(f, x):
        return value
    zero, infinity = constant_like(0.0, x), constant_like(math.inf, x)
    value = f.select(f.compare("eq", x, zero), constant_like(-math.inf, x), value)
    value = f.select(f.compare("lt", x, zero), constant_like(math.nan, x), value)
    return f.select(f.compare("lt", x, infinity), value, x)


# ---- the inverses of hyperbolic functions

SQUARE_IS_ALL = {"float": 2.0**30, "double": 2.0**60}  # from here on 1 is negligible beside x^2, and beside x


def asinh(f: Function, x: Value) -> Value:
    """log1p(|x| + x^2 / (1 + sqrt(1 + x^2)))."""
    one, size = constant_like(1.0, x), magnitude(f, x)
    square = f.mul(size, size)
    root = f.intrinsic("sqrt", f.add(square, one))
    return with_sign(f, log_of_sum(f, size, size, f.div(square, f.add(root, one))), x)


def acosh(f: Function, x: Value) -> Value:
    """log1p(t + sqrt(t (t + 2))), where t = x - 1."""
    one = constant_like(1.0, x)
    t = f.sub(x, one)
    root = f.intrinsic("sqrt", f.fma(t, t, f.add(t, t)))
    return f.select(f.compare("lt", x, one), constant_like(math.nan, x), log_of_sum(f, x, root, t))


def log_of_sum(f: Function, x: Value, a: Value, b: Value) -> Value:
    """log1p(a + b), a being the larger one, or where x is so large that its square would overflow log(2 x)."""
    large, zero = f.compare("gt", x, constant_like(SQUARE_IS_ALL[x.type.scalar], x)), constant_like(0.0, x)
    total = f.add(a, b)
    low = f.select(large, zero, f.sub(b, f.sub(total, a)))
    value = log1p(f, f.select(large, x, total), low)
    return f.add(value, f.select(large, constant_like(math.log(2), x), zero))


def atanh(f: Function, x: Value) -> Value:
    """log1p(2 q) / 2, where q = |x| / (1 - |x|), for small x as |x| + |x| q."""
    size = magnitude(f, x)
    q = f.div(size, f.sub(constant_like(1.0, x), size))
    q = f.select(f.compare("lt", size, constant_like(0.5, x)), f.fma(size, q, size), q)
    return with_sign(f, f.mul(log1p(f, f.add(q, q)), constant_like(0.5, x)), x)


# ---- of two operands


def logaddexp(f: Function, a: Value, b: Value) -> Value:
    """log(exp(a) + exp(b))."""
    larger, apart = larger_and_distance(f, a, b)
    return f.add(larger, log1p(f, exp(f, apart)))


def logaddexp2(f: Function, a: Value, b: Value) -> Value:
    larger, apart = larger_and_distance(f, a, b)
    found = f.fma(log1p(f, exp2(f, apart)), constant_like(LOG2_E, a), larger)
    return f.select(f.compare("eq", a, b), f.add(a, constant_like(1.0, a)), found)


def larger_and_distance(f: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """The larger one, and -|a - b|, which is 0 for two equal infinities too."""
    apart = f.neg(magnitude(f, f.sub(a, b)))
    apart = f.select(f.compare("eq", a, b), constant_like(0.0, a), apart)
    return f.select(f.compare("gt", a, b), a, b), apart


def xlogy(f: Function, a: Value, b: Value) -> Value:
    """a * log(b), and 0 where a is 0 and b a number."""
    nothing = f.and_(f.compare("eq", a, constant_like(0.0, a)), f.not_(f.is_nan(b)))
    return f.select(nothing, constant_like(0.0, a), f.mul(a, log(f, b)))
