"""Pointwise ops: arithmetic, comparison, unary maths, selection.

`unary` and `binary` make the op, the public function, the method, the in-place method and the tests' samples from one
line each. Public functions promote dtypes first, so a kernel always sees one dtype (and weak Python numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import dtypes
from ..arrays import special_functions as special
from ..arrays.op_samples import A, B, I, Sample, sample
from ..core.call_signature import out_requires_grad_error, store_out
from ..core.cast import cast
from ..core.dispatch import InPlace, apply, overwrite, write
from ..core.op import PRIMITIVES, Op, primitive
from ..core.registration import public
from ..core.tape.node import local
from ..core.tensor import Tensor, wrap

Number = bool | int | float

# ---- promotion


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.number, np.bool_)) and not isinstance(x, Tensor)


def result_type(*values: Any) -> dtypes.dtype:
    """The dtype of an op over tensors and Python numbers: full tensors decide, then 0-dim ones, then numbers."""
    dims: dtypes.dtype | None = None
    zero: dtypes.dtype | None = None
    number: dtypes.dtype | None = None
    for v in values:
        if isinstance(v, Tensor):
            d = v.dtype
            if v.tj_array.ndim:
                dims = d if dims is None else dtypes.promote_types(dims, d)
            else:
                zero = d if zero is None else dtypes.promote_types(zero, d)
        else:
            d = dtypes.of_number(v)
            number = d if number is None else dtypes.promote_types(number, d)
    found = dtypes.combine(dims, dtypes.combine(zero, number))
    assert found is not None
    return found


def operand(x: Any, name: str) -> Any:
    """A tensor or a plain Python number; arrays become tensors; anything else is a TypeError."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, (bool, int, float)):
        return x
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, np.ndarray):
        return wrap(np.asarray(x))
    raise TypeError(f"{name}(): expected a Tensor or a number, got {type(x).__name__}")


def promote_operands(name: str, *values: Any, at_least: int = dtypes.BOOL) -> tuple[Any, ...]:
    """The operands in their common dtype, at least of a category; numbers stay numbers of that category."""
    values = tuple(operand(v, name) for v in values)
    common = result_type(*values)
    if common.category < at_least:
        common = dtypes.get_default_dtype() if at_least == dtypes.FLOAT else dtypes.int64
    return tuple(cast(v, common) if isinstance(v, Tensor) else as_category(v, common) for v in values)


def as_category(value: Number, dtype: dtypes.dtype) -> Number:
    """A number as one of the dtype's category; an integer that does not fit wraps around, as in PyTorch."""
    if dtype.category == dtypes.FLOAT:
        return float(value)
    if dtype.category == dtypes.BOOL:
        return bool(value)
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"int too big to convert: {value} does not fit into int64")
    span, least = 1 << 8 * dtype.itemsize, -(1 << 8 * dtype.itemsize - 1) if dtype.is_signed else 0
    return (int(value) - least) % span + least


def put(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any) -> Tensor:
    """Apply, honouring `out=`: a marked in-place target is recorded, PyTorch's `out=` must not need gradients."""
    if out is None:
        return apply(op, inputs, attrs)  # type: ignore[no-any-return]
    if isinstance(out, InPlace):
        return apply(op, inputs, attrs, out.tensor)  # type: ignore[no-any-return]
    if local.state.grad and any(isinstance(x, Tensor) and x.tj_requires_grad for x in (*inputs, out)):
        raise out_requires_grad_error(op.name)
    if out.tj_array.size == 0:
        return store_out(out, apply(op, inputs, attrs), op.name)
    return apply(op, inputs, attrs, out)  # type: ignore[no-any-return]


# ---- makers

FLOATING, SAME, TO_BOOL = "floating", "same", "bool"


def unary(
    name: str,
    grad: Callable[..., Tensor] | None,
    *,
    ufunc: str | None = None,
    run: Callable[..., Any] | None = None,
    result: str = FLOATING,
    lo: float = -2.0,
    hi: float = 2.0,
    expand: Callable[..., Any] | None = None,
    namespaces: tuple[str, ...] = ("",),
    bools: bool = True,
    inplace: bool | None = None,
    doc: str = "",
) -> Callable[..., Tensor]:
    """A pointwise op of one tensor. `floating` results turn integers into the default float first."""
    rules = None if grad is None else {"x": grad}
    op = primitive(name, "pointwise", run, ufunc=ufunc, grad=rules, expand=expand)

    def function(input: Tensor, *, out: Any = None) -> Tensor:
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
        kind = input.tj_array.dtype.kind
        if result is FLOATING and kind in "biu":
            input = cast(input, dtypes.get_default_dtype())
        elif kind == "b" and not bools:
            raise no_bools(name)
        return apply(op, (input,)) if out is None else put(op, (input,), {}, out)  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc or f"`{name}` of each element."
    cases = [sample(A(2, 3, lo=lo, hi=hi), grad=grad is not None), sample(A(lo=lo, hi=hi), grad=grad is not None)]
    inplace = result is not TO_BOOL if inplace is None else inplace
    register = public(*namespaces, samples=cases, inplace=inplace, op=op, checked=True)
    return register(function)  # type: ignore[no-any-return]


