"""Mixed precision: which dtype each op runs in, gradients through the casts, the cache of weights, loss scaling."""

from __future__ import annotations

import pickle
import threading
import types
from collections.abc import Iterator
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.tolerances import assert_matmul
from tapejit import nn
from tapejit.eager.arrays import devices
from tapejit.eager.core import autocast as rules
from tapejit.eager.core.op import OPS, PRIMITIVES

HALF, FULL = tj.bfloat16, tj.float32


@pytest.fixture
def gpu() -> Iterator[None]:
    before = devices.use_cuda_module(fake_cupy)
    yield
    devices.use_cuda_module(before)


def some(*shape: int, device: str = "cpu") -> tj.Tensor:
    return tj.randn(*shape, device=device)


# ---- the lists


def test_listed_ops_exist() -> None:
    """Names that mean nothing would be silently ignored; some of PyTorch's ops are not here yet."""
    missing = {"ctc_loss", "grid_sample", "pdist"}
    for table in rules.FUNCTIONS.values():
        assert {name for names in table.values() for name in names.split()} - set(OPS) <= missing
    for table in rules.PRIMITIVES.values():
        assert {name for names in table.values() for name in names.split()} <= set(PRIMITIVES)


LOW: dict[str, Any] = {
    "matmul": lambda x: x(2, 3) @ x(3, 2),
    "matmul of a vector": lambda x: x(2, 3) @ x(3),
    "matmul of vectors": lambda x: x(3) @ x(3),
    "mm": lambda x: tj.mm(x(2, 3), x(3, 2)),
    "bmm": lambda x: x(2, 2, 3).bmm(x(2, 3, 2)),
    "addmm": lambda x: tj.addmm(x(2, 2), x(2, 3), x(3, 2)),
    "baddbmm": lambda x: tj.baddbmm(x(2, 2, 2), x(2, 2, 3), x(2, 3, 2)),
    "linear": lambda x: F.linear(x(2, 3), x(4, 3), x(4)),
    "linear without a bias": lambda x: F.linear(x(2, 3), x(4, 3)),
    "einsum": lambda x: tj.einsum("ij,kj->ik", x(2, 3), x(4, 3)),
    "conv1d": lambda x: F.conv1d(x(1, 2, 5), x(3, 2, 2), x(3)),
    "conv2d": lambda x: F.conv2d(x(1, 2, 5, 5), x(3, 2, 2, 2)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x(1, 2, 3, 3), x(2, 3, 2, 2)),
    "attention": lambda x: F.scaled_dot_product_attention(x(1, 2, 3, 4), x(1, 2, 3, 4), x(1, 2, 3, 4)),
    "prelu": lambda x: F.prelu(x(2, 3), x(3)),
}
CUDA_LOW = {
    **LOW,
    "multi_dot": lambda x: tj.linalg.multi_dot([x(2, 3), x(3, 4), x(4, 2)]),
    "mv": lambda x: tj.mv(x(2, 3), x(3)),
    "addr": lambda x: tj.addr(x(2, 3), x(2), x(3)),
}
LOSSES: dict[str, Any] = {
    "cross_entropy": lambda x: F.cross_entropy(x(2, 3), tj.tensor([0, 2], device=x(1).device)),
    "nll_loss": lambda x: F.nll_loss(x(2, 3), tj.tensor([0, 2], device=x(1).device)),
    "mse_loss": lambda x: F.mse_loss(x(2, 3), x(2, 3)),
    "l1_loss": lambda x: F.l1_loss(x(2, 3), x(2, 3)),
    "huber_loss": lambda x: F.huber_loss(x(2, 3), x(2, 3)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x(2, 3), x(2, 3)),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x(2, 3), x(2, 3).abs().clamp(max=1)),
    "kl_div": lambda x: F.kl_div(x(2, 3), x(2, 3).abs(), reduction="batchmean"),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x(2, 3), x(2, 3), tj.ones(2, device=x(1).device)),
    "cdist": lambda x: tj.cdist(x(2, 3), x(4, 3)),
    "prod": lambda x: x(2, 3).prod(),
}
CPU_FULL = {
    **LOSSES,
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x(2, 3).sigmoid(), x(2, 3).sigmoid()),
    "quantile": lambda x: x(5).float().quantile(0.5),
    "avg_pool3d": lambda x: F.avg_pool3d(x(1, 1, 2, 2, 2), 2),
    "linalg.inv": lambda x: tj.linalg.inv(x(3, 3)),
    "linalg.solve": lambda x: tj.linalg.solve(x(3, 3), x(3)),
    "trace": lambda x: x(3, 3).trace(),
}
CUDA_FULL = {
    **LOSSES,
    "softmax": lambda x: x(2, 3).softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x(2, 3), -1),
    "layer_norm": lambda x: F.layer_norm(x(2, 3), (3,), x(3), x(3)),
    "group_norm": lambda x: F.group_norm(x(2, 4), 2),
    "rms_norm": lambda x: F.rms_norm(x(2, 3), (3,)),
    "sum": lambda x: x(2, 3).sum(),
    "cumsum": lambda x: x(2, 3).cumsum(0),
    "norm": lambda x: x(2, 3).norm(),
    "exp": lambda x: x(3).exp(),
    "log": lambda x: x(3).abs().log(),
    "pow": lambda x: x(3) ** 2,
    "reciprocal": lambda x: x(3).reciprocal(),
    "softplus": lambda x: F.softplus(x(3)),
    "logsumexp": lambda x: x(3).logsumexp(0),
    "cosine_similarity": lambda x: F.cosine_similarity(x(2, 3), x(2, 3)),
    "interpolate": lambda x: F.interpolate(x(1, 1, 4), scale_factor=2),
}


