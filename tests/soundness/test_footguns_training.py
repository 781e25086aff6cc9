"""Training steps of all kinds do the same compiled as they do eagerly: see `soundness_harness.py`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.scripts import batch, state_of
from support.soundness_harness import both, mlp
from tapejit import nn

# ---- training


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: tj.optim.SGD(p, lr=0.1),
    "momentum": lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: tj.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: tj.optim.Adam(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: tj.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: tj.optim.Adagrad(p, lr=0.01),
    "not foreach": lambda p: tj.optim.Adam(p, lr=0.01, foreach=False),
    "maximize": lambda p: tj.optim.Adam(p, lr=0.01, maximize=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_steps(name: str) -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        optimizer = OPTIMIZERS[name](model.parameters())

        @compile
        def step(x, y):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        for i in range(8):
            note(step(batch(i, 4, 3), batch(i, 4, 2)), state_of(model), optimizer.state_dict()["state"])

    both(script, replayed=4)


def test_train_and_eval() -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

        @compile
        def f(x):
            return model(x).sum(1)

        for i in range(16):
            model.train(i % 4 < 2)
            if i > 11:
                model[1].eval()
            note(f(batch(i, 4, 3)), model.state_dict())

    both(script, replayed=10)


@pytest.mark.parametrize("schedule", ["exponential", "cosine", "one cycle", "step", "by hand", "plateau"])
def test_learning_rate_schedules(schedule: str) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Linear(3, 2)
        optimizer = tj.optim.AdamW(model.parameters(), lr=0.1)
        lr = tj.optim.lr_scheduler
        scheduler: Any = {
            "exponential": lambda: lr.ExponentialLR(optimizer, 0.9),
            "cosine": lambda: lr.CosineAnnealingLR(optimizer, 10),
            "one cycle": lambda: lr.OneCycleLR(optimizer, 1.0, total_steps=20),
            "step": lambda: lr.StepLR(optimizer, 3),
            "by hand": lambda: None,
            "plateau": lambda: lr.ReduceLROnPlateau(optimizer, patience=0),
        }[schedule]()

        @compile
        def step(x):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule == "plateau":
                scheduler.step(loss)
            elif scheduler is not None:
                scheduler.step()
            return loss

        for i in range(10):
            if schedule == "by hand":
                optimizer.param_groups[0].update(lr=0.1 / (1 + i), weight_decay=0.1 * i)
            note(step(batch(i, 4, 3)), state_of(model), optimizer.param_groups[0]["lr"])

    both(script, replayed=6)


@pytest.mark.parametrize(
    "change",
    ["add a group", "freeze", "betas", "weight_decay to 0", "remove", "maximize", "new optimizer"],
)
def test_changed_parameter_groups(change: str) -> None:
    def script(compile: Any, note: Any) -> None:
        first, second = nn.Linear(3, 3), nn.Linear(3, 2)
        optimizer = tj.optim.AdamW(first.parameters(), lr=0.1)

        @compile
        def step(x):
            loss = second(first(x)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        for i in range(12):
            if i == 5:
                group = optimizer.param_groups[0]
                if change == "add a group":
                    optimizer.add_param_group({"params": second.parameters(), "lr": 0.5})
                elif change == "freeze":
                    first.bias.requires_grad_(False)
                elif change == "betas":
                    group["betas"] = (0.5, 0.6)
                elif change == "weight_decay to 0":
                    group["weight_decay"] = 0
                elif change == "remove":
                    group["params"] = group["params"][:1]
                elif change == "maximize":
                    group["maximize"] = True
                else:
                    optimizer = tj.optim.SGD(second.parameters(), lr=0.2)
            note(step(batch(i, 4, 3)), state_of(first), state_of(second))

    both(script, replayed=5)


@pytest.mark.parametrize(
    "change", ["parameter", "data", "load_state_dict", "copy_", "module", "optimizer state", "half", "name"]
)
def test_replaced_parameters(change: str) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        optimizer = tj.optim.Adam(model.parameters(), lr=0.1)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

        @compile
        def step(x):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        for i in range(12):
            if i in (4, 8):
                if change == "parameter":
                    model[0].weight = nn.Parameter(batch(i, 3, 3))
                elif change == "data":
                    model[0].weight.data = batch(i, 3, 3)
                elif change == "load_state_dict":
                    model.load_state_dict(saved[0])
                elif change == "copy_":
                    with tj.no_grad():
                        model[0].weight.copy_(batch(i, 3, 3))
                elif change == "module":
                    model[1] = nn.Linear(3, 2)
                elif change == "optimizer state":
                    optimizer.load_state_dict(saved[1])
                elif change == "half":
                    model.double() if i == 4 else model.float()
                else:
                    del model[0].bias
                    model[0].register_parameter("bias", None)
                    if i == 8:
                        model[0].bias = nn.Parameter(tj.ones(3))
            x = batch(i, 4, 3)
            note(step(x.double() if change == "half" and 4 <= i < 8 else x), state_of(model))

    both(script, replayed=3)


def test_tied_weights() -> None:
    def script(compile: Any, note: Any) -> None:
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        optimizer = tj.optim.SGD([*first.parameters(), second.bias], lr=0.1)

        @compile
        def step(x):
            loss = second(first(x).tanh()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        for i in range(12):
            if i == 6:
                second.weight = nn.Parameter(first.weight.detach().clone())
            if i == 9:
                second.weight = first.weight
            note(step(batch(i, 4, 3)), state_of(first), state_of(second))

    both(script, replayed=7)


def test_gradient_accumulation() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        optimizer = tj.optim.Adam(model.parameters(), lr=0.1)
        count = 0

        @compile
        def step(x):
            nonlocal count
            loss = model(x).pow(2).mean() / 3
            loss.backward()
            count += 1
            if count % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        for i in range(18):
            note(step(batch(i, 4, 3)), state_of(model))

    both(script, replayed=9)


@pytest.mark.parametrize("how", ["to None", "to zero", "by hand", "outside", "del"])
def test_zeroing_gradients(how: str) -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x):
            loss = model(x).pow(2).mean()
            if how == "by hand":
                for p in model.parameters():
                    p.grad = None
            elif how == "del":
                for p in model.parameters():
                    del p.grad
            elif how != "outside":
                optimizer.zero_grad(set_to_none=how == "to None")
            loss.backward()
            optimizer.step()
            return loss.item()

        old = None
        for i in range(9):
            if how == "outside" and i % 2:
                model.zero_grad(set_to_none=i % 4 == 1)
            note(step(batch(i, 4, 3)), state_of(model), old)
            old = model[0].weight.grad

    both(script, replayed=3)


def test_gradients_kept_and_set_by_the_user() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        kept = []

        @compile
        def f(x):
            (w * x).exp().sum().backward()
            kept.append(w.grad)
            return w.grad * 2

        for i in range(12):
            if i in (4, 8):
                w.grad = batch(i)
            if i in (6, 10):
                w.grad = None
            note(f(batch(i)), w, list(kept))

    both(script, replayed=5)


@pytest.mark.parametrize(
    "place", ["leaf", "leaf inside", "intermediate", "after accumulation", "module", "backward of a module"]
)
def test_hooks(place: str) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Linear(3, 2)
        scale = tj.ones(3, requires_grad=True)
        log = []
        handles = []

        def hook(g):
            log.append(g.sum().item())
            return g * 2

        def register():
            if place == "leaf":
                handles.append(model.weight.register_hook(hook))
            elif place == "after accumulation":
                handles.append(model.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3)))
            elif place == "module":
                handles.append(model.register_forward_hook(lambda m, args, out: log.append("forward") or out + 1))
                handles.append(model.register_forward_pre_hook(lambda m, args: (args[0] * 2,)))
            elif place == "backward of a module":
                handles.append(model.register_full_backward_hook(lambda m, gi, go: log.append(go[0].sum().item())))

        @compile
        def f(x):
            y = model(x * scale)
            if place == "intermediate" and handles:
                y.register_hook(hook)
            handle = model.weight.register_hook(hook) if place == "leaf inside" and handles else None
            y.exp().sum().backward()
            if handle is not None:
                handle.remove()
            return y

        for i in range(12):
            if i in (3, 9):
                register()
                if not handles:
                    handles.append(contextlib.ExitStack())
            if i == 6:
                for h in handles:
                    h.close() if isinstance(h, contextlib.ExitStack) else h.remove()
                handles.clear()
            model.zero_grad()
            note(f(batch(i, 4, 3)), state_of(model), list(log))

    both(script, replayed=3)


def test_retain_graph() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            loss = (w * x).exp().sum()
            loss.backward(retain_graph=True)
            (loss * 2).backward(retain_graph=True)
            loss.backward()
            return loss

        for i in range(8):
            loss = f(batch(i))
            note(loss, w)
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
            note(w)

    both(script, replayed=4)


def test_backward_twice_from_outside() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            return (w * x).exp().sum()

        for i in range(8):
            loss = f(batch(i))
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
            note(loss, w)

    both(script, replayed=6, divergences=0)


def test_retain_grad() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        retain = False

        @compile
        def f(x):
            y = w * x
            if retain:
                y.retain_grad()
            z = y.exp()
            z.sum().backward()
            return y.grad if retain else z

        for i in range(12):
            retain = i % 4 > 1
            note(f(batch(i)), w)

    both(script, replayed=4)


def test_retain_grad_on_an_output() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = w * x
            y.retain_grad()
            return y, y.exp()

        for i in range(8):
            y, z = f(batch(i))
            z.sum().backward()
            note(y, y.grad, z, w)

    both(script, replayed=2)


def test_clipping_and_averaging() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        average = copy.deepcopy(model)
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            with tj.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.mul_(0.9).add_(p, alpha=0.1)
            return loss, norm

        for i in range(8):
            note(step(batch(i, 4, 3)), state_of(model), state_of(average))

    both(script, replayed=4)


def test_an_optimizer_with_a_closure() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        optimizer = tj.optim.LBFGS([w], lr=0.1, max_iter=2)

        @compile
        def step(x):
            def closure():
                optimizer.zero_grad()
                loss = (w * x - 2).pow(2).sum()
                loss.backward()
                return loss

            return optimizer.step(closure)

        for i in range(8):
            note(step(batch(i)), w)

    both(script)


def test_batch_norm_statistics() -> None:
    def script(compile: Any, note: Any) -> None:
        norm = nn.BatchNorm1d(3, momentum=None)

        @compile
        def f(x):
            return norm(x) * 2

        for i in range(10):
            if i == 6:
                norm.reset_running_stats()
            note(f(batch(i, 4, 3)), norm.state_dict())

    both(script, replayed=3)


def test_dropout_gives_the_same_bits() -> None:
    def script(compile: Any, note: Any) -> None:
        drop = nn.Dropout(0.4)

        @compile
        def f(x):
            y = drop(x) + tj.randn(50) + tj.rand_like(x) + F.dropout(x, 0.1, training=True)
            return y + tj.randint(0, 10, (50,)), tj.randperm(5), tj.bernoulli(x.sigmoid())

        for i in range(10):
            if i == 5:
                tj.manual_seed(7)
            if i == 7:
                drop.p = 0.9
            note(f(batch(i, 50)), tj.rand(2))

    both(script, replayed=4)


def test_a_generator_of_random_numbers() -> None:
    def script(compile: Any, note: Any) -> None:
        generator = tj.Generator().manual_seed(3)

        @compile
        def f(x):
            before = tj.get_rng_state()
            y = x + tj.randn(3, generator=generator) + tj.randn(3)
            tj.set_rng_state(before)
            return y + tj.randn(3)

        for i in range(8):
            note(f(batch(i)), tj.randn(2, generator=generator))

    both(script, replayed=2)


def test_attention_and_recurrent_modules() -> None:
    def script(compile: Any, note: Any) -> None:
        attention, gru = nn.MultiheadAttention(4, 2, batch_first=True), nn.GRU(4, 4, batch_first=True)
        optimizer = tj.optim.AdamW([*attention.parameters(), *gru.parameters()], lr=0.01)

        @compile
        def step(x):
            y, weights = attention(x, x, x)
            y, h = gru(y)
            loss = (y.pow(2).mean() + h.mean()) * weights.max()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, weights

        for i in range(7):
            note(step(batch(i, 2, 3, 4)), state_of(attention), state_of(gru))

    both(script, replayed=3)