def binary(
    name: str,
    grad: dict[str, Callable[..., Tensor]] | None,
    *,
    ufunc: str | None = None,
    run: Callable[..., Any] | None = None,
    at_least: int = dtypes.BOOL,
    samples: list[Sample] | None = None,
    expand: Callable[..., Any] | None = None,
    inplace: bool = True,
    doc: str = "",
) -> Callable[..., Tensor]:
    """A pointwise op of two operands, tensors or numbers, promoted and broadcast."""
    op = primitive(name, "pointwise", run, ufunc=ufunc, grad=grad, expand=expand)

    def function(input: Any, other: Any, *, out: Any = None) -> Tensor:
        if not (
            isinstance(input, Tensor)
            and isinstance(other, Tensor)
            and input.tj_array.dtype is other.tj_array.dtype
            and (at_least == dtypes.BOOL or input.dtype.category >= at_least)
        ):
            input, other = promote_operands(name, input, other, at_least=at_least)
            if not isinstance(input, Tensor) and not isinstance(other, Tensor):
                raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
        return apply(op, (input, other)) if out is None else put(op, (input, other), {}, out)  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc or f"`{name}` of two tensors, or a tensor and a number, element by element."
    cases = samples or [sample(A(2, 3), A(2, 3)), sample(A(2, 3), A(3)), sample(A(2, 1), A(3)), sample(A(3), 1.5)]
    if grad is None:
        cases = [sample(*c.args, grad=False, peer=c.peer, **c.kwargs) for c in cases]
    return public(samples=cases, inplace=inplace, op=op, checked=True)(function)  # type: ignore[no-any-return]


# ---- arithmetic

_smooth = [sample(A(2, 3), A(2, 3)), sample(A(2, 3), A(3)), sample(A(2, 1), A(3)), sample(A(3), 1.5), sample(A(2), 3)]
_divisor = [sample(A(2, 3), A(2, 3, lo=0.5)), sample(A(2, 3), A(3, lo=0.5)), sample(A(3), 2.5), sample(A(2), -3)]

ADD = primitive("add", "pointwise", ufunc="add", grad={"a": lambda g: g, "b": lambda g: g})
SUB = primitive("sub", "pointwise", ufunc="subtract", grad={"a": lambda g: g, "b": lambda g: -g})
# Not by `ufunc`, which would write straight into a target: in place, NumPy's negative is wrong on some strides.
NEG = primitive("neg", "pointwise", lambda xp, x: xp.negative(x), grad={"x": lambda g: -g})


def _additive(op: Op, name: str) -> Callable[..., Tensor]:
    def function(input: Any, other: Any, *, alpha: Number = 1, out: Any = None) -> Tensor:
        if op is SUB and (_is_bool(input) or _is_bool(other)):
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
                "use the `~` or `logical_not()` operator instead."
            )
        if not (isinstance(input, Tensor) and isinstance(other, Tensor) and input.tj_array.dtype is other.tj_array.dtype):
            input, other = promote_operands(name, input, other)
        if alpha != 1:
            if isinstance(alpha, float) and isinstance(input, Tensor) and not input.dtype.is_floating_point:
                raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
            plain = type(alpha) is float and isinstance(other, Tensor) and other.tj_array.dtype.kind == "f"
            other = apply(PRIMITIVES["mul"], (other, alpha)) if plain else other * alpha
        return put(op, (input, other), {}, out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"input {'+' if op is ADD else '-'} alpha * other."
    return public(samples=[*_smooth, sample(A(2, 3), A(3), alpha=0.5)], inplace=True, op=op)(function)  # type: ignore[no-any-return]


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool) or (isinstance(x, Tensor) and x.tj_array.dtype.kind == "b")


add = _additive(ADD, "add")
sub = _additive(SUB, "sub")


@public(samples=[sample(A(2, 3)), sample(A())], inplace=True, op=NEG)
def neg(input: Tensor, *, out: Any = None) -> Tensor:
    """-input."""
    if not isinstance(input, Tensor):
        raise TypeError(f"neg(): argument 'input' must be Tensor, not {type(input).__name__}")
    if _is_bool(input):
        raise RuntimeError("Negation, the `-` operator, on a bool tensor is not supported. Use `~` or logical_not() instead.")
    return put(NEG, (input,), {}, out)


mul = binary("mul", {"a": lambda g, b: g * b, "b": lambda g, a: g * a}, ufunc="multiply", samples=_smooth)
true_divide = binary(
    "true_divide",
    {"a": lambda g, b: g / b, "b": lambda g, a, b: -g * (a / b) / b},
    ufunc="true_divide",
    at_least=dtypes.FLOAT,
    samples=_divisor,
)
MUL = mul
floor_divide = binary("floor_divide", None, run=lambda xp, a, b: floor_division(xp, a, b), samples=_divisor)
remainder = binary(
    "remainder",
    {"a": lambda g: g, "b": lambda g, a, b: -g * floor_divide(a.detach(), b.detach() if isinstance(b, Tensor) else b)},
    run=lambda xp, a, b: checked_division(xp, "remainder", xp.remainder, a, b),
    samples=_divisor,
    doc="The remainder with the sign of the divisor, as Python's %.",
)
fmod = binary(
    "fmod",
    {"a": lambda g: g, "b": lambda g, a, b: -g * trunc(a.detach() / b)},
    run=lambda xp, a, b: checked_division(xp, "fmod", xp.fmod, a, b),
    samples=_divisor,
    doc="The remainder with the sign of the dividend, as C's fmod.",
)


def checked_division(xp: Any, name: str, function: Any, a: Any, b: Any) -> Any:
    """Integer division, with PyTorch's errors for booleans and for a zero divisor."""
    kind = (a if hasattr(a, "dtype") else b).dtype.kind
    if kind == "b":
        raise no_bools(name)
    if kind in "iu" and bool(xp.any(xp.asarray(b) == 0)):
        raise RuntimeError(f"{name}: ZeroDivisionError: an integer was divided by 0; convert to floats first, with .float()")
    return function(a, b)


