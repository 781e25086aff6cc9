"""`tapejit aot`: a script is run until its functions are recorded, kernels for a GPU that is not here are written, and the
table says what they take. Bad input is one sentence."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tapejit.codegen.triton.devices import DEVICES, LAUNCH
from tapejit.tracer import cli, cli_aot
from tapejit.tracer.generators import GENERATORS

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
    generators = dict(GENERATORS)
    assert cli.main(["aot", script, "--device", "H100", "-o", "found", "--", "4096"]) == 0
    said = capsys.readouterr().out
    assert "step, compiled for sm_90; times are the least on H100" in said and "scaled, compiled for sm_90" in said
    assert "it ran to its end" not in said and generators == GENERATORS
    table = json.loads((tmp_path / "found" / "scaled" / "table.json").read_text())
    (row,) = table["rows"]
    assert table["launches"] == 1 and row["bytes"] == 2 * 4 * 4096 and row["flops"] == 4096 and row["seconds"] == LAUNCH
    assert row["width"] == 128 and not row["narrow"] and not row["spills"] and not row["matrix"] and not row["error"]
    assert row["registers"] > 0 and row["lines"] == [f"steps.py:{line_of('return x * 2')}"]
    for name in row["files"]:
        assert (tmp_path / "found" / "scaled" / name).stat().st_size
    assert {Path(name).suffix for name in row["files"]} == {".py", ".ptx", ".cubin"}
    product = json.loads((tmp_path / "found" / "step" / "table.json").read_text())
    assert sum(r["flops"] for r in product["rows"] if r["kind"] == "product") == 2 * 64 * 32 * 48 + 64 * 48  # tanh is one


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.split("\n"), 1) if text in line)


def test_devices() -> None:
    """Times are bytes or arithmetic over what a device can do, whichever takes longer, and no less than a launch."""
    device = DEVICES["A100"]
    assert device.seconds(2_039_000_000, 1, "float32") == pytest.approx(1e-3)
    assert device.seconds(1, 312_000_000_000, "bfloat16") == pytest.approx(1e-3)
    assert device.seconds(1, 1, "float64") == LAUNCH
    assert {d.target for d in DEVICES.values()} == {"sm_80", "sm_90", "sm_100", "gfx942"}


REFUSED: dict[str, tuple[list[str], str]] = {
    "no script": (["nowhere.py"], "there is no script nowhere.py"),
    "target": (["steps.py", "--target", "sm_1"], "there is no target 'sm_1'; there are: sm_80, sm_90, sm_100, gfx942"),
    "device": (["steps.py", "--device", "H1000"], "no device is called 'H1000'"),
    "both": (["steps.py", "--device", "A100", "--target", "sm_90"], "A100 is sm_80, not sm_90"),
    "folder": (["steps.py", "-o", "steps.py"], "steps.py cannot be written: "),
    "calls": (["steps.py", "--calls", "2"], "--calls must be at least 3"),
    "not compiled": (["plain.py"], "no compiled function was called in plain.py"),
    "never": (["never.py"], "no compiled function was called in never.py"),
    "failing": (["failing.py"], "failing.py failed, with the error above"),
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
    assert "TAPEJIT=eager switches compiling off" in capsys.readouterr().err
