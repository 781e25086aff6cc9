"""Gradients, hooks, modes and custom functions inside of a compiled function: see `soundness_harness.py`."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import tapejit as tj
from support.scripts import batch, state_of
from support.soundness_harness import both
from tapejit import nn

# ---- autograd inside


def test_data_detach_and_changing_requires_grad() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = x * w
            a = y.detach() * 2
            b = (w.data * x).requires_grad_()
            (y * a + b.exp()).sum().backward()
            w.data.sub_(w.grad, alpha=0.1)
            w.data = w.data * 0.9
            w.grad = None
            return y, a, b, b.grad

        for i in range(10):
            note(f(batch(i)), w)

    both(script, replayed=3)


def test_detach_in_place() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        cut = False

        @compile
        def f(x):
            y = x * w
            if cut:
                y.detach_()
            return (y.exp() * w).sum(), y

        for i in range(12):
            cut = i % 4 > 1
            loss, y = f(batch(i))
            loss.backward()
            note(loss, y, w)

    both(script, replayed=3)


def test_requires_grad_of_an_input_inside() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            x.requires_grad_()
            y = (x * 2).exp().sum()
            y.backward()
            x.requires_grad_(False)
            return y, x + 1

        for i in range(8):
            x = batch(i)
            note(f(x), x, x.grad)

    both(script, replayed=3)


@pytest.mark.parametrize("order", [1, 2])
def test_double_backward(order: int) -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            (g,) = tj.autograd.grad((w * x).exp().sum(), w, create_graph=True)
            if order == 2:
                (g,) = tj.autograd.grad(g.pow(2).sum(), w, create_graph=True)
            penalty = g.pow(2).sum()
            penalty.backward()
            return penalty

        for i in range(8):
            note(f(batch(i)), w)

    both(script, replayed=2)


def test_double_backward_from_outside() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            return (w * x).tanh().exp().sum()

        for i in range(8):
            loss = f(batch(i))
            (g,) = tj.autograd.grad(loss, w, create_graph=True)
            (h,) = tj.autograd.grad(g.pow(3).sum(), w, create_graph=True)
            (h.sum() + loss).backward()
            note(loss, g, h, w)

    both(script, replayed=6, divergences=0)


def test_grad_inside() -> None:
    def script(compile: Any, note: Any) -> None:
        w, v = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = (w * x).exp()
            gw, gv, none = tj.autograd.grad(y.sum(), [w, y, v], allow_unused=True, retain_graph=True)
            (gx,) = tj.autograd.grad(y, w, grad_outputs=x)
            return gw * 2, gv, none, gx

        for i in range(8):
            note(f(batch(i)), w, v)

    both(script, replayed=2)


def test_backward_of_chosen_inputs_and_several_roots() -> None:
    def script(compile: Any, note: Any) -> None:
        w, v = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y, z = w * x, (v * x).exp() * w
            tj.autograd.backward([y.sum(), z], [None, x])
            (w * v * x).sum().backward(inputs=[v])
            (w * x).backward(x + 1)
            return y

        for i in range(8):
            note(f(batch(i)), w, v)

    both(script, replayed=2)


def test_without_gradients_and_then_with() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Linear(3, 2)

        @compile
        def f(x):
            return model(x).tanh().sum()

        for i in range(16):
            if i % 4 < 2:
                with tj.no_grad():
                    loss = f(batch(i, 4, 3))
            else:
                loss = f(batch(i, 4, 3))
                loss.backward()
            note(loss, state_of(model))

    f = both(script, replayed=13, divergences=1)
    assert len(f.traces) == 2


def test_gradient_mode_changes_inside() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x, on):
            with tj.set_grad_enabled(on):
                y = x * w
            with tj.no_grad():
                z = y * 2 + w
                with tj.enable_grad():
                    u = w * z
            return y, z, u, tj.is_grad_enabled()

        for i in range(12):
            y, z, u, mode = f(batch(i), i % 4 < 2)
            u.sum().backward()
            note(y, z, u, mode, w)

    both(script, replayed=9, divergences=1)


def test_inference_mode() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Linear(3, 2)

        @compile
        def f(x):
            return model(x).exp()

        for i in range(12):
            with tj.inference_mode(i % 3 == 0):
                y = f(batch(i, 4, 3))
            note(y, y.is_inference())

    both(script, replayed=5)


class Cube(tj.autograd.Function):
    """With a gradient that is not the true one, so that one can see who computed it."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * x * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        print("backward")
        return g * x * 7 * ctx.scale, None


@pytest.mark.parametrize("inside", [True, False])
def test_custom_functions(inside: bool) -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x, scale):
            y = Cube.apply(w * x, scale).exp()
            loss = y.sum() * 2
            if inside:
                loss.backward()
            return loss

        for i in range(8):
            loss = f(batch(i), float(i) / 8)
            if not inside:
                loss.backward()
            note(loss, w)

    both(script, replayed=2)


