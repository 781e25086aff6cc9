"""Losses, one sample and one class at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def reduce(values: Array, reduction: str) -> Array:
    values = np.asarray(values)
    return values if reduction == "none" else np.asarray(values.mean() if reduction == "mean" else values.sum())


def pairwise(function: Callable[..., float]) -> Callable[..., Array]:
    """A loss of two numbers as one of arrays."""

    def oracle(x: Array, y: Array, *args: Any, reduction: str = "mean", weight: Array = None, **options: Any) -> Array:
        values = np.array([function(a, b, *args, **options) for a, b in zip(x.flat, y.flat, strict=True)]).reshape(x.shape)
        if weight is None:
            return reduce(values, reduction)
        values = values * weight
        return np.asarray(values.sum() / weight.sum()) if reduction == "mean" else reduce(values, reduction)

    return oracle


def huber(x: float, y: float, delta: float = 1.0) -> float:
    d = abs(x - y)
    return d * d / 2 if d < delta else delta * (d - delta / 2)


def huber_loss(x: Array, y: Array, reduction: str = "mean", delta: float = 1.0, weight: Array = 1.0) -> Array:
    values = [huber(a, b, delta) for a, b in zip(x.flat, y.flat, strict=True)]
    return reduce(np.array(values).reshape(x.shape) * weight, reduction)


def smooth_l1(x: float, y: float, beta: float = 1.0) -> float:
    d = abs(x - y)
    return d * d / (2 * beta) if d < beta else d - beta / 2


def log_softmax(row: Array) -> Array:
    return row - np.logaddexp.reduce(row)


def rows(x: Array) -> Array:
    """(N, C, ...) as a list of class vectors, in the order of the targets."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def cross_entropy(
    x: Array,
    target: Array,
    weight: Array = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    if x.ndim == 1:
        x, target = x[None], np.asarray(target)[None]
    classes = x.shape[1]
    weight = np.ones(classes) if weight is None else weight
    probabilities = target.shape == x.shape
    losses, weights = [], []
    for row, t in zip(rows(x), rows(target) if probabilities else target.reshape(-1), strict=True):
        wanted = t if probabilities else np.eye(classes)[t]
        smoothed = wanted * (1 - label_smoothing) + label_smoothing / classes
        if not probabilities:  # PyTorch weighs the smoothing by class and the target by its own weight
            smoothed = wanted * weight[t] * (1 - label_smoothing) + weight * label_smoothing / classes
        counts = probabilities or t != ignore_index
        losses.append(-(log_softmax(row) * smoothed * (weight if probabilities else 1)).sum() * counts)
        weights.append(1.0 if probabilities else weight[t] * counts)
    if reduction == "mean":
        return np.asarray(sum(losses) / sum(weights))
    shape = x.shape[:1] + x.shape[2:]
    return reduce(np.array(losses).reshape(shape), reduction)


def nll_loss(x: Array, target: Array, weight: Array = None, ignore_index: int = -100, reduction: str = "mean") -> Array:
    if x.ndim == 1:
        x, target = x[None], np.asarray(target)[None]
    weight = np.ones(x.shape[1]) if weight is None else weight
    weights = np.array([0.0 if t == ignore_index else weight[t] for t in target.reshape(-1)])
    losses = np.array([-row[t] * w for row, t, w in zip(rows(x), target.reshape(-1), weights, strict=True)])
    if reduction == "mean":
        return np.asarray(losses.sum() / weights.sum())
    return reduce(losses.reshape(target.shape), reduction)


def binary_cross_entropy(x: Array, t: Array, weight: Array = 1.0, reduction: str = "mean") -> Array:
    return reduce(-(np.log(x**t) + np.log((1 - x) ** (1 - t))) * weight, reduction)


def with_logits(x: Array, t: Array, weight: Array = 1.0, reduction: str = "mean", pos_weight: Array = 1.0) -> Array:
    return reduce((pos_weight * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)) * weight, reduction)


def kl_div(x: Array, t: Array, reduction: str = "mean", log_target: bool = False) -> Array:
    p = np.exp(t) if log_target else t
    values = p * (np.log(p) - x)
    return np.asarray(values.sum() / len(x)) if reduction == "batchmean" else reduce(values, reduction)


