"""Regions: calls of the library's modules and steps of its optimizers, which a replay takes at once, do what their code does.

Each script runs eagerly and compiled, as in `test_footguns.py`; it changes between calls something that the code of a module or
an optimizer looks at. How often regions were entered says that they were used where nothing had changed.
"""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from random import Random
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.soundness_harness import both, entered, inputs
from tapejit import nn


def mlp(*last: nn.Module) -> nn.Sequential:
    tj.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), *last)


def state(model: nn.Module, *more: Any) -> list[Any]:
    return [*model.parameters(), *[p.grad for p in model.parameters()], *model.buffers(), *more]


def trained(compile: Any, model: nn.Module, opt: Any) -> Any:
    @compile
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return step


def test_a_training_step_is_three_regions() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        step = trained(compile, model, tj.optim.SGD(model.parameters(), lr=0.1))
        for i in range(6):
            note(step(inputs(i)), *state(model))

    f = both(script, replayed=4, divergences=0)
    assert entered(f) == {"Sequential": 4, "SGD.step": 4, "Linear": 0, "ReLU": 0}


OPTIMIZERS = {
    "sgd": lambda p: tj.optim.SGD(p, lr=0.1),
    "momentum": lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: tj.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: tj.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: tj.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: tj.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = OPTIMIZERS[name](model.parameters())
        step = trained(compile, model, opt)
        for i in range(8):
            note(step(inputs(i)), *state(model), repr(opt.state_dict()))

    f = both(script, replayed=4, divergences=0)
    assert sum(n for title, n in entered(f).items() if title.endswith(".step")) >= 4


def test_settings_of_optimizers() -> None:
    """Numbers are runtime scalars; switches are not."""

    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.0)
        step = trained(compile, model, opt)
        group = opt.param_groups[0]
        for i in range(14):
            group["lr"] = 0.1 / (i + 1)
            if i == 5:
                group["betas"] = (0.8, 0.9)
            if i == 6:
                group["weight_decay"] = 0.5
            if i == 7:
                group["maximize"] = True
            if i == 8:
                group["maximize"] = False
            if i == 9:
                group["lr"] = np.float64(0.1)
            if i == 10:
                group["lr"] = 1
            if i == 11:
                group["betas"] = [0.7, 0.8]
            note(step(inputs(i)), *state(model), repr(opt.state_dict()))

    f = both(script, replayed=8)
    assert entered(f)["Adam.step"] >= 4


def test_schedulers_and_warnings_about_their_order() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.SGD(model.parameters(), lr=0.1)
        scheduler = tj.optim.lr_scheduler.CosineAnnealingLR(opt, 5)
        step = trained(compile, model, opt)
        for i in range(8):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                note(step(inputs(i)), *state(model))
                scheduler.step()
                note(len(caught), opt.param_groups[0]["lr"])

    f = both(script, replayed=6, divergences=0)
    assert entered(f)["SGD.step"] == 6


def test_parameter_groups() -> None:
    def script(compile: Any, note: Any) -> None:
        model, more = mlp(), nn.Parameter(tj.ones(3))
        opt = tj.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5}], lr=0.1)

        @compile
        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = (model(x) * more).square().mean()
            loss.backward()
            opt.step()
            return loss

        for i in range(12):
            if i == 4:
                opt.param_groups[1]["lr"] = 0.01
            if i == 6:
                opt.add_param_group({"params": [more], "lr": 0.2})
            if i == 9:
                opt.param_groups[0]["params"].reverse()
            note(step(inputs(i)), *state(model), more, more.grad)

    f = both(script, replayed=6)
    assert entered(f)["SGD.step"] >= 4


def test_gradients_that_are_none_and_frozen_parameters() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.Adam(model.parameters(), lr=0.1)
        skip = [False]

        @compile
        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            if skip[0]:
                model[0].weight.grad = None
            opt.step()
            return loss

        for i in range(12):
            skip[0] = i in (4, 5, 6)
            if i == 8:
                model[2].bias.requires_grad_(False)
            note(step(inputs(i)), *state(model), repr(opt.state_dict()))

    both(script, replayed=5)


