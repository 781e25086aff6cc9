"""`explain(kernels=True)`: what it says about kernels is what can be counted by hand, and its text names the user's lines."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.paths import TESTS
from tapejit import nn
from tapejit.tracer.trace.logging import display_line

CALLS = 8  # enough for a program to be compared with a plain one


def here(offset: int = 0) -> str:
    frame = inspect.currentframe().f_back
    return display_line(f"{frame.f_code.co_filename}:{frame.f_lineno + offset}")


def compiled(function: Any, *args: Any, **settings: Any) -> Any:
    made = tj.compile(function, **{"backend": "llvm", **settings})
    for _ in range(CALLS):
        made(*args)
    return made


def kernels(function: Any, *args: Any) -> list[dict[str, Any]]:
    """Return the kernels of a function of one path and one segment."""
    (path,) = compiled(function, *args).explain(kernels=True).to_dict()["paths"]
    return path["programs"][-1]["native"]["kernels"]


def training() -> tuple[Any, dict[str, str], list[Any]]:
    tj.manual_seed(0)
    layer = nn.Linear(12, 20)
    optimizer = tj.optim.SGD(layer.parameters(), lr=0.1)
    lines: dict[str, str] = {}

    def step(x, y):
        lines["layer"] = here(1)
        hidden = F.gelu(layer(x))
        lines["loss"] = here(1)
        loss = ((hidden - y) ** 2).mean()
        optimizer.zero_grad()
        lines["backward"] = here(1)
        loss.backward()
        lines["update"] = here(1)
        optimizer.step()
        return loss

    return step, lines, [tj.randn(33, 12), tj.randn(33, 20)]


def test_a_training_step_names_its_lines() -> None:
    step, lines, args = training()
    found = compiled(step, *args).explain(kernels=True)
    (program,) = found.to_dict()["paths"][0]["programs"]
    report = program["native"]
    assert program["from"] == lines["layer"]
    assert program["description"].startswith(("native code: ", "reference program"))
    named = [line for k in report["kernels"] for line in k["lines"]]
    assert set(lines.values()) <= set(named)
    first = report["kernels"][0]
    assert first["kind"] == "matmul" and first["lines"][0] == lines["layer"] and first["ops"][:2] == ["matmul", "add"]
    updates = [k for k in report["kernels"] if lines["update"] in k["lines"]]
    assert updates and all({"x1", "x2"} & set(k["written"]) for k in updates)  # the weight and the bias
    text = str(found)
    for line in lines.values():
        assert line in text
    assert "takes " in text and "GB/s" in text and "in one thread" in text and "for r in range(33):" in text
    json.dumps(found.to_dict())


def test_times_are_positive() -> None:
    step, _, args = training()
    for k in kernels(step, *args):
        assert k["seconds"] > 0 and k["gigabytes_per_second"] > 0
        assert k["gigabytes_per_second"] == pytest.approx(k["bytes"] / k["seconds"] / 1e9)


def test_measuring_changes_nothing() -> None:
    step, _, (x, y) = training()
    other, _, _ = training()
    one, two = compiled(step, x, y), compiled(other, x, y)
    one.explain(kernels=True)
    assert [float(one(x, y)) for _ in range(3)] == [float(two(x, y)) for _ in range(3)]


def test_softmax_is_three_loops() -> None:
    (k,) = kernels(lambda x: tj.softmax(x, -1), tj.randn(7, 40))
    assert k["kind"] == "loops" and k["loops"] == 3 and k["nest"].count("for c in range(40)") == 3
    assert k["bytes"] == 2 * 7 * 40 * 4
    # a maximum; a difference, an exp and a sum; and in the last loop all but the sum again, and a division
    assert k["flops"] == 7 * 40 * (1 + 3 + 3)


@pytest.mark.parametrize("dtype", [tj.float32, tj.float64])
def test_bytes_and_flops_of_a_pointwise_kernel(dtype: Any) -> None:
    (k,) = kernels(lambda x, y: tj.exp(x * y + 1) - y, tj.randn(30, 50, dtype=dtype), tj.randn(50, dtype=dtype))
    size = 8 if dtype == tj.float64 else 4
    assert sum(k["read"].values()) == (1500 + 50) * size and sum(k["written"].values()) == 1500 * size
    assert k["bytes"] == sum(k["read"].values()) + sum(k["written"].values())
    assert k["flops"] == 4 * 1500


def test_bytes_of_views() -> None:
    x = tj.randn(40, 60)
    (k,) = kernels(lambda x: x[::2, :30] * 2, x)
    assert k["bytes"] == 2 * 20 * 30 * 4
    (k,) = kernels(lambda x: x[:, :40] + x[:, 20:], x)
    assert sum(k["read"].values()) == 40 * 60 * 4
    (k,) = kernels(lambda x: x[:, :1].expand(40, 60) * 2, x)
    assert sum(k["read"].values()) == 40 * 4
    (k,) = kernels(lambda x: F.pad(x, (2, 3)) * 2, x)
    assert (sum(k["read"].values()), sum(k["written"].values())) == (40 * 60 * 4, 40 * 65 * 4)
    (k,) = kernels(lambda x: x.sum(1), x)
    assert k["bytes"] == (40 * 60 + 40) * 4 and k["flops"] == 40 * 60


def test_matmuls() -> None:
    (k,) = kernels(lambda a, b: a @ b, tj.randn(17, 23), tj.randn(23, 29))
    assert k["kind"] == "matmul" and k["flops"] == 2 * 17 * 23 * 29
    assert k["bytes"] == 4 * (17 * 23 + 23 * 29 + 17 * 29) and k["what"] == "matmul, m 17 n 29 k 23"
    (k,) = kernels(lambda a, b: tj.tanh(a @ b + 1), tj.randn(5, 7, 3), tj.randn(5, 3, 4))
    assert k["flops"] == 5 * (2 * 7 * 3 * 4 + 2 * 7 * 4) and k["what"].startswith("5 matmuls, m 7 n 4 k 3, then ")
    (k,) = kernels(lambda a: a @ a.T, tj.randn(6, 8))
    assert sum(k["read"].values()) == 4 * 6 * 8 and "as [8, 6] by strides [1, 8]" in k["call"]


def test_convolutions() -> None:
    found = kernels(lambda x, w: F.conv2d(x, w), tj.randn(2, 3, 10, 10), tj.randn(4, 3, 3, 3))
    (k,) = [k for k in found if k["call"] and "conv" in k["call"]]
    assert k["flops"] == 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3) and k["what"].startswith("conv of [2, 3, 10, 10] and [4, 3, 3, 3]")


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    q = tj.randn(2, 3, 16, 8)
    found = kernels(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=causal), q)
    (k,) = [k for k in found if k["kind"] == "attention"]
    pairs = 16 * 17 // 2 if causal else 16 * 16
    assert k["flops"] == 2 * 2 * 3 * pairs * (8 + 8)


def test_ops_that_are_called_as_they_are() -> None:
    def function(x):
        return tj.sort(x * 2, 1)[0] + 1, x.long() @ x.long().T

    found = {k["call"].split(" = ")[1].split("(")[0]: k for k in kernels(function, tj.randn(6, 9)) if k["kind"] == "opaque"}
    assert found["sort"]["what"].startswith("sort, an opaque op: no code is generated for it on float32, int64")
    assert "for it on int64" in found["matmul"]["what"]
    assert all(k["flops"] is None and k["seconds"] > 0 for k in found.values())


def test_a_call_that_made_up_values_are_not_good_for() -> None:
    def function(x):
        return tj.linalg.cholesky(x * 1.0) + 1

    made = compiled(function, tj.eye(4) * 2)
    found = [p for p in made.explain(kernels=True).to_dict()["paths"][0]["programs"] if "native" in p]
    for k in (k for p in found for k in p["native"]["kernels"]):
        assert k["seconds"] is None or k["seconds"] > 0
    str(made.explain(kernels=True))


def test_indices_are_made_up_within_bounds() -> None:
    table = tj.randn(11, 6, requires_grad=True)

    def function(i):
        table.grad = None
        loss = F.embedding(i, table).sum()
        loss.backward()
        return loss

    found = kernels(function, tj.tensor([1, 10, 3]))
    assert all(k["seconds"] > 0 for k in found)
    assert any(k["what"].startswith("bounds check of 3 indices") for k in found)
    assert any(k["what"].startswith("sums at indices") for k in found)


def test_texts_on_request() -> None:
    made = compiled(lambda x: tj.tanh(x) * 2, tj.randn(50))
    plain = made.explain(kernels=True).to_dict()["paths"][0]["programs"][0]["native"]
    assert "llvm" not in plain["kernels"][0] and "assembly" not in plain["kernels"][0] and "llvm" not in plain
    found = made.explain(llvm=True, assembly=True)
    report = found.to_dict()["paths"][0]["programs"][0]["native"]
    (k,) = report["kernels"]
    assert "define void @k" in k["llvm"] and "ret void" in k["llvm"] and "define void @step0" in report["llvm"]
    assert ".text" in k["assembly"] or ".globl" in k["assembly"]
    text = str(found)
    assert "define void @k" in text and "assembly:" in text


def test_kernels_of_the_same_code_show_it_once() -> None:
    found = compiled(lambda x, y: (tj.softmax(x, 1), tj.softmax(y, 1)), tj.randn(5, 6), tj.randn(5, 6)).explain(llvm=True)
    first, second = found.to_dict()["paths"][0]["programs"][0]["native"]["kernels"]
    assert first["same_code_as"] is None and second["same_code_as"] == first["step"] and "llvm" not in second
    assert f"same code as kernel {first['step']}" in str(found)


def test_memory_and_decisions() -> None:
    step, _, args = training()
    report = compiled(step, *args).explain(kernels=True).to_dict()["paths"][0]["programs"][0]["native"]
    memory = report["memory"]
    assert 0 < memory["bytes"] <= memory["together"] and memory["text"].startswith(f"{memory['bytes']} bytes")
    assert memory["buffers"] == len(memory["text"].splitlines()) - 1
    assert report["buffers"]["x0"] == {"shape": [33, 12], "dtype": "float32", "kind": "input"}
    assert report["buffers"]["x1"]["kind"] == "input, written"
    assert all(d["words"] and d["reason"] for d in report["decisions"])
    joined = [d for d in report["decisions"] if d["score"] is not None]
    assert joined and all(d["step"] is not None and d["op"] for d in joined)
    assert report["functions"] == 1 and report["barriers"] < len(report["kernels"])


def test_a_reference_program_says_so() -> None:
    made = compiled(lambda x: x * 2, tj.randn(3), backend="plain")
    found = made.explain(kernels=True)
    (program,) = found.to_dict()["paths"][0]["programs"]
    assert program["description"] == "reference program: the backend is plain" and "native" not in program
    assert "reference program: the backend is plain" in str(found) and "kernel 0" not in str(found)


def test_without_kernels_it_says_how_each_segment_runs() -> None:
    def function(x):
        y = x * 2
        total = y.sum().item()
        return y * total

    made = compiled(function, tj.randn(20))
    programs = made.explain().to_dict()["paths"][0]["programs"]
    assert len(programs) == 2 and all("native" not in p for p in programs)
    assert all(p["description"] and f"{p['description']}" in str(made.explain()) for p in programs)


def test_before_it_was_measured() -> None:
    made = tj.compile(lambda x: x * 2 + 1, backend="llvm")
    for _ in range(3):
        made(tj.randn(5))
    (program,) = made.explain().to_dict()["paths"][0]["programs"]
    assert program["description"] == "native code, not yet timed against the reference program"


def test_a_program_from_disk_is_told_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "1")
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))

    def function(x):
        return tj.softmax(x @ x, 1).sum(0)

    reports = [
        compiled(function, tj.randn(13, 13)).explain(kernels=True).to_dict()["paths"][0]["programs"][0]["native"]
        for _ in range(2)
    ]
    first, second = reports
    assert (first["from_disk"], second["from_disk"]) == (False, True)
    counted = ("what", "nest", "bytes", "flops", "lines", "pieces")
    assert [[k[name] for name in counted] for k in first["kernels"]] == [
        [k[name] for name in counted] for k in second["kernels"]
    ]
    assert all(k["seconds"] > 0 for k in second["kernels"])


def test_a_pure_function_has_its_program_shown() -> None:
    made = compiled(lambda x: tj.exp(x) * 2, tj.randn(5, 5), pure=True)
    programs = made.explain(kernels=True).to_dict()["paths"][0]["programs"]
    assert any(k["ops"] == ["exp", "mul"] for p in programs for k in p["native"]["kernels"])


def test_plans_do_not_depend_on_the_order_of_sets() -> None:
    """Plans are in the text of the step function, which the disk cache is asked for."""
    script = (
        "import tapejit as tj\n"
        "def step(x):\n"
        "    y = x @ x\n"
        "    return (y.exp() @ y.sin()) @ (y.cos() @ y.tanh())\n"
        "f = tj.compile(step, backend='llvm')\n"
        "for _ in range(4): f(tj.ones(24, 24))\n"
        "native = list(f.traces[0].programs.values())[-1].native\n"
        "print(native.arena, *native.texts)\n"
    )
    found = set()
    for seed in ("1", "2", "3"):
        ran = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "HOME": "/nonexistent", "TAPEJIT_CACHE": "0"},
            capture_output=True, text=True, cwd=TESTS, check=True,
        )  # fmt: skip
        found.add(ran.stdout)
    assert len(found) == 1 and "define void" in found.pop()


def test_costs_of_nothing() -> None:
    found = compiled(lambda x: (x * 2, x.sum(0)), tj.zeros(0, 4)).explain(kernels=True)
    for p in found.to_dict()["paths"][0]["programs"]:
        for k in p.get("native", {"kernels": []})["kernels"]:
            assert k["bytes"] <= 16 and (k["seconds"] is None or k["seconds"] > 0)
    str(found)


def test_numbers_are_plain_python() -> None:
    step, _, args = training()
    for k in kernels(step, *args):
        assert not any(isinstance(v, np.generic) for v in k.values())


# ---- passes


def test_passes_are_listed_with_what_they_changed() -> None:
    def f(x):
        unused = x.exp()  # noqa: F841
        return x.neg().neg().tanh() + x.tanh()

    step = compiled(f, tj.randn(5))
    found = step.explain(passes=True)
    (path,) = found.to_dict()["paths"]
    runs = path["programs"][-1]["passes"]
    assert [r["name"] for r in runs[:7]] == [
        "dead code", "device placement", "constant folding", "algebra", "common subexpressions", "copy removal", "dead code",
    ]  # fmt: skip
    by_name = {r["name"]: r for r in reversed(runs)}
    assert (by_name["common subexpressions"]["before"], by_name["common subexpressions"]["after"]) == (4, 3)
    assert by_name["algebra"]["changed"] and not by_name["device placement"]["changed"]
    assert all(r["seconds"] > 0 for r in runs)
    text = str(found)
    assert "      passes:\n        dead code: " in text and "        common subexpressions: 4 -> 3 nodes, " in text
    assert "passes:" not in str(step.explain())


def test_without_a_backend_there_are_no_passes() -> None:
    step = compiled(lambda x: (x * 2).sum(), tj.randn(5), backend="plain")
    (path,) = step.explain(passes=True).to_dict()["paths"]
    assert path["programs"][-1]["passes"] == []
