"""Vector maths: what emits each pointwise op of the op table that is more than an instruction of the builder's.

`MATHS[name](f, *operands)` writes code for operands of any number of lanes, and gives its result. It means what the eager
kernel of that name means. Floating operands are `float` or `double`; half precision is to be computed in `float`. Ops that
also take integers have a keyword `unsigned`, as the types of values do not say it: see `TAKE_UNSIGNED`.
`polygamma` is missing.
"""

from __future__ import annotations

from collections.abc import Callable

from . import vmath_divide as divide
from . import vmath_easy as easy
from . import vmath_exp, vmath_log, vmath_pow, vmath_special, vmath_trig
from .builder import Value

Emitter = Callable[..., Value]

MATHS: dict[str, Emitter] = {
    **{name: getattr(vmath_exp, name) for name in ("exp", "exp2", "expm1", "tanh", "sigmoid", "sinh", "cosh")},
    **{name: getattr(vmath_log, name) for name in ("log", "log1p", "log2", "log10", "asinh", "acosh", "atanh")},
    **{name: getattr(vmath_log, name) for name in ("logaddexp", "logaddexp2", "xlogy")},
    **{name: getattr(vmath_trig, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "hypot")},
    **{name: vmath_special.in_double(getattr(vmath_special, name)) for name in ("erfc", "erfinv", "lgamma", "digamma")},
    "erf": vmath_special.erf,
    "pow": vmath_pow.pow,
    **{name: getattr(divide, name) for name in ("fmod", "remainder", "floor_divide", "trunc_divide")},
    **{name: getattr(easy, name) for name in ("sqrt", "rsqrt", "reciprocal", "square", "abs", "sign", "copysign")},
    **{name: getattr(easy, name) for name in ("floor", "ceil", "trunc", "round", "maximum", "minimum", "fmax", "fmin")},
    **{name: getattr(easy, name) for name in ("isnan", "isinf", "isfinite", "signbit")},
}
TAKE_UNSIGNED = frozenset(
    ("pow", "fmod", "remainder", "floor_divide", "trunc_divide", "abs", "sign", "maximum", "minimum", "fmax", "fmin", "signbit")
)
