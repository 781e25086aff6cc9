"""Scaled dot product attention: softmax(query key^T) value, without keeping a matrix of queries by keys.

The forward kernel works on pieces (some heads, some rows of queries) whose scores fit a fixed buffer, and saves each
row's log-sum-exp. The backward kernel makes the probabilities of a piece again from this, as flash attention does. Rows
with every key masked give 0.

Inside the kernels a query is (B, G, L, E), a key (B, S, E) and a value (B, S, F): G heads of queries share a head of
keys. Log-sum-exp is +inf for rows with every key masked, which makes their probabilities 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import broadcast_clash
from ..op import apply, primitive, public
from ..samples import A, B, sample
from ..tensor import Tensor
from .create import arange
from .dropout import dropout
from .norm import is_array, wide, wide_tensor
from .pointwise import cast, where
from .reduce import total
from .softmax import softmax

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
        self.query = query.reshape(heads, self.groups, *query.shape[-2:])
        self.key = key.reshape(heads, *key.shape[-2:])
        self.value = value.reshape(heads, *value.shape[-2:])
        self.mask, self.which = mask, None
        if is_array(mask):  # as (number, L or 1, S or 1), and for each head the number of its mask
            lead = mask.shape[:-2]
            numbers = xp.arange(math.prod(lead)).reshape(lead)
            self.which = xp.broadcast_to(numbers, query.shape[:-2]).reshape(heads, self.groups)
            self.mask = mask.reshape(math.prod(lead), *mask.shape[-2:])

    def pieces(self) -> Iterator[tuple[slice, slice, slice]]:
        """(heads, rows of queries, keys). A causal piece leaves out the keys that come after its last row."""
        per_row = max(self.groups * self.keys, 1)
        rows = max(min(self.rows, _BUFFER // per_row), 1)
        rows = min(rows, _CAUSAL_ROWS) if self.causal else rows
        heads = max(_BUFFER // (per_row * rows), 1)
        for h in range(0, self.heads, heads):
            for r in range(0, self.rows, rows):
                end = min(r + rows, self.rows)
                yield slice(h, h + heads), slice(r, end), slice(0, min(end, self.keys) if self.causal else self.keys)

    def scores(self, heads: slice, rows: slice, keys: slice, scale: float) -> Any:
        """Masked scores (b, G, r, s) of a piece, in a new buffer."""
        xp = self.xp
        query = wide(self.query[heads, :, rows]) * scale
        b, g, r, width = query.shape
        key = wide(self.key[heads, keys])
        found = xp.matmul(query.reshape(b, g * r, width), key.swapaxes(-1, -2)).reshape(b, g, r, key.shape[1])
        if self.which is not None:
            whole = slice(None)
            part = self.mask[:, rows if self.mask.shape[1] > 1 else whole, keys if self.mask.shape[2] > 1 else whole]
            part = part if self.mask.shape[0] == 1 else part[self.which[heads]]
            found += hidden(xp, part, found.dtype) if part.dtype == bool else part.astype(found.dtype, copy=False)
        if self.causal and keys.stop > rows.start + 1:
            later = xp.arange(keys.stop) <= xp.arange(rows.start, rows.stop)[:, None]
            found += hidden(xp, later, found.dtype)
        return found


def hidden(xp: Any, mask: Any, dtype: Any) -> Any:
    """What to add to scores: 0 where the mask is True, -inf elsewhere."""
    return xp.where(mask, xp.zeros((), dtype), xp.full((), -np.inf, dtype))


def joined(x: Any) -> Any:
    """(b, G, r, n) as (b, G * r, n)."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])


# ---- kernels