def test_state_of_optimizers_loaded_cleared_and_replaced() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.Adam(model.parameters(), lr=0.1)
        step = trained(compile, model, opt)
        saved: Any = None
        for i in range(16):
            if i == 4:
                saved = copy.deepcopy(opt.state_dict()), copy.deepcopy(model.state_dict())
            if i == 7:
                opt.load_state_dict(saved[0])
                model.load_state_dict(saved[1])
            if i == 9:
                opt.state[model[0].weight]["step"] = 100
            if i == 10:
                opt.state[model[0].weight]["exp_avg"] = tj.ones(8, 4)
            if i == 11:
                opt.state[model[0].weight]["exp_avg"].mul_(2)
            if i == 12:
                opt.state.clear()
            if i == 14:
                first, second = opt.state[model[0].bias], opt.state[model[2].bias]
                first["step"], second["step"] = second["step"], first["step"] + 5
            note(step(inputs(i)), *state(model), repr(opt.state_dict()))

    f = both(script, replayed=8)
    assert entered(f)["Adam.step"] >= 5


def test_hooks_closures_and_patches_of_optimizers() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.SGD(model.parameters(), lr=0.1)
        calls: list[str] = []
        use_closure = [False]

        @compile
        def step(x: Any) -> Any:
            def closure() -> Any:
                opt.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            if use_closure[0]:
                return opt.step(closure)
            loss = closure()
            opt.step()
            return loss

        handle: Any = None
        plain, own = tj.optim.SGD.update, opt.update
        for i in range(18):
            if i == 4:
                handle = opt.register_step_pre_hook(lambda *_: calls.append("pre"))
            if i == 6:
                handle.remove()
            use_closure[0] = i in (8, 9)
            if i == 11:
                opt.update = lambda params, group: (calls.append("update"), own(params, group))  # type: ignore
            if i == 13:
                del opt.update  # type: ignore
            if i == 14:
                tj.optim.SGD.update = lambda self, p, g: (calls.append("class"), plain(self, p, g))  # type: ignore
            if i == 16:
                tj.optim.SGD.update = plain  # type: ignore
            note(step(inputs(i)), *state(model), list(calls))

    f = both(script, replayed=8)
    assert entered(f)["SGD.step"] >= 5


def test_tensors_changed_between_the_pass_and_the_step() -> None:
    """Parameters that the backward pass has seen are not looked at again, unless a tensor was changed since."""

    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        change: Any = None

        @compile
        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            if change is not None:
                change(model[0].weight)
            opt.step()
            return loss

        def replaced(w: Any) -> None:
            w.data = w.data * 0.5

        def frozen(w: Any) -> None:
            w.requires_grad_(False)

        def without(w: Any) -> None:
            w.grad = None

        def doubled(w: Any) -> None:
            w.grad = w.grad * 2

        def shown(w: Any) -> None:
            w.grad.numpy()[:] = 1

        for i, one in enumerate([None] * 5 + [replaced, None, without, None, doubled, None, shown, None, frozen, None]):
            change = one
            note(step(inputs(i)), *state(model))

    f = both(script)
    assert entered(f)["SGD.step"] > 2


def test_counters_that_differ() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.Adam(model.parameters(), lr=0.01)
        losses = []  # what is put into a list is not skipped

        @compile
        def step(x: Any) -> Any:
            opt.zero_grad()
            losses.append(model(x).square().mean())
            losses[-1].backward()
            opt.step()
            return losses[-1]

        for i in range(12):
            if i == 6:
                opt.state[model[0].weight]["step"] = 100
            note(step(inputs(i)), *state(model), *[s["step"] for s in opt.state.values()])

    f = both(script, divergences=0)
    assert entered(f)["Adam.step"] == 10


def test_settings_that_are_tensors() -> None:
    """Whether two tensors are equal is not asked: settings that hold some are the user's to compare."""

    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.SGD(model.parameters(), lr=0.1)
        opt.param_groups[0]["mine"] = tj.ones(3)
        step = trained(compile, model, opt)
        for i in range(8):
            if i == 5:
                opt.param_groups[0]["mine"] = tj.ones(3)
            opt.param_groups[0]["lr"] = 1 if i == 6 else 0.1
            note(step(inputs(i)), *state(model))

    both(script, replayed=4)