def no_bools(name: str) -> NotImplementedError:
    return NotImplementedError(f"\"{name}\" not implemented for 'Bool': convert the input first, for example with .int()")


def floor_division(xp: Any, a: Any, b: Any) -> Any:
    """As Python's //: what is left over decides, as the rounded quotient may already be the next whole number."""
    if xp is np or (a if hasattr(a, "dtype") else b).dtype.kind != "f":
        return checked_division(xp, "floor_divide", xp.floor_divide, a, b)
    rest = xp.fmod(a, b)
    quotient = (a - rest) / b
    quotient = xp.where((rest != 0) & ((rest < 0) != xp.signbit(b)), quotient - 1, quotient)
    whole = xp.floor(quotient)
    whole = xp.where(quotient - whole > 0.5, whole + 1, whole)
    return xp.where(xp.asarray(b) == 0, xp.true_divide(a, b), whole).astype(rest.dtype, copy=False)


def trunc_division(xp: Any, a: Any, b: Any) -> Any:
    """Integers as C's / divides them: towards zero."""
    whole = checked_division(xp, "div", xp.floor_divide, a, b)
    rest = a - whole * b
    return whole + ((rest != 0) & ((rest < 0) != (xp.asarray(a) < 0))).astype(whole.dtype)


TRUNC_DIVIDE = primitive("trunc_divide", "pointwise", trunc_division)


@public(samples=[*_divisor, sample(A(3), A(3, lo=0.5), rounding_mode="floor", grad=False)], inplace=True)
def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: Any = None) -> Tensor:
    """input / other; `rounding_mode` "floor" or "trunc" rounds the quotient."""
    if rounding_mode is None:
        return true_divide(input, other, out=out)
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'")
    if rounding_mode == "floor":
        return floor_divide(input, other, out=out)
    input, other = promote_operands("div", input, other)
    if result_type(input, other).is_floating_point:
        value = trunc(true_divide(input, other))
        return value if out is None else out_or_inplace(value, out, "div")
    return put(TRUNC_DIVIDE, (input, other), {}, out)


def out_or_inplace(value: Tensor, out: Any, name: str) -> Tensor:
    return write(out.tensor if isinstance(out, InPlace) else out, value, name)


def zero_gradient(g: Tensor) -> Tensor:
    """The gradient of steps: 0, whatever arrives."""
    return g.new_zeros(()).expand(g.tj_array.shape)  # type: ignore[no-any-return]


def _pow_base(g: Tensor, a: Any, b: Any) -> Tensor:
    slope = b * a ** (b - 1)
    return g * (where(b == 0, slope.new_zeros(()), slope) if isinstance(b, Tensor) else slope)


def _pow_exponent(a: Any, out: Tensor) -> Tensor:
    """The slope of a ** b in b; 0 at a base of 0 unless the power is infinite there."""
    if not isinstance(a, Tensor):
        a = out.new_full((), a)
    still = (a == 0) & isfinite(out)
    return where(still, 0, out * log(where(still, 1, a)))  # type: ignore[no-any-return]


POW = primitive(
    "pow",
    "pointwise",
    lambda xp, a, b: power(xp, a, b),
    grad={
        "a": lambda g, a, b: zero_gradient(g) if _is_zero(b) else _pow_base(g, a, b),
        "b": lambda g, a, out: g * _pow_exponent(a, out),
    },
)


def _is_zero(b: Any) -> bool:
    return not isinstance(b, Tensor) and b == 0


def power(xp: Any, a: Any, b: Any) -> Any:
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        if b == 2:
            return xp.multiply(a, a)
        if b == 0.5 and a.dtype.kind == "f":
            return xp.sqrt(a)
        if b == 3:
            return xp.multiply(xp.multiply(a, a), a)
        if b == -1 and a.dtype.kind == "f":
            return xp.true_divide(1, a)
    dtype = (a if hasattr(a, "dtype") else b).dtype
    if dtype.kind in "iu" and bool(xp.any(xp.asarray(b) < 0)):
        if isinstance(b, int):
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        negative = xp.asarray(b) < 0  # PyTorch rounds a ** -n towards zero
        ones = xp.where(xp.abs(a) == 1, a ** (xp.abs(b) % 2 + 2 * (b % 2 == 0)), 0)
        return xp.where(negative, ones, xp.power(a, xp.abs(b))).astype(dtype, copy=False)
    return xp.power(a, b).astype(dtype, copy=False)  # the power of two booleans is a boolean


@public(
    samples=[
        sample(A(2, 3, lo=0.5), 2),
        sample(A(2, 3), 3),
        sample(A(2, 3, lo=0.5), -1.5),
        sample(A(2, 3, lo=0.5), A(3)),
        sample(2.5, A(3)),
        sample(A(3), 0),
    ],
    inplace=True,
    op=POW,
)
def pow(input: Any, exponent: Any, *, out: Any = None) -> Tensor:
    """input ** exponent."""
    input, exponent = operand(input, "pow"), operand(exponent, "pow")
    common = result_type(input, exponent)
    if isinstance(input, Tensor):
        input = cast(input, common)
    if isinstance(exponent, Tensor):
        exponent = cast(exponent, common)
    if not isinstance(input, Tensor):
        input = as_category(input, common)
    return put(POW, (input, exponent), {}, out)


# ---- unary maths

