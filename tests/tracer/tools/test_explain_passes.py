"""`explain(passes=True)`: every part of a compilation is listed, says what it made, and its time is in the sum."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tapejit as tj
from support import fake_gpu
from tapejit.tracer.graph.passes import Pass, PassLog, logging_passes, on_each, run_passes, run_step
from tapejit.tracer.tools.explain.explain import pass_in_words

BYTES = r"[\d,]*\d bytes"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk cache with nothing in it."""
    monkeypatch.setenv("TAPEJIT_CACHE", "1")
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path))
    yield tmp_path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform", exc_type=ImportError)
    monkeypatch.setenv("TAPEJIT_BACKEND", "auto")
    monkeypatch.setenv("TAPEJIT_TUNE", "0")
    with fake_gpu.gpu(True) as xp:
        yield xp


def passes_of(function: Callable[..., Any], *args: Any, **settings: Any) -> list[dict[str, Any]]:
    step = tj.compile(function, **settings)
    for _ in range(3):
        step(*args)
    (path,) = step.explain(passes=True).to_dict()["paths"]
    runs: list[dict[str, Any]] = path["programs"][-1]["passes"]
    return runs


def layers(x: Any, w: Any) -> Any:
    return ((x @ w).softmax(-1) @ w).relu().sum()


# ---- native code


def test_what_is_made_is_said_though_the_value_stays(cache: Path) -> None:
    runs = passes_of(layers, tj.randn(8, 8), tj.randn(8, 8), backend="llvm")
    made = {run["name"]: run["made"] for run in runs}
    assert re.fullmatch(rf"\d+ kernels?, {BYTES} of LLVM IR", made["emit kernels"])
    assert re.fullmatch(rf"\d+ buffers? in {BYTES}", made["memory plan"])
    assert re.fullmatch(rf"1 function, {BYTES} of LLVM IR", made["step functions"])
    assert re.fullmatch(rf"\d+ objects?, {BYTES}", made["machine code"])
    assert made["disk cache"] == "the program is not in it" and made["link and bind"] == "1 function"
    told = [pass_in_words(run) for run in runs]
    assert not [line for line in told if re.match("(emit kernels|memory plan|step functions|machine code).*no change", line)]
    assert [line for line in told if line.startswith("machine code: ") and " bytes, " in line]


def test_numbers_of_what_is_made_are_true(cache: Path) -> None:
    step = tj.compile(layers, backend="llvm")
    for _ in range(3):
        step(tj.ones(8, 8), tj.ones(8, 8))
    (segment,) = next(iter(step.traces)).programs.values()
    build, made = segment.native.build, {run.name: run.made for run in segment.passes.runs}
    texts = [kernel.text for kernel in build.made]
    assert made["emit kernels"] == f"{len(texts)} kernels, {sum(map(len, texts)):,} bytes of LLVM IR"
    assert made["memory plan"].endswith(f" in {segment.native.executable.arena:,} bytes")
    assert made["machine code"].startswith(f"{len(segment.native.executable.objects)} objects, ")


def test_kernels_that_wait_for_horizontal_fusion_and_opaque_ops_are_counted(cache: Path) -> None:
    def update(x: Any, *params: Any) -> Any:
        for p in params:
            p.mul_(0.5)
        return x.sort(0).values

    runs = passes_of(update, tj.randn(4, 4), *[tj.randn(n) for n in (3, 4, 5)], backend="llvm")
    made = {run["name"]: run["made"] for run in runs}["emit kernels"]
    assert ", 3 left to horizontal fusion" in made and ", 1 opaque op" in made


def test_the_times_add_up(cache: Path) -> None:
    """Compilation is in the list, but for what lies between its parts. Another program may take the processor there."""
    shares = []
    for n in range(5):
        step = tj.compile(layers, backend="llvm")
        for _ in range(3):
            step(tj.ones(8, 8 + n), tj.ones(8 + n, 8 + n))
        facts = step.explain(passes=True).to_dict()
        runs = facts["paths"][0]["programs"][-1]["passes"]
        shares.append(sum(run["seconds"] for run in runs) / facts["seconds"]["compiling"])
        assert re.search(r"\n        in all: [\d.]+ (ms|us)\n", str(step.explain(passes=True)))
    assert max(shares) > 0.85, shares
    assert max(shares) < 1.01


