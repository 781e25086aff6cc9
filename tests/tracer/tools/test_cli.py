"""The command line: what `run` tells is true, `bench` prints no times of results that differ, the demonstration's curves agree,
and bad input is one sentence. Nothing is timed here."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.paths import ROOT
from tapejit.tracer.tools import cli, compare_speed, observe_run
from tapejit.tracer.tools.cli import demo as cli_demo

TRAIN = """
import sys
import tapejit as tj

tj.manual_seed(0)
w = tj.ones(3, requires_grad=True)

@tj.compile
def step(x):
    loss = (w * x).pow(2).sum()
    if loss.item() < 0:
        raise ValueError
    loss.backward()
    with tj.no_grad():
        w.sub_(0.1 * w.grad)
    w.grad = None
    return loss

def inputs():
    return (tj.ones(3),)

def uncompiled(x):
    return x

if __name__ == "__main__":
    for i in range(int(sys.argv[1])):
        loss = step(tj.ones(3 if i < 30 else 1))
    print("the loss is", loss.item(), __file__)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are written to the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    return "train.py"


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(TRAIN.split("\n"), 1) if text in line)


def losses(steps: int) -> float:
    """Compute what the script prints, by NumPy."""
    w = np.ones(3)
    for i in range(steps):
        x = np.ones(3 if i < 30 else 1)
        loss = np.sum((w * x) ** 2)
        w = w - 0.1 * 2 * w * x**2
    return float(loss)


# ---- run


