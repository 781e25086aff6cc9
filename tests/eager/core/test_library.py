"""Trust, cache keys and user lines do not depend on where files lie: modules are moved and functions renamed here."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.codegen.lowering import definitions, op_lowering, random_ops, unroll_reductions
from tapejit.codegen.program import cache_key as names
from tapejit.codegen.triton.runtime import kernel_cache as binaries
from tapejit.eager.autograd import anomaly
from tapejit.eager.core import library
from tapejit.tracer.guards.code_observer import CodeObserver
from tapejit.tracer.purity import believed
from tapejit.tracer.regions import function_region as calls
from tapejit.tracer.regions import module_region as modules
from tapejit.tracer.skip import optimizer_state as pure_updates
from tapejit.tracer.trace.call_frame import CALLS_LIBRARY, calls_library
from tapejit.tracer.trace.trace import user_line

Import = Callable[[str, str], ModuleType]
RULES = (op_lowering, random_ops, unroll_reductions)
RULE_MODULES = {module.__name__ for module in RULES}


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[Import]:
    """Imports a text under any module name, as if its file lay there."""
    made: list[str] = []

    def load(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        made.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in made:
        del sys.modules[name]
    library._marker.cache_clear()


# ---- what is the library's


@pytest.mark.parametrize("name", ["tapejit", "tapejit.eager", "tapejit.eager.some.day.moved", "tapejit.codegen.llvm.deep.er"])
def test_modules_are_known_by_their_package(name: str) -> None:
    assert library.is_library(name)


@pytest.mark.parametrize("name", ["", "tapejitter", "tapejit_extra.eager", "my.tapejit.eager", "__main__", "numpy"])
def test_modules_of_others(name: str) -> None:
    assert not library.is_library(name)


def test_layers_are_whole_names() -> None:
    assert library.is_library("tapejit.eager.x", "eager") and library.is_library("tapejit.eager", "eager")
    assert not library.is_library("tapejit.eager_tools", "eager") and not library.is_library("tapejit.tracer.x", "eager")


def test_functions_classes_frames_and_code() -> None:
    assert library.is_library(tj.nn.Linear) and library.is_library(tj.nn.Linear.forward.__code__, "eager")
    assert library.is_library(compile("1", "<tapejit entry>", "eval")) and not library.is_library(sys._getframe())
    assert not library.is_library(test_layers_are_whole_names) and not library.is_library(Import)


# ---- trust: by a marker, never by how a name begins


def test_a_module_whose_name_only_begins_like_a_trusted_one(imported: Import) -> None:
    """`eager.op` was matched as a prefix, so that eager.optimistic, or eager.optim, counted as ops."""
    text = "def f(x):\n    print(x)\n    return x\n"
    for name in ("tapejit.eager.optimistic", "tapejit.eager.opsy", "tapejit.eager.nnx", "tapejit.eager.optimum"):
        assert library.trust_of(imported(name, text).f) is None
        assert not believed.believes(sys.modules[name].f) and not believed.is_layer_code(sys.modules[name].f)


def test_a_moved_module_takes_the_trust_of_where_it_goes(imported: Import) -> None:
    text = "def f(x):\n    return x\n"
    assert library.trust_of(imported("tapejit.eager.ops.deeper", text).f) == library.OPS
    assert library.trust_of(imported("tapejit.eager.nn.elsewhere", text).f) == library.MODULES
    assert library.trust_of(imported("tapejit.eager.elsewhere", text).f) is None
    assert library.trust_of(imported("tapejit.eager.with_marker", text + "TRUST = 'ops'\n").f) == library.OPS


def test_markers_of_the_library() -> None:
    assert library.trust_of(tj.nn.LSTM.forward) == library.MODULES and library.trust_of(tj.optim.AdamW) == library.OPTIMIZERS
    assert library.trust_of("tapejit.eager.serialization") is None and library.trust_of(tj.save) is None


def test_trust_outside_of_the_library_means_nothing(imported: Import) -> None:
    assert library.trust_of(imported("user_ops", "TRUST = 'ops'\ndef f(x):\n    return x\n").f) is None


def test_moved_layers_stay_regions(imported: Import) -> None:
    """A layer in a new subpackage of nn is the library's, a class beside nn is not."""
    text = "import tapejit\nclass Layer(tapejit.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    assert modules.is_library_layer(imported("tapejit.eager.nn.deep", text).Layer())
    assert not modules.is_library_layer(imported("tapejit.eager.beside", text).Layer())
    assert calls.is_setting(tj.nn.functional.relu, False) and not calls.is_setting(len_of, False)


def test_moved_optimizers_stay_known(imported: Import) -> None:
    text = "import tapejit\nclass O(tapejit.optim.SGD):\n    def update(self, *args):\n        return super().update(*args)\n"
    parameter = tj.nn.Parameter(tj.ones(2))
    assert pure_updates.follows_declarations(imported("tapejit.eager.optim.deep", text).O([parameter]))
    assert not pure_updates.follows_declarations(imported("tapejit.eager.optimal", text).O([parameter]))


# ---- the observer of recordings


