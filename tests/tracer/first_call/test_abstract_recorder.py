"""The first call of a compiled function is recorded without being run, and computed by its program. What it leaves behind is
what eager execution leaves behind, also where that cannot be: values that are read, errors, hooks, memory that others see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import nn
from tapejit.tracer.execute import tiering
from tapejit.tracer.first_call.abstract_recorder import AbstractRecorder
from tapejit.tracer.record.recorder import Recorder
from tapejit.utils.checkpoint import checkpoint


@pytest.fixture
def woken(monkeypatch: Any) -> list[int]:
    """How many ops had been noted each time that a recorder woke."""
    found: list[int] = []
    start_running = AbstractRecorder.start_running

    def counted(self: Any) -> None:
        if self.region is None:
            found.append(len(self.trace.entries))
        start_running(self)

    monkeypatch.setattr(AbstractRecorder, "start_running", counted)
    return found


@pytest.fixture
def run_ops(monkeypatch: Any) -> list[str]:
    """Ops that a recorder has run."""
    found: list[str] = []
    perform = Recorder.perform

    def noted(self: Any, op: Any, *given: Any) -> Any:
        found.append(op.name)
        return perform(self, op, *given)

    monkeypatch.setattr(Recorder, "perform", noted)
    return found


def values(*tensors: Any) -> list[Any]:
    return [
        None if t is None else (t.shape, t.dtype, t._version, t.requires_grad, t.detach().numpy().tobytes()) for t in tensors
    ]


def both(script: Callable[..., Any], **settings: Any) -> Any:
    """Run a script with an eager function and with a compiled one, from one seed; the notes of both have to be the same."""
    notes: list[list[Any]] = []
    made: list[Any] = []
    for compiled in (False, True):
        tj.manual_seed(0)
        notes.append([])

        def compile(function: Any, compiled: bool = compiled) -> Any:
            if not compiled:
                return function
            made.append(tj.compile(function, **{"backend": "plain", **settings}))
            return made[-1]

        script(compile, lambda *things: notes[-1].append([values(x)[0] if isinstance(x, tj.Tensor) else x for x in things]))
    assert notes[1] == notes[0]
    return made[-1]


def programs(f: Any) -> int:
    traces = [*f.traces, *([f.candidate] if f.candidate is not None else [])]
    return sum(len(t.programs) for t in traces)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm, self.attend = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down, self.drop = nn.Linear(8, 16), nn.Linear(16, 11), nn.Dropout(0.2)

    def forward(self, tokens: tj.Tensor) -> tj.Tensor:
        x = self.embed(tokens)
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return self.down(self.drop(nn.functional.gelu(self.up(x))))


def trainer(compile: Any, optimizer: str = "AdamW") -> tuple[Any, nn.Module]:
    model = Net()
    steps = getattr(tj.optim, optimizer)(model.parameters(), lr=0.01)

    def step(tokens, targets):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        steps.step()
        return loss

    return compile(step), model


# ---- what it is for


def test_the_first_call_is_compiled(run_ops: list[str]) -> None:
    @tj.compile(backend="plain")
    def f(x, y):
        return (x * y + 1).relu().sum(dim=1)

    x, y = tj.randn(4, 5), tj.randn(4, 5)
    assert f(x, y).numpy().tobytes() == f.function(x, y).numpy().tobytes()
    assert run_ops == []
    assert programs(f) == 1
    assert (f.recordings, f.hits) == (1, 0)
    f(x, y)
    f(x, y)
    assert programs(f) == 1
    assert (f.recordings, f.hits, sum(f.divergences.values())) == (2, 1, 0)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_a_training_step(optimizer: str, run_ops: list[str], woken: list[int]) -> None:
    def script(compile: Any, note: Any) -> None:
        step, model = trainer(compile, optimizer)
        for _ in range(4):
            tokens, targets = tj.randint(0, 11, (2, 5)), tj.randint(0, 11, (2, 5))
            note(step(tokens, targets), *model.parameters(), *[p.grad for p in model.parameters()])
            note(tj.get_rng_state())

    f = both(script)
    assert (run_ops, woken) == ([], [])
    assert programs(f) == 1


def test_native_code_from_the_first_call_on() -> None:
    tj.manual_seed(0)
    step, model = trainer(lambda f: f, "SGD")
    tj.manual_seed(0)
    compiled, other = trainer(lambda f: tj.compile(f, backend="llvm"), "SGD")
    tokens, targets = tj.randint(0, 11, (2, 5)), tj.randint(0, 11, (2, 5))
    tj.manual_seed(1)
    expected = step(tokens, targets)
    tj.manual_seed(1)
    found = compiled(tokens, targets)
    assert any(s.native is not None for s in compiled.candidate.programs.values())
    np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-5)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(q.detach().numpy(), p.detach().numpy(), rtol=1e-3, atol=1e-5)


def test_recorded_as_a_running_recorder_does() -> None:
    found = []
    for warmup in (2, 3):
        tj.manual_seed(0)
        step, _ = trainer(lambda f, warmup=warmup: tj.compile(f, backend="plain", warmup=warmup))
        step(tj.randint(0, 11, (2, 5)), tj.randint(0, 11, (2, 5)))
        found.append(step.candidate)
    dry, running = found
    assert programs(step) == 0
    assert dry.keys == running.keys
    assert str(dry) == str(running)
    assert [r.title for r in dry.outermost()] == [r.title for r in running.outermost()]


def test_only_the_first_call_is_compiled_at_once() -> None:
    @tj.compile(backend="plain")
    def f(x):
        return (x * 2).sum()

    made = set()
    for n in range(1, 9):
        assert f(tj.ones(n)).item() == 2 * n
        made |= {id(t) for t in (*f.traces, f.candidate) if t is not None and t.programs}
    assert len(made) <= 1


def test_a_longer_warm_up_is_respected(run_ops: list[str]) -> None:
    @tj.compile(backend="plain", warmup=4)
    def f(x):
        return (x * 2).sum()

    assert f(tj.ones(3)).item() == 6
    assert run_ops == ["mul", "sum"]
    assert programs(f) == 0


def test_in_the_background() -> None:
    @tj.compile(background=True)
    def f(x):
        return (x * 2).exp().sum()

    x = tj.randn(100)
    assert f(x).item() == f.function(x).item()


def test_in_the_background_with_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is made late is of the whole recording, which the first call has only begun when it comes to the break."""

    class Slow:
        def __init__(self, target: Any, **_: Any) -> None:
            self.target, self.asked = target, 0

        def start(self) -> None: ...

        def is_alive(self) -> bool:
            self.asked += 1
            if self.asked == 2:
                self.target()
            return self.asked < 2

    monkeypatch.setattr(tiering, "threading", SimpleNamespace(Thread=Slow))

    @tj.compile(background=True, backend="llvm")
    def f(x, y):
        total = (x * 2).exp().sum()
        total.item()
        z = total.expand(2) * 3
        z[0] = y.sum()
        return z[0], z[1], total

    for i in range(8):
        x, y = tj.full((7,), 0.1 * i), tj.full((5,), 0.1 * i)
        assert tj.stack(list(f(x, y))).tolist() == pytest.approx(tj.stack(list(f.function(x, y))).tolist())
    assert [s.native is not None for s in f.traces[0].programs.values()] == [True, True]