exp = unary("exp", lambda g, out: g * out, ufunc="exp")
exp2 = unary("exp2", lambda g, out: g * out * math.log(2), ufunc="exp2")
expm1 = unary("expm1", lambda g, out: g * (out + 1), ufunc="expm1")
log = unary("log", lambda g, x: g / x, ufunc="log", lo=0.1)
log1p = unary("log1p", lambda g, x: g / (x + 1), ufunc="log1p", lo=-0.8)
log2 = unary("log2", lambda g, x: g / (x * math.log(2)), ufunc="log2", lo=0.1)
log10 = unary("log10", lambda g, x: g / (x * math.log(10)), ufunc="log10", lo=0.1)
sqrt = unary("sqrt", lambda g, out: g / (2 * out), ufunc="sqrt", lo=0.1)
rsqrt = unary("rsqrt", lambda g, out: -0.5 * g * out**3, run=lambda xp, x: 1 / xp.sqrt(x), lo=0.1)
reciprocal = unary("reciprocal", lambda g, out: -g * out * out, run=lambda xp, x: xp.true_divide(1, x), lo=0.5)
square = unary(
    "square",
    lambda g, x: 2 * g * x,
    run=lambda xp, x: xp.multiply(x, x) if x.dtype.kind != "b" else x.astype(np.int64),
    result=SAME,
)
sin = unary("sin", lambda g, x: g * cos(x), ufunc="sin")
cos = unary("cos", lambda g, x: -g * sin(x), ufunc="cos")
tan = unary("tan", lambda g, out: g * (1 + out * out), ufunc="tan", lo=-1, hi=1)
asin = unary("asin", lambda g, x: g * rsqrt(1 - x * x), ufunc="arcsin", lo=-0.9, hi=0.9)
acos = unary("acos", lambda g, x: -g * rsqrt(1 - x * x), ufunc="arccos", lo=-0.9, hi=0.9)
atan = unary("atan", lambda g, x: g / (1 + x * x), ufunc="arctan")
sinh = unary("sinh", lambda g, x: g * cosh(x), ufunc="sinh")
cosh = unary("cosh", lambda g, x: g * sinh(x), ufunc="cosh")
TANH_BACKWARD = primitive(
    "tanh_backward",
    "composite",
    lambda xp, g, out: one_minus_square_times(xp, out, g),
    expand=lambda g, out: g * (1 - out * out),
)
tanh = unary("tanh", lambda g, out: apply(TANH_BACKWARD, (g, out)), ufunc="tanh")
asinh = unary("asinh", lambda g, x: g * rsqrt(x * x + 1), ufunc="arcsinh")
acosh = unary("acosh", lambda g, x: g * rsqrt(x * x - 1), ufunc="arccosh", lo=1.2, hi=4.0)
atanh = unary("atanh", lambda g, x: g / (1 - x * x), ufunc="arctanh", lo=-0.9, hi=0.9)
SIGMOID_BACKWARD = primitive(
    "sigmoid_backward",
    "composite",
    lambda xp, g, out: out_minus_square_times(xp, out, g),
    expand=lambda g, out: g * out * (1 - out),
)
sigmoid = unary("sigmoid", lambda g, out: apply(SIGMOID_BACKWARD, (g, out)), run=lambda xp, x: special.sigmoid(xp, x))
erf = unary("erf", lambda g, x: g * (2 / math.sqrt(math.pi)) * exp(-x * x), run=lambda xp, x: special.erf(xp, x))
erfc = unary("erfc", lambda g, x: g * (-2 / math.sqrt(math.pi)) * exp(-x * x), run=lambda xp, x: special.erfc(xp, x))
erfinv = unary(
    "erfinv",
    lambda g, x: g * (math.sqrt(math.pi) / 2) * exp(square(erfinv(x))),
    run=lambda xp, x: special.erfinv(xp, x),
    lo=-0.9,
    hi=0.9,
)
lgamma = unary("lgamma", lambda g, x: g * digamma(x), run=lambda xp, x: special.lgamma(xp, x), lo=0.2, hi=4.0)
digamma = unary("digamma", lambda g, x: g * polygamma(1, x), run=lambda xp, x: special.digamma(xp, x), lo=0.2, hi=4.0)
POLYGAMMA = primitive(
    "polygamma",
    "pointwise",
    lambda xp, x, *, n: special.polygamma(xp, n, x),
    grad={"x": lambda g, x, n: g * polygamma(n + 1, x)},
)


