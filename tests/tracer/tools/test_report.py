"""`tapejit report`: what is gathered is true, the page has all of it, escaped, and bad input is one sentence."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import tomllib
from html import unescape
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tapejit as tj
from support.paths import ROOT, TESTS
from tapejit.codegen.inspect import machine_peaks as roof
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.runtime import jit
from tapejit.tracer.api.compiled_function import CompiledFunction
from tapejit.tracer.tools import cli, observe_run
from tapejit.tracer.tools.cli import report as cli_report
from tapejit.tracer.tools.explain import advice
from tapejit.tracer.tools.profiler.timeline import noted
from tapejit.tracer.tools.report import data
from tapejit.tracer.tools.report.data import gather
from tapejit.tracer.tools.report.eager_memory import eager_memory
from tapejit.tracer.tools.report.elements import collapse_repeats as fold
from tapejit.tracer.tools.report.elements.html import tag
from tapejit.tracer.tools.report.elements.timeline import WORDS
from tapejit.tracer.tools.report.page import page
from tapejit.tracer.tools.report.user_source import sources_of

TRAIN = """
import sys
import tapejit as tj

tj.manual_seed(0)
model = tj.nn.Sequential(tj.nn.Linear(6, 16), tj.nn.Tanh(), tj.nn.Linear(16, 3))
optimizer = tj.optim.SGD(model.parameters(), lr=0.1)

@tj.compile(warmup=2, backend="llvm")
def step(x, y):
    logits = model(x)
    loss = tj.nn.functional.cross_entropy(logits, y)  # </script><img src=x onerror=alert(1)>
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < 0:
        raise ValueError
    return loss

if __name__ == "__main__":
    for i in range(int(sys.argv[1])):
        step(tj.randn(8 if i < 20 else 4, 6), tj.randint(0, 3, (8 if i < 20 else 4,)))
    if sys.argv[2:] == ["fail"]:
        raise RuntimeError("it went <wrong>")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("report")
    (found / "train.py").write_text(TRAIN)
    (found / "plain.py").write_text("print('nothing is compiled here')\n")
    (found / "broken.py").write_text("def (:\n")
    return found


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict[str, Any]:
    """Facts of 24 calls, the last of which have another shape."""
    space: dict[str, Any] = {"__name__": "trained"}
    with pytest.MonkeyPatch.context() as patch, noted() as timelines:
        patch.chdir(folder)
        exec(compile(TRAIN, "train.py", "exec"), space)
        for i in range(24):
            size = 8 if i < 20 else 4
            space["step"](tj.randn(size, 6), tj.randint(0, 3, (size,)))
        return gather([space["step"]], "train.py", timelines)


def line_of(text: str) -> str:
    return f"train.py:{next(i for i, line in enumerate(TRAIN.splitlines(), 1) if text in line)}"


def programs(facts: dict[str, Any]) -> list[dict[str, Any]]:
    return [p for f in facts["functions"] for path in f["paths"] for p in path["programs"]]


# ---- data


def test_it_is_plain_data(facts: dict[str, Any]) -> None:
    assert json.loads(json.dumps(facts))["functions"][0]["name"] == "step"


def test_the_timeline_tells_each_call(facts: dict[str, Any]) -> None:
    timeline = facts["functions"][0]["timeline"]
    assert timeline["calls"] == 24
    kinds: dict[int, list[str]] = {}
    for span in timeline["spans"]:
        assert span["kind"] in WORDS and span["seconds"] > 0
        kinds.setdefault(span["call"], []).append(span["kind"])
    assert kinds[1] == ["record", "compile"] and kinds[20] == ["replay"]
    assert any("compile" in found for found in kinds.values())
    assert sum("compare" in found for n, found in kinds.items() if n < 20) == 1
    assert kinds[21] == ["diverge"] and kinds[24][0] == "replay"
    note = next(s["note"] for s in timeline["spans"] if s["kind"] == "diverge")
    assert "linear gets a tensor of shape [4, 6], recorded with [8, 6]" in note
    starts = [s["start"] for s in timeline["spans"]]
    assert starts == sorted(starts)


