"""Scaled dot product attention: softmax(query key^T) value, without keeping a matrix of queries by keys.

The forward kernel works on pieces (some heads, some rows of queries) whose scores fit a fixed buffer, and saves each
row's log-sum-exp. The backward kernel makes the probabilities of a piece again from this, as flash attention does. Rows
with every key masked give 0.

Inside the kernels a query is (..., G, L, E), a key (..., S, E) and a value (..., S, F): G heads of queries share a head of
keys. Log-sum-exp is +inf for rows with every key masked, which makes their probabilities 0.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, B, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.errors import broadcast_error
from ...core.op import primitive
from ...core.registration import public
from ...core.tensor import Tensor
from ..create import arange
from ..pointwise import where
from ..reduce import sum_array
from ..softmax import need_no_shift, softmax
from .dropout import dropout
from .normalization import is_array, wide_tensor, widen

_BUFFER = 1 << 20  # scores computed at a time
_CAUSAL_ROWS = 128  # rows computed at a time when the keys after them can be left out

# ---- pieces


class Layout:
    """The arrays as the kernels see them, and the pieces to work on."""

    def __init__(self, xp: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool) -> None:
        self.xp, self.causal = xp, causal
        self.heads = heads = math.prod(key.shape[:-2])
        self.groups = math.prod(query.shape[:-2]) // heads if heads else 1
        self.rows, self.keys = query.shape[-2], key.shape[-2]
        # One piece of heads needs no flat index of them, whose making copies transposed arrays that BLAS takes as they are.
        self.at_a_time = self.piece()
        together = key.ndim > 3 and self.at_a_time[0] >= heads and unit_strides(query, key, value)
        self.lead = lead = key.shape[:-2] if together else (heads,)
        self.query = query.reshape(*lead, self.groups, *query.shape[-2:])
        self.key = key.reshape(*lead, *key.shape[-2:])
        self.value = value.reshape(*lead, *value.shape[-2:])
        self.mask, self.which = mask, None
        if is_array(mask):  # as (number, L or 1, S or 1), and for each head the number of its mask
            masks = mask.shape[:-2]
            numbers = xp.arange(math.prod(masks)).reshape(masks)
            self.which = xp.broadcast_to(numbers, query.shape[:-2]).reshape(*lead, self.groups)
            self.mask = mask.reshape(math.prod(masks), *mask.shape[-2:])

    def piece(self) -> tuple[int, int]:
        """Return the number of heads and of query rows in a tile."""
        per_row = max(self.groups * self.keys, 1)
        rows = max(min(self.rows, _BUFFER // per_row), 1)
        rows = min(rows, _CAUSAL_ROWS) if self.causal else rows
        return max(_BUFFER // (per_row * rows), 1), rows

    def pieces(self) -> list[tuple[slice, slice, slice]]:
        """(heads, rows of queries, keys). A causal piece leaves out the keys that come after its last row."""
        heads, rows = self.at_a_time
        found = []
        for h in range(0, self.heads, heads):
            for r in range(0, self.rows, rows):
                end = min(r + rows, self.rows)
                keys = slice(0, min(end, self.keys) if self.causal else self.keys)
                found.append((slice(h, h + heads), slice(r, end), keys))
        return found

    def scores(self, query: Any, key: Any, heads: slice, rows: slice, keys: slice) -> Any:
        """Scores (..., G, r, s) of a piece's queries and keys, with the mask but with later keys too, in a new buffer."""
        xp = self.xp
        found = xp.matmul(merge_groups(query), key.swapaxes(-1, -2)).reshape(*query.shape[:-1], key.shape[-2])
        if self.which is not None:
            whole = slice(None)
            part = self.mask[:, rows if self.mask.shape[1] > 1 else whole, keys if self.mask.shape[2] > 1 else whole]
            part = part if self.mask.shape[0] == 1 else part[self.which[heads]]
            found += mask_bias(xp, part, found.dtype) if part.dtype == bool else part.astype(found.dtype, copy=False)
        return found

    def hide_later(self, scores: Any, rows: slice, keys: slice) -> None:
        """Take the keys that come after a row out of its scores. All rows of a piece see the keys before its first row."""
        columns = keys.stop - rows.start
        if self.causal and columns > 1:
            scores[..., rows.start :] += triangle(self.xp, rows.stop - rows.start, columns, scores.dtype)


