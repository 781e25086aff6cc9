"""Embeddings: rows of a table by their numbers, alone or pooled in bags.

The forward pass gathers rows, the backward pass adds rows up where they came from. Both are primitives and each is the
gradient of the other. Sums go through flat memory, where `add.at` is several times as fast as on rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.op_samples import A, I, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.shape_inference import Spec
from ...core.tape.grad_mode import no_grad
from ...core.tensor import Tensor
from ..create import arange
from ..pointwise import clamp, clamp_min, where

_PIECE = 1 << 18  # elements added at a time, to keep the table of their places small


def check_range(xp: Any, indices: Any, rows: int) -> None:
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= rows):
        raise IndexError("index out of range in self")


def run_embedding(xp: Any, weight: Any, indices: Any) -> Any:
    check_range(xp, indices, weight.shape[0])
    return xp.take(weight, indices, axis=0)


def run_row_sum(xp: Any, g: Any, indices: Any, *, rows: int, padding_idx: int, by_frequency: bool) -> Any:
    check_range(xp, indices, rows)
    width, where = g.shape[-1], indices.reshape(-1).astype(np.int64, copy=False)
    g = g.reshape(where.size, width)
    if by_frequency:
        g = g / xp.bincount(where, minlength=rows)[where][:, None].astype(g.dtype)
    full = xp.zeros(rows * width, g.dtype)
    columns = xp.arange(width)
    step = max(_PIECE // max(width, 1), 1) if xp is np else max(where.size, 1)
    for start in range(0, where.size, step):
        piece = slice(start, start + step)
        places = where[piece, None] * width + columns
        xp.add.at(full, places.reshape(-1), g[piece].reshape(-1))
    full = full.reshape(rows, width)
    if padding_idx >= 0:
        full[padding_idx] = 0
    return full


def row_sum_gradient(g: Tensor, indices: Tensor, padding_idx: int, by_frequency: bool, rows: int) -> Tensor:
    found = apply(EMBEDDING, (g, indices), {"padding_idx": padding_idx, "by_frequency": by_frequency})
    if padding_idx >= 0:
        found = where((indices == padding_idx).unsqueeze(-1), 0, found)
    if by_frequency:
        found = found / cast(apply(FREQUENCY, (indices,), {"rows": rows}), g.dtype).unsqueeze(-1)
    return found  # type: ignore[no-any-return]


EMBEDDING = primitive(
    "embedding",
    "index",
    lambda xp, weight, indices, *, padding_idx, by_frequency: run_embedding(xp, weight, indices),
    grad={
        "weight": lambda g, indices, weight_shape, padding_idx, by_frequency: apply(
            ROW_SUM, (g, indices), {"rows": weight_shape[0], "padding_idx": padding_idx, "by_frequency": by_frequency}
        )
    },
    infer=lambda weight, indices, **attrs: (Spec((*indices.shape, *weight.shape[1:]), weight.dtype),),
)
ROW_SUM = primitive(
    "row_sum",
    "index",
    run_row_sum,
    grad={"g": row_sum_gradient},
    upcast=True,
    infer=lambda g, indices, *, rows, **attrs: (Spec((rows, g.shape[-1]), g.dtype),),
)
FREQUENCY = primitive(
    "frequency",
    "index",
    lambda xp, indices, *, rows: xp.bincount(indices.reshape(-1), minlength=rows)[indices],
)


def run_renormalise(xp: Any, weight: Any, indices: Any, *, max_norm: float, norm_type: float) -> Any:
    """The table with those of the named rows that are longer than max_norm made as long as that."""
    check_range(xp, indices, weight.shape[0])
    size = xp.abs(weight)
    length = size.max(axis=1) if norm_type == np.inf else xp.add.reduce(size**norm_type, axis=1) ** (1 / norm_type)
    named = xp.zeros(weight.shape[0], bool)
    named[indices.reshape(-1)] = True
    scale = xp.where(named & (length > max_norm), max_norm / (length + 1e-7), 1).astype(weight.dtype)
    return weight * scale[:, None]


RENORMALISE = primitive("embedding_renormalise", "index", run_renormalise, upcast=True)


def check_table(name: str, indices: Tensor, weight: Tensor, padding_idx: int | None) -> int:
    """The padding row's number, -1 for none; errors for what is no table or no index."""
    if indices.dtype.name not in ("int64", "int32"):
        raise RuntimeError(
            f"Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"{indices.dtype.legacy} instead (while checking arguments for {name})"
        )
    if weight.tj_array.ndim != 2:
        raise RuntimeError(f"{name}: 'weight' must be 2-D, got shape {list(weight.shape)}")
    rows = weight.tj_array.shape[0]
    if padding_idx is None:
        return -1
    if not -rows <= padding_idx < rows:
        raise AssertionError(f"Padding_idx must be within num_embeddings: {padding_idx} is not in [{-rows}, {rows - 1}]")
    return padding_idx + rows if padding_idx < 0 else padding_idx


def renormalise_rows(weight: Tensor, indices: Tensor, max_norm: float | None, norm_type: float) -> None:
    """Renormalise rows of the table in place, before they are used."""
    if max_norm is not None:
        with no_grad():
            apply(RENORMALISE, (weight, indices), {"max_norm": float(max_norm), "norm_type": float(norm_type)}, weight)


