"""The CTC loss by listing every alignment."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


def collapsed(path: tuple[int, ...], blank: int) -> list[int]:
    return [c for c, _ in itertools.groupby(path) if c != blank]


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    single = log_probs.ndim == 2
    x = log_probs[:, None] if single else log_probs
    losses, start = [], 0
    for n, (steps, count) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        label = list(targets[n, :count] if targets.ndim == 2 else targets[start : start + count])
        start += count
        paths = (p for p in itertools.product(range(x.shape[2]), repeat=steps) if collapsed(p, blank) == label)
        total = sum(np.exp(sum(x[t, n, c] for t, c in enumerate(p))) for p in paths)
        loss = -np.log(total) if total else (0.0 if zero_infinity else np.inf)
        losses.append(loss / max(count, 1) if reduction == "mean" else loss)
    if reduction == "none":
        return np.array(losses[0] if single else losses)
    return np.array(np.mean(losses) if reduction == "mean" else np.sum(losses))


ORACLES = {"ctc_loss": ctc_loss}