def test_two_steps_in_one_call() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opts = [tj.optim.AdamW(model.parameters()), tj.optim.SGD(model[0].parameters(), lr=0.1)]

        @compile
        def step(x: Any) -> Any:
            opts[0].zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            for opt in (*opts, opts[0]):
                opt.step()
            return loss

        for i in range(6):
            note(step(inputs(i)), *state(model), repr(opts[0].state_dict()))

    f = both(script, replayed=3, divergences=0)
    assert entered(f)["AdamW.step"] >= 6


def test_optimizers_of_the_users_own() -> None:
    class Doubled(tj.optim.SGD):
        def update(self, params: Any, group: Any) -> None:
            super().update(params, group)
            super().update(params, group)

    def script(compile: Any, note: Any) -> None:
        model = mlp()
        step = trained(compile, model, Doubled(model.parameters(), lr=0.1))
        for i in range(5):
            note(step(inputs(i)), *state(model))

    f = both(script, replayed=3, divergences=0)
    assert not any(title.endswith(".step") for title in entered(f))


def test_zero_grad_that_fills_with_zeros() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x: Any, to_none: bool) -> Any:
            loss = model(x).square().mean()
            opt.zero_grad(set_to_none=to_none)
            loss.backward()
            opt.step()
            return loss

        for i in range(10):
            held = model[0].weight.grad
            note(step(inputs(i), i % 5 == 4), *state(model), held)

    both(script, replayed=4)


# ---- modules


def test_settings_of_modules() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.1), nn.LayerNorm(4))

        @compile
        def f(x: Any) -> Any:
            return model(x)

        x = inputs()
        for i in range(14):
            if i == 4:
                model[1].negative_slope = 0.5
            if i == 5:
                model[1].negative_slope = 0.1
            if i == 7:
                model[2].eps = 0.1
            if i == 9:
                model.train()  # as it was
            if i == 11:
                model[1] = nn.Tanh()
            note(f(x))

    f = both(script, replayed=5)
    assert entered(f)["Sequential"] >= 3


def test_train_and_eval_with_dropout_and_batch_norm() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))
        step = trained(compile, model, tj.optim.SGD(model.parameters(), lr=0.1))
        for i in range(16):
            if i == 6:
                model.eval()
            if i == 10:
                model.train()
            if i == 13:
                model[3].p = 0.2
            if i == 14:
                tj.manual_seed(7)
            note(step(inputs(i)), *state(model), tj.rand(2), tj.get_rng_state())

    f = both(script, replayed=9)
    assert entered(f)["Sequential"] >= 5


def test_the_generator_goes_on_as_it_does_eagerly() -> None:
    def script(compile: Any, note: Any) -> None:
        drop = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.1))

        @compile
        def f(x: Any) -> Any:
            a = tj.rand(3)
            b = drop(x)
            return a, b, tj.rand(3)

        for _ in range(6):
            note(*f(tj.ones(4, 4)), tj.get_rng_state())

    f = both(script, replayed=4, divergences=0)
    assert entered(f)["Sequential"] == 4


def test_parameters_replaced_frozen_tied_and_shown() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        opt = tj.optim.SGD(model.parameters(), lr=0.1)
        step = trained(compile, model, opt)
        held: Any = None
        for i in range(24):
            weight = model[0].weight
            if i == 4:
                weight.data = weight.data * 2
            if i == 5:
                weight.data = tj.ones(4, 4).t()
            if i == 6:
                weight.data = tj.ones(4, 8)[:, ::2]
            if i == 7:
                model[0].weight = nn.Parameter(tj.ones(4, 4))
            if i == 9:
                model[0].bias.requires_grad_(False)
            if i == 11:
                model[0].bias.requires_grad_(True)
            if i == 12:
                model[2].weight = model[0].weight  # tied
            if i == 15:
                model[2].weight = nn.Parameter(model[0].weight.detach().clone())
            if i == 18:
                held = model[2].bias.detach().numpy()
            if i == 20:
                held[...] = 5.0
            if i == 21:
                held = None
            if i == 22:
                model._modules["0"]._parameters["weight"] = nn.Parameter(tj.zeros(4, 4))
            note(step(inputs(i)), *state(model), held)

    f = both(script, replayed=4)
    assert entered(f)["Sequential"] >= 2


