"""Optimizers: each against its formula in NumPy, kernels against their expansions, resuming, differentiating a step."""

from __future__ import annotations

import copy
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
import tapejit.optim as optim
from support.tolerances import assert_within, epsilon
from tapejit.eager.arrays import devices
from tapejit.eager.core.op import PRIMITIVES

# ---- formulas, one number at a time


def by_formula(step: Callable[..., float]) -> Callable[..., np.ndarray]:
    """Ten steps of a formula `step(p, g, memory, t, **options)` on each element of an array."""

    def run(start: np.ndarray, gradients: list[np.ndarray], **options: Any) -> np.ndarray:
        p = start.copy()
        for i in np.ndindex(p.shape):
            memory: dict[str, float] = {}
            for t, g in enumerate(gradients, 1):
                p[i] = step(p[i], g[i], memory, t, **options)
        return p

    return run


@by_formula
def sgd(p, g, m, t, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False, maximize=False):
    g = (-g if maximize else g) + weight_decay * p
    if momentum:
        m["b"] = momentum * m["b"] + (1 - dampening) * g if t > 1 else g
        g = g + momentum * m["b"] if nesterov else m["b"]
    return p - lr * g


@by_formula
def adam(p, g, m, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False, maximize=False, decoupled=False):
    g = -g if maximize else g
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m["m"] = betas[0] * m.get("m", 0) + (1 - betas[0]) * g
    m["v"] = betas[1] * m.get("v", 0) + (1 - betas[1]) * g * g
    m["top"] = max(m.get("top", 0), m["v"])
    v = (m["top"] if amsgrad else m["v"]) / (1 - betas[1] ** t)
    return p - lr * m["m"] / (1 - betas[0] ** t) / (math.sqrt(v) + eps)


def adamw(start, gradients, weight_decay=1e-2, **options):
    return adam(start, gradients, weight_decay=weight_decay, decoupled=True, **options)


@by_formula
def rmsprop(p, g, m, t, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False, maximize=False):
    g = (-g if maximize else g) + weight_decay * p
    m["v"] = alpha * m.get("v", 0) + (1 - alpha) * g * g
    m["m"] = alpha * m.get("m", 0) + (1 - alpha) * g
    root = math.sqrt(m["v"] - m["m"] ** 2 if centered else m["v"]) + eps
    m["b"] = momentum * m.get("b", 0) + g / root
    return p - lr * m["b"]


@by_formula
def adagrad(p, g, m, t, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, maximize=False):
    g = (-g if maximize else g) + weight_decay * p
    m["s"] = m.get("s", initial_accumulator_value) + g * g
    return p - lr / (1 + (t - 1) * lr_decay) * g / (math.sqrt(m["s"]) + eps)


@by_formula
def adadelta(p, g, m, t, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0, maximize=False):
    g = (-g if maximize else g) + weight_decay * p
    m["v"] = rho * m.get("v", 0) + (1 - rho) * g * g
    change = math.sqrt((m.get("d", 0) + eps) / (m["v"] + eps)) * g
    m["d"] = rho * m.get("d", 0) + (1 - rho) * change * change
    return p - lr * change


@by_formula
def adamax(p, g, m, t, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, maximize=False):
    g = (-g if maximize else g) + weight_decay * p
    m["m"] = betas[0] * m.get("m", 0) + (1 - betas[0]) * g
    m["u"] = max(betas[1] * m.get("u", 0), abs(g) + eps)
    return p - lr / (1 - betas[0] ** t) * m["m"] / m["u"]


@by_formula
def nadam(p, g, m, t, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum_decay=4e-3, **flags):
    g = -g if flags.get("maximize") else g
    if flags.get("decoupled_weight_decay"):
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    mu, after = (betas[0] * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in (t, t + 1))
    m["product"] = m.get("product", 1) * mu
    m["m"] = betas[0] * m.get("m", 0) + (1 - betas[0]) * g
    m["v"] = betas[1] * m.get("v", 0) + (1 - betas[1]) * g * g
    ahead = after * m["m"] / (1 - m["product"] * after) + (1 - mu) * g / (1 - m["product"])
    return p - lr * ahead / (math.sqrt(m["v"] / (1 - betas[1] ** t)) + eps)


