"""Sums of matmuls as one matmul: weights that are used again and again, in loops and in tied layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support import shadow
from tapejit import nn
from tapejit.codegen.llvm.build import NativeBuild
from tapejit.codegen.nests.kernels import Launch
from tapejit.codegen.prepare.concat_layout import CONCAT_LAYOUT
from tapejit.eager.core.dispatch import apply
from tapejit.eager.core.op import PRIMITIVES


@pytest.fixture
def seen(monkeypatch: Any) -> Any:
    """Everything that is replayed also runs natively, and is compared."""
    with shadow.watching(monkeypatch) as found:
        yield found


def loop(cell: Any, x: Any) -> Any:
    """A step of training of a cell over the first dim."""
    opt = tj.optim.SGD(cell.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        h = tj.zeros(x.shape[1], cell.hidden_size)
        for t in range(x.shape[0]):
            h = cell(x[t], h)
        loss = (h * h).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step, (x,)


def lstm(x: Any, width: int) -> Any:
    cell = nn.LSTMCell(x.shape[-1], width)

    def step(x: Any) -> Any:
        state = tj.zeros(x.shape[1], width), tj.zeros(x.shape[1], width)
        for t in range(x.shape[0]):
            state = cell(x[t], state)
        loss = (state[0] * state[1]).sum()
        cell.zero_grad()
        loss.backward()
        return [loss, *[p.grad for p in cell.parameters()]]

    return step, (x,)


def tied(x: Any, times: int) -> Any:
    """One layer, several times; its weight is read turned, too."""
    weight = tj.randn(24, 24).requires_grad_()
    bias = tj.zeros(24).requires_grad_()

    def step(x: Any) -> Any:
        h = x
        for _ in range(times):
            h = (h @ weight + bias).tanh()
        ((h @ weight.T).sum()).backward()
        found = [weight.grad, bias.grad]
        weight.grad = bias.grad = None
        return found

    return step, (x,)


STEPS = {
    "GRU": lambda: loop(nn.GRUCell(8, 24), tj.randn(5, 16, 8)),
    "RNN": lambda: loop(nn.RNNCell(8, 24), tj.randn(4, 16, 8)),
    "odd sizes": lambda: loop(nn.GRUCell(3, 7), tj.randn(3, 5, 3)),
    "one row": lambda: loop(nn.GRUCell(3, 7), tj.randn(3, 1, 3)),
    "two steps": lambda: loop(nn.RNNCell(8, 24), tj.randn(2, 16, 8)),
    "LSTM": lambda: lstm(tj.randn(4, 6, 5), 9),
    "tied layers": lambda: tied(tj.randn(10, 24), 4),
    "more rows than columns": lambda: tied(tj.randn(200, 24), 4),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(seen: Any, name: str) -> None:
    seen.tolerance = 5  # matmuls of matmuls, and sums over all rows
    step, given = STEPS[name]()
    compiled = tj.compile(step)
    for _ in range(4):
        compiled(*given)


@pytest.mark.parametrize("size", [6, 80])
def test_operands_that_are_overwritten_before_the_sum(seen: Any, size: int) -> None:
    """Operands that are concatenated later than they were multiplied have to be what they were then."""
    tj.manual_seed(0)
    a, b, c, d = (tj.randn(2, size) for _ in range(4))
    outer = lambda x, y: apply(PRIMITIVES["outer_sum"], (x, y))

    def function() -> Any:
        first = outer(b, a)
        a.mul_(0.5)
        late = c * a.mean()
        return first + outer(d, late)

    compiled = tj.compile(function)
    for _ in range(4):
        compiled()
    assert any(len(p.graph.write_backs) and len(p.graph.nodes) > 4 for p in seen.programs)  # all of it is one program


def build(name: str) -> NativeBuild:
    step, given = STEPS[name]()
    (graph, *_) = shadow.recorded(step, *given)
    return NativeBuild(graph, 100)


def matmuls(found: NativeBuild) -> list[Launch]:
    return [x for x in found.steps if x.kind == "matmul"]


def test_the_gradient_of_a_weight_in_a_loop_is_one_matmul() -> None:
    found = build("GRU")
    shapes = [found.forms[x.node.results[0]].shape for x in matmuls(found) if x.node is not None]
    assert shapes.count((72, 24)) == 1  # of weight_hh
    assert shapes.count((72, 8)) == 1  # of weight_ih
    assert sum("5 matmuls merged into one" in x for x in found.decisions) == 2
    assert sum("5 column sums merged into one" in x for x in found.decisions) == 2


def test_parts_stand_where_the_whole_is_and_nothing_else_does_meanwhile() -> None:
    found = build("GRU")
    assert found.blocks
    arena = found.arena
    for whole, parts in found.blocks.items():
        for x, at in parts:
            assert arena.offsets[x] == arena.offsets[whole] + at
        ends = [arena.offsets[x] + found.forms[x].nbytes for x, _ in parts]
        assert [arena.offsets[x] for x, _ in parts[1:]] == ends[:-1]
    related = {frozenset((whole, x)) for whole, parts in found.blocks.items() for x, _ in parts}
    names = list(arena.offsets)
    for i, a in enumerate(names):
        for b in names[:i]:
            if frozenset((a, b)) in related or a in found.blocks or b in found.blocks:
                continue
            (first, last), (begin, end) = arena.lives[a], arena.lives[b]
            if arena.overlap(a, b):
                assert last <= begin or end <= first


def test_operands_that_are_larger_than_matmuls_are_not_kept() -> None:
    """Matmuls are accumulated one after the other, each partial sum in the place of the one before."""
    found = build("more rows than columns")
    assert not any(node.op is CONCAT_LAYOUT for node in found.work.nodes)
    assert any("one after the other" in x for x in found.decisions)
    sums = {x for step in found.steps for x in step.writes if x in found.work.stored}
    assert len({found.arena.offsets[x] for x in sums}) == 1


def test_memory_does_not_grow_with_each_matmul() -> None:
    sizes = []
    for times in (3, 6):
        step, given = tied(tj.randn(200, 24), times)
        (graph, *_) = shadow.recorded(step, *given)
        sizes.append(NativeBuild(graph, 100).arena.size)
    assert sizes[1] - sizes[0] <= 3 * 200 * 24 * 4 * 2  # activations, and no weights


def test_without_a_sum_nothing_changes() -> None:
    weight = tj.randn(8, 8).requires_grad_()

    def step(x: Any) -> Any:
        (x @ weight).tanh().sum().backward()
        found, weight.grad = weight.grad, None
        return found

    (graph, *_) = shadow.recorded(step, tj.randn(4, 8))
    assert not NativeBuild(graph, 100).blocks


def test_values() -> None:
    """Against NumPy, in double precision."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4, 6)), rng.standard_normal((6, 6)) * 0.5

    def step(x: Any, w: Any) -> Any:
        h = tj.zeros(4, 6, dtype=tj.float64)
        for t in range(3):
            h = (x[t] + h @ w).tanh()
        (slope,) = tj.autograd.grad(h.sum(), [w])
        return slope

    compiled = tj.compile(step, backend="llvm")
    weight = tj.tensor(w).requires_grad_()
    for _ in range(4):
        found = compiled(tj.tensor(x), weight)
    states = [np.zeros((4, 6))]
    for t in range(3):
        states.append(np.tanh(x[t] + states[-1] @ w))
    wanted, pull = np.zeros((6, 6)), np.ones((4, 6))
    for t in reversed(range(3)):
        inner = pull * (1 - states[t + 1] ** 2)
        wanted += states[t].T @ inner
        pull = inner @ w.T
    assert np.allclose(found.numpy(), wanted, rtol=1e-12)
