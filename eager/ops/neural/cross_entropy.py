"""Losses of class indices: negative log likelihood, and cross entropy, with one kernel from logits to loss and one back.

The forward pass saves the log-probabilities, the backward pass makes the gradient from them in one buffer.

A row's loss is the sum over classes of -q_c * log(p_c), where q is 0 for ignored rows and otherwise
(1 - smoothing) * weight_c for the target class plus smoothing / C * weight_c for every class. So the gradient is
sum(q) * p - q.
"""

from __future__ import annotations

import math
from typing import Any

from ...arrays import dtypes
from ...arrays.op_samples import A, I, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.shape_inference import Spec
from ...core.tensor import Tensor
from ..pointwise import exp, where
from ..reduce import sum_array
from ..softmax import LOG_SOFTMAX_BACKWARD, log_softmax, run_log_softmax
from .loss import apply_reduction, legacy_reduction
from .normalization import is_array, wide_tensor, widen

# ---- targets


def class_index(xp: Any, target: Any, classes: int, ignore_index: int) -> tuple[Any, Any]:
    """Targets with 0 in the place of ignored ones, and which rows count; IndexError for what is no class."""
    counts = target != ignore_index
    index = xp.where(counts, target, xp.zeros((), target.dtype))
    wrong = (index < 0) | (index >= classes)
    if bool(wrong.any()):
        raise IndexError(f"Target {int(index[wrong][0])} is out of bounds.")
    return index, counts


CLASS_INDEX = primitive(
    "class_index",
    "index",
    lambda xp, target, *, classes, ignore_index: class_index(xp, target, classes, ignore_index),
    infer=lambda target, **attrs: (target, Spec(target.shape, dtypes.bool_)),
)

# ---- kernels; x is (N, C) or (N, C, S)


def run_cross_entropy(
    xp: Any, x: Any, target: Any, weight: Any, *, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, Any]:
    index, counts = class_index(xp, target, x.shape[1], ignore_index)
    logs = run_log_softmax(xp, widen(x), dim=1)
    of_target, _, each = shares(xp, logs, index, counts, weight, label_smoothing)
    loss = xp.take_along_axis(logs, index[:, None], axis=1)[:, 0] * -of_target
    if label_smoothing:
        smooth = sum_array(xp, logs * each if is_array(each) else logs, (1,), True)[:, 0] * counts
        smooth *= label_smoothing / x.shape[1]
        loss -= smooth
    loss = xp.where(counts, loss, xp.zeros((), loss.dtype))  # a row that does not count may hold NaN
    if reduction != "none":
        loss = xp.add.reduce(loss, axis=None)
    if reduction == "mean":
        loss = loss / weight_of_targets(xp, logs, index, counts, weight)
    return xp.asarray(loss, x.dtype), logs.astype(x.dtype, copy=False)


def shares(xp: Any, x: Any, index: Any, counts: Any, weight: Any, label_smoothing: float) -> tuple[Any, Any, Any]:
    """q of the target class without the part that all classes get, the sum of q over all, and the classes' weights."""
    kept = counts.astype(x.dtype)
    if not is_array(weight):
        return kept * (1 - label_smoothing), kept, 1
    each = widen(weight)
    of_target = xp.take(each, index) * kept
    of_target *= 1 - label_smoothing
    of_all = of_target + kept * (xp.add.reduce(each) * (label_smoothing / x.shape[1])) if label_smoothing else of_target
    return of_target, of_all, each.reshape(1, -1, *(1,) * (x.ndim - 2))


def weight_of_targets(xp: Any, x: Any, index: Any, counts: Any, weight: Any) -> Any:
    """Return the divisor of a mean: the weights of the targets that count."""
    if not is_array(weight):
        return counts.sum().astype(x.dtype)
    return xp.add.reduce(xp.take(widen(weight), index) * counts, axis=None)


def run_cross_entropy_backward(
    xp: Any, g: Any, target: Any, weight: Any, logs: Any, *, ignore_index: int, label_smoothing: float, reduction: str
) -> Any:
    dtype, g, p = logs.dtype, widen(g), widen(logs)
    index, counts = class_index(xp, target, logs.shape[1], ignore_index)
    of_target, of_all, each = shares(xp, p, index, counts, weight, label_smoothing)
    if reduction == "mean":
        g = g / weight_of_targets(xp, p, index, counts, weight)
    p = xp.exp(p)
    p *= (of_all * g)[:, None]
    if label_smoothing:
        p -= (counts * g * p.dtype.type(label_smoothing / p.shape[1]))[:, None] * each
    row = xp.arange(p.shape[0])
    place = (row, index) if p.ndim == 2 else (row[:, None], index, xp.arange(p.shape[2]))
    p[place] -= of_target * g
    if not bool(counts.all()):
        xp.moveaxis(p, 1, -1)[~counts] = 0
    return p.astype(dtype, copy=False)