def run_attention(xp: Any, query: Any, key: Any, value: Any, mask: Any, *, scale: float, causal: bool) -> tuple[Any, Any]:
    see = Layout(xp, query, key, value, mask, causal)
    dtype = wide(query[:0]).dtype
    out = xp.empty((*see.query.shape[:-1], see.value.shape[-1]), query.dtype)
    log_total = xp.empty((*see.query.shape[:-1], 1), dtype)
    for heads, rows, keys in see.pieces():
        if keys.stop == 0:
            out[heads, :, rows], log_total[heads, :, rows] = 0, np.inf
            continue
        p = see.scores(heads, rows, keys, scale)
        highest = p.max(axis=-1, keepdims=True)
        empty = highest == -np.inf if see.which is not None else None
        if empty is not None:
            highest[empty] = 0
        p -= highest
        xp.exp(p, out=p)
        sums = total(xp, p, (3,), True)
        if empty is not None:
            sums[empty] = 1
        found = xp.matmul(joined(p), wide(see.value[heads, keys])).reshape(*p.shape[:3], see.value.shape[-1])
        found /= sums
        out[heads, :, rows] = found
        xp.log(sums, out=sums)
        sums += highest
        if empty is not None:
            sums[empty] = np.inf
        log_total[heads, :, rows] = sums
    return out.reshape(*query.shape[:-1], value.shape[-1]), log_total.reshape(*query.shape[:-1], 1)


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
    dtype = log_total.dtype
    of_query = xp.empty(see.query.shape, query.dtype) if needs[0] else None
    of_key = xp.zeros(see.key.shape, dtype) if needs[1] else None
    of_value = xp.zeros(see.value.shape, dtype) if needs[2] else None
    for heads, rows, keys in see.pieces():
        p = see.scores(heads, rows, keys, scale)
        p -= log_total[heads, :, rows]
        xp.exp(p, out=p)
        pull = wide(g[heads, :, rows])
        if of_value is not None:
            of_value[heads, keys] += xp.matmul(joined(p).swapaxes(-1, -2), joined(pull))
        if of_query is None and of_key is None:
            continue
        slopes = xp.matmul(joined(pull), wide(see.value[heads, keys]).swapaxes(-1, -2)).reshape(p.shape)
        slopes *= p
        p *= total(xp, slopes, (3,), True)
        slopes -= p
        if of_query is not None:
            found = xp.matmul(joined(slopes), wide(see.key[heads, keys])).reshape(*p.shape[:3], see.key.shape[-1])
            found *= scale
            of_query[heads, :, rows] = found
        if of_key is not None:
            of_key[heads, keys] += xp.matmul(joined(slopes).swapaxes(-1, -2), joined(wide(see.query[heads, :, rows]) * scale))
    parts = ((of_query, query), (of_key, key), (of_value, value))
    return tuple(x.reshape(like.shape).astype(like.dtype, copy=False) for x, like in parts if x is not None)


# ---- the same in other ops