def unit_strides(*arrays: Any) -> bool:
    """True if the last dim of each array is one run of memory."""
    return {x.strides[-1] - x.itemsize for x in arrays} == {0}


def mask_bias(xp: Any, mask: Any, dtype: Any) -> Any:
    """Convert a boolean mask to a bias on scores: 0 where it is True, -inf elsewhere."""
    return xp.where(mask, xp.zeros((), dtype), xp.full((), -np.inf, dtype))


def triangle(xp: Any, rows: int, columns: int, dtype: Any) -> Any:
    """Return the bias that hides column j from row i if j > i; NumPy's is made once, as it has _CAUSAL_ROWS rows at most."""
    return _triangle(rows, columns, dtype) if xp is np else mask_bias(xp, xp.tri(rows, columns, dtype=bool), dtype)


@functools.lru_cache(8)
def _triangle(rows: int, columns: int, dtype: Any) -> Any:
    made = mask_bias(np, np.tri(rows, columns, dtype=bool), dtype)
    made.flags.writeable = False
    return made


def merge_groups(x: Any) -> Any:
    """(..., G, r, n) as (..., G * r, n)."""
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


def row_sums(xp: Any, x: Any) -> Any:
    return sum_array(xp, x, (x.ndim - 1,), True)


# ---- kernels


def run_attention(xp: Any, query: Any, key: Any, value: Any, mask: Any, *, scale: float, causal: bool) -> tuple[Any, Any]:
    see = Layout(xp, query, key, value, mask, causal)
    pieces = see.pieces()
    if len(pieces) == 1:
        out, log_total = attend(see, *pieces[0], scale)
    else:
        out = xp.empty((*see.query.shape[:-1], value.shape[-1]), query.dtype)
        log_total = xp.empty((*see.query.shape[:-1], 1), widen(query[:0]).dtype)
        for heads, rows, keys in pieces:
            out[heads][..., rows, :], log_total[heads][..., rows, :] = attend(see, heads, rows, keys, scale)
    out = out.astype(query.dtype, copy=False)
    return out.reshape(*query.shape[:-1], value.shape[-1]), log_total.reshape(*query.shape[:-1], 1)


def attend(see: Layout, heads: slice, rows: slice, keys: slice, scale: float) -> tuple[Any, Any]:
    """Return the attention output of a tile's queries, and their log-sum-exp."""
    xp, query, value = see.xp, widen(see.query[heads][..., rows, :]), widen(see.value[heads][..., keys, :])
    if keys.stop == 0:
        nothing = xp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
        return nothing, xp.full((*query.shape[:-1], 1), np.inf, query.dtype)
    p = see.scores(query * scale, widen(see.key[heads][..., keys, :]), heads, rows, keys)
    shifted = see.which is not None or not need_no_shift(xp, p)
    see.hide_later(p, rows, keys)
    empty = None
    if shifted:
        highest = p.max(axis=-1, keepdims=True)
        if see.which is not None:
            empty = highest == -np.inf
            highest[empty] = 0
        p -= highest
    xp.exp(p, out=p)
    sums = row_sums(xp, p)
    if empty is not None:
        sums[empty] = 1
    found = xp.matmul(merge_groups(p), value).reshape(*p.shape[:-1], value.shape[-1])
    found /= sums
    xp.log(sums, out=sums)
    if shifted:
        sums += highest
    if empty is not None:
        sums[empty] = np.inf
    return found, sums


