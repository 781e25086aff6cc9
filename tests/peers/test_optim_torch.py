"""Optimizers in PyTorch and here: parameters and state after 10 steps, state dicts both ways, settings, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from peers.common import assert_alike

CASES: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.5, "maximize": True},
    ],
    "Adam": [
        {},
        {"weight_decay": 0.1, "amsgrad": True},
        {"betas": (0.5, 0.9), "eps": 1e-3, "maximize": True},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
    ],
    "AdamW": [{}, {"lr": 0.1, "weight_decay": 0.5, "amsgrad": True}, {"maximize": True}],
    "RMSprop": [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"centered": True, "alpha": 0.9},
        {"centered": True, "momentum": 0.5, "maximize": True},
    ],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}, {"maximize": True}],
    "Adadelta": [{}, {"rho": 0.5, "weight_decay": 0.1, "maximize": True}],
    "Adamax": [{}, {"betas": (0.5, 0.6), "weight_decay": 0.1, "maximize": True}],
    "NAdam": [{}, {"weight_decay": 0.1, "momentum_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{}, {"weight_decay": 0.1, "betas": (0.9, 0.99)}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "Rprop": [{}, {"etas": (0.3, 1.5), "step_sizes": (1e-3, 0.05), "maximize": True}],
    "ASGD": [{}, {"lambd": 0.1, "t0": 3, "weight_decay": 0.1}, {"lr": 1e-4, "maximize": True}],
    "Muon": [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "lr": 0.01}, {"weight_decay": 0, "ns_steps": 3}],
    "LBFGS": [
        {"lr": 0.01, "max_iter": 4},
        {"max_iter": 4, "line_search_fn": "strong_wolfe"},
        {"max_iter": 6, "history_size": 2, "max_eval": 9, "line_search_fn": "strong_wolfe"},
    ],
}
PAIRS = [(name, options) for name, many in CASES.items() for options in many]
IDS = [f"{name}-{'-'.join(options) or 'default'}" for name, options in PAIRS]
SHAPES = [(5, 3), (7,), ()]
MATRICES = [(5, 3), (3, 5), (6, 6)]


class Problem:
    """A loss of a few parameters, and an optimizer of one library for it."""

    def __init__(self, lib: Any, name: str, options: dict[str, Any], dtype: str = "float64") -> None:
        self.lib, self.name = lib, name
        rng = np.random.default_rng(0)
        shapes = MATRICES if name == "Muon" else SHAPES
        kind = getattr(lib, dtype)
        starts = [np.asarray(rng.normal(size=s)) for s in shapes]
        self.targets = [lib.tensor(rng.normal(size=s).tolist(), dtype=kind) for s in shapes]
        self.parameters = [lib.tensor(a.tolist(), dtype=kind, requires_grad=True) for a in starts]
        groups = [{"params": self.parameters}]
        if name != "LBFGS":
            groups = [{"params": self.parameters[:2]}, {"params": self.parameters[2:], "lr": 0.02}]
        self.optimizer = getattr(lib.optim, name)(groups, **options)

    def loss(self) -> Any:
        self.optimizer.zero_grad()
        total = sum((((p - t) ** 4).sum() + (p * t).sin().sum()) for p, t in zip(self.parameters, self.targets, strict=True))
        total.backward()
        return total.detach()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            if self.name == "LBFGS":
                self.optimizer.step(self.loss)
            else:
                self.loss()
                self.optimizer.step()


def tolerance(name: str) -> dict[str, float]:
    if name == "Muon":  # bfloat16 inside: a sum in another order may be rounded to its neighbour
        return {"rtol": 2e-2, "atol": 2e-3}
    return {"rtol": 1e-6, "atol": 1e-7}  # numbers of a state are float32 there


def translated(value: Any, lib: Any) -> Any:
    """A state dict of the other library."""
    if isinstance(value, (torch.Tensor, tj.Tensor)):
        name = str(value.dtype).rpartition(".")[2]
        return lib.tensor(value.detach().tolist(), dtype=getattr(lib, name))
    if isinstance(value, dict):
        return {k: translated(v, lib) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(translated(v, lib) for v in value)
    return value


@pytest.mark.parametrize(("name", "options"), PAIRS, ids=IDS)
def test_ten_steps(name: str, options: dict[str, Any]) -> None:
    mine, theirs = Problem(tj, name, options), Problem(torch, name, options)
    for p in (mine, theirs):
        p.train(10)
    assert_alike(mine.parameters, theirs.parameters, **tolerance(name))
    found, expected = mine.optimizer.state_dict(), theirs.optimizer.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert list(found["state"]) == list(expected["state"])
    if name == "LBFGS":
        assert set(expected["state"][0]) - set(found["state"][0]) <= {"al"}  # room to work in
        assert found["state"][0]["func_evals"] == expected["state"][0]["func_evals"]
        return
    for key, values in expected["state"].items():
        assert list(found["state"][key]) == list(values)
        assert_alike(list(found["state"][key].values()), list(values.values()), **tolerance(name))


@pytest.mark.parametrize(("name", "options"), PAIRS, ids=IDS)
def test_states_travel_both_ways(name: str, options: dict[str, Any]) -> None:
    """Five steps in one library and five in the other are ten steps in either."""
    whole = Problem(torch, name, options)
    whole.train(10)
    for first, second in ((tj, torch), (torch, tj)):
        before, after = Problem(first, name, options), Problem(second, name, options)
        before.train(5)
        after.optimizer.load_state_dict(translated(before.optimizer.state_dict(), second))
        with second.no_grad():
            for p, q in zip(after.parameters, before.parameters, strict=True):
                p.copy_(translated(q, second))
        after.train(5)
        for p, q in zip(after.parameters, whole.parameters, strict=True):
            np.testing.assert_allclose(np.asarray(p.detach()), np.asarray(q.detach()), **tolerance(name))


@pytest.mark.parametrize(("name", "options"), PAIRS, ids=IDS)
def test_repr_and_defaults(name: str, options: dict[str, Any]) -> None:
    mine, theirs = Problem(tj, name, options).optimizer, Problem(torch, name, options).optimizer
    assert repr(mine) == repr(theirs)
    assert list(mine.defaults.items()) == list(theirs.defaults.items())


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("LBFGS", "Muon")])
def test_float32_and_bfloat16(name: str) -> None:
    for dtype, bounds in (("float32", {"rtol": 1e-4, "atol": 1e-5}), ("bfloat16", {"rtol": 0.05, "atol": 0.05})):
        mine, theirs = Problem(tj, name, {}, dtype), Problem(torch, name, {}, dtype)
        for p in (mine, theirs):
            p.train(3)
        assert_alike(mine.parameters, theirs.parameters, **bounds)
        state, expected = mine.optimizer.state_dict()["state"], theirs.optimizer.state_dict()["state"]
        for key, values in expected.items():
            assert [str(t.dtype).rpartition(".")[2] for t in state[key].values()] == [
                str(t.dtype).rpartition(".")[2] for t in values.values()
            ]


# ---- errors


def leaf(lib: Any) -> Any:
    return lib.zeros(2, requires_grad=True)


ERRORS: dict[str, Any] = {
    "single tensor": lambda lib: lib.optim.SGD(leaf(lib)),
    "nothing": lambda lib: lib.optim.SGD([]),
    "text": lambda lib: lib.optim.SGD(["a"]),
    "non-leaf": lambda lib: lib.optim.SGD([leaf(lib) * 2]),
    "set": lambda lib: lib.optim.SGD([{"params": {leaf(lib)}}]),
    "group": lambda lib: lib.optim.SGD([leaf(lib)]).add_param_group([leaf(lib)]),
    "no params": lambda lib: lib.optim.SGD([{"lr": 1}]),
    "lr": lambda lib: lib.optim.Adam([leaf(lib)], lr=-1),
    "betas": lambda lib: lib.optim.Adam([leaf(lib)], betas=(2.0, 0.9)),
    "nesterov": lambda lib: lib.optim.SGD([leaf(lib)], nesterov=True),
    "tensor lr": lambda lib: lib.optim.SGD([leaf(lib)], lr=lib.zeros(2)),
    "rho": lambda lib: lib.optim.Adadelta([leaf(lib)], rho=2),
    "etas": lambda lib: lib.optim.Rprop([leaf(lib)], etas=(2, 3)),
    "muon": lambda lib: lib.optim.Muon([leaf(lib)]),
    "muon lr": lambda lib: lib.optim.Muon([lib.zeros(2, 2, requires_grad=True)], lr=-1),
    "lbfgs groups": lambda lib: lib.optim.LBFGS([{"params": [leaf(lib)]}, {"params": [leaf(lib)]}]),
    "lbfgs step": lambda lib: lib.optim.LBFGS([leaf(lib)]).step(),
    "load": lambda lib: lib.optim.SGD([leaf(lib)]).load_state_dict(lib.optim.SGD([leaf(lib), leaf(lib)]).state_dict()),
    "names": lambda lib: lib.optim.SGD([("a", leaf(lib)), leaf(lib)]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    found = []
    for lib in (tj, torch):
        with pytest.raises(Exception) as error:
            ERRORS[name](lib)
        found.append((type(error.value), str(error.value)))
    assert found[0][0] is found[1][0], found
    if name not in ("single tensor", "group", "lbfgs step", "text"):  # types are named otherwise
        assert found[0][1].replace("tapejit", "torch") == found[1][1]


# ---- averaged models


@pytest.mark.parametrize("kind", ["ema", "ema multi", "swa", "swa multi"])
@pytest.mark.parametrize("buffers", [False, True])
def test_averaged_model(kind: str, buffers: bool) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(5)]
    results = []
    for lib in (tj, torch):
        utils = lib.optim.swa_utils
        chosen = {
            "ema": {"avg_fn": utils.get_ema_avg_fn(0.8)},
            "ema multi": {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.8)},
            "swa": {"avg_fn": utils.get_swa_avg_fn()},
            "swa multi": {},
        }
        model = lib.nn.Sequential(lib.nn.Linear(4, 3, bias=False), lib.nn.BatchNorm1d(3))
        averaged = utils.AveragedModel(model, use_buffers=buffers, **chosen[kind])
        for i, value in enumerate(values):
            with lib.no_grad():
                model[0].weight.copy_(lib.tensor(value.tolist()))
                model[1].running_mean.fill_(float(i))
                model[1].num_batches_tracked.fill_(i * 3)
            averaged.update_parameters(model)
        utils.update_bn([lib.tensor(v.tolist()) for v in values], averaged)
        results.append(averaged.state_dict())
    assert list(results[0]) == list(results[1])
    assert_alike(list(results[0].values()), list(results[1].values()), rtol=1e-5, atol=1e-6)
