"""Programs in half precision: native code against reference programs, no widened copies of operands, and other consequences.

Programs run under `shadow`, as in `test_programs.py`. What kernels do by themselves is in `test_gemm_halves.py`,
`test_conv.py` and `test_attention.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from tapejit import nn
from tapejit.codegen.llvm.runtime import jit
from tapejit.tracer.execute import reference_program as program

HALVES = pytest.mark.parametrize("dtype", [tj.bfloat16, tj.float16])
SIZES = [1, 2, 7, 15, 16, 17, 33, 64]


@pytest.fixture(autouse=True)
def seen(monkeypatch: Any, tmp_path_factory: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed also runs natively, and no op is called as it is."""
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "halves"))
    add = jit.Batch.add
    monkeypatch.setattr(jit.Batch, "add", lambda batch, text, opt=0, now=True: add(batch, text, 0, now))
    found = shadow.Seen()
    monkeypatch.setattr(program, "make_program", shadow.shadowed(found))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about infinities
        yield found
    assert found.runs and not found.left and not found.opaque()


def random(*shape: int, dtype: Any, grad: bool = False) -> Any:
    made = np.random.default_rng(sum(shape)).standard_normal(shape)
    return tj.tensor(made, dtype=tj.float32).to(dtype).requires_grad_(grad)


def run(function: Callable[[], Any], calls: int = 3) -> Any:
    compiled = tj.compile(function)
    for _ in range(calls):
        found = compiled()
    return found


def contracted(seen: shadow.Seen) -> set[str]:
    """The dtypes of what kernels of matmuls, convolutions and attention read, but for log-sum-exp."""
    found = set()
    for native in seen.programs:
        for node in (launch.node for launch in native.launches if launch.node is not None):
            given = node.values()[:4] if node.op.name == "attention_backward" else node.values()
            found |= {native.prepared.forms[x].dtype.name for x in given}
    return found


@HALVES
def test_matmuls_of_many_shapes(seen: shadow.Seen, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(n) for n in rng.choice(SIZES, 3)) for _ in range(24)]
    given = [(random(m, k, dtype=dtype), random(k, n, dtype=dtype)) for m, n, k in shapes]
    given += [(random(k, m, dtype=dtype).T, random(n, k, dtype=dtype).T) for m, n, k in shapes]
    run(lambda: [a @ b for a, b in given])


@HALVES
def test_matmuls_with_bias_and_gradients(seen: shadow.Seen, dtype: Any) -> None:
    for rows, columns, depth in [(1, 5, 3), (9, 33, 17), (40, 1, 64), (70, 48, 31)]:
        x, w = random(rows, depth, dtype=dtype, grad=True), random(columns, depth, dtype=dtype, grad=True)
        b = random(columns, dtype=dtype, grad=True)

        def step(x: Any = x, w: Any = w, b: Any = b) -> Any:
            x.grad = w.grad = b.grad = None
            out = F.gelu(F.linear(x, w, b))
            (out * out).mean().backward()
            return out, x.grad, w.grad, b.grad

        run(step)
    assert contracted(seen) == {dtype.numpy.name}


@HALVES
def test_batches_and_broadcasting(seen: shadow.Seen, dtype: Any) -> None:
    a, b, c = random(3, 2, 17, 9, dtype=dtype), random(2, 9, 33, dtype=dtype), random(9, 21, dtype=dtype)
    run(lambda: (a @ b, a @ c, a.mT @ a, (a[..., ::2] @ b[:, ::2]), tj.einsum("xyij,yjk->xik", a, b)))


@HALVES
def test_convolutions(seen: shadow.Seen, dtype: Any) -> None:
    cases: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((3, 4, 9, 11), (6, 4, 3, 3), {"stride": (1, 2), "padding": 1}),
        ((2, 3, 8, 8), (20, 3, 3, 3), {"padding": 1}),
        ((2, 6, 7, 8), (8, 3, 1, 1), {"groups": 2}),
        ((1, 8, 6, 6), (8, 1, 3, 3), {"groups": 8, "padding": 2, "dilation": 2}),
        ((2, 5, 33), (4, 5, 4), {"stride": 2}),
    ]
    for size, kernel, options in cases:
        x, w = random(*size, dtype=dtype, grad=True), random(*kernel, dtype=dtype, grad=True)
        b = random(kernel[0], dtype=dtype, grad=True)
        call = F.conv2d if len(size) == 4 else F.conv1d

        def step(x: Any = x, w: Any = w, b: Any = b, call: Any = call, options: Any = options) -> Any:
            x.grad = w.grad = b.grad = None
            out = F.relu(call(x, w, b, **options))
            (out * out).mean().backward()
            return out, x.grad, w.grad, b.grad

        run(step)
    assert contracted(seen) == {dtype.numpy.name}