def test_nothing_is_noted_outside() -> None:
    """The block leaves functions as they were, also if it fails."""
    before = CompiledFunction.__call__
    with pytest.raises(ZeroDivisionError), noted() as timelines:
        raise ZeroDivisionError
    assert CompiledFunction.__call__ is before and not timelines


def test_findings_have_a_cause_and_an_advice(facts: dict[str, Any]) -> None:
    found = facts["functions"][0]["findings"]
    read = next(f for f in found if f["kind"] == "break")
    assert read["line"] == line_of("loss.item()") and read["reason"] == "a value is read" and "every 50 steps" in read["advice"]
    shape = next(f for f in found if f["kind"] == "divergence")
    assert shape["line"] == line_of("logits = model(x)") and "drop_last" in shape["advice"]


def test_the_trace_is_python_with_lines_and_kernels(facts: dict[str, Any]) -> None:
    native = [p for p in programs(facts) if "native" in p]
    assert native
    for program in native:
        text = "\n".join(row["code"] for row in program["python"])
        compile(text, "trace", "exec")
        steps = {k["step"] for k in program["native"]["kernels"]}
        named = {step for row in program["python"] for step in row["kernels"]}
        assert named and named <= steps
        rows = [row for row in program["python"] if "ops.linear" in row["code"] or "ops.matmul" in row["code"]]
        assert rows and all(row["line"] and row["line"].startswith("train.py:") for row in rows)


def test_kernels_have_bytes_and_a_share_of_the_roofline(facts: dict[str, Any]) -> None:
    limits = facts["machine"]["roof"]
    assert limits["flops"] > 1e8 and [n for n, _ in limits["copies"]] == list(roof.SIZES)
    for program in (p for p in programs(facts) if "native" in p):
        found = program["traffic"]
        assert 0 < found["least"] <= found["moved"] <= found["op_by_op"]
        for k in program["native"]["kernels"]:
            assert k["bytes"] == sum(k["read"].values()) + sum(k["written"].values())
            assert (k["roofline"] is None) == (k["bound"] is None)
            assert k["roofline"] is None or k["roofline"] == pytest.approx(k["least_seconds"] / k["seconds"])


def test_what_a_machine_allows() -> None:
    """By hand: bytes at the speed for so many of them, between two sizes by the logarithm; floats, half as many of 8 bytes."""
    found = roof.MachinePeaks(((100, 10.0), (10_000, 1.0)), 1000.0)
    assert [found.bandwidth(n) for n in (10, 100, 1000, 10_000, 10**6)] == pytest.approx([10, 10, 5.5, 1, 1])
    assert found.least_seconds(100, 500, False) == (10.0, "memory")
    assert found.least_seconds(100, 20_000, False) == (20.0, "arithmetic")
    assert found.least_seconds(0, 20_000, True) == (40.0, "arithmetic")
    paired = roof.MachinePeaks(((100, 10.0), (10_000, 1.0)), 1000.0, 2000.0)
    assert paired.least_seconds(0, 20_000, False, in_pairs=True) == (10.0, "arithmetic")


def test_what_is_measured_copies_and_computes() -> None:
    library = jit.link(jit.objects([roof.text(host())]), {}, ["copy", "multiply_add"])
    source, target = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
    arguments = [ctypes.c_void_p] * 2, [ctypes.c_int64] * 2
    ctypes.CFUNCTYPE(None, *arguments[0], *arguments[1])(library["copy"])(target.ctypes.data, source.ctypes.data, 4096 * 4, 1)
    assert (target == source).all()
    count = roof.accumulators(host()) * roof.lanes(host())
    sums = np.full(count, 2.0, np.float32)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library["multiply_add"])(sums.ctypes.data, 5)
    assert (sums == 2 + 4 + 8 + 16 + 32).all()  # from 0, five times x * 2 + 2