@by_formula
def radam(p, g, m, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, **flags):
    g = -g if flags.get("maximize") else g
    if flags.get("decoupled_weight_decay"):
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m["m"] = betas[0] * m.get("m", 0) + (1 - betas[0]) * g
    m["v"] = betas[1] * m.get("v", 0) + (1 - betas[1]) * g * g
    mean = m["m"] / (1 - betas[0] ** t)
    most = 2 / (1 - betas[1]) - 1
    rho = most - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
    if rho <= 5:
        return p - lr * mean
    rectified = math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
    return p - lr * mean * rectified * math.sqrt(1 - betas[1] ** t) / (math.sqrt(m["v"]) + eps)


@by_formula
def rprop(p, g, m, t, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50), maximize=False):
    g = -g if maximize else g
    turn = g * m.get("g", 0)
    factor = etas[1] if turn > 0 else etas[0] if turn < 0 else 1
    m["size"] = min(max(m.get("size", lr) * factor, step_sizes[0]), step_sizes[1])
    m["g"] = 0 if turn < 0 else g
    return p - math.copysign(1, g) * m["size"] if turn >= 0 and g else p


@by_formula
def asgd(p, g, m, t, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0, maximize=False):
    g = (-g if maximize else g) + weight_decay * p
    eta = lr if t == 1 else lr / (1 + lambd * lr * (t - 1)) ** alpha
    return p * (1 - lambd * eta) - eta * g


@by_formula
def lion(p, g, m, t, lr=1e-4, betas=(0.9, 0.99), weight_decay=0, maximize=False):
    g = -g if maximize else g
    before = m.get("m", 0)
    m["m"] = betas[1] * before + (1 - betas[1]) * g
    return p * (1 - lr * weight_decay) - lr * np.sign(betas[0] * before + (1 - betas[0]) * g)


CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("SGD", sgd, {"lr": 0.1}),
    ("SGD", sgd, {"lr": 0.1, "momentum": 0.9, "maximize": True}),
    ("SGD", sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1}),
    ("SGD", sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", adam, {}),
    ("Adam", adam, {"lr": 0.1, "betas": (0.5, 0.9), "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ("AdamW", adamw, {}),
    ("AdamW", adamw, {"lr": 0.1, "weight_decay": 0.5, "amsgrad": True}),
    ("RMSprop", rmsprop, {}),
    ("RMSprop", rmsprop, {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", rmsprop, {"centered": True, "momentum": 0.5, "alpha": 0.9}),
    ("Adagrad", adagrad, {}),
    ("Adagrad", adagrad, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "maximize": True}),
    ("Adadelta", adadelta, {}),
    ("Adadelta", adadelta, {"rho": 0.5, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", adamax, {}),
    ("Adamax", adamax, {"weight_decay": 0.1, "betas": (0.5, 0.6), "maximize": True}),
    ("NAdam", nadam, {}),
    ("NAdam", nadam, {"weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", nadam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", radam, {}),
    ("RAdam", radam, {"weight_decay": 0.1, "betas": (0.9, 0.99), "maximize": True}),
    ("RAdam", radam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Rprop", rprop, {}),
    ("Rprop", rprop, {"etas": (0.3, 2.0), "step_sizes": (1e-3, 0.02), "maximize": True}),
    ("ASGD", asgd, {}),
    ("ASGD", asgd, {"lambd": 0.1, "t0": 3, "weight_decay": 0.1, "maximize": True}),
    ("Lion", lion, {"lr": 0.01}),
    ("Lion", lion, {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
]
IDS = [f"{name}-{'-'.join(options) or 'default'}" for name, _, options in CASES]


def data(shape: tuple[int, ...], count: int = 10, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=shape)), [np.asarray(rng.normal(size=shape)) for _ in range(count)]


def trained(
    name: str,
    options: dict[str, Any],
    start: np.ndarray,
    gradients: list[np.ndarray],
    dtype: Any = tj.float64,
    device: Any = None,
) -> tuple[tj.Tensor, optim.Optimizer]:
    p = tj.tensor(start, dtype=dtype, device=device, requires_grad=True)
    optimizer = getattr(optim, name)([p], **options)
    for g in gradients:
        p.grad = tj.tensor(g, dtype=dtype, device=device)
        optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("shape", [(2, 3), ()], ids=str)
@pytest.mark.parametrize(("name", "formula", "options"), CASES, ids=IDS)
def test_formula(name: str, formula: Any, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    start, gradients = data(shape)
    p, _ = trained(name, options, start, gradients)
    np.testing.assert_allclose(p.detach().numpy(), formula(start, gradients, **options), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "formula", "options"), CASES, ids=IDS)
def test_float32_and_a_gpu(name: str, formula: Any, options: dict[str, Any]) -> None:
    start, gradients = data((3, 4))
    expected, _ = trained(name, options, start, gradients)
    p, _ = trained(name, options, start, gradients, tj.float32)
    np.testing.assert_allclose(p.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    before = devices.use_cuda_module(fake_cupy)
    try:
        q, optimizer = trained(name, options, start, gradients, tj.float32, "cuda")
        assert q.is_cuda
        assert all(v.is_cuda for v in optimizer.state[q].values() if isinstance(v, tj.Tensor))
        np.testing.assert_array_equal(q.detach().cpu().numpy(), p.detach().numpy())
    finally:
        devices.use_cuda_module(before)


ROUNDED = {i: c for i, c in zip(IDS, CASES, strict=True) if c[0] != "Rprop"}  # its state begins with a number to round


@pytest.mark.parametrize("dtype", [tj.bfloat16, tj.float16], ids=str)
@pytest.mark.parametrize(("name", "formula", "options"), ROUNDED.values(), ids=ROUNDED.keys())
def test_half_precision_rounds_once_a_step(name: str, formula: Any, options: dict[str, Any], dtype: Any) -> None:
    start, gradients = data((40,), count=1)
    rounded, g = (tj.tensor(a, dtype=dtype) for a in (start, gradients[0]))
    p, optimizer = trained(name, options, start, gradients, dtype)
    assert all(v.dtype is dtype for v in optimizer.state[p].values() if isinstance(v, tj.Tensor))
    wide, _ = trained(name, options, rounded.float().numpy(), [g.float().numpy()], tj.float32)
    np.testing.assert_array_equal(p.detach().float().numpy(), wide.detach().to(dtype).float().numpy())


# ---- kernels


def update_ops() -> list[str]:
    return sorted(name for name, op in PRIMITIVES.items() if op.mutates and name.endswith("_update"))


RECORDED = [*CASES, ("Muon", None, {}), ("Muon", None, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "lr": 0.1})]


@pytest.mark.parametrize("shape", [(3, 4), (5, 2)], ids=str)
@pytest.mark.parametrize(("name", "formula", "options"), RECORDED, ids=[*IDS, "Muon", "Muon-plain"])
def test_expansion_is_the_kernel(
    name: str, formula: Any, options: dict[str, Any], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same training by the ops' expansions: what a compiler sees."""
    start, gradients = data(shape)
    p, _ = trained(name, options, start, gradients)
    calls = []

    def expanded(op: Any) -> Any:
        def run(xp: Any, *arrays: Any, **attrs: Any) -> None:
            calls.append(op.name)
            op.expand(*[tj.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arrays], **attrs)

        return run

    for op_name in update_ops():
        monkeypatch.setattr(PRIMITIVES[op_name], "run", expanded(PRIMITIVES[op_name]))
    q, _ = trained(name, options, start, gradients)
    assert len(calls) == len(gradients)
    if name == "Muon":  # of what is subtracted, each direction is made in bfloat16: a few epsilons are to either side
        scale = 0.2 * math.sqrt(max(shape)) if "adjust_lr_fn" in options else math.sqrt(max(1, shape[0] / shape[1]))
        step = options.get("lr", 1e-3) * scale
        assert_within(q.detach(), p.detach(), len(gradients) * step * 8 * epsilon(tj.bfloat16.numpy))
    else:
        np.testing.assert_allclose(q.detach().numpy(), p.detach().numpy(), rtol=1e-10, atol=1e-10)


def test_every_update_has_an_expansion() -> None:
    assert {"sgd_update", "adam_update", "lion_update", "muon_update", "average_update", "unscale_update"} <= set(update_ops())
    for name in update_ops():
        assert PRIMITIVES[name].expand is not None


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "NAdam", "Rprop", "Lion"])
def test_large_parameters_in_pieces(name: str) -> None:
    start, gradients = data((300, 130), count=3)  # more than two blocks, and not a whole number of them
    options = {"momentum": 0.9} if name == "SGD" else {}
    whole, _ = trained(name, options, start, gradients, tj.float32)
    rows = [
        trained(name, options, start[i : i + 50], [g[i : i + 50] for g in gradients], tj.float32)[0] for i in range(0, 300, 50)
    ]
    np.testing.assert_array_equal(whole.detach().numpy(), tj.cat(rows).detach().numpy())
    turned = tj.tensor(start.T.copy(), dtype=tj.float32).T.detach().requires_grad_()
    optimizer = getattr(optim, name)([turned], **options)
    for g in gradients:
        turned.grad = tj.tensor(g, dtype=tj.float32)
        optimizer.step()
    np.testing.assert_array_equal(turned.detach().numpy(), whole.detach().numpy())


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "Adadelta", "NAdam", "RAdam", "Lion"])
def test_no_temporaries_of_the_parameters_size(name: str) -> None:
    p = tj.zeros(1024, 1024, requires_grad=True)
    p.grad = tj.ones(1024, 1024)
    optimizer = getattr(optim, name)([p], weight_decay=0.1)
    optimizer.step()
    tracemalloc.start()
    optimizer.step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < p.nbytes / 4


def test_update_bumps_versions_and_leaves_the_gradient() -> None:
    p = tj.ones(3, requires_grad=True)
    p.grad = tj.ones(3)
    version = p._version
    optim.AdamW([p], weight_decay=0.5, maximize=True).step()
    assert p._version == version + 1
    np.testing.assert_array_equal(p.grad.numpy(), np.ones(3))
    y = (p * p).sum()
    optim.SGD([p], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


# ---- Muon and LBFGS


def test_muon_makes_singular_values_alike() -> None:
    start, (g,) = data((6, 4), count=1)
    p, _ = trained("Muon", {"lr": 1.0, "weight_decay": 0.0, "momentum": 0.0, "nesterov": False}, start, [g])
    change = (start - p.detach().numpy()) / math.sqrt(6 / 4)
    values = np.linalg.svd(change, compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, v = np.linalg.svd(g, full_matrices=False)
    assert np.abs(np.diag(u.T @ change @ v.T)).min() > 0.6  # the gradient's own directions


def test_muon_only_takes_matrices() -> None:
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        optim.Muon([tj.zeros(3, requires_grad=True)])
    with pytest.raises(ValueError, match="Adjust learning rate function other is not supported"):
        optim.Muon([tj.zeros(3, 3, requires_grad=True)], adjust_lr_fn="other")
    with pytest.raises(ValueError, match="momentum should be >= 0 but is: -1"):
        optim.Muon([tj.zeros(3, 3, requires_grad=True)], momentum=-1)


def rosenbrock(x: tj.Tensor) -> tj.Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


@pytest.mark.parametrize("history", [100, 3])
def test_lbfgs_with_a_line_search(history: int) -> None:
    x = tj.tensor([0.5, 2.0, 0.3, 1.1], dtype=tj.float64, requires_grad=True)
    optimizer = optim.LBFGS([x], max_iter=200, history_size=history, line_search_fn="strong_wolfe")
    losses = []

    def closure() -> tj.Tensor:
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        losses.append(loss.item())
        return loss

    first = optimizer.step(closure)
    assert first.item() == losses[0]
    np.testing.assert_allclose(x.detach().numpy(), np.ones(4), atol=1e-4)
    assert optimizer.state[x]["func_evals"] == len(losses)
    assert optimizer.state[x]["n_iter"] < 200
    optimizer.step(closure)  # near the optimum it stays
    np.testing.assert_allclose(x.detach().numpy(), np.ones(4), atol=1e-4)


def test_lbfgs_solves_a_quadratic_in_few_iterations() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(5, 5))
    matrix = tj.tensor(matrix @ matrix.T + np.eye(5))
    target = tj.tensor(rng.normal(size=5))
    a, b = tj.zeros(2, dtype=tj.float64, requires_grad=True), tj.zeros(3, dtype=tj.float64, requires_grad=True)
    unused = tj.ones(2, dtype=tj.float64, requires_grad=True)
    optimizer = optim.LBFGS([a, unused, b], lr=1, max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> tj.Tensor:
        optimizer.zero_grad()
        x = tj.cat([a, b]) - target
        loss = x @ matrix @ x
        loss.backward()
        return loss

    optimizer.step(closure)
    np.testing.assert_allclose(tj.cat([a, b]).detach().numpy(), target.numpy(), atol=1e-5)
    np.testing.assert_array_equal(unused.detach().numpy(), np.ones(2))
    assert optimizer.state[a]["n_iter"] < 25


def test_lbfgs_resumes_from_its_state() -> None:
    def make(x: tj.Tensor) -> tuple[optim.LBFGS, Callable[[], tj.Tensor]]:
        optimizer = optim.LBFGS([x], lr=0.01, max_iter=4)

        def closure() -> tj.Tensor:
            optimizer.zero_grad()
            loss = rosenbrock(x)
            loss.backward()
            return loss

        return optimizer, closure

    x = tj.tensor([-1.5, 2.0], dtype=tj.float64, requires_grad=True)
    optimizer, closure = make(x)
    optimizer.step(closure)
    y = x.detach().clone().requires_grad_()
    other, again = make(y)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        optimizer.step(closure)
        other.step(again)
    np.testing.assert_array_equal(x.detach().numpy(), y.detach().numpy())


def test_lbfgs_refuses() -> None:
    a, b = tj.zeros(2, requires_grad=True), tj.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="LBFGS doesn't support per-parameter options"):
        optim.LBFGS([{"params": [a]}, {"params": [b]}])
    with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
        optim.LBFGS([a], line_search_fn="other").step(lambda: a.sum())
    with pytest.raises(TypeError):
        optim.LBFGS([a]).step()  # type: ignore[call-arg]


# ---- resuming and differentiating


@pytest.mark.parametrize(("name", "formula", "options"), CASES, ids=IDS)
def test_state_dict_goes_on_where_it_was(name: str, formula: Any, options: dict[str, Any]) -> None:
    start, gradients = data((2, 3))
    whole, _ = trained(name, options, start, gradients)
    p, first = trained(name, options, start, gradients[:4])
    saved = first.state_dict()
    q = p.detach().clone().requires_grad_()
    second = getattr(optim, name)([q], **options)
    second.load_state_dict(saved)
    for g in gradients[4:]:
        q.grad = tj.tensor(g)
        second.step()
    np.testing.assert_allclose(q.detach().numpy(), whole.detach().numpy(), rtol=1e-6)  # mu_product is saved as float32


SMOOTH = {i: c for i, c in zip(IDS, CASES, strict=True) if c[0] not in ("Rprop", "Lion")}


@pytest.mark.parametrize(("name", "formula", "options"), SMOOTH.values(), ids=SMOOTH.keys())
def test_differentiable_steps(name: str, formula: Any, options: dict[str, Any]) -> None:
    start, gradients = data((3,), count=2)

    def after(p: tj.Tensor, g: tj.Tensor) -> tj.Tensor:
        p = p.clone()
        optimizer = getattr(optim, name)([p], differentiable=True, **options)
        for factor in (1.0, 0.5):
            p.grad = g * factor
            optimizer.step()
        return p

    inputs = [tj.tensor(a, requires_grad=True) for a in (start, gradients[0])]
    assert tj.autograd.gradcheck(after, inputs)


def test_training_reaches_the_optimum() -> None:
    target = tj.tensor([[1.0, -2.0], [0.5, 3.0]])
    rates = {"Adadelta": 20.0, "Adagrad": 0.5, "Lion": 0.02, "Rprop": 0.1, "SGD": 0.1, "ASGD": 0.1, "Muon": 0.05}
    for name in optim.__all__:
        if name in ("Optimizer", "LBFGS", "SparseAdam", "lr_scheduler", "swa_utils"):
            continue
        p = tj.zeros(2, 2, requires_grad=True)
        options = {"weight_decay": 0.0} if name in ("AdamW", "Muon") else {"betas": (0.5, 0.5)} if name == "Lion" else {}
        optimizer = getattr(optim, name)([p], lr=rates.get(name, 0.05), **options)
        for _ in range(400):
            optimizer.zero_grad()
            ((p - target) ** 2).sum().backward()
            optimizer.step()
        assert (p - target).abs().max().item() < 0.1, name
