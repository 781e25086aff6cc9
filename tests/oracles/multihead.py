"""Attention with several heads, one element of the batch, one head and one query at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def added(mask: Array | None) -> Array | None:
    return np.where(mask, -np.inf, 0.0) if mask is not None and mask.dtype == bool else mask


def one_head(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, Array]:
    weights = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        logits = np.array([q[i] @ key / np.sqrt(len(key)) for key in k]) + mask[i]
        weights[i] = np.exp(logits - np.logaddexp.reduce(logits))
    return weights @ v, weights


def multi_head(
    query: Array,
    key: Array,
    value: Array,
    embed_dim: int,
    heads: int,
    in_weight: Array,
    in_bias: Array,
    bias_k: Array,
    bias_v: Array,
    add_zero: bool,
    dropout: float,
    out_weight: Array,
    out_bias: Array,
    training: bool = True,
    key_padding_mask: Array = None,
    need_weights: bool = True,
    attn_mask: Array = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Array = None,
    k_proj_weight: Array = None,
    v_proj_weight: Array = None,
    static_k: Array = None,
    static_v: Array = None,
    average_attn_weights: bool = True,
) -> tuple[Array, Array]:
    alone = query.ndim == 2
    if alone:
        query, key, value = query[:, None], key[:, None], value[:, None]
    weights_in = [q_proj_weight, k_proj_weight, v_proj_weight] if use_separate_proj_weight else np.split(in_weight, 3)
    biases_in = np.split(np.zeros(3 * embed_dim) if in_bias is None else in_bias, 3)
    rows, batch = query.shape[:2]
    mask, padding = added(attn_mask), added(key_padding_mask)
    outputs, found = [], []
    for n in range(batch):
        q, k, v = (x[:, n] @ w.T + b for x, w, b in zip((query, key, value), weights_in, biases_in, strict=True))
        k = k if bias_k is None else np.vstack([k, bias_k[0]])
        v = v if bias_v is None else np.vstack([v, bias_v[0]])
        parts = []
        for h, columns in enumerate(np.split(np.arange(embed_dim), heads)):
            keys = k[:, columns] if static_k is None else static_k[n * heads + h]
            values = v[:, columns] if static_v is None else static_v[n * heads + h]
            if add_zero:
                keys, values = (np.vstack([x, np.zeros(len(columns))]) for x in (keys, values))
            scores = np.zeros((rows, len(keys)))
            if mask is not None:
                part = mask if mask.ndim == 2 else mask[n * heads + h]
                scores[:, : part.shape[1]] += part
            if padding is not None:
                scores[:, : padding.shape[1]] += padding[n]
            parts.append(one_head(q[:, columns], keys, values, scores))
        outputs.append(np.hstack([p[0] for p in parts]) @ out_weight.T + (0 if out_bias is None else out_bias))
        found.append(np.stack([p[1] for p in parts]))
    out, weights = np.stack(outputs, 1), np.stack(found)
    weights = weights.mean(1) if average_attn_weights else weights
    if alone:
        out, weights = out[:, 0], weights[0]
    return out, weights if need_weights else None


ORACLES = {"multi_head_attention_forward": multi_head}
