"""Normalisation by loops over what is normalised together."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def standard(values: Array, eps: float) -> Array:
    return (values - np.mean(values)) / np.sqrt(np.var(values) + eps)


def affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    return x * (1 if weight is None else weight) + (0 if bias is None else bias)


def channelwise(v: Array | None, x: Array) -> Array | None:
    return None if v is None else v.reshape(-1, *[1] * (x.ndim - 2))


def layer_norm(x: Array, shape: Any, weight: Array = None, bias: Array = None, eps: float = 1e-5) -> Array:
    rows = x.reshape(-1, int(np.prod(shape)))
    return affine(np.stack([standard(r, eps) for r in rows]).reshape(x.shape), weight, bias)


def rms_norm(x: Array, shape: Any, weight: Array = None, eps: float | None = None) -> Array:
    eps = np.finfo(x.dtype).eps if eps is None else eps
    rows = x.reshape(-1, int(np.prod(shape)))
    scaled = [r / np.sqrt(np.dot(r, r) / r.size + eps) for r in rows]
    return affine(np.stack(scaled).reshape(x.shape), weight, None)


def batch_norm(
    x: Array, mean: Array, var: Array, weight: Array = None, bias: Array = None, training: bool = False, eps: float = 1e-5
) -> Array:
    out = np.empty_like(x)
    for c in range(x.shape[1]):
        values = x[:, c]
        out[:, c] = standard(values, eps) if training else (values - mean[c]) / np.sqrt(var[c] + eps)
    return affine(out, channelwise(weight, x), channelwise(bias, x))


def group_norm(x: Array, groups: int, weight: Array = None, bias: Array = None, eps: float = 1e-5) -> Array:
    out = np.empty_like(x)
    size = x.shape[1] // groups
    for n in range(x.shape[0]):
        for k in range(groups):
            part = slice(k * size, (k + 1) * size)
            out[n, part] = standard(x[n, part], eps)
    return affine(out, channelwise(weight, x), channelwise(bias, x))


def instance_norm(
    x: Array,
    mean: Array = None,
    var: Array = None,
    weight: Array = None,
    bias: Array = None,
    use_input_stats: bool = True,
    eps: float = 1e-5,
) -> Array:
    if not use_input_stats:
        return batch_norm(x, mean, var, weight, bias, eps=eps)
    return group_norm(x, x.shape[1], weight, bias, eps)


def local_response_norm(x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Array:
    out = np.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - size // 2) : c + (size - 1) // 2 + 1]
        out[:, c] = x[:, c] / (k + alpha * (near**2).sum(1) / size) ** beta
    return out


def normalize(x: Array, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Array:
    return x / np.maximum(np.linalg.norm(x, p, axis=dim, keepdims=True), eps)


ORACLES = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "local_response_norm": local_response_norm,
    "normalize": normalize,
}
