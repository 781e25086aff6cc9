"""Normalisation: layer, batch, group, instance and RMS norm are one kernel, `normalise`, over different dims.

    (x - mean) / sqrt(variance + eps) * weight + bias

with mean and variance over `dims`, and weight and bias that broadcast to x. It gives mean and variance too, in at least
float32, and its backward kernel needs x, weight and these. They follow from x, so its meaning in other ops, which is
what second derivatives go through, computes them from x again. `centre=False` leaves the mean out (RMS norm).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.tape.engine import sum_to
from ...core.tape.grad_mode import no_grad
from ...core.tensor import Tensor
from ..pointwise import clamp_min, rsqrt
from ..reduce import MAX_BLAS_TERMS, ones_vector
from ..reduce import sum_array as sums
from ..shape.views import CAT, WINDOWS

# ---- sums in a kernel


def widen(x: Any) -> Any:
    """An array in a dtype to compute in: half precision as float32."""
    return x.astype(np.float32) if x.itemsize == 2 else x


def sum_keepdim(xp: Any, x: Any, dims: tuple[int, ...]) -> Any:
    """The sum over dims, which stay as length 1; where these stand on both sides of others, the inner ones first."""
    if x.ndim == 2 and dims == (1,) and x.shape[1] <= MAX_BLAS_TERMS:
        return xp.matmul(x, ones_vector(xp, x.shape[1], x.dtype)[:, None])
    if 0 in dims and x.ndim - 1 in dims and len(dims) < x.ndim:
        x, dims = sums(xp, x, tuple([d for d in dims if d]), True), (0,)
    return sums(xp, x, dims, True)


def sum_squares(xp: Any, x: Any, dims: tuple[int, ...]) -> Any:
    """The sum of squares over dims, which stay as length 1; of long rows as products, without a buffer."""
    if x.ndim == 2 and dims == (1,) and x.shape[1] >= 256:
        return xp.matmul(x[:, None, :], x[:, :, None])[:, 0]
    return sum_keepdim(xp, x * x, dims)


def sum_to_shape(xp: Any, x: Any, shape: tuple[int, ...]) -> Any:
    """The sum over all that broadcasting `shape` to x's shape had stretched."""
    if x.ndim == 2 and shape == x.shape[1:] and x.shape[0] <= MAX_BLAS_TERMS:
        return xp.matmul(ones_vector(xp, x.shape[0], x.dtype), x)
    extra = x.ndim - len(shape)
    dims = (*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1 and x.shape[i + extra] != 1))
    return (sum_keepdim(xp, x, dims) if dims else x).reshape(shape)


def as_rows(x: Any, weight: Any, bias: Any, dims: tuple[int, ...]) -> tuple[Any, Any, Any] | None:
    """x as a matrix whose rows are normalised, weight and bias as vectors; None where that does not fit."""
    lead = x.ndim - len(dims)
    if dims[0] != lead:  # dims ascend, so else they are the last ones
        return None
    shape = x.shape[lead:]
    if is_array(weight):
        if weight.shape != shape:
            return None
        weight = widen(weight).reshape(-1)
    if is_array(bias):
        if bias.shape != shape:
            return None
        bias = widen(bias).reshape(-1)
    return widen(x).reshape(math.prod(x.shape[:lead]), math.prod(shape)), weight, bias


def is_array(x: Any) -> bool:
    """True if an input is an array; a missing weight is the number 1 and a missing bias the number 0."""
    return hasattr(x, "dtype")


# ---- the kernels


def run_normalise(
    xp: Any, x: Any, weight: Any, bias: Any, *, dims: tuple[int, ...], eps: float, centre: bool
) -> tuple[Any, Any, Any]:
    rows = as_rows(x, weight, bias, dims)
    if rows is not None:
        out, mean, variance = normalise_along(xp, *rows, (1,), eps, centre)
        shape = (*x.shape[: x.ndim - len(dims)], *(1,) * len(dims))
        out, mean, variance = out.reshape(x.shape), mean.reshape(shape if centre else (1,) * x.ndim), variance.reshape(shape)
    else:
        out, mean, variance = normalise_along(xp, widen(x), weight, bias, dims, eps, centre)
    return out.astype(x.dtype, copy=False), mean, variance


