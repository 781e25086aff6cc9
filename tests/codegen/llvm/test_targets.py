"""CPUs other than this one: subsets of it run here; for others code is generated and inspected."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tapejit as tj
from support.codegen.emitted import Emitted, alike, patterns
from support.paths import TESTS
from tapejit.codegen.llvm.ir import target
from tapejit.codegen.llvm.ir.builder import F32, PTR, Module
from tapejit.codegen.llvm.runtime import jit

X86 = target.host().triple.startswith("x86_64")


def runs_here(cpu: str) -> bool:
    return X86 and all(target.host().has(word) for word in target.CPUS[cpu][1].split())


@pytest.mark.parametrize("cpu, bits", [("haswell", 256), ("x86-64-v2", 128), ("x86-64-v4", 512)])
def test_some_of_everything_on_less_of_a_cpu(cpu: str, bits: int, tmp_path: Path) -> None:
    if not runs_here(cpu):
        pytest.skip(f"this machine cannot run code for {cpu}")
    path = [str(Path(tj.__file__).parents[1]), *sys.path]
    more = {"TAPEJIT_CPU": cpu, "TAPEJIT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-m", "support.codegen.restricted_cpu"],
        cwd=TESTS,
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs, left, *what = done.stdout.split(maxsplit=2)
    assert int(runs) > 20 and left == "0"
    assert what == [f"{cpu} ({target.host().triple}), vectors of {bits} bits\n"]


def test_a_cpu_that_this_machine_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CPU", "pdp-11")
    with pytest.raises(ValueError, match=r"\[compile\] TAPEJIT_CPU is 'pdp-11': choose one of x86-64-v2, haswell"):
        target.host.__wrapped__()
    machine = target.Target("x86_64-linux", "some", "+avx2,+fma", 256)
    with pytest.raises(ValueError, match=r"\[compile\] TAPEJIT_CPU is 'haswell', which needs 64bit: this machine \(some"):
        target._restrict(machine, "haswell")


@pytest.mark.skipif(not runs_here("haswell"), reason="this machine cannot run code for haswell")
def test_what_is_compiled_for_another_cpu_is_another_entry_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CPU", "haswell")
    less = target.host.__wrapped__()
    assert (less.cpu, less.bits, less.has("avx512f"), less.has("fma")) == ("haswell", min(256, target.host().bits), False, True)
    assert jit.object_key("text", less) != jit.object_key("text", target.host())


@pytest.mark.skipif(not runs_here("x86-64-v2"), reason="these are for x86")
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_half_floats_by_integers(lanes: int) -> None:
    """All of them, and floats between them."""
    cpu = target._restrict(target.host(), "x86-64-v2")
    wider = Emitted(lambda f, x: f.convert("fpext", x, "float"), np.float16, lanes, result=np.float32, target=cpu)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = halves.astype(np.float32)
    assert alike(wider(halves), exact)
    shorter = Emitted(lambda f, x: f.convert("fptrunc", x, "half"), np.float32, lanes, result=np.float16, target=cpu)
    with np.errstate(all="ignore"):
        between = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
        near = [np.nextafter(between, np.float32(s * np.inf)) for s in (1, -1)]
        many = np.concatenate([exact, between, *near, patterns(np.float32, 100_000)])
        assert alike(shorter(many), many.astype(np.float16))


def test_a_single_element_under_a_mask_is_read_only_if_it_is_there() -> None:
    module = Module()
    f = module.function("run", [("where", PTR), ("there", F32), ("out", PTR)])
    mask = f.compare("gt", f.params[1], f.load(f.params[2], F32))
    f.store(f.load(f.params[0], F32, mask), f.params[2])
    f.ret()
    library = jit.link([jit.compile_text(str(module))], {}, ["run"])
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p)(library["run"])
    value, out = np.array([3], np.float32), np.zeros(1, np.float32)
    run(value.ctypes.data, 1, out.ctypes.data)
    assert out[0] == 3
    run(0, 1, out.ctypes.data)
    assert out[0] == 0
