"""Special functions that NumPy lacks, on NumPy and CuPy arrays of float32 and float64 alike.

Each is `f(xp, x)`. Only float32 `erf` and `sigmoid`, which activations live on, have kernels for speed; all else is computed
in float64 and rounded once. The polynomials are interpolations at Chebyshev nodes made with 40 digits; their coefficients
stand highest power first. On a CPU the work is done in pieces that stay in the cache, which halves the time of the many passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CHUNK_ELEMENTS = 1 << 15  # elements: with its temporaries, a piece fits the second-level cache


def elementwise(kernel: Callable[..., Any], xp: Any, x: Any, *args: Any, dtype: Any = None) -> Any:
    """`kernel(xp, piece, *args)` over an array, computed in `dtype`; NaN and infinity come without warnings."""
    with np.errstate(all="ignore"):
        if xp is not np:
            return kernel(xp, x.astype(dtype or x.dtype, copy=False), *args).astype(x.dtype, copy=False)
        if x.size <= CHUNK_ELEMENTS and x.ndim:
            return kernel(np, x.astype(dtype or x.dtype, copy=False), *args).astype(x.dtype, copy=False)
        flat = x.reshape(-1)
        out = np.empty_like(flat)
        for start in range(0, flat.size, CHUNK_ELEMENTS):
            piece = flat[start : start + CHUNK_ELEMENTS]
            out[start : start + CHUNK_ELEMENTS] = kernel(np, piece.astype(dtype or x.dtype, copy=False), *args)
        return out.reshape(x.shape)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's rule, in place."""
    value = x * coefficients[0]
    for c in coefficients[1:-1]:
        value += c
        value *= x
    value += coefficients[-1]
    return value


# ---- sigmoid


def sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)). Where exp overflows the quotient is 0, as it should be."""
    with np.errstate(over="ignore"):
        z = xp.asarray(xp.negative(x))
        xp.exp(z, out=z)
        z += 1
        return xp.reciprocal(z, out=z)


# ---- the error function

# atanh(erf(x)) / x - 1 in x^2: tanh keeps the result within [-1, 1], where a quotient of polynomials would overshoot
_ATANH_ERF = (
    8.186257893783022e-09,
    -4.29110755817419e-08,
    -4.13505449614604e-06,
    8.175250695785508e-05,
    -0.0006090417155064642,
    -0.00020034998306073248,
    0.10277124494314194,
    0.1283791959285736,
)
# erf(x) / x in x^2, for |x| < 0.5
_ERF = (
    1.4725865480556744e-06,
    -1.4845849259707869e-05,
    0.00012053335124353741,
    -0.0008548297753674966,
    0.00522397737302147,
    -0.026866170632887928,
    0.11283791670925353,
    -0.37612638903183476,
    1.1283791670955126,
)
# exp(x^2) erfc(x) (x + 4) in (x - 4) / (x + 4), for 0.5 <= x <= 28, where erfc is 0
_ERFC = (
    -4.0487644040104434e-11,
    -1.1933708453280099e-08,
    1.5011351987298352e-09,
    1.1888332677460337e-07,
    -7.642586083983238e-08,
    -8.41850875257485e-07,
    1.424867330439749e-06,
    4.692221870747284e-06,
    -1.8861187452068277e-05,
    -3.6344678962115195e-06,
    0.0001768129019481246,
    -0.0004550528286586635,
    -0.00028095887995272336,
    0.006112055674342199,
    -0.02637005333881493,
    0.07638151490789344,
    -0.17401093724002176,
    0.3308515878780676,
    -0.5408538313132327,
    0.7732087022652362,
    -0.976548729080882,
    1.095995661000491,
)


def erf(xp: Any, x: Any) -> Any:
    """The error function; float32 to about 2 units in the last place."""
    return elementwise(_erf_float32 if x.dtype == np.float32 else _erf, xp, x)


def erfc(xp: Any, x: Any) -> Any:
    """1 - erf(x), with full relative precision where that is tiny."""
    return elementwise(_erfc, xp, x, dtype=np.float64)


def erfinv(xp: Any, x: Any) -> Any:
    """The y for which erf(y) = x."""
    return elementwise(_erfinv, xp, x, dtype=np.float64)


def _erf_float32(xp: Any, x: Any) -> Any:
    value = polynomial(x * x, _ATANH_ERF)
    value *= x
    value += x
    return xp.tanh(value, out=value)


def _erf(xp: Any, x: Any) -> Any:
    outside = xp.copysign(1 - _erfc_tail(xp, xp.abs(x)), x)
    return xp.where(xp.abs(x) < 0.5, _erf_center(x), outside)


def _erfc(xp: Any, x: Any) -> Any:
    tail = _erfc_tail(xp, xp.abs(x))
    return xp.where(xp.abs(x) < 0.5, 1 - _erf_center(x), xp.where(x < 0, 2 - tail, tail))


def _erf_center(x: Any) -> Any:
    return polynomial(x * x, _ERF) * x


def _erfc_tail(xp: Any, x: Any) -> Any:
    """erfc for x >= 0.5. exp(-x^2) is taken of the exact square, in two parts: rounding it would cost up to 10 bits."""
    x = xp.minimum(x, 28.0)
    shift = x * (2.0**27 + 1)
    high = shift - (shift - x)
    decay = xp.exp(-high * high) * xp.exp((high - x) * (high + x))
    return decay * polynomial((x - 4) / (x + 4), _ERFC) / (x + 4)


def _erfinv(xp: Any, x: Any) -> Any:
    """Winitzki's formula, right to 3 digits, and two steps of Halley's method, each of which triples the digits."""
    size = xp.abs(x)
    log = xp.log1p(-size * size)
    b = 2 / (math.pi * 0.147) + log / 2
    y = xp.sqrt(-log / 0.147 / (xp.sqrt(b * b - log / 0.147) + b))
    for _ in range(2):
        excess = xp.where(size < 0.5, _erf(xp, y) - size, (1 - size) - _erfc(xp, y))
        step = excess * (math.sqrt(math.pi) / 2) * xp.exp(y * y)
        y = y - step / (1 + y * step)
    y = xp.where(size == 1, math.inf, y)
    return xp.where(size == 0, x, xp.copysign(y, x))


# ---- the gamma function's logarithm and its derivatives

# lgamma(2 + t) / t, for |t| <= 0.5
_LGAMMA = (
    -1.3219945666117874e-07,
    2.78740805211359e-07,
    -4.3252393445604814e-07,
    9.200527894968101e-07,
    -2.0439048107029907e-06,
    4.38470440459836e-06,
    -9.438715099211532e-06,
    2.0505590755833454e-05,
    -4.49263133791557e-05,
    9.945767355819498e-05,
    -0.00022315475400520507,
    0.0005096695154115458,
    -0.0011927539118428156,
    0.002890510331034267,
    -0.0073855510286719986,
    0.02058080842778038,
    -0.0673523010531981,
    0.32246703342411326,
    0.42278433509846713,
)
# digamma(x) / (x - root) in x - 1.5, for 1 <= x <= 2
_DIGAMMA = (
    -0.00017312261802727394,
    0.00025968482126430747,
    -0.00015148586836773365,
    0.0002272331660987376,
    -0.0004821990530566789,
    0.0007233266279287554,
    -0.0010376374098418604,
    0.0015566317474486838,
    -0.002345267632540769,
    0.003519006401502276,
    -0.005279964873257405,
    0.007926944646403797,
    -0.011908218001568644,
    0.0179072524394512,
    -0.02697579675613825,
    0.04076083381242074,
    -0.061922133273064534,
    0.09498872445494122,
    -0.14840492305390884,
    0.2405424842407742,
    -0.4236274212814605,
    0.951055876031833,
)
_DIGAMMA_ROOT = (1.4616321449683622, 9.549995429965697e-17)  # the root, and the part of it below a float64
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)
_LGAMMA_STIRLING = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)][::-1]
_DIGAMMA_STIRLING = [-b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)][::-1]


def lgamma(xp: Any, x: Any) -> Any:
    """The logarithm of the absolute value of the gamma function."""
    return elementwise(_lgamma, xp, x, dtype=np.float64)


def digamma(xp: Any, x: Any) -> Any:
    """The derivative of lgamma."""
    return elementwise(_digamma, xp, x, dtype=np.float64)


def polygamma(xp: Any, n: int, x: Any) -> Any:
    """The n-th derivative of digamma."""
    return digamma(xp, x) if n == 0 else elementwise(_polygamma, xp, x, n, dtype=np.float64)


def _lgamma(xp: Any, x: Any) -> Any:
    """Below 0 the reflection formula: lgamma(x) = log(pi / |sin(pi x)|) - lgamma(1 - x)."""
    reflect = x < 0
    value = _lgamma_positive(xp, xp.where(reflect, 1 - x, x))
    if not bool(xp.any(reflect)):
        return value
    reflected = math.log(math.pi) - xp.log(xp.abs(xp.sin(math.pi * _offset_from_nearest_integer(xp, x)))) - value
    return xp.where(xp.isinf(value), math.inf, xp.where(reflect, reflected, value))  # far below 0 there are only poles


def _lgamma_positive(xp: Any, x: Any) -> Any:
    """Stirling's series from 8 on; below, gamma(x + 1) = x gamma(x) leads to the interval around 2, where the zeros are."""
    large = xp.maximum(x, 8.0)
    stirling = (large - 0.5) * (xp.log(large) - 1) + (0.5 * math.log(2 * math.pi) - 0.5)
    stirling += polynomial(1 / (large * large), _LGAMMA_STIRLING) / large
    small = xp.minimum(x, 8.0)
    steps = xp.floor(small + 0.5) - 2  # how far above the interval, -2 ... 6
    product = xp.where(steps < 0, small, 1.0) * xp.where(steps < -1, small + 1, 1.0)
    near = -xp.log(product)
    product = xp.ones_like(small)
    for k in range(1, 7):
        product *= xp.where(steps >= k, small - k, 1.0)
    t = small - (steps + 2)  # exact, which keeps the zeros at 1 and 2 precise
    near += xp.log(product) + t * polynomial(t, _LGAMMA)
    return xp.where(x < 8, near, stirling)


