"""Device functions that printed kernels call: ops of more than one line of Triton, with the semantics of the eager ops.

These are Triton functions, so this module can only be imported where Triton is installed; printing kernels does not import it.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

from ....eager.arrays import special_functions as special

# ---- binary ops on floats


@triton.jit
def maximum(a, b):
    """Maximum; NaN if either is; of two equal ones, such as 0 and -0, the second."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def fmax(a, b):
    """Maximum that ignores NaN: the other one if one is NaN."""
    return tl.where((a > b) | (b != b), a, b)


@triton.jit
def fmin(a, b):
    return tl.where((a < b) | (b != b), a, b)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def raised(top, total, x):
    """Update a running maximum and the sum of exponentials of all numbers less it (online softmax) with one number more."""
    larger = x > top
    low, high = tl.where(larger, top, x), tl.where(larger, x, top)
    power = libdevice.exp(low - tl.where(tl.abs(high) == float("inf"), 0.0, high))
    return maximum(top, x), tl.where(larger, total * power + 1, total + power)


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def recurrence(a, b, later_a, later_b):
    """Compose two linear maps: y -> a y + b, and then the later one."""
    return later_a * a, later_b + later_a * b


@triton.jit
def later_maximum(a, i, b, k):
    """Larger value and its index: the later of two equal ones, and NaN above all."""
    second = (b >= a) | (b != b)
    return tl.where(second, b, a), tl.where(second, k, i)


@triton.jit
def later_minimum(a, i, b, k):
    second = (b <= a) | (b != b)
    return tl.where(second, b, a), tl.where(second, k, i)


@triton.jit
def divided(a, b):
    """Divide, rounded to the nearest float: Triton's own / is off by up to two units in float32."""
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def remainder(a, b):
    """Remainder with the sign of the divisor."""
    rest = libdevice.fmod(a, b)
    crossed = (rest != 0) & ((rest < 0) != (b < 0))
    return tl.where(
        rest == 0, libdevice.copysign(tl.zeros_like(rest), b + tl.zeros_like(rest)), tl.where(crossed, rest + b, rest)
    )


@triton.jit
def floor_divide(a, b):
    """Floor division, decided by the remainder, as the rounded quotient may already be the next integer."""
    rest = libdevice.fmod(a, b)
    value = divided(a - rest, b)
    crossed = (rest != 0) & ((rest < 0) != (b < 0))
    value = tl.where(crossed, value - 1, value)
    whole = tl.floor(value)
    whole = tl.where(value - whole > 0.5, whole + 1, whole)
    ratio = divided(a, b)
    whole = tl.where(value == 0, libdevice.copysign(tl.zeros_like(ratio), ratio), whole)
    return tl.where(b == 0, ratio, whole)


@triton.jit
def apart(a, b):
    """Negative distance -|a - b|, which is 0 for two equal infinities too."""
    return tl.where(a == b, tl.zeros_like(a - b), -tl.abs(a - b))


@triton.jit
def logaddexp(a, b):
    return tl.where(a > b, a, b) + libdevice.log1p(libdevice.exp(apart(a, b)))


@triton.jit
def logaddexp2(a, b):
    scale: tl.constexpr = 1.4426950408889634
    found = tl.where(a > b, a, b) + libdevice.log1p(libdevice.exp2(apart(a, b))) * scale
    return tl.where(a == b, a + 1, found)


@triton.jit
def xlogy(a, b):
    """a * log(b), and 0 where a is 0 and b a number."""
    found = a * libdevice.log(b)
    return tl.where((a == 0) & (b == b), tl.zeros_like(found), found)


# ---- binary ops on integers


@triton.jit
def trunc_divide(a, b):
    """Divide towards zero. By 0 the result is 0: eager's error is raised by an earlier check. The minimum by -1 is itself."""
    one = tl.full((), 1, b.dtype)
    if b.dtype.is_int_signed():
        found = a // tl.where((b == 0) | (b == -1), one, b)
        found = tl.where(b == -1, -a, found)
    else:
        found = a // tl.where(b == 0, one, b)
    return tl.where(b == 0, tl.zeros_like(found), found)


@triton.jit
def integer_fmod(a, b):
    """Remainder with the sign of the dividend."""
    return a - trunc_divide(a, b) * b


@triton.jit
def integer_remainder(a, b):
    """Remainder with the sign of the divisor."""
    rest = integer_fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def integer_floor_divide(a, b):
    whole = trunc_divide(a, b)
    rest = a - whole * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), whole - 1, whole)


