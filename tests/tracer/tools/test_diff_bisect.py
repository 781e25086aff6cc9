"""`diff` finds what is wrong in native code: code generation is broken on purpose, and the op and its line are named."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.traced import seen
from tapejit import nn
from tapejit.codegen.llvm.runtime import jit
from tapejit.codegen.lowering import op_lowering as lower
from tapejit.codegen.schedule import fusion as fuse
from tapejit.codegen.schedule.element_reader import ElementReader
from tapejit.tracer.tools.diff.ulps import errors, gap, moved, noise_of


@pytest.fixture(autouse=True)
def native(monkeypatch) -> None:
    monkeypatch.setenv("TAPEJIT_BACKEND", "llvm")
    monkeypatch.setenv("TAPEJIT_CACHE", "0")  # what is wrong here is kept nowhere


def here(offset: int = 0) -> str:
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno + offset}"


def wrong_function(monkeypatch, name: str, other: str) -> None:
    """Wherever loops would compute one function of an element, they compute another."""
    right = lower.operation

    def operation(exprs, op, result, common, args, node):
        return right(exprs, other if op == name else op, result, common, args, node)

    monkeypatch.setattr(lower, "operation", operation)


def wrong_where_fused(monkeypatch, name: str) -> None:
    """Make readers of an op's result that is not in memory read another number."""
    right = ElementReader.read

    def read(self, value, place, guard):
        found = right(self, value, place, guard)
        maker = self.schedule.producer.get(value)
        if maker is None or maker[0].op.name != name or value in self.schedule.visible:
            return found
        return self.exprs.op("add", found.dtype, found, self.exprs.const(1.0, found.dtype))

    monkeypatch.setattr(ElementReader, "read", read)


class Training:
    """A model with everything that has a state."""

    def __init__(self, width: int = 8) -> None:
        tj.manual_seed(0)
        layers = (nn.Linear(4, width), nn.GELU(), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1))
        self.model = nn.Sequential(*layers)
        self.optimizer = tj.optim.AdamW(self.model.parameters(), lr=0.01)
        self.x, self.y = tj.randn(5, 4), tj.randn(5, 1)
        self.lines: dict[str, str] = {}

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        self.lines["forward"] = here(-1)
        loss.backward()
        self.lines["backward"] = here(-1)
        self.optimizer.step()
        self.lines["update"] = here(-1)
        return loss

    def state(self):
        grads = [p.grad for p in self.model.parameters()]
        learned = repr(self.optimizer.state_dict())
        return seen([dict(self.model.state_dict()), grads, learned, tj.get_rng_state(), self.x, self.y])


@pytest.mark.parametrize("calls", [0, 4])
def test_a_training_step_agrees_and_is_undone(calls) -> None:
    t = Training()
    step = tj.compile(t.step)
    for _ in range(calls):
        step(t.x, t.y)
    before = t.state()
    found = tj.diff(step, t.x, t.y)
    assert found.agrees and found.native == found.ops > 20 and found.ulps < 20 and not found.notes
    said = f"eager and compiled agree: {found.ops} ops, {found.ops} of them in native code, the largest error is "
    assert str(found).startswith(said) and str(found).endswith(" ulps")
    assert t.state() == before


def test_a_wrong_function_in_the_forward_pass(monkeypatch) -> None:
    t = Training()
    before = t.state()
    wrong_function(monkeypatch, "erf", "tanh")
    found = tj.diff(t.step, t.x, t.y)
    assert t.state() == before
    t.step(t.x, t.y)
    assert found.op == "gelu" and found.line.endswith(t.lines["forward"])
    assert found.ulps > 1e3 and found.compiled[found.index] != found.eager[found.index]
    text = str(found)
    assert "only in native code: the reference program is right" in text and str(found.compiled[found.index]) in text


def test_a_wrong_update_of_memory(monkeypatch) -> None:
    t = Training()
    before = t.state()
    wrong_function(monkeypatch, "sqrt", "abs")
    t.model[2] = nn.Identity()  # which has a root of its own
    found = tj.diff(t.step, t.x, t.y)
    t.model[2] = nn.BatchNorm1d(8)
    assert t.state() == before
    t.step(t.x, t.y)
    assert found.op == "adam_update" and found.line.endswith(t.lines["update"])


def test_a_wrong_gradient(monkeypatch) -> None:
    w = tj.tensor([1.0, 2.0, 3.0], requires_grad=True)
    lines = []

    def step(x):
        loss = ((w * x).sin() * 2).sum()
        loss.backward()
        lines.append(here(-1))
        return loss

    wrong_function(monkeypatch, "cos", "exp")
    found = tj.diff(step, tj.tensor([1.0, 2.0, 3.0]))
    assert w.grad is None
    step(tj.ones(3))
    assert found.op == "cos" and found.line.endswith(lines[0]) and found.index == (2,)


def test_the_first_of_several_lines_is_named(monkeypatch) -> None:
    def step(x):
        a = x.exp()
        b = a.flip(0)
        c = (b * x).log()
        return c.sum(), here(-2)

    line = step(tj.ones(3))[1]

    def as_it_is(reader, node, which, place, guard):
        return reader.get(node.operands[0], place, guard)

    monkeypatch.setitem(lower.DEFINITIONS, "flip", as_it_is)
    found = tj.diff(step, tj.tensor([1.0, 2.0, 3.0]))
    assert found.op == "flip" and found.line.endswith(line) and found.eager.tolist() == found.compiled.tolist()[::-1]