def _digamma(xp: Any, x: Any) -> Any:
    """Below 0 the reflection formula: digamma(x) = digamma(1 - x) - pi / tan(pi x)."""
    reflect = x < 0
    value = _digamma_positive(xp, xp.where(reflect, 1 - x, x))
    if bool(xp.any(reflect)):
        beyond = _offset_from_nearest_integer(xp, x)
        reflected = xp.where(beyond == 0, math.nan, value - math.pi / xp.tan(math.pi * beyond))
        value = xp.where(reflect, reflected, value)
    return xp.where(x == 0, -xp.copysign(math.inf, x), value)


def _digamma_positive(xp: Any, x: Any) -> Any:
    """The asymptotic series from 10 on; below, digamma(x + 1) = digamma(x) + 1 / x leads to the interval [1, 2)."""
    large = xp.maximum(x, 10.0)
    square = 1 / (large * large)
    series = xp.log(large) - 0.5 / large + square * polynomial(square, _DIGAMMA_STIRLING)
    small = xp.minimum(x, 10.0)
    steps = xp.floor(small) - 1  # how far above the interval, -1 ... 9
    total = xp.where(steps < 0, -1 / small, 0.0)
    for k in range(1, 10):
        total += xp.where(steps >= k, 1 / xp.maximum(small - k, 0.5), 0.0)
    u = small - steps
    high, low = _DIGAMMA_ROOT
    near = total + (u - high - low) * polynomial(u - 1.5, _DIGAMMA)
    return xp.where(x < 10, near, series)


def _polygamma(xp: Any, x: Any, n: int) -> Any:
    """(-1)^(n+1) n! zeta(n + 1, x), and below 0 the reflection formula, differentiated n times."""
    sign = -1 if n % 2 == 0 else 1
    reflect = x < 0
    value = sign * _factorial(n) * _zeta(xp, n + 1, xp.where(reflect, 1 - x, x))
    beyond = _offset_from_nearest_integer(xp, x)
    if bool(xp.any(reflect)):
        cotangent = 1 / xp.tan(math.pi * beyond)
        slope = polynomial(cotangent, _cotangent_derivative(n)) * math.pi ** (n + 1)
        value = xp.where(reflect, -sign * value - slope, value)
    return xp.where((x <= 0) & (beyond == 0), sign * math.inf, value)


def _zeta(xp: Any, s: int, x: Any) -> Any:
    """Hurwitz's zeta function, the sum of (x + k)^-s over k >= 0, for x >= 0: some terms, and Euler and Maclaurin's rest."""
    total = xp.zeros_like(x)
    terms = 10 + s
    for k in range(terms):
        total += (x + k) ** -s
    x = x + terms
    total += x ** (1 - s) / (s - 1) + 0.5 * x**-s
    factor = float(s)  # s (s + 1) ... (s + 2 j - 2) / (2 j)!
    for j, b in enumerate(_BERNOULLI, 1):
        factor /= 2 * j * max(2 * j - 1, 1)
        total += b * factor * x ** (1 - s - 2 * j)
        factor *= (s + 2 * j - 1) * (s + 2 * j)
    return total


def _cotangent_derivative(n: int) -> list[float]:
    """The n-th derivative of cot as a polynomial in cot: from cot' = -(1 + cot^2)."""
    powers = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(powers)][1:]
        powers = [-(a + b) for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return [_as_float(c) for c in reversed(powers)]


def _factorial(n: int) -> float:
    return math.gamma(n + 1) if n < 171 else math.inf


def _as_float(value: int) -> float:
    return float(value) if abs(value) < 10**308 else math.copysign(math.inf, value)


def _offset_from_nearest_integer(xp: Any, x: Any) -> Any:
    """x less the nearest integer: what is left of it in functions with period 1."""
    return x - xp.around(x)