def mixed(device: str) -> Any:
    """Tensors whose dtypes take turns."""
    count = 0

    def make(*shape: int) -> tj.Tensor:
        nonlocal count
        count += 1
        return some(*shape, device=device).to(HALF if count % 2 else FULL)

    return make


def each_dtype(device: str) -> list[Any]:
    return [lambda *s: some(*s, device=device), lambda *s: some(*s, device=device).to(HALF), mixed(device)]


@pytest.mark.parametrize("name", LOW)
def test_low_precision(name: str) -> None:
    for make in each_dtype("cpu"):
        with tj.autocast("cpu"):
            assert LOW[name](make).dtype is HALF


@pytest.mark.parametrize("name", CPU_FULL)
def test_float32(name: str) -> None:
    for make in each_dtype("cpu"):
        with tj.autocast("cpu"):
            assert CPU_FULL[name](make).dtype is FULL


@pytest.mark.parametrize("name", CUDA_LOW)
def test_low_precision_on_a_gpu(name: str, gpu: None) -> None:
    for make in each_dtype("cuda"):
        with tj.autocast("cuda", HALF):
            assert CUDA_LOW[name](make).dtype is HALF


@pytest.mark.parametrize("name", CUDA_FULL)
def test_float32_on_a_gpu(name: str, gpu: None) -> None:
    for make in each_dtype("cuda"):
        with tj.autocast("cuda", HALF):
            assert CUDA_FULL[name](make).dtype is FULL


def test_widest(gpu: None) -> None:
    a, b = some(3), some(3).to(HALF)
    with tj.autocast("cpu"):
        assert tj.cat([a, b]).dtype is FULL
        assert tj.stack([b, b]).dtype is HALF
        assert a.index_copy(0, tj.tensor([1]), b[:1]).dtype is FULL
    a, b = a.cuda(), b.cuda()
    with tj.autocast("cuda", HALF):
        assert tj.dot(a, b).dtype is FULL
        assert tj.dot(b, b).dtype is HALF
        assert tj.addcmul(b, b, a).dtype is FULL
        assert tj.tensordot(a, b, 1).dtype is FULL
        assert a.scatter_add(0, tj.tensor([1], device="cuda"), b[:1]).dtype is FULL


def test_what_is_on_no_list_is_left_alone() -> None:
    x, half = some(2, 3), some(2, 3).to(HALF)
    with tj.autocast("cpu"):
        assert (x + 1).dtype is FULL
        assert (x + half).dtype is FULL
        assert half.relu().dtype is HALF
        assert half.softmax(-1).dtype is HALF  # in PyTorch's list for GPUs only
        assert F.layer_norm(half, (3,), tj.ones(3), tj.zeros(3)).dtype is HALF
        assert F.embedding(tj.tensor([0]), x).dtype is FULL
        assert tj.mv(x, some(3)).dtype is FULL
        assert (x.double() @ x.double().T).dtype is tj.float64
        assert (tj.ones(2, 3, dtype=tj.int64) @ tj.ones(3, 2, dtype=tj.int64)).dtype is tj.int64


