"""The connectionist temporal classification loss: how unlikely a labelling is, summed over all its alignments in time.

An alignment walks through the labels with blanks between, before and after them. `alpha[t, n, s]` is the log-probability of
all walks that are at place s at time t, `beta` that of all ways to go on from there to the end. The forward kernel is the
recursion of alpha; the backward kernel adds that of beta and has the probability of each place at each time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays.op_samples import A, I, sample
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.tape import engine
from ...core.tape.grad_mode import enable_grad, is_grad_enabled
from ...core.tensor import Tensor
from ..create import tensor
from ..pointwise import where
from ..shape.reshape import cat, stack
from .loss import apply_reduction

Lengths = tuple[int, ...]
_NEVER = -1e30  # the logarithm of 0 where gradients are taken: -inf minus -inf would spoil them

# ---- kernels; x is (T, N, C), labels (N, S), places are 2 * S + 1: blank, label, blank, ..., label, blank


def places_of(xp: Any, labels: Any, blank: int) -> tuple[Any, Any]:
    """The class of each place, and to which places one may come past the blank before."""
    batch, count = labels.shape
    classes = xp.full((batch, 2 * count + 1), blank, dtype=np.int64)
    classes[:, 1::2] = labels
    skips = xp.zeros(classes.shape, dtype=bool)
    skips[:, 2:] = (classes[:, 2:] != blank) & (classes[:, 2:] != classes[:, :-2])
    return classes, skips


def emissions(xp: Any, x: Any, classes: Any) -> Any:
    return xp.take_along_axis(x, xp.broadcast_to(classes, (x.shape[0], *classes.shape)), axis=2)


def run_ctc(xp: Any, x: Any, labels: Any, *, input_lengths: Lengths, target_lengths: Lengths, blank: int) -> tuple[Any, Any]:
    classes, skips = places_of(xp, labels, blank)
    emitted = emissions(xp, x, classes)
    alpha = xp.full(emitted.shape, -np.inf, dtype=x.dtype)
    alpha[:1, :, :2] = emitted[:1, :, :2]
    for t in range(1, x.shape[0]):
        before, now = alpha[t - 1], alpha[t - 1].copy()
        now[:, 1:] = xp.logaddexp(now[:, 1:], before[:, :-1])
        now[:, 2:] = xp.where(skips[:, 2:], xp.logaddexp(now[:, 2:], before[:, :-2]), now[:, 2:])
        alpha[t] = now + emitted[t]
    losses = xp.empty(x.shape[1], dtype=x.dtype)
    for n, (steps, count) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        losses[n] = (
            -log_sum(xp, alpha[steps - 1, n, max(2 * count - 1, 0) : 2 * count + 1]) if steps else np.inf if count else 0
        )
    return losses, alpha


def log_sum(xp: Any, x: Any) -> Any:
    return xp.logaddexp(x[0], x[-1]) if x.size > 1 else x[0]


def run_ctc_backward(
    xp: Any,
    g: Any,
    x: Any,
    labels: Any,
    losses: Any,
    alpha: Any,
    *,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
) -> Any:
    classes, skips = places_of(xp, labels, blank)
    emitted = emissions(xp, x, classes)
    beta = xp.full(emitted.shape, -np.inf, dtype=x.dtype)
    ends = xp.full(classes.shape, -np.inf, dtype=x.dtype)
    for n, count in enumerate(target_lengths):
        ends[n, max(2 * count - 1, 0) : 2 * count + 1] = 0
    last = xp.asarray(np.array(input_lengths))[:, None] - 1
    for t in reversed(range(x.shape[0])):
        now = xp.full(classes.shape, -np.inf, dtype=x.dtype)
        if t + 1 < x.shape[0]:
            after, now = beta[t + 1], beta[t + 1].copy()
            now[:, :-1] = xp.logaddexp(now[:, :-1], after[:, 1:])
            now[:, :-2] = xp.where(skips[:, 2:], xp.logaddexp(now[:, :-2], after[:, 2:]), now[:, :-2])
        beta[t] = xp.where(last == t, ends, now) + emitted[t]
    both = alpha + beta
    happens = both > -np.inf
    chance = xp.exp(xp.where(happens, both - xp.where(happens, emitted, 0) + losses[:, None], -np.inf)).astype(
        x.dtype, copy=False
    )
    chance *= -g[:, None]
    found = xp.zeros(x.shape, dtype=x.dtype)
    times, samples = xp.arange(x.shape[0])[:, None, None], xp.arange(x.shape[1])[:, None]
    xp.add.at(found, (times, samples, classes), chance)
    return found


# ---- the same in other ops


def expand_ctc(x: Tensor, labels: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int) -> tuple[Tensor, Tensor]:
    (steps, batch, _), width = x.shape, 2 * labels.shape[1] + 1
    blanks = labels.new_full((batch, labels.shape[1]), blank)
    classes = cat([stack([blanks, labels], 2).reshape(batch, width - 1), labels.new_full((batch, 1), blank)], 1)
    emitted = x.gather(2, classes.expand(steps, batch, width))
    skips = (classes[:, 2:] != blank) & (classes[:, 2:] != classes[:, :-2])
    never = x.new_full((batch, 2), _NEVER)
    alphas = [cat([emitted[0, :, :2], x.new_full((batch, width - 2), _NEVER)], 1) if width > 1 else emitted[0]] if steps else []
    for t in range(1, steps):
        before = now = alphas[-1]
        if width > 1:
            now = now.logaddexp(cat([never[:, :1], before[:, :-1]], 1))
            now = now.logaddexp(cat([never, where(skips, before[:, :-2], _NEVER)], 1))
        alphas.append(now + emitted[t])
    losses = []
    for n, (length, count) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        if not length:
            losses.append(x.new_full((), math.inf if count else 0.0))
            continue
        ends = alphas[length - 1][n, max(2 * count - 1, 0) : 2 * count + 1].logsumexp(0)
        losses.append(where(ends < _NEVER / 2, math.inf, -ends))
    if not steps:
        return stack(losses), emitted
    alpha = stack(alphas).detach()
    return stack(losses), where(alpha < _NEVER / 2, -math.inf, alpha)


def expand_ctc_backward(g: Tensor, x: Tensor, labels: Tensor, losses: Tensor, alpha: Tensor, **attrs: Any) -> Tensor:
    source = x if x.requires_grad else x.detach().requires_grad_()
    recording = is_grad_enabled()
    with enable_grad():
        found, _ = expand_ctc(source, labels, **attrs)
    (gradient,) = engine.backward([found], [g], recording, recording, [source], accumulate=False)
    return gradient  # type: ignore[return-value]  # `source` is used, so not None


def ctc_gradient(
    gs: list[Tensor | None],
    x: Tensor,
    labels: Tensor,
    out: Tensor,
    out1: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
) -> tuple[Tensor | None, ...]:
    attrs = {"input_lengths": input_lengths, "target_lengths": target_lengths, "blank": blank}
    return apply(CTC_BACKWARD, (gs[0], x, labels, out.detach(), out1.detach()), attrs), None


CTC = primitive("ctc", "composite", run_ctc, grad=ctc_gradient, expand=expand_ctc)
CTC_BACKWARD = primitive("ctc_backward", "composite", run_ctc_backward, expand=expand_ctc_backward)

# ---- the loss


def lengths_of(name: str, given: Any, batch: int, most: int) -> Lengths:
    """Lengths as a tuple, one for each sample."""
    values = given.tolist() if isinstance(given, Tensor) else given
    found = (values,) if isinstance(values, int) else tuple(int(n) for n in values)
    if len(found) != batch:
        raise RuntimeError(f"ctc_loss: {name} must be of size batch_size ({batch}), but got {len(found)} of them")
    wrong = next((n for n in found if not 0 <= n <= most), None)
    if wrong is not None:
        raise RuntimeError(f"ctc_loss: Expected {name} to have value at least 0 and at most {most}, but got value {wrong}")
    return found


def padded_labels(targets: Tensor, lengths: Lengths, blank: int) -> Tensor:
    """(N, S) labels from rows with padding or from one row with all of them; blank in the places of what is no label."""
    widest = max(lengths, default=0)
    starts = np.arange(len(lengths)) * targets.shape[1] if targets.ndim == 2 else np.cumsum([0, *lengths])[:-1]
    counted = np.arange(widest) < np.array(lengths, dtype=np.int64)[:, None]
    places = np.where(counted, starts[:, None] + np.arange(widest), 0)
    if not counted.any():
        return targets.new_full(places.shape, blank)
    found = targets.reshape(-1)[tensor(places, device=targets.device)]
    return where(tensor(counted, device=targets.device), found, blank)


def check(log_probs: Any, targets: Any, blank: int) -> None:
    if not isinstance(log_probs, Tensor) or not log_probs.is_floating_point():
        raise RuntimeError("ctc_loss: log_probs must be a tensor of floats")
    if log_probs.ndim not in (2, 3):
        raise RuntimeError(f"ctc_loss: log_probs must be (T, N, C) or (T, C), but got {list(log_probs.shape)}")
    if targets.is_floating_point() or targets.dtype.name == "bool":
        raise RuntimeError(f"ctc_loss: targets must be integers, but got {targets.dtype}")
    if not 0 <= blank < log_probs.shape[-1]:
        raise RuntimeError(f"ctc_loss: blank must be in label range, [0, {log_probs.shape[-1] - 1}], but got {blank}")


@public(
    "nn.functional",
    samples=[  # PyTorch's gradient is that of inputs which are the result of a log_softmax, and no other
        sample(A(4, 2, 3, lo=-3, hi=-0.1), I(2, 2, lo=1, hi=3), (4, 3), (2, 1), peer=False),
        sample(A(3, 3, lo=-3, hi=-0.1), I(1, lo=1, hi=3), (3,), (1,), reduction="sum", peer=False),
        sample(A(4, 2, 4, lo=-3, hi=-0.1), I(3, lo=0, hi=3), (4, 4), (1, 2), 3, "none", True, peer=False),
    ],
)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The negative logarithm of the probability of a labelling, over all its alignments with (T, N, C) log-probabilities."""
    check(log_probs, targets, blank)
    unbatched = log_probs.ndim == 2
    x = log_probs.unsqueeze(1) if unbatched else log_probs
    steps, batch = x.shape[:2]
    longest = targets.shape[1] if targets.ndim == 2 else targets.numel()
    inputs = lengths_of("input_lengths", input_lengths, batch, steps)
    outputs = lengths_of("target_lengths", target_lengths, batch, longest)
    if targets.ndim < 2 and sum(outputs) > longest:
        raise RuntimeError(f"ctc_loss: target_lengths add up to {sum(outputs)}, but there are {longest} targets")
    labels = padded_labels(targets.long(), outputs, blank)
    attrs = {"input_lengths": inputs, "target_lengths": outputs, "blank": blank}
    loss, _ = apply(CTC, (x, labels), attrs)
    if zero_infinity:
        loss = where(loss == math.inf, 0.0, loss)
    if reduction == "mean":
        return (loss / tensor(np.maximum(outputs, 1), dtype=loss.dtype, device=loss.device)).mean()  # type: ignore[no-any-return]
    loss = apply_reduction(loss, reduction)
    return loss.squeeze(0) if unbatched and reduction == "none" else loss  # type: ignore[no-any-return]