def test_half_precision_and_mixed_precision(woken: list[int]) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

        @compile
        def f(x):
            with tj.autocast("cpu", dtype=tj.bfloat16):
                loss = model(x).float().pow(2).mean()
            loss.backward()
            return loss, x.half().exp().sum()

        for _ in range(3):
            note(*f(tj.randn(3, 4)), *[p.grad for p in model.parameters()])

    both(script)
    assert woken == []


# ---- values that are read


def test_a_value_is_read(run_ops: list[str]) -> None:
    seen: list[float] = []

    def script(compile: Any, note: Any) -> None:
        seen.clear()

        @compile
        def f(x):
            y = (x * 3).sum()
            seen.append(y.item())
            z = y + 1 if seen[-1] > 0 else y - 1
            return y, z, x * z

        for i in range(4):
            note(*f(tj.ones(3) * (-1) ** i), list(seen))

    both(script)
    assert run_ops[:2] == ["sub", "mul"] or run_ops[:2] == ["add", "mul"]  # the first segment was a program


def test_a_loss_that_is_returned_as_a_number(run_ops: list[str]) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Linear(3, 2)
        steps = tj.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @compile
        def f(x):
            steps.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            steps.step()
            return loss.item()

        for _ in range(4):
            note(f(tj.randn(5, 3)), *model.parameters())

    f = both(script)
    assert run_ops == []
    assert programs(f) == 2  # the step, and nothing after it