@pytest.mark.skipif(not host().has("avx512bf16"), reason="this CPU does not multiply pairs of bfloat16")
def test_what_is_measured_multiplies_pairs() -> None:
    library = jit.link(jit.objects([roof.text(host())]), {}, ["multiply_pairs"])
    count = roof.accumulators(host()) * roof.lanes(host())
    pairs = np.full(2 * count, 3.0, ml_dtypes.bfloat16)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library["multiply_pairs"])(pairs.ctypes.data, 5)
    assert (pairs.view(np.float32) == 5 * 2 * 3 * 3).all()
    assert roof.machine_peaks().in_pairs > 0.9 * roof.machine_peaks().flops


def test_edges_are_what_one_kernel_leaves_for_another(facts: dict[str, Any]) -> None:
    for program in (p for p in programs(facts) if "native" in p):
        kernels = {k["step"]: k for k in program["native"]["kernels"]}
        for e in program["edges"]:
            assert e["from"] < e["to"] and e["bytes"] == kernels[e["to"]]["read"][e["buffer"]]
            assert e["buffer"] in kernels[e["from"]]["written"]


def test_buffers_that_live_at_the_same_time_are_apart(facts: dict[str, Any]) -> None:
    for program in (p for p in programs(facts) if "native" in p):
        plan = program["native"]["memory"]
        assert len(plan["lives"]) == plan["buffers"]
        assert plan["bytes"] == max((x["offset"] + x["size"] for x in plan["lives"]), default=0)
        for a in plan["lives"]:
            for b in plan["lives"]:
                if a is not b and a["first"] < b["last"] and b["first"] < a["last"]:
                    assert a["offset"] + a["size"] <= b["offset"] or b["offset"] + b["size"] <= a["offset"]


def test_what_eager_execution_holds() -> None:
    """By hand: 4 kB each; x * 2 dies when y is made, y and z are alive together."""

    @tj.compile(warmup=1, backend="plain")
    def chain(x: tj.Tensor) -> tj.Tensor:
        y = (x * 2).exp()
        z = y + 1
        return z * y

    for _ in range(3):
        chain(tj.ones(1000))
    (trace,) = chain.traces
    slot = trace.values[-1].slot
    found = eager_memory(trace, 0, len(trace.entries) - 1, frozenset({slot}))
    assert found["bytes"] == [4000, 8000, 8000, 12000] and found["peak"] == 12000


def test_results_are_what_outlives_a_program() -> None:
    """2 of 3 values: what is returned, and what the caller keeps is not in the block of memory."""
    doubled = tj.compile(lambda x: ((x @ x).exp(), x.sum(1)), name="doubled", backend="llvm", warmup=1)
    for _ in range(4):
        kept = doubled(tj.ones(16, 16))
    (program,) = programs(gather([doubled], "t"))
    assert sorted(r["size"] for r in program["results"]) == [16 * 4, 16 * 16 * 4] and len(kept) == 2
    assert program["eager_memory"]["peak"] == 2 * 16 * 16 * 4  # the matmul dies when its exponential is there


def test_backward_passes_of_functions_compiled_without_theirs() -> None:
    w = tj.randn(8, 8, requires_grad=True)
    forward = tj.compile(lambda x: ((x @ w).tanh() @ w).tanh().sum(), name="forward", backend="llvm", warmup=1)
    for _ in range(6):
        forward(tj.randn(4, 8)).backward()
    found = programs(gather([forward], "t"))
    backward = [p for p in found if p["description"].startswith("backward: compiled")]
    assert backward and all(p["native"]["kernels"] and p["eager_memory"] is None for p in backward)
    assert "backward pass" in page(gather([forward], "t"))