@public(samples=[sample(1, A(3, lo=0.3, hi=4.0)), sample(2, A(3, lo=0.3, hi=4.0))], method=False, op=POLYGAMMA)
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma."""
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n, got {n}")
    return (
        digamma(input)
        if n == 0
        else apply(POLYGAMMA, (promote_operands("polygamma", input, at_least=dtypes.FLOAT)[0],), {"n": n})
    )


abs = unary("abs", lambda g, x: g * sign(x), ufunc="absolute", result=SAME, lo=0.1, bools=False)
sign = unary("sign", zero_gradient, run=lambda xp, x: signs(xp, x), result=SAME, lo=0.1)
floor = unary(
    "floor", zero_gradient, run=lambda xp, x: round_unless_integer(xp, xp.floor, x), result=SAME, lo=0.1, hi=0.9, bools=False
)
ceil = unary(
    "ceil", zero_gradient, run=lambda xp, x: round_unless_integer(xp, xp.ceil, x), result=SAME, lo=0.1, hi=0.9, bools=False
)
trunc = unary(
    "trunc", zero_gradient, run=lambda xp, x: round_unless_integer(xp, xp.trunc, x), result=SAME, lo=0.1, hi=0.9, bools=False
)
isnan = unary("isnan", None, run=lambda xp, x: xp.isnan(x), result=TO_BOOL)
isinf = unary("isinf", None, run=lambda xp, x: xp.isinf(x), result=TO_BOOL)
isfinite = unary("isfinite", None, run=lambda xp, x: xp.isfinite(x), result=TO_BOOL)
signbit = unary("signbit", None, run=lambda xp, x: xp.signbit(x) if x.dtype.kind == "f" else x < 0, result=TO_BOOL)
logical_not = unary("logical_not", None, ufunc="logical_not", result=TO_BOOL, inplace=True)


def one_minus_square_times(xp: Any, out: Any, g: Any) -> Any:
    """(1 - out^2) * g in one buffer."""
    found = xp.multiply(out, out)
    found = xp.subtract(1, found, out=found) if found.ndim else 1 - found
    return xp.multiply(found, g, out=found) if found.ndim else found * g


def out_minus_square_times(xp: Any, out: Any, g: Any) -> Any:
    """out * (1 - out) * g in one buffer."""
    found = xp.subtract(1, out)
    found = xp.multiply(found, out, out=found) if found.ndim else found * out
    return xp.multiply(found, g, out=found) if found.ndim else found * g


def signs(xp: Any, x: Any) -> Any:
    """The sign; 0 for NaN, as in PyTorch."""
    if x.dtype.kind != "f":
        return xp.sign(x) if x.dtype.kind != "b" else x.copy()
    found = xp.greater(x, 0).astype(x.dtype)
    found -= xp.less(x, 0)
    return found


def round_unless_integer(xp: Any, function: Any, x: Any) -> Any:
    """A rounding function that leaves integers alone."""
    return x.copy() if x.dtype.kind in "iu" else function(x)


def rounded(xp: Any, x: Any, decimals: int) -> Any:
    """To digits after the point, or with negative `decimals` before it: scaled, rounded half to even, and scaled back."""
    if decimals == 0 or x.dtype.kind != "f":
        return round_unless_integer(xp, xp.rint, x)
    scale = 10.0 ** (decimals if decimals > 0 else -decimals)
    return xp.rint(x * scale) / scale if decimals > 0 else xp.rint(x / scale) * scale


ROUND = primitive(
    "round",
    "pointwise",
    lambda xp, x, *, decimals: rounded(xp, x, decimals),
    grad={"x": zero_gradient},
)


@public(samples=[sample(A(2, 3, lo=0.1, hi=0.4)), sample(A(2, 3), decimals=1, grad=False)], inplace=True, op=ROUND)
def round(input: Tensor, *, decimals: int = 0, out: Any = None) -> Tensor:
    """The nearest integer (half to even), or the nearest number with `decimals` digits after the point."""
    if _is_bool(input):
        raise no_bools("round")
    return put(ROUND, (input,), {"decimals": decimals}, out)


@public(samples=[sample(A(2, 3, lo=0.1, hi=0.9))], inplace=True)
def frac(input: Tensor) -> Tensor:
    """The part after the point, with the sign of the input."""
    return input - trunc(input)


@public(samples=[sample(A(2, 3)), sample(A(3), nan=1.0, posinf=2.0, neginf=-2.0)], inplace=True)
def nan_to_num(input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Replace NaN and the infinities; by default by 0 and the largest and smallest finite numbers."""
    if not input.dtype.is_floating_point:
        return input.clone()
    limits = dtypes.finfo(input.dtype)
    found = where(isnan(input), 0.0 if nan is None else nan, input)
    found = where(found == math.inf, limits.max if posinf is None else posinf, found)
    return where(found == -math.inf, limits.min if neginf is None else neginf, found)


@public(samples=[sample(A(2, 3))], inplace=True)
def sgn(input: Tensor) -> Tensor:
    """The sign; for real tensors the same as `sign`."""
    return sign(input)


