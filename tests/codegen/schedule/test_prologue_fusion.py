"""Operands that matmuls compute while they pack them: as in eager execution, whatever they are and however they lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from tapejit import nn
from tapejit.codegen.llvm import build as native_module
from tapejit.codegen.llvm import prologue_cost
from tapejit.codegen.llvm.build import NativeBuild
from tapejit.codegen.llvm.gemm.prologue import prologue_nests
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.runtime import jit


@pytest.fixture
def always(monkeypatch: Any) -> None:
    """Whatever may be computed while it is packed is, be it worth it or not."""
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    for name, value in {"MIN_OPERAND_BYTES": 0, "MIN_DIM": 1, "WRITE_NS": 1e9, "PACK_NS": 0.0}.items():
        monkeypatch.setattr(prologue_cost, name, value)
    monkeypatch.setattr(prologue_cost.PrologueCost, "verdict", stored_or_not(prologue_cost.PrologueCost.verdict))
    add = jit.Batch.add
    monkeypatch.setattr(jit.Batch, "add", lambda batch, text, opt=0, now=True: add(batch, text, 0, now))


def stored_or_not(verdict: Any) -> Any:
    return lambda self, node, x, e, views, forms, readers, stored: verdict(
        self, node, x, e, views, forms, readers, lambda leaf: True
    )


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    with shadow.watching(monkeypatch) as found:
        yield found


def values(*shape: int, dtype: Any = np.float32) -> Any:
    return tj.from_numpy(shadow.margined(np.random.default_rng(sum(shape)).uniform(-2, 2, shape).astype(dtype)))


def run(function: Callable[[], Any]) -> None:
    compiled = tj.compile(function)
    for _ in range(3):
        compiled()


def computed(seen: Any) -> int:
    """Operands that were computed while they were packed."""
    return sum(len(x.computed) for p in seen.programs for x in p.launches)


KINDS: dict[str, Callable[[Any], Any]] = {
    "scaled": lambda x: x * 3 + 1,
    "masked": lambda x: tj.where(x > 0.5, x, -x),
    "gelu": F.gelu,
    "normed": lambda x: (x - 0.25) / (1 + x[..., :1].abs()),
    "by column": lambda x: x * x[..., :1, :],
    "of two": lambda x: x * x.flip(-1),
}


def matmuls(x: list[Any], kind: Callable[[Any], Any], left: Any, right: Any) -> list[Any]:
    """An operand on either side, as it is and turned; each is another one, as nobody else may read it."""
    m, k = x[0].shape[-2:]
    a, b, c, d = (kind(t) for t in x)
    return [a @ right[:k], b.mT @ right[:m], left[:, :m] @ c, left[:, :k] @ d.mT]


CASES = [(np.float32, (5, 3)), (np.float32, (16, 17)), (np.float32, (64, 50)), (np.float64, (33, 15)), (np.float64, (7, 9))]


@pytest.mark.parametrize(("dtype", "shape"), CASES, ids=str)
def test_operands_on_either_side(seen: Any, always: Any, monkeypatch: Any, shape: tuple[int, int], dtype: Any) -> None:
    seen.tolerance = 5
    shadow.guard(seen, monkeypatch)
    left, right = values(19, 64, dtype=dtype), values(64, 31, dtype=dtype)
    given = [[values(*shape, dtype=dtype) + i for i in range(4)] for _ in KINDS]
    run(lambda: [matmuls(x, kind, left, right) for x, kind in zip(given, KINDS.values(), strict=True)])
    assert computed(seen) >= 4 * (len(KINDS) - 1)


@pytest.mark.parametrize("bits", [128, 256])
def test_widths_of_vectors(seen: Any, always: Any, monkeypatch: Any, bits: int) -> None:
    seen.tolerance = 5
    monkeypatch.setattr(native_module, "host", lambda: replace(host(), bits=bits))
    left, right = values(9, 20), values(20, 13)
    run(lambda: matmuls([values(20, 18) + i for i in range(4)], F.gelu, left, right))
    assert computed(seen) >= 3


@pytest.mark.parametrize("kind", [tj.float16, tj.bfloat16], ids=str)
def test_halves(seen: Any, always: Any, kind: Any) -> None:
    """Matmuls of halves, and of what is rounded to halves and back: weights and activations of mixed precision."""
    seen.tolerance = 3
    left, right = values(9, 20), values(20, 13)
    x = [values(20, 18) + i for i in range(8)]
    run(
        lambda: [
            matmuls(x[:4], lambda t: (t * 2).to(kind), left.to(kind), right.to(kind)),
            matmuls(x[4:], lambda t: t.to(kind).float(), left, right),
        ]
    )
    assert computed(seen) >= 7


def test_batches(seen: Any, always: Any) -> None:
    seen.tolerance = 5
    x = [values(3, 20, 18) + i for i in range(6)]
    flat, each, wide = values(18, 13), values(3, 18, 13), values(2, 3, 13, 20)
    run(
        lambda: [
            F.gelu(x[0]) @ flat,
            F.gelu(x[1]) @ each,
            x[2].exp().mT @ x[3],
            wide @ (x[4] * 2),
            (x[5] + 1).reshape(12, 5, 18) @ flat,
        ]
    )
    assert computed(seen) >= 4


def test_rows_that_are_picked(seen: Any, always: Any) -> None:
    table, weight = values(11, 18), values(18, 13)
    words = tj.tensor(np.random.default_rng(0).integers(0, 11, (4, 6)))
    run(lambda: F.embedding(words, table) @ weight)
    assert computed(seen) == 1


def test_nothing_is_computed_of_nothing(seen: Any, always: Any) -> None:
    run(lambda: [(values(0, 4) * 2) @ values(4, 3), (values(4, 0) * 2) @ values(0, 3), (values(2, 0, 4) + 1) @ values(4, 3)])


def step_of(model: Any, optimizer: Any, x: Any) -> Callable[[], Any]:
    def step() -> Any:
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


class Scaled(nn.Module):
    """Weights that a matmul computes, and that the step then overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(values(18, 20))
        self.second = nn.Parameter(values(20, 13))

    def forward(self, x: Any) -> Any:
        return tj.tanh(x @ (self.first * 2)) @ (self.second - 1)