def test_modules_exchanged_behind_their_back() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()

        @compile
        def f(x: Any) -> Any:
            return model(x)

        other = nn.Sigmoid()
        for i in range(12):
            if i == 4:
                model._modules["1"] = other
            if i == 6:
                del model._modules["1"]
            if i == 8:
                model._modules["9"] = nn.Tanh()
            if i == 10:
                model.append(nn.Sigmoid())
            note(f(inputs(i)))

    f = both(script, replayed=4)
    assert entered(f)["Sequential"] >= 2


def test_hooks_of_modules() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        step = trained(compile, model, tj.optim.SGD(model.parameters(), lr=0.1))
        calls: list[Any] = []
        handle: Any = None
        for i in range(18):
            if i == 4:
                handle = model[0].register_forward_hook(lambda m, a, out: calls.append("forward"))
            if i == 6:
                handle.remove()
            if i == 8:
                handle = model.register_forward_pre_hook(lambda m, a: calls.append("pre"))
            if i == 10:
                handle.remove()
            if i == 12:
                handle = model[2].register_full_backward_hook(lambda m, gi, go: calls.append("backward"))
            if i == 14:
                handle.remove()
            if i == 15:
                handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: calls.append(type(m).__name__))
            if i == 16:
                handle.remove()
            note(step(inputs(i)), *state(model), list(calls))

    f = both(script, replayed=6)
    assert entered(f)["Sequential"] >= 4


def test_patched_forwards_and_functions() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        calls: list[str] = []

        @compile
        def f(x: Any) -> Any:
            return model(x)

        plain, relu, call = nn.Linear.forward, F.relu, nn.Module.__call__
        for i in range(20):
            if i == 4:
                model[1].forward = lambda x: (calls.append("instance"), x * 2)[1]
            if i == 6:
                del model[1].forward
            if i == 8:
                nn.Linear.forward = lambda self, x: (calls.append("class"), plain(self, x))[1]  # type: ignore
            if i == 10:
                nn.Linear.forward = plain  # type: ignore
            if i == 12:
                F.relu = lambda x, inplace=False: (calls.append("function"), x * 3)[1]  # type: ignore
            if i == 14:
                F.relu = relu  # type: ignore
            if i == 16:
                nn.Module.__call__ = lambda self, *a: (calls.append("call"), call(self, *a))[1]  # type: ignore
            if i == 18:
                nn.Module.__call__ = call  # type: ignore
            note(f(inputs(i)), list(calls))

    f = both(script, replayed=8)
    assert entered(f)["Sequential"] >= 4


def test_modules_of_the_users_own_have_regions_inside() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear, self.calls = nn.LayerNorm(4), nn.Linear(4, 4), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x + self.linear(self.norm(x))

    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(Block(), Block())
        model.append(model[0])  # one module under two names
        step = trained(compile, model, tj.optim.AdamW(model.parameters()))
        for i in range(6):
            note(step(inputs(i)), *state(model), [b.calls for b in model])

    f = both(script, replayed=3, divergences=0)
    assert entered(f)["LayerNorm"] >= 9 and entered(f)["Sequential"] == 0


def test_copies_of_models() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()

        @compile
        def f(m: Any, x: Any) -> Any:
            loss = m(x).sum()
            loss.backward()
            return loss

        other = copy.deepcopy(model)
        for i in range(8):
            m = other if i in (4, 5, 7) else model
            note(f(m, inputs(i)), *state(m))
            for p in m.parameters():
                p.grad = None

    both(script, replayed=5)