def test_functions_that_are_never_replayed() -> None:
    f = tj.compile(lambda x, n: x[:n] * 2, name="f", warmup=2)
    for n in range(2, 6):
        f(tj.ones(9), n)
    facts = gather([f], "t")
    kinds = {x["kind"]: x for x in facts["functions"][0]["findings"]}
    assert {"never replayed", "divergence"} & kinds.keys() and all("arange" in x["advice"] for x in kinds.values())
    assert "recorded" in page(facts) and "0%" in page(facts)


def test_a_function_that_gives_up() -> None:
    f = tj.compile(lambda x: sum(x[i].item() for i in range(400)), name="f")
    with pytest.warns(UserWarning, match="runs eagerly from now on"):
        f(tj.ones(400))
    (found,) = [x for x in gather([f], "t")["functions"][0]["findings"] if x["kind"] == "gave up"]
    assert "reads values" in found["reason"] and "between two reads" in found["advice"]
    assert re.fullmatch(r".*test_report\.py:\d+", found["line"])


def test_functions_whose_source_is_nowhere() -> None:
    space: dict[str, Any] = {"tj": tj}
    exec(compile("f = tj.compile(lambda x: (x * 2).exp(), name='f', backend='llvm', warmup=1)", "<typed in>", "exec"), space)
    for _ in range(4):
        space["f"](tj.ones(50))
    text = page(gather([space["f"]], "t"))
    assert "ops.exp(" in text and "Your source" not in text


def test_programs_without_kernels(facts: dict[str, Any]) -> None:
    """Views of what comes in: there is nothing to launch."""
    copy = json.loads(json.dumps(facts))
    for program in programs(copy):
        if "native" in program:
            program["native"]["kernels"] = program["edges"] = program["results"] = program["native"]["memory"]["lives"] = []
    text = page(copy)
    assert 'id="trace-0"' in text and 'id="graph-0"' not in text


def test_programs_that_are_not_taken_apart() -> None:
    """Those for GPUs: their text is shown."""
    f = tj.compile(lambda x: x * 2 + 1, name="f", backend="plain", warmup=1)
    for _ in range(3):
        f(tj.ones(4))
    (segment,) = f.traces[0].programs.values()

    class Gpu:
        def __str__(self) -> str:
            return "@triton.jit\ndef <kernel>(): ..."

    segment.native = Gpu()
    facts = gather([f], "t")
    (program,) = programs(facts)
    assert "native" not in program and program["code"].startswith("@triton.jit") and not facts["functions"][0]["findings"]
    assert "def &lt;kernel&gt;()" in page(facts)


def test_sources_are_whole_functions(facts: dict[str, Any]) -> None:
    (file,) = facts["functions"][0]["sources"]
    assert file["file"] == "train.py"
    rows = [row for row in file["rows"] if row is not None]
    lines = TRAIN.splitlines()
    assert all(lines[row["number"] - 1] == row["text"] for row in rows)
    shown = [row["text"] for row in rows]
    assert '@tj.compile(warmup=2, backend="llvm")' in shown and "    return loss" in shown and "import sys" not in shown


def test_sources_that_are_not_there() -> None:
    assert sources_of(["<stdin>:3", "no_such_file.py:1", ""], None) == []