def run_attention_backward(
    xp: Any,
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    log_total: Any,
    *,
    scale: float,
    causal: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Any, ...]:
    see = Layout(xp, query, key, value, mask, causal)
    shape = see.query.shape[:-1]
    g, log_total = (x.reshape(*shape, x.shape[-1]) for x in (g, log_total))
    pieces = see.pieces()
    if len(pieces) == 1 and pieces[0][2].stop == see.keys:
        found = attend_backward(see, g, log_total, *pieces[0], scale, needs)
    else:
        dtype = log_total.dtype
        of_query = xp.empty(see.query.shape, query.dtype) if needs[0] else None
        of_key = xp.zeros(see.key.shape, dtype) if needs[1] else None
        of_value = xp.zeros(see.value.shape, dtype) if needs[2] else None
        for heads, rows, keys in pieces:
            parts = attend_backward(see, g, log_total, heads, rows, keys, scale, needs)
            if of_query is not None:
                of_query[heads][..., rows, :] = parts[0]
            if of_key is not None:
                of_key[heads][..., keys, :] += parts[1]
            if of_value is not None:
                of_value[heads][..., keys, :] += parts[2]
        found = of_query, of_key, of_value
    inputs = (query, key, value)
    return tuple([x.reshape(y.shape).astype(y.dtype, copy=False) for x, y in zip(found, inputs, strict=True) if x is not None])


def attend_backward(
    see: Layout, g: Any, log_total: Any, heads: slice, rows: slice, keys: slice, scale: float, needs: tuple[bool, bool, bool]
) -> tuple[Any, Any, Any]:
    """Return a tile's contribution to the gradients of its queries, keys and values."""
    xp, of_query, of_key, of_value = see.xp, None, None, None
    query, key = widen(see.query[heads][..., rows, :]), widen(see.key[heads][..., keys, :])
    p = see.scores(query * scale, key, heads, rows, keys)
    see.hide_later(p, rows, keys)
    p -= log_total[heads][..., rows, :]
    xp.exp(p, out=p)
    pull = widen(g[heads][..., rows, :])
    if needs[2]:
        of_value = xp.matmul(merge_groups(p).swapaxes(-1, -2), merge_groups(pull))
    if needs[0] or needs[1]:
        value = widen(see.value[heads][..., keys, :])
        slopes = xp.matmul(merge_groups(pull * scale), value.swapaxes(-1, -2)).reshape(p.shape)
        slopes *= p
        p *= row_sums(xp, slopes)
        slopes -= p
        if needs[0]:
            of_query = xp.matmul(merge_groups(slopes), key).reshape(query.shape)
        if needs[1]:
            of_key = xp.matmul(merge_groups(slopes).swapaxes(-1, -2), merge_groups(query))
    return of_query, of_key, of_value


# ---- the same in other ops


def repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with each head repeated for all the queries' heads that share it."""
    heads = x.tj_array.shape[-3] if x.tj_array.ndim > 2 else 1
    groups = (query.tj_array.shape[-3] if query.tj_array.ndim > 2 else 1) // max(heads, 1)
    if groups <= 1:
        return x
    shape = x.tj_array.shape
    spread = x.unsqueeze(-3).expand(*shape[:-2], groups, *shape[-2:])
    return spread.reshape(*shape[:-3], heads * groups, *shape[-2:])  # type: ignore[no-any-return]


def probabilities(query: Tensor, key: Tensor, mask: Any, scale: float, causal: bool) -> Tensor:
    """The attention weights (..., L, S), from keys that are repeated already."""
    scores = (query * scale) @ key.mT
    allowed = None
    if isinstance(mask, Tensor):
        allowed = mask if mask.tj_array.dtype.kind == "b" else mask > -math.inf
        scores = where(mask, scores, -math.inf) if allowed is mask else scores + mask
    if causal:
        rows, keys = scores.tj_array.shape[-2:]
        before = arange(keys, device=query.device) <= arange(rows, device=query.device).unsqueeze(-1)
        scores = where(before, scores, -math.inf)
        allowed = before if allowed is None else allowed & before
    if allowed is None:
        return softmax(scores, -1)
    lost = ~allowed.any(-1, keepdim=True)  # rows with every key masked
    return where(lost, 0, softmax(where(lost, 0, scores), -1))  # type: ignore[no-any-return]