def test_the_passes_of_the_compiled_backward_are_listed(cache: Path) -> None:
    w = tj.randn(8, 8, requires_grad=True)
    step = tj.compile(lambda x: layers(x, w), backend="llvm")
    for _ in range(4):
        step(tj.ones(8, 8)).backward()
    found = step.explain(passes=True)
    program = found.to_dict()["paths"][0]["programs"][-1]
    (backward,) = program["backward"]
    assert backward["told"].startswith("backward: compiled")
    names = [run["name"] for run in backward["passes"]]
    assert names[0] == "dead code" and names[-1] == "link and bind" and "machine code" in names
    assert [run["name"] for run in program["passes"]] != [] and backward["passes"] != program["passes"]
    assert "\n      passes of its compiled backward:\n        dead code: " in str(found)


def test_two_backward_programs_have_a_list_each(cache: Path) -> None:
    w = tj.randn(8, 8, requires_grad=True)
    step = tj.compile(lambda x: ((x @ w).relu().exp(), (x @ w).tanh().exp()), backend="llvm")
    for i in range(8):
        step(tj.ones(8, 8))[i % 2].sum().backward()
    text = str(step.explain(passes=True))
    assert "passes of its compiled backward, program 1:" in text and "passes of its compiled backward, program 2:" in text


def test_a_program_from_disk_says_that_it_was_not_built(cache: Path) -> None:
    args = tj.ones(8, 9), tj.ones(9, 9)
    first, second = (passes_of(layers, *args, backend="llvm") for _ in range(2))
    assert "machine code" in [run["name"] for run in first]
    assert [run["name"] for run in second[-2:]] == ["disk cache", "link and bind"]
    machine_code = next(run["made"] for run in first if run["name"] == "machine code")
    assert second[-2]["made"] == f"the program is in it, so it was not built now: {machine_code}"
    assert pass_in_words(second[-2]).startswith("disk cache: the program is in it, so it was not built now: ")


def test_without_a_disk_cache_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    runs = passes_of(lambda x: (x * 3).sum(), tj.ones(5), backend="llvm")
    assert {run["name"]: run["made"] for run in runs}["disk cache"] == "there is none"


# ---- Triton


def test_a_gpu_program_lists_compilation_and_memory_plan(gpu: Any, cache: Path) -> None:
    args = tj.ones(8, 16).to("cuda"), tj.ones(16, 16).to("cuda")
    first, second = (passes_of(layers, *args) for _ in range(2))
    names = [run["name"] for run in first]
    assert names[names.index("scalars in memory") + 1 :] == [
        "compile kernels", "memory plan", "launch table", "executable", "load and bind",
    ]  # fmt: skip
    made = {run["name"]: run["made"] for run in first}
    assert re.fullmatch(rf"\d+ kernels?, {BYTES}", made["compile kernels"])
    assert re.fullmatch(rf"\d+ buffers? in {BYTES}", made["memory plan"])
    assert made["disk cache"] == "the program is not in it"
    assert all(run["seconds"] > 0 for run in first)
    assert [run["name"] for run in second[-2:]] == ["disk cache", "load and bind"]
    assert second[-2]["made"].startswith("the program is in it, so it was not built now: ")


def test_the_backward_of_a_gpu_program_is_listed(gpu: Any, cache: Path) -> None:
    w = tj.randn(16, 16).to("cuda").requires_grad_()
    step = tj.compile(lambda x: layers(x, w))
    for _ in range(4):
        step(tj.ones(8, 16).to("cuda")).backward()
    (backward,) = step.explain(passes=True).to_dict()["paths"][0]["programs"][-1]["backward"]
    assert {"compile kernels", "memory plan"} <= {run["name"] for run in backward["passes"]}


# ---- the log


def test_words_of_a_pass() -> None:
    def words(**changes: Any) -> str:
        run = {"name": "p", "unit": "node", "before": 3, "after": 3, "changed": False, "seconds": 1e-3, "made": ""}
        return pass_in_words(run | changes).rpartition(", ")[0]

    assert words() == "p: no change"
    assert words(made="2 kernels") == "p: 2 kernels"
    assert words(changed=True) == "p: 3 -> 3 nodes"
    assert words(changed=True, made="2 stores") == "p: 2 stores"
    assert words(changed=True, after=1, made="2 stores") == "p: 3 -> 1 node: 2 stores"
    assert words(changed=True, before=None) == "p: changed"
    assert words(changed=True, before=None, made="2 kernels") == "p: 2 kernels"


def test_a_step_is_logged_where_passes_are() -> None:
    with logging_passes(PassLog()) as log:
        assert run_step("link", lambda: 7, lambda n: f"{n} functions") == 7
        assert run_passes(on_each(Pass("emit", lambda x: x, "row", lambda x: f"{len(x)} rows")), ([1], [1, 2])) == ([1], [1, 2])
    assert [(run.name, run.made) for run in log.runs] == [("link", "7 functions"), ("emit", "1 rows; 2 rows")]
    assert run_step("link", lambda: 8, str) == 8 and len(log.runs) == 2
