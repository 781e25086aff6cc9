"""Code of the library that somebody replaces between two calls of a compiled function, or during one.

A region of a recording skips the library's Python, and so does a proved step: whatever that Python would find under a name when
it ran has to be what it was. Each patch here changes what eager execution computes, and every script runs eagerly and compiled.
"""

from __future__ import annotations

import builtins
import cProfile
import gc
import importlib
import pstats
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.soundness_harness import both, entered, inputs
from tapejit import nn
from tapejit.eager.arrays import dtypes
from tapejit.tracer.guards.code_observer import CodeObserver

CALLS = 24


def sequence(*shape: int) -> Any:
    return tj.tensor(np.random.default_rng(3).normal(size=shape).astype(np.float32))


def module(name: str) -> Any:
    """A module of the package; some have the name of a function that stands before them."""
    return importlib.import_module(f"tapejit.eager.{name}")


def patched(
    where: Any, name: str, other: Callable[[Any], Any], make: Callable[[], Any], title: str, trains: bool = False
) -> None:
    """While a name stands for something else, calls do that; before and after they are regions, or skipped."""

    def script(compile: Any, note: Any) -> None:
        tj.manual_seed(1)
        run, tensors = make()

        @compile
        def f(x: Any) -> Any:
            return run(x)

        patch = mock.patch.object(where, name, other(getattr(where, name)))
        for i in range(CALLS):
            if i == 10:
                patch.start()
            if i == 13:
                patch.stop()
            note(f(inputs(i)), tensors())

    try:
        for settings in ({"backend": "plain"}, {}):
            f = both(script, replayed=CALLS // 3, **settings)
            assert entered(f)[title] >= 2 or any(t.skipped for t in f.traces), f.explain()
    finally:
        mock.patch.stopall()


def run_model(model: Callable[[], Any], given: Any = None) -> Callable[[], Any]:
    def make() -> Any:
        found = model()
        return (lambda x: found(x if given is None else given)), list

    return make


def run_function(function: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: (function, list)


def run_training(optimizer: Callable[..., Any], model: Callable[[], Any] = lambda: nn.Linear(4, 3)) -> Callable[[], Any]:
    def make() -> Any:
        found = model()
        opt = optimizer(found.parameters())

        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = found(x).square().mean()
            loss.backward()
            opt.step()
            return loss

        return step, lambda: [*found.parameters(), *[p.grad for p in found.parameters()]]

    return make


def doubled(original: Any) -> Any:
    """Gives twice what it gave."""
    return lambda *args, **kwargs: original(*args, **kwargs) * 2


ENCODER = lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
TOKENS = (2, 3, 4)

PATCHES = {
    "a function that a layer finds in nn.functional": lambda: (
        (F, "linear", doubled), run_model(lambda: nn.Linear(4, 3)), "Linear"),
    "the namespace that a layer's module has": lambda: (
        (module("nn.modules.activation"), "F", lambda f: mock.Mock(wraps=f, softmax=lambda x, dim: x * 2)),
        run_model(lambda: nn.Softmax(-1)), "Softmax"),
    "a method of a layer's class": lambda: (
        (nn.LSTM, "_last_states", lambda f: lambda self, states, batched: f(self, [s * 2 for s in states], batched)),
        run_model(lambda: nn.LSTM(4, 3), sequence(5, 2, 4)), "LSTM"),
    "a method of a base class of a layer": lambda: (
        (module("nn.modules.rnn").RNNBase, "_zero_states", lambda f: lambda self, *xs: f(self, *xs) + 1),
        run_model(lambda: nn.GRU(4, 3), sequence(5, 2, 4)), "GRU"),
    "how a layer finds its attributes": lambda: (
        (nn.Linear, "__getattr__", lambda f: lambda self, name: f(self, name) * 2),
        run_model(lambda: nn.Linear(4, 3)), "Linear"),
    "how a layer is called": lambda: (
        (nn.Linear, "__call__", doubled), run_model(lambda: nn.Sequential(nn.Linear(4, 3))), "Sequential"),
    "a helper of an encoder's layer": lambda: (
        (nn.TransformerEncoderLayer, "_ff_block", doubled), run_model(ENCODER, sequence(*TOKENS)), "TransformerEncoderLayer"),
    "attention, deep inside of a layer": lambda: (
        (module("ops.neural.multihead_attention"), "scaled_dot_product_attention", doubled),
        run_model(lambda: Attended(), sequence(*TOKENS)), "MultiheadAttention"),
    "an operator of tensors inside of a function": lambda: (
        (tj.Tensor, "__mul__", lambda f: lambda a, b: f(a, b) + 1),
        run_function(lambda x: F.poisson_nll_loss(x, x, full=False, log_input=False)), "poisson_nll_loss"),
    "a method of tensors inside of a function": lambda: (
        (tj.Tensor, "mean", doubled), run_function(lambda x: F.huber_loss(x, x.flip(0))), "huber_loss"),
    "a helper of a function": lambda: (
        (module("ops.neural.loss"), "promote_operands", lambda f: lambda *xs: [x * 2 for x in f(*xs)]),
        run_function(lambda x: F.mse_loss(x, x.flip(0))), "mse_loss"),
    "a helper of the function that tells which dtype a result has": lambda: (
        (module("ops.pointwise"), "result_type", lambda f: lambda *xs: tj.float64),
        run_function(lambda x: F.mse_loss(x, x.flip(0))), "mse_loss"),
    "a constant of a module": lambda: (
        (module("ops.neural.normalization"), "NORMALISE", lambda op: module("core.op").PRIMITIVES[op.name]),
        run_model(lambda: nn.LayerNorm(4)), "LayerNorm"),
    "the update of an optimizer": lambda: (
        (tj.optim.SGD, "update", lambda f: lambda self, params, group: f(self, params[:1], group)),
        run_training(lambda ps: tj.optim.SGD(ps, lr=0.1)), "SGD.step"),
    "a helper of an optimizer": lambda: (
        (module("optim.adam"), "as_number", lambda f: lambda x: f(x) * 0.5),
        run_training(lambda ps: tj.optim.Adam(ps, lr=0.1)), "Adam.step"),
    "a method of tensors that gradients need": lambda: (
        (tj.Tensor, "__mul__", lambda f: lambda a, b: f(f(a, b), 2)),
        run_training(lambda ps: tj.optim.SGD(ps, lr=0.1), lambda: nn.Sequential(nn.Linear(4, 3), nn.Softplus())),
        "SGD.step"),
    "a function of a module that gradients need": lambda: (
        (module("ops.pointwise"), "pow", lambda f: lambda a, b, *xs: f(a, b, *xs) * 3),
        run_training(lambda ps: tj.optim.SGD(ps, lr=0.1)), "SGD.step"),
    "a builtin that a module shadows": lambda: (
        (builtins, "sum", lambda f: lambda *xs: f(*xs)), run_model(lambda: nn.Linear(4, 3)), "Linear"),
}  # fmt: skip


class Attended(nn.Module):
    """Self-attention, called in a way that a user's module calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("what", PATCHES)
def test_patches(what: str) -> None:
    (where, name, other), make, title = PATCHES[what]()
    patched(where, name, other, make, title)


def test_the_backward_pass_of_a_compiled_forward() -> None:
    """Its gradient rules are compiled when they first run."""

    def script(compile: Any, note: Any) -> None:
        tj.manual_seed(1)
        w = tj.randn(4, 3, requires_grad=True)
        f = compile(lambda x: ((x @ w).tanh() * (x @ w).exp()).sin())
        mul = tj.Tensor.__mul__
        for i in range(12):
            w.grad = None
            y = f(inputs(i))
            with mock.patch.object(tj.Tensor, "__mul__", (lambda a, b: mul(mul(a, b), 2)) if i in (6, 7) else mul):
                y.sum().backward()
            note(y, w.grad)

    f = both(script, replayed=8)
    assert "backward: compiled" in str(f.explain())


def test_a_patch_for_a_part_of_a_call() -> None:
    """Python runs between two regions, and may patch the library there; then both are recorded as they were."""

    def script(compile: Any, note: Any) -> None:
        tj.manual_seed(1)
        model, state = nn.Linear(4, 4), {"on": False}
        linear, softplus = F.linear, F.softplus

        @compile
        def f(x: Any) -> Any:
            x = model(x)
            with mock.patch.object(F, "linear", (lambda *xs: linear(*xs) * 2) if state["on"] else linear):
                x = model(x)
            with mock.patch.object(tj.Tensor, "square", tj.Tensor.abs if state["on"] else tj.Tensor.square):
                return x.square() + model(F.softplus(x))

        for i in range(16):
            state["on"] = i % 5 > 2
            note(f(inputs(i)))
        assert F.softplus is softplus

    both(script, replayed=8)


def test_code_that_runs_the_users_is_no_region() -> None:
    """A patch that was there from the beginning: what it does beside is done each time."""

    def script(compile: Any, note: Any) -> None:
        tj.manual_seed(1)
        model, calls = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), []
        relu = F.relu
        f = compile(lambda x: model(x) * 2)
        with mock.patch.object(F, "relu", lambda x, inplace=False: (calls.append(len(calls)), relu(x))[1]):
            for i in range(12):
                note(f(inputs(i)), list(calls))

    f = both(script, replayed=8)
    assert not entered(f)["Sequential"]
    assert not any(t.skipped for t in f.traces)


def test_class_attributes_that_a_layer_reads() -> None:
    """Constants of classes are not looked up on the object only."""

    def script(compile: Any, note: Any) -> None:
        tj.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 3), nn.Softplus())
        f = compile(lambda x: model(x))
        for i in range(20):
            with mock.patch.object(nn.Softplus, "beta", 3.0, create=True) if i in (9, 10) else mock.MagicMock():
                if i == 9:
                    del model[1].beta
                if i == 11:
                    model[1].beta = 1
                note(f(inputs(i)))

    both(script, replayed=10)


def test_what_is_added_to_a_class_and_not_used_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    f = tj.compile(lambda x: print(end="") or model(x))
    for i in range(6):
        f(inputs(i))
    before = entered(f)["Sequential"]
    with mock.patch.object(nn.Linear, "colour", "red", create=True), mock.patch.object(F, "mean_of_me", 1, create=True):
        for i in range(4):
            f(inputs(i))
    assert entered(f)["Sequential"] == before + 4


def test_profilers_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A recording looks at what runs by the same means: so none is made while somebody else does, and regions stay."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    f = tj.compile(lambda x: print(end="") or model(x))
    profiler, told = cProfile.Profile(), []
    for i in range(3):
        f(inputs(i))
    profiler.enable()
    for i in range(6):
        f(inputs(i))
    assert sys.getprofile() is (profiler if sys.version_info < (3, 12) else None)  # it has a place of its own since then
    profiler.disable()
    assert entered(f)["Sequential"] >= 3
    f.reset()
    for i in range(3):
        f(inputs(i))
    sys.setprofile(lambda frame, event, arg: told.append(frame.f_code.co_name))
    try:
        for i in range(6):
            f(inputs(i))
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert entered(f)["Sequential"] >= 3
    assert told.count("inputs") >= 6
    pstats.Stats(profiler).print_stats("inputs")
    assert "inputs" in capsys.readouterr().out


def test_collections_of_garbage_are_not_the_users_code() -> None:
    """What is told of each collection, as hypothesis is, may be told in the middle of a layer."""
    seen: list[str] = []
    threshold = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: seen.append(phase))
    gc.set_threshold(1)
    try:
        model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
        f = tj.compile(lambda x: print(end="") or model(x))
        for i in range(6):
            f(inputs(i))
        assert gc.isenabled()
        assert seen
        assert entered(f)["Sequential"] >= 3
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.pop()


def test_what_the_library_is_made_with_is_not_the_users_code() -> None:
    """The first time that the limits of a dtype are asked for, ml_dtypes is; here in the middle of a backward pass."""
    x, y = (sequence(4, 3).requires_grad_() for _ in range(2))
    f = tj.compile(lambda: tj.autograd.grad(x.logcumsumexp(1).sum() + y.cumprod(0).sum(), [x, y]))
    dtypes.largest.cache_clear()
    for _ in range(3):
        f()
    assert "runs the user's code" not in str(f.explain())


def test_a_reloaded_module() -> None:
    """Reloading sets names without telling: all functions are others, and do the same."""
    name = "tapejit.eager.nn.sizes"
    kept = dict(vars(sys.modules[name]))
    pool = nn.MaxPool2d(2)
    x = sequence(1, 1, 4, 4)
    f = tj.compile(lambda x: print(end="") or pool(x))
    for _ in range(5):
        f(x)
    try:
        importlib.reload(sys.modules[name])
        np.testing.assert_array_equal(f(x).numpy(), pool(x).numpy())
    finally:
        vars(sys.modules[name]).update(kept)


def test_what_was_seen_keeps_no_frames() -> None:
    """A frame holds the variables of a step and of its callers; in Python 3.13 what a first call made seemed to outlive it."""
    observer = CodeObserver()
    with observer.observing():
        kept = observer.turns
        kept.append(sys._getframe())
    assert kept == [] and observer.turns == []