@public(samples=[sample(A(2, 3, lo=0.1, hi=0.9)), sample(A(3, lo=0.1, hi=0.9), eps=0.2)], inplace=True)
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), with x clamped to [eps, 1 - eps] first if eps is given."""
    (x,) = promote_operands("logit", input, at_least=dtypes.FLOAT)
    dtype, x = x.dtype, cast(x, dtypes.float32) if x.tj_array.itemsize == 2 else x
    x = x if eps is None else clamp(x, eps, 1 - eps)
    return cast(log(x) - log1p(-x), dtype)


@public(samples=[sample(A(2, 3, lo=-1.0)), sample(A(3))], inplace=True)
def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""
    (x,) = promote_operands("sinc", input, at_least=dtypes.FLOAT)
    dtype, x = x.dtype, (cast(x, dtypes.float32) if x.tj_array.itemsize == 2 else x) * math.pi
    nonzero = where(x == 0, 1.0, x)
    return cast(where(x == 0, 1.0, sin(nonzero) / nonzero), dtype)


@public(samples=[sample(A(2, 3))], inplace=True)
def deg2rad(input: Tensor) -> Tensor:
    """Degrees to radians."""
    return input * (math.pi / 180)


@public(samples=[sample(A(2, 3))], inplace=True)
def rad2deg(input: Tensor) -> Tensor:
    """Radians to degrees."""
    return input * (180 / math.pi)


@public(samples=[sample(A(2, 3))])
def positive(input: Tensor) -> Tensor:
    """The input itself."""
    if not isinstance(input, Tensor):
        raise TypeError(f"positive(): argument 'input' must be Tensor, not {type(input).__name__}")
    if _is_bool(input):
        raise RuntimeError("The `+` operator, on a bool tensor is not supported; convert it first, for example with .int()")
    return input


# ---- two operands

_apart = [sample(A(2, 3, lo=-2, hi=-0.1), A(2, 3, lo=0.1)), sample(A(3, lo=0.1), A(2, 3, lo=-2, hi=-0.1))]
# PyTorch saves the operands and not the result, which may therefore be overwritten.
_largest = {
    "a": lambda g, a, b: where(a == b, g * 0.5, where(a < b, 0, g)),
    "b": lambda g, a, b: where(a == b, g * 0.5, where(a > b, 0, g)),
}
_smallest = {
    "a": lambda g, a, b: where(a == b, g * 0.5, where(a > b, 0, g)),
    "b": lambda g, a, b: where(a == b, g * 0.5, where(a < b, 0, g)),
}
_largest_number = {
    "a": lambda g, a, b: where((a >= b) | isnan(b), g, 0),
    "b": lambda g, a, b: where((a >= b) | isnan(b), 0, g),
}
_smallest_number = {
    "a": lambda g, a, b: where((a <= b) | isnan(b), g, 0),
    "b": lambda g, a, b: where((a <= b) | isnan(b), 0, g),
}
maximum = binary("maximum", _largest, ufunc="maximum", samples=_apart, inplace=False)
minimum = binary("minimum", _smallest, ufunc="minimum", samples=_apart, inplace=False)
fmax = binary("fmax", _largest_number, ufunc="fmax", samples=_apart, inplace=False)
fmin = binary("fmin", _smallest_number, ufunc="fmin", samples=_apart, inplace=False)
atan2 = binary(
    "atan2",
    {"a": lambda g, a, b: g * b / squared_length(a, b), "b": lambda g, a, b: -g * a / squared_length(a, b)},
    ufunc="arctan2",
    at_least=dtypes.FLOAT,
    samples=[sample(A(2, 3, lo=0.2), A(2, 3)), sample(A(2, 1, lo=0.2), A(3))],
)


def squared_length(a: Any, b: Any) -> Tensor:
    """a^2 + b^2; at the origin infinite, so that what is divided by it is 0."""
    found = a * a + b * b
    return where(found == 0, math.inf, found)  # type: ignore[no-any-return]


hypot = binary(
    "hypot",
    {"a": lambda g, a, out: g * a / out, "b": lambda g, b, out: g * b / out},
    ufunc="hypot",
    at_least=dtypes.FLOAT,
    samples=[sample(A(2, 3, lo=0.2), A(2, 3)), sample(A(2, 1, lo=0.2), A(3))],
)
copysign = binary(
    "copysign",
    {"a": lambda g, a, out: g * sign(a) * sign(out), "b": zero_gradient},
    ufunc="copysign",
    at_least=dtypes.FLOAT,
    samples=[sample(A(2, 3, lo=0.2), A(2, 3, lo=0.2)), sample(A(3, lo=0.2), -1.0)],
)
logaddexp = binary(
    "logaddexp",
    {"a": lambda g, a, b: g * sigmoid(a - b), "b": lambda g, a, b: g * sigmoid(b - a)},
    ufunc="logaddexp",
    at_least=dtypes.FLOAT,
    samples=[sample(A(2, 3), A(2, 3)), sample(A(2, 1), A(3))],
    inplace=False,
)
logaddexp2 = binary(
    "logaddexp2",
    {"a": lambda g, a, b: g / (1 + exp2(b - a)), "b": lambda g, a, b: g / (1 + exp2(a - b))},
    ufunc="logaddexp2",
    at_least=dtypes.FLOAT,
    samples=[sample(A(2, 3), A(2, 3)), sample(A(2, 1), A(3))],
    inplace=False,
)
xlogy = binary(
    "xlogy",
    {"a": lambda g, a, b: g * log_where(a, b), "b": lambda g, a, b: g * a / b},
    run=lambda xp, a, b: x_log_y(xp, *same_type(xp, a, b)),
    at_least=dtypes.FLOAT,
    samples=[sample(A(2, 3, lo=0.2), A(2, 3, lo=0.2)), sample(A(2, 1, lo=0.2), A(3, lo=0.2)), sample(2.0, A(3, lo=0.2))],
)


def x_log_y(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a == 0) & ~xp.isnan(b), xp.zeros((), a.dtype), a * xp.log(b))


def log_where(a: Any, b: Any) -> Tensor:
    """log(b), but 0 where a is 0 and b is not above 0: the slope of xlogy there."""
    b = b if isinstance(b, Tensor) else a.new_full((), b)
    outside = (a == 0) & (b <= 0)
    return where(outside, 0.0, log(where(outside, 1.0, b)))


def _comparison(name: str, ufunc: str) -> Callable[..., Tensor]:
    cases = [sample(A(2, 3), A(2, 3)), sample(I(2, 3), I(3)), sample(I(4), 2), sample(A(3), 0.5)]
    return binary(name, None, ufunc=ufunc, samples=cases)


eq = _comparison("eq", "equal")
ne = _comparison("ne", "not_equal")
lt = _comparison("lt", "less")
le = _comparison("le", "less_equal")
gt = _comparison("gt", "greater")
ge = _comparison("ge", "greater_equal")

_logic = [sample(B(2, 3), B(2, 3)), sample(I(2, 3, hi=2), I(3, hi=2)), sample(B(3), True, peer=False)]
logical_and = binary("logical_and", None, ufunc="logical_and", samples=_logic)
logical_or = binary("logical_or", None, ufunc="logical_or", samples=_logic)
logical_xor = binary("logical_xor", None, ufunc="logical_xor", samples=_logic)


def _bitwise(name: str, ufunc: str, shift: bool = False) -> Callable[..., Tensor]:
    cases = [sample(I(2, 3), I(2, 3)), sample(I(3), 1)] + ([] if shift else [sample(B(2, 3), B(3))])
    return binary(name, None, run=lambda xp, a, b: bits(xp, name, ufunc, a, b), samples=cases)


def bits(xp: Any, name: str, ufunc: str, a: Any, b: Any) -> Any:
    kind = (a if hasattr(a, "dtype") else b).dtype.kind
    if kind not in "biu":
        raise NotImplementedError(f'"{name}" not implemented for floating-point tensors; cast to an integer or bool first')
    if kind == "b" and "shift" in name:
        raise no_bools(name)
    return getattr(xp, ufunc)(a, b)


bitwise_and = _bitwise("bitwise_and", "bitwise_and")
bitwise_or = _bitwise("bitwise_or", "bitwise_or")
bitwise_xor = _bitwise("bitwise_xor", "bitwise_xor")
bitwise_left_shift = _bitwise("bitwise_left_shift", "left_shift", shift=True)
bitwise_right_shift = _bitwise("bitwise_right_shift", "right_shift", shift=True)
BITWISE_NOT = primitive("bitwise_not", "pointwise", ufunc="invert")


@public(samples=[sample(I(3), grad=False), sample(B(3), grad=False)], inplace=True, op=BITWISE_NOT)
def bitwise_not(input: Tensor, *, out: Any = None) -> Tensor:
    """~input, for integers and booleans."""
    if input.dtype.is_floating_point:
        raise RuntimeError(f"bitwise_not: expected an integer or bool tensor, got {input.dtype}")
    return put(BITWISE_NOT, (input,), {}, out)


# ---- selection

WHERE = primitive(
    "where",
    "pointwise",
    lambda xp, condition, a, b: select_elements(xp, condition, a, b),
    grad={
        "a": lambda g, condition: where(condition, g, 0),
        "b": lambda g, condition: where(condition, 0, g),
    },
    upcast=False,
)


_INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}


def mask_bits(xp: Any, x: Any, mask: Any) -> Any:
    """x where the mask is True, else 0: its bits, as a whole number, times the mask. Infinite and NaN x are no exception."""
    whole = _INTEGERS[x.itemsize]
    return xp.asarray(xp.multiply(x.view(whole), mask, dtype=whole)).view(x.dtype)


def select_elements(xp: Any, condition: Any, a: Any, b: Any) -> Any:
    """Select a or b. NumPy branches on each element, at up to ten times the cost of `mask_bits` for a random condition."""
    if xp is np:
        if b.__class__ in (int, float) and b == 0 and a.dtype.kind == "f" and a.size > 2048:
            return mask_bits(xp, a, condition)
        if a.__class__ in (int, float) and a == 0 and b.dtype.kind == "f" and b.size > 2048:
            return mask_bits(xp, b, ~condition)
    a, b = same_type(xp, a, b)
    return xp.where(condition, a, b).astype(a.dtype, copy=False)  # CuPy has float32 where it lacks bfloat16


def same_type(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Numbers as 0-dim arrays of the other operand's type."""
    if not hasattr(a, "dtype"):
        a = xp.asarray(a, b.dtype)
    if not hasattr(b, "dtype"):
        b = xp.asarray(b, a.dtype)
    return a, b