@HALVES
def test_transposed_and_deeper_convolutions(seen: shadow.Seen, dtype: Any) -> None:
    x, w = random(2, 6, 7, 5, dtype=dtype, grad=True), random(6, 3, 3, 3, dtype=dtype, grad=True)
    volume, kernel = random(2, 3, 4, 5, 6, dtype=dtype, grad=True), random(5, 3, 2, 3, 3, dtype=dtype, grad=True)

    def step() -> Any:
        x.grad = w.grad = volume.grad = kernel.grad = None
        first, second = F.conv_transpose2d(x, w, stride=2, padding=1), F.conv3d(volume, kernel, padding=(0, 1, 1))
        ((first * first).mean() + (second * second).mean()).backward()
        return first, second, x.grad, w.grad, volume.grad, kernel.grad

    run(step)
    assert contracted(seen) == {dtype.numpy.name}


@HALVES
def test_recurrent_networks_under_autocast(seen: shadow.Seen, dtype: Any) -> None:
    seen.tolerance, seen.zero = 1000, 0.1  # as below
    tj.manual_seed(0)
    model, x = nn.GRU(5, 9, batch_first=True), random(3, 4, 5, dtype=tj.float32)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1)

    def step() -> Any:
        with tj.autocast("cpu", dtype=dtype):
            loss = model(x)[0].float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run(step, calls=4)


@HALVES
@pytest.mark.parametrize("masked", [False, True])
def test_attention(seen: shadow.Seen, dtype: Any, masked: bool) -> None:
    seen.zero = 1e-2  # slopes of scores cancel out
    for length, width in [(1, 1), (7, 5), (33, 16), (70, 17)]:
        joined = random(2, length, 3, 2, width, dtype=dtype, grad=True)
        mask = random(length, length, dtype=dtype) if masked else None

        def step(joined: Any = joined, mask: Any = mask) -> Any:
            joined.grad = None
            q, k, v = (x.transpose(1, 2) for x in joined.unbind(2))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            (out * out).mean().backward()
            return out, joined.grad

        run(step)
    assert contracted(seen) == {dtype.numpy.name}


def test_matmuls_of_floats_that_were_halves(seen: shadow.Seen) -> None:
    """They read the halves, and their results are not rounded."""
    a, b = random(40, 33, dtype=tj.bfloat16), random(33, 50, dtype=tj.bfloat16)
    out = run(lambda: a.float() @ b.float())
    run(lambda: a.float().T.clone() @ (a.float() @ b.float()).bfloat16().float()[:, 1:])
    assert out.dtype == tj.float32 and contracted(seen) == {"bfloat16"}
    expected = a.float().numpy().astype(np.float64) @ b.float().numpy().astype(np.float64)
    np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-4)


def test_longer_copies_that_others_read_stay(seen: shadow.Seen) -> None:
    a, b, c = random(40, 33, dtype=tj.bfloat16), random(33, 50, dtype=tj.float16), random(40, 33, dtype=tj.float32)

    def function() -> Any:
        long = a.float()
        return long, long @ b.float(), long.T @ c, long.mT @ long, long.double() @ c.double().T

    run(function)
    assert contracted(seen) == {"bfloat16", "float32", "float64"}


@HALVES
@pytest.mark.parametrize("size", [20, 300])
def test_halves_that_are_overwritten_before_the_matmul(seen: shadow.Seen, dtype: Any, size: int) -> None:
    """The matmul reads halves in the place of a copy that was made of them before."""
    a, b, c = random(size, 33, dtype=dtype), random(33, size, dtype=dtype), random(size, 33, dtype=dtype)

    def function() -> Any:
        first, second, third = a.float(), b.float().T, c.T.float()
        a.mul_(0.5)
        b.add_(a[:, :1].sum())
        c.zero_()
        found = first @ second.T
        a.add_(found.to(dtype)[:, :1])
        return found, third @ found

    run(function, calls=5)