def test_what_was_detached_before_a_break() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            y = x * 2
            apart = y.detach()
            n = y.sum().item()
            return apart + n, apart

        for _ in range(5):
            note(*f(tj.randn(3)))

    f = both(script)
    assert (f.recordings, f.hits, sum(f.divergences.values())) == (2, 3, 0)


def test_prints(capsys: Any) -> None:
    @tj.compile(backend="plain")
    def f(x):
        y = x + 1
        print("first", y)
        y = y * 2
        print("then", y.tolist(), y.shape, y.dtype)
        return y

    f(tj.zeros(2))
    assert capsys.readouterr().out == "first tensor([1., 1.])\nthen [2.0, 2.0] torch.Size([2]) torch.float32\n".replace(
        "torch.Size([2])", str(tj.zeros(2).shape)
    ).replace("torch.float32", str(tj.float32))


def test_memory_that_numpy_shows(woken: list[int]) -> None:
    def script(compile: Any, note: Any) -> None:
        memory = np.ones(3, np.float32)
        x = tj.from_numpy(memory)

        @compile
        def f(y):
            a = y * 2
            b = a + x
            memory[:] += 1
            return b, a + x

        for _ in range(3):
            note(*f(tj.ones(3)))

    both(script)
    assert woken == [1]


def test_memory_that_is_shown_to_numpy_in_the_middle() -> None:
    def script(compile: Any, note: Any) -> None:
        x = tj.ones(3)

        @compile
        def f(y):
            a = x + y
            x.numpy()[0] = 5
            x.add_(1)
            return a, x + y

        for _ in range(3):
            note(*f(tj.ones(3)), x)

    both(script)


def test_memory_from_outside_is_written() -> None:
    def script(compile: Any, note: Any) -> None:
        x, y = tj.ones(2, 3), tj.zeros(4)
        view, other = x[0], y.detach()

        @compile
        def f(z):
            x.mul_(2)
            a = view + z
            y[1:3] = a[:2]
            other.add_(1)
            x[1].copy_(z)
            return a, y * 2, x.sum()

        for _ in range(4):
            note(*f(tj.randn(3)), x, y, view, other)

    both(script)


def test_what_is_made_is_written_in_place() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            a = x * 2
            view = a[1:]
            a.add_(1)
            b = w * x
            b.mul_(b.detach())
            c = tj.zeros(3)
            c.copy_(b)
            (c * a).sum().backward()
            return a, view, b, c

        for _ in range(3):
            note(*f(tj.randn(3)), w.grad)

    both(script)


def test_saved_values_that_were_overwritten() -> None:
    w = tj.ones(3, requires_grad=True)

    @tj.compile(backend="plain")
    def f(x):
        y = w.exp()
        y.detach().add_(x)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        f(tj.ones(3))
    assert w.grad is None


def test_saved_values_that_were_overwritten_before_a_divergence() -> None:
    w = tj.ones(3, requires_grad=True)

    @tj.compile(backend="plain")
    def f(x, differs):
        y = w.exp()
        y.detach().add_(x)
        if differs:
            y.sum().backward()
        return y

    for _ in range(3):
        f(tj.ones(3), False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        f(tj.ones(3), True)


# ---- gradients


@pytest.mark.parametrize("before", [False, True])
def test_gradients_from_before(before: bool, woken: list[int]) -> None:
    def script(compile: Any, note: Any) -> None:
        w, v = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)
        if before:
            (w * 5).sum().backward()
        kept = w.grad

        @compile
        def f(x):
            (w * v * x).sum().backward()
            (w * x).sum().backward()
            return w.grad * 2

        for _ in range(4):
            note(f(tj.randn(3)), w.grad, v.grad, kept)

    both(script)
    assert woken == []