@public(samples=[sample(B(2, 3), A(2, 3), A(3)), sample(B(3), A(2, 1), 0.5), sample(B(2, 3), 1.0, A(3))], method=False)
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """Elements of `input` where the condition holds, else of `other`. With the condition alone: the indices of its True."""
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if not isinstance(condition, Tensor) or condition.tj_array.dtype.kind not in "bu":
        kind = condition.dtype if isinstance(condition, Tensor) else type(condition).__name__
        raise RuntimeError(f"where expected condition to be a boolean tensor, but got a tensor with dtype {kind}")
    if condition.tj_array.dtype.kind == "u":
        condition = condition != 0
    a, b = promote_operands("where", input, other)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a = condition.new_full((), a, dtype=result_type(a, b))
    return apply(WHERE, (condition, a, b))


def _where_method(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """Elements of self where the condition holds, else of `other`."""
    return where(condition, self, other)  # type: ignore[no-any-return]


setattr(Tensor, "where", _where_method)  # noqa: B010 -- methods are not declared


def limit_floats(xp: Any, x: Any, low: Any, high: Any) -> Any:
    """Limit floats to [low, high]; what equals a limit is itself, also a zero of the other sign.

    With both limits given, NumPy compares with one after the other, at three times the speed of `maximum`. One limit alone
    is a `maximum` to it, which may return either zero.
    """
    return xp.clip(x, -math.inf if low is None else low, math.inf if high is None else high)


def run_clamp(xp: Any, x: Any, low: Any, high: Any) -> Any:
    return xp.clip(x, low, high) if x.dtype.kind in "biu" else limit_floats(xp, x, low, high)


CLAMP = primitive(
    "clamp",
    "pointwise",
    run_clamp,
    grad={"x": lambda g, x, low, high: where(inside(x, low, high), g, 0)},
    body=lambda b, x, low, high: b.clamp(x, low, high),
)


def clamp_limits(x: Tensor, low: Any, high: Any) -> tuple[Any, Any]:
    """As an op is given them: floats for a tensor of floats, whatever they were; numbers that an integer dtype can hold."""

    def limit(value: Any) -> Any:
        if value is None:
            return None
        return float(value) if x.dtype.is_floating_point else dtypes.representable("clamp", x.dtype, value)

    return limit(low), limit(high)


def inside(x: Tensor, low: Any, high: Any) -> Tensor:
    if low is None:
        return x <= high
    return x >= low if high is None else (x >= low) & (x <= high)


def clamp_to_tensors(x: Tensor, low: Any, high: Any) -> Tensor:
    """Within limits of which one at least is a tensor: x itself where it is equal to a limit, with all of the gradient.

    NaN stays, without a gradient, as in PyTorch.
    """
    if low is not None:
        x = where(x >= low, x, unless_nan(x, low))
    return x if high is None else where(x <= high, x, unless_nan(x, high))


def unless_nan(x: Tensor, limit: Any) -> Any:
    return where(isnan(x), x.detach(), limit) if x.dtype.is_floating_point else limit


@public(
    samples=[
        sample(A(2, 3), -0.7, 0.8),
        sample(A(2, 3), min=0.1),
        sample(A(2, 3), max=0.1),
        sample(A(2, 3), A(3, lo=-1, hi=-0.5), A(2, 3, lo=0.5)),
    ],
    inplace=True,
)
def clamp(input: Tensor, min: Any = None, max: Any = None, *, out: Any = None) -> Tensor:
    """Limit the elements to [min, max], numbers or tensors."""
    if min is None and max is None:
        raise RuntimeError("clamp: At least one of 'min' or 'max' must not be None")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        if isinstance(out, InPlace):
            return overwrite(out.tensor, clamp, (min, max), {}, "clamp_")
        found = clamp_to_tensors(input, min, max)
        return found if out is None else out_or_inplace(found, out, "clamp")
    bounds = [b for b in (min, max) if b is not None]
    input = cast(input, result_type(input, *bounds))
    return put(CLAMP, (input, *clamp_limits(input, min, max)), {}, out)


@public(samples=[sample(A(2, 3), 0.1)], inplace=True)
def clamp_min(input: Tensor, min: Any) -> Tensor:
    """Limit from below."""
    return clamp(input, min=min)


@public(samples=[sample(A(2, 3), 0.1)], inplace=True)
def clamp_max(input: Tensor, max: Any) -> Tensor:
    """Limit from above."""
    return clamp(input, max=max)


@public(samples=[sample(A(2, 3), A(3), 0.3), sample(A(2, 3), A(2, 3), A(2, 3, lo=0, hi=1))], inplace=True)
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input), from the nearer of both ends, so that a weight of 1 gives `end` itself."""
    if isinstance(input, Tensor) and isinstance(end, Tensor) and input.tj_array.dtype != end.tj_array.dtype:
        raise RuntimeError(f"lerp: expected dtype {input.dtype} for `end` but got dtype {end.dtype}")
    way = end - input
    if not isinstance(weight, Tensor):
        weight = operand(weight, "lerp")
        return input + weight * way if -0.5 < weight < 0.5 else end - way * (1 - weight)
    if weight.tj_array.ndim == 0 and _is_bool(weight):
        weight = cast(weight, way.dtype)
    return where(abs(weight) < 0.5, input + weight * way, end - way * (1 - weight))  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3), A(2, 3), A(3), value=0.5)], inplace=True)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    product = tensor1 * tensor2
    return input + (product if value == 1 else product * as_category(value, result_type(input, product)))


@public(samples=[sample(A(2, 3), A(2, 3), A(3, lo=0.5), value=0.5)], inplace=True)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    if all(isinstance(t, Tensor) and not t.dtype.is_floating_point for t in (input, tensor1, tensor2)):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported; for true division use (input + value * tensor1 / tensor2), "
            "for whole numbers (input + value * tensor1 // tensor2)"
        )
    quotient = tensor1 / tensor2
    return input + (quotient if value == 1 else quotient * value)


@public(samples=[sample(A(2, 3), A(3), grad=False), sample(A(2, 3), A(3), equal_nan=True, grad=False)])
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """True where |input - other| <= atol + rtol * |other|."""
    if input.tj_array.dtype != other.tj_array.dtype:
        raise RuntimeError(f"isclose: {input.dtype.legacy} did not match {other.dtype.legacy}; convert one of them with .to()")
    if rtol < 0 or atol < 0:
        raise RuntimeError(f"isclose: rtol and atol must be greater than or equal to zero, but got {rtol} and {atol}")
    if _is_bool(input) and _is_bool(other):
        return input == other
    exact, input, other = input == other, *(t if t.dtype.is_floating_point else cast(t, dtypes.float64) for t in (input, other))
    close = exact | ((input - other).abs() <= atol + rtol * other.abs()) & isfinite(input - other)
    return close | (isnan(input) & isnan(other)) if equal_nan else close


@public(samples=[sample(A(2, 3), A(3), grad=False)])
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """True if all elements are close."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


