"""Attention with several heads: projections in, attention of each head, projection out.

Masks here say which keys are left out (True), or are added to the scores. Inside, queries, keys and values are
(batch, heads, length, width), masks broadcast to (batch, heads, queries, keys).
"""

from __future__ import annotations

import math
from typing import Any

from ...arrays.op_samples import A, B, sample
from ...core.cast import cast
from ...core.errors import warn
from ...core.registration import public
from ...core.tensor import Tensor
from ..create import zeros
from ..linalg.matmul import linear
from ..pointwise import where
from ..shape.rearrange import pad
from ..shape.reshape import cat
from ..softmax import softmax
from .attention import scaled_dot_product_attention
from .dropout import dropout

# ---- masks


def check_mask(mask: Tensor | None, name: str, other: Tensor | None = None, other_name: str = "") -> None:
    """A mask is boolean or floating-point, and had better be of the other mask's dtype."""
    if mask is None:
        return
    if mask.tj_array.dtype.kind != "b" and not mask.dtype.is_floating_point:
        raise AssertionError(f"only bool and floating types of {name} are supported")
    if other is not None and mask.tj_array.dtype != other.tj_array.dtype:
        warn(f"Support for mismatched {name} and {other_name} is deprecated. Use same type for both instead.")


def as_additive_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as what is added to scores."""
    return where(mask, -math.inf, zeros((), dtype=like.dtype, device=like.device)) if mask.tj_array.dtype.kind == "b" else mask  # type: ignore[no-any-return]


def merge_masks(a: Tensor | None, b: Tensor | None, like: Tensor) -> Tensor | None:
    """Both masks in one."""
    if a is None or b is None:
        return b if a is None else a
    if a.tj_array.dtype.kind == "b" and b.tj_array.dtype.kind == "b":
        return a | b  # type: ignore[no-any-return]
    return as_additive_mask(a, like) + as_additive_mask(b, like)  # type: ignore[no-any-return]


def by_heads(mask: Tensor | None, batch: int, heads: int, rows: int, keys: int) -> Tensor | None:
    """An attention mask (L, S) or (N * heads, L, S) with four dims."""
    if mask is None:
        return None
    expected = {2: (rows, keys), 3: (batch * heads, rows, keys)}.get(mask.ndim)
    if tuple(mask.shape) != expected:
        raise RuntimeError(f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be {expected}.")
    return mask.reshape((1, 1, rows, keys) if mask.ndim == 2 else (batch, heads, rows, keys))  # type: ignore[no-any-return]


# ---- projections


class Projections:
    """The weights of the projections in: one matrix for all three, or three."""

    def __init__(self, together: Tensor | None, separate: tuple[Tensor | None, ...], bias: Tensor | None) -> None:
        self.together, self.separate, self.bias = together, separate, bias
        if together is None:
            for name, weight in zip("qkv", separate, strict=True):
                if weight is None:
                    raise AssertionError(f"use_separate_proj_weight is True but {name}_proj_weight is None")

    def weight(self, start: int, stop: int, width: int) -> tuple[Any, Any]:
        """The weight and bias that make the projections start, ..., stop - 1 of query, key and value."""
        bias = None if self.bias is None else self.bias[start * width : stop * width]
        if self.together is None:
            return self.separate[start], bias
        return self.together[start * width : stop * width], bias

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, batch_first: bool) -> list[Tensor]:
        """Projected queries, keys and values by heads, with as few matmuls as the inputs allow."""
        width = query.shape[-1]
        if self.together is not None and query is key is value:
            return split_heads(linear(query, self.together, self.bias), 3, heads, batch_first)
        first = split_heads(linear(query, *self.weight(0, 1, width)), 1, heads, batch_first)
        if self.together is not None and key is value:
            return first + split_heads(linear(key, *self.weight(1, 3, width)), 2, heads, batch_first)
        second = split_heads(linear(key, *self.weight(1, 2, width)), 1, heads, batch_first)
        return first + second + split_heads(linear(value, *self.weight(2, 3, width)), 1, heads, batch_first)


def split_heads(x: Tensor, parts: int, heads: int, batch_first: bool) -> list[Tensor]:
    """(N, L, parts * heads * width), or (L, N, ...), as so many tensors (N, heads, L, width)."""
    n, length = (0, 1) if batch_first else (1, 0)
    shape = x.tj_array.shape
    apart = x.reshape(*shape[:2], parts, heads, shape[2] // (parts * heads))
    return list(apart.permute(2, n, 3, length, 4).unbind(0))


def joined_heads(x: Tensor, batch_first: bool) -> Tensor:
    """(N, heads, L, width) as (N, L, heads * width), or (L, N, ...)."""
    batch, heads, length, width = x.tj_array.shape
    if batch_first:
        return x.transpose(1, 2).reshape(batch, length, heads * width)  # type: ignore[no-any-return]
    return x.permute(2, 0, 1, 3).reshape(length, batch, heads * width)  # type: ignore[no-any-return]


# ---- checks


def check_dims(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None, heads: int) -> bool:
    """True if the inputs are batched; they all agree about that."""
    if query.ndim not in (2, 3):
        raise AssertionError(f"query should be unbatched 2D or batched 3D tensor but received {query.ndim}-D query tensor")
    ndim, what = query.ndim, "batched (3-D)" if query.ndim == 3 else "unbatched (2-D)"
    if key.ndim != ndim or value.ndim != ndim:
        raise AssertionError(
            f"For {what} `query`, expected `key` and `value` to be {ndim}-D but found {key.ndim}-D and {value.ndim}-D tensors "
            "respectively"
        )
    if padding is not None and padding.ndim != ndim - 1:
        raise AssertionError(
            f"For {what} `query`, expected `key_padding_mask` to be `None` or {ndim - 1}-D but found {padding.ndim}-D tensor "
            "instead"
        )
    if mask is not None and mask.ndim not in (2, 3):
        raise AssertionError(
            f"For {what} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found {mask.ndim}-D tensor instead"
        )
    if mask is not None and mask.ndim == 3 and ndim == 2:
        expected = (heads, query.shape[0], key.shape[0])
        if tuple(mask.shape) != expected:
            raise AssertionError(f"Expected `attn_mask` shape to be {expected} but got {mask.shape}")
    return ndim == 3


def check_sizes(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, heads: int, separate: bool) -> None:
    width = query.shape[-1]
    if width != embed_dim:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim}, but got {width}")
    if width % heads:
        raise AssertionError(f"embed_dim {width} not divisible by num_heads {heads}")
    if separate and key.shape[:2] != value.shape[:2]:
        raise AssertionError(f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}")
    if not separate and key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")


def check_static(static: Tensor | None, name: str, batch: int, heads: int, width: int) -> None:
    if static is not None and static.shape[0] != batch * heads:
        raise AssertionError(f"expecting {name}.size(0) of {batch * heads}, but got {static.shape[0]}")
    if static is not None and static.shape[2] != width:
        raise AssertionError(f"expecting {name}.size(2) of {width}, but got {static.shape[2]}")


# ---- the whole


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    heads: int,
    projections: Projections,
    extra: tuple[Tensor | None, Tensor | None, bool],
    dropout_p: float,
    out: tuple[Tensor, Tensor | None],
    padding: Tensor | None,
    mask: Tensor | None,
    static: tuple[Tensor | None, Tensor | None] = (None, None),
    need_weights: bool = True,
    average: bool = True,
    causal: bool = False,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention. `extra`: a key and a value for all, and whether to add a pair of zeros."""
    if not check_dims(query, key, value, padding, mask, heads):
        lone = 0 if batch_first else 1
        same = query is key, key is value
        query, key, value = (x.unsqueeze(lone) for x in (query, key, value))
        key = query if same[0] else key
        value = key if same[1] else value
        found, weights = attend(
            query, key, value, embed_dim, heads, projections, extra, dropout_p, out,
            None if padding is None else padding.unsqueeze(0), mask, static, need_weights, average, causal, batch_first,
        )  # fmt: skip
        return found.squeeze(lone), None if weights is None else weights.squeeze(0)
    check_mask(padding, "key_padding_mask", mask, "attn_mask")
    check_mask(mask, "attn_mask")
    if causal and mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    check_sizes(query, key, value, embed_dim, heads, projections.together is None)
    if causal and padding is None and not need_weights:
        mask = None
    else:
        causal = False
    n, length = (0, 1) if batch_first else (1, 0)
    batch, rows, width = query.shape[n], query.shape[length], embed_dim // heads
    q, k, v = projections(query, key, value, heads, batch_first)
    for i, name in enumerate(("static_k", "static_v")):
        check_static(static[i], name, batch, heads, width)
    k = k if static[0] is None else static[0].reshape(batch, heads, -1, width)
    v = v if static[1] is None else static[1].reshape(batch, heads, -1, width)
    mask = by_heads(mask, batch, heads, rows, key.shape[length])
    k, v, more = with_extra(k, v, *extra, static)
    if padding is not None:
        check_padding(padding, batch, k.shape[2], more)
        padding = padding.reshape(batch, 1, 1, padding.shape[1])
    mask = merge_masks(mask, padding, query)
    if mask is not None and more:
        mask = pad(mask, (0, more))
    found, weights = attention_of_heads(q, k, v, mask, dropout_p, causal, need_weights)
    if weights is not None and average:
        weights = weights.mean(1)
    return linear(joined_heads(found, batch_first), *out), weights


