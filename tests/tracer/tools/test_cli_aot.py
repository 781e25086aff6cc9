"""`tapejit aot`: a script is run until its functions are recorded, kernels for a GPU that is not here are written, and the
table says what they take. Bad input is one sentence."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import tapejit as tj
from support import fake_gpu
from support.paths import ROOT
from tapejit.codegen.triton import export as ahead
from tapejit.codegen.triton.device.specs import DEVICES, LAUNCH_SECONDS, compute_kind, shared_memory, table_target
from tapejit.tracer.execute.backends import BACKENDS
from tapejit.tracer.tools import cli
from tapejit.tracer.tools.cli import aot as cli_aot

SCRIPT = """
import sys
import tapejit as tj

@tj.compile
def step(x, w):
    return tj.tanh(x @ w), x.sum()

@tj.compile
def scaled(x):
    return x * 2

for i in range(1000):
    try:
        step(tj.ones(64, 32), tj.ones(32, 48))
    except Exception:
        pass
    if i < 5:
        scaled(tj.ones(int(sys.argv[1]) if len(sys.argv) > 1 else 1024))
raise SystemExit("it ran to its end")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(SCRIPT)
    return "steps.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install 'tapejit[gpu]'")
def test_kernels_and_their_table(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backends = dict(BACKENDS)
    assert cli.main(["aot", script, "--device", "H100", "-o", "found", "--", "4096"]) == 0
    said = capsys.readouterr().out
    assert "step, compiled for sm_90; times are lower bounds for H100" in said and "scaled, compiled for sm_90" in said
    assert said.count("bits: the widest memory access") == 1 and "--precision tf32 lets them" in said
    assert "it ran to its end" not in said and backends == BACKENDS
    table = json.loads((tmp_path / "found" / "scaled" / "table.json").read_text())
    (row,) = table["rows"]
    assert table["launches"] == 1 and row["bytes"] == 2 * 4 * 4096 and row["flops"] == 4096 and row["seconds"] == LAUNCH_SECONDS
    assert row["width"] == 128 and not row["narrow"] and not row["spills"] and not row["matrix"] and not row["error"]
    assert row["registers"] > 0 and row["lines"] == [f"steps.py:{line_of('return x * 2')}"]
    for name in row["files"]:
        assert (tmp_path / "found" / "scaled" / name).stat().st_size
    assert {Path(name).suffix for name in row["files"]} == {".py", ".ptx", ".cubin"}
    matmul = json.loads((tmp_path / "found" / "step" / "table.json").read_text())
    assert sum(r["flops"] for r in matmul["rows"] if r["kind"] == "matmul") == 2 * 64 * 32 * 48 + 64 * 48  # tanh is one


def test_functions_in_functions_have_short_names() -> None:
    seen = cli_aot.RecordedGraphs(3)
    names = []
    for name in ("setup.<locals>.step", "step", "Model.loss", "<lambda>"):
        names.append(seen.unique(name))
        seen.graphs.append((names[-1], None))  # type: ignore[arg-type]
    assert names == ["step", "step_2", "Model_loss", "lambda"]


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.split("\n"), 1) if text in line)


def test_devices() -> None:
    """Times are bytes or arithmetic over what a device can do, whichever takes longer, and no less than a launch."""
    device = DEVICES["A100"]
    assert device.seconds(2_039_000_000, 1, "float32") == pytest.approx(1e-3)
    assert device.seconds(1, 312_000_000_000, compute_kind("bfloat16", "ieee", matmul=True)) == pytest.approx(1e-3)
    assert device.seconds(1, 19_500_000_000, compute_kind("bfloat16", "ieee", matmul=False)) == pytest.approx(1e-3)
    assert device.seconds(1, 1, "float64") == LAUNCH_SECONDS
    assert {d.target for d in DEVICES.values()} == {"sm_80", "sm_90", "sm_100", "gfx942"}


def test_every_kind_of_arithmetic_has_a_rate_and_matrix_units_are_no_slower() -> None:
    for device in DEVICES.values():
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            for precision in ("ieee", "tf32"):
                alone, matmul = (device.flops[compute_kind(dtype, precision, x)] for x in (False, True))
                assert matmul >= alone > 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install 'tapejit[gpu]'")
def test_times_are_those_of_what_computes(tmp_path: Path) -> None:
    """Attention of halves is computed by matrix units, loops over float64 by the vector units for these."""
    x, y = tj.randn(1, 1, 2048, 64).to(tj.bfloat16), tj.randn(64, dtype=tj.float64)
    with cli_aot.recording(100) as found:
        step = tj.compile(lambda: (tj.nn.functional.scaled_dot_product_attention(x, x, x), y.exp()))
        for _ in range(3):
            step()
    ((_, graph),) = found.graphs
    units, forms = ahead.units_of(graph, "sm_90")
    assert {u.kind: ahead.compute_dtype(u, forms) for u in units} == {"attention": "bfloat16", "nest": "float64"}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install 'tapejit[gpu]'")