@public(samples=[sample(A(2, 3), A(2, 3), grad=False)])
def equal(input: Tensor, other: Tensor) -> bool:
    """True if both have the same shape and the same elements."""
    return input.shape == other.shape and bool((input == other).all())


@public(samples=[sample(A(2, 3), A(3), grad=False), sample(I(4, lo=-1, hi=2), I(1), grad=False)], inplace=True)
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above, `values` at zero."""
    if input.tj_array.dtype != values.tj_array.dtype:
        raise RuntimeError(
            f"heaviside is not implemented for tensors of different dtypes, got {input.dtype} and {values.dtype}"
        )
    return where(input == 0, values, cast(input > 0, input.dtype))


@public(samples=[sample(A(2, 3), A(3)), sample(A(3), 0.5)])
def rsub(input: Tensor, other: Any, *, alpha: Number = 1) -> Tensor:
    """other - alpha * input."""
    return sub(other, input, alpha=alpha)


# ---- other names of the same functions

ALIASES = {
    "absolute": abs, "arccos": acos, "arccosh": acosh, "arcsin": asin, "arcsinh": asinh, "arctan": atan,
    "arctan2": atan2, "arctanh": atanh, "clip": clamp, "divide": div, "fix": trunc, "greater": gt,
    "greater_equal": ge, "less": lt, "less_equal": le, "multiply": mul, "negative": neg, "not_equal": ne, "subtract": sub,
}  # fmt: skip
