"""Activations: what stands between the layers of a network, element by element.

The hot ones have kernels that work in one or two buffers, and backward kernels of their own. Straight lines are selected
by the bits of a number times a boolean: quicker than `where` by far, and right for infinite and NaN gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arrays import special_functions as special
from ...arrays.chunking import blockwise
from ...arrays.op_samples import A, I, sample
from ...core.dispatch import apply, overwrite
from ...core.op import Op, primitive
from ...core.registration import public
from ...core.tensor import Tensor, wrap_dim
from ..pointwise import abs, clamp, erf, exp, expm1, limit_floats, log1p, mask_bits, minimum, sigmoid, sign, tanh, where
from ..random import rand_like

_ROOT_2, _ROOT_2PI = math.sqrt(2), math.sqrt(2 * math.pi)

# ---- what they share


def quick_log1p(xp: Any, z: Any) -> Any:
    """log(1 + z), as exact as NumPy's and ten times as fast: the log of the rounded sum, plus what rounding took away."""
    u = xp.add(z, 1, out=xp.empty_like(z))
    lost = z - (u - 1)
    lost /= u
    xp.log(u, out=u)
    u += lost
    return u


def quick_expm1(xp: Any, x: Any) -> Any:
    """exp(x) - 1 for x <= 0, as exact as NumPy's and five times as fast."""
    t = xp.multiply(x, 0.5, out=xp.empty_like(x))
    xp.tanh(t, out=t)
    below = 1 - t
    t *= 2
    t /= below
    return t