def test_run_tells_what_happened(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", script, "40"]) == 0
    out = capsys.readouterr().out
    assert float(out.split("the loss is ")[1].split()[0]) == pytest.approx(losses(40), rel=1e-5)
    assert f"step (train.py:{line_of('@tj.compile')})" in out
    assert f"at train.py:{line_of('item()')}: a value is read" in out
    assert f"diverged once at train.py:{line_of('(w * x)')}: mul gets a tensor of shape [1], recorded with [3]" in out
    assert "advice: `loss.item()`" in out and "recording and compiling took" in out


def test_run_counts_calls_and_replays(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """2 recordings, then replays, and eager samples after 8 and 16 of them, which are no calls of the compiled function."""
    assert cli.main(["run", script, "28"]) == 0
    out = capsys.readouterr().out
    assert "26 calls, 24 replayed: hit rate 92.3%; 2 recorded" in out
    assert "medians of 2" in out and "no bailouts" in out


def test_time_saved_is_what_the_figures_say() -> None:
    samples = observe_run.Samples()
    facts = {"replays": 100, "recordings": 2, "seconds": {"recording": 1.0, "compiling": 1.0, "running": 1.0}}
    assert "not measured" in observe_run.time_saved(facts, samples)
    samples.eager, samples.replayed = [0.1], [0.01]
    assert observe_run.time_saved(facts, samples).startswith("time saved: 7.20 s. 10.00 ms a replayed call, 100.00 ms eagerly")
    samples.eager = [0.02]
    assert "none yet, breaks even after about 96 more calls" in observe_run.time_saved(facts, samples)
    samples.eager = [0.005]
    assert "none, 2.49 s lost" in observe_run.time_saved(facts, samples)


def test_samples_do_not_change_what_a_script_does(script: str) -> None:
    """The same weights, with eager calls in between and without."""
    found = []
    for watch in (False, True):
        space: dict[str, Any] = {"__name__": "again"}
        exec(compile(TRAIN, "train.py", "exec"), space)
        if watch:
            with observe_run.watched() as functions:
                results = [space["step"](tj.ones(3)).item() for _ in range(40)]
            assert [len(s.eager) for s in functions.values()] == [3]
        else:
            results = [space["step"](tj.ones(3)).item() for _ in range(40)]
        found.append(results)
    assert found[0] == found[1]


def test_run_without_compiled_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    assert cli.main(["run", str(tmp_path / "a.py"), "x", "--y"]) == 3
    out = capsys.readouterr().out
    assert "['x', '--y']" in out and "no compiled function was called" in out


def test_run_tells_even_if_the_script_fails(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", script, "no number"]) == 1
    printed = capsys.readouterr()
    assert "invalid literal for int()" in printed.err and "observe_run.py" not in printed.err
    assert "tapejit: no compiled function was called" in printed.out


# ---- bench


def test_bench_of_an_own_function(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--rounds", "1", "--seconds", "0.01", "--steps", "4"]
    assert cli.main(["bench", f"{script}:step", *few, "--json", str(tmp_path / "found.json")]) == 0
    out = capsys.readouterr().out
    assert "step of train.py: 4 results agree to 0e+00" in out and "/ eager" in out
    sides = json.loads((tmp_path / "found.json").read_text())["sides"]
    assert sides["eager"]["first"] is None and sides["compiled"]["first"] > 0
    assert all(0 < s["best"] <= s["median"] and s["peak"] > 0 for s in sides.values())


OWN = """
import tapejit as tj

class Trainer:
    def __init__(self):
        self.w = tj.ones(3, requires_grad=True)

    @tj.compile
    def step(self, x, *, rate):
        loss = (self.w * x).sum()
        loss.backward()
        with tj.no_grad():
            self.w.sub_(rate * self.w.grad)
        self.w.grad = None
        return loss

trainer = Trainer()
{}
    for i in range(10 ** 9):
        trainer.step(tj.full((3,), float(i)), rate=0.5)
"""


@pytest.mark.parametrize("header", ["if True:", "if __name__ == '__main__':"])
def test_arguments_are_those_of_the_script(tmp_path: Path, header: str) -> None:
    """A method with a keyword argument, which the script calls for ever: at once, or only as a script."""
    (tmp_path / "own.py").write_text(OWN.format(header))
    side = compare_speed.Side(str(tmp_path / "own.py"), "trainer.step")
    assert side.compiled.calls == 0  # so that the first compiled step is still to come
    w, expected = np.ones(3), []
    for i in [*range(compare_speed.NOTED), *range(compare_speed.NOTED), *range(4)]:
        expected.append(float((w * i).sum()))
        w = w - 0.5 * i
    assert side.start(12)["results"] == [[[x]] for x in expected[compare_speed.NOTED :]]


def test_results_that_differ_have_no_times() -> None:
    assert compare_speed.agree([[[1.0, 2.0]]], [[[1.0, 2.0002]]]) == pytest.approx(1e-4)
    assert compare_speed.agree([[]], [[]]) is None
    for other in ([1.0, 2.01], [1.0, float("nan")], [1.0]):
        with pytest.raises(compare_speed.RefusalError, match=r"differ by .* so no times are printed"):
            compare_speed.agree([[[1.0, 2.0]]], [[other]])


def test_bench_of_the_workloads(capfd: pytest.CaptureFixture[str]) -> None:
    few = ["--rounds", "1", "--seconds", "0.01", "--steps", "2", "--no-warm"]
    assert cli.main(["bench", "tiny", "--peers", "jax", "--jax-python", "/no/python", *few]) == 1
    printed = capfd.readouterr()
    assert "6 losses agree" in printed.out
    assert "the peer jax was requested but not measured: there is no interpreter /no/python" in printed.err


# ---- demo


def test_the_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--steps", "6"]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("eager", "compiled"))}
    assert rows["eager"].split()[1] == rows["compiled"].split()[1] == "6"
    assert rows["compiled"].endswith("MiB") and " - " not in rows["compiled"]
    assert "The two curves are the same: over 6 steps" in out and "times as fast" in out
    assert len(out.split("A sample of what it writes:\n")[1]) > 50
    text = Path("report.html").read_text(encoding="utf-8")
    assert "report.html shows the compiled step" in out and "scaled_dot_product_attention" in text
    assert "times as fast as an eager one" in text and 'id="timeline-0"' in text


def fake_example(stop_at: int, compiled_differs: float = 0.0) -> Any:
    """An example whose eager training is interrupted at a step, or whose second training has other losses."""
    made: list[int] = []

    def setup(torch: Any, steps: int, device: str) -> Any:
        made.append(0)

        def step(i: Any) -> tj.Tensor:
            if i.item() == stop_at:
                raise KeyboardInterrupt
            return tj.tensor(2.0) + (compiled_differs if len(made) == 2 else 0.0)

        return SimpleNamespace(model=None, step=step, batches=iter((tj.tensor(i),) for i in range(1000)))

    return SimpleNamespace(tj=tj, setup=setup, make_up=lambda *_: "text")


def test_ctrl_c_tells_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli_demo, "example_named", lambda name: fake_example(5))
    assert cli.main(["demo", "--steps", "9"]) == 130
    out = capsys.readouterr().out
    assert "Stopped after 5 eager steps." in out and "times as fast" not in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("eager")] == [["eager", "5"]]
    assert "Stopped after 5 eager steps." in Path("report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(cli_demo, "example_named", lambda name: fake_example(0))
    assert cli.main(["demo", "--steps", "9"]) == 130
    assert "stopped before the first step was done" in capsys.readouterr().out


def test_ctrl_c_between_the_trainings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = fake_example(-1)
    setup, made = example.setup, []

    def interrupted(*given: Any) -> Any:
        made.append(given)
        if len(made) == 2:
            raise KeyboardInterrupt
        return setup(*given)

    example.setup = interrupted
    monkeypatch.setattr(cli_demo, "example_named", lambda name: example)
    assert cli.main(["demo", "--steps", "9"]) == 130
    out = capsys.readouterr().out
    assert "Stopped before the first compiled step." in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("eager")] == [["eager", "9"]]


def test_as_many_steps_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    for tick, steps in ((1e-3, cli_demo.STEPS), (0.5, 120), (100.0, cli_demo.MIN_STEPS)):
        monkeypatch.setattr(cli_demo, "perf_counter", lambda tick=tick: next(clock) * tick)
        assert cli_demo.fitting(fake_example(-1), "cpu") == steps


def test_others_on_the_machine_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (5.25, 0, 0), raising=False)
    assert "a load of 5.2 on 2 cores" in cli_demo.load_warning()
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0, 0), raising=False)
    assert not cli_demo.load_warning()