def test_in_place_and_out_are_left_alone() -> None:
    x, y = some(2, 3), tj.zeros(2, 2)
    with tj.autocast("cpu"):
        y.addmm_(x, x.T)
        assert_matmul(y, x, x.T)
        out = tj.empty(2, 2)
        assert tj.mm(x, x.T, out=out) is out
        assert_matmul(out, x, x.T)


def test_a_dtype_that_is_asked_for_is_given(gpu: None) -> None:
    x = some(3, device="cuda").to(HALF)
    with tj.autocast("cuda", HALF):
        assert x.softmax(0, dtype=HALF).dtype is HALF
        assert x.cumsum(0, dtype=tj.float64).dtype is tj.float64


def test_unsafe_on_a_gpu(gpu: None) -> None:
    x = some(3, device="cuda").sigmoid()
    with tj.autocast("cuda"), pytest.raises(RuntimeError, match="binary_cross_entropy is unsafe to autocast"):
        F.binary_cross_entropy(x, x)
    assert F.binary_cross_entropy(x, x).dtype is FULL


# ---- the context


def test_values_are_rounded_once() -> None:
    a, b = some(20, 30), some(30, 10)
    with tj.autocast("cpu"):
        found = a @ b
    expected = (a.to(HALF).float() @ b.to(HALF).float()).to(HALF)
    np.testing.assert_array_equal(found.float().numpy(), expected.float().numpy())


def test_nesting() -> None:
    x = some(2, 2)
    with tj.autocast("cpu"):
        with tj.autocast("cpu", enabled=False):
            assert (x @ x).dtype is FULL
            with pytest.raises(RuntimeError, match="same dtype"):
                x @ x.to(HALF)
            with tj.autocast("cpu", dtype=tj.float16):
                assert (x @ x).dtype is tj.float16
                assert tj.get_autocast_dtype("cpu") is tj.float16
        assert (x @ x).dtype is HALF
    assert (x @ x).dtype is FULL
    assert tj.eager.core.tape.node.local.state.handler is None


def test_each_kind_of_device_has_its_own(gpu: None) -> None:
    x = some(2, 2)
    with tj.autocast("cuda"):
        assert (x @ x).dtype is FULL
        assert (x.cuda() @ x.cuda()).dtype is tj.float16
        assert (tj.is_autocast_enabled("cuda"), tj.is_autocast_enabled(), tj.is_autocast_enabled("cpu")) == (True, True, False)
        with tj.autocast("cpu"):
            assert (x @ x).dtype is HALF
            assert (x.cuda() @ x.cuda()).dtype is tj.float16
    with tj.autocast(dtype=HALF):  # of all kinds
        assert (x @ x).dtype is HALF
        assert (x.cuda() @ x.cuda()).dtype is HALF


def test_decorator() -> None:
    @tj.autocast("cpu")
    def product(x: tj.Tensor) -> tj.Tensor:
        """x times x."""
        return x @ x

    assert product(some(2, 2)).dtype is HALF
    assert product.__doc__ == "x times x."
    with pytest.raises(TypeError, match="requires a callable, but got Tensor"):
        tj.autocast("cpu")(some(2))  # type: ignore[arg-type]


def test_an_exception_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), tj.autocast("cpu"):
        some(2, 2) @ some(2, 2)
        raise ZeroDivisionError
    assert not tj.is_autocast_enabled("cpu")
    with tj.autocast("cpu"):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            some(2, 3) @ some(2, 3)
        with pytest.raises(RuntimeError):
            tj.mm(some(2, 3), some(2, 3))
        assert (some(2, 2) @ some(2, 2)).dtype is HALF


def test_threads_have_their_own() -> None:
    found = []
    with tj.autocast("cpu"):
        thread = threading.Thread(target=lambda: found.append((some(2, 2) @ some(2, 2)).dtype))
        thread.start()
        thread.join()
    assert found == [FULL]


def test_bad_arguments() -> None:
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'tpu'"):
        tj.autocast("tpu")
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        tj.autocast(tj.device("cpu"))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="the target dtype is not supported. Disabling autocast"):
        context = tj.autocast("cpu", dtype=tj.float64)
    with context:
        assert (some(2, 2) @ some(2, 2)).dtype is FULL
    with pytest.warns(UserWarning, match=r"CUDA is not available\. Disabling"):
        tj.autocast("cuda")
    assert tj.amp.is_autocast_available("cpu")
    assert not tj.amp.is_autocast_available("tpu")