def check(name: str, input: Any, integers: bool = False) -> None:
    """Activations are of floating tensors; some take integers too, none booleans."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
    kind = input.tj_array.dtype.kind
    if kind == "b" and integers:
        raise RuntimeError(f"Boolean inputs not supported for {name}")
    if kind in "biu" and not integers:
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{input.dtype.legacy}': convert the input with .float() first"
        )


def activate(op: Op, input: Tensor, inplace: bool, attrs: dict[str, Any], *numbers: Any) -> Tensor:
    """Apply, into the input itself if asked to. Ops that save their input have a copy of it saved then, unless they have a
    variant for it, with an underscore, whose gradient comes from the output."""
    return apply(op, (input, *numbers), attrs, input if inplace else None)  # type: ignore[no-any-return]


def composed(name: str, function: Callable[[Tensor], Tensor], input: Tensor, inplace: bool) -> Tensor:
    """The same for a composition."""
    return overwrite(input, function, (), {}, name + "_") if inplace else function(input)


# ---- straight lines

RELU_BACKWARD = primitive(
    "relu_backward",
    "composite",
    lambda xp, g, out: mask_bits(xp, g, out != 0),  # not `out > 0`: a NaN lets the gradient through, as in PyTorch
    expand=lambda g, out: where(out == 0, abs(out) * 0, g),  # +0, with a slope of 0
)


def run_relu(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0) if x.dtype.kind in "iu" else limit_floats(xp, x, 0.0, None)


RELU = primitive(
    "relu",
    "composite",
    run_relu,
    grad={"x": lambda g, out: apply(RELU_BACKWARD, (g, out))},
    expand=lambda x: where(x < 0, 0, x),  # -0 is itself, as in PyTorch
)


@public(
    "",
    "nn.functional",
    samples=[sample(A(2, 3)), sample(A()), sample(I(4, lo=-3), grad=False)],
    inplace=True,
    op=RELU,
    checked=True,
)
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    check("relu", input, integers=True)
    return apply(RELU, (input,), {}, input if inplace else None)  # type: ignore[no-any-return]


HARDTANH_BACKWARD = primitive(
    "hardtanh_backward",
    "composite",
    lambda xp, g, x, low, high: mask_bits(xp, g, (x > low) & (x < high)),  # NaN has no gradient, as in PyTorch
    expand=lambda g, x, low, high: where((x > low) & (x < high), g, abs(sign(x)) * 0),  # +0, with a slope of 0
)
HARDTANH = primitive(
    "hardtanh",
    "composite",
    limit_floats,
    grad={"x": lambda g, x, low, high: apply(HARDTANH_BACKWARD, (g, x, low, high))},
    expand=lambda x, low, high: clamp(x, low, high),
)
HARDTANH_ = primitive(
    "hardtanh_",
    "composite",
    HARDTANH.run,
    grad={"x": lambda g, out, low, high: apply(HARDTANH_BACKWARD, (g, out, low, high))},
    expand=HARDTANH.expand,
)


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(5), -0.5, 1.5), sample(I(4, lo=-3), grad=False)], op=HARDTANH)
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]."""
    check("hardtanh", input, integers=True)
    if min_val > max_val:
        raise ValueError(f"min_val cannot be greater than max_val: {min_val} > {max_val}")
    if not input.dtype.is_signed and (min_val < 0 or max_val < 0):
        raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    if not input.dtype.is_floating_point:
        return composed("hardtanh", lambda x: clamp(x, int(min_val), int(max_val)), input, inplace)
    return activate(HARDTANH_ if inplace else HARDTANH, input, inplace, {}, float(min_val), float(max_val))


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(5, lo=4, hi=8)), sample(I(4, lo=-3), grad=False)])
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """x limited to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


def run_leaky_relu(xp: Any, x: Any, negative_slope: float) -> Any:
    below = xp.multiply(x, negative_slope, out=xp.empty_like(x))
    if not 0 < negative_slope < math.inf:  # at 0, an infinite x has no product
        return xp.where(x > 0, x, below)
    return (xp.maximum if negative_slope <= 1 else xp.minimum)(x, below, out=below)


def run_leaky_relu_backward(xp: Any, g: Any, x: Any, negative_slope: float) -> Any:
    slope = (x > 0).astype(g.dtype)
    slope *= 1 - negative_slope
    slope += negative_slope
    slope *= g
    return slope


LEAKY_RELU_BACKWARD = primitive(
    "leaky_relu_backward",
    "composite",
    run_leaky_relu_backward,
    expand=lambda g, x, negative_slope: where(x > 0, g, g * negative_slope),
)
LEAKY_RELU = primitive(
    "leaky_relu",
    "composite",
    run_leaky_relu,
    grad={"x": lambda g, x, negative_slope: apply(LEAKY_RELU_BACKWARD, (g, x, negative_slope))},
    expand=lambda x, negative_slope: where(x > 0, x, x * negative_slope),
)
LEAKY_RELU_ = primitive(  # for slopes that are not negative: there the output has the input's sign
    "leaky_relu_",
    "composite",
    run_leaky_relu,
    grad={"x": lambda g, out, negative_slope: apply(LEAKY_RELU_BACKWARD, (g, out, negative_slope))},
    expand=LEAKY_RELU.expand,
)


@public(
    "nn.functional",
    samples=[sample(A(2, 3)), sample(A(5), 0.3), sample(A(5), 1.5), sample(A(5), -0.2)],
    op=LEAKY_RELU,
    checked=True,
)
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x above 0, negative_slope * x below."""
    check("leaky_relu", input)
    op = LEAKY_RELU_ if inplace and negative_slope >= 0 else LEAKY_RELU
    return activate(op, input, inplace, {}, float(negative_slope))


@public("", "nn.functional", samples=[sample(A(2, 3, 2), A(3)), sample(A(2, 3), A(1)), sample(A(4), A())])
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight * x below, with one weight for all or one for each channel (dim 1)."""
    check("prelu", input)
    if weight.tj_array.ndim > 1:
        raise RuntimeError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.tj_array.ndim}")
    if weight.tj_array.size != 1:
        if input.tj_array.ndim == 0:
            raise RuntimeError("prelu: Not allow zero-dim input tensor.")
        channels = input.tj_array.shape[1] if input.tj_array.ndim > 1 else 1
        if channels != weight.tj_array.size:
            raise RuntimeError(
                "prelu: Mismatch of parameter numbers and input channel size. "
                f"Found parameter numbers = {weight.tj_array.size} and channel size = {channels}."
            )
        weight = weight.reshape(-1, *(1,) * (input.tj_array.ndim - 2))
    else:
        weight = weight.reshape(())
    return where(input > 0, input, weight * input)  # type: ignore[no-any-return]


@public("", "nn.functional", samples=[sample(A(2, 3)), sample(A(3, lo=0.1), 0.1, 0.4)], method=False)
def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """x above 0; below, x times a random slope in [lower, upper) in training, and times the middle one otherwise."""
    check("rrelu", input)
    if lower > upper:
        raise RuntimeError(f"rrelu: Lower bound should be less than or equal to the upper bound, got {lower} and {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slopes = rand_like(input) * (upper - lower) + lower
    return composed("rrelu", lambda x: x * where(x <= 0, slopes, 1.0), input, inplace)


@public(
    "",
    "nn.functional",
    samples=[sample(A(2, 3), 0.1, 20.0), sample(A(5), -0.5, 0), sample(I(4), 1, 7, grad=False)],
    method=False,
)
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold, else `value`."""
    check("threshold", input, integers=True)
    fill = value if input.dtype.is_floating_point else int(value)
    return composed("threshold", lambda x: where(x <= threshold, fill, x), input, inplace)