def normalise_along(
    xp: Any, x: Any, weight: Any, bias: Any, dims: tuple[int, ...], eps: float, centre: bool
) -> tuple[Any, Any, Any]:
    part = 1 / (math.prod([x.shape[d] for d in dims]) or 1)
    if centre:
        mean = sum_keepdim(xp, x, dims)
        mean *= part
        out = x - mean
    else:
        mean, out = xp.zeros((1,) * x.ndim, x.dtype), x.copy(order="C")
    variance = sum_squares(xp, out, dims)
    variance *= part
    scale = inverse_root(xp, variance, eps)
    if is_array(weight):
        if uniform(weight, x.ndim, dims):
            scale *= widen(weight)
            out *= scale
        else:
            out *= scale
            out *= widen(weight)
    else:
        out *= scale
    if is_array(bias):
        out += widen(bias)
    return out, mean, variance


def inverse_root(xp: Any, variance: Any, eps: float) -> Any:
    root = variance + eps
    xp.sqrt(root, out=root)
    return xp.true_divide(1, root, out=root)


def run_normalise_backward(
    xp: Any,
    g: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    *,
    dims: tuple[int, ...],
    eps: float,
    centre: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Any, ...]:
    """The gradients of x, weight and bias, those that are needed."""
    rows = as_rows(x, weight, bias, dims)
    if rows is not None:
        g, mean, variance = widen(g).reshape(rows[0].shape), mean.reshape(-1, 1), variance.reshape(-1, 1)
        found = gradients_along(xp, g, *rows, mean, variance, (1,), eps, centre, needs)
    else:
        found = gradients_along(xp, widen(g), widen(x), weight, bias, mean, variance, dims, eps, centre, needs)
    pairs = zip(found, (x, weight, bias), strict=True)
    return tuple([r.reshape(v.shape).astype(v.dtype, copy=False) for r, v in pairs if r is not None])


def gradients_along(
    xp: Any,
    g: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    dims: tuple[int, ...],
    eps: float,
    centre: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Any, Any, Any]:
    """x's gradient is g * weight without its mean and without its part along the normalised x, times the scale."""
    of_x, of_weight, of_bias = None, None, sum_to_shape(xp, g, bias.shape) if needs[2] else None
    if not (needs[0] or needs[1]):
        return of_x, of_weight, of_bias
    scale = inverse_root(xp, variance, eps)
    rest = x - mean if centre else x.copy(order="C")
    slopes = xp.multiply(g, rest, out=xp.empty_like(rest))
    even = uniform(weight, g.ndim, dims)
    along = sum_keepdim(xp, slopes, dims) * scale if even else None
    if needs[1]:
        of_weight = sum_to_shape(xp, along, weight.shape) if even else scaled_onto(xp, slopes, scale, weight.shape)
    if needs[0]:
        part = 1 / (math.prod([x.shape[d] for d in dims]) or 1)
        if even:  # the weight can wait for the end, where it joins the scale
            middle, pull = sum_keepdim(xp, g, dims) if centre else 0, g
            factor = scale * widen(weight) if is_array(weight) else scale
        else:
            middle, along = weighted_sum(xp, g, weight, dims) if centre else 0, weighted_sum(xp, slopes, weight, dims)
            along *= scale
            pull, factor = xp.multiply(g, widen(weight), out=slopes), scale
        if centre:
            middle *= part
            pull = xp.subtract(pull, middle, out=slopes)
        of_x = xp.multiply(pull, factor, out=slopes)
        rest *= along * scale * factor * part  # not in place: the weight's gradient may be `along`
        of_x -= rest
    return of_x, of_weight, of_bias


def scaled_onto(xp: Any, x: Any, scale: Any, shape: tuple[int, ...]) -> Any:
    """The sum of x * scale over all that broadcasting `shape` to x's shape had stretched; of rows, a matmul."""
    if x.ndim == 2 and shape == x.shape[1:] and x.shape[0] <= MAX_BLAS_TERMS and scale.shape[1] == 1:
        return xp.matmul(scale[:, 0], x)
    return sum_to_shape(xp, x * scale, shape)


def uniform(weight: Any, ndim: int, dims: tuple[int, ...]) -> bool:
    """True if a weight is the same all over the dims."""
    if not is_array(weight) or weight.size == 1:
        return True
    shape, extra = weight.shape, ndim - weight.ndim
    return {shape[d - extra] for d in dims if d >= extra} <= {1}