@public(
    "nn.functional",
    samples=[
        sample(I(2, 3), A(4, 2)),
        sample(I(5), A(4, 2), padding_idx=1, grad=False),  # what the padding row gets is no gradient,
        sample(I(6), A(4, 2), padding_idx=-1, scale_grad_by_freq=True, grad=False),  # nor is a scaled one
        sample(I(), A(4, 3)),
        sample(I(0), A(4, 3)),
    ],
)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table by number. Row `padding_idx` gets no gradient; `max_norm` shortens used rows in the table itself."""
    padding = check_table("embedding", input, weight, padding_idx)
    renormalise_rows(weight, input, max_norm, norm_type)
    return apply(EMBEDDING, (weight, input), {"padding_idx": padding, "by_frequency": bool(scale_grad_by_freq)})  # type: ignore[no-any-return]


# ---- bags


def run_bags(xp: Any, offsets: Any, *, count: int, include_last: bool) -> Any:
    """The bag that each of `count` entries is in."""
    if offsets.size and int(offsets[0]) != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            f"However, got {int(offsets[0])}"
        )
    if offsets.size and int(offsets[-1]) > count:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {count} but got offsets[-1] of {int(offsets[-1])}"
        )
    begins = offsets[:-1] if include_last else offsets
    return (xp.searchsorted(begins, xp.arange(count), side="right") - 1).astype(np.int64)


def run_winners(xp: Any, rows: Any, bag: Any, counts: Any, *, bags: int) -> Any:
    """For each bag and column the first of the rows that count with the largest element; the number of rows if none does."""
    count, width = rows.shape
    places = (bag[:, None] * width + xp.arange(width))[counts].reshape(-1)
    values = rows[counts].reshape(-1)
    best = xp.full(bags * width, -np.inf, rows.dtype)
    xp.maximum.at(best, places, values)
    numbers = xp.broadcast_to(xp.arange(count)[:, None], rows.shape)[counts].reshape(-1)
    hit = values == best[places]
    first = xp.full(bags * width, count, np.int64)
    xp.minimum.at(first, places[hit], numbers[hit])
    return first.reshape(bags, width)


BAGS = primitive("bags", "index", run_bags)
WINNERS = primitive("bag_winners", "index", run_winners, upcast=True)


def pool_bag(rows: Tensor, bag: Tensor, bags: int, mode: str, counts: Tensor) -> Tensor:
    """Rows of one bag together, as their sum, mean or maximum; only those that count."""
    if mode == "max":
        if rows.tj_array.shape[0] == 0:
            return rows.new_zeros((bags, rows.tj_array.shape[1])) + rows.sum()  # type: ignore[no-any-return]
        winner = apply(WINNERS, (rows.detach(), bag, counts), {"bags": bags})
        last = rows.tj_array.shape[0] - 1
        return where(winner > last, 0, rows.gather(0, clamp(winner, max=last)))  # type: ignore[no-any-return]
    attrs = {"rows": bags, "padding_idx": -1, "by_frequency": False}
    kept = cast(counts, rows.dtype).unsqueeze(-1)
    sums = apply(ROW_SUM, (where(counts.unsqueeze(-1), rows, 0), bag), attrs)
    return sums if mode == "sum" else sums / clamp_min(apply(ROW_SUM, (kept, bag), attrs), 1)


def check_bags(input: Tensor, offsets: Tensor | None, mode: str, per_sample_weights: Tensor | None) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode has to be one of sum, mean or max, got {mode!r}")
    if input.tj_array.ndim not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.tj_array.ndim}")
    if input.tj_array.ndim == 2 and offsets is not None:
        raise ValueError(
            "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences. "
            f"However, found offsets of type {type(offsets)}"
        )
    if input.tj_array.ndim == 1 and (offsets is None or offsets.tj_array.ndim != 1):
        raise ValueError(
            "offsets has to be a 1D Tensor" + (" but got None" if offsets is None else f", got {list(offsets.shape)}")
        )
    if per_sample_weights is None:
        return
    if per_sample_weights.tj_array.shape != input.tj_array.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({list(per_sample_weights.shape)}) is not None, then it must have the same "
            f"shape as the input ({list(input.shape)})"
        )
    if mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
            f"(got mode='{mode}')."
        )


@public(
    "nn.functional",
    samples=[
        sample(I(2, 3), A(4, 2), mode="mean"),
        sample(I(2, 3), A(4, 2, distinct=True), mode="max"),
        sample(I(2, 3), A(4, 2), mode="sum", per_sample_weights=A(2, 3), padding_idx=2),
        sample(I(5), A(4, 2), I(1, hi=1), mode="mean"),
        sample(I(3, 2), A(4, 2), padding_idx=1),
    ],
)
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of embeddings: of each row of a 2-D input, or of the runs that begin at `offsets`."""
    check_bags(input, offsets, mode, per_sample_weights)
    padding = check_table("embedding_bag", input, weight, padding_idx)
    renormalise_rows(weight, input, max_norm, norm_type)
    count = input.tj_array.size
    if offsets is None:
        bags, length = input.tj_array.shape
        bag = arange(bags, device=input.device).unsqueeze(1).expand(bags, length).reshape(-1)
        input = input.reshape(-1)
    else:
        bags = offsets.tj_array.shape[0] - bool(include_last_offset)
        bag = apply(BAGS, (offsets,), {"count": count, "include_last": bool(include_last_offset)})
    rows = apply(EMBEDDING, (weight, input), {"padding_idx": padding, "by_frequency": bool(scale_grad_by_freq)})
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    return pool_bag(rows, bag, bags, mode, input != padding)
