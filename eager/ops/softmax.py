"""Softmax and its kin. The maximum is subtracted before `exp`, if that could matter, so no finite logits overflow.

Kernels work in one buffer, and the gradients need only the saved output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import dtypes
from ..arrays.op_samples import A, sample
from ..core.cast import cast
from ..core.dispatch import apply
from ..core.errors import warn
from ..core.op import Op, primitive
from ..core.registration import public
from ..core.tensor import Tensor, wrap_dim
from .pointwise import exp, log
from .random import rand_like
from .reduce import sum_array

_PIECE = 1 << 16  # elements
_SMALL = 16  # numbers of this size can be given to `exp` as they are: their sums are far from overflow and from 0

# ---- kernels


def need_no_shift(xp: Any, x: Any) -> bool:
    """True if all numbers are small and none is NaN; asked of the CPU only, as a GPU would have to be waited for."""
    return xp is np and x.size > 0 and bool(x.min() >= -_SMALL) and bool(x.max() <= _SMALL)


def subtract_max(xp: Any, x: Any, dim: int) -> Any:
    """x minus its maximum over the dim, in a new buffer."""
    return x - x.max(axis=dim, keepdims=True)


def log_sum_exp(xp: Any, x: Any, dim: int) -> Any:
    """log(sum(exp(x))) over a dim, which stays as length 1; large arrays in pieces, so as to need no buffer of that size."""
    if xp is not np or dim == 0 or x.size <= 2 * _PIECE:
        return xp.log(sum_array(xp, xp.exp(x), (dim,), True))
    rows = max(_PIECE * x.shape[0] // x.size, 1)
    return np.concatenate([log_sum_exp(np, x[i : i + rows], dim) for i in range(0, x.shape[0], rows)])


def run_softmax(xp: Any, x: Any, *, dim: int) -> Any:
    if x.ndim == 0 or x.size == 0:
        return run_softmax(xp, x.reshape(1), dim=0).reshape(()) if x.size else x.copy()
    e = x if need_no_shift(xp, x) else subtract_max(xp, x, dim)
    e = xp.exp(e, out=None if e is x else e)
    e /= sum_array(xp, e, (dim,), True)
    return e


def run_log_softmax(xp: Any, x: Any, *, dim: int) -> Any:
    if x.ndim == 0 or x.size == 0:
        return run_log_softmax(xp, x.reshape(1), dim=0).reshape(()) if x.size else x.copy()
    t = subtract_max(xp, x, dim)  # always: close to 0, where the logarithm of a sure choice is, it is more precise
    t -= log_sum_exp(xp, t, dim)
    return t


def run_softmax_backward(xp: Any, g: Any, out: Any, *, dim: int) -> Any:
    if out.ndim == 0:
        return run_softmax_backward(xp, g.reshape(1), out.reshape(1), dim=0).reshape(())
    t = xp.multiply(g, out, out=xp.empty_like(out))
    if t.size == 0:
        return t
    xp.subtract(g, sum_array(xp, t, (dim,), True), out=t)
    t *= out
    return t


def run_log_softmax_backward(xp: Any, g: Any, out: Any, *, dim: int) -> Any:
    if g.ndim == 0:
        return run_log_softmax_backward(xp, g.reshape(1), out.reshape(1), dim=0).reshape(())
    t = xp.exp(out)
    if t.size == 0:
        return t
    t *= sum_array(xp, g, (dim,), True)
    return xp.subtract(g, t, out=t)


# ---- meanings and gradients


def softmax_by_parts(x: Tensor, dim: int) -> Tensor:
    if x.tj_array.size == 0:
        return x * 1
    e = exp(x - x.detach().amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def log_softmax_by_parts(x: Tensor, dim: int) -> Tensor:
    if x.tj_array.size == 0:
        return x * 1
    t = x - x.detach().amax(dim, keepdim=True)
    return t - log(exp(t).sum(dim, keepdim=True))


SOFTMAX_BACKWARD = primitive(
    "softmax_backward",
    "composite",
    run_softmax_backward,
    expand=lambda g, out, dim: out * (g - (g * out).sum(dim, keepdim=True)),
)
SOFTMAX = primitive(
    "softmax",
    "composite",
    run_softmax,
    grad={"x": lambda g, out, dim: apply(SOFTMAX_BACKWARD, (g, out), {"dim": dim})},
    expand=softmax_by_parts,
)
LOG_SOFTMAX_BACKWARD = primitive(
    "log_softmax_backward",
    "composite",
    run_log_softmax_backward,
    expand=lambda g, out, dim: g - exp(out) * g.sum(dim, keepdim=True),
)
LOG_SOFTMAX = primitive(
    "log_softmax",
    "composite",
    run_log_softmax,
    grad={"x": lambda g, out, dim: apply(LOG_SOFTMAX_BACKWARD, (g, out), {"dim": dim})},
    expand=log_softmax_by_parts,
)

# ---- public functions


def apply_along_dim(op: Op, input: Any, dim: int | None, dtype: Any) -> Tensor:
    if not isinstance(input, Tensor):
        raise TypeError(f"{op.name}(): argument 'input' must be Tensor, not {type(input).__name__}")
    if dim is None:
        warn(
            f"Implicit dimension choice for {op.name} has been deprecated. Change the call to include dim=X as an argument.",
        )
        dim = 0 if input.tj_array.ndim in (0, 1, 3) else 1
    place = wrap_dim(dim, input.tj_array.ndim)
    if dtype is not None:
        input = cast(input, dtypes.as_dtype(dtype))
    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f"\"{op.name}\" not implemented for '{input.dtype.legacy}': convert the input with .float() first"
        )
    return apply(op, (input,), {"dim": place})  # type: ignore[no-any-return]


_samples = [
    sample(A(2, 3), 1),
    sample(A(2, 3, 2), dim=-2),
    sample(A(), 0),
    sample(A(2, 3, lo=-9000, hi=9000), -1),
    sample(A(2, 0), 1),
]


@public("", "nn.functional", samples=_samples, op=SOFTMAX)
def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """exp(x) over its sum along a dim."""
    return apply_along_dim(SOFTMAX, input, dim, dtype)


@public("", "nn.functional", samples=_samples, op=LOG_SOFTMAX)
def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """The logarithm of softmax, also where that is too small for a number."""
    return apply_along_dim(LOG_SOFTMAX, input, dim, dtype)


@public("nn.functional", samples=[sample(A(2, 3), 1), sample(A(4), dim=-1)])
def softmin(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """softmax of -x."""
    return apply_along_dim(SOFTMAX, -input, dim, dtype)


@public("nn.functional", samples=[sample(A(0, 3), 0.7)])
def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A random choice by the logits as a differentiable vector; `hard` makes it one-hot, with the soft one's gradient."""
    exponential = -log(1 - rand_like(logits))
    soft = softmax((logits - log(exponential)) / tau, dim)
    if not hard:
        return soft
    chosen = soft.detach().argmax(dim, keepdim=True)
    return soft.new_zeros(soft.shape).scatter(dim, chosen, 1.0) - soft.detach() + soft  # type: ignore[no-any-return]