@pytest.mark.parametrize(
    "model", [Scaled, lambda: nn.Sequential(nn.LayerNorm(18), nn.Linear(18, 20), nn.GELU(), nn.Linear(20, 5))]
)
def test_whole_steps(seen: Any, always: Any, monkeypatch: Any, model: Any) -> None:
    seen.tolerance = 20
    shadow.guard(seen, monkeypatch)
    made = model()
    run(step_of(made, tj.optim.SGD(made.parameters(), lr=0.1), values(24, 18)))
    assert computed(seen)


def test_threads_change_no_bit(always: Any, monkeypatch: Any) -> None:
    x, left, right = [values(300, 90) + i for i in range(4)], values(200, 300), values(300, 150)
    assert len(shadow.bits_by_threads(monkeypatch, lambda: matmuls(x, F.gelu, left, right))) == 1


# ---- which


def built(function: Callable[..., Any], *args: Any) -> NativeBuild:
    graphs = shadow.recorded(function, *args)
    return NativeBuild(max(graphs, key=lambda g: len(g.nodes)), 500)


def test_a_prologue_as_loops() -> None:
    """Halves that are packed in any case are made of floats on the way; the sums of rows of a norm are there already."""
    x, weight = tj.randn(512, 256), tj.randn(256, 384)

    def function(x: Any, weight: Any) -> Any:
        return x @ weight.bfloat16().float()

    build = built(function, x, weight)
    (step,) = build.steps
    (nest,) = prologue_nests(step, build.forms).values()
    assert str(nest) == (
        """\
for r in range(256):
    for c in range(384):  # vectorised
        v1[c + 384*r] = float32(bfloat16(x0[c + 384*r]))
"""
    )  # the weight is the first tensor that an op reads
    assert len(step.writes) == 1
    assert build.arena.size <= build.made[0].kernel.shared + 64
    (decision,) = [d for d in build.decisions if "as a prologue" in d]
    assert re.search(r"fuses it as a prologue, computed while packing, score \d+ ns: saves writing 393216 bytes", decision)


def test_what_is_not_packed_is_in_memory() -> None:
    """Rows of a left operand are read where they are: to pack them costs as much as to write them."""
    build = built(lambda x, w: F.gelu(x * 2) @ w, tj.randn(512, 256), tj.randn(256, 384))
    assert not any(x.computed for x in build.steps)
    assert any("does not fuse it as a prologue, score -" in d for d in build.decisions)


def test_small_matmuls_and_what_others_read_are_as_they_were() -> None:
    small = built(lambda x, w: x @ (w * 2), tj.randn(8, 8), tj.randn(8, 8))
    assert not any(x.computed for x in small.steps)
    assert not any("as a prologue" in d for d in small.decisions)

    def both(x: Any, w: Any) -> Any:
        scaled = w * 2
        return x @ scaled, scaled.sum(0)

    assert not any(x.computed for x in built(both, tj.randn(512, 256), tj.randn(256, 384)).steps)