def test_a_custom_function_that_writes_and_returns_views() -> None:
    class Shift(tj.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.add_(1)

        @staticmethod
        def backward(ctx, g):
            return g * 3

    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = w * x
            z = Shift.apply(y)
            (z.exp() * y).sum().backward()
            return y, z is y

        for i in range(8):
            note(f(batch(i)), w)

    both(script, replayed=2)


def test_checkpointing() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))

        @compile
        def f(x):
            loss = tj.utils.checkpoint.checkpoint(model, x, use_reentrant=False).pow(2).sum()
            loss.backward()
            return loss

        for i in range(8):
            note(f(batch(i, 4, 3)), state_of(model))

    both(script)


@pytest.mark.parametrize("first", [2, 2.0])
def test_a_checkpointed_function_reads_numbers_that_change(first: float) -> None:
    """It runs again in the backward pass, with the numbers of its call."""

    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        scale = [first]

        @compile
        def f(x):
            loss = tj.utils.checkpoint.checkpoint(lambda x: (x * w * (scale[0] * 3)).tanh(), x, use_reentrant=False).sum()
            loss.backward()
            return loss

        for i in range(8):
            if i >= 4:
                scale[0] += 1
            w.grad = None
            note(f(batch(i)), w)

    both(script, replayed=3)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_autocast(where: str) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
        on = False

        @compile
        def step(x):
            with tj.autocast("cpu", dtype=tj.bfloat16) if on and where == "inside" else contextlib.nullcontext():
                y = model(x)
                loss = y.float().pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, y

        for i in range(12):
            on = i % 6 > 2
            with tj.autocast("cpu", dtype=tj.bfloat16) if on and where == "around" else contextlib.nullcontext():
                loss, y = step(batch(i, 4, 3))
            note(loss, y.dtype == tj.bfloat16, y.float(), state_of(model), tj.is_autocast_enabled("cpu"))

    both(script, replayed=4)


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("first", [0, 10])
def test_autocast_that_is_left(pure: bool, first: int) -> None:
    """Calls in mixed precision say nothing of those in full precision that come after them, even if Python is skipped there."""

    def script(compile: Any, note: Any) -> None:
        @compile
        def product(x):
            return x @ x.mT

        for i in range(first, 40):
            with tj.autocast("cpu", dtype=tj.bfloat16) if i // 10 % 2 else contextlib.nullcontext():
                y = product(batch(i, 4, 3))
            note(y.dtype == tj.bfloat16, y.float())

    both(script, replayed=20, pure=pure)


@pytest.mark.parametrize("change", ["shape", "freeze", "op"])
def test_a_divergence_within_autocast(change: str) -> None:
    """Autocast keeps the handler that it has found, a step of the replay: then it is called by a recording."""

    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
        calls: list[int] = []

        @compile
        def step(x, other):
            calls.append(len(calls))
            optimizer.zero_grad()
            scale = tj.full((2,), 0.5) + 0.5
            with tj.autocast("cpu", dtype=tj.bfloat16):
                mask = tj.ones(4, 2)[: len(x)] * scale
                y = model(x) * mask
                y = y.tanh() if other else y.sigmoid()
                loss = (y @ y.mT).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss, y

        for i in range(12):
            other = i % 6 == 5
            if change == "freeze":
                model[0].weight.requires_grad_(not other)
            loss, y = step(batch(i, 3 if other and change == "shape" else 4, 3), other and change == "op")
            note(loss, y.float(), state_of(model), calls)

    both(script, replayed=3)


def test_loss_scaling() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Linear(3, 2)
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
        scaler = tj.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        for i in range(12):
            note(step(batch(i, 4, 3) * (float("inf") if i in (3, 7) else 1)), state_of(model), scaler.get_scale())

    both(script)


def test_several_compiled_functions_in_one_backward() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def encode(x):
            return (x * w).tanh()

        @compile
        def decode(y):
            return (y * w).exp(), y.sum()

        for i in range(10):
            h = encode(batch(i)) * 2
            y, s = decode(h)
            (y.sum() + s + encode(y).sum()).backward()
            note(y, s, w)

    both(script, replayed=8, divergences=0)


def test_an_output_used_in_part() -> None:
    def script(compile: Any, note: Any) -> None:
        w, v = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = w * x
            return y, (y * v).exp(), y.sum()

        for i in range(10):
            a, b, c = f(batch(i))
            if i % 3 == 0:
                a.sum().backward()
            elif i % 3 == 1:
                (b.sum() * c).backward()
            else:
                del a, b
                c.backward()
            note(w, v)

    both(script, replayed=8, divergences=0)


def test_grad_fn_is_looked_at() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = (w * x).exp()
            name = y.grad_fn.name()
            below = [None if n is None else n.name() for n, _ in y.grad_fn.next_functions]
            return y, name, below, y.is_leaf, w.is_leaf, x.is_leaf, y.requires_grad

        for i in range(8):
            note(f(batch(i)))

    both(script)
