"""Documents are true: their code runs and prints what is shown, their commands exist, and the files they name.

`tests/support/documents.py` says which kinds of blocks there are. Each document is typed in from top to bottom.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tapejit as tj
from support.documents import FENCE, Block, Reader, blocks, commands, documents, parsed
from support.paths import ROOT
from tapejit.tracer.tools import cli
from tapejit.tracer.tools.cli import ops_table as cli_ops

MINUTES = "takes minutes"
SETUP = "sets up an environment"
NOT_RUN = {  # and why
    "make demo": MINUTES,
    "make test": MINUTES,
    "python3 -m venv .venv": SETUP,
    ".venv/bin/python -m pip install .": SETUP,
    ".venv/bin/python -m pip install '.[gpu]'": SETUP,
    "python bench/steps.py": MINUTES,
    "python bench/steps.py gpt-small --peers torch,jax --json found.json --plot found.png": MINUTES,
    "python bench/steps.py mnist --jax-python ~/jax/bin/python": MINUTES,
}


@pytest.mark.parametrize("name", documents())
@pytest.mark.filterwarnings("ignore:.*runs eagerly from now on")
def test_the_code_does_what_is_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAPEJIT_BACKEND", "llvm")
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))  # as on the first day
    tj.manual_seed(0)
    reader = Reader(tmp_path, NOT_RUN)
    for block in blocks(name):
        reader.read(block)
    assert not reader.scripts, f"no command of {name} runs {reader.scripts}"


def test_commands_that_are_not_run_are_in_some_document() -> None:
    """And those of `tapejit` and make exist."""
    lines = {line for name in documents() for b in blocks(name) if b.kind == "sh" for line in commands(b.text)}
    assert set(NOT_RUN) <= lines
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in lines:
        if made := re.match(r"make ([\w-]+)", line):
            assert made[1] in targets, line
        if asked := re.search(r"\btapejit (\w+)", line):
            assert asked[1] in cli.COMMANDS, line


@pytest.mark.parametrize("name", documents())
def test_what_is_named_exists(name: str) -> None:
    """Files and folders in backquotes, and links."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:eager|tracer|codegen|tests|bench|docs|examples)/[\w./]*)`", text):
        assert (ROOT / path).exists(), f"{name} names {path}"
    for link in re.findall(r"\[[^]]+\]\(([^)#:]+)[^):]*\)", FENCE.sub("", text)):
        assert (ROOT / name).parent.joinpath(link).exists(), f"{name} links to {link}"


def test_the_list_of_ops_is_that_of_the_table() -> None:
    assert (ROOT / "docs/ops.md").read_text(encoding="utf-8") == cli_ops.page(), "it is old: `tapejit ops > docs/ops.md`"


# ---- the reader itself


@pytest.mark.parametrize("text, reason", [
    ("```\nx = 1\n```", "of no kind"),
    ("```py\nx = 1\n```", r"block 1 \(py\) is of a kind that nobody runs"),
    ("```python no\nx = 1\n```", "of a kind that nobody runs"),
    ("Some words.\n\n    x = 1\n", "only indented"),
    ("```python\nx = 1\n", "no block"),
])  # fmt: skip
def test_blocks_that_nobody_would_run_are_refused(text: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        parsed("a.md", text)


def test_a_reader_notices_what_is_not_true(tmp_path: Path) -> None:
    def read(*given: tuple[str, str]) -> None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        reader = Reader(folder, {"make demo": MINUTES})
        for i, (kind, text) in enumerate(given):
            reader.read(Block("a.md", i, kind, text))

    read(("python", "print('a 12 b')\nprint('c')"), ("text", "a ... b\nc\n"))
    with pytest.raises(AssertionError, match="shows 'c'"):
        read(("python", "print('a')"), ("text", "a\nc\n"))
    with pytest.raises(AssertionError, match="shows 'a'"):  # the order counts
        read(("python", "print('a')\nprint('c')"), ("text", "c\na\n"))
    with pytest.raises(NameError):
        read(("python", "nothing"))
    with pytest.raises(AssertionError, match=r"Makefile lacks what a\.md, block 0"):
        read(("python from Makefile", "nothing = 1\n"))
    read(("python a.py", "print('here')"), ("sh", "python a.py\nmake demo"), ("text", "here"))
    with pytest.raises(AssertionError, match="fails"):
        read(("sh", "tapejit run nothing.py"))
    with pytest.raises(KeyError):
        read(("sh", "rm nothing"))