def test_arguments_of_modules() -> None:
    def script(compile: Any, note: Any) -> None:
        attention = nn.MultiheadAttention(4, 2, batch_first=True)
        gru, lstm = nn.GRU(4, 3, batch_first=True), nn.LSTM(4, 3, batch_first=True)

        @compile
        def f(x: Any, weights: bool, h: Any) -> Any:
            a, w = attention(x, x, x, need_weights=weights)
            b, hidden = gru(a, h)
            c, (h1, c1) = lstm(a)
            return a, w, b, hidden, c, h1, c1

        x = tj.tensor(np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32))
        h = tj.ones(1, 2, 3)
        for i in range(12):
            note(*f(x, i in (6, 7, 8), None if i in (4, 5) else h))

    f = both(script, replayed=5)
    found = entered(f)
    assert found["GRU"] >= 3 and found["LSTM"] >= 3 and found["MultiheadAttention"] >= 3


def test_indices_are_looked_at_where_python_comes_to_them() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))

        @compile
        def f(i: Any) -> Any:
            try:
                return model(i).sum()
            except IndexError as error:
                return str(error)

        for i in range(8):
            note(f(tj.tensor([0, 7 if i == 5 else 4, i % 5])))

    f = both(script, replayed=4)
    assert entered(f)["Sequential"] >= 4


def test_exceptions_inside_and_after() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp(nn.BatchNorm1d(3))
        opt = tj.optim.SGD(model.parameters(), lr=0.1)
        fail = [False]

        @compile
        def step(x: Any) -> Any:
            opt.zero_grad()
            out = model(x)
            if fail[0]:
                raise ValueError("after the model")
            loss = out.square().mean()
            loss.backward()
            opt.step()
            return loss

        for i in range(12):
            fail[0] = i in (5, 6)
            try:
                note(step(tj.ones(2, 7) if i == 8 else inputs(i, 1 if i == 10 else 5)))
            except (ValueError, RuntimeError) as error:
                note(str(error))
            note(*state(model))

    f = both(script, replayed=4)
    assert entered(f)["Sequential"] >= 5


def test_divergence_after_a_region() -> None:
    """What a region has promised is run eagerly, its inner values among it, and the tape is there."""

    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Unflatten(1, (2, 2)))
        mode = [0]

        @compile
        def f(x: Any) -> Any:
            out = model(x)
            if mode[0] == 1:
                out = out * 2
            if mode[0] == 2:
                out.register_hook(lambda g: g * 3)
            loss = out.exp().sum()
            if mode[0] == 3:
                note(out.grad_fn is not None, out, loss)
            loss.backward()
            return loss

        for i in range(14):
            mode[0] = {4: 1, 5: 1, 7: 2, 8: 2, 10: 3, 11: 3}.get(i, 0)
            note(f(inputs(i)), *state(model))
            for p in model.parameters():
                p.grad = None

    both(script, replayed=6)


def test_modules_that_write_their_input() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2), nn.ReLU(inplace=True))

        @compile
        def f(x: Any) -> Any:
            y = x * 2
            out = model(y)
            return out, y

        for i in range(6):
            note(*f(inputs(i)))

    both(script, replayed=3)


def test_grad_modes_autocast_and_default_dtype() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()

        @compile
        def f(x: Any) -> Any:
            return model(x)

        for i in range(14):
            if i in (4, 5, 9):
                with tj.no_grad():
                    out = f(inputs(i))
            elif i in (6, 7):
                with tj.autocast("cpu"):
                    out = f(inputs(i))
            elif i in (10, 11):
                tj.set_default_dtype(tj.float64)
                out = f(inputs(i))
                tj.set_default_dtype(tj.float32)
            else:
                out = f(inputs(i))
            note(out, out.requires_grad)

    both(script, replayed=7)


def test_clipping_scaling_and_averages() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.AdamW(model.parameters(), lr=0.1)
        average = tj.optim.swa_utils.AveragedModel(model, multi_avg_fn=tj.optim.swa_utils.get_ema_multi_avg_fn(0.9))

        @compile
        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            opt.step()
            average.update_parameters(model)
            return loss, norm

        for i in range(7):
            note(*step(inputs(i)), *state(model), *state(average))

    f = both(script, replayed=3)
    assert entered(f)["AdamW.step"] >= 3


