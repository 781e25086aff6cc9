"""Losses: a number for how far a prediction is from its target. (Those of class indices are in `cross_entropy.py`.)"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...arrays.op_samples import A, I, sample
from ...core.dispatch import apply
from ...core.errors import warn
from ...core.op import primitive
from ...core.registration import public
from ...core.tensor import Tensor
from ..create import arange
from ..linalg.norms import pairwise_distance
from ..pointwise import abs, clamp, clamp_min, exp, log, log1p, minimum, promote_operands, where, xlogy
from .activation import logsigmoid
from .normalization import check_floating

# ---- reductions


def apply_reduction(loss: Tensor, reduction: str) -> Tensor:
    """The loss itself, its mean or its sum."""
    if reduction == "mean":
        return loss.mean()  # type: ignore[no-any-return]
    if reduction == "sum":
        return loss.sum()  # type: ignore[no-any-return]
    if reduction != "none":
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return loss


def legacy_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Translate the old arguments `size_average` and `reduce` to `reduction`."""
    if size_average is None and reduce is None:
        return reduction
    found = "none" if reduce is False else "sum" if size_average is False else "mean"
    warn(f"size_average and reduce args will be deprecated, please use reduction='{found}' instead.")
    return found


def warn_of_broadcast(name: str, input: Tensor, target: Tensor) -> None:
    if input.tj_array.shape != target.tj_array.shape:
        warn(
            f"Using a target size ({list(target.shape)}) that is different to the input size ({list(input.shape)}) in {name}. "
            "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
        )


# ---- distances


def run_squared_error(xp: Any, a: Any, b: Any, *, reduction: str) -> Any:
    d = xp.subtract(a, b, out=xp.empty_like(a))
    if reduction == "none":
        d *= d
        return d
    flat = d.reshape(-1)
    total = xp.matmul(flat, flat)
    return xp.asarray(total if reduction == "sum" else total / a.dtype.type(a.size), a.dtype)


def run_squared_error_backward(xp: Any, g: Any, a: Any, b: Any, *, factor: float) -> Any:
    d = xp.subtract(a, b, out=xp.empty_like(a))
    d *= g * a.dtype.type(factor)
    return d


SQUARED_ERROR_BACKWARD = primitive(
    "squared_error_backward",
    "composite",
    run_squared_error_backward,
    expand=lambda g, a, b, factor: (a - b) * (g * factor),
)


