"""The disk cache: entries come back whole or not at all, whatever happens to the folder."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tapejit.codegen.program import disk_cache as cache

LONG_AGO = time.time() - 10 * cache.STALE


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each test has a cache of its own."""
    for name in ("TAPEJIT_CACHE", "TAPEJIT_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / "cache"
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(found))
    cache._cache_in.cache_clear()
    yield found
    cache._cache_in.cache_clear()


def entry(folder: Path, name: str) -> Path:
    return folder / (name + cache.SUFFIX)


def test_what_is_put_comes_back(folder: Path) -> None:
    name = cache.key("a text", "a cpu")
    assert cache.get(name) is None
    for data in (b"\0code\xff" * 1000, b"", b"newer"):
        cache.put(name, data)
        assert cache.get(name) == data
    assert [path.name for path in folder.iterdir()] == [name + cache.SUFFIX]


def test_keys_depend_on_every_part_and_on_where_parts_end() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("c", "ab"), ("é",), ()]
    assert len({cache.key(*p) for p in parts}) == len(parts)
    assert cache.key("x", "y") == cache.key("x", "y")


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_is_noticed_and_the_entry_removed(folder: Path, seed: int) -> None:
    name = cache.key("text")
    data = random.Random(seed).randbytes(100)
    cache.put(name, data)
    path = entry(folder, name)
    content = bytearray(path.read_bytes())
    content[random.Random(seed).randrange(len(content))] ^= 1 << seed % 8
    path.write_bytes(content)
    assert cache.get(name) is None
    assert not path.exists()
    cache.put(name, data)
    assert cache.get(name) == data


@pytest.mark.parametrize("length", [0, 1, 8, 39, 40, 41, 139])
def test_an_entry_cut_short_is_noticed(folder: Path, length: int) -> None:
    name = cache.key("text")
    cache.put(name, bytes(100))
    path = entry(folder, name)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get(name) is None
    assert not path.exists()


def test_an_entry_under_anothers_name_is_not_taken_for_it(folder: Path) -> None:
    one, other = cache.key("one"), cache.key("other")
    cache.put(one, b"of one")
    os.rename(entry(folder, one), entry(folder, other))
    assert cache.get(other) is None


def test_an_entry_that_is_a_folder_or_cannot_be_read_is_ignored(folder: Path) -> None:
    name = cache.key("text")
    cache.put(cache.key("other"), b"")
    entry(folder, name).mkdir()
    assert cache.get(name) is None


# ---- which folder


def test_the_folder_is_for_its_owner_alone(folder: Path) -> None:
    cache.put(cache.key("x"), b"x")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry(folder, cache.key("x")).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_is_refused_with_one_warning(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"\[cache\].*others can write") as said:
        cache.put(cache.key("x"), b"x")
        cache.put(cache.key("x"), b"x")
        assert cache.get(cache.key("x")) is None
    assert len(said) == 1
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: folder.parent.stat().st_uid + 1)
    with pytest.warns(RuntimeWarning, match="belongs to somebody else"):
        cache.put(cache.key("x"), b"x")
    assert cache.get(cache.key("x")) is None


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TAPEJIT_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache._folder() == str(tmp_path / "home" / ".cache" / "tapejit")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache._folder() == str(tmp_path / "xdg" / "tapejit")


def test_it_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    cache.put(cache.key("x"), b"x")
    assert cache.get(cache.key("x")) is None
    assert not folder.exists()


# ---- disks that do not cooperate


def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    folder.write_text("a file is in its place")
    with pytest.warns(RuntimeWarning, match=r"\[cache\] nothing is kept") as said:
        for _ in range(3):
            cache.put(cache.key("x"), b"x")
            assert cache.get(cache.key("x")) is None
    assert len(said) == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
