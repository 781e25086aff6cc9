"""Vector math: sine, cosine, tangent and their inverses.

For sine and cosine x = n pi + r with |r| <= pi / 2, where pi is in three parts, so that r is right to the last bit up to the
limit where the C library takes over: there reduction needs hundreds of digits of pi, and speed does not matter. The
polynomials are minimax fits (Remez's exchange, 50 digits), rounded from the lowest coefficient up with the rest fitted again
each time, highest power first.
"""

from __future__ import annotations

import math

from ..ir.builder import Function, Value, constant
from .common import (
    NearestInteger,
    as_bits,
    at_most,
    branch_rarely,
    call_each_lane,
    constant_like,
    flip_sign,
    format_of,
    horner,
    integer_type,
    low_bit_as_sign,
    magnitude,
    nearest,
    with_sign,
)

# pi truncated, the rest truncated, and the rest of that: none is negative, so that -0 stays -0
PI = {
    "float": (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14),
    "double": (3.141592653589793, 1.224646799147353e-16, 2.1657133478438278e-32),
}
MAX_REDUCED = {"float": 2.0**16, "double": 2.0**28}
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
# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2, for |r| < 0.787; relative error of both 4e-9 and 3.8e-18
SIN_SMALL = {
    "float": (-0.00019517895998433232, 0.008332187309861183, -0.16666655242443085),
    "double": (
        1.589545206856123e-10,
        -2.505073459070582e-08,
        2.7557313539192487e-06,
        -0.0001984126982935923,
        0.00833333333332184,
        -0.1666666666666663,
    ),
}
COS_SMALL = {
    "float": (2.4432327336398885e-05, -0.0013887309469282627, 0.04166664555668831),
    "double": (
        -1.1358617215226052e-11,
        2.0875703142562057e-09,
        -2.75573142030933e-07,
        2.480158728896525e-05,
        -0.0013888888888873307,
        0.041666666666666595,
    ),
}
# (asin(s) - s) / s^3 in s^2, for |s| < 0.571; relative error of asin 2.4e-9 and 6.7e-18
ASIN = {
    "float": (
        0.049218837171792984,
        0.00522857578471303,
        0.03449878841638565,
        0.04416137933731079,
        0.07502541691064835,
        0.16666622459888458,
    ),
    "double": (
        0.06523037923452306,
        -0.0884770523725026,
        0.07993783070562427,
        -0.028106596027610713,
        0.019871014253112863,
        0.007159450433322496,
        0.011970666332229962,
        0.013916977337800188,
        0.017356592494899334,
        0.02237195115854833,
        0.030381951731380953,
        0.044642856991799235,
        0.07500000000158008,
        0.16666666666666088,
    ),
}
ASIN_NEAR = 0.57  # beyond, the correction to pi / 2 is below 1 and has bits to spare
# (atan(t) - t) / t^3 in t^2, for |t| < 0.551; relative error of atan 1.5e-8 and 2.4e-18
ATAN = {
    "float": (-0.045938119292259216, 0.09834101796150208, -0.14107707142829895, 0.199888214468956, -0.33333101868629456),
    "double": (
        -0.00624800468092331,
        0.020025240065062976,
        -0.034364538510828754,
        0.04467709526333357,
        -0.05195307609786861,
        0.058711336524167004,
        -0.06665344114935992,
        0.07692198391430327,
        -0.09090902951306949,
        0.11111110888530186,
        -0.14285714280939463,
        0.19999999999948287,
        -0.33333333333333137,
    ),
}
ATAN_NEAR = 0.55  # atan is above 0.5 from here on


def sin(f: Function, x: Value) -> Value:
    n = nearest(f, x, 1 / math.pi)
    r = subtract_pi_multiple(f, x, n.value)
    return or_libm(f, "sin", x, sin_near(f, r, n))


def cos(f: Function, x: Value) -> Value:
    """cos(x) is sin(x + pi / 2): n + 1 / 2 multiples of pi are taken off."""
    half = constant_like(0.5, x)
    magic = constant_like(format_of(x).magic, x)
    total = f.add(f.fma(x, constant_like(1 / math.pi, x), f.neg(half)), magic)
    n = NearestInteger(f.sub(total, magic), total)
    r = subtract_pi_multiple(f, x, f.add(n.value, half))
    return or_libm(f, "cos", x, sin_near(f, f.neg(r), n))


def sin_and_cos(f: Function, x: Value) -> tuple[Value, Value]:
    """Both, of small angles (to 100, say): with r = x - n pi / 2, they are those of r, swapped and negated according to n."""
    n = nearest(f, x, 2 / math.pi)
    r = subtract_pi_multiple(f, x, f.mul(n.value, constant_like(0.5, x)))
    square = f.mul(r, r)
    sine = odd_polynomial(f, r, square, SIN_SMALL)
    half, one = f.mul(square, constant_like(0.5, x)), constant_like(1.0, x)
    start = f.sub(one, half)
    lost = f.sub(f.sub(one, start), half)
    cosine = f.add(start, f.fma(f.mul(square, square), horner(f, square, COS_SMALL[x.type.scalar]), lost))
    turns = as_bits(f, n.sum)
    unit = constant(1, turns.type)
    odd = f.compare("ne", f.and_(turns, unit), constant(0, turns.type))
    # The sine is negative in the second half of the circle, the cosine in its second and third quarter.
    below, left = f.lshr(turns, unit), f.lshr(f.add(turns, unit), unit)
    first, second = f.select(odd, cosine, sine), f.select(odd, sine, cosine)
    return flip_sign(f, first, low_bit_as_sign(f, below, x)), flip_sign(f, second, low_bit_as_sign(f, left, x))


