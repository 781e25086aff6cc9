"""The profiler: times belong to the op and the line that took them. Known sleeps, and nothing that is compared with a clock but
them: a sleep is never shorter than asked for."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tapejit as tj
from support.scripts import SCRIPTS
from support.traced import seen
from tapejit.eager.core.op import PRIMITIVES, Op
from tapejit.tracer.execute import tiering
from tapejit.tracer.tools.observe_run import watched
from tapejit.tracer.tools.profiler import tables as profile_rows
from tapejit.tracer.tools.profiler.tables import Event

NAP = 0.05
HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The first line of this file that has this text at its end."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(text))


class Slow(tj.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: tj.Tensor) -> tj.Tensor:
        time.sleep(NAP)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: tj.Tensor) -> tj.Tensor:  # the backward of Slow
        time.sleep(2 * NAP)
        return g * 2


def slow_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """`exp` takes a nap."""
    run = PRIMITIVES["exp"]
    monkeypatch.setattr(run, "numpy_function", lambda x: (time.sleep(NAP), 2 * x)[1])


def test_a_slow_op_is_found_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_op(monkeypatch)
    x = tj.ones(3)
    with tj.profiler.profile() as prof:
        for _ in range(3):
            y = x + 1
            y = y.exp()  # the slow line
    rows = prof.key_averages()
    assert (rows[0].key, rows[0].kind, rows[0].count) == ("exp", "op", 3)
    assert rows[0].own >= 3 * NAP > rows.find("add").own
    lines = prof.by_line()
    assert lines[0].key.endswith(f"{HERE}:{line_of('# the slow line')}") and lines[0].own >= 3 * NAP
    assert prof.table().splitlines()[1].split()[-4:-2] == ["op", "exp"]
    assert f"{HERE}:{line_of('# the slow line')}" in prof.table(by="line").splitlines()[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_slow_function_is_found_forward_and_backward(compiled: bool) -> None:
    w = tj.ones(3, requires_grad=True)

    def step() -> None:
        Slow.apply(w).sum().backward()  # the call of Slow

    step = tj.compile(step) if compiled else step
    with tj.profiler.profile() as prof:
        for _ in range(4):
            step()
    assert w.grad is not None and w.grad.tolist() == [8.0] * 3
    forward, back = prof.key_averages().find("Slow"), prof.key_averages().find("SlowBackward")
    if forward.key == "SlowBackward":
        forward = next(r for r in prof.key_averages() if r.key == "Slow")
    assert forward.count == back.count == 4
    assert forward.own >= 4 * NAP and back.own >= 8 * NAP
    assert forward.lines.keys() == {f"{__file__}:{line_of('# the call of Slow')}"}
    assert back.lines.keys() == {f"{__file__}:{line_of('# the backward of Slow') - 1}"}


def test_time_belongs_to_the_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_op(monkeypatch)
    x = tj.ones(3, requires_grad=True)
    with tj.profiler.profile() as prof, tj.profiler.record_function("a range"):
        x.exp().sum().backward()
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["a range"].kind == "range" and rows["a range"].total >= rows["exp"].own >= NAP
    assert sum(row.own for row in rows.values()) == pytest.approx(rows["a range"].total)
    assert rows["backward"].kind == "backward" and rows["mul"].kind == "op"


def test_own_times_add_up_and_lines_agree_with_names() -> None:
    outer, inner = Event("outer", "range", "a.py:1", 0), Event("inner", "op", "a.py:2", 100)
    outer.end, inner.end, outer.inner = 1000, 400, 300
    names = {r.key: (r.own, r.total) for r in profile_rows.by_name([inner, outer], False)}
    assert names == {"outer": (700e-9, 1000e-9), "inner": (300e-9, 300e-9)}
    assert {r.key: r.own for r in profile_rows.by_line([inner, outer], False)} == {"a.py:1": 700e-9, "a.py:2": 300e-9}


def train(backend: str, calls: int) -> tuple[Any, tj.Tensor]:
    w = tj.ones(8, requires_grad=True)

    @tj.compile(backend=backend, name="step")
    def step(x: tj.Tensor) -> tj.Tensor:
        loss = (w * x).pow(2).sum()  # the loss
        loss.backward()
        with tj.no_grad():
            w.sub_(0.01 * w.grad)  # type: ignore[operator]
        w.grad = None
        return loss

    with tj.profiler.profile() as prof:
        for _ in range(calls):
            step(tj.ones(8))
    return prof, w


def test_calls_of_a_compiled_function() -> None:
    prof, w = train("plain", 10)
    counts = {row.key: row.count for row in prof.key_averages() if row.kind in ("compiled", "program")}
    programs = {key: n for key, n in counts.items() if "program" in key}
    assert counts["step, recorded"] == 2 and counts["step, replayed"] == 8
    assert sum(programs.values()) == 10 and all(HERE in key for key in programs)
    assert w.tolist() == train_by_hand(10)


def train_by_hand(calls: int) -> list[float]:
    w = tj.ones(8)
    for _ in range(calls):
        w = w - 0.01 * (2 * w)
    return w.tolist()


def test_kernels_share_out_what_was_measured() -> None:
    prof, w = train("llvm", 20)
    assert w.tolist() == pytest.approx(train_by_hand(20), rel=1e-5)
    native = [e for e in prof.events if e.segment is not None]
    assert len(native) == 20 - 5  # without the runs in which native code and a reference program are compared
    kernels = [row for row in prof.key_averages() if row.kind == "kernel"]
    assert sum(row.own for row in kernels) == pytest.approx(sum(e.own for e in native))
    assert any(line.endswith(f":{line_of('# the loss')}") for row in kernels for line in row.lines)
    rows = [r for r in profile_rows.by_name(prof.events, False) if r.key.startswith("native program")]
    assert [row.count for row in rows] == [15]
    assert any(row.kind == "compile" for row in prof.key_averages())


@pytest.mark.parametrize("pure", [False, True])
def test_calls_without_python_have_kernels_too(pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))  # whatever a busy machine measures
    w = tj.ones(8, requires_grad=True)
    optimizer = tj.optim.SGD([w], lr=0.1)

    @tj.compile(pure=pure, backend="llvm")
    def step(x: tj.Tensor) -> tj.Tensor:
        loss = (w * x).tanh().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(20):
        step(tj.ones(8))
    (recipe,) = step.skipped_calls
    usual = recipe.fast_path
    assert usual is not None
    with tj.profiler.profile() as prof:
        for _ in range(3):
            step(tj.ones(8))
    kernels = [row for row in prof.key_averages() if row.kind == "kernel"]
    assert kernels and all(row.count % 3 == 0 for row in kernels)
    assert recipe.fast_path is usual, "calls after it are as quick as before"


def test_the_trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_op(monkeypatch)
    with tj.profiler.profile() as prof, tj.profiler.record_function("outside"):
        tj.ones(3).exp()
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = {e["name"]: e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    exp, outside = events["exp"], events["outside"]
    assert exp["ph"] == "X" and exp["dur"] >= NAP * 1e6 and HERE in exp["args"]["lines"][0]
    assert outside["ts"] <= exp["ts"] and exp["ts"] + exp["dur"] <= outside["ts"] + outside["dur"]
    with pytest.raises(OSError, match=r"\[profiler\] the trace cannot be written"):
        prof.export_chrome_trace(tmp_path / "no" / "folder.json")


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error too; and what other threads do is not noted."""
    with pytest.raises(ZeroDivisionError), tj.profiler.profile() as prof:
        tj.ones(3) + 1
        thread = threading.Thread(target=lambda: tj.ones(3, requires_grad=True).exp().sum().backward())
        thread.start()
        thread.join()
        1 / 0  # noqa: B018
    noted = len(prof.events)
    assert {row.key for row in prof.key_averages()} == {"full", "add"}
    tj.ones(3, requires_grad=True).exp().sum().backward()
    train("plain", 4)
    assert len(prof.events) == noted
    assert tj.eager.core.tape.node.local.state.handler is None  # type: ignore[attr-defined]


