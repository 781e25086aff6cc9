"""Vector math: powers of floats and of integers."""

from __future__ import annotations

import math

from ..ir.builder import Function, Value, constant
from .common import (
    at_least,
    at_most,
    constant_like,
    horner,
    magnitude,
    mantissa_and_exponent,
    nearest,
    power_of_two,
    scale_by_power,
    with_sign,
)
from .exp import LOG2_E, exp_near_zero
from .log import at_edges, log

LOG2_E_LOW = 2.0355273740931033e-17  # what is left of log2(e)
TWO_THIRDS_LOW = 3.700743415417188e-17
# (log((1 + s) / (1 - s)) / s - 2 - 2/3 s^2) / s^4 in s^2, for |s| < 0.2; error of log 3.4e-21 s
LOG_REST = (
    0.12576908753330537,
    0.1159146734660095,
    0.13341203985812994,
    0.15384404550484262,
    0.18181821567876333,
    0.2222222219078281,
    0.2857142857157993,
    0.3999999999999972,
)


def pow_number(f: Function, x: Value, exponent: float | int) -> Value:
    """A power with a known exponent: few multiplications, as in the eager kernel."""
    if exponent == 2:
        return f.mul(x, x)
    if exponent == 3:
        return f.mul(f.mul(x, x), x)
    if not x.type.floating:
        return power_by_squaring(f, x, int(exponent))
    if exponent == 0.5:
        return f.intrinsic("sqrt", x)
    return f.div(constant_like(1.0, x), x) if exponent == -1 else pow(f, x, constant_like(exponent, x))


def power_by_squaring(f: Function, x: Value, exponent: int) -> Value:
    """x * x * ..., by squaring; integers wrap around."""
    assert exponent >= 0, "integers have no negative powers"
    value = constant(1, x.type)
    while exponent:
        if exponent & 1:
            value = f.mul(value, x)
        exponent >>= 1
        x = f.mul(x, x) if exponent else x
    return value


def pow(f: Function, x: Value, y: Value, unsigned: bool = False) -> Value:
    return pow_floats(f, x, y) if x.type.floating else pow_integers(f, x, y, unsigned)


