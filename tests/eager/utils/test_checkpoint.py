"""Activations computed again in the backward pass: the same gradients, less memory, and errors where that cannot be."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn
from tapejit.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential


def block(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(width), nn.Linear(width, width))


def gradients(model: nn.Module, loss: tj.Tensor) -> list[np.ndarray]:
    model.zero_grad()
    loss.backward()
    return [p.grad.numpy().copy() for p in model.parameters()]


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("reentrant", [False, True, None])
def test_same_gradients_with_dropout(reentrant: bool | None) -> None:
    model = nn.Sequential(block(), block(), block())
    x = tj.randn(4, 8, requires_grad=True)

    def run(recompute: bool) -> tuple[list[np.ndarray], np.ndarray, float]:
        tj.manual_seed(1)
        h = x
        for part in model:
            h = checkpoint(part, h, use_reentrant=reentrant) if recompute else part(h)
        x.grad = None
        found = gradients(model, (h * h).sum())
        assert x.grad is not None
        return found, x.grad.numpy().copy(), tj.rand(1).item()

    plain, again = run(False), run(True)
    assert_equal(again[0], plain[0])
    np.testing.assert_array_equal(again[1], plain[1])
    assert again[2] == plain[2]  # the stream of random numbers goes on as if nothing had been repeated


def test_random_state_may_be_left_alone() -> None:
    tj.manual_seed(0)
    x = tj.ones(1000, requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    assert not np.array_equal(x.grad.numpy(), y.detach().numpy())  # another mask the second time: that is what was asked for


def test_memory() -> None:
    width, count = 64, 8
    model = nn.Sequential(*[block(width) for _ in range(count)])
    x = tj.randn(256, width)

    def kept_and_peak(recompute: bool) -> tuple[int, int]:
        model.zero_grad()
        tracemalloc.start()
        h = x
        for part in model:
            h = checkpoint(part, h, use_reentrant=False) if recompute else part(h)
        loss = h.sum()
        kept, _ = tracemalloc.get_traced_memory()
        loss.backward()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return kept, peak

    kept_and_peak(False)
    plain, again = kept_and_peak(False), kept_and_peak(True)
    assert again[0] < plain[0] / 2.5
    assert again[1] < plain[1] / 1.5


def test_what_was_recomputed_is_freed() -> None:
    class Big:
        pass

    marks = []

    def function(t: tj.Tensor) -> tj.Tensor:
        mark = Big()
        marks.append(weakref.ref(mark))
        h = t.exp()
        h.mark = mark  # type: ignore[attr-defined]
        return h * h

    x = tj.ones(3, requires_grad=True)
    y = checkpoint(function, x, use_reentrant=False)
    y.sum().backward()
    del y
    assert all(m() is None for m in marks)  # without the help of the garbage collector
    gc.collect()


def test_parameters_only() -> None:
    """No input wants a gradient, but what the function closes over does."""
    model = block()
    x = tj.randn(4, 8)
    tj.manual_seed(2)
    expected = gradients(model, model(x).sum())
    tj.manual_seed(2)
    assert_equal(gradients(model, checkpoint(model, x, use_reentrant=False).sum()), expected)


def test_arguments_of_all_kinds() -> None:
    def function(
        parts: list[tj.Tensor], scale: float, *, extra: dict[str, Any], flag: bool
    ) -> tuple[tj.Tensor, dict[str, Any]]:
        a, b = parts
        y = (a * b).exp() * scale
        return y, {"sum": y.sum() + extra["c"], "flag": flag, "whole": tj.arange(3)}

    tensors = [tj.tensor([0.1, 0.2], requires_grad=True) for _ in range(3)]
    results = []
    for recompute in (False, True):
        for t in tensors:
            t.grad = None
        a, b, c = tensors
        kwargs = {"extra": {"c": c}, "flag": True}
        y, more = (
            checkpoint(function, [a, b], 2.0, use_reentrant=False, **kwargs) if recompute else function([a, b], 2.0, **kwargs)
        )
        assert more["flag"] is True
        (y * 2 + more["sum"]).sum().backward()
        results.append([t.grad.numpy().copy() for t in tensors])
    assert_equal(results[1], results[0])


def test_nested() -> None:
    outer = [block(), block()]
    model = nn.ModuleList(outer)
    x = tj.randn(3, 8)
    calls = []

    def inner(part: nn.Module, h: tj.Tensor) -> tj.Tensor:
        calls.append(1)
        return part(h)

    def both(h: tj.Tensor) -> tj.Tensor:
        for part in outer:
            h = checkpoint(inner, part, h, use_reentrant=False)
        return h

    tj.manual_seed(3)
    expected = gradients(model, (outer[1](outer[0](x)) ** 2).sum())
    tj.manual_seed(3)
    y = checkpoint(both, x, use_reentrant=False)
    assert len(calls) == 2
    assert_equal(gradients(model, (y * y).sum()), expected)
    assert len(calls) == 6  # once, once more for the outer one, and once more for each inner one


def test_recomputed_once() -> None:
    count = []

    def function(t: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        count.append(1)
        h = t.exp()
        return h.sin(), h.cos()

    x = tj.ones(3, requires_grad=True)
    a, b = checkpoint(function, x, use_reentrant=False)
    (a * b).sum().backward(retain_graph=True)
    assert len(count) == 2
    (a * b).sum().backward()
    assert len(count) == 2
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        (a * b).sum().backward()


def test_grad_of_chosen_tensors_and_higher_orders() -> None:
    x = tj.tensor([0.3, -0.7], dtype=tj.float64, requires_grad=True)
    w = tj.tensor([1.5, 0.5], dtype=tj.float64, requires_grad=True)

    def function(t: tj.Tensor) -> tj.Tensor:
        return (t * w).tanh() * t.exp()

    (g,) = tj.autograd.grad(checkpoint(function, x, use_reentrant=False).sum(), w)
    (expected,) = tj.autograd.grad(function(x).sum(), w)
    np.testing.assert_array_equal(g.numpy(), expected.numpy())
    assert tj.autograd.gradcheck(lambda t: checkpoint(function, t, use_reentrant=False), x)
    assert tj.autograd.gradgradcheck(lambda t: checkpoint(function, t, use_reentrant=False), x)


def test_hooks_and_retained_gradients_inside() -> None:
    x = tj.ones(2, requires_grad=True)
    seen, inside = [], []

    def function(t: tj.Tensor) -> tj.Tensor:
        h = t * 3
        if not inside:
            h.retain_grad()
            h.register_hook(lambda g: seen.append(g.numpy().copy()))
            inside.append(h)
        return h * h

    checkpoint(function, x, use_reentrant=False).sum().backward()
    np.testing.assert_array_equal(seen, [[6.0, 6.0]])
    np.testing.assert_array_equal(inside[0].grad.numpy(), [6.0, 6.0])


def test_custom_functions() -> None:
    class Cube(tj.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: tj.Tensor) -> tj.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: tj.Tensor) -> tj.Tensor:
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    x = tj.tensor([2.0], requires_grad=True)
    checkpoint(lambda t: Cube.apply(t * 2), x, use_reentrant=False).sum().backward()
    assert x.grad.item() == 3 * 16 * 2


def test_under_autocast() -> None:
    model, x = block(), tj.randn(4, 8)
    results = []
    for recompute in (False, True):
        tj.manual_seed(0)
        with tj.autocast("cpu"):
            y = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
        assert y.dtype is tj.bfloat16
        results.append(gradients(model, y.float().sum()))
    assert_equal(results[1], results[0])


def test_without_gradients_nothing_is_kept() -> None:
    count = []
    with tj.no_grad():
        y = checkpoint(lambda t: count.append(1) or t.exp(), tj.ones(2, requires_grad=True), use_reentrant=False)
    assert not y.requires_grad
    z = checkpoint(lambda t: t.exp(), tj.ones(2), use_reentrant=False)
    assert not z.requires_grad
    x = tj.ones(2, requires_grad=True)
    assert checkpoint(lambda t: t, x, use_reentrant=False) is x
    assert checkpoint(lambda t: "text", x, use_reentrant=False) == "text"


def test_in_place_layers() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    x = tj.randn(3, 4)
    expected = gradients(model, model(x * 1).sum())
    assert_equal(gradients(model, checkpoint(model, x * 1, use_reentrant=False).sum()), expected)


def test_sequential() -> None:
    model = nn.Sequential(*[block() for _ in range(5)])
    x = tj.randn(2, 8)
    tj.manual_seed(5)
    expected = gradients(model, model(x).sum())
    for segments in (1, 2, 3, 5, 7):
        tj.manual_seed(5)
        assert_equal(gradients(model, checkpoint_sequential(model, segments, x, use_reentrant=False).sum()), expected)
    assert checkpoint_sequential([lambda t: t + 1, lambda t: t * 2], 2, tj.ones(1), use_reentrant=False).item() == 4
    with pytest.raises(ValueError, match="Unexpected keyword arguments: other"):
        checkpoint_sequential(model, 2, x, use_reentrant=False, other=1)


def test_contexts_of_both_runs() -> None:
    class Noting:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            seen.append(self.name)

        def __exit__(self, *_: object) -> None: ...

    seen: list[str] = []
    x = tj.ones(2, requires_grad=True)
    y = checkpoint(lambda t: t.exp(), x, use_reentrant=False, context_fn=lambda: (Noting("first"), Noting("second")))
    y.sum().backward()
    assert seen == ["first", "second"]


def test_a_function_that_does_not_repeat_itself() -> None:
    x = tj.ones(3, 4, requires_grad=True)
    calls = []

    def other_op(t: tj.Tensor) -> tj.Tensor:
        calls.append(1)
        return t.exp() if len(calls) == 1 else t.sin()

    def other_shape(t: tj.Tensor) -> tj.Tensor:
        calls.append(1)
        return t.exp() if len(calls) == 1 else t[:2].exp()

    def other_count(t: tj.Tensor) -> tj.Tensor:
        calls.append(1)
        return t.exp() if len(calls) == 1 else t.exp().exp()

    for function, message in (
        (other_op, "SinBackward"),
        (other_shape, "different metadata|number of tensors"),
        (other_count, "ops"),
    ):
        calls.clear()
        y = checkpoint(function, x, use_reentrant=False)
        with pytest.raises(CheckpointError, match=message):
            y.sum().backward()
    calls.clear()
    y = checkpoint(other_op, x, use_reentrant=False, determinism_check="none")
    with pytest.raises(KeyError):  # then nobody says what went wrong
        y.sum().backward()


def test_an_argument_changed_since() -> None:
    x = tj.ones(2, requires_grad=True) * 1
    y = checkpoint(lambda t: t.exp(), x, use_reentrant=False)
    with tj.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="argument of a checkpointed function, is at version 1; expected version 0"):
        y.sum().backward()


def test_errors_come_early() -> None:
    x = tj.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="expected a function to call, got Tensor"):
        checkpoint(x)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: scale"):
        checkpoint(lambda t, scale: t, x, use_reentrant=True, scale=1)
    with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
        checkpoint(lambda t: t, x, use_reentrant=True, debug=True)
    with pytest.raises(ValueError, match="determinism_check should be one of"):
        checkpoint(lambda t: t, x, use_reentrant=False, determinism_check="strict")
    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda t: 1 / 0, x, use_reentrant=False)