def squared_error_gradient(
    g: Tensor, a: Tensor, b: Tensor, a_shape: Any, reduction: str, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    factor = 2.0 / max(math.prod(a_shape), 1) if reduction == "mean" else 2.0
    one = apply(SQUARED_ERROR_BACKWARD, (g, a, b), {"factor": factor})
    return one if needs[0] else None, -one if needs[1] else None


SQUARED_ERROR = primitive(  # of two tensors of one shape
    "squared_error",
    "composite",
    run_squared_error,
    grad=squared_error_gradient,
    expand=lambda a, b, reduction: apply_reduction((a - b) * (a - b), reduction),
)
_pairs = [
    sample(A(2, 3), A(2, 3)),
    sample(A(2, 3), A(2, 3), reduction="sum"),
    sample(A(4), A(4), reduction="none"),
    sample(A(), A()),
]


@public("nn.functional", samples=[*_pairs, sample(A(2, 3), A(2, 3), weight=A(2, 3, lo=0.1))])
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """The squared difference; a weighted mean divides by the sum of the weights."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    warn_of_broadcast("mse_loss", input, target)
    if not input.dtype.is_floating_point and not target.dtype.is_floating_point:
        raise NotImplementedError(
            f"\"mse_loss\" not implemented for '{input.dtype.legacy}': convert the input with .float() first"
        )
    if weight is not None:
        return weighted((input - target) ** 2, input, weight, reduction)
    if input.tj_array.shape != target.tj_array.shape:
        return apply_reduction((input - target) ** 2, reduction)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    a, b = promote_operands("mse_loss", input, target)
    return apply(SQUARED_ERROR, (a, b), {"reduction": reduction})  # type: ignore[no-any-return]


def weighted(loss: Tensor, input: Tensor, weight: Tensor, reduction: str) -> Tensor:
    if weight.tj_array.shape != input.tj_array.shape:
        raise ValueError(
            f"Weights and input must have the same size: {list(weight.shape)} weights for an input of {list(input.shape)}."
        )
    loss = loss * weight
    return loss.sum() / weight.sum() if reduction == "mean" else apply_reduction(loss, reduction)  # type: ignore[no-any-return]


@public("nn.functional", samples=[*_pairs, sample(A(2, 3), A(2, 3), weight=A(2, 3, lo=0.1))])
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """The absolute difference; a weighted mean divides by the sum of the weights."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    warn_of_broadcast("l1_loss", input, target)
    loss = abs(input - target)
    return apply_reduction(loss, reduction) if weight is None else weighted(loss, input, weight, reduction)


def huber(difference: Tensor, delta: float) -> Tensor:
    """Half the square up to delta, a straight line beyond."""
    inner = clamp(difference, -delta, delta)
    return inner * (difference - inner * 0.5)


@public("nn.functional", samples=[*_pairs, sample(A(2, 3), A(2, 3), beta=0.5), sample(A(3), A(3), beta=0.0)])
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """The absolute difference minus beta / 2, made smooth where it is below beta."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    warn_of_broadcast("smooth_l1_loss", input, target)
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta, got {beta}.")
    loss = abs(input - target) if beta == 0 else huber(input - target, beta) * (1 / beta)
    return apply_reduction(loss, reduction)


@public("nn.functional", samples=[*_pairs, sample(A(2, 3), A(2, 3), delta=0.5), sample(A(3), A(3), weight=A(3, lo=0.1))])
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Half the squared difference up to delta, a straight line beyond."""
    warn_of_broadcast("huber_loss", input, target)
    if delta <= 0:
        raise RuntimeError(f"huber_loss does not support non-positive values for delta, got {delta}.")
    loss = huber(input - target, delta)
    return apply_reduction(loss if weight is None else loss * weight, reduction)


# ---- probabilities


def run_binary_entropy(xp: Any, x: Any, target: Any) -> Any:
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise RuntimeError(
            "binary_cross_entropy: all elements of input should be between 0 and 1; logits have a loss of their own"
        )
    one = xp.maximum(xp.log(x), -100)
    zero = xp.maximum(xp.log1p(-x), -100)
    return (target - 1) * zero - target * one


BINARY_ENTROPY_BACKWARD = primitive(
    "binary_entropy_backward",
    "composite",
    lambda xp, g, x, target: g * (x - target) / xp.maximum((1 - x) * x, 1e-12),
    expand=lambda g, x, target: g * (x - target) / clamp_min((1 - x) * x, 1e-12),
)
BINARY_ENTROPY = primitive(  # x and target of one shape and dtype
    "binary_entropy",
    "composite",
    run_binary_entropy,
    grad={
        "x": lambda g, x, target: apply(BINARY_ENTROPY_BACKWARD, (g, x, target)),
        "target": lambda g, x: g * (clamp_min(log1p(-x), -100.0) - clamp_min(log(x), -100.0)),
    },
    expand=lambda x, target: (target - 1) * clamp_min(log1p(-x), -100.0) - target * clamp_min(log(x), -100.0),
)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3, lo=0.1, hi=0.9), A(2, 3, lo=0, hi=1)),
        sample(A(2, 3, lo=0.1, hi=0.9), A(2, 3, lo=0, hi=1), A(3, lo=0.1, grad=False), reduction="sum"),
        sample(A(4, lo=0.1, hi=0.9), A(4, lo=0, hi=1), reduction="none"),
    ],
)
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The cross entropy of probabilities; logarithms are at least -100."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if input.tj_array.shape != target.tj_array.shape:
        raise ValueError(
            f"binary_cross_entropy: Using a target size ({list(target.shape)}) that is different to the input size "
            f"({list(input.shape)}) is deprecated. Please ensure they have the same size."
        )
    if input.dtype != target.dtype:
        raise RuntimeError(f"Found dtype {target.dtype.legacy} but expected {input.dtype.legacy}")
    if not input.dtype.is_floating_point:
        raise NotImplementedError(f"\"binary_cross_entropy\" not implemented for '{input.dtype.legacy}': use .float()")
    loss = apply(BINARY_ENTROPY, (input, target))
    return apply_reduction(loss if weight is None else loss * weight, reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(2, 3, lo=0, hi=1)),
        sample(A(2, 3, lo=-50, hi=50), A(2, 3, lo=0, hi=1), A(3, lo=0.1, grad=False), reduction="sum"),
        sample(A(2, 3), A(2, 3, lo=0, hi=1), pos_weight=A(3, lo=0.5, grad=False), reduction="none"),
    ],
)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """The cross entropy of sigmoid(input), computed from the logits; pos_weight weighs the positive targets."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if input.tj_array.shape != target.tj_array.shape:
        raise ValueError(f"Target size ({list(target.shape)}) must be the same as input size ({list(input.shape)})")
    of_one = -logsigmoid(input)
    if pos_weight is not None:
        of_one = of_one * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * input + of_one
    return apply_reduction(loss if weight is None else loss * weight, reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(2, 3, lo=0.1, hi=1), reduction="batchmean"),
        sample(A(2, 3), A(2, 3), reduction="sum", log_target=True),
        sample(A(4), A(4, lo=0.1, hi=1), reduction="none"),
    ],
)
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """The divergence of log-probabilities from target probabilities, or from their logarithms."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    loss = exp(target) * (target - input) if log_target else xlogy(target, target) - target * input
    if reduction == "batchmean":
        return loss.sum() / input.tj_array.shape[0] if input.tj_array.ndim else loss
    if reduction == "mean":
        warn(
            "kl_div: reduction='mean' divides the total loss by both the batch size and the support size. 'batchmean' divides "
            "only by the batch size, and aligns with the KL math definition.",
        )
    return apply_reduction(loss, reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(2, 3, lo=0, hi=3)),
        sample(A(2, 3, lo=0.2), A(2, 3, lo=1.5, hi=3), log_input=False, reduction="sum"),
        sample(A(4), A(4, lo=1.2, hi=3), full=True, reduction="none"),
    ],
)
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log likelihood of counts under a Poisson distribution of this (log) rate; `full` adds Stirling's term."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    loss = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        large = where(target > 1, target, 1.0)
        stirling = large * log(large) - large + 0.5 * log(large * (2 * math.pi))
        loss = loss + where(target > 1, stirling, 0.0)
    return apply_reduction(loss, reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(2, 3), A(2, 3, lo=0.2)),
        sample(A(2, 3), A(2, 3), A(2, lo=0.2), full=True, reduction="sum"),
        sample(A(2, 3), A(2, 3), A(2, 1, lo=0.2), reduction="none"),
        sample(A(2, 3), A(2, 3), 0.5, peer=False),
    ],
)
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Minus the log likelihood of targets under normal distributions of these means and variances (at least eps)."""
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = input.new_full(input.shape, var)
    elif bool((var.detach() < 0).any()):
        raise ValueError("var has negative entry/entries")
    shape = input.tj_array.shape
    if var.tj_array.shape != shape:
        if shape[:-1] == var.tj_array.shape:
            var = var.unsqueeze(-1)
        elif not (shape[:-1] == var.tj_array.shape[:-1] and var.tj_array.shape[-1:] == (1,)):
            raise ValueError(f"var is of incorrect size: {list(var.shape)} for an input of shape {list(shape)}")
    var = var + (clamp_min(var.detach(), eps) - var.detach())  # the gradient passes where eps takes over, as in PyTorch
    loss = 0.5 * (log(var) + (input - target) ** 2 / var)
    return apply_reduction(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


# ---- margins


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), I(2, 3, lo=-1, hi=2)),
        sample(A(2, 3), I(2, 3, lo=-1, hi=2), margin=0.3, reduction="sum"),
        sample(A(4), I(4, lo=-1, hi=2), reduction="none"),
    ],
)
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """x where the target is 1, what x lacks to the margin where it is -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_floating("hinge_embedding_loss", input)
    loss = where(target != 1, clamp_min(margin - input, 0), 0) + where(target != -1, input, 0)
    return apply_reduction(loss, reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(4), A(4), I(4, lo=0, hi=2)),
        sample(A(2, 3), A(2, 3), A(2, 3, grad=False), 0.5, reduction="sum"),
        sample(A(4), A(4), A(4, grad=False), reduction="none"),
    ],
)
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The ranking hinge loss: how far input1 is from being a margin above input2 (target 1) or below it (target -1)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if not input1.tj_array.ndim == input2.tj_array.ndim == target.tj_array.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: input1: "
            f"{list(input1.shape)}, input2: {list(input2.shape)}, target: {list(target.shape)}"
        )
    return apply_reduction(clamp_min(-target * (input1 - input2) + float(margin), 0), reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(3, 4), A(3, 4), I(3, lo=-1, hi=2)),
        sample(A(3, 4), A(3, 4), I(3, lo=-1, hi=0), 0.1, reduction="sum"),
        sample(A(4), A(4), I(lo=1, hi=2), reduction="none"),
    ],
)
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cosine where the target is 1, what the cosine is above the margin where it is -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    ndim = target.tj_array.ndim
    if ndim > 1 or input1.tj_array.ndim != ndim + 1 or input2.tj_array.ndim != ndim + 1:
        raise RuntimeError(
            f"cosine_embedding_loss: {ndim}D target tensor expects {ndim + 1}D input tensors, but found inputs with sizes "
            f"{list(input1.shape)} and {list(input2.shape)}."
        )
    squares = ((input1 * input1).sum(-1) + 1e-12) * ((input2 * input2).sum(-1) + 1e-12)
    cosine = (input1 * input2).sum(-1) / squares.sqrt()
    loss = where(target == 1, 1 - cosine, 0) + where(target == -1, clamp_min(cosine - margin, 0), 0)
    return apply_reduction(loss, reduction)


