"""Mixed precision in PyTorch and here: the dtype of every listed op under autocast on the CPU, training, loss scaling."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from peers.common import assert_alike, dtype_name


def square(x: Any) -> Any:
    """A matrix that has an inverse."""
    return x(3, 3) + 5 * x.eye(3)


# Calls of x(*shape), a tensor of a library in some dtype; f is its nn.functional.
CALLS: dict[str, Any] = {
    "matmul": lambda lib, f, x: x(2, 3) @ x(3, 2),
    "matmul with a vector": lambda lib, f, x: x(2, 3) @ x(3),
    "matmul of vectors": lambda lib, f, x: x(3) @ x(3),
    "mm": lambda lib, f, x: lib.mm(x(2, 3), x(3, 2)),
    "bmm": lambda lib, f, x: lib.bmm(x(1, 2, 3), x(1, 3, 2)),
    "mv": lambda lib, f, x: lib.mv(x(2, 3), x(3)),
    "dot": lambda lib, f, x: lib.dot(x(3), x(3)),
    "inner": lambda lib, f, x: lib.inner(x(2, 3), x(2, 3)),
    "outer": lambda lib, f, x: lib.outer(x(2), x(3)),
    "addmm": lambda lib, f, x: lib.addmm(x(2, 2), x(2, 3), x(3, 2)),
    "addmv": lambda lib, f, x: lib.addmv(x(2), x(2, 3), x(3)),
    "addr": lambda lib, f, x: lib.addr(x(2, 3), x(2), x(3)),
    "addbmm": lambda lib, f, x: lib.addbmm(x(2, 2), x(1, 2, 3), x(1, 3, 2)),
    "baddbmm": lambda lib, f, x: lib.baddbmm(x(1, 2, 2), x(1, 2, 3), x(1, 3, 2)),
    "einsum": lambda lib, f, x: lib.einsum("ij,kj->ik", x(2, 3), x(4, 3)),
    "tensordot": lambda lib, f, x: lib.tensordot(x(2, 3), x(3, 2), 1),
    "chain_matmul": lambda lib, f, x: lib.linalg.multi_dot([x(2, 3), x(3, 4), x(4, 2)]),
    "matrix_power": lambda lib, f, x: lib.linalg.matrix_power(x(2, 2), 3) if lib is torch else lib.matrix_power(x(2, 2), 3),
    "vecdot": lambda lib, f, x: lib.linalg.vecdot(x(2, 3), x(2, 3)),
    "linear": lambda lib, f, x: f.linear(x(2, 3), x(4, 3), x(4)),
    "bilinear": lambda lib, f, x: f.bilinear(x(2, 3), x(2, 4), x(2, 3, 4)),
    "conv1d": lambda lib, f, x: f.conv1d(x(1, 2, 5), x(3, 2, 2)),
    "conv2d": lambda lib, f, x: f.conv2d(x(1, 2, 5, 5), x(3, 2, 2, 2), x(3)),
    "conv_transpose2d": lambda lib, f, x: f.conv_transpose2d(x(1, 2, 3, 3), x(2, 3, 2, 2)),
    "prelu": lambda lib, f, x: f.prelu(x(2, 3), x(3)),
    "attention": lambda lib, f, x: f.scaled_dot_product_attention(x(1, 1, 3, 4), x(1, 1, 3, 4), x(1, 1, 3, 4)),
    "softmax": lambda lib, f, x: f.softmax(x(2, 3), -1),
    "log_softmax": lambda lib, f, x: f.log_softmax(x(2, 3), -1),
    "layer_norm": lambda lib, f, x: f.layer_norm(x(2, 3), (3,)),
    "sum": lambda lib, f, x: x(2, 3).sum(),
    "mean": lambda lib, f, x: x(2, 3).mean(),
    "var": lambda lib, f, x: x(2, 3).var(),
    "norm": lambda lib, f, x: x(2, 3).norm(),
    "prod": lambda lib, f, x: x(2, 3).prod(),
    "cumsum": lambda lib, f, x: x(2, 3).cumsum(0),
    "exp": lambda lib, f, x: x(3).exp(),
    "pow": lambda lib, f, x: x(3) ** 2,
    "sigmoid": lambda lib, f, x: x(3).sigmoid(),
    "gelu": lambda lib, f, x: f.gelu(x(3)),
    "add": lambda lib, f, x: x(3) + x(3),
    "trace": lambda lib, f, x: x(3, 3).trace(),
    "cdist": lambda lib, f, x: lib.cdist(x(2, 3), x(4, 3)),
    "quantile": lambda lib, f, x: x(5).quantile(0.5),
    "inverse": lambda lib, f, x: lib.linalg.inv(square(x)),
    "solve": lambda lib, f, x: lib.linalg.solve(square(x), x(3)),
    "qr": lambda lib, f, x: lib.linalg.qr(x(3, 3))[0],
    "svdvals": lambda lib, f, x: lib.linalg.svdvals(x(3, 3)),
    "avg_pool3d": lambda lib, f, x: f.avg_pool3d(x(1, 1, 2, 2, 2), 2),
    "avg_pool2d": lambda lib, f, x: f.avg_pool2d(x(1, 1, 2, 2), 2),
    "mse_loss": lambda lib, f, x: f.mse_loss(x(2, 3), x(2, 3)),
    "l1_loss": lambda lib, f, x: f.l1_loss(x(2, 3), x(2, 3)),
    "smooth_l1_loss": lambda lib, f, x: f.smooth_l1_loss(x(2, 3), x(2, 3)),
    "huber_loss": lambda lib, f, x: f.huber_loss(x(2, 3), x(2, 3)),
    "cross_entropy": lambda lib, f, x: f.cross_entropy(x(2, 3), lib.tensor([0, 2])),
    "nll_loss": lambda lib, f, x: f.nll_loss(x(2, 3), lib.tensor([0, 2])),
    "bce": lambda lib, f, x: f.binary_cross_entropy(x(2, 3).sigmoid(), x(2, 3).sigmoid()),
    "bce with logits": lambda lib, f, x: f.binary_cross_entropy_with_logits(x(2, 3), x(2, 3).sigmoid()),
    "kl_div": lambda lib, f, x: f.kl_div(x(2, 3), x(2, 3).abs(), reduction="batchmean"),
    "hinge": lambda lib, f, x: f.hinge_embedding_loss(x(3), lib.ones(3)),
    "soft_margin": lambda lib, f, x: f.soft_margin_loss(x(3), lib.ones(3)),
    "poisson": lambda lib, f, x: f.poisson_nll_loss(x(3), x(3).abs()),
    "margin_ranking": lambda lib, f, x: f.margin_ranking_loss(x(3), x(3), lib.ones(3)),
    "triplet": lambda lib, f, x: f.triplet_margin_loss(x(2, 3), x(2, 3), x(2, 3)),
    "cosine_embedding": lambda lib, f, x: f.cosine_embedding_loss(x(2, 3), x(2, 3), lib.ones(2)),
    "multi_margin": lambda lib, f, x: f.multi_margin_loss(x(2, 3), lib.tensor([0, 2])),
    "rnn_tanh": lambda lib, f, x: lib.rnn_tanh(x(2, 1, 3), x(1, 1, 4), [x(4, 3), x(4, 4)], False, 1, 0, False, False, False)[0],
    "gru": lambda lib, f, x: lib.gru(x(2, 1, 3), x(1, 1, 4), [x(12, 3), x(12, 4)], False, 1, 0.0, False, False, False)[0],
    "packed gru": lambda lib, f, x: lib.gru(
        x(3, 3), lib.tensor([2, 1]), x(1, 2, 4), [x(12, 3), x(12, 4)], False, 1, 0.0, False, False
    )[1],
    "gru with a low input": lambda lib, f, x: lib.gru_cell(x(1, 3).to(lib.bfloat16), x(1, 4), x(12, 3), x(12, 4)),
    "gru_cell": lambda lib, f, x: lib.gru_cell(x(1, 3), x(1, 4), x(12, 3), x(12, 4)),
    "lstm_cell": lambda lib, f, x: lib.lstm_cell(x(1, 3), (x(1, 4), x(1, 4)), x(16, 3), x(16, 4))[0],
    "rnn_tanh_cell": lambda lib, f, x: lib.rnn_tanh_cell(x(1, 3), x(1, 4), x(4, 3), x(4, 4)),
    "cat": lambda lib, f, x: lib.cat([x(3), lib.ones(3)]),
    "stack": lambda lib, f, x: lib.stack([x(3), lib.ones(3)]),
    "index_copy": lambda lib, f, x: lib.index_copy(x(3), 0, lib.tensor([1]), lib.ones(1)),
    "embedding": lambda lib, f, x: f.embedding(lib.tensor([0, 1]), x(3, 4)),
    "in place": lambda lib, f, x: x(2, 2).addmm_(x(2, 3), x(3, 2)),
    "double": lambda lib, f, x: x(2, 2).double() @ x(2, 2).double(),
}


def maker(lib: Any, dtype: str) -> Any:
    """x(*shape): the same numbers in both libraries."""
    rng = np.random.default_rng(0)
    kind = getattr(lib, dtype)

    def make(*shape: int) -> Any:
        return lib.tensor(rng.normal(size=shape).tolist(), dtype=kind)

    make.eye = lambda n: lib.eye(n).to(kind)  # type: ignore[attr-defined]
    return make


@pytest.mark.parametrize(("low", "dtype"), [(a, b) for a in ("bfloat16", "float16") for b in ("float32", a)])
@pytest.mark.parametrize("name", CALLS)
def test_dtype(name: str, low: str, dtype: str) -> None:
    results = []
    for lib in (tj, torch):
        with warnings.catch_warnings(), lib.autocast("cpu", dtype=getattr(lib, low)):
            warnings.simplefilter("ignore")
            try:
                results.append(CALLS[name](lib, lib.nn.functional, maker(lib, dtype)))
            except (RuntimeError, NotImplementedError) as error:
                results.append(error)
    mine, theirs = results
    if isinstance(theirs, Exception) and "not implemented for" in str(theirs):
        pytest.skip("PyTorch has no such kernel")
    assert not isinstance(mine, Exception), mine
    assert dtype_name(mine) == dtype_name(theirs)
    assert_alike(mine.float(), theirs.float(), rtol=0.05, atol=0.05)


def test_training() -> None:
    rng = np.random.default_rng(0)
    data, labels = rng.normal(size=(64, 6)).astype(np.float32), rng.integers(0, 3, 64)
    weights = [rng.normal(size=s).astype(np.float32) * 0.3 for s in ((16, 6), (16,), (16,), (16,), (3, 16), (3,))]
    curves = []
    for lib in (tj, torch):
        nn = lib.nn
        model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
        with lib.no_grad():
            for p, w in zip(model.parameters(), weights, strict=True):
                p.copy_(lib.tensor(w.tolist()))
        optimizer = lib.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = lib.tensor(data.tolist()), lib.tensor(labels.tolist())
        curve = []
        for _ in range(30):
            with lib.autocast("cpu"):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
        assert all(p.grad.dtype is lib.float32 for p in model.parameters())
    np.testing.assert_allclose(curves[0], curves[1], rtol=0.02)


def test_loss_scaling() -> None:
    found = []
    for lib in (tj, torch):
        scaler = lib.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3, growth_factor=4.0)
        p = lib.ones(3, requires_grad=True)
        optimizer = lib.optim.SGD([p], lr=0.1)
        seen = []
        for i in range(12):
            optimizer.zero_grad()
            scaler.scale((p * (float("inf") if i in (2, 7) else 0.5)).sum()).backward()
            if i % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            seen.append((scaler.get_scale(), scaler.state_dict(), p.detach().tolist()))
        found.append(seen)
    assert found[0] == found[1]


def test_settings() -> None:
    def settings(lib: Any) -> list[Any]:
        seen: list[Any] = []

        def note() -> None:
            enabled = [lib.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
            seen.append((enabled, [str(lib.get_autocast_dtype(kind)).rpartition(".")[2] for kind in ("cpu", "cuda")]))

        note()
        with lib.autocast("cpu", dtype=lib.float16):
            note()
            with lib.autocast("cpu", enabled=False):
                note()
                with lib.autocast("cpu"):
                    note()
        note()
        return seen

    mine, theirs = settings(tj), settings(torch)
    assert [enabled for enabled, _ in mine] == [enabled for enabled, _ in theirs]
    assert (mine[0], mine[1], mine[-1]) == (theirs[0], theirs[1], theirs[-1])


def test_checkpointing() -> None:
    found = []
    for lib in (tj, torch):
        x, w = (lib.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True) for _ in range(2))
        y = lib.utils.checkpoint.checkpoint(lambda t, w=w: (t @ w).tanh(), x, use_reentrant=False)
        z = lib.utils.checkpoint.checkpoint_sequential([lambda t: t.exp(), lambda t: t * 2], 2, y, use_reentrant=False)
        z.sum().backward()
        found.append([x.grad, w.grad])
    assert_alike(*found, rtol=1e-6, atol=1e-7)