def poisson_nll(
    x: Array, t: Array, log_input: bool = True, full: bool = False, reduction: str = "mean", eps: float = 1e-8
) -> Array:
    values = np.exp(x) - t * x if log_input else x - t * np.log(x + eps)
    if full:
        values = values + [v * math.log(v) - v + math.log(2 * math.pi * v) / 2 if v > 1 else 0 for v in t.tolist()]
    return reduce(values, reduction)


def gaussian_nll(x: Array, t: Array, var: Array, full: bool = False, reduction: str = "mean", eps: float = 1e-6) -> Array:
    var = np.maximum(var, eps)
    var = var[..., None] if np.ndim(var) == x.ndim - 1 and np.ndim(var) else var
    density = np.exp(-((x - t) ** 2) / (2 * var)) / np.sqrt(var)
    return reduce(-np.log(density / math.sqrt(2 * math.pi) if full else density), reduction)


def hinge_embedding(x: float, t: int, margin: float = 1.0) -> float:
    return {1: x, -1: max(0.0, margin - x)}.get(int(t), x + max(0.0, margin - x))


def margin_ranking(a: Array, b: Array, t: Array, margin: float = 0, reduction: str = "mean") -> Array:
    return reduce(np.maximum(0, margin - t * (a - b)), reduction)


def cosine_embedding(a: Array, b: Array, t: Array, margin: float = 0, reduction: str = "mean") -> Array:
    losses = []
    for u, v, sign in zip(np.atleast_2d(a), np.atleast_2d(b), np.atleast_1d(t), strict=True):
        cosine = u @ v / math.sqrt((u @ u + 1e-12) * (v @ v + 1e-12))
        losses.append({1: 1 - cosine, -1: max(0.0, cosine - margin)}.get(int(sign), 0.0))
    return reduce(np.array(losses).reshape(np.shape(t)), reduction)


def triplet(
    anchor: Array,
    positive: Array,
    negative: Array,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Array:
    def distance(u: Array, v: Array) -> Array:
        return (np.abs(u - v + eps) ** p).sum(-1) ** (1 / p)

    far = distance(anchor, negative)
    far = np.minimum(far, distance(positive, negative)) if swap else far
    return reduce(np.maximum(0, margin + distance(anchor, positive) - far), reduction)


def multi_margin(
    x: Array, target: Array, p: int = 1, margin: float = 1.0, weight: Array = None, reduction: str = "mean"
) -> Array:
    losses = []
    for row, t in zip(np.atleast_2d(x), np.atleast_1d(target), strict=True):
        terms = [max(0.0, margin - row[t] + v) ** p for j, v in enumerate(row) if j != t]
        losses.append(sum(terms) / len(row) * (1.0 if weight is None else weight[t]))
    return reduce(np.array(losses).reshape(np.shape(target)), reduction)


def multilabel_margin(x: Array, target: Array, reduction: str = "mean") -> Array:
    losses = []
    for row, t in zip(np.atleast_2d(x), np.atleast_2d(target), strict=True):
        labels = t.tolist()[: t.tolist().index(-1)] if -1 in t else t.tolist()
        terms = [max(0.0, 1 - row[j] + v) for j in labels for i, v in enumerate(row) if i not in labels]
        losses.append(sum(terms) / len(row))
    return reduce(np.array(losses).reshape(x.shape[:-1]), reduction)


def multilabel_soft_margin(x: Array, t: Array, weight: Array = 1.0, reduction: str = "mean") -> Array:
    values = (t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)) * weight
    return reduce(values.mean(-1), reduction)


ORACLES = {
    "mse_loss": pairwise(lambda x, y: (x - y) ** 2),
    "l1_loss": pairwise(lambda x, y: abs(x - y)),
    "smooth_l1_loss": pairwise(smooth_l1),
    "huber_loss": huber_loss,
    "cross_entropy": cross_entropy,
    "nll_loss": nll_loss,
    "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": with_logits,
    "kl_div": kl_div,
    "poisson_nll_loss": poisson_nll,
    "gaussian_nll_loss": gaussian_nll,
    "hinge_embedding_loss": pairwise(hinge_embedding),
    "margin_ranking_loss": margin_ranking,
    "cosine_embedding_loss": cosine_embedding,
    "triplet_margin_loss": triplet,
    "triplet_margin_with_distance_loss": triplet,
    "soft_margin_loss": pairwise(lambda x, t: float(np.logaddexp(0, -t * x))),
    "multi_margin_loss": multi_margin,
    "multilabel_margin_loss": multilabel_margin,
    "multilabel_soft_margin_loss": multilabel_soft_margin,
}