Distance = Callable[[Tensor, Tensor], Tensor]


def triplet(
    anchor: Tensor, positive: Tensor, negative: Tensor, distance: Distance, margin: float, swap: bool, reduction: str
) -> Tensor:
    dims = [t.tj_array.ndim for t in (anchor, positive, negative)]
    if len(set(dims)) > 1:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: anchor "
            f"{dims[0]}D, positive {dims[1]}D, and negative {dims[2]}D inputs"
        )
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return apply_reduction(clamp_min(near - far + margin, 0), reduction)


_triplets = [
    sample(A(3, 4), A(3, 4), A(3, 4)),
    sample(A(3, 4), A(3, 4), A(3, 4), swap=True, reduction="none"),
    sample(A(2, 2, 3), A(2, 2, 3), A(2, 2, 3), margin=3.0, reduction="sum"),
]


@public("nn.functional", samples=[*_triplets, sample(A(3, 4), A(3, 4), A(3, 4), p=1.0, eps=0.1)])
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The triplet loss: how far the negative is from being a margin farther from the anchor than the positive."""
    reduction = legacy_reduction(size_average, reduce, reduction)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet(anchor, positive, negative, distance, margin, swap, reduction)


@public("nn.functional", samples=_triplets)
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Distance | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with any function of two tensors for the distance."""
    return triplet(anchor, positive, negative, distance_function or pairwise_distance, margin, swap, reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(2, 3, grad=False)),
        sample(A(2, 3, lo=-8, hi=8), A(2, 3, lo=0.5, hi=1, grad=False), reduction="sum"),
        sample(A(4), A(4, grad=False), reduction="none"),
    ],
)
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """log(1 + exp(-target * x))."""
    return apply_reduction(-logsigmoid(target * input), legacy_reduction(size_average, reduce, reduction))


