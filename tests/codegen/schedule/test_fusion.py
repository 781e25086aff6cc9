"""Fusion into loop nests: the loops of softmax, norms, losses and optimizer updates, as text.

Names of values in between are replaced by t0, t1, ... in the order in which they appear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.codegen.loop_text import built, text
from tapejit import nn
from tapejit.codegen.nests.kernels import Launch


def steps(function: Callable[..., Any], *args: Any) -> list[Launch]:
    return built(function, *args).steps


@pytest.fixture
def x() -> Any:
    return tj.randn(6, 10)


# ---- rows


def test_softmax_is_one_kernel(x: Any) -> None:
    assert text(steps(lambda x: F.softmax(x, -1), x)) == (
        """\
for r in range(6):
    for c in range(10):  # vectorised
        t0 max= x0[c + 10*r]
    for c in range(10):  # vectorised
        t1 += exp(sub(x0[c + 10*r], t0))
    for c in range(10):  # vectorised
        t2[c + 10*r] = true_divide(exp(sub(x0[c + 10*r], t0)), t1)
"""
    )


def test_layer_norm_is_one_kernel(x: Any) -> None:
    weight, bias = tj.randn(10), tj.randn(10)
    assert text(steps(lambda x: F.layer_norm(x, (10,), weight, bias), x)) == (
        """\
for r in range(6):
    for c in range(10):  # vectorised
        t0 += x0[c + 10*r]
    for c in range(10):  # vectorised
        t1 += mul(sub(x0[c + 10*r], true_divide(t0, 10.0)), sub(x0[c + 10*r], true_divide(t0, 10.0)))
    for c in range(10):  # vectorised
        t2[c + 10*r] = add(mul(mul(sub(x0[c + 10*r], true_divide(t0, 10.0)), rsqrt(add(true_divide(t1, 10.0), 1e-05))), x1[c]), x2[c])
"""  # noqa: E501
    )


def test_layer_norm_and_its_gradients_are_two_kernels_at_most(x: Any) -> None:
    weight, bias = tj.randn(10).requires_grad_(), tj.randn(10).requires_grad_()

    def function(x: Any) -> Any:
        x = x.detach().requires_grad_()
        y = F.layer_norm(x, (10,), weight, bias)
        return tj.autograd.grad((y * y).sum(), [x, weight, bias])

    found = steps(function, x)
    assert len(found) <= 2
    assert all(s.kind == "nest" for s in found)
    columns = [t for s in found if s.nest is not None for stage in s.nest.stages for t in stage.columns]
    assert len(columns) == 2, "gradients of weight and bias are added up beside the rows"


def test_a_norm_with_the_loss_over_all_rows_and_all_gradients_is_one_kernel() -> None:
    """A sum over everything is one of rows first, so it stands beside the rest of what is done with a row."""
    x, weight = tj.randn(128, 300).requires_grad_(), tj.randn(300).requires_grad_()

    def step(x: Any, weight: Any) -> Any:
        loss = (x + F.gelu(F.layer_norm(x, (300,), weight))).mean()
        x.grad = weight.grad = None
        loss.backward()
        return loss

    large = [launch for launch in steps(step, x, weight) if launch.nest is not None and launch.nest.domain.rows > 1]
    assert len(large) == 1


def test_batch_norm_is_one_kernel(x: Any) -> None:
    assert text(steps(lambda x: F.batch_norm(x, None, None, training=True), x)) == (
        """\
for r in range(10):  # vectorised
    for c in range(6):
        t0 += x0[10*c + r]
    for c in range(6):
        t1 += mul(sub(x0[10*c + r], true_divide(t0, 6.0)), sub(x0[10*c + r], true_divide(t0, 6.0)))
    for c in range(6):
        t2[10*c + r] = add(mul(mul(sub(x0[10*c + r], true_divide(t0, 6.0)), rsqrt(add(true_divide(t1, 6.0), 1e-05))), float32(s0)), float32(s1))