def pow_integers(f: Function, x: Value, y: Value, unsigned: bool) -> Value:
    """By squaring, for each bit of the exponent. x^-n is rounded towards zero, as in PyTorch: only 1 and -1 are nonzero."""
    zero, one = constant(0, x.type), constant(1, x.type)
    negative = f.compare("lt", y, zero)
    left = y if unsigned else f.select(negative, f.neg(y), y)
    with f.loop(0, 8 * x.type.bytes // x.type.lanes, carried=[one, x, left]) as loop:
        value, square, bits = loop.carried
        odd = f.compare("ne", f.and_(bits, one), zero)
        loop.next(f.select(odd, f.mul(value, square), value), f.mul(square, square), f.lshr(bits, one))
    value = loop.results[0]
    if unsigned:
        return value
    unit = f.or_(f.compare("eq", x, one), f.compare("eq", x, constant(-1, x.type)))
    return f.select(f.and_(negative, f.not_(unit)), zero, value)


def pow_floats(f: Function, x: Value, y: Value) -> Value:
    """|x|^y by logarithms, and the cases that C's pow has."""
    size = magnitude(f, x)
    value = pow_float(f, size, y) if x.type.scalar == "float" else pow_double(f, size, y)
    one, zero, infinity = constant_like(1.0, x), constant_like(0.0, x), constant_like(math.inf, x)
    half = f.mul(y, constant_like(0.5, x))
    whole = f.compare("eq", f.intrinsic("trunc", y), y)
    even = f.compare("eq", f.intrinsic("trunc", half), half)  # so is whatever is beyond the mantissa, and infinity
    negative = f.compare("lt", x, zero)
    impossible = f.and_(f.and_(negative, f.not_(whole)), f.compare("ne", size, infinity))
    value = f.select(impossible, constant_like(math.nan, x), value)
    odd = f.and_(whole, f.not_(even))
    value = f.select(odd, with_sign(f, value, x), value)
    certain = f.or_(f.compare("eq", y, zero), f.compare("eq", x, one))
    certain = f.or_(certain, f.and_(f.compare("eq", size, one), f.compare("eq", magnitude(f, y), infinity)))
    return f.select(certain, one, value)


def pow_float(f: Function, x: Value, y: Value) -> Value:
    """x^y for x >= 0, through double, which has all the bits that the product of y and the logarithm needs."""
    wide_x, wide_y = f.convert("fpext", x, "double"), f.convert("fpext", y, "double")
    exponent = f.mul(wide_y, f.mul(log(f, wide_x), constant_like(LOG2_E, wide_x)))
    exponent = at_most(f, at_least(f, exponent, -200.0), 200.0)
    n = nearest(f, exponent, 1.0)
    r = f.mul(f.sub(exponent, n.value), constant_like(math.log(2), exponent))
    return f.convert("fptrunc", f.mul(exp_near_zero(f, r), power_of_two(f, n)), "float")


def pow_double(f: Function, x: Value, y: Value) -> Value:
    """x^y for x >= 0. The logarithm has to have 12 bits more than a double: it is a sum of two."""
    high, low = log2_in_two(f, x)
    product = f.mul(y, high)
    rest = f.fma(y, low, f.fma(y, high, f.neg(product)))
    exponent = at_most(f, at_least(f, product, -1200.0), 1200.0)
    n = nearest(f, exponent, 1.0)
    rest = f.select(f.compare("eq", exponent, product), rest, constant_like(0.0, x))
    r = f.mul(f.add(f.sub(exponent, n.value), rest), constant_like(math.log(2), x))
    return scale_by_power(f, exp_near_zero(f, r), n)


def log2_in_two(f: Function, x: Value) -> tuple[Value, Value]:
    """log2(x) = n + log2(e) (2 s + 2/3 s^3 + s^5 p(s^2)), where s = (m - 1) / (m + 1); two terms to twice the bits."""
    m, n = mantissa_and_exponent(f, x)
    one = constant_like(1.0, x)
    t, below = f.sub(m, one), f.add(m, one)
    below_low = f.sub(m, f.sub(below, one))
    s = f.div(t, below)
    left = f.fma(f.neg(s), below_low, f.fma(f.neg(s), below, t))
    s_low = f.div(left, below)
    square = f.mul(s, s)
    square_low = f.fma(f.add(s, s), s_low, f.fma(s, s, f.neg(square)))
    third = constant_like(2 / 3, x)
    term = f.mul(square, third)
    term_low = f.fma(square, constant_like(TWO_THIRDS_LOW, x), f.fma(square, third, f.neg(term)))
    term_low = f.fma(square_low, third, term_low)
    term, more = sum_in_two(f, term, f.mul(f.mul(square, square), horner(f, square, LOG_REST)))
    bend, most = sum_in_two(f, constant_like(2.0, x), term)
    bend_low = f.add(most, f.add(more, term_low))
    high, low = product_in_two(f, s, s_low, bend, bend_low)
    high, low = product_in_two(f, high, low, constant_like(LOG2_E, x), constant_like(LOG2_E_LOW, x))
    total, rest = sum_in_two(f, n, high)
    return at_edges(f, x, total), f.add(rest, low)


def sum_in_two(f: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and what rounding takes from it; a is the larger one, or 0."""
    total = f.add(a, b)
    return total, f.sub(b, f.sub(total, a))


def product_in_two(f: Function, a: Value, a_low: Value, b: Value, b_low: Value) -> tuple[Value, Value]:
    high = f.mul(a, b)
    return high, f.fma(a, b_low, f.fma(a_low, b, f.fma(a, b, f.neg(high))))