def test_texts_are_left_out_where_they_are_too_much(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of programs that run least go first."""
    copy = json.loads(json.dumps(facts))
    paths = copy["functions"][0]["paths"]
    each = [p["native"] for path in paths for p in path["programs"] if "native" in p]
    sizes = [sum(len(k.get(name, "")) for k in native["kernels"] for name in data.TEXTS) for native in each]
    assert len(paths) == 2 and paths[0]["replays"] != paths[1]["replays"] and all(sizes)
    monkeypatch.setattr(data, "MAX_CODE_CHARACTERS", max(sizes) + 10)
    data.shorten(paths)
    often, seldom = sorted(paths, key=lambda path: -path["replays"])
    assert any("llvm" in k for k in often["programs"][0]["native"]["kernels"])
    assert not any("llvm" in k or "triton" in k for p in seldom["programs"] if "native" in p for k in p["native"]["kernels"])
    assert "Its code is left out" in page(copy)


# ---- advice


def reasons_in_the_code() -> set[str]:
    """All reasons that the tracer can give for a break or a divergence, with `op` in the place of what is put in."""
    calls = re.compile(r"\b(?:stop|diverge|flush|run_now|NotARegionError|graph_break)\((?:\w+, )?(f?)\"([^\"]+)\"")
    found = set()
    for file in [*(ROOT / "tracer").rglob("*.py"), *(ROOT / "eager").rglob("*.py")]:
        for _, text in calls.findall(file.read_text(encoding="utf-8")):
            found.add(re.sub(r"\{[^}]*\}", "op", text))
    return found - {"the end"}


def test_each_reason_has_an_advice() -> None:
    found = reasons_in_the_code()
    assert {"a value is read", "op depends on values", "the function returns earlier", "`data` is assigned"} <= found
    assert not [r for r in found if advice.advice_for(r) is None and advice.advice_for(f"backward: {r}") is None]


@pytest.mark.parametrize("reason, words", [
    ("mul gets a tensor of shape [1], recorded with [3]", "drop_last"),
    ("pow gets the number 4, recorded with 3", "make it a tensor"),
    ("slice gets {'index': 1}, recorded with {'index': 2}", "arange"),
    ("add gets float64, recorded with float32", "x.to(float32)"),
    ("add gets a tensor with requires_grad=True, unlike the recording", "detach()"),
    ("add runs without gradients, unlike the recording", "two functions"),
    ("exp runs where the recording has tanh", "where"),
    ("Double.apply", "Double runs eagerly"),
    ("nonzero depends on values", "the result shape of nonzero"),
    ("a value moves to another device", "create it on the device that needs it"),
    ("backward: a hook", "compute the loss inside"),
    ("pure=True, but it sets attributes: replayed with Python", "it sets attributes"),
    ("reference program: the backend is plain", "backend"),
    ("native code: 9 us a run, 3 us by the reference program, so it is not used", "larger batch"),
    ("TAPEJIT=eager", "unset"),
])  # fmt: skip
def test_advice_by_reason(reason: str, words: str) -> None:
    assert words in (advice.advice_for(reason) or "")


def test_no_advice_is_made_up() -> None:
    assert advice.advice_for("the moon is full") is None


# ---- folding


def test_layers_are_folded() -> None:
    def k(what: str, ops: str = "") -> dict[str, Any]:
        return {"what": what, "kind": "loops", "ops": (ops or what[:4]).split()}

    layer = [k("norm"), k("matmul, then 2 more"), k("gelu")]
    again = [k("norm"), k("matmul, then 5 more"), k("gelu")]
    updates = [k(f"update {i}", "mul add mul") for i in range(4)]
    groups = fold.folded([k("embed"), *layer, *again, *layer, k("loss"), *updates])
    assert [g.members for g in groups] == [[0], [1, 4, 7], [2, 5, 8], [3, 6, 9], [10], [11, 12, 13, 14]]
    assert [g.repeat for g in groups] == [-1, 0, 0, 0, -1, -1]


@pytest.mark.parametrize("seed", range(20))
def test_folding_keeps_every_kernel_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernels = [{"what": w, "kind": "loops", "ops": [w]} for w in rng.choice(list("abc"), rng.integers(0, 40))]
    members = [m for g in fold.folded(kernels) for m in g.members]
    assert sorted(members) == list(range(len(kernels)))


# ---- the page


def test_markup_is_escaped() -> None:
    assert tag("p", "<b>", 'a"b', class_='x"y') == '<p class="x&quot;y">&lt;b&gt;a&quot;b</p>'
    assert tag("p", [tag("b", "&"), None]) == "<p><b>&amp;</b></p>"


def test_the_page_has_all_parts_and_no_address(facts: dict[str, Any]) -> None:
    text = page(facts)
    for part in ("timeline", "advice", "trace", "graph", "kernels", "memory", "guards"):
        assert f'<section id="{part}-0"' in text
    assert not re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"|@import|url\((?!#)", text)
    assert text.count("<h2") == 1 and text.count("define void") > 0 and "@triton.jit" in text


def test_what_the_page_needs_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folder = ROOT / "tracer" / "tools" / "report"
    shipped = settings["package-data"]["tapejit.tracer.tools.report"]
    assert {f.name for f in folder.iterdir() if f.is_file() and f.suffix != ".py"} == set(shipped)
    assert "tapejit.tracer.tools.report" in settings["packages"]


def test_findings_lead_to_their_lines(facts: dict[str, Any]) -> None:
    text = page(facts)
    for finding in facts["functions"][0]["findings"]:
        (target,) = re.findall(rf'<a href="#([^"]*)"[^>]*>{re.escape(finding["line"])}</a> · ', text) or [""]
        row = re.search(rf'<div class="row live"[^>]* id="{target}"[^>]*>(.*?)</div>', text)
        assert target and row and finding["reason"] in unescape(row[1])


def test_hostile_text_stays_text(facts: dict[str, Any]) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\"'&"

    def spoiled(x: Any, key: str = "") -> Any:
        if isinstance(x, dict):
            return {k: spoiled(v, k) for k, v in x.items()}
        if isinstance(x, list):
            return [spoiled(v, key) for v in x]
        return x + hostile if isinstance(x, str) and key not in ("kind", "made", "bound") else x

    plain, text = page(facts), page({**spoiled(facts), "failure": hostile})
    assert text.count("&lt;img src=x") > 100 + plain.count("&lt;img src=x")
    assert "<img" not in text and text.count("</script>") == 1


def colours(look: int) -> dict[str, tuple[float, ...]]:
    """The colours of the page by name, light (0) or dark (1)."""
    css = (ROOT / "tracer" / "tools" / "report" / "page.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", css)
    return {name: tuple(int(pair[look][i : i + 2], 16) / 255 for i in (1, 3, 5)) for name, *pair in found}


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """As the Web Content Accessibility Guidelines define it."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("look", [0, 1], ids=["light", "dark"])
def test_words_can_be_told_from_what_is_behind_them(look: int) -> None:
    known = colours(look)
    for ink in ("ink", "soft", "accent"):
        for paper in ("back", "paper", "sunken", "lit"):
            assert contrast(known[ink], known[paper]) >= 4.5, (ink, paper)
    for chip in ("soft", "fair", "poor", "good"):  # the words in them are of the paper's colour
        assert contrast(known["paper"], known[chip]) >= 4.5, chip
    for kind in (*WORDS, "loops", "matmul", "attention", "opaque"):  # bars
        assert contrast(known[kind], known["paper"]) >= 2.5, kind


# ---- the command


def test_the_command_writes_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert cli.main(["report", "train.py", "26", "-o", str(target)]) == 0
    out = capsys.readouterr().out
    assert "hit rate" in out and f"{target} shows all of it" in out
    text = target.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "train.py" in text and "eagerly" in text


def test_a_script_that_fails_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert cli.main(["report", "-o", str(target), "train.py", "4", "fail"]) == 1
    assert "RuntimeError: it went <wrong>" in capsys.readouterr().err
    assert "RuntimeError: it went &lt;wrong&gt;" in target.read_text(encoding="utf-8")


def test_ctrl_c_writes_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stops.py").write_text(TRAIN.replace("    if sys.argv[2:]", "    raise KeyboardInterrupt\n    if sys.argv[2:]"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "stops.py", "4"]) == 130
    assert "stopped by Ctrl-C" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments, sentence, code", [
    (["nothing.py"], "there is no script nothing.py", 2),
    ([], "report needs a script", 2),
    (["broken.py"], "broken.py is not valid Python", 2),
    (["--fast", "train.py"], "report has no option --fast", 2),
    (["train.py", "-o"], "-o needs the name of a file", 2),
    (["train.py", "-o", "no/folder.html"], "there is no folder no", 2),
    (["train.py", "--output=."], "it is a folder", 2),
    (["plain.py"], "no compiled function was called in plain.py, so there is nothing to report", 1),
])  # fmt: skip
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", *arguments]) == code
    err = capsys.readouterr().err
    assert sentence in err and len(err.strip().splitlines()) == 1 and not Path("report.html").exists()


