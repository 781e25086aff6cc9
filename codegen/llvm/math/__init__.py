"""Vector math. In: a pointwise op of the op table that is more than one instruction, and operands. Out: LLVM IR of its result.

`VECTOR_MATH[name](f, *operands)` emits code for operands of any number of lanes and returns the result, with the meaning of
the eager kernel of that name. Floating operands are `float` or `double`; half precision is to be computed in `float`. Ops
that also take integers have a keyword `unsigned`, as types of values do not tell: see `TAKE_UNSIGNED`. `polygamma` is
missing. Some emit branches and loops (those that call the C library for rare inputs, and powers of integers), so they may
not be emitted into a function's entry block with `Function.once`.

Largest errors found, in units in the last place, in float (sweeps of 10^6 to 10^8 numbers) and in double (10^5 to 10^6):

    exp  0.9 0.9    sinh    1.8 1.8    log   0.9 0.9    sin  1.7 1.7    asin  1.4 1.5    erf     1.3 1.2
    exp2 0.9 1.0    cosh    1.3 1.3    log1p 0.9 0.9    cos  1.8 1.7    acos  1.1 1.1    erfc    0.5 2.0
    expm1 1.3 1.3   tanh    1.7 1.6    log2  1.7 1.5    tan  1.6 1.5    atan  1.2 1.2    erfinv  0.5 1.3
    pow  0.5 1.3    sigmoid 1.8 1.8    log10 1.4 1.0    asinh 1.3 1.2   acosh 1.6 1.4    atanh   1.7 1.5

`digamma` has larger errors near its negative zeros, as the eager kernel has; `lgamma` is the C library's. Ops without a
figure are exact, or made of the above.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.builder import Value
from . import basic, division
from . import exp as vmath_exp
from . import log as vmath_log
from . import pow as vmath_pow
from . import special as vmath_special
from . import trig as vmath_trig

MathEmitter = Callable[..., Value]

VECTOR_MATH: dict[str, MathEmitter] = {
    **{name: getattr(vmath_exp, name) for name in ("exp", "exp2", "expm1", "tanh", "sigmoid", "sinh", "cosh")},
    **{name: getattr(vmath_log, name) for name in ("log", "log1p", "log2", "log10", "asinh", "acosh", "atanh")},
    **{name: getattr(vmath_log, name) for name in ("logaddexp", "logaddexp2", "xlogy")},
    **{name: getattr(vmath_trig, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "hypot")},
    **{name: vmath_special.through_double(getattr(vmath_special, name)) for name in ("erfc", "erfinv", "lgamma", "digamma")},
    "erf": vmath_special.erf,
    "pow": vmath_pow.pow,
    **{name: getattr(division, name) for name in ("fmod", "remainder", "floor_divide", "trunc_divide")},
    **{name: getattr(basic, name) for name in ("sqrt", "rsqrt", "reciprocal", "square", "abs", "sign", "copysign")},
    **{name: getattr(basic, name) for name in ("floor", "ceil", "trunc", "round", "maximum", "minimum", "fmax", "fmin")},
    **{name: getattr(basic, name) for name in ("isnan", "isinf", "isfinite", "signbit")},
}
TAKE_UNSIGNED = frozenset(
    ("pow", "fmod", "remainder", "floor_divide", "trunc_divide", "abs", "sign", "maximum", "minimum", "fmax", "fmin", "signbit")
)