def test_a_full_or_read_only_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    before = cache.key("before")
    cache.put(before, b"was there before")
    real = os.write
    written = [0]

    def write(file: int, data: bytes) -> int:
        written[0] += 1
        if written[0] > 1:
            raise OSError(error, os.strerror(error))
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", write)
    with pytest.warns(RuntimeWarning, match=r"\[cache\] no more is kept") as said:
        cache.put(cache.key("x"), bytes(1000))
        cache.put(cache.key("y"), bytes(1000))
    assert len(said) == 1
    assert [path.name for path in folder.iterdir()] == [before + cache.SUFFIX]  # nothing half-written is left
    assert cache.get(before) == b"was there before"
    assert cache.get(cache.key("x")) is None


def test_a_folder_that_vanishes(folder: Path) -> None:
    cache.put(cache.key("x"), b"x")
    entry(folder, cache.key("x")).unlink()
    folder.rmdir()
    assert cache.get(cache.key("x")) is None
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cache.put(cache.key("x"), b"x")


# ---- size


def names(folder: Path) -> set[str]:
    return {path.name.removesuffix(cache.SUFFIX) for path in folder.iterdir()}


def test_the_least_recently_used_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_SIZE", "1")
    keys = [cache.key(str(i)) for i in range(12)]
    for i, name in enumerate(keys[:9]):
        cache.put(name, bytes(100_000))
        os.utime(entry(folder, name), (LONG_AGO + i, LONG_AGO + i))
    assert cache.get(keys[0]) is not None  # which makes it the last one used
    for name in keys[9:]:
        cache.put(name, bytes(100_000))
    left = names(folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= cache.MEGABYTE
    assert {keys[0], keys[9], keys[10], keys[11]} <= left
    assert keys[1] not in left
    gone = [i for i, name in enumerate(keys) if name not in left]
    assert gone == list(range(1, 1 + len(gone)))


def test_what_other_processes_wrote_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_SIZE", "1")
    for i in range(20):
        other = cache.Cache(folder, 1 << 40)  # has no limit that would matter here
        other.put(cache.key("other", str(i)), bytes(100_000))
    cache.put(cache.key("own"), b"x")
    assert sum(path.stat().st_size for path in folder.iterdir()) <= cache.MEGABYTE
    assert cache.get(cache.key("own")) == b"x"


def test_an_entry_larger_than_the_limit_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_SIZE", "0.001")
    cache.put(cache.key("small"), b"small")
    cache.put(cache.key("large"), bytes(2000))
    assert names(folder) == {cache.key("small")}


def test_a_size_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_SIZE", "lots")
    with pytest.warns(UserWarning, match="not a number of megabytes"):
        cache.put(cache.key("x"), b"x")
    assert cache.get(cache.key("x")) == b"x"


def test_unfinished_files_are_removed_when_their_writer_is_long_gone(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    old, young, foreign = folder / f"a{cache.UNFINISHED}", folder / f"b{cache.UNFINISHED}", folder / "notes.txt"
    for path in (old, young, foreign):
        path.write_bytes(b"half")
    for path in (old, foreign):
        os.utime(path, (LONG_AGO, LONG_AGO))
    cache.put(cache.key("x"), b"x")
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()


# ---- several processes

WRITER = """
import random, sys
from tapejit.codegen.program import disk_cache as cache
mine = random.Random(int(sys.argv[1]))
for _ in range(150):
    number = mine.randrange(10)
    name = cache.key(str(number))
    found = cache.get(name)
    assert found is None or found == bytes([number]) * 20_000, "an entry came back wrong"
    cache.put(name, bytes([number]) * 20_000)
"""


def test_processes_that_write_and_evict_at_the_same_time(folder: Path) -> None:
    environment = {**os.environ, "TAPEJIT_CACHE_SIZE": "0.1"}  # room for five of ten
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WRITER, str(i)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for i in range(3)
    ]
    for process in running:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert not [path for path in folder.iterdir() if path.name.endswith(cache.UNFINISHED)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(10):
            assert cache.get(cache.key(str(number))) in (None, bytes([number]) * 20_000)