def check_padding(padding: Tensor, batch: int, keys: int, more: int) -> None:
    for i, (found, expected) in enumerate(((padding.shape[0], batch), (padding.shape[1] + more, keys))):
        if found != expected:
            raise AssertionError(f"Expected key_padded_mask.shape[{i}] to be {expected}, but got {found}")


def with_extra(
    k: Tensor, v: Tensor, bias_k: Tensor | None, bias_v: Tensor | None, zero: bool, static: tuple[Any, Any]
) -> tuple[Tensor, Tensor, int]:
    """Keys and values with learned ones and zeros after them, and how many these are."""
    batch, heads, _, width = k.tj_array.shape
    more = 0
    if bias_k is not None and bias_v is not None:
        for name, fixed in zip(("key", "value"), static, strict=True):
            if fixed is not None:
                raise AssertionError(f"bias cannot be added to static {name}.")
        k, v = (cat([x, b.reshape(1, heads, 1, width).expand(batch, -1, -1, -1)], 2) for x, b in ((k, bias_k), (v, bias_v)))
        more += 1
    elif bias_k is not None or bias_v is not None:
        given, missing = ("bias_k", "bias_v") if bias_v is None else ("bias_v", "bias_k")
        raise AssertionError(f"{given} is set but {missing} is None")
    if zero:
        k, v = (cat([x, x.new_zeros(batch, heads, 1, width)], 2) for x in (k, v))
        more += 1
    return k, v, more