@HALVES
def test_matmuls_without_elements(seen: shadow.Seen, dtype: Any) -> None:
    a, b, c = (tj.zeros(*shape, dtype=dtype) for shape in ((0, 5), (5, 3), (3, 0)))
    x, w = tj.zeros(0, 3, 8, 8, dtype=dtype), random(4, 3, 3, 3, dtype=dtype)
    run(lambda: (a @ b, b @ c, c @ a, c.float() @ a.float(), F.linear(c, c), F.conv2d(x, w)))
    assert seen.opaque() <= {"matmul", "conv"}
    seen.programs.clear()


@HALVES
def test_numbers_that_are_not_finite(seen: shadow.Seen, dtype: Any) -> None:
    a, b = random(20, 33, dtype=dtype), random(33, 40, dtype=dtype)
    x, w = random(2, 3, 8, 8, dtype=dtype), random(16, 3, 3, 3, dtype=dtype)
    a[3, 32], a[4, 0], b[5, 39], x[0, 2, 7, 7], x[1, 0, 3, 3] = np.nan, np.inf, -np.inf, np.nan, np.inf
    run(lambda: (a @ b, b.T @ a.T, a[:1] @ b, F.conv2d(x, w, padding=1)))


class Net(nn.Module):
    """Some of everything that contracts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = self.norm(F.gelu(self.conv(x)).flatten(2).transpose(1, 2))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.out(x.mean(1))


@HALVES
def test_steps_of_training_under_autocast(seen: shadow.Seen, dtype: Any) -> None:
    seen.tolerance, seen.zero = (
        1000,
        0.1,
    )  # gradients in float32 are rounded to halves on their way: one may round the other way
    tj.manual_seed(0)
    model = Net()
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = random(4, 3, 6, 6, dtype=tj.float32), tj.arange(4) % 5

    def step() -> Any:
        with tj.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run(step, calls=5)
    assert contracted(seen) == {dtype.numpy.name}


def test_the_number_of_threads_changes_no_bit() -> None:
    a, b = random(300, 257, dtype=tj.bfloat16), random(257, 190, dtype=tj.bfloat16)
    x, w = random(9, 6, 14, 14, dtype=tj.bfloat16), random(24, 6, 3, 3, dtype=tj.bfloat16)
    compiled = tj.compile(lambda: (a @ b, F.conv2d(x, w, padding=1)))
    before, found = tj.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 1):
            tj.set_num_threads(threads)
            for _ in range(3):
                found.append([t.view(tj.int16).numpy().tobytes() for t in compiled()])
    finally:
        tj.set_num_threads(before)
    assert all(some == found[2] for some in found[2:])


@HALVES
def test_doubles_are_rounded_once(seen: shadow.Seen, dtype: Any) -> None:
    """A number next to a tie in float64 is the tie itself in float32."""
    seen.exact = True
    rng = np.random.default_rng(0)
    ties = (1 + (2 * rng.integers(0, 1 << 10, 200) + 1) * 2.0**-11) * 2.0 ** rng.integers(-26, 17, 200)
    near = np.concatenate([ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), [np.nan, np.inf, 1e300, 1e-300, 65519.9999999]])
    x = tj.from_numpy(np.concatenate([near, -near]))
    run(lambda: [x.to(dtype), x[3].to(dtype), x.to(tj.float32).to(dtype)])


@HALVES
def test_signs_that_are_copied_in_double_precision(dtype: Any) -> None:
    """LLVM would round the sign to a half as well, which is a call of a library that there may not be."""
    x, h = tj.from_numpy(np.linspace(-3, 3, 21)), random(21, dtype=dtype)
    run(
        lambda: [
            x[4].tanh() * h,
            x.tanh().to(dtype),
            tj.copysign(x, x.flip(0)).to(dtype),
            x.erf().to(dtype),
            x[:1].sinh().to(dtype),
        ]
    )
