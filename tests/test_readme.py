"""What README, CONTRIBUTING and the debugging guide say is true: their code runs and prints what is shown, or stands in the
file that it is said to be from."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tapejit as tj
from tapejit.tracer import cli

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FROM = re.compile(r"[Ff]rom\s+`([\w./]+)`[^`]*$")


def blocks(name: str) -> list[tuple[str, str, str | None]]:
    """Each block: its language, its text, and the file that it is from, which the paragraph before it names."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n\n")[2]
        source = FROM.search(before.replace("`flip`", "flip"))
        found.append((match[1], match[2], source[1] if source else None))
    return found


def test_the_code_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tj.manual_seed(0)
    space: dict[str, Any] = {"__name__": "readme"}
    code = [text for language, text, _ in blocks("README.md") if language == "python"]
    assert len(code) == 3
    for i, text in enumerate(code):
        exec(compile(text, f"README.md, block {i + 1}", "exec"), space)
    out = capsys.readouterr().out
    assert "step: 20 calls, 17 replayed, 3 recorded" in out  # the first gradients are new, later ones are replaced
    assert "eager and compiled agree" in out and "program" in out
    assert 0 < space["loss"].item() < 3


@pytest.mark.filterwarnings("ignore:.*runs eagerly from now on")
def test_the_code_of_the_debugging_guide_does_what_is_shown(tmp_path: Path) -> None:
    space: dict[str, Any] = {"__name__": "guide"}
    out = ""
    for i, (language, text, _) in enumerate(blocks("docs/debugging.md")):
        if language == "python":
            printed = io.StringIO()
            file = tmp_path / f"block{i}.py"  # where `explain` finds the text of a line
            file.write_text(text)
            with contextlib.redirect_stdout(printed):
                exec(compile(text, str(file), "exec"), space)
            out = printed.getvalue()
        else:
            missing = [line for line in text.splitlines() if line not in out]
            assert not missing, f"block {i} shows {missing[0]!r}, and what was printed is:\n{out}"


def test_quotations_are_in_their_files() -> None:
    quoted = [(text, source) for language, text, source in blocks("CONTRIBUTING.md") if language == "python"]
    assert len(quoted) == 5
    for text, source in quoted:
        assert source is not None, f"where is this from?\n{text}"
        held = (ROOT / source).read_text(encoding="utf-8")
        for part in re.split(r"\n(?=\w)(?!def )", text) if "= unary" in text else [text]:
            assert part.rstrip("\n") in held, f"{source} has changed; it no longer has\n{part}"


def test_what_is_named_exists() -> None:
    """Files and folders in backquotes."""
    for name in ("README.md", "CONTRIBUTING.md", "docs/debugging.md"):
        for path in re.findall(r"`((?:eager|tracer|codegen|tests|bench|docs|examples)/[\w./]*)`", (ROOT / name).read_text()):
            assert (ROOT / path).exists(), f"{name} names {path}"


def test_commands_of_the_readme(tmp_path: Path) -> None:
    """Each `tapejit` command is one that there is, and each make target too."""
    shell = "\n".join(text for language, text, _ in blocks("README.md") if language == "sh")
    assert set(re.findall(r"\btapejit (\w+)", shell)) <= set(cli.COMMANDS)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^make ([\w-]+)", shell, re.M)) <= set(targets)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "tapejit" in scripts