def attention_by_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    dtype, query, key, value = query.dtype, *(wide_tensor(x) for x in (query, key, value))
    key, value = repeat_heads(key, query), repeat_heads(value, query)
    p = probabilities(query, key, mask, scale, causal)
    out = p @ value
    # log-sum-exp from any key that is not masked: score = log(p) + log-sum-exp
    best = p.detach().argmax(-1, keepdim=True)
    scores = (query.detach() * scale) @ key.detach().mT
    if isinstance(mask, Tensor) and mask.tj_array.dtype.kind != "b":
        scores = scores + mask.detach()
    top = p.detach().gather(-1, best)
    log_total = where(top > 0, scores.gather(-1, best) - top.log(), math.inf)
    return cast(out, dtype), log_total


def attention_backward_by_parts(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    log_total: Tensor,
    scale: float,
    causal: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor, ...]:
    wanted = [(x.dtype, x.tj_array.shape) for x in (query, key, value)]
    g, query, key, value = (wide_tensor(x) for x in (g, query, key, value))
    keys, values = repeat_heads(key, query), repeat_heads(value, query)
    p = probabilities(query, keys, mask, scale, causal)
    slopes = g @ values.mT
    slopes = p * (slopes - (p * slopes).sum(-1, keepdim=True)) * scale
    found = [slopes @ keys, slopes.mT @ query, p.mT @ g]
    return tuple(
        cast(sum_over_groups(x, shape), dtype) for x, (dtype, shape), need in zip(found, wanted, needs, strict=True) if need
    )