def subtract_pi_multiple(f: Function, x: Value, n: Value) -> Value:
    for part in PI[x.type.scalar]:
        x = f.fma(n, constant_like(-part, x), x)
    return x


def sin_near(f: Function, r: Value, n: NearestInteger) -> Value:
    """sin(r), negated for odd n. At pi / 2 rounding must not lead beyond 1, and the sum would lose the sign of -0."""
    size = magnitude(f, r)
    square = f.mul(size, size)
    value = f.fma(f.mul(size, square), horner(f, square, SIN[r.type.scalar]), size)
    return with_sign(f, at_most(f, value, 1.0), flip_sign(f, r, low_bit_as_sign(f, as_bits(f, n.sum), r)))


def or_libm(f: Function, name: str, x: Value, value: Value) -> Value:
    """The C library's value beyond the limit."""
    far = f.compare("gt", magnitude(f, x), constant_like(MAX_REDUCED[x.type.scalar], x))
    return branch_rarely(f, far, value, lambda: f.select(far, call_each_lane(f, name, x), value))


def tan(f: Function, x: Value) -> Value:
    """With r = x - n pi / 2: tan(r), or for odd n -1 / tan(r). tan(r) = r + (sin(r) - r + r w) / cos(r), w = 1 - cos(r)."""
    n = nearest(f, x, 2 / math.pi)
    r, left = subtract_pi_multiple_in_two(f, x, f.mul(n.value, constant_like(0.5, x)))
    square, one = f.mul(r, r), constant_like(1.0, x)
    w = f.mul(f.mul(square, square), horner(f, square, COS_SMALL[x.type.scalar]))
    w = f.fma(square, constant_like(0.5, x), f.neg(w))
    rest = f.mul(f.mul(r, square), horner(f, square, SIN_SMALL[x.type.scalar]))
    more = f.div(f.fma(r, w, rest), f.sub(one, w))
    tangent = f.add(r, more)
    more = f.fma(left, f.fma(tangent, tangent, one), more)
    high = with_sign(f, f.add(r, more), r)
    low = f.sub(more, f.sub(high, r))
    inverse = f.div(constant_like(-1.0, x), high)
    inverse = f.fma(inverse, f.fma(inverse, low, f.fma(inverse, high, one)), inverse)  # one of Newton's steps
    sign = low_bit_as_sign(f, as_bits(f, n.sum), x)
    odd = f.compare("lt", sign, constant(0, sign.type))
    return or_libm(f, "tan", x, f.select(odd, inverse, high))


def subtract_pi_multiple_in_two(f: Function, x: Value, n: Value) -> tuple[Value, Value]:
    """The same, with its rounding error. The first part is exact; the third is all in the error."""
    first, second, third = (constant_like(-part, x) for part in PI[x.type.scalar])
    x = f.fma(n, first, x)
    product = f.mul(n, second)
    r = f.add(x, product)
    moved = f.sub(r, x)
    left = f.add(f.sub(x, f.sub(r, moved)), f.sub(product, moved))
    left = f.add(left, f.fma(n, second, f.neg(product)))
    return r, f.fma(n, third, left)


def odd_polynomial(f: Function, r: Value, square: Value, coefficients: dict[str, tuple[float, ...]]) -> Value:
    """r + r^3 p(r^2), with the sign of r, which the sum would lose at -0."""
    return with_sign(f, f.fma(f.mul(r, square), horner(f, square, coefficients[r.type.scalar]), r), r)


# ---- inverses


def asin(f: Function, x: Value) -> Value:
    near, part = asin_part(f, x)
    high, low = half_pi(x)
    far = f.add(f.sub(constant_like(high, x), f.add(part, part)), constant_like(low, x))
    return with_sign(f, f.select(near, part, far), x)


def acos(f: Function, x: Value) -> Value:
    """pi / 2 - asin(x), and near 1 and -1 what is left of 0 and pi."""
    near, part = asin_part(f, x)
    high, low = half_pi(x)
    middle = f.sub(constant_like(high, x), f.sub(with_sign(f, part, x), constant_like(low, x)))
    twice = f.add(part, part)
    left = f.sub(constant_like(2 * high, x), f.sub(twice, constant_like(2 * low, x)))
    return f.select(near, middle, f.select(f.compare("lt", x, constant_like(0.0, x)), left, twice))


