"""Code on the page: the user's source with the time of each line, and beside it the trace as Python."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from .elements.anchors import Marks
from .elements.html import Markup, joined, percent, tag

KINDS = {
    "break": "break",
    "divergence": "diverged",
    "eager": "ran eagerly",
    "gave up": "gave up",
    "never replayed": "never replayed",
    "no native code": "no native code",
}
GAP = tag("div", "⋯", class_="gap")
FEW = 12  # lines of parameters shown without folding
TOKEN = re.compile(
    r"(?P<comment>#.*$)|(?P<string>[rbfu]{0,2}(?:\"[^\"\n]*\"|'[^'\n]*'))|(?P<number>\b\d[\d_.]*(?:e[+-]?\d+)?\b)"
    r"|(?P<decorator>(?<=^)\s*@[\w.]+)"
    r"|\b(?P<word>False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if"
    r"|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b",
)  # fmt: skip


def kind_of(finding: dict[str, Any]) -> str:
    """CSS class that colours a finding."""
    return f"kind-{finding['kind'].replace(' ', '-')}"


def highlighted(text: str) -> Markup:
    """Highlight a line of Python."""
    parts: list[Any] = []
    at = 0
    for match in TOKEN.finditer(text):
        parts += [text[at : match.start()], tag("span", match.group(), class_=f"c-{match.lastgroup}")]
        at = match.end()
    return joined([*parts, text[at:]])


def heat(programs: list[dict[str, Any]]) -> dict[str, float]:
    """Share of the kernels' time by user line; the time of shared kernels is divided among their lines."""
    found: dict[str, float] = {}
    for program in programs:
        for kernel in program.get("native", {}).get("kernels", ()):
            for line in kernel["lines"]:
                found[line] = found.get(line, 0.0) + (kernel["seconds"] or 0.0) / len(kernel["lines"])
    whole = sum(found.values())
    return {line: seconds / whole for line, seconds in found.items()} if whole else {}


class Source:
    """The user's lines, each with its share of the time and its findings."""

    def __init__(self, function: dict[str, Any], programs: list[dict[str, Any]], marks: Marks) -> None:
        self.files = function["sources"]
        self.marks = marks
        self.shares = heat(programs)
        self.found: dict[str, list[dict[str, Any]]] = {}
        for finding in function["findings"]:
            self.found.setdefault(finding["line"], []).append(finding)
        traced = {row["line"] for program in programs for row in program["python"]}
        self.live = (traced | self.shares.keys() | self.found.keys()) - {None}

    def pane(self) -> Markup:
        parts = []
        for file in self.files:
            texts = textwrap.dedent("\n".join(row["text"] if row else "" for row in file["rows"])).split("\n")
            rows = [
                self.row(f"{file['file']}:{row['number']}", row["number"], text) if row else GAP
                for row, text in zip(file["rows"], texts, strict=True)
            ]
            parts.append(tag("div", file["file"], class_="file"))
            parts.append(tag("div", *rows, class_="rows"))
        return tag("div", *parts, class_="pane", tabindex=0, role="region", aria_label="your source")

    def row(self, line: str, n: int, text: str) -> Markup:
        live, share = line in self.live, self.shares.get(line)
        known: dict[str, Any] = {"data_is": self.marks.line(line), "id": self.marks.line(line), "tabindex": 0} if live else {}
        style, words = (None, None) if share is None else (f"--share:{share:.3f}", percent(share))
        bar = tag("span", words, class_="heat", style=style, title=words and f"{words} of the kernels' time")
        flags = [
            tag("span", KINDS[f["kind"]], class_=f"chip {kind_of(f)}", title=f["reason"]) for f in self.found.get(line, ())[:2]
        ]
        code = tag("code", highlighted(text) or " ")
        return tag("div", tag("span", n, class_="number"), bar, code, *flags, class_="row" + " live" * live, **known)


def trace(program: dict[str, Any], marks: Marks, number: str) -> Markup:
    """Render the trace as Python. Its parameters, of which a network has many, are folded."""
    rows = [trace_row(i, row, marks, number) for i, row in enumerate(program["python"])]
    first = next((i for i, row in enumerate(program["python"]) if row["code"] == "):"), -1) + 1
    if first > FEW:
        head = tag("summary", highlighted("def segment("), f" {first - 2} inputs ", highlighted("):"))
        rows[:first] = [tag("details", head, *rows[:first], class_="inputs")]
    return tag("div", tag("div", *rows, class_="rows"), class_="pane", tabindex=0, role="region", aria_label="the trace")


def trace_row(i: int, row: dict[str, Any], marks: Marks, number: str) -> Markup:
    steps = [marks.kernel(number, step) for step in row["kernels"]]
    known: dict[str, Any] = {}
    if row["line"]:
        known = {"data_is": f"p{marks.function}-{number}-{i}", **marks.of([row["line"]], steps)}
    remark = tag("span", f"  # {row['comment']}", class_="c-comment") if row["comment"] else None
    where = tag("span", row["line"].rpartition("/")[2], class_="where") if row["line"] else None
    body = tag("code", highlighted(row["code"]), remark)
    return tag("div", tag("span", i + 1, class_="number"), body, where, class_="row" + " live" * bool(known), **known)
