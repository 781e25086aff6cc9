"""The memory plan: buffers that live at the same time never share memory, and none is larger than it has to be."""

from __future__ import annotations

import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support import shadow
from tapejit import nn
from tapejit.codegen.llvm.build import NativeBuild
from tapejit.codegen.nests.kernels import has_half_kernel, has_own_kernel, make_launches, make_schedule
from tapejit.codegen.prepare.pipeline import primitive_passes
from tapejit.codegen.schedule.memory_plan import ALIGNMENT, Lifetime, MemoryPlan, plan_memory
from tapejit.tracer.execute import tiering
from tapejit.tracer.graph.ir import Graph
from tapejit.tracer.graph.passes import run_passes


@st.composite
def lives(draw: Any) -> list[Lifetime]:
    rows = draw(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 6)), max_size=25))
    return [Lifetime(f"b{i}", size, first, first + length) for i, (size, first, length) in enumerate(rows)]


@given(lives())
def test_what_lives_at_the_same_time_shares_nothing(lives: list[Lifetime]) -> None:
    arena = plan_memory(lives)
    for a, b in combinations(lives, 2):
        if a.meets(b):
            assert not arena.overlap(a.name, b.name), f"{a} and {b}\n{arena}"
            begin, end = arena.offsets[a.name], arena.offsets[a.name] + a.size
            assert end <= arena.offsets[b.name] or arena.offsets[b.name] + b.size <= begin


@given(lives())
def test_buffers_are_aligned_and_inside(lives: list[Lifetime]) -> None:
    arena = plan_memory(lives)
    assert set(arena.offsets) == {x.name for x in lives}
    for x in lives:
        assert arena.offsets[x.name] % ALIGNMENT == 0
        assert x.size <= arena.sizes[x.name]
        assert arena.offsets[x.name] + arena.sizes[x.name] <= arena.size


@given(lives())
def test_no_more_memory_than_without_sharing(lives: list[Lifetime]) -> None:
    arena = plan_memory(lives)
    assert arena.size <= sum(arena.sizes.values())
    busiest = max((sum(arena.sizes[x.name] for x in lives if x.first <= t <= x.last) for t in range(20)), default=0)
    assert arena.size >= busiest


@given(lives(), st.integers(0, 3))
def test_heirs_are_where_the_others_were_or_elsewhere(lives: list[Lifetime], which: int) -> None:
    """A buffer that another one may take over shares all of its memory with it, or none, and with nobody else."""
    pairs = [(a, b) for a in lives for b in lives if a is not b and a.last == b.first and a.first < b.first < b.last]
    given = frozenset((a.name, b.name) for a, b in pairs if a.size == b.size or which)
    arena = plan_memory(lives, given)
    for a, b in combinations(lives, 2):
        related = (a.name, b.name) in given or (b.name, a.name) in given
        if a.meets(b) and arena.overlap(a.name, b.name):
            assert related, f"{a} and {b}\n{arena}"
            assert a.size == b.size
            assert arena.offsets[a.name] == arena.offsets[b.name]


@st.composite
def wholes(draw: Any) -> list[Lifetime]:
    """Buffers that others are parts of, one after the other in it, each with a life of its own."""
    found = []
    for i, rows in enumerate(draw(st.lists(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 12), st.integers(0, 6)))))):
        parts, at = [], 0
        for k, (size, first, length) in enumerate(rows):
            parts.append((at, Lifetime(f"w{i}p{k}", size, first, first + length)))
            at += size
        if parts:
            ends = [x.first for _, x in parts], [x.last for _, x in parts]
            found.append(Lifetime(f"w{i}", at, min(ends[0]), max(ends[1]), tuple(parts)))
    return found


@given(lives(), wholes())
def test_parts_stand_in_their_whole_and_share_nothing_while_they_live(lives: list[Lifetime], wholes: list[Lifetime]) -> None:
    arena = plan_memory([*lives, *wholes])
    for whole in wholes:
        assert all(arena.offsets[x.name] == arena.offsets[whole.name] + at for at, x in whole.parts)
        assert arena.offsets[whole.name] + whole.size <= arena.size
    pieces = [*lives, *[x for whole in wholes for _, x in whole.parts]]
    for a, b in combinations(pieces, 2):
        if a.meets(b) and a.size and b.size:
            begin, end = arena.offsets[a.name], arena.offsets[a.name] + a.size
            assert end <= arena.offsets[b.name] or arena.offsets[b.name] + b.size <= begin, f"{a} and {b}\n{arena}"


def test_memory_of_a_part_is_free_before_it_and_after_it() -> None:
    parts = ((0, Lifetime("p", 640, 0, 5)), (640, Lifetime("q", 640, 4, 5)))
    arena = plan_memory([Lifetime("whole", 1280, 0, 5, parts), Lifetime("early", 640, 0, 3)])
    assert arena.size == 1280
    assert arena.offsets["early"] == arena.offsets["q"]


