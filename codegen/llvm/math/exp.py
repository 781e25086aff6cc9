"""Vector maths: exponentials and what is made of them.

exp(x) = 2^n exp(r), where n is the whole number nearest to x / ln 2 and |r| < 0.35. The polynomials are minimax fits (Remez's
exchange, 50 digits), rounded from the lowest coefficient up with the rest fitted again each time, highest power first.
"""

from __future__ import annotations

import math

from ..ir.builder import Function, Value
from .common import Whole, at_least, at_most, format_of, horner, magnitude, nearest, number, power_of_two, scaled, with_sign

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
LEAST = {"float": -105.0, "double": -746.0}  # exp is 0 from here on down
MOST = {"float": 89.0, "double": 710.0}  # and infinite from here on up
ONE_FROM = {"float": 9.1, "double": 19.1}  # tanh is 1 from here on


def reduced(f: Function, x: Value, scale: float = 1.0) -> tuple[Whole, Value]:
    """n and r with x = scale * n * ln 2 + r."""
    n = nearest(f, x, LOG2_E / scale)
    high, low = LN2[x.type.scalar]
    r = f.fma(n.value, number(-high * scale, x), x)
    return n, f.fma(n.value, number(-low * scale, x), r)


def reduced_in_two(f: Function, x: Value) -> tuple[Whole, Value, Value]:
    """The same, with what rounding takes from r."""
    n = nearest(f, x, LOG2_E)
    high, low = LN2[x.type.scalar]
    first = f.fma(n.value, number(-high, x), x)
    r = f.fma(n.value, number(-low, x), first)
    return n, r, f.fma(n.value, number(-low, x), f.sub(first, r))


def exp(f: Function, x: Value) -> Value:
    return exp_within(f, at_most(f, at_least(f, x, LEAST[x.type.scalar]), MOST[x.type.scalar]))


def exp_within(f: Function, x: Value) -> Value:
    """exp of what is from LEAST to MOST, or NaN."""
    n, r = reduced(f, x)
    return scaled(f, near_one(f, r), n)


def near_one(f: Function, r: Value) -> Value:
    """exp for |r| < 0.35."""
    return horner(f, r, (*EXP[r.type.scalar], 1.0, 1.0))


def above_one(f: Function, r: Value) -> Value:
    """exp(r) - 1 for |r| < 0.35, of the precision that a sum with 1 needs."""
    return f.fma(horner(f, r, EXP[r.type.scalar]), f.mul(r, r), r)


def exp2(f: Function, x: Value) -> Value:
    least, most = (limit * LOG2_E for limit in (LEAST[x.type.scalar], MOST[x.type.scalar]))
    x = at_most(f, at_least(f, x, math.floor(least)), math.ceil(most))
    n = nearest(f, x, 1.0)
    return scaled(f, near_one(f, f.mul(f.sub(x, n.value), number(math.log(2), x))), n)


def expm1(f: Function, x: Value) -> Value:
    part, n = expm1_parts(f, at_most(f, x, MOST[x.type.scalar]))
    return with_sign(f, scaled(f, part, n), x)


def expm1_parts(f: Function, x: Value) -> tuple[Value, Whole]:
    """exp(x) - 1 as (exp(r) - 1) + (1 - 2^-n), still to be scaled by 2^n. For n = 0, that is near 0, nothing is lost."""
    n, r, low = reduced_in_two(f, at_least(f, x, -2.0 * ONE_FROM[x.type.scalar]))
    magic = format_of(x).magic
    inverse = Whole(n.value, f.sub(number(2 * magic, x), at_most(f, n.sum, magic + 64)))
    rest = f.sub(number(1.0, x), power_of_two(f, inverse))
    bend = f.fma(horner(f, r, EXPM1[x.type.scalar]), f.mul(r, r), low)
    return f.add(f.add(rest, r), bend), n


def halved(f: Function, n: Whole) -> Whole:
    one = number(1.0, n.value)
    return Whole(f.sub(n.value, one), f.sub(n.sum, one))


def sinh(f: Function, x: Value) -> Value:
    """h + h / (2 h + 1), where h = (exp(|x|) - 1) / 2, which overflows only where sinh does; below 1 a polynomial."""
    size = magnitude(f, x)
    part, n = expm1_parts(f, at_most(f, size, MOST[x.type.scalar] + 1))
    h = scaled(f, part, halved(f, n))
    least = at_most(f, h, 2.0 ** format_of(x).mantissa)  # infinity divided by infinity would be NaN
    far = f.add(h, f.div(least, f.add(f.add(least, least), number(1.0, x))))
    square = f.mul(x, x)
    near = f.fma(f.mul(size, square), horner(f, square, SINH[x.type.scalar]), size)
    return with_sign(f, f.select(f.compare("lt", size, number(1.0, x)), near, far), x)


def cosh(f: Function, x: Value) -> Value:
    """h + 1 / (4 h), where h = exp(|x|) / 2."""
    n, r = reduced(f, at_most(f, magnitude(f, x), MOST[x.type.scalar] + 1))
    h = scaled(f, near_one(f, r), halved(f, n))
    return f.add(h, f.div(number(0.25, x), h))


def tanh(f: Function, x: Value) -> Value:
    """Near 0 a polynomial. Elsewhere, with t = tanh(r) and s = 2^n, 1 - 2 (1 - t) / (s + 1 + (s - 1) t), by the same one."""
    one = number(1.0, x)
    size = at_most(f, magnitude(f, x), ONE_FROM[x.type.scalar])
    near = f.compare("lt", size, number(TANH_NEAR, x))
    n, r = reduced(f, size, 0.5)
    r = f.select(near, size, r)
    square = f.mul(r, r)
    t = f.fma(f.mul(r, square), horner(f, square, TANH[x.type.scalar]), r)
    power = power_of_two(f, n)
    rest = f.div(f.fma(t, number(2.0, x), number(-2.0, x)), f.fma(f.sub(power, one), t, f.add(power, one)))
    return with_sign(f, f.select(near, t, f.add(rest, one)), x)


def sigmoid(f: Function, x: Value) -> Value:
    """c / (c + c exp(-x)), where c is so small that nothing overflows: the result fades to 0 through the subnormal numbers.

    exp is not rounded on its own, only the sum is. That c is no power of two keeps the rounding of the sum small.
    """
    least = LEAST[x.type.scalar]
    n, r = reduced(f, f.neg(at_most(f, at_least(f, x, least), -0.4 * least)))
    c = 1.75 * 2.0 ** (-(format_of(x).bias + 1) // 2)
    power = power_of_two(f, n, c)
    return f.div(number(c, x), f.fma(above_one(f, r), power, f.add(power, number(c, x))))