@public("", "nn.functional", samples=[sample(A(2, 3)), sample(A(5), 0.8)])
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x outside of [-lambd, lambd], 0 inside."""
    check("hardshrink", input)
    size = abs(input)
    return where(size > lambd, input, size * 0)  # type: ignore[no-any-return]  # NaN is itself, without a gradient


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(5), 0.8)])
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 where that would pass it."""
    check("softshrink", input)
    if lambd < 0:
        raise RuntimeError(f"softshrink: lambda must be greater or equal to 0, but found to be {lambd}.")
    size = abs(input)
    return where(size > lambd, input - clamp(input, -lambd, lambd), size * 0)  # type: ignore[no-any-return]


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(6, lo=-5, hi=5))])
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """x / 6 + 1 / 2, limited to [0, 1]."""
    check("hardsigmoid", input)
    return composed("hardsigmoid", lambda x: relu6(x + 3) / 6, input, inplace)


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(6, lo=-5, hi=5))])
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x)."""
    check("hardswish", input)
    return composed("hardswish", lambda x: x * relu6(x + 3) / 6, input, inplace)


# ---- exponential below zero


def run_elu(xp: Any, x: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    below = limit_floats(xp, x, None, 0.0)
    below *= input_scale
    if not 0 <= alpha < math.inf:  # 0 times infinity is NaN, and 0 times what is negative has the other sign
        return xp.where(x < 0, xp.expm1(below) * x.dtype.type(alpha * scale), x * x.dtype.type(scale))
    below = quick_expm1(xp, below)
    below *= alpha * scale
    above = limit_floats(xp, x, 0.0, None)  # -0 is itself, as in PyTorch
    above *= scale
    above += below
    return above


def run_elu_backward(xp: Any, g: Any, x: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    slope = xp.minimum(x, 0, out=xp.empty_like(x))
    slope *= input_scale
    xp.exp(slope, out=slope)
    slope *= input_scale * alpha * scale
    return risen(xp, slope, g, x, scale, input_scale * alpha * scale)


def run_elu_backward_(xp: Any, g: Any, out: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    slope = xp.minimum(out, 0, out=xp.empty_like(out))
    slope *= input_scale
    slope += input_scale * alpha * scale
    return risen(xp, slope, g, out, scale, input_scale * alpha * scale)


def risen(xp: Any, slope: Any, g: Any, x: Any, above: float, at_zero: float) -> Any:
    """g times a slope that jumps from `at_zero` to `above` above 0, in the slope's buffer."""
    if not 0 <= at_zero < math.inf:  # see `run_elu`
        slope = xp.where(x > 0, x.dtype.type(above), slope)
    elif above != at_zero:
        slope += (x > 0) * x.dtype.type(above - at_zero)
    slope *= g
    return slope


def elu_gradient(g: Tensor, x: Tensor, alpha: float, scale: float, input_scale: float) -> Tensor:
    attrs = {"alpha": alpha, "scale": scale, "input_scale": input_scale}
    return apply(ELU_BACKWARD, (g, x), attrs)  # type: ignore[no-any-return]


def elu_gradient_(g: Tensor, out: Tensor, alpha: float, scale: float, input_scale: float) -> Tensor:
    attrs = {"alpha": alpha, "scale": scale, "input_scale": input_scale}
    return apply(ELU_BACKWARD_, (g, out), attrs)  # type: ignore[no-any-return]