@public(
    "nn.functional",
    samples=[
        sample(A(3, 4), I(3), gradgrad=False),
        sample(A(3, 4), I(3), 2, 0.5, A(4, lo=0.1, grad=False), reduction="sum", gradgrad=False),
        sample(A(3, 4), I(3), reduction="none", gradgrad=False),
        sample(A(4), I(), gradgrad=False),
    ],
)
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of what the target class lacks to be above each other one by the margin, to the power p."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError(f"only p == 1 and p == 2 supported, got {p}")
    if input.tj_array.ndim == 1:
        loss = multi_margin_loss(input.unsqueeze(0), target.reshape(1), p, margin, weight, reduction=reduction)
        return loss.reshape(target.shape) if reduction == "none" else loss  # type: ignore[no-any-return]
    shape = input.tj_array.shape
    if len(shape) != 2 or target.tj_array.shape != shape[:1]:
        raise RuntimeError(
            f"multi_margin_loss: inconsistent target size: {list(target.shape)} for an input of shape {list(shape)}"
        )
    if weight is not None and weight.tj_array.shape != shape[1:]:
        raise RuntimeError(f"inconsistent weight size, expected {shape[1]} but got {list(weight.shape)}")
    index = target.unsqueeze(1)
    lacks = clamp_min(input - input.gather(1, index) + margin, 0)
    lacks = lacks if p == 1 else lacks * lacks
    if weight is not None:
        lacks = lacks * weight[index]
    others = arange(shape[1], device=input.device) != index
    return apply_reduction(where(others, lacks, 0).sum(1) / shape[1], reduction)


