"""Packages: each says what flows in and out, and no function hides a module of the same name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import ROOT

LAYERS = ("eager", "tracer", "codegen")
IN_AND_OUT = re.compile(r"\bIn:\s[\w`].*?\.\sOut:\s[\w`]", re.S)
# A function or class of PyTorch in a file of the same name, in the package that exports it: PyTorch has both there.
OF_PYTORCH = {"eager.autograd.gradcheck", "eager.nn.utils.spectral_norm", "eager.nn.utils.weight_norm"}
NOT_IMPORTED = {"codegen.triton.printing.device_functions"}  # imports Triton, which need not be installed


def packages() -> list[str]:
    found = [init.parent.relative_to(ROOT) for layer in LAYERS for init in sorted((ROOT / layer).rglob("__init__.py"))]
    return [".".join(path.parts) for path in found]


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_flows_in_and_out(package: str) -> None:
    text = Path(ROOT, *package.split("."), "__init__.py").read_text(encoding="utf-8")
    assert IN_AND_OUT.search(ast.get_docstring(ast.parse(text)) or ""), f"{package} does not say 'In: ... Out: ...'"


@pytest.mark.parametrize("text", ["", "Prints a loop nest.", "In: a nest.", "Out: kernels. In: a nest.", "In: . Out: kernels."])
def test_other_docstrings_do_not_say_it(text: str) -> None:
    assert not IN_AND_OUT.search(text)


def hidden_modules(package: ModuleType, folder: Path) -> set[str]:
    """Names of modules and packages in a folder that are something else as attributes of its package."""
    files = [p.stem for p in folder.glob("*.py") if p.stem != "__init__"]
    found = set[str]()
    for name in [*files, *[p.parent.name for p in folder.glob("*/__init__.py")]]:
        full = f"{package.__name__}.{name}"
        short = full.removeprefix("tapejit.")
        if short not in NOT_IMPORTED:
            module = importlib.import_module(full)
            found |= set() if getattr(package, name, None) is module else {short}
    return found


def test_no_name_hides_a_module() -> None:
    """`import tapejit.a.b as m` gives the attribute `b` of `tapejit.a`, whatever that is."""
    found = set[str]()
    for package in packages():
        found |= hidden_modules(importlib.import_module(f"tapejit.{package}"), Path(ROOT, *package.split(".")))
    assert found - OF_PYTORCH == set(), "rename the module, or the function that its package exports"
    assert OF_PYTORCH - found == set(), "no longer hidden: remove it from the list"


def test_a_hidden_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tapejit_hiding"
    folder.mkdir()
    (folder / "compare.py").write_text("def compare(): ...\n")
    (folder / "ulps.py").write_text("")
    (folder / "__init__.py").write_text("from .compare import compare\nfrom . import ulps\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert hidden_modules(importlib.import_module("tapejit_hiding"), folder) == {"tapejit_hiding.compare"}


# ---- docs/layout.md


def layout() -> str:
    return (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")


def test_the_layout_has_a_row_for_each_package() -> None:
    rows = {name for line in layout().splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+/[\w/]+)/`", line)}
    assert rows >= {package.replace(".", "/") for package in packages() if package.count(".") == 1}
    assert not [name for name in rows if not (ROOT / name).is_dir()]


def test_files_of_the_layout_are_there() -> None:
    """Whole paths. In a walk and in a row, a bare file name is one in the folder of the path before it, or above that."""
    found = 0
    for line in layout().splitlines():
        folder = ROOT
        for path in re.findall(r"[\w/]+\.py\b", line):
            whole = path.partition("/")[0] in (*LAYERS, "tests", "bench")
            places = [ROOT / path] if whole or folder is ROOT else [folder / path, folder.parent / path]
            there = next((p for p in places if p.exists()), None)
            assert there is not None, f"{path}, in: {line.strip()}"
            folder, found = there.parent, found + 1
    assert found > 60
