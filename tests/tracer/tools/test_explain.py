"""Descriptions of a compiled function: `explain()`, `TAPEJIT_LOG`, `compile_stats()`, and errors of `strict=True`."""

from __future__ import annotations

import inspect
import json
import os

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn
from tapejit.tracer.tools.explain.advice import advice_for
from tapejit.tracer.trace.logging import display_line


def here(offset: int = 0) -> str:
    """The line this is called from, as reports show it."""
    frame = inspect.currentframe().f_back
    return display_line(f"{frame.f_code.co_filename}:{frame.f_lineno + offset}")


def training(read=True, **settings):
    """A compiled training step, and the lines it consists of."""
    tj.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lines = {}

    @tj.compile(name="step", **settings)
    def step(x, y):
        loss = F.mse_loss(model(x), y)
        lines["loss"] = here(-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lines["update"] = here(-1)
        if read:
            lines["item"] = here(1)
            loss.item()
        return loss

    return step, lines


def called(step, sizes):
    for n in sizes:
        step(tj.ones(n, 4), tj.zeros(n, 2))
    return step.explain()


def test_a_training_step() -> None:
    step, lines = training()
    found = called(step, [3] * 6)
    facts = found.to_dict()
    assert (facts["calls"], facts["replays"], facts["recordings"], facts["traces"], facts["segments"]) == (6, 4, 2, 1, 2)
    assert not facts["divergences"] and not facts["fell_back"] and facts["gave_up"] is None
    (path,) = facts["paths"]
    assert path["replays"] == 4 and path["ops"] > 5
    assert path["breaks"] == [{"line": lines["item"], "reason": "a value is read"}]
    json.dumps(facts)
    text = str(found)
    assert text.startswith("step: 6 calls, 4 replayed, 2 recorded, 0 diverged\n  1 path, 2 segments in total")
    assert f"break at {lines['item']}: a value is read" in text


def test_guards_in_words() -> None:
    step, lines = training()
    path = called(step, [3] * 6).to_dict()["paths"][0]
    first, weight = path["guards"][:2]
    assert first["words"] == "float32 [3, 4]" and first["op"] == "linear" and first["line"] == lines["loss"]
    assert weight["words"] == "float32 [2, 4] that requires grad, with no gradient yet"
    assert weight["shape"] == [2, 4] and weight["dtype"] == "float32" and weight["requires_grad"] and weight["device"] == "cpu"
    assert "expects float32 [3, 4]; float32 [2, 4] that requires grad, with no gradient yet" in str(step.explain())

    w = tj.ones(3, requires_grad=True)
    f = tj.compile(lambda x: (w * x).sum().backward())
    g = tj.compile(lambda x, y: x.contiguous() + y)
    for _ in range(4):
        f(tj.ones(3))
        g(tj.ones(2, 3).mT, tj.ones(2, requires_grad=True) * 1)
    found = [[p["words"] for p in c.explain().to_dict()["paths"][0]["guards"]] for c in (f, g)]
    assert found[0] == ["float32 [3] that requires grad, with a gradient", "float32 [3]", "float32 [3]"]  # the last: it
    assert found[1] == ["float32 [3, 2] with strides [1, 3]", "float32 [2] with a history"]


def test_numbers_that_must_stay_and_numbers_that_may_change() -> None:
    step, lines = training()
    path = called(step, [3] * 6).to_dict()["paths"][0]
    assert path["numbers"] == len(path["scalars"]) > 0
    assert {(s["op"], s["line"]) for s in path["scalars"]} == {("sgd_update", lines["update"])}
    assert f"runtime scalars: {path['numbers']} x in sgd_update at {lines['update']}" in str(step.explain())

    w = tj.ones(3, requires_grad=True)
    f = tj.compile(lambda x: (w * x) ** 3)
    for _ in range(4):
        f(tj.ones(3))
    (constant,) = f.explain().to_dict()["paths"][0]["constants"]
    assert constant["value"] == 3 and constant["op"] == "pow" and constant["words"].startswith("the number 3 in pow at")


def test_time() -> None:
    step, _ = training()
    facts = called(step, [3] * 6).to_dict()
    assert list(facts["seconds"]) == ["recording", "compiling", "running"] and all(s > 0 for s in facts["seconds"].values())
    assert "time: recording " in str(step.explain())


def test_advice_for_a_read_every_step() -> None:
    step, lines = training()
    (advice,) = called(step, [3] * 6).to_dict()["advice"]
    assert advice.startswith(f"`loss.item()` at {lines['item']} ends the segment each step: read it every 50 steps")
    step, _ = training(read=False)
    assert not called(step, [3] * 6).to_dict()["advice"]


def test_advice_for_bounds_that_keep_changing() -> None:
    @tj.compile
    def f(x, i):
        return (x * 2)[i : i + 2]

    x = tj.arange(12)
    for i in (0, 0, 1, 2, 3):
        f(x, i)
    (advice,) = f.explain().to_dict()["advice"]
    assert advice.startswith("slice at ") and "gets other settings each time ({" in advice and "x[i + arange(n)]" in advice
    g = tj.compile(lambda x, i: x[i + tj.arange(2)] * 2)
    for i in (0, 0, 1, 2, 3):
        assert g(x, tj.tensor(i)).tolist() == [2 * i, 2 * i + 2]
    assert g.hits == 3 and not g.divergences and not g.explain().to_dict()["advice"]


def test_advice_for_bounds_that_differ_from_the_first_call_on() -> None:
    f = tj.compile(lambda x, i: (x * 2)[i : i + 2])
    for i in range(4):
        f(tj.arange(12), i)
    (advice,) = f.explain().to_dict()["advice"]
    assert advice.startswith("slice gets other settings each time ({")


def test_advice_for_a_break_at_a_slice_that_moves() -> None:
    f = tj.compile(lambda x, i: (x * 2)[i : i + 2])
    for i in range(40):
        f(tj.arange(60), i)
    (found,) = f.explain().to_dict()["paths"][0]["breaks"]
    assert found["reason"] == "a slice starts elsewhere in each call"
    assert "x[i + arange(n)]" in str(advice_for(found["reason"]))


def test_advice_for_shapes_that_keep_changing() -> None:
    step, lines = training(read=False)
    facts = called(step, [3, 3, 3, 4, 5, 6]).to_dict()
    assert [d["line"] for d in facts["divergences"]] == [lines["loss"]] * 3
    assert facts["divergences"][0]["reason"] == "linear gets a tensor of shape [4, 4], recorded with [3, 4]"
    (advice,) = facts["advice"]
    assert advice.startswith(f"linear at {lines['loss']} gets tensors of 4 shapes ([3, 4], [4, 4], [5, 4], [6, 4])")
    assert "drop_last" in advice and "pad" in advice and "budget=16" in advice


def test_shapes_that_change_in_the_warm_up() -> None:
    step, _ = training(read=False)
    found = called(step, [3, 4, 5])
    facts = found.to_dict()
    assert facts["warming_up"] == 3 and not facts["paths"]
    assert facts["disagreement"] == "every call takes a new path: linear gets tensors of 3 shapes ([3, 4], [4, 4], [5, 4])"
    assert facts["disagreement"] in str(found) and "drop_last" in facts["advice"][0]


def test_numbers_that_keep_changing() -> None:
    w = tj.ones(3, requires_grad=True)
    f = tj.compile(lambda x, n: (w * x) ** n)
    for n in (2, 3, 4):
        f(tj.ones(3), n)
    assert f.explain().to_dict()["disagreement"] == "every call takes a new path: pow gets 3 numbers (2, 3, 4)"
    f.reset()
    for n in (2, 2, 2, 3, 4, 5):
        f(tj.ones(3), n)
    (advice,) = f.explain().to_dict()["advice"]
    assert "gets other numbers each time (2, 3, 4, 5)" in advice and "make it a tensor" in advice


def test_what_fell_back() -> None:
    f = tj.compile(lambda x: x + 1)
    with tj.eager():
        f(tj.ones(2))
    with tj.inference_mode():
        f(tj.ones(2))
    found = f.explain()
    assert found.to_dict()["fell_back"] == [
        {"reason": "within `with eager():`", "times": 1},
        {"reason": "inference mode", "times": 1},
    ]
    assert "ran eagerly once: inference mode" in str(found)


def test_a_recording_that_cannot_be_replayed_says_why() -> None:
    x = tj.from_numpy(array := np.zeros(3, np.float32))
    f = tj.compile(lambda: x.add_(1))
    for _ in range(4):
        f()
    assert array.tolist() == [4, 4, 4]
    (fallback,) = f.explain().to_dict()["fell_back"]
    assert "writes memory that a NumPy array shares" in fallback["reason"] and fallback["times"] == 4


def test_giving_up() -> None:
    f = tj.compile(lambda x: x + 1, budget=1)
    with pytest.warns(UserWarning, match=r"runs eagerly from now on.*add gets tensors of 4 shapes"):
        for n in range(1, 8):
            f(tj.ones(n))
    found = f.explain()
    assert "runs eagerly for good: tests" in str(found) or "runs eagerly for good: " in str(found)
    assert found.to_dict()["fell_back"] == [{"reason": "it keeps diverging from its recordings", "times": 3}]
    assert "drop_last" in found.to_dict()["advice"][0]


def test_reset_forgets() -> None:
    step, _ = training()
    called(step, [3, 3, 3, 4])
    step.reset()
    facts = step.explain().to_dict()
    assert not facts["calls"] and not facts["divergences"] and not facts["paths"] and not any(facts["seconds"].values())


def test_paths_are_relative_to_the_current_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside, outside = str(tmp_path / "deep" / "train.py") + ":3", str(tmp_path.parent / "train.py") + ":3"
    assert display_line(inside) == os.path.join("deep", "train.py") + ":3"
    assert display_line(outside) == outside and display_line("<stdin>:1") == "<stdin>:1"


# ---- TAPEJIT_LOG


@pytest.fixture
def log(monkeypatch, capsys):
    def lines(kinds, run):
        monkeypatch.setenv("TAPEJIT_LOG", kinds)
        capsys.readouterr()
        run()
        monkeypatch.delenv("TAPEJIT_LOG")
        return capsys.readouterr().err.splitlines()

    return lines


def test_log_of_breaks(log) -> None:
    step, lines = training()
    found = log("breaks", lambda: called(step, [3] * 5 + [4] * 3))
    assert found == [f"[tapejit breaks] step breaks at {lines['item']}: a value is read"] * 2  # two paths


def test_log_of_recompiles(log) -> None:
    step, lines = training()
    found = log("recompiles", lambda: called(step, [3] * 5 + [4] * 3))
    reason = "linear gets a tensor of shape [4, 4], recorded with [3, 4]"
    assert found == [f"[tapejit recompiles] step diverges at {lines['loss']}: {reason}"]


def test_log_of_code(log) -> None:
    step, lines = training()
    found = log("code", lambda: called(step, [3] * 5))
    heads = [line for line in found if line.startswith("[tapejit code]")]
    assert len(heads) == len(set(heads)) == 2 and heads[0].startswith("[tapejit code] a program of ")
    assert any("# linear, " in line and line.endswith(lines["loss"]) for line in found)
    assert not log("code", lambda: called(step, [3] * 3))  # each program once


def test_log_of_several_kinds_and_of_none(log) -> None:
    step, _ = training()
    kinds = {
        line.split("]")[0]
        for line in log("breaks,recompiles,code", lambda: called(step, [3] * 5 + [4] * 3))
        if "[tapejit" in line
    }
    assert kinds == {"[tapejit breaks", "[tapejit recompiles", "[tapejit code"}
    step, _ = training()
    assert log("", lambda: called(step, [3] * 5 + [4] * 3)) == []


def test_compile_stats() -> None:
    step, _ = training()
    step.name = "step of test_compile_stats"
    called(step, [3] * 5 + [4])
    assert tj.compile_stats()[step.name] == {
        "calls": 6, "replays": 3, "recordings": 3, "divergences": 1, "paths": 2, "evictions": 0, "gave_up": None,
    }  # fmt: skip


# ---- strict


def test_strict_raises_where_it_diverges() -> None:
    step, lines = training(strict=True)
    called(step, [3] * 5)
    with pytest.raises(tj.CompileError) as raised:
        called(step, [4])
    assert isinstance(raised.value, RuntimeError)
    reason = "linear gets a tensor of shape [4, 4], recorded with [3, 4]"
    remedy = "With strict=True this is an error; without it the call goes on eagerly."
    assert str(raised.value).startswith(f"[compile] step diverges from its recording at {lines['loss']}: {reason}. {remedy}")
    del raised  # its traceback holds arrays, so that nobody can tell who sees them being written
    hits = step.hits
    called(step, [3])
    assert step.hits == hits + 1


def test_strict_leaves_what_was_done_before() -> None:
    total, out = tj.zeros(2), []

    @tj.compile(strict=True)
    def f(x, more):
        total.add_(x)
        out.append(x * 2)
        if more:
            out.append(total.exp())

    for _ in range(4):
        f(tj.ones(2), False)
    with pytest.raises(tj.CompileError, match="exp runs where the recording has"):
        f(tj.ones(2), True)
    assert total.tolist() == [5, 5] and [t.tolist() for t in out] == [[2, 2]] * 5


def test_strict_with_an_earlier_return_and_an_unexpected_read() -> None:
    f = tj.compile(lambda x, n: [x := x + i for i in range(1, n)], strict=True)
    for _ in range(3):
        f(tj.ones(2), 4)
    with pytest.raises(tj.CompileError, match="returns earlier"):
        f(tj.ones(2), 3)
    g = tj.compile(lambda x, look: (y := x + 1, look and y.tolist(), y * 2), strict=True)
    for _ in range(3):
        g(tj.ones(2), False)
    with pytest.raises(tj.CompileError, match="a value is read"):
        g(tj.ones(2), True)


def test_strict_raises_in_the_place_of_giving_up() -> None:
    f = tj.compile(lambda x: x + 1, strict=True, budget=1)
    for n in range(1, 4):
        f(tj.ones(n))
    with pytest.raises(
        tj.CompileError, match=r"finds no recording to replay, last at .*: every call takes a new path: add gets"
    ):
        f(tj.ones(4))


def test_strict_raises_for_what_cannot_be_replayed() -> None:
    x = tj.from_numpy(array := np.zeros(3, np.float32))
    f = tj.compile(lambda: x.add_(1), strict=True)
    f()
    with pytest.raises(tj.CompileError, match="cannot be replayed: writes memory that a NumPy array shares"):
        f()
    assert array.tolist() == [2, 2, 2]


def test_strict_lets_the_users_exceptions_pass() -> None:
    @tj.compile(strict=True)
    def f(x, fail):
        y = x + 1
        if fail:
            raise KeyError("mine")
        return y * 2

    for _ in range(3):
        f(tj.ones(2), False)
    with pytest.raises(KeyError, match="mine"):
        f(tj.ones(2), True)