def test_no_permission_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert cli.main(["report", "train.py", "2"]) == 2
    assert capsys.readouterr().err == "tapejit: report.html cannot be written: no permission\n"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--help"]) == 0 and "[-o report.html]" in capsys.readouterr().out


def test_arguments_of_the_script() -> None:
    assert cli_report.parsed(["a.py", "--x", "-o", "f", "y"]) == ("a.py", ["--x", "y"], Path("f"))
    assert cli_report.parsed(["a.py", "--", "-o", "f"]) == ("a.py", ["-o", "f"], Path("report.html"))
    assert cli_report.parsed(["-o=f", "--", "a.py", "-o", "g"]) == ("a.py", ["-o", "g"], Path("f"))


def test_the_function(tmp_path: Path) -> None:
    doubled = tj.compile(lambda x: x * 2, name="doubled")
    with pytest.raises(TypeError, match="expected compiled functions, not function"):
        tj.report(tmp_path / "r.html", lambda: None)
    for _ in range(4):
        doubled(tj.ones(3))
    tj.report(tmp_path / "r.html", doubled)
    assert "doubled" in (tmp_path / "r.html").read_text(encoding="utf-8")
    with pytest.raises(OSError, match="there is no folder"):
        tj.report(tmp_path / "no" / "r.html", doubled)