def elu_by_parts(x: Tensor, alpha: float, scale: float, input_scale: float) -> Tensor:
    return where(x < 0, expm1(minimum(x, 0.0) * input_scale) * (alpha * scale), x * scale)  # type: ignore[no-any-return]


ELU_BACKWARD = primitive(
    "elu_backward",
    "composite",
    run_elu_backward,
    expand=lambda g, x, alpha, scale, input_scale: (
        g * where(x > 0, scale, exp(minimum(x, 0.0) * input_scale) * (input_scale * alpha * scale))
    ),
)
ELU_BACKWARD_ = primitive(
    "elu_backward_",
    "composite",
    run_elu_backward_,
    expand=lambda g, out, alpha, scale, input_scale: (
        g * where(out > 0, scale, (minimum(out, 0.0) + alpha * scale) * input_scale)
    ),
)
ELU = primitive("elu", "composite", run_elu, grad={"x": elu_gradient}, expand=elu_by_parts)
ELU_ = primitive("elu_", "composite", run_elu, grad={"x": elu_gradient_}, expand=elu_by_parts)  # for alpha >= 0: monotonic


def exponential_unit(name: str, input: Tensor, inplace: bool, alpha: float, scale: float, input_scale: float) -> Tensor:
    check(name, input)
    attrs = {"alpha": float(alpha), "scale": scale, "input_scale": input_scale}
    return activate(ELU_ if inplace and alpha >= 0 else ELU, input, inplace, attrs)


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(5), 0.7), sample(A()), sample(A(5), -0.5)], op=ELU)
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x above 0, alpha * (exp(x) - 1) below."""
    return exponential_unit("elu", input, inplace, alpha, 1.0, 1.0)


@public("", "nn.functional", samples=[sample(A(2, 3)), sample(A())], method=False)
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu, scaled so that activations keep mean 0 and variance 1."""
    return exponential_unit("selu", input, inplace, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


@public("", "nn.functional", samples=[sample(A(2, 3)), sample(A(5), 0.7), sample(A(5), -0.7)], method=False)
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x above 0, alpha * (exp(x / alpha) - 1) below."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return exponential_unit("celu", input, inplace, alpha, 1.0, 1.0 / alpha)


# ---- smooth gates

_TANH_A, _TANH_B = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715


# Continued fractions for float32, of all with so many terms those with the least largest error. Phi is the normal
# distribution's cumulative probability.
# log((1 - Phi(x)) / Phi(x)) / x in x^2: gelu to 5e-9, before rounding
_LOG_ODDS = (-9.59113165, 1047.41735, 135.471200, -23.2305588, -24.0847608, 1102.10563, 37.6351050)
# (1 - Phi(x)) / exp(-x^2 / 2), for x >= 0: Phi to 1e-8
_TAIL = (-0.00180463345, 0.436464676, 0.893678840, -4.46897630, 5.16008789, 13.6922484, 0.0752677124)


def continued_fraction(xp: Any, x: Any, c: tuple[float, ...]) -> Any:
    """c0 + c1 / (x + c2 + c3 / (x + c4 + ...)), from the inside out, in one buffer."""
    value = x + c[-1]
    for i in range(len(c) - 2, 1, -2):
        xp.true_divide(c[i], value, out=value)
        value += x
        value += c[i - 1]
    xp.true_divide(c[1], value, out=value)
    value += c[0]
    return value


def quick_gelu(x: Any) -> bool:
    """True if the short way is precise enough; it works in place, which NumPy's numbers without dims do not allow."""
    return bool(x.dtype == np.float32) and x.ndim > 0


@blockwise
def run_gelu(xp: Any, x: Any, *, approximate: str) -> Any:
    if approximate == "none" and quick_gelu(x):
        t = continued_fraction(xp, x * x, _LOG_ODDS)
        t *= x
        xp.exp(t, out=t)
        t += 1
        return xp.true_divide(x, t, out=t)
    t = run_gelu_gate(xp, x) if approximate == "tanh" else special.erf(xp, x * (1 / _ROOT_2))
    t = halved(t)
    t *= x
    return t


def run_gelu_gate(xp: Any, x: Any) -> Any:
    """tanh(sqrt(2 / pi) * (x + 0.044715 x^3))."""
    t = xp.multiply(x, x, out=xp.empty_like(x))
    t *= _TANH_B
    t += _TANH_A
    t *= x
    return xp.tanh(t, out=t)


@blockwise
def run_gelu_backward(xp: Any, g: Any, x: Any, *, approximate: str) -> Any:
    """g * (cumulative + x * density), where the first is the gate itself and the second its slope."""
    if approximate == "none" and quick_gelu(x):
        return quick_gelu_backward(xp, g, x)
    density = xp.multiply(x, x, out=xp.empty_like(x))
    if approximate == "tanh":
        gate = run_gelu_gate(xp, x)
        density *= 3 * _TANH_B
        density += _TANH_A
        density *= 1 - gate * gate
        density *= 0.5
        cumulative = halved(gate)
    else:
        density *= -0.5
        xp.exp(density, out=density)
        density *= 1 / _ROOT_2PI
        cumulative = halved(special.erf(xp, x * (1 / _ROOT_2)))
    density *= x
    density += cumulative
    density *= g
    return density


def quick_gelu_backward(xp: Any, g: Any, x: Any) -> Any:
    """The slope at x and that at -x have the sum 1. Below 0 it is exp(-x^2 / 2) * (tail - |x| / sqrt(2 pi)), one exponential
    for both its parts; less a half it is odd, so that the sign of x can be put on last."""
    size = xp.abs(x)
    slope = continued_fraction(xp, size, _TAIL)
    decay = size * size
    decay *= -0.5
    xp.exp(decay, out=decay)
    size *= 1 / _ROOT_2PI
    slope -= size
    slope *= decay
    xp.subtract(0.5, slope, out=slope)
    sign = xp.bitwise_and(x.view(np.int32), -(2**31), out=decay.view(np.int32))
    bits = slope.view(np.int32)
    bits ^= sign  # `copysign` takes several times as long
    slope += 0.5
    slope *= g
    return slope


def halved(gate: Any) -> Any:
    """From [-1, 1] to [0, 1], in place."""
    gate += 1
    gate *= 0.5
    return gate


def gelu_by_parts(x: Tensor, approximate: str) -> Tensor:
    gate = tanh(x * (x * x * _TANH_B + _TANH_A)) if approximate == "tanh" else erf(x * (1 / _ROOT_2))
    return x * ((gate + 1) * 0.5)


def gelu_slope_by_parts(g: Tensor, x: Tensor, approximate: str) -> Tensor:
    if approximate == "tanh":
        gate = tanh(x * (x * x * _TANH_B + _TANH_A))
        density = (1 - gate * gate) * (x * x * (3 * _TANH_B) + _TANH_A) * 0.5
    else:
        gate = erf(x * (1 / _ROOT_2))
        density = exp(x * x * -0.5) * (1 / _ROOT_2PI)
    return g * ((gate + 1) * 0.5 + x * density)


GELU_BACKWARD = primitive("gelu_backward", "composite", run_gelu_backward, expand=gelu_slope_by_parts)
GELU = primitive(
    "gelu",
    "composite",
    run_gelu,
    grad={"x": lambda g, x, approximate: apply(GELU_BACKWARD, (g, x), {"approximate": approximate})},
    expand=gelu_by_parts,
)


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(2, 3), approximate="tanh"), sample(A())], op=GELU, checked=True)
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution's cumulative probability of x; "tanh" is an approximation to it."""
    check("gelu", input)
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"gelu: approximate argument must be either none or tanh, got {approximate!r}.")
    return apply(GELU, (input,), {"approximate": approximate})  # type: ignore[no-any-return]


