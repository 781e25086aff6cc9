"""Vector math: the error function, its complement and inverse, the gamma function's logarithm and its derivative.

The polynomials are minimax fits (Remez's exchange, 50 digits), rounded from the lowest coefficient up with the rest fitted
again each time, highest power first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ....eager.arrays import special_functions as special
from ..ir.builder import Function, Value
from . import erf as vmath_erf
from .common import at_least, at_most, call_each_lane, constant_like, horner, magnitude, scale_by_power, with_sign
from .exp import EXP, exp, reduce_argument_in_two
from .log import log
from .trig import tan

ERF_LIMIT = 0.5  # up to here erf is a polynomial
# erf(x) / x - 1 in x^2, for |x| up to the limit; relative error of erf 1.4e-17
ERF_NEAR = (
    1.4812926720075807e-06,
    -1.4853011225561467e-05,
    0.00012053548191622932,
    -0.0008548300182248956,
    0.005223977370247061,
    -0.02686617063012741,
    0.11283791670906199,
    -0.3761263890318309,
    0.12837916709551256,
)
# exp(x^2) erfc(x) (x + 4) in (x - 4) / (x + 4), for x from 0.5 to 28; relative error 7.1e-17
ERFC = (
    -1.1783616023745086e-08,
    1.3426657512721705e-09,
    1.1845894629054566e-07,
    -7.616496709431632e-08,
    -8.413435610522686e-07,
    1.4246309072826706e-06,
    4.6918882231234865e-06,
    -1.886105802857002e-05,
    -3.6343363055060314e-06,
    0.0001768128578051446,
    -0.0004550528604785584,
    -0.00028095887063057674,
    0.006112055678971733,
    -0.026370053339984847,
    0.07638151490751227,
    -0.17401093723994193,
    0.3308515878780833,
    -0.5408538313132352,
    0.773208702265236,
    -0.976548729080882,
    1.095995661000491,
)


def erf(f: Function, x: Value) -> Value:
    if x.type.scalar == "float":
        return vmath_erf.erf(f, x)
    size = magnitude(f, x)
    far = f.sub(constant_like(1.0, x), erfc_tail(f, size))
    return f.select(f.compare("lt", size, constant_like(ERF_LIMIT, x)), erf_near(f, x), with_sign(f, far, x))


def erf_near(f: Function, x: Value) -> Value:
    """erf for |x| up to the limit, in double."""
    return f.fma(x, horner(f, f.mul(x, x), ERF_NEAR), x)


def erfc_tail(f: Function, x: Value) -> Value:
    """erfc for x >= 0.5, in double: p / (x + 4) * exp(-x^2), where p is a polynomial in t = (x - 4) / (x + 4).

    What rounding takes from t, p, the quotient and the square is given back, t's through the slope of p, which follows from
    erfc's: many small errors would add up to 4 units in the last place.
    """
    x = at_most(f, x, 28.0)
    four = constant_like(4.0, x)
    below, above = f.sub(x, four), f.add(x, four)
    above_low = f.sub(x, f.sub(above, four))
    t = f.div(below, above)
    t_low = f.fma(f.neg(t), above_low, f.sub(x, f.add(below, four)))
    t_low = f.add(f.fma(f.neg(t), above, below), t_low)  # times x + 4
    *bends, lowest = ERFC
    bend, start = horner(f, t, bends), constant_like(lowest, x)
    p = f.fma(bend, t, start)
    slope = f.fma(f.add(x, x), p, f.mul(above, constant_like(-2 / math.sqrt(math.pi), x)))
    p_low = f.fma(bend, t, f.sub(start, p))
    p_low = f.fma(f.fma(slope, above, p), f.mul(t_low, constant_like(0.125, x)), p_low)
    ratio = f.div(p, above)
    left = f.fma(f.neg(ratio), above_low, f.fma(f.neg(ratio), above, p))
    ratio_low = f.div(f.add(left, p_low), above)
    square = f.mul(x, x)
    n, r, low = reduce_argument_in_two(f, f.neg(square))
    low = f.sub(low, f.fma(x, x, f.neg(square)))
    bend, square = horner(f, r, EXP["double"]), f.mul(r, r)
    low = f.fma(low, f.fma(bend, square, r), low)
    more = f.add(r, f.fma(bend, square, low))  # exp(r + low) - 1
    return scale_by_power(f, f.add(f.fma(ratio, more, f.fma(ratio_low, more, ratio_low)), ratio), n)


def erfc(f: Function, x: Value) -> Value:
    """1 - erf(x), with full relative precision where that is tiny."""
    size, one = magnitude(f, x), constant_like(1.0, x)
    tail = erfc_tail(f, size)
    tail = f.select(f.compare("lt", x, constant_like(0.0, x)), f.sub(constant_like(2.0, x), tail), tail)
    return f.select(f.compare("lt", size, constant_like(ERF_LIMIT, x)), f.sub(one, erf_near(f, x)), tail)


def erfinv(f: Function, x: Value) -> Value:
    """Winitzki's formula, right to 3 digits, and steps of Halley's method, each of which triples the digits, though not at once
    near 1, where erf is all but flat."""
    size, one, zero = magnitude(f, x), constant_like(1.0, x), constant_like(0.0, x)
    logarithm = log(f, f.mul(f.sub(one, size), f.add(one, size)))
    scaled = f.mul(logarithm, constant_like(1 / 0.147, x))
    b = f.fma(logarithm, constant_like(0.5, x), constant_like(2 / (math.pi * 0.147), x))
    root = f.intrinsic("sqrt", f.sub(f.mul(b, b), scaled))
    y = f.intrinsic("sqrt", f.div(f.neg(scaled), f.add(root, b)))
    near = f.compare("lt", size, constant_like(0.52, x))  # erf(0.4996)
    for _ in range(3):
        excess = f.select(near, f.sub(erf_near(f, y), size), f.sub(f.sub(one, size), erfc_tail(f, y)))
        step = f.mul(f.mul(excess, constant_like(math.sqrt(math.pi) / 2, x)), exp(f, f.mul(y, y)))
        y = f.sub(y, f.div(step, f.fma(y, step, one)))
    y = f.select(f.compare("eq", size, one), constant_like(math.inf, x), y)
    return f.select(f.compare("eq", size, zero), x, with_sign(f, y, x))


# ---- the gamma function's logarithm and its derivative


def lgamma(f: Function, x: Value) -> Value:
    """The C library's lgamma, lane by lane."""
    return call_each_lane(f, "lgamma", x)


