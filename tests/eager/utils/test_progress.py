"""The progress bar: what it draws on a terminal, that it is silent elsewhere, and that it keeps nothing alive."""

from __future__ import annotations

import io
import re
import time
import weakref
from collections.abc import Iterator

import pytest
import tapejit as tj
from tapejit.utils import progress


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return what stood in the line, one after the other; a line that was left ends in a newline."""
        return [line.removeprefix("\033[K") for line in self.getvalue().split("\r")[1:]]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    bar = progress(range(3), desc="epoch")
    for _ in bar:
        bar.set_postfix(loss=1.0)
    assert bar.n == 3
    assert capsys.readouterr() == ("", "")


def test_passes_items_on() -> None:
    assert list(progress(["a", "b"], file=Terminal())) == ["a", "b"]
    assert list(progress(3)) == [0, 1, 2]
    loader = tj.utils.data.DataLoader(tj.utils.data.TensorDataset(tj.arange(5)), batch_size=2)
    bar = progress(loader)
    assert len(bar) == 3
    assert [batch.tolist() for (batch,) in bar] == [[0, 1], [2, 3], [4]]


def test_the_line() -> None:
    terminal = Terminal()
    bar = progress(range(4), desc="epoch 1", file=terminal, mininterval=0)
    for i in bar:
        bar.set_postfix(loss=tj.tensor(0.5) * i, lr=1e-4, note="fine")
    lines = terminal.lines()
    assert re.fullmatch(r"epoch 1 ░{30}   0%  0/4  0.0 s", lines[0])
    assert re.match(r"epoch 1 █{15}░{15}  50%  2/4  loss 0.5000  lr 1.00e-04  note fine  [\d,]+ steps/s  0.0 s left", lines[2])
    assert re.match(r"epoch 1 █{30} 100%  4/4  loss 1.5000 .*steps/s  0.0 s\n", lines[-1])


def test_a_second_run_begins_anew() -> None:
    terminal = Terminal()
    bar = progress(range(2), file=terminal)
    for _ in range(2):
        assert list(bar) == [0, 1]
    assert [line for line in terminal.lines() if line.endswith("\n")] != []
    assert bar.n == 2


def test_without_a_length() -> None:
    def endless() -> Iterator[int]:
        yield from range(3)

    terminal = Terminal()
    bar = progress(endless(), file=terminal)
    assert list(bar) == [0, 1, 2]
    assert "%" not in terminal.getvalue() and re.search(r"3  [\d,]+ steps/s  0.0 s\n", terminal.getvalue())
    with pytest.raises(TypeError, match="give total="):
        len(bar)
    assert list(progress(endless(), total=3, file=terminal)) == [0, 1, 2]
    assert "3/3" in terminal.getvalue()


def test_drawn_ten_times_a_second_at_most() -> None:
    terminal = Terminal()
    for _ in progress(range(10000), file=terminal):
        pass
    assert len(terminal.lines()) < 20


def test_time_left() -> None:
    terminal = Terminal()
    for i in progress(range(1000), file=terminal, mininterval=0):
        time.sleep(0.01)
        if i == 5:
            break
    assert re.search(r"\d+ steps/s  \d+(\.\d)? s left", terminal.getvalue())
    assert terminal.getvalue().endswith("\n")  # a break leaves the line too


def test_an_error_leaves_the_line() -> None:
    terminal = Terminal()
    with pytest.raises(ValueError, match="boom"):
        for _ in progress(range(3), file=terminal):
            raise ValueError("boom")
    assert terminal.getvalue().endswith("\n")


def test_by_hand_and_wiped() -> None:
    terminal = Terminal()
    with progress(total=3, leave=False, file=terminal, mininterval=0) as bar:
        for _ in range(3):
            bar.update()
    assert "3/3" in terminal.getvalue() and terminal.getvalue().endswith("\r\033[K") and "\n" not in terminal.getvalue()
    with pytest.raises(TypeError, match="nothing to iterate over"):
        iter(progress(total=3)).__next__()


def test_lines_above(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    bar = progress(range(2), file=terminal)
    for i in bar:
        bar.write(f"step {i}")
        bar.set_description(f"at {i}")
    assert capsys.readouterr().out == "step 0\nstep 1\n"
    assert "at 1" in terminal.getvalue()


def test_forced_and_forbidden() -> None:
    plain = io.StringIO()
    list(progress(range(2), file=plain, disable=False))
    assert "[############################] 100%" in plain.getvalue()  # not known to take UTF-8
    terminal = Terminal()
    list(progress(range(2), file=terminal, disable=True))
    assert terminal.getvalue() == ""


def test_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    terminal = Terminal()
    bar = progress(range(2), desc="a long description", file=terminal, mininterval=0)
    for _ in bar:
        bar.set_postfix(loss=1.0, accuracy=2.0)
    assert all(len(line.rstrip("\n")) < 30 for line in terminal.lines())


def test_a_loss_that_is_shown_keeps_no_graph_alive() -> None:
    x = tj.ones(3, requires_grad=True)
    bar = progress(range(1), file=Terminal())
    for _ in bar:
        middle = x * 2
        loss = middle.sum()
        bar.set_postfix(loss=loss)
        graph = weakref.ref(loss.grad_fn)
        del loss, middle
        assert graph() is None