def test_gradients_of_some_inputs() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.randn(3, requires_grad=True)

        @compile
        def f(x):
            y = w * x
            loss = (y * y).sum()
            of_y, of_w = tj.autograd.grad(loss, [y, w], retain_graph=True)
            (same,) = tj.autograd.grad((w * x).sum(), [w])
            return of_y, of_w, same, loss

        for _ in range(3):
            *found, loss = f(tj.randn(3))
            loss.backward()
            note(*found, loss, w.grad)

    both(script)


def test_the_backward_pass_comes_after_the_call() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        f = compile(model)
        for _ in range(4):
            out = f(tj.randn(5, 3))
            out.pow(2).sum().backward()
            note(out, *[p.grad for p in model.parameters()])

    notes = []
    for compiled in (False, True):
        tj.manual_seed(0)
        script(lambda m, c=compiled: tj.compile(m, backend="plain") if c else m, lambda *t: notes.append(values(*t)))
    assert notes[:4] == notes[4:]


@pytest.mark.parametrize("failing", [1, 2, 3, 6])
def test_hooks_that_fail_run_once(failing: int) -> None:
    """A pass that runs the user's code is never tried before it is run: what was done is done once."""

    def history(compile: Callable[..., Any]) -> list[Any]:
        told: list[Any] = []
        w = tj.ones(3, requires_grad=True)

        def hook(g: Any) -> Any:
            told.append("leaf")
            if len(told) == failing:
                raise ValueError("no")
            return g * 2

        w.register_hook(hook)
        w.register_post_accumulate_grad_hook(lambda _: told.append("after"))

        @compile
        def step(x: Any) -> Any:
            w.grad = None
            y = w * x
            y.register_hook(lambda _: told.append("middle"))
            (y * y).sum().backward()
            told.append(w.grad.tolist())

        for i in range(4):
            try:
                step(tj.full((3,), 2.0 + i))
            except ValueError as error:
                told.append(str(error))
        return told

    assert history(tj.compile) == history(lambda function: function)


def test_hooks(woken: list[int]) -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        seen: list[Any] = []

        @compile
        def f(x):
            y = w * x
            y.register_hook(lambda g: seen.append(g.tolist()))
            z = y.exp()
            z.retain_grad()
            z.sum().backward()
            return z, z.grad

        for _ in range(3):
            note(*f(tj.randn(3)), w.grad, list(seen))
        handle = w.register_hook(lambda g: g * 2)
        note(*f(tj.randn(3)), w.grad)
        handle.remove()

    both(script)


def test_the_tape_is_looked_at() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = (w * x).sum()
            name = y.grad_fn.name()
            (again,) = tj.autograd.grad(y * y, [w], create_graph=True)
            again.sum().backward()
            return y, name, again

        for _ in range(3):
            note(*f(tj.randn(3)), w.grad)

    both(script)


def test_checkpoints() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))

        @compile
        def f(x):
            loss = checkpoint(model, x * 2, use_reentrant=False).pow(2).sum()
            loss.backward()
            return loss

        for _ in range(3):
            note(f(tj.randn(5, 3)), *[p.grad for p in model.parameters()])

    both(script)


# ---- what is not foreseen


def test_an_op_that_has_to_run(woken: list[int], run_ops: list[str]) -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            y = x * 2
            best, where = y.topk(2)
            return y + 1, best * 2, where

        for _ in range(3):
            note(*f(tj.randn(5)))

    both(script)
    assert woken == [1]
    assert run_ops == ["topk", "add", "mul"]


def test_an_op_of_a_backward_pass_that_has_to_run(woken: list[int]) -> None:
    def script(compile: Any, note: Any) -> None:
        w, v = tj.randn(4, requires_grad=True), tj.randn(4, requires_grad=True)
        v.sum().backward()

        @compile
        def f(x):
            loss = ((w * x).cumprod(0) * v).sum()
            loss.backward()
            return loss

        for _ in range(3):
            note(f(tj.randn(4)), w.grad, v.grad)

    both(script)
    assert woken == [4]


