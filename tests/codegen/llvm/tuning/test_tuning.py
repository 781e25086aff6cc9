"""`tj.compile(fn, tune=True)`: plans of matmuls are measured once, kept in the tuning store, and change no bit."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tapejit as tj
from tapejit.codegen.llvm.gemm.problem import GemmOperand, GemmProblem
from tapejit.codegen.llvm.gemm.select_kernel import gemm_shape
from tapejit.codegen.llvm.ir.blocking import GemmPlan, GemmShape, choose_plan
from tapejit.codegen.llvm.ir.target import Target, host
from tapejit.codegen.llvm.tuning import plans as tuned
from tapejit.codegen.llvm.tuning import store as remember
from tapejit.codegen.llvm.tuning.plans import TunedPlans, decode_plan, encode_fields
from tapejit.codegen.llvm.tuning.store import MODEL_PLAN, Outcome, parse_outcomes, plans_are_current, tuning_store
from tapejit.codegen.program import disk_cache as cache

M, N, K = 96, 80, 48


class Fewest:
    """Measures nothing: tiles of the fewest rows are the quickest."""

    asked = 0

    def __init__(self, gemm: GemmProblem, target: Target) -> None:
        type(self).asked += 1
        self.runs: dict[GemmPlan, Any] = {}

    def __call__(self, plans: Sequence[GemmPlan], last: bool) -> list[float | None]:
        return [float(plan.rows) for plan in plans]


class Equal(Fewest):
    """All are the same."""

    def __call__(self, plans: Sequence[GemmPlan], last: bool) -> list[float | None]:
        return [1.0 for _ in plans]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a cache of its own, and a clock that prefers few rows."""
    for name in ("TAPEJIT_CACHE", "TAPEJIT_TUNE", "TAPEJIT_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Fewest, "asked", 0)
    monkeypatch.setattr(Equal, "asked", 0)
    monkeypatch.setattr(tuned, "PlanRace", Fewest)
    remember._tuning_store.cache_clear()
    return tmp_path / "cache"


def another_process() -> None:
    """Forget the tuning store of the process, as if another one began; what is on disk stays."""
    remember._tuning_store.cache_clear()


def matmul(m: int = M, n: int = N, k: int = K) -> tuple[GemmProblem, GemmShape]:
    gemm = GemmProblem((), m, n, k, GemmOperand(0, (), k, 1), GemmOperand(1, (), n, 1), "float")
    return gemm, gemm_shape(gemm, host())


def native(function: Any = None, **settings: Any) -> tuple[dict[str, Any], bytes]:
    """Description of a compiled matmul, and its result."""
    made = tj.compile(function or (lambda a, b: a @ b), **{"backend": "llvm", **settings})
    tj.manual_seed(0)
    a, b = tj.randn(M, K), tj.randn(K, N)
    for _ in range(3):
        result = made(a, b)
    program = made.explain(kernels=True).to_dict()["paths"][0]["programs"][0]["native"]
    return program, result.numpy().tobytes()


def plan_in(program: dict[str, Any]) -> str:
    (kernel,) = program["kernels"]
    return kernel["plan"].partition(":")[0]


BY_MODEL = "blocking by the model"
NOTHING_QUICKER = "blocking by the model, and no measured plan is faster"


def is_measured(words: str) -> bool:
    return words.startswith("blocking as measured, ") and words.endswith(" times as fast as the model's")


# ---- what is remembered


def test_a_shape_is_tuned_once() -> None:
    gemm, shape = matmul()
    assert TunedPlans(host())(gemm, shape) == choose_plan(shape) and Fewest.asked == 0
    found = TunedPlans(host(), tune=True)(gemm, shape)
    assert found.rows < choose_plan(shape).rows and Fewest.asked == 1
    assert TunedPlans(host(), tune=True)(gemm, shape) == TunedPlans(host())(gemm, shape) == found and Fewest.asked == 1
    another_process()
    assert TunedPlans(host(), tune=True)(gemm, shape) == TunedPlans(host())(gemm, shape) == found and Fewest.asked == 1


def test_that_the_model_is_right_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "PlanRace", Equal)
    gemm, shape = matmul()
    for _ in range(3):
        plans = TunedPlans(host(), tune=True)
        assert plans(gemm, shape) == choose_plan(shape) and plans.used == {encode_fields(shape): MODEL_PLAN}
        another_process()
    assert Equal.asked == 1


def test_shapes_and_cpus_are_told_apart() -> None:
    less = Target(host().triple, "another", host().features, host().bits)
    for target in (host(), less):
        for k in (K, K + 1):
            gemm, shape = matmul(k=k)
            TunedPlans(target, tune=True)(gemm, shape)
    assert Fewest.asked == 4
    assert all(len(tuning_store(target).outcomes) == 2 for target in (host(), less))


