"""Embeddings, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def embedding(indices: Array, table: Array, padding_idx: int | None = None, scale_grad_by_freq: bool = False) -> Array:
    rows = [table[i] for i in np.ravel(indices)]
    return np.array(rows).reshape(*np.shape(indices), table.shape[1])


def embedding_bag(
    indices: Array,
    table: Array,
    offsets: Array = None,
    mode: str = "mean",
    per_sample_weights: Array = None,
    padding_idx: int | None = None,
) -> Array:
    if offsets is None:
        bags = [list(row) for row in indices]
        weights = [[1.0] * len(b) for b in bags] if per_sample_weights is None else per_sample_weights.tolist()
    else:
        bags = [list(part) for part in np.split(indices, offsets[1:])]
        weights = [[1.0] * len(b) for b in bags]
    out = np.zeros((len(bags), table.shape[1]))
    for k, (bag, factors) in enumerate(zip(bags, weights, strict=True)):
        rows = [table[i] * f for i, f in zip(bag, factors, strict=True) if i != padding_idx]
        if rows:
            out[k] = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode](rows, axis=0)
    return out


ORACLES = {"embedding": embedding, "embedding_bag": embedding_bag}