def sum_over_groups(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of `repeat_heads`."""
    if x.tj_array.shape == shape:
        return x
    groups = x.tj_array.shape[-3] // shape[-3]
    return x.reshape(*shape[:-2], groups, *shape[-2:]).sum(-3)  # type: ignore[no-any-return]


def attention_gradient(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    out1: Tensor,
    needs: tuple[bool, ...],
    scale: float,
    causal: bool,
) -> tuple[Tensor | None, ...]:
    attrs = {"scale": scale, "causal": causal, "needs": needs[:3]}
    found = iter(apply(ATTENTION_BACKWARD, (g, query, key, value, mask, out1), attrs))
    return (*(next(found) if need else None for need in needs[:3]), None)


ATTENTION_BACKWARD = primitive(
    "attention_backward", "composite", run_attention_backward, expand=attention_backward_by_parts, upcast=False
)
ATTENTION = primitive(
    "attention",
    "composite",
    run_attention,
    grad=attention_gradient,
    expand=attention_by_parts,
    upcast=False,
    statistics=True,
)

# ---- the public function


def check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> None:
    name = "scaled_dot_product_attention"
    parts = {"query": query, "key": key, "value": value}
    for part, x in parts.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}(): argument '{part}' must be Tensor, not {type(x).__name__}")
    q, k, v = query.tj_array, key.tj_array, value.tj_array
    if not q.dtype == k.dtype == v.dtype or not query.dtype.is_floating_point:
        shown = " ".join(f"{part}.dtype: {x.dtype.name}" for part, x in parts.items())
        raise RuntimeError(f"{name}: Expected query, key, and value to have the same floating-point dtype, but got {shown}.")
    if q.ndim < 2 or k.ndim < 2 or v.ndim < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise RuntimeError(f"{name}: {shape_mismatch_error(parts)}.")
    if mask is not None and mask.tj_array.dtype.kind != "b" and mask.dtype not in (query.dtype, dtypes.float32):
        raise RuntimeError(
            f"{name}: Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{mask.dtype.name} and query.dtype: {query.dtype.name} instead."
        )
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"{name}: dropout probability has to be between 0 and 1, but got {dropout_p}")


def shape_mismatch_error(parts: dict[str, Tensor]) -> str:
    """Return the error for query, key and value shapes that do not match."""
    shown = ", ".join(f"{part} {list(x.shape)}" for part, x in parts.items())
    if min(x.tj_array.ndim for x in parts.values()) < 2:
        return f"Expected query, key, and value to all be at least 2 dimensional, but got {shown}"
    if parts["query"].tj_array.shape[-1] != parts["key"].tj_array.shape[-1]:
        return f"query and key must have the same last dimension, but got {shown}"
    return f"key and value must have the same number of rows, but got {shown}"


def check_shared_heads(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values, checked to have heads that divide the queries'."""
    shapes = x.tj_array.shape, query.tj_array.shape
    if len(shapes[0]) < 3 or len(shapes[1]) < 3 or shapes[0][-3] == 0 or shapes[1][-3] % shapes[0][-3]:
        raise RuntimeError(
            "scaled_dot_product_attention: Number of heads in key and value must divide the number of heads in query, but got "
            f"query {list(shapes[1])} and key or value {list(shapes[0])}"
        )
    return x


def checked_mask(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """A mask of at least two dims, that broadcasts to the scores."""
    if mask.tj_array.ndim < 2:
        mask = mask.reshape(*(1,) * (2 - mask.tj_array.ndim), *mask.shape)
    scores = (query.tj_array.shape[-2], key.tj_array.shape[-2])
    clash = broadcast_error([scores, mask.tj_array.shape[-2:]])
    if clash is not None or np.broadcast_shapes(scores, mask.tj_array.shape[-2:]) != scores:
        raise RuntimeError(
            f"scaled_dot_product_attention: an attn_mask of shape {list(mask.shape)} does not broadcast to scores of shape "
            f"[..., {scores[0]}, {scores[1]}]"
        )
    return mask


def batched(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    shape = (*batch, *x.tj_array.shape[-2:])
    return x if x.tj_array.shape == shape else x.expand(shape)  # type: ignore[no-any-return]


def common_batch(*tensors: Tensor) -> tuple[int, ...]:
    shapes = [t.tj_array.shape[:-2] for t in tensors]
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]  # type: ignore[no-any-return]
    clash = broadcast_error(shapes)
    if clash is not None:
        raise RuntimeError(f"scaled_dot_product_attention: {clash}")
    return np.broadcast_shapes(*shapes)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3, 2), A(2, 4, 2), A(2, 4, 3)),
        sample(A(3, 2), A(3, 2), A(3, 2), is_causal=True),
        sample(A(1, 2, 2, 2), A(1, 2, 3, 2), A(1, 2, 3, 2), B(2, 3), scale=0.7),
        sample(A(2, 2, 2), A(2, 3, 2), A(2, 3, 2), A(2, 1, 3)),
        sample(A(1, 4, 2, 2), A(1, 2, 3, 2), A(1, 2, 3, 2), is_causal=True, enable_gqa=True),
    ],
)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query key^T * scale + mask) value. Boolean masks say which keys take part, float ones are added."""
    check(query, key, value, attn_mask, dropout_p)
    if enable_gqa:
        key, value = check_shared_heads(key, query), check_shared_heads(value, query)
        if key.tj_array.shape[:-2] != value.tj_array.shape[:-2] or query.tj_array.shape[:-3] != key.tj_array.shape[:-3]:
            key, value = repeat_heads(key, query), repeat_heads(value, query)
    if attn_mask is not None:
        attn_mask = checked_mask(query, key, attn_mask)
    if not enable_gqa or key.tj_array.shape[-3:-2] == query.tj_array.shape[-3:-2]:
        batch = common_batch(query, key, value, *(() if attn_mask is None else (attn_mask,)))
        query, key, value = (batched(x, batch) for x in (query, key, value))
    factor = 1 / math.sqrt(max(query.tj_array.shape[-1], 1)) if scale is None else float(scale)
    if dropout_p > 0 or (attn_mask is not None and attn_mask.requires_grad):
        p = probabilities(query, repeat_heads(key, query), attn_mask, factor, is_causal)
        return dropout(cast(p, query.dtype), dropout_p) @ repeat_heads(value, query)
    inputs = (query, key, value, 0 if attn_mask is None else attn_mask)
    return apply(ATTENTION, inputs, {"scale": factor, "causal": bool(is_causal)})[0]  # type: ignore[no-any-return]