def run_labels(xp: Any, target: Any) -> tuple[Any, Any]:
    """Return masks of the entries that are labels (lists end at -1), and of the classes that they name."""
    if bool(((target < -1) | (target >= target.shape[-1])).any()):
        raise RuntimeError("multilabel_margin_loss: argument #2 'target' is out of range")
    valid = xp.cumsum(target < 0, axis=-1) == 0
    named = (target[..., None] == xp.arange(target.shape[-1])) & valid[..., None]
    return valid, named.any(axis=-2)


LABELS = primitive("labels", "index", run_labels)


@public(
    "nn.functional",
    samples=[
        sample(A(3, 4), I(3, 4, lo=-1), gradgrad=False),
        sample(A(3, 4), I(3, 4, lo=-1), reduction="none", gradgrad=False),
        sample(A(4), I(4, lo=-1), reduction="sum", gradgrad=False),
    ],
)
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """The multi-label hinge loss with margin 1 between target classes and others. Targets are lists of classes, ended by -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    shape = input.tj_array.shape
    if target.tj_array.shape != shape or len(shape) not in (1, 2):
        raise RuntimeError(
            f"multilabel_margin_loss: inconsistent target size: {list(target.shape)} for an input of shape {list(shape)}"
        )
    valid, named = apply(LABELS, (target,))
    of_targets = input.gather(-1, clamp_min(target, 0))
    lacks = clamp_min(1 - of_targets.unsqueeze(-1) + input.unsqueeze(-2), 0)
    pairs = valid.unsqueeze(-1) & ~named.unsqueeze(-2)
    return apply_reduction(where(pairs, lacks, 0).sum((-2, -1)) / shape[-1], reduction)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(2, 3, lo=0, hi=1)),
        sample(A(2, 3), A(2, 3, lo=0, hi=1), A(3, lo=0.1), reduction="sum"),
        sample(A(2, 3), A(2, 3, lo=0, hi=1), reduction="none"),
    ],
)
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of the binary cross entropy of sigmoid(input)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    return apply_reduction((loss if weight is None else loss * weight).mean(-1), reduction)
