"""Attention problems for every backend, their results in float64, and arrays with canaries around them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from tapejit.codegen.llvm.attention.blocks import TensorLayout

CANARY = 12345.75
DTYPES = {"float": np.float32, "double": np.float64, "half": np.float16, "bfloat": ml_dtypes.bfloat16}
EDGE = 64  # elements on both sides of an array that nobody may touch


class Guarded:
    """An array whose memory has canaries around it and, where its layout has gaps, between its elements."""

    def __init__(self, values: np.ndarray, order: Sequence[int] = (), gap: int = 1) -> None:
        self.memory, self.array = self.placed(values, 77 if values.dtype == bool else CANARY, order, gap)
        self.array[...] = values
        self.outside, inside = self.placed(np.zeros(values.shape, bool), True, order, gap)
        inside[...] = False
        self.before = self.memory.copy()

    @staticmethod
    def placed(values: np.ndarray, fill: Any, order: Sequence[int], gap: int) -> tuple[np.ndarray, np.ndarray]:
        order = order or range(values.ndim)
        shape = [values.shape[i] for i in order]
        shape[-1] *= gap
        memory = np.full(math.prod(shape) + 2 * EDGE, fill, values.dtype)
        inner = memory[EDGE : EDGE + math.prod(shape)].reshape(shape)[..., ::gap]
        return memory, inner.transpose(np.argsort(order))

    def layout(self, pointer: int) -> TensorLayout:
        """Dims of length 1 have the stride 0, as in graphs."""
        strides = (0 if n == 1 else s // self.array.itemsize for n, s in zip(self.array.shape, self.array.strides, strict=True))
        return TensorLayout(pointer, tuple(strides))

    def check(self, written: bool) -> None:
        """Nothing outside the array has changed, and nothing inside if it is only read."""
        where = self.outside if written else slice(None)
        assert self.memory[where].tobytes() == self.before[where].tobytes()


@dataclasses.dataclass(frozen=True)
class Case:
    batch: tuple[int, ...]
    queries: int
    keys: int
    width: int
    value_width: int
    causal: bool = False
    mask: str = ""  # "bool", "rows" (one row for all queries), "column" (one column for all keys), "float", "float32"
    group: int = 1
    scalar: str = "float"
    order: tuple[int, ...] = ()  # of the dims in memory, from the outermost on
    gap: int = 1
    needs: tuple[bool, bool, bool] = (True, True, True)
    scale: float = 0.3


def arrays_of(case: Case, spread: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(abs(hash((case.batch, case.queries, case.keys, case.width))) % 2**32)
    dtype = DTYPES[case.scalar]
    key_batch = (*case.batch[:-1], case.batch[-1] // case.group) if case.batch else ()
    shapes = {
        "query": (*case.batch, case.queries, case.width),
        "key": (*key_batch, case.keys, case.width),
        "value": (*key_batch, case.keys, case.value_width),
        "pull": (*case.batch, case.queries, case.value_width),
    }
    found = {name: (spread * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}
    scores = (*case.batch, case.queries, case.keys)
    if case.mask in ("bool", "rows", "column"):
        drop = {"bool": scores, "rows": (*case.batch, 1, case.keys), "column": (*case.batch, case.queries, 1)}[case.mask]
        found["mask"] = rng.random(drop) < 0.7
        found["mask"][..., 0, :] = False  # a row that sees nothing
    elif case.mask:
        found["mask"] = rng.standard_normal(scores[-2:]).astype(np.float32 if case.mask == "float32" else dtype)
        found["mask"][rng.random(scores[-2:]) < 0.2] = -np.inf
    return found


def expected(case: Case, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Everything in float64, with whole matrices of scores."""
    query, key, value, pull = (arrays[name].astype(np.float64) for name in ("query", "key", "value", "pull"))
    spread = lambda x: np.repeat(x, case.group, axis=-3) if case.group > 1 else x
    joined = lambda x: x.reshape(*x.shape[:-3], -1, case.group, *x.shape[-2:]).sum(-3) if case.group > 1 else x
    keys, values = spread(key), spread(value)
    scores = case.scale * query @ keys.swapaxes(-1, -2)
    if "mask" in arrays:
        mask = arrays["mask"]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if case.causal:
        scores = np.where(np.tri(case.queries, case.keys, dtype=bool), scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    empty = highest == -np.inf
    p = np.exp(scores - np.where(empty, 0, highest))
    sums = np.where(empty, 1, p.sum(-1, keepdims=True))
    p /= sums
    slopes = pull @ values.swapaxes(-1, -2)
    slopes = case.scale * p * (slopes - (p * slopes).sum(-1, keepdims=True))
    return {
        "out": p @ values,
        "log_total": np.where(empty, np.inf, np.log(sums) + highest),
        "of_query": slopes @ keys,
        "of_key": joined(slopes.swapaxes(-1, -2) @ query),
        "of_value": joined(p.swapaxes(-1, -2) @ pull),
    }


CASES = {
    "one of everything": Case((), 1, 1, 1, 1),
    "narrow": Case((2, 1), 9, 5, 1, 1),
    "one key": Case((2, 3), 9, 1, 8, 8, mask="bool"),
    "odd": Case((3,), 5, 7, 3, 5),
    "a vector and one": Case((2, 1), 17, 33, 17, 15),
    "causal": Case((2, 2), 40, 40, 8, 16, causal=True),
    "causal, odd": Case((2,), 37, 37, 20, 9, causal=True),
    "causal, more keys": Case((2,), 9, 50, 8, 8, causal=True),
    "causal, more queries": Case((2,), 50, 9, 8, 8, causal=True),
    "a panel and a vector": Case((2,), 20, 45, 8, 8),
    "many keys": Case((1,), 9, 600, 16, 24),
    "many keys, causal": Case((1,), 590, 590, 8, 8, causal=True),
    "bool mask": Case((2, 2), 19, 35, 8, 8, mask="bool"),
    "bool mask, causal": Case((2, 2), 35, 35, 8, 8, mask="bool", causal=True),
    "mask of keys": Case((2, 2), 10, 18, 8, 8, mask="rows"),
    "mask of queries": Case((2, 2), 10, 18, 8, 8, mask="column"),
    "many keys, mask": Case((1,), 20, 550, 8, 8, mask="bool"),
    "float mask": Case((2, 2), 16, 32, 8, 8, mask="float"),
    "float mask, causal": Case((2, 2), 21, 21, 8, 8, mask="float", causal=True),
    "groups": Case((2, 6), 20, 20, 8, 8, group=3, causal=True),
    "one group": Case((4,), 70, 30, 8, 8, group=4),
    "heads in rows": Case((2, 3), 24, 24, 16, 16, order=(0, 2, 1, 3), causal=True),
    "columns apart": Case((2,), 20, 20, 6, 6, gap=3),
    "transposed": Case((2,), 20, 21, 6, 6, order=(0, 2, 1)),
    "double": Case((2,), 20, 21, 9, 7, scalar="double"),
    "double, float32 mask": Case((2,), 20, 21, 8, 8, scalar="double", mask="float32", causal=True),
    "bfloat16": Case((2, 3), 24, 24, 16, 16, scalar="bfloat", causal=True, order=(0, 2, 1, 3)),
    "bfloat16, odd": Case((3,), 5, 7, 3, 5, scalar="bfloat"),
    "bfloat16, a vector and one": Case((2, 1), 17, 33, 17, 15, scalar="bfloat", mask="float"),
    "bfloat16, many keys": Case((1,), 590, 590, 8, 24, scalar="bfloat", causal=True),
    "bfloat16, one query": Case((3, 2), 1, 270, 16, 16, scalar="bfloat", mask="bool"),
    "bfloat16, groups": Case((4, 10), 32, 24, 16, 16, scalar="bfloat", group=2),
    "bfloat16, many heads": Case((4, 5), 64, 64, 16, 32, scalar="bfloat", causal=True, order=(0, 2, 1, 3)),
    "float16": Case((2,), 20, 21, 9, 7, scalar="half", gap=3),
    "float16, float mask": Case((2, 2), 21, 21, 8, 8, scalar="half", mask="float", causal=True),
    "float16, float32 mask": Case((2, 2), 32, 32, 16, 16, scalar="half", mask="float32"),
    "many heads": Case((4, 5), 33, 33, 32, 32, causal=True),
    "many heads, whole tiles": Case((4, 5), 64, 64, 16, 32, causal=True, order=(0, 2, 1, 3)),
    "many heads, fewer queries": Case((4, 5), 16, 40, 16, 16, causal=True),
    "many groups, whole tiles": Case((4, 10), 32, 24, 16, 16, group=2),
    "wide": Case((2,), 9, 20, 256, 130),
    "one query": Case((3, 2), 1, 270, 16, 16),
    "rows far apart": Case((2, 8), 16, 32, 64, 64, order=(0, 2, 1, 3), causal=True),
    "no query": Case((2,), 20, 20, 8, 8, needs=(False, True, True)),
    "no key": Case((2,), 20, 20, 8, 8, needs=(True, False, True), causal=True),
    "values only": Case((2,), 20, 20, 8, 8, needs=(False, False, True)),
    "queries only": Case((2,), 20, 20, 8, 8, needs=(True, False, False)),
}