def test_a_gradient_scaler() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        opt = tj.optim.SGD(model.parameters(), lr=0.1)
        scaler = tj.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        @compile
        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            return loss

        for i in range(8):
            x = inputs(i)
            note(step(x * float("inf") if i == 5 else x), *state(model), scaler.get_scale())

    both(script)


def test_weights_tied_inside_one_module() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        step = trained(compile, model, tj.optim.SGD(model.parameters(), lr=0.1))
        for i in range(8):
            if i == 5:
                model[1]._parameters["weight"] = nn.Parameter(tj.ones(4, 4))
            note(step(inputs(i)), *state(model))

    f = both(script, replayed=4)
    assert entered(f)["Sequential"] >= 3


def test_a_warning_inside_comes_each_time() -> None:
    def script(compile: Any, note: Any) -> None:
        loss = nn.MSELoss()

        @compile
        def f(x: Any, y: Any) -> Any:
            return loss(x, y)

        for _ in range(5):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                note(f(tj.ones(3, 1), tj.zeros(3)))
                note([str(w.message) for w in caught])

    both(script, replayed=3, divergences=0)


def test_results_of_regions_kept_across_calls() -> None:
    def script(compile: Any, note: Any) -> None:
        model, kept = mlp(), []

        @compile
        def f(x: Any) -> Any:
            out = model(x)
            kept.append(out)
            return out.sum()

        for i in range(6):
            loss = f(inputs(i))
            if i % 2:
                (loss + kept[-1].mean()).backward()
            note(loss, *kept, *state(model))

    f = both(script, replayed=4)
    assert entered(f)["Sequential"] >= 4


def test_models_do_not_outlive_their_users() -> None:
    """A function that was given a model does not keep it, or its weights."""

    @tj.compile
    def f(m: Any, x: Any) -> Any:
        return m(x)

    model = mlp()
    for i in range(5):
        f(model, inputs(i))
    assert entered(f)["Sequential"] >= 3
    gone = weakref.ref(model), weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert [r() for r in gone] == [None, None]


def test_regions_are_shown() -> None:
    model = mlp()
    opt = tj.optim.SGD(model.parameters(), lr=0.1)
    step = trained(tj.compile, model, opt)
    for i in range(5):
        step(inputs(i))
    (path,) = step.explain().to_dict()["paths"]
    assert [(r["name"], r["ops"], r["times"]) for r in path["regions"]] == [
        ("Sequential", 3, 3),
        ("backward", path["regions"][1]["ops"], 3),
        ("SGD.step", 4, 3),
    ]
    assert all(r["line"].split(":")[0].endswith("test_regions.py") for r in path["regions"])
    assert "3 regions replayed as a whole: Sequential (3 ops) at" in str(step.explain())
    text = str(step.traces[0]).splitlines()
    at = next(i for i, line in enumerate(text) if line.startswith("Sequential: 3 ops"))
    assert [line.split("(")[0].split()[-1] for line in text[at + 1 : at + 5]] == ["linear", "relu", "linear", "square"]
    assert [line.startswith("    ") for line in text[at + 1 : at + 5]] == [True, True, True, False]


# ---- many changes in any order


LAYERS: list[Any] = [
    nn.Tanh, lambda: nn.Linear(6, 6), lambda: nn.Linear(6, 6, bias=False), lambda: nn.LayerNorm(6), lambda: nn.BatchNorm1d(6),
    lambda: nn.Dropout(0.3), lambda: nn.LeakyReLU(0.2), lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU()),
    lambda: nn.ReLU(inplace=True), lambda: nn.Softmax(-1),
]  # fmt: skip


def some_model(random: Random) -> nn.Sequential:
    inner = [random.choice(LAYERS)() for _ in range(random.randrange(1, 4))]
    return nn.Sequential(nn.Linear(4, 6), *inner, nn.Linear(6, 3))


