"""Blocks of code in Markdown files, and what becomes of them when they are run.

What stands after the three backquotes says what a block is. A block that says nothing, or something else, is an error, so that
none is added without being run:

    python             run, one after the other in one module
    python as step.py  the same, and what is printed shows its lines by this name
    python with NAME   run where the package NAME is installed
    python train.py    a script, which a later command has to run
    python from FILE   a quotation: FILE has it, word for word
    sh                 commands in a clone, run one after the other; `test_docs.py` lists those that are not, and why
    text               what the block before it prints: each line is found in the output, in this order, and `...` is anything
    text drawing       something to look at, neither code nor output
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import ROOT

FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.M)
INDENTED = re.compile(r"\n\n {4,}(?![-*\d])\S.*")  # Markdown's other way to write code
KINDS = re.compile(r"python( (as )?[\w-]+\.py| from [\w./-]+| with \w+)?|sh|text( drawing)?")


@dataclass(frozen=True)
class Block:
    document: str
    number: int
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The last word of its kind: a file, a package."""
        return self.kind.split()[-1]

    def __str__(self) -> str:
        return f"{self.document}, block {self.number} ({self.kind or 'of no kind'})"


def documents() -> list[str]:
    """All Markdown files of the project."""
    found: list[Path] = []
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [name for name in inner if not name.startswith((".", "build", "__"))]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(name: str) -> list[Block]:
    return parsed(name, (ROOT / name).read_text(encoding="utf-8"))


def parsed(name: str, text: str) -> list[Block]:
    found = [Block(name, i + 1, m[1].strip(), m[2]) for i, m in enumerate(FENCE.finditer(text))]
    for block in found:
        if not KINDS.fullmatch(block.kind):
            raise AssertionError(f"{block} is of a kind that nobody runs; tests/support/documents.py has those that there are")
    rest = FENCE.sub("", text)
    if "```" in rest:
        raise AssertionError(f"{name} has backquotes that are no block")
    if indented := INDENTED.search(rest):
        raise AssertionError(f"{name} has code that is only indented, and so never run: {indented[0].strip()}")
    return found


class Reader:
    """Somebody who types in all that a document says, in a folder of their own."""

    def __init__(self, folder: Path, not_run: Mapping[str, str]) -> None:
        self.folder, self.not_run = folder, not_run
        self.space: dict[str, Any] = {"__name__": "document"}
        self.printed: str | None = None
        self.scripts: set[str] = set()  # that no command has run yet
        for name in ("bench", "examples"):  # commands are typed in a clone
            (folder / name).symlink_to(ROOT / name)

    def read(self, block: Block) -> None:
        if block.kind == "text drawing":
            return
        if block.kind == "text":
            self.compare(block)
        elif block.kind == "sh":
            self.printed = "".join(self.command(line, block) for line in commands(block.text))
        elif block.kind.startswith("python from"):
            assert block.text.strip("\n") in (ROOT / block.word).read_text(encoding="utf-8"), (
                f"{block.word} lacks what {block} has"
            )
        elif re.fullmatch(r"python \S+\.py", block.kind):
            (self.folder / block.word).write_text(block.text)
            self.scripts.add(block.word)
        else:
            self.run(block)

    def run(self, block: Block) -> None:
        if " with " in block.kind and importlib.util.find_spec(block.word) is None:
            self.printed = None
            return
        name = block.word if block.kind.endswith(".py") else f"block{block.number}.py"
        (self.folder / name).write_text(block.text)  # where `explain` finds the text of a line
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block.text, str(self.folder / name), "exec"), self.space)
        self.printed = output.getvalue()

    def command(self, line: str, block: Block) -> str:
        """Run it and return what it prints; it has to succeed."""
        if line in self.not_run:
            return ""
        words = shlex.split(line, comments=True)
        settings = [w for w in words if re.match(r"[A-Z_]+=", w)]
        words = words[len(settings) :]
        self.scripts -= {part for word in words for part in word.split(":")}
        program = {"python": [sys.executable], "tapejit": [sys.executable, "-m", "tapejit"]}[words[0]]
        environment = os.environ | dict(s.split("=", 1) for s in settings)
        done = subprocess.run(
            [*program, *words[1:]], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{block}: {line!r} fails:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def compare(self, block: Block) -> None:
        if self.printed is None:
            return
        rest = self.printed
        for line in block.text.splitlines():
            pattern = "[^\n]*".join(re.escape(part) for part in line.strip().split("..."))
            found = re.search(pattern, rest)
            assert found, f"{block} shows {line!r}, and what was printed is:\n{self.printed}"
            rest = rest[found.end() :]


def commands(text: str) -> list[str]:
    """The lines of a block of commands, without comments."""
    lines = [re.sub(r"\s+#.*|^#.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]
