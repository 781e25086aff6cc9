"""Preloading: a backend's needs, once in a process, are made beside the first calls; forks and errors do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tapejit as tj
from tapejit.codegen.llvm.runtime import load_library as opening
from tapejit.tracer.execute import preload as preparing
from tapejit.tracer.execute.backends import BACKENDS

FORKING = """
import os
import tapejit as tj

f = tj.compile(lambda x: (x.exp() * 2).sum(), backend="llvm")
children = []
for i in range(6):  # while modules are imported, and after that
    child = os.fork()
    if child == 0:
        found = [f(tj.ones(3)).item() for _ in range(4)]
        os._exit(0 if max(abs(x - 16.309691) for x in found) < 1e-4 and f.traces[0].programs else 1)
    children.append(child)
    for _ in range(i * 20000):
        pass
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
print(f(tj.ones(3)).item() > 0)
"""


class Loaders:
    """The backends' `preload`, by name."""

    def __init__(self, monkeypatch: Any) -> None:
        self.monkeypatch = monkeypatch
        for name in BACKENDS:
            self[name] = None

    def __setitem__(self, name: str, preload: Any) -> None:
        self.monkeypatch.setitem(BACKENDS, name, replace(BACKENDS[name], preload=preload))


@pytest.fixture
def loaders(monkeypatch: Any) -> Iterator[Loaders]:
    monkeypatch.setattr(preparing, "_begun", set())
    yield Loaders(monkeypatch)


def settle() -> None:
    for thread in threading.enumerate():
        if thread.name == "tapejit-prepare":
            thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forks_while_it_is_made(tmp_path: Path) -> None:
    settings = {**os.environ, "TAPEJIT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", FORKING], env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_what_is_imported_while_a_fork_waits_is_told_of_all_of_it(loaders: Loaders, monkeypatch: Any) -> None:
    """Python has its list of what comes before a fork by then, but not that of what comes after it."""
    called: list[str] = []
    importing = threading.Event()

    class Locks:
        def before_fork(self) -> None:
            called.append("before")

        def after_fork(self) -> None:
            called.append("after")

        def after_fork_in_child(self) -> None:
            called.append("in child")

    def load() -> Any:
        importing.set()
        time.sleep(0.2)  # meanwhile the fork begins, and waits
        preparing.notify_forks(Locks())
        return lambda: None

    monkeypatch.setattr(preparing, "_registered", [])
    loaders["llvm"] = load
    tj.compile(lambda x: x, backend="llvm")
    importing.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of Python warn of forks beside threads
        child = os.fork()
    if child == 0:
        os._exit(0 if called == ["before", "in child"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert called == ["before", "after"]


def test_it_is_made_once(loaders: Loaders) -> None:
    made: list[str] = []
    loaders["llvm"] = lambda: made.append("loaded") or (lambda: made.append("made"))  # type: ignore[func-returns-value]
    for _ in range(3):
        tj.compile(lambda x: x, backend="llvm")
    tj.compile(lambda x: x, backend="plain")
    settle()
    assert made == ["loaded", "made"]


def test_switched_off_nothing_is_made(loaders: Loaders, monkeypatch: Any) -> None:
    monkeypatch.setenv("TAPEJIT", "eager")
    loaders["llvm"] = lambda: pytest.fail("it is loaded")
    tj.compile(lambda x: x, backend="llvm")
    settle()
    assert not preparing._begun


def test_what_goes_wrong_is_told_where_a_program_is_made(loaders: Loaders, monkeypatch: Any) -> None:
    def missing() -> Any:
        raise ImportError("there is no such module")

    loaders["llvm"] = missing
    f = tj.compile(lambda x: x + 1, backend="llvm")
    settle()
    assert [f(tj.ones(2)).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4 and not preparing._begun


def test_a_wrong_setting_is_told_where_it_is_used(loaders: Loaders, monkeypatch: Any) -> None:
    monkeypatch.setenv("TAPEJIT_BACKEND", "nonsense")
    f = tj.compile(lambda x: x + 1)
    with pytest.raises(ValueError, match="TAPEJIT_BACKEND is 'nonsense'"):
        f(tj.ones(2))


IMPORTED = """
import sys
import tapejit as tj

kind = sys.argv[1]
functions = {
    "loops": (lambda x: (x.exp() * 2).sum(), [tj.ones(6, 8)]),
    "matmul": (lambda x: (x @ x).sum(), [tj.ones(8, 8)]),
    "convolution": (lambda x: tj.nn.functional.conv2d(x, x).sum(), [tj.ones(1, 2, 8, 8)]),
    "attention": (lambda x: tj.nn.functional.scaled_dot_product_attention(x, x, x).sum(), [tj.ones(1, 2, 8, 8)]),
}
function, given = functions[kind]
compiled = tj.compile(function, backend="llvm")
assert abs(compiled(*given).item() - function(*given).item()) < 1e-3
(segment,) = compiled.traces[0].programs.values() if compiled.traces else compiled.candidate.programs.values()
assert segment.native is not None
names = ("build", "gemm.select_kernel", "conv.from_graph", "attention.forward")
print(*[name for name in names if f"tapejit.codegen.llvm.{name}" in sys.modules])
"""


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        ("loops", "build"),
        ("matmul", "build gemm.select_kernel"),
        ("convolution", "build gemm.select_kernel conv.from_graph"),
        ("attention", "build attention.forward"),
    ],
)
def test_what_is_not_needed_is_not_imported(kind: str, needed: str, tmp_path: Path) -> None:
    """Modules of the code generator; if a program comes from disk, none that makes one."""
    settings = {**os.environ, "TAPEJIT_CACHE_DIR": str(tmp_path / "cache"), "TAPEJIT_CACHE": "1"}
    for expected in (needed, ""):
        command = [sys.executable, "-c", IMPORTED, kind]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout.strip() == expected, done.stderr


OPENING = """
import sys
from tapejit.codegen.llvm.runtime.load_library import load_without_gil

print(load_without_gil(), "llvmlite.binding" in sys.modules)
import llvmlite.binding

print(llvmlite.binding.llvm_version_info > (0,), load_without_gil())
"""


def test_the_library_is_loaded_before_llvmlite() -> None:
    """And not again."""
    ran = subprocess.run([sys.executable, "-c", OPENING], capture_output=True, text=True, timeout=120)
    expected = "True False" if os.name == "posix" else "False False"
    assert ran.stdout.splitlines() == [expected, "True False"], ran.stderr


def test_a_library_that_is_not_there_is_llvmlites_affair(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "llvmlite.binding", raising=False)
    monkeypatch.setattr(opening.importlib.util, "find_spec", lambda name: None)
    assert not opening.load_without_gil()
    monkeypatch.setattr(opening.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    assert not opening.load_without_gil()
    if os.name == "posix":
        (tmp_path / "binding").mkdir()
        (tmp_path / "binding" / ("libllvmlite.dylib" if sys.platform == "darwin" else "libllvmlite.so")).write_text(
            "no library"
        )
        assert not opening.load_without_gil()