@blockwise
def run_silu(xp: Any, x: Any) -> Any:
    t = xp.negative(x, out=xp.empty_like(x))
    xp.exp(t, out=t)
    t += 1
    return xp.true_divide(x, t, out=t)


@blockwise
def run_silu_backward(xp: Any, g: Any, x: Any) -> Any:
    s = xp.negative(x, out=xp.empty_like(x))
    xp.exp(s, out=s)
    s += 1
    xp.true_divide(1, s, out=s)
    slope = 1 - s
    slope *= x
    slope += 1
    slope *= s
    slope *= g
    return slope


def silu_slope_by_parts(g: Tensor, x: Tensor) -> Tensor:
    s = sigmoid(x)
    return g * s * (1 + x * (1 - s))


SILU_BACKWARD = primitive("silu_backward", "composite", run_silu_backward, expand=silu_slope_by_parts)
SILU = primitive(
    "silu",
    "composite",
    run_silu,
    grad={"x": lambda g, x: apply(SILU_BACKWARD, (g, x))},
    expand=lambda x: x * sigmoid(x),
)


@public("nn.functional", samples=[sample(A(2, 3)), sample(A())], op=SILU, checked=True)
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    check("silu", input)
    return activate(SILU, input, inplace, {})


def run_softplus(xp: Any, x: Any, *, beta: float, threshold: float) -> Any:
    t = xp.multiply(x, beta, out=xp.empty_like(x))
    z = xp.exp(xp.minimum(t, threshold), out=xp.empty_like(x))
    return xp.where(t > threshold, x, quick_log1p(xp, z) * (1 / beta))