def digamma(f: Function, x: Value) -> Value:
    """Below 0 the reflection formula: digamma(x) = digamma(1 - x) - pi / tan(pi x)."""
    zero, one, pi = constant_like(0.0, x), constant_like(1.0, x), constant_like(math.pi, x)
    reflect = f.compare("lt", x, zero)
    value = digamma_positive(f, f.select(reflect, f.sub(one, x), x))
    beyond = f.sub(x, f.intrinsic("roundeven", x))
    reflected = f.sub(value, f.div(pi, tan(f, f.mul(pi, beyond))))
    reflected = f.select(f.compare("eq", beyond, zero), constant_like(math.nan, x), reflected)
    value = f.select(reflect, reflected, value)
    return f.select(f.compare("eq", x, zero), f.neg(with_sign(f, constant_like(math.inf, x), x)), value)


def digamma_positive(f: Function, x: Value) -> Value:
    """The asymptotic series from 10 on; below, digamma(x + 1) = digamma(x) + 1 / x leads to the interval [1, 2)."""
    zero, one = constant_like(0.0, x), constant_like(1.0, x)
    large = at_least(f, x, 10.0)
    square = f.div(one, f.mul(large, large))
    series = f.sub(log(f, large), f.div(constant_like(0.5, x), large))
    series = f.fma(square, horner(f, square, special._DIGAMMA_STIRLING), series)
    small = at_most(f, x, 10.0)
    steps = f.sub(f.intrinsic("floor", small), one)  # how far above the interval, -1 ... 9
    total = f.select(f.compare("lt", steps, zero), f.div(constant_like(-1.0, x), small), zero)
    for k in range(1, 10):
        passed = f.compare("ge", steps, constant_like(k, x))
        part = f.div(one, at_least(f, f.sub(small, constant_like(k, x)), 0.5))
        total = f.add(total, f.select(passed, part, zero))
    u = f.sub(small, steps)
    high, low = special._DIGAMMA_ROOT
    beyond_root = f.sub(f.sub(u, constant_like(high, x)), constant_like(low, x))
    near = f.fma(beyond_root, horner(f, f.sub(u, constant_like(1.5, x)), special._DIGAMMA), total)
    return f.select(f.compare("lt", x, constant_like(10.0, x)), near, series)


# ---- float through double


def through_double(function: Callable[[Function, Value], Value]) -> Callable[[Function, Value], Value]:
    """Compute a function in double, rounded once: rare functions are not worth polynomials of their own."""

    def either(f: Function, x: Value) -> Value:
        if x.type.scalar == "double":
            return function(f, x)
        return f.convert("fptrunc", function(f, f.convert("fpext", x, "double")), "float")

    return either
