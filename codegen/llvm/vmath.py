"""Vector maths: what emits each pointwise op of the op table that is more than an instruction of the builder's.

`MATHS[name](f, *operands)` writes straight-line code for operands of any number of lanes and gives its result. It means what
the eager kernel of that name means. Floating operands are `float` or `double`; half precision is computed in `float`.
"""

from __future__ import annotations

from collections.abc import Callable

from . import vmath_easy as easy
from . import vmath_exp, vmath_log, vmath_special, vmath_trig
from .builder import Value

MATHS: dict[str, Callable[..., Value]] = {
    "exp": vmath_exp.exp,
    "tanh": vmath_exp.tanh,
    "sigmoid": vmath_exp.sigmoid,
    "log": vmath_log.log,
    "pow": vmath_log.pow,
    "sin": vmath_trig.sin,
    "cos": vmath_trig.cos,
    "erf": vmath_special.erf,
    "sqrt": easy.sqrt,
    "rsqrt": easy.rsqrt,
    "reciprocal": easy.reciprocal,
    "floor": easy.floor,
    "ceil": easy.ceil,
    "trunc": easy.trunc,
    "round": easy.round,
    "abs": easy.abs,
    "maximum": easy.maximum,
    "minimum": easy.minimum,
    "fmax": easy.fmax,
    "fmin": easy.fmin,
}
