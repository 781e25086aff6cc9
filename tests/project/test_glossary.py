"""Words that the glossary retired do not come back: not in code, comments or messages of the product, not in its pages."""

from __future__ import annotations

import re

import pytest
from support.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
# Words of the glossary's last column that mean nothing else here. The others have a sound use too (a product of elements,
# a sum, a plan), which no test can tell apart.
RETIRED = (
    "blueprint", "exposure", "foresee", "foretold", "guest", "lender", "lent", "loans", "on_load", "on_packing",
    "past the caches", "plain program", "recipe", "riddles", "strangers", "what follows a product", "witness",
)  # fmt: skip
# Constants that bound something are called MAX_x or MIN_x of what they bound.
VAGUE_LIMIT = re.compile(r"^(?:MOST_\w+|(?:MOST|LONGEST|FEWEST|LEAST|MANY)\b)", re.MULTILINE)
SOURCES = sorted(
    p for pattern in ("*.py", "eager/**/*.py", "tracer/**/*.py", "codegen/**/*.py", "bench/*.py") for p in ROOT.glob(pattern)
)
PAGES = sorted(p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if p not in (GLOSSARY, ROOT / "CHANGELOG.md"))


def words(text: str) -> str:
    """Spell identifiers as words: `plain_program`, `PlainProgram` and `plain program` become the same text."""
    return re.sub(r"[\s_]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()


def pattern(word: str) -> re.Pattern[str]:
    """Match a word with its endings, but not inside of another word."""
    return re.compile(rf"(?<![a-z]){re.escape(re.sub(r'(?<!s)s$', '', word))}(?:s|es|n|ed)?(?![a-z])")


def found_in(text: str) -> list[str]:
    """Find retired words; identifiers among them as they are written."""
    spelt = words(text)
    return [word for word in RETIRED if (word in text if "_" in word else pattern(word).search(spelt))]


def older_words() -> set[str]:
    """Words of the glossary's last column."""
    rows = [line.strip("|").split("|") for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| **")]
    return {word.strip() for row in rows for word in row[-1].split(",") if word.strip()}


def test_retired_words_are_in_the_glossary() -> None:
    assert set(RETIRED) <= older_words()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("class PlainProgram:", "plain program"),
        ("run_plain_programs(x)", "plain program"),
        ("# what cannot be foreseen", "foresee"),
        ("the stores go past the\n    caches", "past the caches"),
        ("on_load = 1", "on_load"),
        ("Witnesses", "witness"),
    ],
)
def test_words_are_found_however_they_are_spelt(text: str, word: str) -> None:
    assert found_in(text) == [word]


@pytest.mark.parametrize("text", ["silently", "excellent", "plain programming", "from here on packing pays", "guesses"])
def test_other_words_are_not_meant(text: str) -> None:
    assert not found_in(text)


def test_retired_words_stay_retired() -> None:
    assert len(SOURCES) > 400 and len(PAGES) > 20
    found = {str(p.relative_to(ROOT)): found_in(p.read_text(encoding="utf-8")) for p in [*SOURCES, *PAGES]}
    assert not {path: what for path, what in found.items() if what}


def test_limits_say_of_what() -> None:
    assert (
        VAGUE_LIMIT.search("x = 1\nMOST = 40")
        and VAGUE_LIMIT.search("MOST_TEXT = 3")
        and not VAGUE_LIMIT.search("MAX_BARS = 4")
    )
    found = {str(p.relative_to(ROOT)): VAGUE_LIMIT.findall(p.read_text(encoding="utf-8")) for p in SOURCES}
    assert not {path: names for path, names in found.items() if names}