def run_softplus_backward(xp: Any, g: Any, x: Any, *, beta: float, threshold: float) -> Any:
    t = xp.multiply(x, -beta, out=xp.empty_like(x))
    straight = t < -threshold
    xp.exp(t, out=t)
    t += 1
    xp.true_divide(g, t, out=t)
    return xp.where(straight, g, t)


SOFTPLUS_BACKWARD = primitive(
    "softplus_backward",
    "composite",
    run_softplus_backward,
    expand=lambda g, x, beta, threshold: where(x * beta > threshold, g, g * sigmoid(x * beta)),
)
SOFTPLUS = primitive(
    "softplus",
    "composite",
    run_softplus,
    grad={
        "x": lambda g, x, beta, threshold: apply(SOFTPLUS_BACKWARD, (g, x), {"beta": beta, "threshold": threshold}),
    },
    expand=lambda x, beta, threshold: where(x * beta > threshold, x, log1p(exp(minimum(x * beta, threshold))) * (1 / beta)),
)


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(5), 2.0, 1.0), sample(A())], op=SOFTPLUS)
def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold."""
    check("softplus", input)
    return apply(SOFTPLUS, (input,), {"beta": float(beta), "threshold": float(threshold)})  # type: ignore[no-any-return]


@public("nn.functional", samples=[sample(A(2, 3)), sample(A())])
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x))."""
    check("mish", input)
    return composed("mish", lambda x: x * tanh(softplus(x)), input, inplace)


def run_logsigmoid(xp: Any, x: Any) -> Any:
    z = xp.exp(-xp.abs(x), out=xp.empty_like(x))
    return xp.minimum(x, 0) - quick_log1p(xp, z)


LOGSIGMOID = primitive(
    "logsigmoid",
    "composite",
    run_logsigmoid,
    grad={"x": lambda g, x: g * sigmoid(-x)},
    expand=lambda x: minimum(x, 0.0) - log1p(exp(-x.abs())),
)


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(3, lo=-100, hi=100))], op=LOGSIGMOID)
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)), also where sigmoid(x) is too small for a number."""
    check("logsigmoid", input)
    return apply(LOGSIGMOID, (input,))  # type: ignore[no-any-return]


@public("nn.functional", samples=[sample(A(2, 3))])
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input / (input.abs() + 1)  # type: ignore[no-any-return]


@public("nn.functional", samples=[sample(A(2, 3))])
def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - tanh(input)


@public("nn.functional", samples=[sample(A(2, 4)), sample(A(4, 3), dim=0), sample(A(2, 2, 3), 1)])
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along a dim times the sigmoid of the second."""
    check("glu", input)
    if input.tj_array.ndim == 0:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    place = wrap_dim(dim, input.tj_array.ndim)
    length = input.tj_array.shape[place]
    if length % 2:
        raise RuntimeError(f"glu: Halving dimension must be even, but dimension {place} is size {length}")
    value, gate = input.split([length // 2, length // 2], place)
    return value * sigmoid(gate)
