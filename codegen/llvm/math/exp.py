"""Vector math: exponentials, hyperbolic functions and sigmoid.

exp(x) = 2^n exp(r), where n is the whole number nearest to x / ln 2 and |r| < 0.35. The polynomials are minimax fits (Remez's
exchange, 50 digits), rounded from the lowest coefficient up with the rest fitted again each time, highest power first.
"""

from __future__ import annotations

import math

from ..ir.builder import Function, Value
from .common import (
    NearestInteger,
    at_least,
    at_most,
    constant_like,
    format_of,
    horner,
    magnitude,
    nearest,
    power_of_two,
    scale_by_power,
    with_sign,
)

LOG2_E = 1 / math.log(2)
# ln 2 in two parts: the first has so few bits that its products with n are exact.
LN2 = {"float": (0.693145751953125, 1.4286068203094172e-06), "double": (0.6931471803691238, 1.9082149292705877e-10)}
# (exp(r) - 1 - r) / r^2, for |r| < 0.35; relative error of exp 3.5e-9 and 2.3e-17
EXP = {
    "float": (0.0013847065856680274, 0.0083699906244874, 0.041668009012937546, 0.16666509211063385, 0.4999999403953552),
    "double": (
        2.5017154006040223e-08,
        2.7632279829559657e-07,
        2.755754387320855e-06,
        2.480148794149813e-05,
        0.000198412695423321,
        0.0013888888948214674,
        0.008333333333486032,
        0.04166666666651451,
        0.16666666666666413,
        0.5000000000000012,
    ),
}
# the same, with the error relative to exp(r) - 1: 5.6e-10 and 5.6e-17
EXPM1 = {
    "float": (
        0.0002007849107030779,
        0.001393788494169712,
        0.008333077654242516,
        0.04166644066572189,
        0.1666666716337204,
        0.5,
    ),
    "double": (
        2.5129082779993723e-08,
        2.7627941160469827e-07,
        2.7557207722639546e-06,
        2.480150060061798e-05,
        0.0001984126991008718,
        0.001388888893558437,
        0.008333333333309347,
        0.04166666666656225,
        0.16666666666666693,
        0.5000000000000007,
    ),
}
TANH_NEAR = 0.55  # tanh is 0.5 there
# (tanh(r) - r) / r^3 in r^2, for |r| < 0.55; relative error of tanh 4.1e-8 and 7.9e-19
TANH = {
    "float": (0.01633944921195507, -0.052621252834796906, 0.133199542760849, -0.33332914113998413),
    "double": (
        -1.9136739210283474e-05,
        8.274261060769203e-05,
        -0.00023298559551725498,
        0.0005882906711315886,
        -0.0014555059193306634,
        0.0035920863697983794,
        -0.008863232048642849,
        0.02186948835259478,
        -0.05396825396261569,
        0.1333333333332468,
        -0.33333333333333287,
    ),
}
# (sinh(x) - x) / x^3 in x^2, for |x| < 1; relative error of sinh 2.4e-8 and 2.6e-19
SINH = {
    "float": (0.00020373340521473438, 0.008330270648002625, 0.1666671633720398),
    "double": (
        7.776588175578746e-13,
        1.6056659474936686e-10,
        2.5052130995870036e-08,
        2.7557319106768e-06,
        0.00019841269841593394,
        0.008333333333332912,
        0.16666666666666669,
    ),
}
EXP_ZERO_BELOW = {"float": -105.0, "double": -746.0}  # exp is 0 below
EXP_INFINITE_ABOVE = {"float": 89.0, "double": 710.0}  # exp is infinite above
EXP_FINITE_UP_TO = {"float": 88.72283172607422, "double": 709.782712893384}  # the largest numbers whose exp is not
TANH_ONE_FROM = {"float": 9.1, "double": 19.1}  # tanh is 1 from here on


def reduce_argument(f: Function, x: Value, scale: float = 1.0) -> tuple[NearestInteger, Value]:
    """n and r with x = scale * n * ln 2 + r."""
    n = nearest(f, x, LOG2_E / scale)
    high, low = LN2[x.type.scalar]
    r = f.fma(n.value, constant_like(-high * scale, x), x)
    return n, f.fma(n.value, constant_like(-low * scale, x), r)


def reduce_argument_in_two(f: Function, x: Value) -> tuple[NearestInteger, Value, Value]:
    """The same, with the rounding error of r."""
    n = nearest(f, x, LOG2_E)
    high, low = LN2[x.type.scalar]
    first = f.fma(n.value, constant_like(-high, x), x)
    r = f.fma(n.value, constant_like(-low, x), first)
    return n, r, f.fma(n.value, constant_like(-low, x), f.sub(first, r))


def exp(f: Function, x: Value) -> Value:
    return exp_in_range(f, at_most(f, at_least(f, x, EXP_ZERO_BELOW[x.type.scalar]), EXP_INFINITE_ABOVE[x.type.scalar]))


def exp_in_range(f: Function, x: Value) -> Value:
    """exp of values between EXP_ZERO_BELOW and EXP_INFINITE_ABOVE, or NaN."""
    n, r = reduce_argument(f, x)
    return scale_by_power(f, exp_near_zero(f, r), n)