def weighted_sum(xp: Any, x: Any, weight: Any, dims: tuple[int, ...]) -> Any:
    """The sum of x * weight over dims, which stay as length 1; for a weight of just these dims a matmul."""
    weight = widen(weight)
    if x.ndim == 2 and dims == (1,) and weight.ndim == 1:
        return xp.matmul(x, weight[:, None])
    return sum_keepdim(xp, x * weight, dims)


# ---- the same in other ops


def wide_tensor(x: Tensor) -> Tensor:
    return cast(x, dtypes.float32) if x.tj_array.dtype in dtypes.HALF else x


def moments(x: Tensor, dims: tuple[int, ...], centre: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, what is left of x without it, and the mean square of that."""
    mean = x.mean(dims, keepdim=True) if centre else x.new_zeros((1,) * x.ndim)
    rest = x - mean if centre else x
    return mean, rest, (rest * rest).mean(dims, keepdim=True)


def normalise_by_parts(
    x: Tensor, weight: Any, bias: Any, dims: tuple[int, ...], eps: float, centre: bool
) -> tuple[Tensor, Tensor, Tensor]:
    mean, rest, variance = moments(wide_tensor(x), dims, centre)
    out = rest * rsqrt(variance + eps) * weight + bias
    return cast(out, x.dtype), mean.detach(), variance.detach()


def normalise_backward_by_parts(
    g: Tensor,
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Tensor,
    variance: Tensor,
    dims: tuple[int, ...],
    eps: float,
    centre: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor, ...]:
    dtype, g, x = x.dtype, wide_tensor(g), wide_tensor(x)
    rest = x - mean if centre else x
    if x.tj_requires_grad:  # what was saved does not know that it depends on x
        _, rest, variance = moments(x, dims, centre)
    scale = rsqrt(variance + eps)
    unit = rest * scale
    found = []
    if needs[0]:
        pull = g * weight
        slope = pull - unit * (pull * unit).mean(dims, keepdim=True)
        slope = slope - pull.mean(dims, keepdim=True) if centre else slope
        found.append(cast(slope * scale, dtype))
    if needs[1]:
        found.append(cast(sum_to(g * unit, weight.tj_array.shape), weight.dtype))
    if needs[2]:
        found.append(cast(sum_to(g, bias.tj_array.shape), bias.dtype))
    return tuple(found)


def normalise_gradient(
    g: Tensor,
    x: Tensor,
    weight: Any,
    bias: Any,
    out1: Tensor,
    out2: Tensor,
    needs: tuple[bool, bool, bool],
    dims: tuple[int, ...],
    eps: float,
    centre: bool,
) -> tuple[Tensor | None, ...]:
    attrs = {"dims": dims, "eps": eps, "centre": centre, "needs": needs}
    found = iter(apply(NORMALISE_BACKWARD, (g, x, weight, bias, out1, out2), attrs))
    return tuple(next(found) if need else None for need in needs)


NORMALISE_BACKWARD = primitive(
    "normalise_backward", "composite", run_normalise_backward, expand=normalise_backward_by_parts, upcast=False
)
NORMALISE = primitive(
    "normalise",
    "composite",
    run_normalise,
    grad=normalise_gradient,
    expand=normalise_by_parts,
    upcast=False,
    statistics=True,
)


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: tuple[int, ...], eps: float, centre: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised tensor, and the mean and variance it had over `dims`."""
    inputs = (x, 1 if weight is None else weight, 0 if bias is None else bias)
    return apply(NORMALISE, inputs, {"dims": dims, "eps": float(eps), "centre": centre})  # type: ignore[no-any-return]


def check_floating(name: str, input: Any) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{input.dtype.legacy}': convert the input with .float() first"
        )


# ---- over the last dims