def test_old_names(gpu: None) -> None:
    with pytest.warns(FutureWarning, match=r"Please use `tapejit.amp.autocast\('cuda', args...\)`"):
        context = tj.cuda.amp.autocast()
    with context:
        assert (some(2, 2, device="cuda") @ some(2, 2, device="cuda")).dtype is tj.float16
    with pytest.warns(FutureWarning):
        assert tj.cuda.amp.GradScaler().is_enabled()


# ---- gradients


def network() -> nn.Module:
    tj.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))


def test_gradients_of_weights_are_float32() -> None:
    model, x, y = network(), some(8, 4), tj.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    F.cross_entropy(model(x), y).backward()
    exact = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with tj.autocast("cpu"):
        loss = F.cross_entropy(model(x), y)
        assert loss.dtype is FULL
        loss.backward()  # PyTorch advises against it here, but it works
    for p, g in zip(model.parameters(), exact, strict=True):
        assert p.grad.dtype is FULL
        np.testing.assert_allclose(p.grad.numpy(), g.numpy(), atol=0.05 * (g.abs().max().item() + 0.1))


def test_training() -> None:
    model = network()
    optimizer = tj.optim.AdamW(model.parameters(), lr=1e-2)
    x = some(64, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    for _ in range(60):
        with tj.autocast("cpu"):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_layers() -> None:
    x = some(2, 5, 8)
    for layer in (
        nn.LSTM(8, 4, batch_first=True),
        nn.GRU(8, 4, batch_first=True),
        nn.MultiheadAttention(8, 2, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ):
        for dtype in (FULL, HALF):
            given = x.to(dtype)
            with tj.autocast("cpu"):
                result = layer(given, given, given) if isinstance(layer, nn.MultiheadAttention) else layer(given)
            out = result[0] if isinstance(result, tuple) else result
            out.float().sum().backward()
            assert all(p.grad is None or p.grad.dtype is FULL for p in layer.parameters())


def test_recurrent_states_keep_their_dtype() -> None:
    """As on PyTorch's CPU: products are in low precision, and the state of a GRU or an LSTM cell stays what it was."""
    x = some(2, 5, 8)
    kinds = {nn.GRU: FULL, nn.RNN: HALF, nn.GRUCell: FULL, nn.LSTMCell: FULL, nn.RNNCell: HALF}
    for make, expected in kinds.items():
        layer = make(8, 4)
        given = x[0] if make.__name__.endswith("Cell") else x
        with tj.autocast("cpu"):
            found, low = layer(given), layer(given.to(HALF))
        exact = layer(given)
        for each in (found, low, exact):
            assert isinstance(each, tuple) == isinstance(exact, tuple)
        found, low, exact = (each[0] if isinstance(each, tuple) else each for each in (found, low, exact))
        assert found.dtype is expected and low.dtype is HALF
        np.testing.assert_allclose(found.detach().float().numpy(), exact.detach().numpy(), atol=0.02)
        found.float().sum().backward()
        assert all(p.grad.dtype is FULL for p in layer.parameters())


def test_second_derivatives() -> None:
    w = tj.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)
    x = tj.tensor([[1.0, 2.0]])
    with tj.autocast("cpu"):
        loss = ((x @ w).float() ** 3).sum()
        (first,) = tj.autograd.grad(loss, w, create_graph=True)
        (second,) = tj.autograd.grad(first.sum(), w)
    y = (x @ w).detach()
    np.testing.assert_allclose(first.detach().numpy(), (x.T @ (3 * y * y)).numpy(), rtol=0.02)
    np.testing.assert_allclose(second.numpy(), (x.T @ (6 * y * x.sum())).numpy(), rtol=0.02)


def test_weights_are_cast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = []
    real = rules.cast
    monkeypatch.setattr(rules, "cast", lambda x, d: count.append(x) or real(x, d))
    w, x = some(3, 3).requires_grad_(), some(2, 3)
    with tj.autocast("cpu"):
        for _ in range(4):
            x = F.linear(x, w)
    assert [t is w for t in count] == [False, True]  # the first x, the weight, and then nothing more
    x.float().sum().backward()
    assert w.grad is not None
    count.clear()
    with tj.autocast("cpu", cache_enabled=False):
        assert not tj.is_autocast_cache_enabled()
        for _ in range(4):
            x @ w
    assert len(count) == 4
    count.clear()
    with tj.autocast("cpu"):
        x @ w
        tj.clear_autocast_cache()
        x @ w
    assert len(count) == 2


def test_a_cached_weight_is_never_stale() -> None:
    w, x = tj.ones(2, 2, requires_grad=True), tj.ones(1, 2)
    with tj.autocast("cpu"):
        with tj.no_grad():
            x @ w
        y = x @ w  # the one cast without the tape will not do
        assert y.requires_grad
        with tj.no_grad():
            w.mul_(3)
        assert (x @ w)[0, 0].item() == 6
        w.data = tj.full((2, 2), 5.0)
        assert (x @ w)[0, 0].item() == 10


def test_custom_functions() -> None:
    class Product(tj.autograd.Function):
        @staticmethod
        @tj.amp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, a: tj.Tensor, b: tj.Tensor) -> tj.Tensor:
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @tj.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: tj.Tensor) -> Any:
            a, b = ctx.saved_tensors
            return g @ b.T, a.T @ g  # of two dtypes: only autocast makes this work

    class Exact(tj.autograd.Function):
        @staticmethod
        @tj.amp.custom_fwd(device_type="cpu", cast_inputs=FULL)
        def forward(ctx: Any, a: tj.Tensor) -> tj.Tensor:
            ctx.seen = a.dtype
            return a @ a

        @staticmethod
        @tj.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: tj.Tensor) -> Any:
            assert not tj.is_autocast_enabled("cpu")
            return g

    a = some(2, 2).requires_grad_()
    with tj.autocast("cpu"):
        y = Product.apply(a, a)
        assert y.dtype is HALF
        z = Exact.apply(y)
        assert z.dtype is FULL
    (y.float().sum() + z.sum()).backward()
    assert a.grad is not None
    assert a.grad.dtype is FULL
    assert Exact.apply(a.to(HALF)).dtype is HALF  # outside it is as if not decorated