def attention_of_heads(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    if not need_weights:
        allowed = ~mask if mask is not None and mask.tj_array.dtype.kind == "b" else mask
        return scaled_dot_product_attention(q, k, v, allowed, dropout_p, causal), None
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.mT
    weights = softmax(scores if mask is None else scores + cast(as_additive_mask(mask, scores), scores.dtype), -1)
    weights = dropout(weights, dropout_p)
    return weights @ v, weights


_WEIGHTS = (A(12, 4), A(12))  # one matrix and bias for the projections of query, key and value of width 4
_OUT = (A(4, 4), A(4))


@public(
    "nn.functional",
    samples=[
        sample(A(2, 1, 4), A(3, 1, 4), A(3, 1, 4), 4, 2, *_WEIGHTS, None, None, False, 0.0, *_OUT),
        sample(
            A(2, 1, 4), A(3, 1, 4), A(3, 1, 4), 4, 2, *_WEIGHTS, A(1, 1, 4), A(1, 1, 4), True, 0.0, *_OUT, True, None, False,
            A(2, 3),
        ),
        sample(
            A(2, 2, 4), A(3, 2, 2), A(3, 2, 3), 4, 1, None, None, None, None, True, 0.5, A(4, 4), None, False,
            use_separate_proj_weight=True, q_proj_weight=A(4, 4), k_proj_weight=A(4, 2), v_proj_weight=A(4, 3),
            attn_mask=A(2, 2, 3), key_padding_mask=A(2, 3), average_attn_weights=False,
        ),
        sample(A(2, 4), A(2, 4), A(2, 4), 4, 2, *_WEIGHTS, None, None, True, 0.0, *_OUT, attn_mask=B(2, 2, 2)),
        sample(
            A(2, 2, 4), A(1, 2, 4), A(1, 2, 4), 4, 2, *_WEIGHTS, None, None, False, 0.0, *_OUT, need_weights=False,
            static_k=A(4, 3, 2), static_v=A(4, 3, 2),
        ),
    ],
)  # fmt: skip
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention of queries (L, N, E) to keys and values (S, N, ...): the outputs, and the weights if needed."""
    if not use_separate_proj_weight and in_proj_weight is None:
        raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    return attend(
        query,
        key,
        value,
        embed_dim_to_check,
        num_heads,
        Projections(None if use_separate_proj_weight else in_proj_weight, separate, in_proj_bias),
        (bias_k, bias_v, add_zero_attn),
        dropout_p if training else 0.0,
        (out_proj_weight, out_proj_bias),
        key_padding_mask,
        attn_mask,
        (static_k, static_v),
        need_weights,
        average_attn_weights,
        is_causal,
    )