def normalised_dims(
    name: str, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> tuple[int, ...]:
    check_floating(name, input)
    if isinstance(normalized_shape, int):
        raise TypeError(f"{name}(): argument 'normalized_shape' (position 2) must be tuple of ints, not int")
    wanted, shape = tuple(normalized_shape), input.tj_array.shape
    if not wanted:
        raise RuntimeError(
            f"{name}: Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = []"
        )
    if shape[max(len(shape) - len(wanted), 0) :] != wanted:
        listed = ", ".join(str(n) for n in wanted)
        raise RuntimeError(
            f"Given normalized_shape=[{listed}], expected input with shape [*, {listed}], but got input of size{list(shape)}"
        )
    for part, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.tj_array.shape != wanted:
            raise RuntimeError(
                f"Expected {part} to be of same shape as normalized_shape, but got {part} of shape {list(value.shape)} and "
                f"normalized_shape = {list(wanted)}"
            )
    return tuple(range(len(shape) - len(wanted), len(shape)))


@public(
    "",
    "nn.functional",
    samples=[
        sample(A(2, 4), (4,), A(4), A(4)),
        sample(A(2, 2, 3), (2, 3), A(2, 3), A(2, 3), 1e-3),
        sample(A(3, 4), (4,)),
        sample(A(3, 4), [4], A(4)),
        sample(A(4), (4,), bias=A(4)),
    ],
    method=False,
)
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Mean 0 and variance 1 over the last dims, then scaled and shifted element by element."""
    dims = normalised_dims("layer_norm", input, normalized_shape, weight, bias)
    return normalise(input, weight, bias, dims, eps)[0]


@public(
    "",
    "nn.functional",
    samples=[sample(A(2, 4), (4,), A(4)), sample(A(2, 2, 3), (2, 3), eps=0.1), sample(A(4), (4,))],
    method=False,
)
def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Mean square 1 over the last dims, then scaled element by element. eps: by default the dtype's (float32's for halves)."""
    dims = normalised_dims("rms_norm", input, normalized_shape, weight, None)
    if eps is None:
        eps = dtypes.finfo(dtypes.float64 if input.dtype is dtypes.float64 else dtypes.float32).eps
    return normalise(input, weight, None, dims, eps, centre=False)[0]


# ---- channel by channel


def check_channels(input: Tensor, channels: int, **vectors: Tensor | None) -> None:
    for name, value in vectors.items():
        if value is not None and value.tj_array.shape != (channels,):
            raise RuntimeError(
                f"{name} should contain {channels} elements not {value.numel()}: one for each channel of an input of shape "
                f"{list(input.shape)}"
            )


def along_channels(vector: Tensor | None, ndim: int) -> Tensor | None:
    """A number for each channel, in a shape that broadcasts over an input (N, C, ...)."""
    return vector if vector is None or ndim == 2 else vector.reshape(1, -1, *(1,) * (ndim - 2))


def run_track(xp: Any, running: Any, value: Any, momentum: float, factor: float) -> None:
    running *= 1 - momentum
    running += (value * (momentum * factor)).reshape(running.shape).astype(running.dtype, copy=False)


def expand_track(running: Tensor, value: Tensor, momentum: float, factor: float) -> None:
    running.mul_(1 - momentum).add_(cast(value.reshape(running.shape) * factor, running.dtype) * momentum)


TRACK = primitive("track", "composite", run_track, expand=expand_track, upcast=False, mutates=(0,))


def track(running: Tensor, value: Tensor, momentum: float, factor: float = 1.0) -> None:
    """Move a running statistic towards a new value times a factor, in place."""
    with no_grad():
        apply(TRACK, (running, value, momentum, factor))


def by_running_statistics(
    input: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise by what was seen in training: one multiplication and one addition."""
    scale = rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    ndim = input.tj_array.ndim
    return cast(input * along_channels(scale, ndim) + along_channels(shift, ndim), input.dtype)


def check_running(running_mean: Tensor | None, running_var: Tensor | None) -> None:
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")


def more_than_one(count: int, what: str, input: Tensor) -> None:
    if count == 1:
        raise ValueError(f"Expected more than 1 {what} when training, got input size {input.shape}")


@public(
    "nn.functional",
    samples=[
        sample(A(4, 3), None, None, A(3), A(3), True),
        sample(A(2, 3, 2), None, None, training=True),
        sample(A(2, 2, 2, 2), None, None, A(2), training=True, eps=0.1),
        sample(A(2, 3, 2), A(3, grad=False), A(3, lo=0.2, grad=False), A(3), A(3)),
        sample(A(2, 3), A(3, grad=False), A(3, lo=0.2, grad=False)),
    ],
)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Mean 0 and variance 1 for each channel, over the batch in training (running statistics follow), else by those."""
    check_floating("batch_norm", input)
    check_running(running_mean, running_var)
    if momentum is None:
        raise TypeError("batch_norm(): argument 'momentum' must be float, not NoneType")
    shape = input.tj_array.shape
    check_channels(
        input, shape[1] if len(shape) > 1 else 0, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias
    )
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError("batch_norm: running_mean must be defined in evaluation mode")
        return by_running_statistics(input, running_mean, running_var, weight, bias, eps)
    count = math.prod(shape) // shape[1]
    more_than_one(count, "value per channel", input)
    dims = (0, *range(2, len(shape)))
    out, mean, variance = normalise(input, along_channels(weight, len(shape)), along_channels(bias, len(shape)), dims, eps)
    if running_mean is not None and running_var is not None and count:
        track(running_mean, mean, momentum)
        track(running_var, variance, momentum, count / (count - 1))
    return out


@public(
    "",
    "nn.functional",
    samples=[
        sample(A(2, 4), 2, A(4), A(4)),
        sample(A(2, 4, 2), 2),
        sample(A(1, 4, 2, 2), 1, A(4), A(4), 1e-3),
        sample(A(2, 3, 2), 3, bias=A(3)),
    ],
    method=False,
)
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05
) -> Tensor:
    """Mean 0 and variance 1 for each group of channels of each sample, then scaled and shifted channel by channel."""
    check_floating("group_norm", input)
    shape = input.tj_array.shape
    if len(shape) < 2:
        raise RuntimeError(f"group_norm: Expected at least 2 dimensions for input tensor but received {len(shape)}")
    if num_groups <= 0 or shape[1] % num_groups:
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape {list(shape)} and "
            f"num_groups={num_groups}"
        )
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.tj_array.shape != shape[1:2]:
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of shape "
                f"{list(value.shape)} and input of shape {list(shape)}"
            )
    more_than_one(math.prod(shape) // num_groups if math.prod(shape) else 0, "value per channel", input)
    inside = (num_groups, shape[1] // num_groups)
    grouped = input.reshape(shape[0], *inside, *shape[2:])
    affine = [None if v is None else v.reshape(*inside, *(1,) * (len(shape) - 2)) for v in (weight, bias)]
    dims = tuple(range(2, len(shape) + 1))
    return normalise(grouped, affine[0], affine[1], dims, eps)[0].reshape(shape)  # type: ignore[no-any-return]


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3, 4)),
        sample(A(2, 2, 2, 2), weight=A(2), bias=A(2), eps=0.1),
        sample(A(2, 3, 2), A(3, grad=False), A(3, lo=0.2, grad=False), A(3), A(3), use_input_stats=False),
    ],
)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Mean 0 and variance 1 for each channel of each sample, or by running statistics."""
    check_floating("instance_norm", input)
    check_running(running_mean, running_var)
    shape = input.tj_array.shape
    if len(shape) < 2:
        raise RuntimeError(f"instance_norm: Expected an input (N, C, ...), got shape {list(shape)}")
    check_channels(input, shape[1], running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError("Expected running_mean and running_var to be defined when use_input_stats is false")
        return by_running_statistics(input, running_mean, running_var, weight, bias, eps)
    count = math.prod(shape[2:])
    more_than_one(count, "spatial element", input)
    dims = tuple(range(2, len(shape)))
    out, mean, variance = normalise(input, along_channels(weight, len(shape)), along_channels(bias, len(shape)), dims, eps)
    if running_mean is not None and running_var is not None and count:
        track(running_mean, mean.detach().mean(0), momentum)
        track(running_var, variance.detach().mean(0), momentum, count / (count - 1))
    return out


@public("nn.functional", samples=[sample(A(2, 4, 3), 2), sample(A(1, 5, 2), 3, 0.5, 0.5, 2.0), sample(A(1, 3, 2), 1)])
def local_response_norm(input: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * the mean square of the `size` channels around it) ** beta."""
    if input.tj_array.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.tj_array.ndim} dimensions)")
    squared = input * input
    shape = input.tj_array.shape

    def zeros(channels: int) -> Tensor:
        return squared.new_zeros((shape[0], channels, *shape[2:]))

    around = apply(CAT, (zeros(size // 2), squared, zeros((size - 1) // 2)), {"dim": 1})
    means = apply(WINDOWS, (around,), {"dim": 1, "size": size, "step": 1}).mean(-1)
    return input / (means * alpha + k) ** beta  # type: ignore[no-any-return]


@public("nn.functional", samples=[sample(A(2, 3)), sample(A(2, 3), 1.0, 0), sample(A(2, 3), dim=-1, eps=10.0)])
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm along a dim, or by eps if that is larger."""
    return input / clamp_min(input.norm(p, dim, keepdim=True), eps)  # type: ignore[no-any-return]