def test_small_matmuls_are_not_worth_it() -> None:
    gemm, shape = matmul(8, 8, 8)
    plans = TunedPlans(host(), tune=True)
    assert plans(gemm, shape) == choose_plan(shape) and not plans.used and Fewest.asked == 0
    assert plans.describe(shape).startswith(BY_MODEL)


def test_matmuls_that_need_too_much_memory_are_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "MAX_TRIAL_BYTES", 1000)
    gemm, shape = matmul()
    assert TunedPlans(host(), tune=True)(gemm, shape) == choose_plan(shape)
    assert Fewest.asked == 0 and tuning_store(host()).outcomes == {encode_fields(shape): Outcome(MODEL_PLAN, 1.0)}


def test_without_a_disk_cache_the_process_remembers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    gemm, shape = matmul()
    found = TunedPlans(host(), tune=True)(gemm, shape)
    assert TunedPlans(host(), tune=True)(gemm, shape) == found != choose_plan(shape)
    assert Fewest.asked == 1 and not folder.exists()


def test_processes_that_tune_at_the_same_time_keep_what_others_found() -> None:
    here = remember.TuningStore(host())
    there = remember.TuningStore(host())
    here.add("1", Outcome("a", 2.0))
    there.add("2", Outcome("b", 3.0))
    assert remember.TuningStore(host()).outcomes == {"1": Outcome("a", 2.0), "2": Outcome("b", 3.0)}


def test_nothing_is_read_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "get", lambda key: pytest.fail("the disk was asked"))
    assert plans_are_current({}, host(), tune=False) and plans_are_current({}, host(), tune=True)


# ---- what is on disk is not trusted


def write(outcomes: Any) -> None:
    data = outcomes if isinstance(outcomes, bytes) else json.dumps(outcomes).encode()
    cache.put(tuning_store(host()).key, data)
    another_process()


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"7", b"{", b'{"1": 2}', b'{"1": ["2"]}', b'{"1": ["2", "x"]}', b"null"])
def test_entries_that_are_none_are_ignored(data: bytes) -> None:
    assert parse_outcomes(data) == {}
    write(data)
    gemm, shape = matmul()
    assert TunedPlans(host())(gemm, shape) == choose_plan(shape)
    assert TunedPlans(host(), tune=True)(gemm, shape) != choose_plan(shape)


def test_a_flipped_bit_is_noticed(folder: Path) -> None:
    gemm, shape = matmul()
    found = TunedPlans(host(), tune=True)(gemm, shape)
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    another_process()
    assert TunedPlans(host())(gemm, shape) == choose_plan(shape)
    assert TunedPlans(host(), tune=True)(gemm, shape) == found and Fewest.asked == 2


def test_plans_that_are_none_for_the_shape_are_ignored() -> None:
    gemm, shape = matmul()
    model = choose_plan(shape)
    parts = encode_fields(model).rsplit(maxsplit=1)[0] + " 2"  # of the depth: other bits
    for plan in (
        parts,
        encode_fields(model).replace(str(model.lanes), "0", 1),
        "1 2 3",
        "x",
        "-1 " * 12,
        "0 " * 12,
        "² " * 12,
        "9" * 5000,
    ):
        write({encode_fields(shape): [plan, 9.0]})
        plans = TunedPlans(host())
        assert plans(gemm, shape) == model and plans.used == {encode_fields(shape): MODEL_PLAN}


def test_plans_as_text() -> None:
    plan = choose_plan(matmul()[1])
    assert decode_plan(encode_fields(plan)) == plan and decode_plan(MODEL_PLAN) is None


# ---- compiled functions


def test_tuning_changes_no_bit_and_is_told() -> None:
    before, expected = native()
    assert plan_in(before) == BY_MODEL and Fewest.asked == 0
    program, result = native(tune=True)
    assert is_measured(plan_in(program)) and result == expected and Fewest.asked == 1
    text = str(tj.compile(lambda a: a, backend="llvm").explain(kernels=True))
    assert "blocking" not in text