def history(script: Any) -> list[Any]:
    """Run a program, and return what it notes and prints."""
    tj.manual_seed(0)
    log: list[Any] = []
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        script(tj.compile, lambda *things: log.append([seen(t) for t in things]))
    return [*log, out.getvalue()]


@pytest.mark.parametrize("name", list(SCRIPTS)[::3])
def test_what_is_looked_at_stays_as_it_is(name: str) -> None:
    """The same results, bit for bit, as without a profile and without the eager samples of `tapejit run`."""
    script, _ = SCRIPTS[name]
    plain = history(script)
    with tj.profiler.profile(kernels=False) as prof:
        assert history(script) == plain
    assert prof.events
    with watched():
        assert history(script) == plain


def test_under_autocast() -> None:
    model = tj.nn.Linear(4, 4)
    with tj.profiler.profile() as prof, tj.autocast("cpu", dtype=tj.bfloat16):
        y = model(tj.ones(2, 4))
    assert y.dtype == tj.bfloat16
    assert prof.key_averages().find("linear").count == 1


def test_where_it_cannot_be_opened() -> None:
    with tj.profiler.profile(), pytest.raises(RuntimeError, match="another one is already running"):
        tj.profiler.profile().__enter__()

    @tj.compile
    def inside() -> None:
        with tj.profiler.profile():
            pass

    with pytest.raises(RuntimeError, match="inside a compiled function"):
        inside()
    with pytest.raises(ValueError, match='by must be "op" or "line"'):
        with tj.profiler.profile() as prof:
            pass
        prof.table(by="colour")
    with tj.profiler.record_function("nobody looks"):
        assert isinstance(PRIMITIVES["exp"], Op)


def test_as_pytorchs_scripts_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_op(monkeypatch)
    kinds = [tj.profiler.ProfilerActivity.CPU, tj.profiler.ProfilerActivity.CUDA]
    with tj.profiler.profile(activities=kinds, record_shapes=True) as prof, tj.profiler.record_function("mine"):
        x = tj.ones(3).exp()
        for _ in range(5):
            x = x + 1
    found = prof.key_averages()
    first = [
        found.table(sort_by=name, row_limit=1).splitlines()[1] for name in ("count", "self_cpu_time_total", "cpu_time_total")
    ]
    assert [" add " in first[0], " exp " in first[1], " mine" in first[2]] == [True, True, True]
    assert len(found.table(row_limit=-1).splitlines()) == 1 + len(found)
    with pytest.raises(TypeError, match="unknown option 'with_stak'"):
        tj.profiler.profile(with_stak=True)
