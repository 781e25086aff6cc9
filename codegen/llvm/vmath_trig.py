"""Vector maths: sine and cosine.

x = n pi + r with |r| <= pi / 2, where pi is in three parts, so that r is right to the last bit up to the limit where the C
library takes over: there reduction needs hundreds of digits of pi, and nobody should be in a hurry. The polynomials are minimax
fits (Remez's exchange, 50 digits), rounded from the lowest coefficient up with the rest fitted again each time.
"""

from __future__ import annotations

import math

from .builder import Function, Value
from .vmath_parts import (
    Whole,
    as_bits,
    at_most,
    each_lane,
    flipped,
    format_of,
    horner,
    magnitude,
    nearest,
    number,
    odd_as_sign,
    rarely,
    with_sign,
)

# pi cut off after so many bits, what is left, and what is left of that: none is negative, so that -0 stays -0
PI = {
    "float": (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14),
    "double": (3.141592653589793, 1.224646799147353e-16, 2.1657133478438278e-32),
}
LIMIT = {"float": 2.0**16, "double": 2.0**28}
# (sin(r) - r) / r^3 in r^2, for |r| < 1.573; relative error of sin 6.3e-9 and 3e-19
SIN = {
    "float": (2.6060538402816746e-06, -0.00019809768127743155, 0.008333069272339344, -0.16666659712791443),
    "double": (
        2.7214140453993248e-15,
        -7.643018960313098e-13,
        1.6058940990465197e-10,
        -2.5052106904259336e-08,
        2.7557319211568402e-06,
        -0.00019841269841212476,
        0.008333333333333207,
        -0.16666666666666666,
    ),
}


def sin(f: Function, x: Value) -> Value:
    n = nearest(f, x, 1 / math.pi)
    r = less_multiple_of_pi(f, x, n.value)
    return or_library(f, "sin", x, sin_near(f, r, n))


def cos(f: Function, x: Value) -> Value:
    """cos(x) is sin(x + pi / 2): n + 1 / 2 multiples of pi are taken off."""
    half = number(0.5, x)
    magic = number(format_of(x).magic, x)
    total = f.add(f.fma(x, number(1 / math.pi, x), f.neg(half)), magic)
    n = Whole(f.sub(total, magic), total)
    r = less_multiple_of_pi(f, x, f.add(n.value, half))
    return or_library(f, "cos", x, sin_near(f, f.neg(r), n))


def less_multiple_of_pi(f: Function, x: Value, n: Value) -> Value:
    for part in PI[x.type.scalar]:
        x = f.fma(n, number(-part, x), x)
    return x


def sin_near(f: Function, r: Value, n: Whole) -> Value:
    """sin(r), negated for odd n. At pi / 2 rounding must not lead beyond 1, and the sum would lose the sign of -0."""
    size = magnitude(f, r)
    square = f.mul(size, size)
    value = f.fma(f.mul(size, square), horner(f, square, SIN[r.type.scalar]), size)
    return with_sign(f, at_most(f, value, 1.0), flipped(f, r, odd_as_sign(f, as_bits(f, n.sum), r)))


def or_library(f: Function, name: str, x: Value, value: Value) -> Value:
    """Beyond the limit the C library's value."""
    far = f.compare("gt", magnitude(f, x), number(LIMIT[x.type.scalar], x))
    return rarely(f, far, value, lambda: f.select(far, each_lane(f, name, x), value))