def exp_near_zero(f: Function, r: Value) -> Value:
    """exp for |r| < 0.35."""
    return horner(f, r, (*EXP[r.type.scalar], 1.0, 1.0))


def expm1_near_zero(f: Function, r: Value) -> Value:
    """exp(r) - 1 for |r| < 0.35, with the precision that a sum with 1 needs."""
    return f.fma(horner(f, r, EXP[r.type.scalar]), f.mul(r, r), r)


def exp2(f: Function, x: Value) -> Value:
    least, most = (limit * LOG2_E for limit in (EXP_ZERO_BELOW[x.type.scalar], EXP_INFINITE_ABOVE[x.type.scalar]))
    x = at_most(f, at_least(f, x, math.floor(least)), math.ceil(most))
    n = nearest(f, x, 1.0)
    return scale_by_power(f, exp_near_zero(f, f.mul(f.sub(x, n.value), constant_like(math.log(2), x))), n)


def expm1(f: Function, x: Value) -> Value:
    part, n = expm1_parts(f, at_most(f, x, EXP_INFINITE_ABOVE[x.type.scalar]))
    return with_sign(f, scale_by_power(f, part, n), x)


def expm1_parts(f: Function, x: Value) -> tuple[Value, NearestInteger]:
    """exp(x) - 1 as (exp(r) - 1) + (1 - 2^-n), still to be scaled by 2^n. For n = 0, that is near 0, nothing is lost."""
    n, r, low = reduce_argument_in_two(f, at_least(f, x, -2.0 * TANH_ONE_FROM[x.type.scalar]))
    magic = format_of(x).magic
    inverse = NearestInteger(n.value, f.sub(constant_like(2 * magic, x), at_most(f, n.sum, magic + 64)))
    rest = f.sub(constant_like(1.0, x), power_of_two(f, inverse))
    bend = f.fma(horner(f, r, EXPM1[x.type.scalar]), f.mul(r, r), low)
    return f.add(f.add(rest, r), bend), n


def decrement(f: Function, n: NearestInteger) -> NearestInteger:
    one = constant_like(1.0, n.value)
    return NearestInteger(f.sub(n.value, one), f.sub(n.sum, one))


def sinh(f: Function, x: Value) -> Value:
    """h + h / (2 h + 1), where h = (exp(|x|) - 1) / 2, which overflows only where sinh does; below 1 a polynomial."""
    size = magnitude(f, x)
    part, n = expm1_parts(f, at_most(f, size, EXP_INFINITE_ABOVE[x.type.scalar] + 1))
    h = scale_by_power(f, part, decrement(f, n))
    least = at_most(f, h, 2.0 ** format_of(x).mantissa)  # infinity divided by infinity would be NaN
    far = f.add(h, f.div(least, f.add(f.add(least, least), constant_like(1.0, x))))
    square = f.mul(x, x)
    near = f.fma(f.mul(size, square), horner(f, square, SINH[x.type.scalar]), size)
    return with_sign(f, f.select(f.compare("lt", size, constant_like(1.0, x)), near, far), x)


def cosh(f: Function, x: Value) -> Value:
    """h + 1 / (4 h), where h = exp(|x|) / 2."""
    n, r = reduce_argument(f, at_most(f, magnitude(f, x), EXP_INFINITE_ABOVE[x.type.scalar] + 1))
    h = scale_by_power(f, exp_near_zero(f, r), decrement(f, n))
    return f.add(h, f.div(constant_like(0.25, x), h))


def tanh(f: Function, x: Value) -> Value:
    """Near 0 a polynomial. Elsewhere, with t = tanh(r) and s = 2^n, 1 - 2 (1 - t) / (s + 1 + (s - 1) t), by the same one."""
    one = constant_like(1.0, x)
    size = at_most(f, magnitude(f, x), TANH_ONE_FROM[x.type.scalar])
    near = f.compare("lt", size, constant_like(TANH_NEAR, x))
    n, r = reduce_argument(f, size, 0.5)
    r = f.select(near, size, r)
    square = f.mul(r, r)
    t = f.fma(f.mul(r, square), horner(f, square, TANH[x.type.scalar]), r)
    power = power_of_two(f, n)
    rest = f.div(f.fma(t, constant_like(2.0, x), constant_like(-2.0, x)), f.fma(f.sub(power, one), t, f.add(power, one)))
    return with_sign(f, f.select(near, t, f.add(rest, one)), x)


def sigmoid(f: Function, x: Value) -> Value:
    """c / (c + c exp(-x)), where c is so small that nothing overflows; 0 where exp(-x) does, as in eager execution.

    exp is not rounded on its own, only the sum is. That c is no power of two keeps the rounding of the sum small.
    """
    least = EXP_ZERO_BELOW[x.type.scalar]
    n, r = reduce_argument(f, f.neg(at_most(f, at_least(f, x, least), -0.4 * least)))
    c = 1.75 * 2.0 ** (-(format_of(x).bias + 1) // 2)
    power = power_of_two(f, n, c)
    found = f.div(constant_like(c, x), f.fma(expm1_near_zero(f, r), power, f.add(power, constant_like(c, x))))
    return f.select(f.compare("lt", x, constant_like(-EXP_FINITE_UP_TO[x.type.scalar], x)), constant_like(0.0, x), found)