def test_custom_functions_cast_inside_containers() -> None:
    """Lists, dicts and named tuples keep their class; float64 and integers stay."""

    @tj.amp.custom_fwd(device_type="cpu", cast_inputs=FULL)
    def forward(ctx: Any, *args: Any) -> Any:
        return args

    half, others = some(2).to(HALF), (some(2).double(), tj.arange(2))
    ctx = types.SimpleNamespace()
    with tj.autocast("cpu"):
        found, pair, rest = forward(ctx, [half, {"a": (half,)}], half.view(1, 2).max(1), others)
    assert found[0].dtype is FULL and found[1]["a"][0].dtype is FULL
    assert pair.values.dtype is FULL and pair.indices.dtype is tj.int64
    assert all(a is b for a, b in zip(rest, others, strict=True))


# ---- GradScaler


def scaled_step(scaler: Any, gradient: float, rate: float = 1.0) -> tuple[tj.Tensor, Any]:
    p = tj.ones(2, requires_grad=True)
    optimizer = tj.optim.SGD([p], lr=rate)
    scaler.scale((p * gradient).sum()).backward()
    scaler.step(optimizer)
    return p, optimizer


def test_scaled_gradients_give_the_same_step() -> None:
    scaler = tj.amp.GradScaler("cpu", init_scale=1024.0)
    p = tj.ones(2, requires_grad=True)
    optimizer = tj.optim.SGD([p], lr=1.0)
    loss = scaler.scale((p * 0.25).sum())
    assert loss.item() == 0.5 * 1024
    loss.backward()
    assert p.grad[0].item() == 256
    scaler.step(optimizer)
    assert p.grad[0].item() == 0.25
    scaler.update()
    np.testing.assert_array_equal(p.detach().numpy(), [0.75, 0.75])


def test_overflow_leaves_the_step_out() -> None:
    scaler = tj.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    p, _ = scaled_step(scaler, float("inf"))
    scaler.update()
    assert p[0].item() == 1.0
    assert scaler.get_scale() == 4.0
    for expected in (4.0, 8.0, 8.0, 16.0):
        p, _ = scaled_step(scaler, 0.5)
        scaler.update()
        assert p[0].item() == 0.5
        assert scaler.get_scale() == expected
    p, _ = scaled_step(scaler, float("nan"))
    scaler.update()
    assert p[0].item() == 1.0
    assert scaler.get_scale() == 8.0