# ---- the browser that tests of the page need


def fake_tools(folder: Path, **scripts: str) -> dict[str, str]:
    """A PATH with these commands and few others."""
    for name in ("timeout", "sleep", "sh"):
        if (real := shutil.which(name)) is not None:
            (folder / name).symlink_to(real)
    for name, text in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    return {"PATH": str(folder), "CHROMIUM_SECONDS": "1"}


@pytest.mark.skipif(shutil.which("timeout") is None, reason="no command `timeout` here")
@pytest.mark.parametrize("tools, words", [
    ({"chromium": ":"}, ""),
    ({}, "there is no apt-get here"),
    ({"apt_get": ":", "id": "echo 1000"}, "that takes root"),
    ({"apt_get": "exit 100", "id": "echo 0"}, "it cannot be downloaded"),
    ({"apt_get": "sleep 50", "id": "echo 0"}, "it cannot be downloaded"),
    ({"apt_get": "case \"$*\" in *download-only*) ;; *) exit 1;; esac", "id": "echo 0"}, "apt-get cannot install it"),
])  # fmt: skip
def test_installing_chromium_never_fails_nor_stalls(tools: dict[str, str], words: str, tmp_path: Path) -> None:
    """An apt-get that hangs is stopped: the script is over long before it would be."""
    script = [str(shutil.which("sh")), str(TESTS / "support" / "chromium.sh")]
    done = subprocess.run(script, env=fake_tools(tmp_path, **tools), capture_output=True, text=True, timeout=40)
    assert done.returncode == 0 and words in done.stdout and ("skipped" in done.stdout) is bool(words)


def test_samples_are_told(facts: dict[str, Any]) -> None:
    samples = observe_run.Samples()
    step = tj.compile(lambda x: x + 1, name="added")
    step(tj.ones(3))
    facts = gather([step], "t", samples={step: samples})["functions"][0]
    assert facts["each"] is None and "not measured" in facts["saved"]
    samples.eager, samples.replayed = [3.0, 4.0, 5.0], [1.0]
    assert gather([step], "t", samples={step: samples})["functions"][0]["each"] == {"eager": 4.0, "replayed": 1.0}
    assert gather([step], "t")["functions"][0]["saved"] is None