# ---- the same in other ops


def classes_of(x: Tensor, target: Tensor, weight: Any, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Targets that can be gathered by, and for each row: whether it counts (0 or 1), and the weight of its target."""
    index, counts = apply(CLASS_INDEX, (target,), {"classes": x.tj_array.shape[1], "ignore_index": ignore_index})
    kept = cast(counts, x.dtype)
    if not has_weights(weight):
        return index, kept, kept
    return index, kept, weight.detach()[index] * kept


def has_weights(weight: Any) -> bool:
    """The number 1 stands for none; where numbers are traced, it is a tensor without dims."""
    return isinstance(weight, Tensor) and weight.tj_array.ndim > 0


def class_weights(weight: Any, ndim: int) -> Any:
    return weight.detach().reshape(1, -1, *(1,) * (ndim - 2)) if has_weights(weight) else 1


def cross_entropy_by_parts(
    x: Tensor, target: Tensor, weight: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Tensor, Tensor]:
    dtype, x = x.dtype, wide_tensor(x)
    index, kept, of_target = classes_of(x, target, weight, ignore_index)
    logs = log_softmax(x, 1)
    loss = -logs.gather(1, index.unsqueeze(1)).squeeze(1) * of_target
    if label_smoothing:
        smooth = (logs * class_weights(weight, x.ndim)).sum(1) * kept
        loss = loss * (1 - label_smoothing) - smooth * (label_smoothing / x.tj_array.shape[1])
    loss = where(kept != 0, loss, 0)
    if reduction != "none":
        loss = loss.sum() / of_target.sum() if reduction == "mean" else loss.sum()
    return cast(loss, dtype), cast(logs, dtype)


def cross_entropy_backward_by_parts(
    g: Tensor, target: Tensor, weight: Any, logs: Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Tensor:
    dtype, g, logs = logs.dtype, wide_tensor(g), wide_tensor(logs)
    index, kept, of_target = classes_of(logs, target, weight, ignore_index)
    if reduction == "mean":
        g = g / of_target.sum()
    share = (of_target * (1 - label_smoothing)).unsqueeze(1)
    q = logs.new_zeros(logs.shape).scatter(1, index.unsqueeze(1), share)
    if label_smoothing:
        q = q + kept.unsqueeze(1) * class_weights(weight, logs.ndim) * (label_smoothing / logs.tj_array.shape[1])
    g = g if reduction != "none" else g.unsqueeze(1)
    return cast(where(kept.unsqueeze(1) != 0, (exp(logs) * q.sum(1, keepdim=True) - q) * g, 0), dtype)


def cross_entropy_gradient(
    gs: list[Tensor | None],
    target: Tensor,
    weight: Any,
    out1: Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> tuple[Tensor | None, None, None]:
    """Gradient of the loss and of the log-probabilities, which second derivatives reach."""
    found = None
    if gs[0] is not None:
        attrs = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
        found = apply(CROSS_ENTROPY_BACKWARD, (gs[0], target, weight, out1), attrs)
    if gs[1] is not None:
        other = apply(LOG_SOFTMAX_BACKWARD, (gs[1], out1), {"dim": 1})
        found = other if found is None else found + other
    return found, None, None


CROSS_ENTROPY_BACKWARD = primitive(
    "cross_entropy_backward",
    "composite",
    run_cross_entropy_backward,
    expand=cross_entropy_backward_by_parts,
    upcast=False,
)
CROSS_ENTROPY = primitive(
    "class_cross_entropy",
    "composite",
    run_cross_entropy,
    grad=cross_entropy_gradient,
    expand=cross_entropy_by_parts,
    upcast=False,
)

# ---- public functions


def check_targets(name: str, input: Tensor, target: Tensor, weight: Tensor | None) -> None:
    """Class indices for every row of logits, or an error that says what does not fit."""
    shape, wanted = input.tj_array.shape, target.tj_array.shape
    if len(shape) < 2 or shape[:1] != wanted[:1]:
        raise ValueError(
            f"{name}: Expected input batch_size ({shape[0] if shape else 0}) to match target batch_size "
            f"({wanted[0] if wanted else 0}): an input of shape {list(shape)} and a target of shape {list(wanted)}."
        )
    if target.tj_array.dtype.kind not in "iu" or target.tj_array.dtype.itemsize not in (1, 8):
        raise RuntimeError(f"{name}: expected target dtype to be Long or Byte, but got {target.dtype.legacy}")
    if (shape[0], *shape[2:]) != wanted:
        raise RuntimeError(f"{name}: Expected target size {[shape[0], *shape[2:]]}, got {list(wanted)}")
    if weight is None:
        return
    if weight.tj_array.shape != shape[1:2]:
        raise RuntimeError(
            f"{name}: weight tensor should be defined either for all {shape[1]} classes or no classes but got weight tensor "
            f"of shape: {list(weight.shape)}"
        )
    if weight.requires_grad:
        raise RuntimeError(
            f"The function '{name}' is not differentiable with respect to argument 'weight'. "
            "This input cannot have requires_grad True."
        )


def check_reduction(reduction: str) -> None:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")


@public(
    "nn.functional",
    samples=[
        sample(A(3, 4), I(3)),
        sample(A(3, 4), I(3), A(4, lo=0.2, grad=False), reduction="sum", label_smoothing=0.2),
        sample(A(3, 4), I(3), A(4, lo=0.2, grad=False), ignore_index=2, label_smoothing=0.1),
        sample(A(2, 3, 2), I(2, 2, hi=3), reduction="none"),
        sample(A(2, 3, 2, 2), I(2, 2, 2, hi=3), A(3, lo=0.2, grad=False), ignore_index=1),
        sample(A(4), I()),
        sample(A(3, 4), A(3, 4, lo=0.1, hi=1), A(4, lo=0.2), label_smoothing=0.1),
        sample(A(2, 3, 2), A(2, 3, 2, lo=0.1, hi=1), reduction="none"),
    ],
)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross entropy of logits (N, C, ...) and class indices (N, ...) or class probabilities (N, C, ...)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f"\"cross_entropy\" not implemented for '{input.dtype.legacy}': the input must be floating-point"
        )
    if input.tj_array.shape == target.tj_array.shape:
        return with_probabilities(input, target, weight, ignore_index, reduction, label_smoothing)
    if input.tj_array.ndim == 1 and target.tj_array.size == 1:
        loss = cross_entropy(
            input.unsqueeze(0), target.reshape(1), weight, None, ignore_index, None, reduction, label_smoothing
        )
        return loss.reshape(target.shape) if reduction == "none" else loss  # type: ignore[no-any-return]
    same_batch = input.tj_array.shape[:1] == target.tj_array.shape[:1]
    if target.dtype.is_floating_point and input.tj_array.ndim == target.tj_array.ndim and same_batch:
        raise RuntimeError(
            f"cross_entropy: 0D or 1D target tensor expected, multi-target not supported: class probabilities must have the "
            f"input's shape {list(input.shape)}, got {list(target.shape)}"
        )
    check_targets("cross_entropy", input, target, weight)
    shape = input.tj_array.shape
    if len(shape) > 3:
        length = math.prod(shape[2:])
        input, target = input.reshape(*shape[:2], length), target.reshape(shape[0], length)
    attrs = {"ignore_index": int(ignore_index), "label_smoothing": float(label_smoothing), "reduction": reduction}
    loss = apply(CROSS_ENTROPY, (input, target, 1 if weight is None else weight), attrs)[0]
    return loss.reshape(shape[0], *shape[2:]) if reduction == "none" and len(shape) > 3 else loss  # type: ignore[no-any-return]


def with_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    if not target.dtype.is_floating_point:
        raise RuntimeError(f"Expected floating point type for target with class probabilities, got {target.dtype.legacy}")
    if ignore_index >= 0:
        raise RuntimeError("ignore_index is not supported for floating point target")
    shape = input.tj_array.shape
    place = 1 if len(shape) > 1 else 0
    classes = shape[place] if shape else 1
    if weight is not None and weight.tj_array.shape != (classes,):
        raise RuntimeError(
            f"cross_entropy: weight tensor should be defined either for all {classes} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)}"
        )
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    logs = log_softmax(input, place) * target
    if weight is not None:
        logs = logs * weight.reshape(-1, *(1,) * (len(shape) - place - 1))
    if reduction == "mean":
        rows = math.prod(shape) // classes if classes else 0
        return -logs.sum() / rows
    return -logs.sum() if reduction == "sum" else -logs.sum(place)  # type: ignore[no-any-return]


@public(
    "nn.functional",
    samples=[
        sample(A(3, 4), I(3)),
        sample(A(3, 4), I(3), A(4, lo=0.2, grad=False), ignore_index=2),
        sample(A(2, 3, 2), I(2, 2, hi=3), reduction="sum"),
        sample(A(2, 3, 2, 2), I(2, 2, 2, hi=3), reduction="none"),
        sample(A(4), I()),
    ],
)
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probabilities (N, C, ...) of the target classes (N, ...)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    if input.tj_array.ndim == 1 and target.tj_array.size == 1:
        loss = nll_loss(input.unsqueeze(0), target.reshape(1), weight, None, ignore_index, None, reduction)
        return loss.reshape(target.shape) if reduction == "none" else loss  # type: ignore[no-any-return]
    check_targets("nll_loss", input, target, weight)
    index, kept, of_target = classes_of(input, target, weight, int(ignore_index))
    loss = where(kept != 0, -input.gather(1, index.unsqueeze(1)).squeeze(1) * of_target, 0)
    return loss.sum() / of_target.sum() if reduction == "mean" else apply_reduction(loss, reduction)  # type: ignore[no-any-return]
