"""Flash attention as native code: equal to float64 attention with whole matrices, for every layout and width of vectors."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tapejit.codegen.llvm.attention import emit_forward
from tapejit.codegen.llvm.attention_backward import emit_backward
from tapejit.codegen.llvm.attention_parts import Attention, Layout
from tapejit.codegen.llvm.builder import Module
from tapejit.codegen.llvm.jit import compile_text, link
from tapejit.codegen.llvm.kernel import Kernel
from tapejit.codegen.llvm.target import Target, host

CANARY = 12345.75
EDGE = 64  # elements on both sides of an array that nobody may touch

# ---- running a kernel


def run(module: Module, kernel: Kernel, arrays: Sequence[np.ndarray], threads: int = 1) -> None:
    """All phases, each with its pieces in as many shares as there are threads, the last share first."""
    names = [phase.function for phase in kernel.phases]
    library = link([compile_text(str(module))], {}, names)
    shared, scratch = room(kernel.shared), room(kernel.scratch)
    for phase in kernel.phases:
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(arrays) + 2), ctypes.c_int64, ctypes.c_int64)(
            library[phase.function]
        )
        bounds = [phase.pieces * i // threads for i in range(threads + 1)]
        for begin, end in reversed(list(itertools.pairwise(bounds))):
            call(*[x.ctypes.data for x in arrays], aligned(shared), aligned(scratch), begin, end)
    for memory, size in ((shared, kernel.shared), (scratch, kernel.scratch)):
        start = aligned(memory) - memory.ctypes.data
        assert (memory[start + size :] == 99).all(), "written after the end of a kernel's own memory"


def room(size: int) -> np.ndarray:
    return np.full(size + 128, 99, np.uint8)


def aligned(memory: np.ndarray) -> int:
    return -(-memory.ctypes.data // 64) * 64


class Guarded:
    """An array whose memory has canaries around it and, where its layout has gaps, between its elements."""

    def __init__(self, values: np.ndarray, order: Sequence[int] = (), gap: int = 1) -> None:
        self.memory, self.array = self.placed(values, CANARY if values.dtype.kind == "f" else 77, order, gap)
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

    def layout(self, pointer: int) -> Layout:
        return Layout(pointer, tuple(s // self.array.itemsize for s in self.array.strides))

    def check(self, written: bool) -> None:
        """Nothing outside the array has changed, and nothing inside if it is only read."""
        where = self.outside if written else slice(None)
        np.testing.assert_array_equal(self.memory[where], self.before[where])


# ---- problems


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
    dtype = np.float32 if case.scalar == "float" else np.float64
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


def narrow(bits: int) -> Target:
    return dataclasses.replace(host(), bits=bits)


def native(case: Case, arrays: dict[str, np.ndarray], bits: int = 512, threads: int = 1) -> dict[str, np.ndarray]:
    """What the kernels give, both of them, with canaries checked."""
    dtype, order, rows = arrays["query"].dtype, case.order, (*case.batch, case.queries)
    inputs = {name: Guarded(x, order, case.gap) for name, x in arrays.items() if name != "mask"}
    if "mask" in arrays:
        inputs["mask"] = Guarded(arrays["mask"])
        inputs["mask"].array = np.broadcast_to(inputs["mask"].array, (*rows, case.keys))
    empty = lambda *shape: Guarded(np.zeros(shape, dtype), order, case.gap)
    out, total = empty(*rows, case.value_width), Guarded(np.zeros((*rows, 1), dtype))
    grads = {
        name: empty(*arrays[of].shape)
        for name, of, need in zip(("of_query", "of_key", "of_value"), ("query", "key", "value"), case.needs, strict=True)
        if need
    }
    places = {**inputs, "out": out, "log_total": total, **grads}
    layouts: dict[str, Any] = {name: held.layout(i) for i, (name, held) in enumerate(places.items())}
    mask = {"b": "i8", "f": "float"}.get(arrays["mask"].dtype.kind, "") if "mask" in arrays else "i8"
    mask = "double" if "mask" in arrays and arrays["mask"].dtype == np.float64 else mask
    spec = Attention(
        case.batch,
        case.queries,
        case.keys,
        case.width,
        case.value_width,
        case.scale,
        causal=case.causal,
        group=case.group,
        scalar=case.scalar,
        mask_scalar=mask,
        **layouts,
    )
    memory = [held.memory[EDGE:] for held in places.values()]
    target = narrow(bits)
    for emit, written in ((emit_forward, ("out", "log_total")), (emit_backward, tuple(grads))):
        module = Module(target.features)
        kernel = emit(module, "attend", spec, len(memory), target)
        assert kernel is not None
        for held in places.values():
            held.before = held.memory.copy()
        run(module, kernel, memory, threads)
        for name, held in places.items():
            held.check(name in written)
    return {name: places[name].array for name in ("out", "log_total", *grads)}


def compare(case: Case, found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    tolerance = 3e-5 if case.scalar == "float" else 1e-12
    for name, x in found.items():
        np.testing.assert_allclose(x, right[name], rtol=tolerance, atol=tolerance, err_msg=name)


CASES = {
    "one of everything": Case((), 1, 1, 1, 1),
    "odd": Case((3,), 5, 7, 3, 5),
    "a vector and one": Case((2, 1), 17, 33, 17, 15),
    "causal": Case((2, 2), 40, 40, 8, 16, causal=True),
    "causal, odd": Case((2,), 37, 37, 20, 9, causal=True),
    "causal, more keys": Case((2,), 9, 50, 8, 8, causal=True),
    "causal, more queries": Case((2,), 50, 9, 8, 8, causal=True),
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
    "many heads": Case((4, 5), 33, 33, 32, 32, causal=True),
    "many heads, whole tiles": Case((4, 5), 64, 64, 16, 32, causal=True, order=(0, 2, 1, 3)),
    "many heads, fewer queries": Case((4, 5), 16, 40, 16, 16, causal=True),
    "many groups, whole tiles": Case((4, 10), 32, 24, 16, 16, group=2),
    "no query": Case((2,), 20, 20, 8, 8, needs=(False, True, True)),
    "no key": Case((2,), 20, 20, 8, 8, needs=(True, False, True), causal=True),
    "values only": Case((2,), 20, 20, 8, 8, needs=(False, False, True)),
    "queries only": Case((2,), 20, 20, 8, 8, needs=(True, False, False)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_float64(name: str) -> None:
    case = CASES[name]
    arrays = arrays_of(case)
    compare(case, native(case, arrays), expected(case, arrays))


@pytest.mark.parametrize("bits", [32, 64, 128, 256])
@pytest.mark.parametrize("name", ["odd", "causal, odd", "bool mask, causal", "groups", "columns apart", "double"])
def test_any_width_of_vectors(name: str, bits: int) -> None:
    case = CASES[name]
    arrays = arrays_of(case)
    compare(case, native(case, arrays, bits), expected(case, arrays))