def grouped(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with each head repeated for all the queries' heads that share it."""
    heads = x._array.shape[-3] if x._array.ndim > 2 else 1
    groups = (query._array.shape[-3] if query._array.ndim > 2 else 1) // max(heads, 1)
    if groups <= 1:
        return x
    shape = x._array.shape
    spread = x.unsqueeze(-3).expand(*shape[:-2], groups, *shape[-2:])
    return spread.reshape(*shape[:-3], heads * groups, *shape[-2:])  # type: ignore[no-any-return]


def probabilities(query: Tensor, key: Tensor, mask: Any, scale: float, causal: bool) -> Tensor:
    """The attention weights (..., L, S), from keys that are repeated already."""
    scores = (query * scale) @ key.mT
    allowed = None
    if isinstance(mask, Tensor):
        allowed = mask if mask._array.dtype.kind == "b" else mask > -math.inf
        scores = where(mask, scores, -math.inf) if allowed is mask else scores + mask
    if causal:
        rows, keys = scores._array.shape[-2:]
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
    key, value = grouped(key, query), grouped(value, query)
    p = probabilities(query, key, mask, scale, causal)
    out = p @ value
    # log-sum-exp from any key that is not masked: score = log(p) + log-sum-exp
    best = p.detach().argmax(-1, keepdim=True)
    scores = (query.detach() * scale) @ key.detach().mT
    if isinstance(mask, Tensor) and mask._array.dtype.kind != "b":
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
    wanted = [(x.dtype, x._array.shape) for x in (query, key, value)]
    g, query, key, value = (wide_tensor(x) for x in (g, query, key, value))
    keys, values = grouped(key, query), grouped(value, query)
    p = probabilities(query, keys, mask, scale, causal)
    slopes = g @ values.mT
    slopes = p * (slopes - (p * slopes).sum(-1, keepdim=True)) * scale
    found = [slopes @ keys, slopes.mT @ query, p.mT @ g]
    return tuple(
        cast(sum_over_groups(x, shape), dtype) for x, (dtype, shape), need in zip(found, wanted, needs, strict=True) if need
    )


def sum_over_groups(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of `grouped`."""
    if x._array.shape == shape:
        return x
    groups = x._array.shape[-3] // shape[-3]
    return x.reshape(*shape[:-2], groups, *shape[-2:]).sum(-3)  # type: ignore[no-any-return]


def attention_gradient(
    gs: list[Tensor | None],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    out1: Tensor,
    needs: tuple[bool, ...],
    scale: float,
    causal: bool,
) -> tuple[Tensor | None, ...]:
    if gs[0] is None:
        return None, None, None, None
    attrs = {"scale": scale, "causal": causal, "needs": needs[:3]}
    found = iter(apply(ATTENTION_BACKWARD, (gs[0], query, key, value, mask, out1), attrs))
    return (*(next(found) if need else None for need in needs[:3]), None)


ATTENTION_BACKWARD = primitive(
    "attention_backward", "composite", run_attention_backward, expand=attention_backward_by_parts, upcast=False
)
ATTENTION = primitive("attention", "composite", run_attention, grad=attention_gradient, expand=attention_by_parts, upcast=False)

# ---- the public function


def check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> None:
    name = "scaled_dot_product_attention"
    parts = {"query": query, "key": key, "value": value}
    for part, x in parts.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}(): argument '{part}' must be Tensor, not {type(x).__name__}")
    if len({x._array.dtype for x in parts.values()}) > 1 or not query.dtype.is_floating_point:
        shown = " ".join(f"{part}.dtype: {x.dtype.name}" for part, x in parts.items())
        raise RuntimeError(f"{name}: Expected query, key, and value to have the same floating-point dtype, but got {shown}.")
    shown = ", ".join(f"{part} {list(x.shape)}" for part, x in parts.items())
    if min(x._array.ndim for x in parts.values()) < 2:
        raise RuntimeError(f"{name}: Expected query, key, and value to all be at least 2 dimensional, but got {shown}.")
    if query._array.shape[-1] != key._array.shape[-1]:
        raise RuntimeError(f"{name}: query and key must have the same last dimension, but got {shown}.")
    if key._array.shape[-2] != value._array.shape[-2]:
        raise RuntimeError(f"{name}: key and value must have the same number of rows, but got {shown}.")
    if mask is not None and mask._array.dtype.kind != "b" and mask.dtype not in (query.dtype, dtypes.float32):
        raise RuntimeError(
            f"{name}: Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{mask.dtype.name} and query.dtype: {query.dtype.name} instead."
        )
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"{name}: dropout probability has to be between 0 and 1, but got {dropout_p}")


def shared(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values, checked to have heads that divide the queries'."""
    shapes = x._array.shape, query._array.shape
    if len(shapes[0]) < 3 or len(shapes[1]) < 3 or shapes[0][-3] == 0 or shapes[1][-3] % shapes[0][-3]:
        raise RuntimeError(
            "scaled_dot_product_attention: Number of heads in key and value must divide the number of heads in query, but got "
            f"query {list(shapes[1])} and key or value {list(shapes[0])}"
        )
    return x


def checked_mask(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """A mask of at least two dims, that broadcasts to the scores."""
    if mask._array.ndim < 2:
        mask = mask.reshape(*(1,) * (2 - mask._array.ndim), *mask.shape)
    scores = (query._array.shape[-2], key._array.shape[-2])
    clash = broadcast_clash([scores, mask._array.shape[-2:]])
    if clash is not None or np.broadcast_shapes(scores, mask._array.shape[-2:]) != scores:
        raise RuntimeError(
            f"scaled_dot_product_attention: an attn_mask of shape {list(mask.shape)} does not broadcast to scores of shape "
            f"[..., {scores[0]}, {scores[1]}]"
        )
    return mask


def batched(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    shape = (*batch, *x._array.shape[-2:])
    return x if x._array.shape == shape else x.expand(shape)  # type: ignore[no-any-return]


def common_batch(*tensors: Tensor) -> tuple[int, ...]:
    shapes = [t._array.shape[:-2] for t in tensors]
    clash = broadcast_clash(shapes)
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
        key, value = shared(key, query), shared(value, query)
        if key._array.shape[:-2] != value._array.shape[:-2] or query._array.shape[:-3] != key._array.shape[:-3]:
            key, value = grouped(key, query), grouped(value, query)
    if attn_mask is not None:
        attn_mask = checked_mask(query, key, attn_mask)
    if not enable_gqa or key._array.shape[:-2] == query._array.shape[:-2]:
        batch = common_batch(query, key, value, *(() if attn_mask is None else (attn_mask,)))
        query, key, value = (batched(x, batch) for x in (query, key, value))
    factor = 1 / math.sqrt(max(query._array.shape[-1], 1)) if scale is None else float(scale)
    if dropout_p > 0 or (attn_mask is not None and attn_mask.requires_grad):
        p = probabilities(query, grouped(key, query), attn_mask, factor, is_causal)
        return dropout(cast(p, query.dtype), dropout_p) @ grouped(value, query)
    inputs = (query, key, value, 0 if attn_mask is None else attn_mask)
    return apply(ATTENTION, inputs, {"scale": factor, "causal": bool(is_causal)})[0]  # type: ignore[no-any-return]