def test_unscale_before_clipping() -> None:
    scaler = tj.amp.GradScaler("cpu", init_scale=64.0)
    p = tj.ones(4, requires_grad=True)
    optimizer = tj.optim.SGD([p], lr=1.0)
    scaler.scale((p * 3).sum()).backward()
    scaler.unscale_(optimizer)
    assert p.grad[0].item() == 3.0
    nn.utils.clip_grad_norm_([p], 1.0)
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_allclose(p.detach().numpy(), np.full(4, 0.5), rtol=1e-5)


def test_several_losses_and_large_gradients() -> None:
    scaler = tj.amp.GradScaler("cpu", init_scale=2.0)
    assert [t.item() for t in scaler.scale([tj.tensor(1.0), tj.tensor(2.0)])] == [2.0, 4.0]
    assert isinstance(scaler.scale((tj.tensor(1.0),)), tuple)
    assert [t.item() for t in scaler.scale(iter([tj.tensor(3.0)]))] == [6.0]
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(1.0)
    p = tj.ones(200, 200, requires_grad=True)  # several blocks, the trouble in the last
    p.grad = tj.ones(200, 200)
    p.grad[-1, -1] = float("inf")
    optimizer = tj.optim.SGD([p], lr=1.0)
    assert scaler.step(optimizer) is None
    assert p.detach().max().item() == 1.0
    assert scaler.scale(tj.tensor(1.0, dtype=tj.float16)).dtype is FULL


def test_misuse() -> None:
    scaler = tj.amp.GradScaler("cpu")
    p = tj.ones(2, requires_grad=True)
    optimizer = tj.optim.SGD([p])
    with pytest.raises(AssertionError, match="Attempted step but _scale is None"):
        scaler.step(optimizer)
    scaler.scale(p.sum()).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning"):
        pickle.dumps(scaler)
    scaler.update()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: 0)
    p.grad = None
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    half = tj.ones(2, dtype=tj.float16, requires_grad=True)
    half.grad = tj.ones(2, dtype=tj.float16)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(tj.optim.SGD([half]))
    with pytest.raises(AssertionError, match=r"The growth factor must be > 1\.0"):
        tj.amp.GradScaler("cpu", growth_factor=1.0)
    with pytest.raises(AssertionError, match=r"The backoff factor must be < 1\.0"):
        tj.amp.GradScaler("cpu", backoff_factor=1.0)


def test_disabled() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = tj.amp.GradScaler()
    for s in (scaler, tj.amp.GradScaler("cpu", enabled=False)):
        p, _ = scaled_step(s, 0.5)
        s.update()
        assert p[0].item() == 0.5
        assert s.get_scale() == 1.0
        assert s.state_dict() == {}
        s.load_state_dict({})
        assert not s.is_enabled()


def test_state_of_a_scaler() -> None:
    scaler = tj.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    scaled_step(scaler, 1.0)
    scaler.update()
    saved = scaler.state_dict()
    expected = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 1}
    assert saved == expected
    fresh = tj.amp.GradScaler("cpu")
    fresh.load_state_dict(saved)
    for other in (fresh, pickle.loads(pickle.dumps(scaler))):
        for _ in range(2):
            scaled_step(other, 1.0)
            other.update()
        assert other.get_scale() == 16.0
    with pytest.raises(RuntimeError, match="The source state dict is empty"):
        fresh.load_state_dict({})
    scaler.update(32.0)
    assert scaler.get_scale() == 32.0
    scaler.update(tj.tensor(4.0))
    assert scaler.get_scale() == 4.0
    scaler.set_growth_factor(3.0)
    scaler.set_backoff_factor(0.1)
    scaler.set_growth_interval(7)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (3.0, 0.1, 7)


def test_scaler_on_a_gpu(gpu: None) -> None:
    scaler = tj.amp.GradScaler(init_scale=4.0)
    p = tj.ones(3, device="cuda", requires_grad=True)
    optimizer = tj.optim.AdamW([p], lr=0.5, weight_decay=0)
    with tj.autocast("cuda"):
        loss = (p * p).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_allclose(p.detach().cpu().numpy(), np.full(3, 0.5), rtol=1e-5)