def test_renamed_functions_of_the_tracer_are_still_looked_through(imported: Import) -> None:
    text = (
        "from tapejit.tracer.trace.call_frame import calls_library\n"
        "import tapejit\n"
        "@calls_library\n"
        "def any_name(x):\n    return tapejit.nn.functional.softmax(x, -1)\n"
        "def module(x):\n    return tapejit.nn.functional.softmax(x, -1)\n"
    )
    tracer = imported("tapejit.tracer.renamed", text)
    softmax = tj.nn.functional.softmax.__wrapped__.__code__
    for function, seen in ((tracer.any_name, True), (tracer.module, False)):
        with CodeObserver().observing() as ran:
            function(tj.ones(3))
        assert (id(softmax) in ran) is seen
    CALLS_LIBRARY.discard(tracer.any_name.__code__)
    assert calls_library(len_of) is len_of


def len_of(x: Any) -> int:
    return len(x)


def test_entries_of_the_recorder_are_marked() -> None:
    from tapejit.tracer.record.recorder import Recorder
    from tapejit.tracer.replay.replayer import Replayer

    for cls in (Recorder, Replayer):
        for name in ("call_module", "call_functional", "optimizer_step", "backward"):
            assert getattr(cls, name).__code__ in CALLS_LIBRARY


# ---- user lines


def test_lines_of_moved_modules_are_not_the_users() -> None:
    """Code of the library is passed over by the folder of the package, however deep its file lies."""
    deep = str(Path(library.ROOT) / "eager" / "a" / "b" / "c.py")
    space: dict[str, Any] = {"user_line": user_line, "user_stack": anomaly.user_stack}
    exec(compile("def line():\n    return user_line()\ndef stack():\n    return user_stack()\n", deep, "exec"), space)
    assert space["line"]().startswith(__file__)
    assert deep not in space["stack"]() and __file__ in space["stack"]()


# ---- cache keys


def test_every_source_below_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("codegen/llvm/gemm", "codegen/triton/device", "codegen/ir", "eager/ops/shape"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file.py").write_text("first")
    monkeypatch.setattr(library, "ROOT", str(tmp_path))
    source = names.source_hash.__wrapped__
    for path in ("codegen/llvm/gemm", "codegen/ir", "eager/ops/shape", "codegen/triton/device"):
        before, of_triton = source("llvm"), source("triton")
        (tmp_path / path / "file.py").write_text("second")
        assert (source("llvm") != before) is (path != "codegen/triton/device")
        assert (source("triton") != of_triton) is (path != "codegen/llvm/gemm")


def test_a_moved_source_is_another_key(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("text")
    before = library.hash_sources(str(tmp_path))
    assert library.hash_sources(str(tmp_path)) == before
    (tmp_path / "a" / "x.py").rename(tmp_path / "x.py")
    assert library.hash_sources(str(tmp_path)) != before


def test_the_whole_generator_is_in_the_key() -> None:
    """Each file of codegen/ and eager/ that this target may run changes the hash."""
    root = Path(library.ROOT)
    own = {p for layer in ("codegen", "eager") for p in (root / layer).rglob("*.py")}
    others = set((root / "codegen" / "triton").rglob("*.py"))
    read: list[str] = []
    real = open

    def watched(path: Any, *rest: Any, **more: Any) -> Any:
        read.append(str(path))
        return real(path, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "open", watched, raising=False)
        names.source_hash.__wrapped__("llvm")
    assert {Path(p) for p in read} == own - others


def test_a_lowering_rule_of_the_users_is_noticed_without_importing_the_rules() -> None:
    code = (
        "import tapejit as tj, sys\n"
        "from tapejit.codegen.program.cache_key import has_library_meaning\n"
        "from tapejit.codegen.lowering.definitions import define\n"
        "from tapejit.eager.core.op import PRIMITIVES\n"
        "op = PRIMITIVES['exp']\n"
        "first = has_library_meaning(op)\n"
        "define('exp')(lambda *a: None)\n"
        f"print(first, has_library_meaning(op), {RULE_MODULES} & sys.modules.keys())\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=2) == ["True", "False", "set()\n"]


def test_the_modules_with_lowering_rules_are_those_that_must_not_be_imported() -> None:
    """Without this the test before it could not fail after a rename."""
    registered = {d.__module__ for d in definitions.DEFINITIONS.values() if library.is_library(d)}
    assert registered and registered <= RULE_MODULES
    files = Path(library.ROOT, "codegen").rglob("*.py")
    defining = {f.stem for f in files if re.search(r"^@define\(", f.read_text(encoding="utf-8"), re.M)}
    assert defining == {name.rpartition(".")[2] for name in RULE_MODULES}


def test_kernels_cache_keys_hold_what_compiles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(binaries, "file_of", lambda name: read.append(name) or Path(__file__))
    binaries.versions.__wrapped__()
    assert binaries.MATHS in read and len(read) == 4
    monkeypatch.undo()
    with pytest.raises(ModuleNotFoundError, match="cache key"):
        binaries.file_of("tapejit.codegen.triton.moved_away")


def test_kernels_import_device_functions_from_where_they_are() -> None:
    assert importlib.util.find_spec(binaries.MATHS) is not None


def test_a_program_with_a_moved_op_computes_the_same() -> None:
    """The whole way once: trust, lines and keys of a real step."""
    model, x = tj.nn.Linear(3, 2), tj.ones(4, 3)
    step = tj.compile(lambda x: model(x).sum())
    found = [float(step(x)) for _ in range(5)]
    np.testing.assert_allclose(found, float(model(x).sum()), rtol=1e-5)
    assert Path(__file__).name in str(step.explain())
