"""Several threads at once: each has its own grad mode, and gradients into shared leaves are not lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tapejit as tj
from tapejit import autograd


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run(*targets: Callable[[], None]) -> None:
    """Run all at once; an error in any of them is an error here."""
    errors: list[BaseException] = []
    together = threading.Barrier(len(targets))

    def guarded(target: Callable[[], None]) -> None:
        try:
            together.wait()
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(t,)) for t in targets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_graphs_of_their_own() -> None:
    def work() -> None:
        for _ in range(30):
            x = tj.tensor([1.0, 2.0], dtype=tj.float64, requires_grad=True)
            y = x
            for _ in range(10):
                y = y.sin() * x
            (g,) = autograd.grad(y.sum(), x, create_graph=True)
            g.sum().backward()
            found.append(x.grad.numpy())

    found: list[np.ndarray] = []
    run(work, work, work, work)
    assert len(found) == 120
    assert all(np.array_equal(found[0], f) for f in found)


@pytest.mark.parametrize("size", [4, 50_000])
def test_one_leaf_for_all(size: int) -> None:
    w = tj.ones(size, dtype=tj.float64, requires_grad=True)

    def work() -> None:
        for _ in range(50):
            (w * 2).sum().backward()

    run(work, work, work, work)
    assert np.array_equal(w.grad.numpy(), np.full(size, 400.0))


def test_the_first_gradients_of_one_leaf() -> None:
    for _ in range(100):
        w = tj.ones(3, dtype=tj.float64, requires_grad=True)
        run(*[lambda w=w: (w * 2).sum().backward()] * 4)
        assert w.grad.tolist() == [8.0, 8.0, 8.0]


def test_one_graph_walked_by_all() -> None:
    w = tj.ones(100, dtype=tj.float64, requires_grad=True)
    loss = (w.exp() * w).sum()
    run(*[lambda: loss.backward(retain_graph=True)] * 4)
    assert np.allclose(w.grad.numpy(), 4 * 2 * np.e)


def test_grad_mode_and_anomaly_mode_belong_to_the_thread() -> None:
    x = tj.ones(2, requires_grad=True)

    def without() -> None:
        for _ in range(200):
            with tj.no_grad():
                assert not (x * 2).requires_grad
            with tj.inference_mode():
                assert tj.is_inference_mode_enabled()

    def within() -> None:
        for _ in range(200):
            assert (x * 2).requires_grad and not tj.is_inference_mode_enabled() and not tj.is_anomaly_enabled()

    def anomalies() -> None:
        for _ in range(50):
            with autograd.detect_anomaly():
                assert (x * 2).grad_fn.where

    run(without, within, anomalies, without)


def test_one_decorated_function_in_many_threads() -> None:
    x = tj.ones(2, requires_grad=True)

    @tj.no_grad()
    def value() -> tj.Tensor:
        return x * 2

    def work() -> None:
        for _ in range(200):
            assert not value().requires_grad
            assert tj.is_grad_enabled()

    run(work, work, work, work)


def test_backward_in_another_thread_than_forward() -> None:
    w = tj.ones(2, requires_grad=True)
    loss = (w.exp() * 2).sum()
    run(loss.backward)
    assert np.allclose(w.grad.numpy(), 2 * np.e)


def test_hooks_see_whole_gradients_in_every_thread() -> None:
    w = tj.ones(2, dtype=tj.float64, requires_grad=True)
    seen: list[list[float]] = []
    w.register_hook(lambda g: seen.append(g.tolist()))

    def work() -> None:
        for _ in range(20):
            (w * w + w).sum().backward()

    run(work, work, work)
    assert seen == [[3.0, 3.0]] * 60
    assert w.grad.tolist() == [180.0, 180.0]
