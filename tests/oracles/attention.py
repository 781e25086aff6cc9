"""Attention, one query at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = np.repeat(key, groups, axis=-3), np.repeat(value, groups, axis=-3)
    rows, keys = query.shape[-2], key.shape[-2]
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    bias = np.zeros((*query.shape[:-1], keys))
    if mask is not None:
        bias = bias + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    for place in np.ndindex(query.shape[:-2]):
        for i in range(rows):
            seen = [j for j in range(keys) if bias[place][i, j] > -np.inf and (not is_causal or j <= i)]
            if seen:
                logits = [query[place][i] @ key[place][j] * scale + bias[place][i, j] for j in seen]
                weights = np.exp(logits - np.logaddexp.reduce(logits))
                out[place][i] = sum(w * value[place][j] for w, j in zip(weights, seen, strict=True))
    return out


ORACLES = {"scaled_dot_product_attention": attention}
