"""Vector maths: the error function.

The polynomials are minimax fits (Remez's exchange, 50 digits), rounded from the lowest coefficient up with the rest fitted
again each time, highest power first.
"""

from __future__ import annotations

from .builder import Function, Value
from .vmath_exp import exp_within
from .vmath_parts import at_most, horner, magnitude, number, with_sign

ERF_LIMIT = {"float": 1.2, "double": 1.0}  # up to here erf is a polynomial
# erf(x) / x - 1 in x^2, for |x| up to the limit; relative error of erf 1.4e-8 and 1.4e-17
ERF_NEAR = {
    "float": (
        6.525636854348704e-05,
        -0.000756134104449302,
        0.005131115671247244,
        -0.026820030063390732,
        0.11282679438591003,
        -0.37612536549568176,
        0.12837915122509003,
    ),
    "double": (
        -7.604049756257841e-10,
        1.3614883586899869e-08,
        -1.6183619141784516e-07,
        1.6444108378180675e-06,
        -1.4924462746063672e-05,
        0.00012055280373513888,
        -0.0008548325481803287,
        0.005223977596688104,
        -0.02686617064195554,
        0.1128379167093694,
        -0.37612638903183343,
        0.1283791670955126,
    ),
}
# erfc(x)^(-1/8), for x from 1.2 to 3.925, where erf is 1 in float; error of erf 5e-9
ERF_FAR = (
    0.0007087936392053962,
    -0.006085769273340702,
    0.028836345300078392,
    -0.06528382003307343,
    0.1291864961385727,
    -0.00695023825392127,
    0.1906004250049591,
    0.9890948534011841,
)
# exp(x^2) erfc(x) (x + 4) in (x - 4) / (x + 4), for x from 1 to 28; relative error 6.8e-17
ERFC = (
    3.4816495385022397e-09,
    -1.549340393024229e-08,
    -5.669729195648544e-09,
    1.2627462831681127e-07,
    -6.996275375358522e-08,
    -8.484991874801699e-07,
    1.4214756322303724e-06,
    4.695598237569005e-06,
    -1.886004690376764e-05,
    -3.6355244453782695e-06,
    0.0001768126486822187,
    -0.0004550526202041864,
    -0.00028095884322822714,
    0.006112055648876226,
    -0.02637005334212646,
    0.07638151490970706,
    -0.1740109372398534,
    0.33085158787800123,
    -0.5408538313132367,
    0.7732087022652372,
    -0.976548729080882,
    1.095995661000491,
)


def erf(f: Function, x: Value) -> Value:
    size = magnitude(f, x)
    far = f.sub(number(1.0, x), (rest_of_erf if x.type.scalar == "float" else erfc_tail)(f, size))
    return f.select(f.compare("lt", size, number(ERF_LIMIT[x.type.scalar], x)), erf_near(f, x), with_sign(f, far, x))


def erf_near(f: Function, x: Value) -> Value:
    """erf for |x| up to the limit."""
    return f.fma(x, horner(f, f.mul(x, x), ERF_NEAR[x.type.scalar]), x)


def rest_of_erf(f: Function, size: Value) -> Value:
    """1 - erf for what is above the limit, of little relative precision: 1 / p^8."""
    p = horner(f, at_most(f, size, 3.925), ERF_FAR)
    for _ in range(3):
        p = f.mul(p, p)
    return f.div(number(1.0, size), p)


def erfc_tail(f: Function, x: Value) -> Value:
    """erfc for x >= 1, in double. What rounding takes from the square is given back: it would cost up to 10 bits."""
    x = at_most(f, x, 28.0)
    square = f.mul(x, x)
    lost = f.fma(x, x, f.neg(square))
    decay = exp_within(f, f.neg(square))
    above = f.add(x, number(4.0, x))
    value = f.div(f.mul(decay, horner(f, f.div(f.sub(x, number(4.0, x)), above), ERFC)), above)
    return f.fma(value, f.neg(lost), value)