def test_a_wrong_view(monkeypatch) -> None:
    right = lower.DEFINITIONS["slice"]

    def sliced(reader, node, which, place, guard):
        return right(reader, node, which, (place[0] * 0, *place[1:]), guard)

    monkeypatch.setitem(lower.DEFINITIONS, "slice", sliced)
    found = tj.diff(lambda x: (x[1:3] * 2).sum(), tj.arange(4.0))
    assert found.op == "slice" and found.compiled.tolist() == [1, 1]


def test_what_is_wrong_only_if_it_is_fused(monkeypatch) -> None:
    w = tj.tensor([1.0, 2.0], requires_grad=True)
    before = w.tolist()

    def step(x):
        a = (x * w).exp()
        b = a.sqrt() + x
        line = here(-1)
        (b * b).sum().backward()
        with tj.no_grad():
            w.sub_(w.grad)
        return b, line

    wrong_where_fused(monkeypatch, "exp")
    found = tj.diff(step, tj.tensor([0.5, 0.25]))
    assert w.grad is None and w.tolist() == before
    assert found.op == "sqrt" and found.line.endswith(step(tj.ones(2))[1]), str(found)
    assert "only where ops are fused" in str(found)


def test_what_is_wrong_only_if_it_is_fused_with_a_reduction(monkeypatch) -> None:
    def step(x, y):
        for _ in range(4):
            x = x * 1.5 + y
        a = x.tanh()
        total = a.sum(1)
        line = here(-1)
        for _ in range(4):
            total = total * 0.5 - 1
        return total, line

    given = tj.randn(3, 5), tj.randn(3, 5)
    line = step(*given)[1]
    wrong_where_fused(monkeypatch, "tanh")
    found = tj.diff(step, *given)
    assert found.op == "sum" and found.line.endswith(line) and "only where ops are fused" in str(found)


def test_sums_that_cancel_out_are_no_faults() -> None:
    tj.manual_seed(1)
    x = tj.randn(64, 33)
    y = tj.cat([x, -x])[tj.randperm(128)]

    def step(a, b):
        return (a * b).sum(), a.sum(0), (a.T @ b).sum(), ((a - a.mean(0)) / a.std(0)).mean(0), b.var()

    found = tj.diff(step, y, y.flip(1))
    assert found.agrees and found.native, str(found)


def test_an_op_that_refuses_what_eager_accepts(monkeypatch) -> None:
    def step(table, i):
        return table[i] * 2, here()

    i = tj.tensor([0, 2])
    line = step(tj.ones(3, 2), i)[1]
    right = fuse.check_exprs
    monkeypatch.setattr(fuse, "check_exprs", lambda exprs, x, attrs: right(exprs, x, {**attrs, "size": 1}))
    found = tj.diff(step, tj.ones(3, 2), i)
    assert found.op == "index" and found.line.endswith(line) and found.index is None and "refuses" in str(found)


def test_the_backend_is_the_functions_own(monkeypatch) -> None:
    wrong_function(monkeypatch, "exp", "abs")
    x = tj.ones(3)
    assert tj.diff(tj.compile(lambda x: x.exp(), backend="plain"), x).agrees
    assert tj.diff(tj.compile(lambda x: x.exp(), backend="llvm"), x).op == "exp"
    monkeypatch.setenv("TAPEJIT_BACKEND", "plain")
    assert tj.diff(lambda x: x.exp(), x).agrees
    assert not tj.diff(tj.compile(nn.Softplus(), backend="llvm"), x).agrees


def test_code_that_cannot_be_generated_is_said(monkeypatch) -> None:
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(jit, "Batch", fail)
    found = tj.diff(lambda x: x.exp(), tj.ones(3))
    assert found.agrees and not found.native and "without native code: no compiler today" in str(found)


def test_segments_each_have_a_program(monkeypatch) -> None:
    def step(x):
        y = x * 2
        if y.sum().item() > 0:
            y = y.atan()
        return y, here(-1)

    line = step(tj.ones(3))[1]
    assert tj.diff(step, tj.ones(3)).native == 3
    wrong_function(monkeypatch, "atan", "sin")
    found = tj.diff(step, tj.ones(3))
    assert found.op == "atan" and found.line.endswith(line) and "differ first in op 3" in str(found)


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16, tj.float64])
def test_other_dtypes(monkeypatch, dtype) -> None:
    x = tj.linspace(-2, 2, 40).to(dtype).reshape(8, 5)
    assert tj.diff(lambda x: (F.softmax(x * 3, -1) @ x.T).exp().sum(), x).agrees
    wrong_function(monkeypatch, "exp", "abs")
    assert tj.diff(lambda x: (x * 3).exp().sum(), x).op == "exp"


def test_noise_is_how_far_rounding_moves_a_result() -> None:
    x = np.float32([1e8, 1.0, -1e8])
    (noise,) = noise_of(lambda given: [given[0].sum(keepdims=True)], [x], [x.sum(keepdims=True)])
    assert noise in (8, 16)  # a unit in the last place of 1e8 is 8
    assert errors(np.float32([1.0]), np.float32([9.0]), noise)[0] <= 1 < errors(np.float32([1.0]), np.float32([9.0]))[0]
    assert gap(np.float32([1, np.nan]), np.float32([1, np.nan])) == 0 and gap(np.float32([1]), np.float32([np.inf])) == np.inf
    other = moved(np.float32([0, 1, np.inf, np.nan]), np.random.default_rng(0))
    assert other[0] == 0 and abs(other[1] - 1) < 2e-7 and other[1] != 1 and other[2] == np.inf and np.isnan(other[3])