def test_exported_kernels_are_those_that_a_program_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a graph that went through the same passes, on a device and in part on the CPU. There are enough kernels that
    they take their scalars from memory."""
    monkeypatch.setenv("TAPEJIT_TUNE", "0")
    monkeypatch.setenv("TAPEJIT_BACKEND", "auto")

    def steps(x: Any, y: Any, scale: float) -> Any:
        for _ in range(3):
            x = (x @ x).softmax(1) * scale
        return x.sum(), (y + 1).sum()

    def run(compiled: Any) -> None:
        for i in range(3):
            compiled(tj.ones(16, 16).to("cuda"), tj.ones(3), 0.5 + i)

    with fake_gpu.gpu(True):
        with cli_aot.recording(100) as found:
            run(tj.compile(steps))
        launched = tj.compile(steps)
        run(launched)
        (segment,) = next(iter(launched.traces)).programs.values()
        ((_, graph),) = found.graphs
        assert graph.where == tj.device("cuda", 0) and all(form.on_cpu for form in graph.forms.values())
        assert str(graph) == str(segment.native.graph)
        units, _ = ahead.units_of(graph, segment.native.target)
        texts = [x.printed.source for x in segment.native.build.units() if x.printed is not None]
        assert [x.printed.source for x in units if x.printed is not None] == texts
        assert len(texts) >= 4 and any("tl.load(" in text and "_at" in text for text in texts)


def test_only_the_build_assembles_the_pipeline() -> None:
    """Everything that needs launches for a GPU gets them from `GpuBuild`."""
    parts = re.compile(r"make_schedule\([^)]*gpu=True|primitive_passes\(has_own_kernel, keeps_halves")
    files = [p for folder in ("codegen", "tracer", "bench", "tests/support") for p in (ROOT / folder).rglob("*.py")]
    found = {p.relative_to(ROOT).as_posix() for p in files if parts.search(p.read_text(encoding="utf-8"))}
    assert found == {"codegen/triton/build.py"}


def test_kinds_of_devices() -> None:
    """Consumer GPUs have the matrix units of sm_80, and less shared memory."""
    kinds = {"sm_89": "sm_80", "sm_120": "sm_80", "sm_103": "sm_100", "sm_90": "sm_90", "gfx950": "gfx942"}
    assert {name: table_target(name) for name in kinds} == kinds
    room = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64}
    assert {name: shared_memory(name) >> 10 for name in room} == room


REFUSED: dict[str, tuple[list[str], str]] = {
    "no script": (["nowhere.py"], "there is no script nowhere.py"),
    "target": (["steps.py", "--target", "sm_1"], "there is no target 'sm_1'; there are: sm_80, sm_90, sm_100, gfx942"),
    "device": (["steps.py", "--device", "H1000"], "no device is called 'H1000'"),
    "both": (["steps.py", "--device", "A100", "--target", "sm_90"], "A100 is sm_80, not sm_90"),
    "folder": (["steps.py", "-o", "steps.py"], "steps.py cannot be written: "),
    "calls": (["steps.py", "--calls", "2"], "--calls must be at least 3"),
    "not compiled": (["plain.py"], "no compiled function was called in plain.py: decorate one with @tj.compile, and call it; "),
    "never": (["never.py"], "no compiled function was called in never.py"),
    "failing": (["failing.py"], "failing.py failed with the error above"),
    "ending": (["ending.py"], "ending.py ended with 'no data' before anything was recorded"),
}
OTHERS = {
    "plain.py": "import tapejit",
    "never.py": "import tapejit as tj\ntj.compile(lambda x: x + 1)",
    "failing.py": "1 / 0",
    "ending.py": "raise SystemExit('no data')",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_one_sentence(case: str, script: str, capsys: Any, monkeypatch: Any) -> None:
    for name, text in OTHERS.items():
        Path(name).write_text(text)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # Triton is not needed to refuse
    given, wanted = REFUSED[case]
    assert cli.main(["aot", *given]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("tapejit: ") and wanted in said


def test_without_triton(script: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["aot", script]) == 2
    assert "Triton, which compiles the kernels, is not installed: pip install" in capsys.readouterr().err


def test_without_permission(script: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert cli.main(["aot", script, "-o", "new/folder"]) == 2
    assert "new/folder cannot be written: no permission" in capsys.readouterr().err


def test_switched_off(script: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(cli_aot, "switched_off", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert cli.main(["aot", script]) == 2
    assert "TAPEJIT=eager disables compilation" in capsys.readouterr().err