"""  # noqa: E501
    )


def test_running_statistics_are_written_beside(x: Any) -> None:
    norm = nn.BatchNorm1d(10)

    def function(x: Any) -> Any:
        with tj.no_grad():
            return norm(x)

    count, norms = sorted(steps(function, x), key=lambda launch: len(launch.writes))
    assert len(count.writes) == 1, "the count of batches"
    assert len(norms.writes) == 3, "the result, and beside it mean and variance"


def test_cross_entropy_reads_its_logits_in_one_nest(x: Any) -> None:
    found = steps(lambda x, y: F.cross_entropy(x, y), x, tj.arange(6))
    assert all(s.kind == "nest" for s in found)
    assert len([s for s in found if "x0" in s.reads]) == 1
    assert len([s for s in found if s.check]) == 1, "labels are looked at first"
    nest = next(s.nest for s in found if "x0" in s.reads)
    assert nest is not None
    assert [t.op for t in nest.totals() if t.kind == "total"] == ["amax", "sum"]


# ---- matmuls


def test_what_follows_a_matmul_is_part_of_it(x: Any) -> None:
    layer = nn.Linear(10, 8)

    def function(x: Any) -> Any:
        with tj.no_grad():
            return F.gelu(layer(x))

    (step,) = steps(function, x)
    assert step.kind == "matmul"
    assert str(step.nest).count("erf(") == 1
    assert step.writes == set(step.buffers) - step.reads
    assert len(step.writes) == 1


def test_an_update_is_part_of_the_matmul_that_makes_the_gradient(x: Any) -> None:
    layer = nn.Linear(10, 8, bias=False)
    opt = tj.optim.SGD(layer.parameters(), lr=0.1)

    def function(x: Any) -> Any:
        loss = layer(x).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()

    matmuls = [s for s in steps(function, x) if s.kind == "matmul"]
    assert len(matmuls) == 2
    assert any(w.startswith("x") for w in matmuls[-1].writes), "the weights are written there"


# ---- updates


# that those of all parameters are one kernel is in `test_horizontal_fusion.py`


def test_elements_that_are_read_and_written_meet_once() -> None:
    """The averages and the parameter itself are one nest: each gradient is read once."""
    p = tj.randn(40)
    p.grad = tj.randn(40)
    opt = tj.optim.Adam([p.requires_grad_()], lr=0.01)
    (step,) = steps(lambda: opt.step())
    assert step.nest is not None
    assert len(step.writes) == 3
    assert len([e for e in step.nest.loads() if e.data[0] not in step.writes]) == 1


# ---- what costs nothing

VIEWS: dict[str, Callable[[Any], Any]] = {
    "reshape and permute": lambda x: x.reshape(2, 3, 10).permute(2, 0, 1).reshape(10, 6) * 2,
    "slices": lambda x: x[1:5, ::2].unsqueeze(0)[0, :, 1:] + 1,
    "expand": lambda x: x[:, :1].expand(6, 10) + x,
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)) * 2,
    "cat": lambda x: tj.cat([x, x * 2, x.flip(1)], 1).relu(),
    "split and stack": lambda x: tj.stack(x.chunk(2, 1)) - 1,
    "diagonal": lambda x: x.diagonal() * 3,
    "triangle": lambda x: x.tril() + x.triu(1),
    "roll": lambda x: x.roll(2, 1) * x,
    "windows": lambda x: x.unfold(1, 3, 2) * 2,
}


@pytest.mark.parametrize("name", VIEWS)
def test_movement_has_no_kernel_of_its_own(x: Any, name: str) -> None:
    found = steps(VIEWS[name], x)
    assert len(found) == 1, "\n".join(str(s.nest) for s in found)
    assert found[0].reads == {"x0"}


def test_pointwise_chains_are_one_kernel(x: Any) -> None:
    (step,) = steps(lambda x: tj.tanh(x * 1.5 + 0.3) * tj.sigmoid(x) + tj.exp(-x * x), x)
    assert step.nest is not None
    assert len(step.nest.loads()) == 1
    assert len(step.writes) == 1


def test_siblings_share_what_they_read(x: Any) -> None:
    found = steps(lambda x: (x.exp(), x.sin() + 1, x.sum(1), x.amax(1), (x * x).sum(0)), x)
    assert len(found) == 1
    assert len(found[0].writes) == 5


def test_what_a_matmul_reads_turned_is_written_along_rows(x: Any) -> None:
    joined, matmul = steps(lambda x: tj.cat([x * 2, x + 1], 1).t() @ x, x)
    assert joined.nest is not None and matmul.node is not None
    assert matmul.operands[matmul.node.operands[0]][2] == (1, 20)
    assert all(str(s.index) == "c + 20*r" for s in joined.nest.stores())


def test_a_chain_of_small_matmuls_is_not_worth_two_threads() -> None:
    def loop(x: Any, w: Any) -> Any:
        for _ in range(20):
            x = tj.tanh(x @ w)
        return x

    assert built(loop, tj.randn(32, 64), tj.randn(64, 64)).thread_speedup() < 1.1
    assert built(lambda x, w: tj.tanh(x @ w) @ w, tj.randn(512, 256), tj.randn(256, 256)).thread_speedup() > 1.6


# ---- decisions


def test_decisions_have_reasons(x: Any) -> None:
    build = built(lambda x: F.softmax(x @ x.t(), -1), x)
    assert build.decisions
    assert all(": " in line for line in build.decisions)


def test_a_norm_does_not_turn_the_loops_of_a_bias_gradient() -> None:
    """The sums of columns are made several at a time; their norm, which goes along them, is a kernel of its own."""
    x, w = tj.randn(32, 24), tj.randn(24, 20)

    def function() -> Any:
        g = (x @ w).sum(0)
        return g, (g * g).sum()

    found = [s.nest for s in steps(function) if s.nest is not None and "sum" in s.nest.ops]
    assert [n.vector for n in found if n.domain.rows == 20] == ["r"]
    assert len(found) == 2


def test_a_total_of_everything_has_lanes() -> None:
    """Beside elements that are kept too: one row, whose columns are computed several at a time, not one column."""

    def function(x: tj.Tensor) -> Any:
        kept = x * 3
        return kept, kept.tanh().sum()

    assert text(steps(function, tj.randn(8, 8))) == (
        "for r in range(1):\n"
        "    for c in range(64):  # vectorised\n"
        "        t0 += tanh(mul(x0[c], float32(s0)))\n"
        "        t1[c] = mul(x0[c], float32(s0))\n"
        "    t0[0] = t0\n"
    )