@triton.jit
def integer_pow(a, b):
    """Power by squaring, for each bit of the exponent. a^-n is rounded towards zero: only 1 and -1 give a nonzero result."""
    bits = (tl.where(b < 0, -b, b) if b.dtype.is_int_signed() else b).to(tl.uint64) + tl.zeros_like(a).to(tl.uint64)
    square = a + tl.zeros_like(bits).to(a.dtype)
    value = tl.zeros_like(square) + 1
    for _ in range(a.dtype.primitive_bitwidth):
        value = tl.where((bits & 1) == 1, value * square, value)
        square = square * square
        bits = bits >> 1
    if b.dtype.is_int_signed():
        value = tl.where((b < 0) & (a != 1) & (a != -1), tl.zeros_like(value), value)
    return value


@triton.jit
def shift(a, b, left: tl.constexpr):
    """Shift; by more bits than there are, only the sign is left."""
    width: tl.constexpr = a.dtype.primitive_bitwidth
    within = (b >= 0) & (b < width)
    by = tl.where(within, b, tl.zeros_like(b))
    if left:
        found = tl.where(within, a << by, tl.zeros_like(a + b))
    else:
        found = tl.where(within, a >> by, tl.where(a < 0, tl.zeros_like(a + b) - 1, tl.zeros_like(a + b)))
    return found


# ---- unary ops


@triton.jit
def sigmoid(x):
    return divided(tl.zeros_like(x) + 1, libdevice.exp(-x) + 1)


@triton.jit
def signbit(x):
    bits = x.to(tl.int64, bitcast=True) if x.dtype == tl.float64 else x.to(tl.int32, bitcast=True)
    return bits < 0


@triton.jit
def whole(x, wide: tl.constexpr, least: tl.constexpr):
    """Convert a float to an integer, towards zero; out-of-range values give the minimum, as on the processors NumPy runs on."""
    fits = (x >= least * 1.0) & (x < least * -1.0)
    found = tl.where(fits, x, tl.zeros_like(x)).to(wide)
    return tl.where(fits, found, tl.full((), least, wide))


DIGAMMA = tl.constexpr(tuple(float(c) for c in special._DIGAMMA))
DIGAMMA_STIRLING = tl.constexpr(tuple(float(c) for c in special._DIGAMMA_STIRLING))
DIGAMMA_TERMS, STIRLING_TERMS = tl.constexpr(len(special._DIGAMMA)), tl.constexpr(len(special._DIGAMMA_STIRLING))
DIGAMMA_ROOT_HIGH = tl.constexpr(float(special._DIGAMMA_ROOT[0]))
DIGAMMA_ROOT_LOW = tl.constexpr(float(special._DIGAMMA_ROOT[1]))
PI = tl.constexpr(math.pi)


@triton.jit
def digamma(x):
    """Digamma in float64. Below 0 by the reflection formula: digamma(x) = digamma(1 - x) - pi / tan(pi x)."""
    positive = tl.where(x < 0, 1 - x, x)
    large = tl.where(positive > 10, positive, tl.full((), 10.0, tl.float64))
    square = 1 / (large * large)
    series = tl.zeros_like(x) + DIGAMMA_STIRLING[0]
    for k in tl.static_range(1, STIRLING_TERMS):
        series = series * square + DIGAMMA_STIRLING[k]
    series = libdevice.log(large) - 0.5 / large + series * square
    small = tl.where(positive < 10, positive, tl.full((), 10.0, tl.float64))
    steps = tl.floor(small) - 1  # distance above [1, 2): there digamma is a polynomial
    total = tl.where(steps < 0, -1 / small, tl.zeros_like(x))
    for k in tl.static_range(1, 10):
        passed = small - k
        part = 1 / tl.where(passed > 0.5, passed, tl.full((), 0.5, tl.float64))
        total += tl.where(steps >= k, part, tl.zeros_like(x))
    u = small - steps
    bend = tl.zeros_like(x) + DIGAMMA[0]
    for k in tl.static_range(1, DIGAMMA_TERMS):
        bend = bend * (u - 1.5) + DIGAMMA[k]
    near = (u - DIGAMMA_ROOT_HIGH - DIGAMMA_ROOT_LOW) * bend + total
    value = tl.where(positive < 10, near, series)
    beyond = x - libdevice.rint(x)
    reflected = value - PI / libdevice.tan(beyond * PI)
    reflected = tl.where(beyond == 0, tl.full((), float("nan"), tl.float64), reflected)
    value = tl.where(x < 0, reflected, value)
    edge = libdevice.copysign(tl.zeros_like(x) + float("inf"), -x)
    return tl.where(x == 0, edge, value)