def test_two_steps_are_no_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli_demo, "example_named", lambda name: fake_example(-1))
    assert cli.main(["demo", "--steps", "2"]) == 0
    out = capsys.readouterr().out
    assert "There is no compiled step to compare with yet" in out and "times as fast" not in out


def test_curves_that_differ_are_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli_demo, "example_named", lambda name: fake_example(-1, 0.1))
    assert cli.main(["demo", "--steps", "4"]) == 1
    assert "The two curves DIFFER" in capsys.readouterr().out


def test_the_picture_shows_both_curves() -> None:
    same = cli_demo.picture([3.0, 2.0, 1.0], [3.0, 2.0, 1.0])
    assert "o" not in "".join(same[:-1]) and "".join(same[:-1]).count("*") == 3
    other = "".join(cli_demo.picture([3.0, 2.0, 1.0], [1.0, 2.0, 3.0])[:-1])
    assert other.count("o") == 2 and other.count("x") == 2 and other.count("*") == 1


# ---- bad input


@pytest.mark.parametrize("arguments, sentence", [
    (["run", "nothing.py"], "there is no script nothing.py"),
    (["run", "."], ". is a folder, not a script"),
    (["run"], "run needs a script"),
    (["run", "broken.py"], "broken.py is not valid Python: invalid syntax"),
    (["bench", "nothing.py:step"], "there is no script nothing.py"),
    (["bench", "train.py"], "name the function of train.py to measure"),
    (["bench", "train.py:nothing"], "there is no nothing in train.py"),
    (["bench", "train.py:uncompiled"], "uncompiled in train.py is not a compiled function"),
    (["bench", "train.py:step", "--json", "no/folder.json"], "there is no folder no"),
    (["bench", "train.py:step", "--json", "."], "it is a folder"),
    (["bench", "train.py:step", "--rounds", "0"], "at least one round"),
    (["bench", "fails.py:step"], "step fails when run eager: ZeroDivisionError: division by zero"),
    (["bench", "alone.py:step"], "step needs arguments, but alone.py never calls it, and has no function inputs() that"),
    (["bench", "nonsense"], "no workload is called 'nonsense'"),
    (["bench", "tiny", "--peers", "nobody"], "no peer is called 'nobody'"),
    (["bench", "tiny", "--json", "no/folder.json"], "there is no folder no"),
    (["demo", "--steps", "0"], "--steps must be at least 1"),
    (["demo", "-o", "no/folder.html"], "there is no folder no"),
    (["report2"], "there is no command 'report2'"),
])  # fmt: skip
def test_bad_input_is_one_sentence(script: str, arguments: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One sentence, of the processes that it starts too."""
    Path("broken.py").write_text("def :\n")
    Path("fails.py").write_text("import tapejit as tj\n@tj.compile\ndef step():\n    return 1 / 0\n")
    Path("alone.py").write_text("import tapejit as tj\n@tj.compile\ndef step(x):\n    return x\n")
    assert cli.main(arguments) not in (0, 1)
    err = capfd.readouterr().err
    assert sentence in err and err.startswith("tapejit: ") and len(err.splitlines()) == 1


def test_no_permission(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    assert cli.main(["bench", f"{script}:step", "--json", "found.json"]) == 2
    assert "found.json cannot be written: no permission" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "train.py", "3"], ["bench", "train.py:step"], ["bench", "tiny"], ["demo"]])
def test_a_broken_cache_folder(
    script: str, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(**_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    def refused() -> str:
        assert cli.main(command) == 2
        err = capsys.readouterr().err
        assert err.startswith("tapejit: nothing that is compiled can be kept on disk: ") and len(err.splitlines()) == 1
        return err

    monkeypatch.setenv("TAPEJIT_CACHE_DIR", script)
    assert f"{script} cannot be made" in refused()
    folder = Path("cache")
    folder.mkdir()
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(folder))
    folder.chmod(0o777)
    assert "others can write to cache" in refused()
    folder.chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setattr("os.getuid", lambda: 4711)
        assert "cache belongs to somebody else" in refused()
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.TemporaryFile", denied)  # root may write everywhere
        assert "cache cannot be written to (Permission denied)" in refused()


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tapejit"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "tapejit run script.py" in done.stdout


def test_what_the_demonstration_needs_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["scripts"] == {"tapejit": "tapejit.tracer.tools.cli:main"}
    patterns = settings["tool"]["setuptools"]["package-data"]["tapejit"]
    shipped = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert {ROOT / "examples" / name for name in ("chargpt.py", "common.py", "data/sonnets.txt")} <= shipped