class Change:
    """Something that is done to a model or its optimizer between two calls."""

    def __init__(self, random: Random, model: Any, opt: Any, log: list[str]) -> None:
        self.random, self.model, self.opt, self.log = random, model, opt, log
        self.handles: list[Any] = []
        self.saved: Any = None

    def parameter(self) -> Any:
        return self.random.choice(list(self.model.parameters()))

    def layer(self) -> Any:
        return self.random.choice(list(self.model.modules()))

    def data(self) -> None:
        p = self.parameter()
        p.data = p.data * 0.5

    def strides(self) -> None:
        p = self.model[0].weight
        p.data = p.data.t().contiguous().t()

    def written(self) -> None:
        with tj.no_grad():
            self.parameter().mul_(0.5)

    def flag(self) -> None:
        p = self.parameter()
        p.requires_grad_(not p.requires_grad)

    def gradient(self) -> None:
        p = self.parameter()
        p.grad = None if p.grad is not None else tj.ones_like(p)

    def mode(self) -> None:
        self.layer().train(self.random.random() < 0.5)

    def setting(self) -> None:
        for m in self.model.modules():
            for name, values in (
                ("p", (0.1, 0.3)),
                ("eps", (1e-5, 1e-2)),
                ("negative_slope", (0.1, 0.2)),
                ("momentum", (0.1, 0.5)),
            ):
                if hasattr(m, name):
                    setattr(m, name, self.random.choice(values))

    def hook(self) -> None:
        name = f"hook {len(self.handles)}"
        kind = self.random.choice(["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
        self.handles.append(getattr(self.layer(), kind)(lambda *_: self.log.append(name)))

    def unhook(self) -> None:
        if self.handles:
            self.handles.pop().remove()

    def patch(self) -> None:
        layer = self.layer()
        if "forward" in layer.__dict__:
            del layer.forward
        else:
            layer.forward = lambda x: (self.log.append("patched"), type(layer).forward(layer, x) * 2)[1]

    def exchange(self) -> None:
        place = self.random.randrange(1, len(self.model) - 1)
        self.model[place] = self.random.choice([nn.Tanh(), nn.Identity(), nn.LayerNorm(6)])

    def tied(self) -> None:
        linear = [m for m in self.model.modules() if isinstance(m, nn.Linear) and m.weight.shape == (6, 6)]
        if len(linear) > 1:
            linear[0].weight = linear[1].weight

    def rate(self) -> None:
        self.opt.param_groups[0]["lr"] = self.random.choice([0.1, 0.01, 0.5])

    def switch(self) -> None:
        self.opt.param_groups[0]["maximize"] = not self.opt.param_groups[0]["maximize"]

    def save(self) -> None:
        self.saved = copy.deepcopy((self.model.state_dict(), self.opt.state_dict()))

    def load(self) -> None:
        if self.saved is not None:
            self.model.load_state_dict(self.saved[0], strict=False)
            self.opt.load_state_dict(self.saved[1])

    def forget(self) -> None:
        self.opt.state.clear()

    def seed(self) -> None:
        tj.manual_seed(self.random.randrange(100))

    def show(self) -> None:
        self.log.append(str(float(self.parameter().detach().numpy().sum())))


RANDOM_SEEDS = 24
CHANGES = [name for name in vars(Change) if name[0] != "_" and name not in ("parameter", "layer")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(RANDOM_SEEDS))
def test_many_changes(seed: int) -> None:
    def script(compile: Any, note: Any) -> None:
        random = Random(seed)
        model = some_model(random)
        log: list[str] = []
        opt = OPTIMIZERS[random.choice(list(OPTIMIZERS))](model.parameters())
        change = Change(random, model, opt, log)
        held: list[Any] = []

        @compile
        def step(x: Any, y: Any) -> Any:
            opt.zero_grad(set_to_none=seed % 3 > 0)
            out = model(x)
            loss = F.mse_loss(out, y) + F.softmax(out, -1).square().mean() * 0.1
            if out.requires_grad:
                loss.backward()
                opt.step()
            return loss, out

        for i in range(18):
            if i > 3 and random.random() < 0.5:
                name = random.choice(CHANGES)
                log.append(name)
                getattr(change, name)()
            try:
                found = step(inputs(i), inputs(i + 50)[:, :3])
            except (RuntimeError, ValueError) as error:
                found = (str(error),)
            if i % 5 == 0:
                held.append(found)
            note(found, held, state(model), repr(opt.state_dict()), list(log), tj.get_rng_state())

    both(script)