# ---- random numbers: the words of eager/arrays/philox.py, and distributions made of them


@triton.jit
def block_of_words(seed, call, block):
    """Four words of a block. Triton's Philox is the same, with the counter (block, block >> 32, call, call >> 32)."""
    block, call = block.to(tl.uint64), call.to(tl.uint64)
    low, high = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
    third = tl.zeros_like(low) + (call & 0xFFFFFFFF).to(tl.uint32)
    fourth = tl.zeros_like(low) + (call >> 32).to(tl.uint32)
    return tl.philox(seed, low, high, third, fourth)


@triton.jit
def word(seed, call, i):
    """Word i of a call."""
    w0, w1, w2, w3 = block_of_words(seed, call, i >> 2)
    k = i & 3
    return tl.where(k < 2, tl.where(k == 0, w0, w1), tl.where(k == 2, w2, w3))


@triton.jit
def two_words(seed, call, i):
    """Words 2 i and 2 i + 1."""
    w0, w1, w2, w3 = block_of_words(seed, call, i >> 1)
    odd = (i & 1) == 1
    return tl.where(odd, w2, w0), tl.where(odd, w3, w1)


@triton.jit
def fraction(low, high):
    """Fraction in [0, 1) from 53 bits of two words, as float64."""
    both = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    return (both >> 11).to(tl.int64).to(tl.float64) * (2.0**-53)


@triton.jit
def run_of_words(seed, call, first):
    """Four words from each of the given first ones on, which are multiples of 4: a block with two more axes, in their order."""
    w0, w1, w2, w3 = block_of_words(seed, call, first >> 2)
    return tl.join(tl.join(w0, w2), tl.join(w1, w3))


@triton.jit
def random_mask(words, p):
    """Random mask, True with probability p: 24 bits are compared."""
    bound = tl.ceil(p * 16777216.0)
    bound = tl.where(bound > 0.0, bound, tl.full((), 0.0, tl.float64))
    bound = tl.where(bound < 16777216.0, bound, tl.full((), 16777216.0, tl.float64)).to(tl.int32)
    return (words >> 8).to(tl.int32) < bound


@triton.jit
def random_uniform(words, low, high, bits: tl.constexpr):
    """Uniform in [low, high), of so many random bits, in float32."""
    unit = (words >> (32 - bits)).to(tl.int32).to(tl.float32) * (2.0**-bits)
    return unit * (high - low).to(tl.float32) + low.to(tl.float32)


@triton.jit
def random_uniform_double(seed, call, low, high, i):
    """Uniform in [low, high), in float64."""
    first, second = two_words(seed, call, i)
    return fraction(first, second) * (high - low) + low


@triton.jit
def random_normal(seed, call, mean, std, i, double: tl.constexpr):
    """Normal by Box-Muller: elements 2 i and 2 i + 1 are the cosine and the sine of one pair."""
    if double:
        w0, w1, w2, w3 = block_of_words(seed, call, i >> 1)
        unit = fraction(w0, w1) + 2.0**-53
        angle = fraction(w2, w3) * (2 * PI)
        radius = tl.sqrt(tl.abs(libdevice.log(unit) * -2))
        drawn = radius * tl.where((i & 1) == 1, libdevice.sin(angle), libdevice.cos(angle))
        found = drawn * std + mean
    else:
        first, second = two_words(seed, call, i >> 1)
        unit = first.to(tl.float32) * (2.0**-32) + 2.0**-33
        angle = second.to(tl.float32) * (2 * PI * 2.0**-32)
        radius = tl.sqrt_rn(tl.abs(libdevice.log(unit) * -2))
        drawn = radius * tl.where((i & 1) == 1, libdevice.sin(angle), libdevice.cos(angle))
        found = drawn * std.to(tl.float32) + mean.to(tl.float32)
    return found


@triton.jit
def random_integers(seed, call, low, high, i):
    """Integers in [low, high): one word for up to 65536 different ones, else two."""
    span = (high - low).to(tl.uint64)
    one = (word(seed, call, i).to(tl.uint64) * span) >> 32
    first, second = two_words(seed, call, i)
    carried = (first.to(tl.uint64) * span) >> 32
    two = (second.to(tl.uint64) * span + carried) >> 32
    both = (second.to(tl.uint64) << 32) | first.to(tl.uint64)
    rest = both % tl.where(span == 0, span + 1, span)
    few, many = span - 1 <= 0xFFFF, span - 1 > 0xFFFFFFFF
    found = tl.where(few, one, tl.where(many, rest, two))
    return found.to(tl.int64) + low