def test_an_heir_takes_over() -> None:
    lives = [Lifetime("a", 640, 0, 1), Lifetime("b", 640, 1, 2), Lifetime("c", 640, 2, 3)]
    assert plan_memory(lives).size == 1280
    assert plan_memory(lives, frozenset({("a", "b")})).size == 1280  # c is beside b
    assert plan_memory(lives, frozenset({("a", "b"), ("b", "c")})).size == 640


@given(lives())
def test_plans_repeat(lives: list[Lifetime]) -> None:
    assert plan_memory(lives).offsets == plan_memory(lives).offsets


def test_buffers_one_after_the_other_share() -> None:
    arena = plan_memory([Lifetime("a", 640, 0, 1), Lifetime("b", 640, 2, 3), Lifetime("c", 64, 1, 2)])
    assert arena.size == 704
    assert arena.overlap("a", "b")
    assert str(arena).startswith("704 bytes")


# ---- whole steps


def eager_peak(graph: Graph) -> int:
    """Bytes that are alive at once, beside inputs, where each op's result is an array that lives until its last use."""
    last = {x: i for i, node in enumerate(graph.nodes) for x in node.values()}
    for o in graph.outputs:
        last[o.value] = len(graph.nodes)
    sizes = {name: graph.forms[name].nbytes for node in graph.nodes if not node.op.view for name in node.results}
    alive: set[str] = set()
    peak = 0
    for i, node in enumerate(graph.nodes):
        alive.update(name for name in node.results if name in sizes)
        peak = max(peak, sum(sizes[x] for x in alive))
        alive = {x for x in alive if last.get(x, -1) > i or x in {o.value for o in graph.outputs}}
    return peak


def training_graph(model: Any, x: Any, classes: int) -> Graph:
    opt = tj.optim.AdamW(model.parameters(), lr=1e-3)
    y = tj.arange(x.shape[0]) % classes

    def step(x: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return max(shadow.recorded(step, x, calls=6), key=lambda g: len(g.nodes))


def test_the_arena_of_a_training_step_is_smaller_than_what_eager_execution_holds() -> None:
    wide = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    table = nn.Sequential(
        nn.Embedding(50, 32), nn.Flatten(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 50)
    )
    cases = [(wide, tj.randn(64, 64), 10), (table, tj.from_numpy(np.arange(256).reshape(32, 8) % 50), 50)]
    for model, x, classes in cases:
        graph = training_graph(model, x, classes)
        assert graph.write_backs
        arena = NativeBuild(graph, 200).arena
        assert 0 < arena.size <= eager_peak(graph), f"{arena.size} and {eager_peak(graph)}"


def test_larger_elements_do_not_take_over_memory() -> None:
    """Half of the floats become as many bytes of doubles: what is written first would be read later."""
    weight = tj.randn(64, 64)

    def function(x: Any) -> Any:
        half = (x @ weight).reshape(-1)[:2048].double().exp().reshape(32, 64)
        return half @ half.t()

    build = NativeBuild(shadow.recorded(function, tj.randn(64, 64))[0], 50)
    kinds = {name: build.forms[name].itemsize for name in build.arena.offsets if name in build.forms}
    assert sorted(set(kinds.values())) == [4, 8]
    for step in build.steps:
        names = [n for n in step.reads | step.writes if n in kinds]
        for a, b in combinations(names, 2):
            assert kinds[a] == kinds[b] or not build.arena.overlap(a, b)


def test_steps_that_overlap_in_time_use_other_memory() -> None:
    """The lives that programs are planned with are right: what a step reads was not overwritten since it was written."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
    graph = training_graph(model, tj.randn(12, 16), 5)
    work = run_passes(primitive_passes(has_own_kernel, has_half_kernel), graph)
    steps = make_launches(make_schedule(work))
    arena: MemoryPlan = NativeBuild(graph, 200).arena
    written: dict[str, int] = {}
    for i, step in enumerate(steps):
        for name in step.reads & set(arena.offsets):
            between = [x for x, at in written.items() if written[name] < at < i and x != name]
            assert not any(arena.overlap(name, x) for x in between), f"step {i} reads {name}, which is gone"
        written.update(dict.fromkeys(step.writes & set(arena.offsets), i))


@pytest.mark.parametrize("pure", [True, False])
def test_a_step_allocates_nothing_but_what_it_hands_out(pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations are in the arena, which was there before, and gradients that nobody looks at where they were."""
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))  # native code, whatever a busy machine measures
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 8))
    optimizer = tj.optim.AdamW(model.parameters())

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    compiled = tj.compile(step, pure=pure, backend="llvm")
    x, y = tj.randn(256, 64), tj.randint(0, 8, (256,))
    for _ in range(20):
        compiled(x, y)
    assert compiled.skipped_calls  # both are without Python by now
    tracemalloc.start()  # NumPy tells it of its arrays
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        compiled(x, y)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 8192 < 256 * 512 * 4  # a loss and a few objects; one activation would be half a megabyte