def test_a_function_of_the_users() -> None:
    class Double(tj.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append("forward")
            return x * 2

        @staticmethod
        def backward(ctx, g):
            calls.append("backward")
            return g * 2

    calls: list[str] = []

    def script(compile: Any, note: Any) -> None:
        calls.clear()
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = Double.apply(w * x)
            y.sum().backward()
            return y

        for _ in range(3):
            note(f(tj.randn(3)), w.grad, list(calls))

    both(script)


# ---- errors


class StopError(Exception):
    pass


@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_what_was_done(error: type[BaseException]) -> None:
    def script(compile: Any, note: Any) -> None:
        w, x = tj.ones(3, requires_grad=True), tj.ones(3)
        kept: list[Any] = []

        @compile
        def f(y):
            kept.append(w * y)
            kept.append(kept[0][1:].detach())
            x.add_(y)
            (kept[0] * 2).sum().backward(retain_graph=True)
            raise error("here")

        with pytest.raises(error, match="here"):
            f(tj.ones(3) * 2)
        note(*kept, x, w.grad)
        kept[0].sum().backward()
        note(w.grad)

    both(script)


def test_errors_that_are_caught(woken: list[int]) -> None:
    def script(compile: Any, note: Any) -> None:
        said: list[str] = []

        @compile
        def f(x, i):
            y = x * 2
            for attempt in (lambda t: t @ tj.ones(7, 2), lambda t: t + tj.ones(5), lambda t: t.view(2, 2), lambda t: t[i]):
                try:
                    y = attempt(y)
                except (RuntimeError, IndexError) as error:
                    said.append(str(error))
            return y + 1

        for _ in range(3):
            note(f(tj.ones(3), tj.tensor([9])), list(said))

    both(script)


def test_an_error_has_the_users_line() -> None:
    @tj.compile(backend="plain")
    def f(x):
        y = x * 2
        return y @ tj.ones(7, 2)  # here

    with pytest.raises(RuntimeError) as caught:
        f(tj.ones(2, 3))
    lines = [str(entry.statement) for entry in caught.traceback]
    assert any("# here" in line for line in lines)


# ---- beside others


def test_threads() -> None:
    model = nn.Linear(4, 4)

    @tj.compile(backend="plain")
    def f(x):
        return model(x).tanh().sum(dim=1)

    inputs = [tj.randn(6, 4) for _ in range(8)]
    expected = [f.function(x).detach().numpy().tobytes() for x in inputs]
    found: list[Any] = [None] * len(inputs)
    gate = threading.Barrier(len(inputs))

    def call(i: int) -> None:
        gate.wait()
        found[i] = f(inputs[i]).detach().numpy().tobytes()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_another_thread_reads_what_is_pending() -> None:
    seen: list[Any] = []

    @tj.compile(backend="plain")
    def f(x):
        y = x * 2
        thread = threading.Thread(target=lambda: seen.append(y.tolist()))
        thread.start()
        thread.join()
        return y + 1

    assert f(tj.ones(2)).tolist() == [3.0, 3.0]
    assert seen == [[2.0, 2.0]]


def test_a_compiled_function_in_another(run_ops: list[str]) -> None:
    @tj.compile(backend="plain")
    def inner(x):
        return x * 2

    @tj.compile(backend="plain")
    def outer(x):
        return inner(x) + inner(x + 1)

    assert outer(tj.ones(2)).tolist() == [6.0, 6.0]
    assert run_ops == []


def test_nothing_is_left_behind() -> None:
    """What only the recorder has seen is gone with the call, and what outlives it has arrays of its own."""

    @tj.compile(backend="plain")
    def f(x):
        y = x * 2
        return y, y.T, y.detach(), y[0]

    y, turned, same, row = f(tj.ones(2, 3))
    for t in (y, turned, same, row):
        assert t.numpy().flags.writeable
    y.add_(1)
    assert same.tolist() == y.tolist() == turned.T.tolist()
    assert row.tolist() == y[0].tolist()
    assert turned._base is y
    assert f.candidate is not None
    assert all(type(e).__name__ != "ndarray" for e in vars(f.candidate).values())
