"""Import order of the layers, the cost of `import tapejit`, and the wheel's list of packages."""

from __future__ import annotations

import ast
import os
import pathlib
import statistics
import subprocess
import sys
import tomllib

import pytest
from support.paths import ROOT, TESTS

LAYERS = ("eager", "tracer", "codegen")
# Folders a layer's relative imports may not reach, and modules nothing may import when it is itself imported.
FORBIDDEN = {"eager": ("tracer", "codegen"), "tracer": ("codegen",), "codegen": ()}
# Stages of a layer, each a package or a file of the layer's folder, in the order in which they may import: only from the left.
ORDER: dict[str, tuple[str, ...]] = {
    "eager": (
        "arrays", "core", "viz", "ops", "distributed", "random", "legacy", "cuda", "accelerator", "backends", "linalg",
        "autograd", "nn", "optim", "amp", "utils", "distributions", "serialization",
    ),
    "tracer": (
        "trace", "graph", "execute", "guards", "regions", "record", "backward", "replay", "first_call", "purity", "skip", "api",
        "tools",
    ),
    "codegen": ("ir", "lowering", "prepare", "schedule", "nests", "program", "llvm", "triton", "inspect"),
    "codegen/llvm": (
        "ir", "math", "loops", "gemm", "runtime", "tuning", "conv", "attention", "contractions", "step_function", "thread_cost",
        "nontemporal_stores", "prologue_cost", "executable", "build", "program",
    ),
    "codegen/triton": (
        "printing", "device", "attention", "loops", "matmul", "launches", "runtime", "executable", "build", "export", "program",
    ),
}  # fmt: skip
# (file, stage to its right that it imports). This may only shrink: an entry that is no longer needed fails too.
ORDER_EXCEPTIONS: set[tuple[str, str]] = set()
NEVER = {"torch", "scipy", "jax", "tinygrad"}
LAZY = {"cupy", "cupyx", "triton"}
DEVICE_FUNCTIONS = ROOT / "codegen" / "triton" / "printing" / "device_functions.py"  # is written in Triton's language


def sources(layer: str) -> list[pathlib.Path]:
    return sorted((ROOT / layer).rglob("*.py"))


def imports(path: pathlib.Path) -> list[tuple[str, bool]]:
    """The dotted names a file imports, relative ones worked out, and whether that happens when the file is imported."""
    package = ("tapejit", *path.relative_to(ROOT).parent.parts)
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *((node.module,) if node.module else ())))
            found.extend((f"{stem}.{alias.name}", at_import) for alias in node.names)
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                visit(child, at_import and not inside)

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_downwards_only(layer: str) -> None:
    for path in sources(layer):
        for name, _ in imports(path):
            for other in FORBIDDEN[layer]:
                assert not f"{name}.".startswith(f"tapejit.{other}."), f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("layer", ORDER)
def test_every_stage_has_a_place_in_the_order(layer: str) -> None:
    present = {path.relative_to(ROOT / layer).parts[0].removesuffix(".py") for path in sources(layer)} - {"__init__"}
    assert present == set(ORDER[layer])


def test_stages_import_from_the_left_only() -> None:
    upwards = set()
    for layer, order in ORDER.items():
        for path in sources(layer):
            stage = path.relative_to(ROOT / layer).parts[0].removesuffix(".py")
            if stage == "__init__":
                continue
            for name, _ in imports(path):
                above, _, inside = name.removeprefix("tapejit.").partition(f"{layer.replace('/', '.')}.")
                other = inside.partition(".")[0]
                if not above and other in order and order.index(other) > order.index(stage):
                    upwards.add((path.relative_to(ROOT).as_posix(), other))
    assert upwards <= ORDER_EXCEPTIONS, f"imports of a later stage: {sorted(upwards - ORDER_EXCEPTIONS)}"
    assert upwards >= ORDER_EXCEPTIONS, f"no longer needed in ORDER_EXCEPTIONS: {sorted(ORDER_EXCEPTIONS - upwards)}"


def test_nothing_imports_other_frameworks() -> None:
    for path in [ROOT / "__init__.py", *(p for layer in LAYERS for p in sources(layer))]:
        for name, at_import in imports(path):
            top = name.partition(".")[0]
            assert top not in NEVER, f"{path.relative_to(ROOT)} imports {name}"
            lazy = top in LAZY and path != DEVICE_FUNCTIONS
            assert not (lazy and at_import), f"{path.relative_to(ROOT)} imports {name} when it is imported itself"


def test_nothing_imports_the_tools() -> None:
    """explain, diff, report, the profiler and the command line are attached by the root; nothing depends on them."""
    tools = ROOT / "tracer" / "tools"
    for path in (p for layer in LAYERS for p in sources(layer) if tools not in p.parents):
        for name, _ in imports(path):
            assert not f"{name}.".startswith("tapejit.tracer.tools."), f"{path.relative_to(ROOT)} imports {name}"


def test_eager_runs_alone() -> None:
    code = (
        "import sys; import tapejit.eager; "
        "print([m for m in sys.modules if m.split('.')[0] in ('cupy', 'triton', 'torch', 'scipy', 'llvmlite')])"
    )
    assert run(code) == "[]"


def run(code: str, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_quick(tmp_path: pathlib.Path) -> None:
    """Under 0.25 s of work once the bytecode is there; on a machine too busy to tell, not far beyond NumPy's own share."""
    code = (
        "import time; a = time.process_time(); import numpy; b = time.process_time(); import tapejit; c = time.process_time(); "
        "print(b - a, c - b)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    run(code, environment)
    times: list[tuple[float, float]] = []
    while len(times) < 5 and min(map(sum, times), default=1.0) > 0.25:
        numpy, ours = map(float, run(code, environment).split())
        times.append((numpy, ours))
    total = min(map(sum, times))
    ratio = statistics.median(ours / numpy for numpy, ours in times)
    assert total < 0.25 or ratio < 2, f"import tapejit takes {total:.3f} s, {ratio:.1f} times as long as import numpy"


def test_the_wheel_has_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    present = {"tapejit"}
    for layer in LAYERS:
        for init in (ROOT / layer).rglob("__init__.py"):
            present.add(".".join(("tapejit", *init.parent.relative_to(ROOT).parts)))
        for path in sources(layer):
            assert (path.parent / "__init__.py").exists(), f"{path.relative_to(ROOT)} is in no package"
    assert set(settings["packages"]) == present
