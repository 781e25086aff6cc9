"""Common to all optimizers: parameter groups, settings, saving, hooks, errors, optimizers of one's own."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.optim as optim

# ---- groups


def parameter(*values: float) -> tj.Tensor:
    p = tj.tensor(list(values), requires_grad=True)
    p.grad = tj.ones(len(values))
    return p


def test_groups_have_settings_of_their_own() -> None:
    a, b, c = parameter(1.0), parameter(1.0), parameter(1.0)
    optimizer = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    optimizer.add_param_group({"params": [c], "lr": 0.01, "momentum": 0.9})
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.5, 0.01]
    assert [g["momentum"] for g in optimizer.param_groups] == [0, 0, 0.9]
    optimizer.step()
    np.testing.assert_allclose([t.item() for t in (a, b, c)], [0.9, 0.5, 0.99], rtol=1e-6)


def test_settings_are_read_at_each_step() -> None:
    p = parameter(0.0)
    optimizer = optim.SGD([p], lr=1.0)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.step()
    optimizer.param_groups[0]["maximize"] = True
    optimizer.step()
    assert p.item() == -1.0


def test_rate_may_be_a_tensor() -> None:
    p, rate = parameter(0.0), tj.tensor(0.5)
    optimizer = optim.AdamW([p], lr=rate, weight_decay=0)
    optimizer.step()
    rate.fill_(0.25)
    optimizer.step()
    assert p.item() == pytest.approx(-0.75)
    q = parameter(0.0)
    optim.SGD([q], lr=np.float64(0.5)).step()
    assert q.dtype is tj.float32
    assert q.item() == -0.5


def test_parameters_without_gradient_are_left_alone() -> None:
    a, b = parameter(1.0), tj.ones(1, requires_grad=True)
    optimizer = optim.AdamW([a, b], weight_decay=0.5)
    optimizer.step()
    assert b.item() == 1.0
    assert b not in optimizer.state


def test_frozen_and_empty_parameters() -> None:
    p = tj.zeros(0, 3, requires_grad=True)
    p.grad = tj.zeros(0, 3)
    optimizer = optim.Adam([p, tj.ones(2)])
    optimizer.step()
    assert optimizer.state[p]["step"] == 1


def test_zero_grad() -> None:
    p = parameter(1.0)
    optimizer = optim.SGD([p, tj.ones(1, requires_grad=True)])
    kept = p.grad
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is kept
    assert kept is not None
    assert kept.item() == 0
    optimizer.zero_grad()
    assert p.grad is None


def test_closure_runs_with_gradients_on() -> None:
    p = parameter(2.0)
    optimizer = optim.SGD([p], lr=0.1)

    def closure() -> tj.Tensor:
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with tj.no_grad():
        assert optimizer.step(closure).item() == 4.0
    assert p.item() == pytest.approx(1.6)
    assert tj.is_grad_enabled()


def test_names_of_parameters() -> None:
    model = tj.nn.Linear(2, 3)
    optimizer = optim.SGD(model.named_parameters(), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="cannot add param group without names"):
        optimizer.add_param_group({"params": [parameter(1.0)]})
    with pytest.raises(ValueError, match="Some param names are missing"):
        optim.SGD([("a", parameter(1.0)), parameter(1.0)])


# ---- errors


def test_bad_parameters() -> None:
    p = parameter(1.0)
    with pytest.raises(TypeError, match="should be an iterable of Tensors or dicts"):
        optim.SGD(p)
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        optim.SGD([])
    with pytest.raises(TypeError, match="optimizer can only optimize Tensors, but one of the params is str"):
        optim.SGD(["weight"])
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        optim.SGD([p * 2])
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        optim.SGD([{"params": [p]}, {"params": [p]}])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optim.SGD([p, p])
    with pytest.raises(TypeError, match="ordering of tensors in sets"):
        optim.SGD([{"params": {p}}])
    with pytest.raises(TypeError, match="param_group must be a dict"):
        optim.SGD([p]).add_param_group([p])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("SGD", {"lr": -1}, "Invalid learning rate: -1"),
        ("SGD", {"momentum": -1}, "Invalid momentum value: -1"),
        ("SGD", {"nesterov": True}, "Nesterov momentum requires a momentum and zero dampening"),
        ("Adam", {"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        ("Adam", {"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
        ("AdamW", {"eps": -1}, "Invalid epsilon value: -1"),
        ("AdamW", {"weight_decay": -1}, "Invalid weight_decay value: -1"),
        ("Adam", {"lr": tj.zeros(2)}, "Tensor lr must be 1-element"),
        ("RMSprop", {"alpha": -1}, "Invalid alpha value: -1"),
        ("Adagrad", {"lr_decay": -1}, "Invalid lr_decay value: -1"),
        ("Adadelta", {"rho": 1.5}, "Invalid rho value: 1.5"),
        ("Adamax", {"lr": -1}, "Invalid learning rate: -1"),
        ("NAdam", {"momentum_decay": -1}, "Invalid momentum_decay value: -1"),
        ("RAdam", {"eps": -1}, "Invalid epsilon value: -1"),
        ("Rprop", {"etas": (1.5, 1.2)}, "Invalid eta values: 1.5, 1.2"),
        ("LBFGS", {"lr": -1}, "Invalid learning rate: -1"),
        ("Lion", {"lr": float("nan")}, "Invalid learning rate: nan"),
    ],
)
def test_bad_settings(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(optim, name)([parameter(1.0)], **options)


def test_contradictory_implementations() -> None:
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True` together"):
        optim.Adam([parameter(1.0)], fused=True, foreach=True)
    with pytest.raises(RuntimeError, match="`fused` does not support `differentiable`"):
        optim.SGD([parameter(1.0)], fused=True, differentiable=True)


# ---- state


def test_layout_of_a_state_dict() -> None:
    a, b, c = parameter(1.0), parameter(1.0, 2.0), parameter(3.0)
    optimizer = optim.AdamW([{"params": [a, b]}, {"params": [c], "lr": 0.5}])
    optimizer.step()
    saved = optimizer.state_dict()
    assert list(saved) == ["state", "param_groups"]
    assert [g["params"] for g in saved["param_groups"]] == [[0, 1], [2]]
    assert list(saved["state"]) == [0, 1, 2]
    assert list(saved["state"][1]) == ["step", "exp_avg", "exp_avg_sq"]
    step = saved["state"][1]["step"]
    assert (step.dtype, step.shape, step.item()) == (tj.float32, (), 1.0)
    assert saved["state"][1]["exp_avg"].shape == (2,)
    assert optimizer.state[b]["step"] == 1


def test_loading_is_a_copy_in_the_parameters_dtype() -> None:
    p, q = parameter(1.0, 2.0), tj.zeros(2, dtype=tj.float64, requires_grad=True)
    first, second = optim.Adam([p]), optim.Adam([q], lr=0.5)
    first.step()
    second.load_state_dict(first.state_dict())
    assert second.state[q]["exp_avg"].dtype is tj.float64
    assert second.param_groups[0]["lr"] == 1e-3
    other = optim.Adam([p])
    other.load_state_dict(first.state_dict())
    first.step()
    assert other.state[p]["exp_avg"][0].item() == pytest.approx(0.1)
    assert other.state[p]["step"] == 1


def test_loading_what_does_not_fit() -> None:
    saved = optim.SGD([parameter(1.0), parameter(2.0)]).state_dict()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optim.SGD([{"params": [parameter(1.0)]}, {"params": [parameter(1.0)]}]).load_state_dict(saved)
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        optim.SGD([parameter(1.0)]).load_state_dict(saved)


def test_loading_what_an_older_version_saved() -> None:
    p = parameter(1.0)
    optimizer = optim.AdamW([p])
    optimizer.step()
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["decoupled_weight_decay"], saved["param_groups"][0]["maximize"]
    saved["state"][0]["step"] = 7  # a number, as PyTorch once saved
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
    assert optimizer.param_groups[0]["maximize"] is False
    assert optimizer.state[p]["step"] == 7


def test_pickle_and_deepcopy() -> None:
    model = tj.nn.Linear(2, 2)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    model(tj.ones(1, 2)).sum().backward()
    optimizer.step()
    buffer = io.BytesIO()
    pickle.dump((model, optimizer), buffer)
    buffer.seek(0)
    for twin, other in (pickle.load(buffer), copy.deepcopy((model, optimizer))):
        assert other.param_groups[0]["params"][0] is twin.weight
        assert other.state[twin.weight]["step"] == 1
        for net, opt in ((model, optimizer), (twin, other)):
            opt.zero_grad()
            net(tj.ones(1, 2)).sum().backward()
        other.step()
        assert other.state[twin.weight]["step"] == 2
    assert optimizer.state[model.weight]["step"] == 1


def test_repr() -> None:
    optimizer = optim.SGD([{"params": [parameter(1.0)]}, {"params": [parameter(1.0)], "lr": 0.5}], lr=0.1)
    lines = [
        "    dampening: 0",
        "    differentiable: False",
        "    foreach: None",
        "    fused: None",
        "    lr: {}",
        "    maximize: False",
        "    momentum: 0",
        "    nesterov: False",
        "    weight_decay: 0",
    ]
    settings = "\n".join(lines)
    assert repr(optimizer) == (
        f"SGD (\nParameter Group 0\n{settings.format(0.1)}\n\nParameter Group 1\n{settings.format(0.5)}\n)"
    )


# ---- hooks and subclasses


def test_hooks_of_a_step() -> None:
    seen: list[Any] = []
    optimizer = optim.SGD([parameter(1.0)])
    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(("before", args[0] is o, kwargs)))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
    everywhere = optim.optimizer.register_optimizer_step_pre_hook(lambda o, args, kwargs: seen.append("all"))
    try:
        optimizer.step()
    finally:
        everywhere.remove()
    assert seen == ["all", ("before", True, {}), "after"]
    before.remove()
    optimizer.step()
    assert seen[3:] == ["after"]
    optimizer.register_step_pre_hook(lambda o, args, kwargs: (args, {"closure": lambda: 5.0}))
    assert optimizer.step() == 5.0
    optimizer.register_step_pre_hook(lambda o, args, kwargs: "wrong")
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        optimizer.step()


def test_hooks_of_saving_and_loading() -> None:
    optimizer = optim.SGD([parameter(1.0)], lr=0.1)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("saving"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, state: {**state, "param_groups": [{**state["param_groups"][0], "lr": 9}]}
    )
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("first"), prepend=True)
    saved = optimizer.state_dict()
    assert saved["extra"] == 1
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 9
    assert seen == ["saving", "first", "loaded"]


def test_an_optimizer_of_ones_own() -> None:
    class Plain(optim.Optimizer):
        def __init__(self, params: Any, lr: float = 0.5) -> None:
            super().__init__(params, {"lr": lr})

        @tj.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["count"] = self.state[p].get("count", 0) + 1
                    p.add_(p.grad, alpha=-group["lr"])

    class Twice(Plain):
        def step(self, closure: Any = None) -> None:
            super().step()
            super().step()

    p, seen = parameter(1.0), []
    optimizer = Twice([p])
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    optimizer.step()
    assert p.item() == 0.0
    assert seen == [1]
    assert optimizer.state_dict()["state"] == {0: {"count": 2}}
    with pytest.raises(NotImplementedError):
        optim.Optimizer([p], {}).step()


def test_sparse_adam_refuses_dense_gradients():
    w = tj.nn.Parameter(tj.ones(2))
    optimizer = tj.optim.SparseAdam([w], lr=0.1)
    optimizer.step()
    w.grad = tj.ones(2)
    with pytest.raises(RuntimeError, match="does not support dense gradients, please consider Adam instead"):
        optimizer.step()