@pytest.mark.parametrize("dtype", [tj.float32, tj.float64, tj.bfloat16])
def test_training_has_the_same_bits(dtype: Any) -> None:
    """Matmuls with what follows them, and with operands that are computed as they are packed, forward and backward."""

    def trained(tune: bool) -> list[bytes]:
        tj.manual_seed(0)
        model = tj.nn.Sequential(tj.nn.Linear(64, 150), tj.nn.GELU(), tj.nn.Linear(150, 33)).to(dtype)
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
        x = tj.randn(70, 64).to(dtype)

        @tj.compile(backend="llvm", tune=tune, strict=True)
        def step() -> Any:
            loss = (model(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        losses = [step() for _ in range(3)]
        return [v.detach().float().numpy().tobytes() for v in (*losses, *model.parameters())]

    expected = trained(False)
    assert not Fewest.asked
    assert trained(True) == expected and Fewest.asked >= 3


def test_an_untuned_program_on_disk_is_not_given_to_who_wants_a_tuned_one() -> None:
    native()
    program, expected = native()
    assert program["from_disk"] and plan_in(program) == BY_MODEL
    program, _ = native(tune=True)
    assert not program["from_disk"] and is_measured(plan_in(program))
    for settings in ({"tune": True}, {}, {"tune": False}):
        another_process()
        program, result = native(**settings)
        assert program["from_disk"] and is_measured(plan_in(program)) and result == expected
    assert Fewest.asked == 1


def test_an_untuned_program_is_good_where_the_model_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "PlanRace", Equal)
    native()
    program, _ = native(tune=True)
    assert not program["from_disk"] and plan_in(program) == NOTHING_QUICKER
    program, _ = native(tune=True)
    assert program["from_disk"] and plan_in(program) == NOTHING_QUICKER


def test_a_shape_that_another_function_tuned_is_used_by_all() -> None:
    first, _ = native()
    native(lambda a, b: (a @ b).relu(), tune=True)
    program, _ = native()
    assert not program["from_disk"] and is_measured(plan_in(program))
    assert Fewest.asked == 1 and plan_in(first) == BY_MODEL


def test_what_a_program_was_made_by_is_told_though_its_shape_was_tuned_later() -> None:
    native()
    made = tj.compile(lambda a, b: a @ b, backend="llvm")
    for _ in range(3):
        made(tj.randn(M, K), tj.randn(K, N))
    native(tune=True)
    program = made.explain(kernels=True).to_dict()["paths"][0]["programs"][0]["native"]
    assert program["from_disk"] and plan_in(program) == BY_MODEL


def test_a_program_that_another_process_tuned_is_used() -> None:
    """It is on disk, and what this process has read is older."""
    native(tune=True)
    tuning_store(host()).outcomes.clear()
    program, _ = native()
    assert program["from_disk"] and is_measured(plan_in(program))


def test_the_environment_decides_where_the_function_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_TUNE", "1")
    assert plan_in(native(tune=False)[0]) == BY_MODEL
    assert is_measured(plan_in(native()[0]))
    monkeypatch.setenv("TAPEJIT_TUNE", "0")
    assert is_measured(plan_in(native(lambda a, b: (a @ b).exp(), tune=True)[0]))


@pytest.mark.parametrize("tune", ["yes", 1, "1", 2.0])
def test_tune_is_true_or_false(tune: Any) -> None:
    with pytest.raises(ValueError, match=r"compile: tune must be True or False, or None for what TAPEJIT_TUNE says, not "):
        tj.compile(lambda x: x, tune=tune)


@pytest.mark.parametrize(
    ("options", "tune"),
    [
        ({"mode": "max-autotune"}, True),
        ({"mode": "max-autotune-no-cudagraphs"}, True),
        ({"mode": "max-autotune", "tune": False}, False),
        ({"mode": "reduce-overhead"}, None),
        ({"mode": None}, None),
        ({}, None),
    ],
)
def test_modes_of_pytorch(options: dict[str, Any], tune: bool | None) -> None:
    assert tj.compile(lambda x: x, **options).tune is tune


def test_a_compiled_module_is_tuned() -> None:
    layer = tj.compile(tj.nn.Linear(K, N), backend="llvm", tune=True)
    for _ in range(3):
        layer(tj.randn(M, K))
    assert Fewest.asked == 1


def test_while_it_is_tuned_it_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAPEJIT_LOG", "tune")
    native(tune=True)
    native(tune=True)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"[tapejit tune] m {M} n {N} k {K}: ") and "times as fast as the model's: register tiles of " in line


def test_functions_that_compile_beside_are_tuned_there() -> None:
    made = tj.compile(lambda a, b: a @ b, backend="llvm", background=True, tune=True)
    a, b = tj.randn(M, K), tj.randn(K, N)
    made(a, b)
    for thread in threading.enumerate():
        if thread.name == "tapejit-compile":
            thread.join()
    assert Fewest.asked == 1


SCRIPT = """
import sys
import tapejit as tj
from tapejit.codegen.llvm.tuning import plans as tuned

class Fewest:
    runs = {}
    def __init__(self, gemm, target): print("asked")
    def __call__(self, plans, last): return [float(plan.rows) for plan in plans]

tuned.PlanRace = Fewest
made = tj.compile(lambda a, b: a @ b, backend="llvm", tune=sys.argv[1] == "tune")
for _ in range(3):
    made(tj.ones(96, 48), tj.ones(48, 80))
print("as measured" if "blocking as measured" in str(made.explain(kernels=True)) else "by the model")
"""


def test_processes_remember_for_each_other() -> None:
    def run(how: str) -> list[str]:
        command = [sys.executable, "-c", SCRIPT, how]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert run("plainly") == ["by the model"]
    assert run("tune") == ["asked", "as measured"]
    assert run("tune") == run("plainly") == ["as measured"]
