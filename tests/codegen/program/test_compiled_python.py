"""Python that is written for programs comes from the disk cache, and is what its text says whatever is found there."""

from __future__ import annotations

import builtins
import marshal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tapejit.codegen.program import compiled_python as written
from tapejit.codegen.program import disk_cache as cache

TEXT = "\n".join(["def f(x):", *[f"    x += {i}" for i in range(500)], "    return x"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each test has a cache of its own."""
    monkeypatch.delenv("TAPEJIT_CACHE", raising=False)
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path))
    cache._cache_in.cache_clear()
    yield tmp_path
    cache._cache_in.cache_clear()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that Python compiles."""
    seen: list[str] = []

    def compile_and_note(text: str, *rest: Any) -> Any:
        seen.append(text)
        return builtins.compile(text, *rest)

    monkeypatch.setattr(written, "compile", compile_and_note, raising=False)
    return seen


def result(text: str) -> int:
    space: dict[str, Any] = {}
    written.exec_cached(text, "test", space)
    assert space["f"].__code__.co_filename.startswith("<tapejit test ")
    return space["f"](1)  # type: ignore[no-any-return]


def test_a_long_text_is_compiled_once(compiled: list[str]) -> None:
    assert [result(TEXT) for _ in range(3)] == [1 + sum(range(500))] * 3
    assert compiled == [TEXT]
    assert result(TEXT.replace("499", "599")) == 101 + sum(range(500)) and len(compiled) == 2


def test_a_short_text_is_not_kept(compiled: list[str], folder: Path) -> None:
    assert [result("def f(x): return x + 1") for _ in range(2)] == [2, 2]
    assert len(compiled) == 2 and not list(folder.iterdir())


def test_without_a_cache(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    assert [result(TEXT) for _ in range(2)] == [1 + sum(range(500))] * 2
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "data", [b"", b"nothing that Python knows", marshal.dumps("no code"), marshal.dumps(compile("1", "", "eval"))[:9]]
)
def test_what_is_no_code_is_compiled_again(data: bytes, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    put = cache.put
    monkeypatch.setattr(cache, "put", lambda name, content: (names.append(name), put(name, content))[1])
    result(TEXT)
    put(names[0], data)
    assert result(TEXT) == 1 + sum(range(500)) and len(compiled) == 2
    assert result(TEXT) == 1 + sum(range(500)) and len(compiled) == 2


def test_another_python_compiles_for_itself(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    result(TEXT)
    monkeypatch.setattr(written.importlib.util, "MAGIC_NUMBER", b"another")
    result(TEXT)
    assert len(compiled) == 2