def asin_part(f: Function, x: Value) -> tuple[Value, Value]:
    """A condition, |x| is near 0, and asin(|x|) if so, or else asin(sqrt((1 - |x|) / 2)), which is (pi / 2 - asin(|x|)) / 2."""
    size = magnitude(f, x)
    near = f.compare("lt", size, constant_like(ASIN_NEAR, x))
    square = f.select(near, f.mul(size, size), f.fma(size, constant_like(-0.5, x), constant_like(0.5, x)))
    return near, odd_polynomial(f, f.select(near, size, f.intrinsic("sqrt", square)), square, ASIN)


def half_pi(x: Value) -> tuple[float, float]:
    high, low, _ = PI[x.type.scalar]
    return high / 2, low / 2


def atan(f: Function, x: Value) -> Value:
    return with_sign(f, atan_of_ratio(f, magnitude(f, x), constant_like(1.0, x)), x)


MAX_UNSCALED = 2.0**60  # beyond, and below its inverse, sums may overflow and products be subnormal


def atan2(f: Function, y: Value, x: Value) -> Value:
    """The angle of the point (x, y). Of infinities only the direction counts, and 0 / 0 is 0."""
    a, b = magnitude(f, y), magnitude(f, x)
    zero, one, infinity = constant_like(0.0, x), constant_like(1.0, x), constant_like(math.inf, x)
    endless = f.or_(f.compare("eq", a, infinity), f.compare("eq", b, infinity))
    larger = f.select(f.compare("lt", a, b), b, a)
    large, small = (
        f.compare("gt", larger, constant_like(MAX_UNSCALED, x)),
        f.compare("lt", larger, constant_like(1 / MAX_UNSCALED, x)),
    )
    scale = f.select(large, constant_like(1 / MAX_UNSCALED, x), f.select(small, constant_like(MAX_UNSCALED, x), one))
    p, q = (f.select(endless, f.select(f.compare("eq", v, infinity), one, zero), f.mul(v, scale)) for v in (a, b))
    q = f.select(f.compare("eq", p, zero), one, q)
    value = atan_of_ratio(f, p, q)
    high, low, _ = PI[x.type.scalar]
    behind = f.sub(constant_like(high, x), f.sub(value, constant_like(low, x)))
    backwards = f.compare("lt", as_bits(f, x), constant(0, integer_type(x)))
    value = with_sign(f, f.select(backwards, behind, value), y)
    total = f.add(y, x)
    return f.select(f.or_(f.is_nan(y), f.is_nan(x)), total, value)


def atan_of_ratio(f: Function, a: Value, b: Value) -> Value:
    """atan(a / b) for a and b not below 0: near 1 as pi / 4 + atan((a - b) / (a + b)), beyond as pi / 2 - atan(b / a)."""
    high, low = half_pi(a)
    zero = constant_like(0.0, a)
    middle = f.compare("gt", a, f.mul(b, constant_like(ATAN_NEAR, b)))
    steep = f.compare("gt", a, f.mul(b, constant_like(1 / ATAN_NEAR, b)))
    above = f.select(steep, f.neg(b), f.select(middle, f.sub(a, b), a))
    below = f.select(steep, a, f.select(middle, f.add(a, b), b))
    t = f.div(above, below)
    value = odd_polynomial(f, t, f.mul(t, t), ATAN)
    start = f.select(steep, constant_like(high, a), f.select(middle, constant_like(high / 2, a), zero))
    more = f.select(steep, constant_like(low, a), f.select(middle, constant_like(low / 2, a), zero))
    return f.add(start, f.add(value, more))


# ---- the hypotenuse


def hypot(f: Function, a: Value, b: Value) -> Value:
    """sqrt(a^2 + b^2), which is infinite if one of both is, even if the other is NaN."""
    a, b = magnitude(f, a), magnitude(f, b)
    value = hypot_in_double(f, a, b) if a.type.scalar == "float" else hypot_scaled(f, a, b)
    infinity = constant_like(math.inf, a)
    endless = f.or_(f.compare("eq", a, infinity), f.compare("eq", b, infinity))
    return f.select(endless, infinity, value)


def hypot_in_double(f: Function, a: Value, b: Value) -> Value:
    a, b = f.convert("fpext", a, "double"), f.convert("fpext", b, "double")
    return f.convert("fptrunc", f.intrinsic("sqrt", f.fma(a, a, f.mul(b, b))), "float")


def hypot_scaled(f: Function, a: Value, b: Value) -> Value:
    """The squares neither overflow nor vanish: both are scaled by a power of two first."""
    swap = f.compare("lt", a, b)
    a, b = f.select(swap, b, a), f.select(swap, a, b)
    one = constant_like(1.0, a)
    large, small = f.compare("gt", a, constant_like(2.0**500, a)), f.compare("lt", a, constant_like(2.0**-400, a))
    scale = f.select(large, constant_like(2.0**-600, a), f.select(small, constant_like(2.0**700, a), one))
    back = f.select(large, constant_like(2.0**600, a), f.select(small, constant_like(2.0**-700, a), one))
    a, b = f.mul(a, scale), f.mul(b, scale)
    return f.mul(f.intrinsic("sqrt", f.fma(a, a, f.mul(b, b))), back)
