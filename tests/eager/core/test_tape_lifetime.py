"""The tape's life: freed by reference counting alone, deep and wide graphs, time that grows with the number of ops."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tapejit as tj
from tapejit import autograd


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leaf(*shape: int) -> tj.Tensor:
    return tj.tensor(np.random.default_rng(0).uniform(0.5, 1.5, shape), dtype=tj.float32, requires_grad=True)


class Swish(autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = x.sigmoid()
        y = x * s
        ctx.save_for_backward(x, s, y)
        return y

    @staticmethod
    def backward(ctx, g):
        _, s, y = ctx.saved_tensors
        return g * (s + y * (1 - s))


class DoubleInPlace(autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


# ---- training steps of many kinds: each leaves nothing behind


def plain(x: tj.Tensor, w: tj.Tensor) -> None:
    loss = ((x @ w).tanh() - 1).square().mean()
    loss.backward()
    with tj.no_grad():
        w.sub_(w.grad, alpha=0.01)
    w.grad = None


def accumulating(x: tj.Tensor, w: tj.Tensor) -> None:
    for _ in range(2):
        (x @ w).sum().backward()
    w.grad.zero_()


def never_backward(x: tj.Tensor, w: tj.Tensor) -> None:
    loss = (x @ w).exp().sum()
    assert loss.requires_grad


def in_place(x: tj.Tensor, w: tj.Tensor) -> None:
    y = x @ w
    y.add_(1).mul_(0.5)
    y[0] = y[1] * 2
    y += y.sum()
    y.sum().backward()
    w.grad = None


def views(x: tj.Tensor, w: tj.Tensor) -> None:
    y = x @ w
    a, b = y.split(2, 1)
    v = y.T[1:]
    a.mul_(b.detach())
    row = v[0]
    y.exp_()
    (v.sum() + row.sum() + a.sum()).backward()
    w.grad = None


def state_that_lives_on(x: tj.Tensor, w: tj.Tensor) -> None:
    h = tj.zeros(3, 4)
    out = tj.zeros(3, 3, 4)
    for t in range(3):
        h.mul_(0.5).add_(x @ w)
        out[t] = h
    out.sum().backward()
    w.grad = None


def functions(x: tj.Tensor, w: tj.Tensor) -> None:
    y = Swish.apply(x @ w)
    y = y + 1
    DoubleInPlace.apply(y[0])
    y.sum().backward()
    w.grad = None


def hooks(x: tj.Tensor, w: tj.Tensor) -> None:
    seen = []
    y = x @ w
    handle = w.register_hook(lambda g: g * 2)
    y.register_hook(lambda g: seen.append(g))
    y.retain_grad()
    y.grad_fn.register_hook(lambda inputs, outputs: None)
    after = w.register_post_accumulate_grad_hook(lambda p: None)
    (y * y).sum().backward()
    handle.remove()
    after.remove()
    w.grad = None


def double_backward(x: tj.Tensor, w: tj.Tensor) -> None:
    y = Swish.apply(x @ w).exp()
    (g,) = autograd.grad(y.sum(), w, create_graph=True)
    (g * g).sum().backward()
    w.grad = None


def create_graph_into_grad(x: tj.Tensor, w: tj.Tensor) -> None:
    (x @ w).square().sum().backward(create_graph=True)
    w.grad.square().sum().backward(inputs=[w])
    w.grad = None  # breaks the one cycle there is: leaf, its grad, the grad's history, leaf


def several_outputs(x: tj.Tensor, w: tj.Tensor) -> None:
    parts = (x @ w).unbind(0)
    tj.stack([p.exp() for p in parts[:-1]]).sum().backward()
    w.grad = None


def kept_graph(x: tj.Tensor, w: tj.Tensor) -> None:
    loss = (x @ w).exp().sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    w.grad = None


def failing(x: tj.Tensor, w: tj.Tensor) -> None:
    y = (x @ w).exp()
    y.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        error.__traceback__ = None  # the frames refer to the error, as always in Python
        del error
    w.grad = None


def anomaly(x: tj.Tensor, w: tj.Tensor) -> None:
    with autograd.detect_anomaly():
        (x @ w).exp().sum().backward()
    w.grad = None


def drawing(x: tj.Tensor, w: tj.Tensor) -> None:
    autograd.draw((x @ w).exp().sum())


def functional(x: tj.Tensor, w: tj.Tensor) -> None:
    autograd.functional.hessian(lambda w: (x @ w).tanh().sum(), w.detach()[:1].sum())
    autograd.functional.jvp(lambda w: x @ w, w, w.detach())


STEPS = [
    plain, accumulating, never_backward, in_place, views, state_that_lives_on, functions, hooks, double_backward,
    create_graph_into_grad, several_outputs, kept_graph, failing, anomaly, drawing,
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_nothing_is_left_to_the_collector(step: Callable[[tj.Tensor, tj.Tensor], None]) -> None:
    x, w = leaf(3, 4).detach(), leaf(4, 4)
    step(x, w)
    gc.collect()
    step(x, w)
    assert gc.collect() == 0


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_objects_do_not_pile_up(step: Callable[[tj.Tensor, tj.Tensor], None]) -> None:
    x, w = leaf(3, 4).detach(), leaf(4, 4)
    for _ in range(3):
        step(x, w)
    before = len(gc.get_objects())
    for _ in range(20):
        step(x, w)
    assert len(gc.get_objects()) - before <= 5


def test_ten_thousand_steps_do_not_grow() -> None:
    x, w, b = leaf(2).detach(), leaf(2), leaf(2)

    def step() -> None:
        y = x * w
        y += b
        y.sum().backward()
        with tj.no_grad():
            w.sub_(w.grad, alpha=1e-4)
        w.grad = None
        b.grad.zero_()

    for _ in range(10):
        step()
    objects = len(gc.get_objects())
    tracemalloc.start()
    for _ in range(10):
        step()
    start = tracemalloc.get_traced_memory()[0]
    for _ in range(1_000):
        step()
    assert tracemalloc.get_traced_memory()[0] - start < 100_000  # one small tensor in each step would be far more
    tracemalloc.stop()
    for _ in range(9_000):
        step()
    assert len(gc.get_objects()) - objects <= 5
    assert gc.collect() == 0


def test_values_die_when_their_last_reader_is_done() -> None:
    w = leaf(4, 4)
    h = w.exp()
    array = weakref.ref(h.tj_array)
    node, tensor = weakref.ref(h.grad_fn), weakref.ref(h)
    loss = h.sum()
    del h
    assert tensor() is None and node() is not None and array() is not None
    loss.backward()
    assert array() is None  # freed by the backward pass, while the loss still lives
    del loss
    assert node() is None


def test_backward_frees_as_it_goes() -> None:
    """The saved values of what has been walked are gone while the rest is still being walked."""
    w = leaf(100, 100)
    h, alive, seen = w, [], []
    for _ in range(10):
        h = (h * 1e-3).exp()
        h.register_hook(lambda g: seen.append(sum(a() is not None for a in alive)))
        alive.append(weakref.ref(h.tj_array))
    loss = h.sum()
    del h
    loss.backward()
    assert len(seen) == 10 and seen[-1] < seen[0]


def test_a_tape_does_not_keep_what_it_does_not_need() -> None:
    w = leaf(4, 4)
    h = w + 1
    array = weakref.ref(h.tj_array)
    total = (h + 1).sum()
    del h
    assert array() is None
    total.backward()


def test_leaves_die_with_their_graph() -> None:
    w = leaf(4)
    gone = weakref.ref(w)
    loss = w.exp().sum()
    loss.backward()
    del w
    assert gone() is not None
    del loss
    assert gone() is None


def test_a_view_keeps_its_base_and_not_the_other_way_round() -> None:
    x = leaf(4) * 1
    v = x[1:]
    view, base = weakref.ref(v), weakref.ref(x)
    del v
    assert view() is None
    v = x[1:]
    del x
    assert base() is not None
    del v
    assert base() is None


# ---- depth and width

DEPTH = 50_000


def chain(depth: int) -> tuple[tj.Tensor, tj.Tensor]:
    x = leaf(1)
    y = x
    for _ in range(depth):
        y = y + x
    return x, y


def test_a_deep_graph_neither_recurses_nor_stays() -> None:
    limit = sys.getrecursionlimit()
    assert limit < DEPTH
    x, y = chain(DEPTH)
    y.backward()
    assert x.grad.item() == DEPTH + 1
    node = weakref.ref(y.grad_fn)
    del y  # freeing it is deep too
    assert node() is None and gc.collect() == 0


def test_a_deep_graph_under_grad_create_graph_and_draw() -> None:
    x = leaf(1)
    y = x
    for _ in range(5_000):
        y = y * 1.0001
    (g,) = autograd.grad(y, x, create_graph=True)
    assert not g.isnan().any()
    autograd.draw(y, limit=20)
    with tj.no_grad():
        assert not (y * 2).requires_grad


def test_a_deep_graph_of_in_place_writes_and_views() -> None:
    x = leaf(2)
    y = x * 1
    v = y[:1]
    for _ in range(5_000):
        y.add_(x)
    v.sum().backward()
    assert x.grad.tolist() == [5_001, 0]
    del y, v
    assert gc.collect() == 0


def test_a_deep_graph_of_functions() -> None:
    x = leaf(1)
    y = x * 1
    for _ in range(2_000):
        y = Swish.apply(y)
    y.backward()
    del y
    assert gc.collect() == 0


def test_time_grows_with_the_number_of_ops() -> None:
    def seconds(depth: int) -> float:
        _, y = chain(depth)
        start = time.perf_counter()
        y.backward()
        return time.perf_counter() - start

    seconds(1_000)
    short = min(seconds(2_000) for _ in range(3))
    long = min(seconds(8_000) for _ in range(3))
    assert long < 4 * short * 3  # 4 times the ops; quadratic would be 16


def test_gradients_are_computed_once_for_each_node() -> None:
    """Each op in a graph with 2**60 paths runs backward once."""
    count = 0

    class Counted(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            nonlocal count
            count += 1
            return g

    x = tj.ones(1, dtype=tj.float64, requires_grad=True)
    y = x
    for _ in range(60):
        y = Counted.apply(y)
        y = y + y
    y.backward()
    assert count == 60 and x.grad.item() == 2.0**60


def test_a_wide_graph() -> None:
    x = leaf(3)
    total = tj.stack([x * float(i) for i in range(1_000)]).sum()
    total.backward()
    assert np.allclose(x.grad.numpy(), sum(range(1_000)))
    w = [leaf(2) for _ in range(1_000)]
    sum((t * t).sum() for t in w).backward()
    assert all(np.allclose(t.grad.numpy(), 2 * t.detach().numpy()) for t in w)
    parts = leaf(1_000).split(1)
    tj.cat(parts).sum().backward()
    del parts, total, w
    assert gc.collect() == 0
