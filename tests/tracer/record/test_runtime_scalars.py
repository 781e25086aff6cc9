"""Numbers that ops are given and that differ from call to call: they are runtime scalars, not other paths, in gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.scripts import batch
from support.soundness_harness import both

CALLS = 24

FUNCTIONS: dict[str, Callable[[Any, int], Any]] = {
    "clamp": lambda x, i: x.clamp(-0.05 * i, 0.1 * i),
    "clamp by ints": lambda x, i: (x * 9).clamp(-i, i),
    "clamp from below": lambda x, i: x.clamp(min=0.1 * i - 1),
    "clamp from above": lambda x, i: x.clamp_max(0.1 * i - 1),
    "clamp in place": lambda x, i: (x * 2).clamp_(-0.05 * i, 0.1 * i),
    "hardtanh": lambda x, i: F.hardtanh(x, -0.1 * i - 0.1, 0.1 * i),
    "hardtanh in place": lambda x, i: F.hardtanh_(x * 2, -0.1 * i - 0.1, 0.1 * i),
    "leaky_relu": lambda x, i: F.leaky_relu(x, 0.1 * i - 0.5),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, 0.5 * i),
    "full": lambda x, i: x * tj.full((5,), 0.5 * i),
    "where": lambda x, i: tj.where(x > 0.1 * i, x, 0.5 * i),
    "dropout": lambda x, i: F.dropout(x, 0.1 + i / 50),
    "threshold": lambda x, i: F.threshold(x, 0.1 * i, 0.0),
    "softmax with a temperature": lambda x, i: F.softmax(x / (i + 1.0), -1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_path(name: str) -> None:
    def script(compile: Any, note: Any) -> None:
        w = batch(1, 8, 5, requires_grad=True)

        @compile
        def f(x: Any, i: int) -> Any:
            w.grad = None
            y = FUNCTIONS[name](w * x, i)
            y.square().sum().backward()
            return y

        for i in range(1, CALLS):
            note(f(batch(i, 8, 5), i), w.grad)

    f = both(script, replayed=CALLS - 4, divergences=0)
    assert len(f.traces) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_native_code(name: str, dtype: str) -> None:
    """The same numbers arrive in generated code."""
    w = batch(1, 8, 5).to(getattr(tj, dtype)).requires_grad_()

    def step(x: Any, i: int) -> Any:
        w.grad = None
        y = FUNCTIONS[name](w * x, i)
        y.square().sum().backward()
        return y, w.grad

    compiled = tj.compile(step, backend="llvm")
    for i in range(1, 9):
        x = batch(i, 8, 5).to(w.dtype)
        tj.manual_seed(i)
        expected = [t.detach().numpy() for t in step(x, i)]
        tj.manual_seed(i)
        for e, c in zip(expected, compiled(x, i), strict=True):
            np.testing.assert_allclose(c.detach().numpy(), e, rtol=2e-2 if dtype == "float16" else 2e-5, atol=1e-5)
    assert compiled.hits >= 5
    assert len(compiled.traces) == 1


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_limits_of_integers(dtype: str) -> None:
    """Negative ones wrap round where the dtype has none, larger ones than it has are refused: as in PyTorch."""
    x, unsigned = tj.arange(0, 40).to(getattr(tj, dtype)), dtype == "uint8"
    compiled = tj.compile(lambda i: (x + 1).clamp(10 - i, 20 + 30 * i), backend="llvm")
    for i in range(1, 8 if unsigned else 20):
        expected = np.clip(np.arange(1, 41), 10 - i, 20 + 30 * i)
        np.testing.assert_array_equal(compiled(i).numpy(), expected.astype(dtype))
    assert len(compiled.traces) == 1
    if unsigned:
        with pytest.raises(RuntimeError, match="value 260 cannot be converted to type uint8 without overflow"):
            compiled(8)
        low = tj.compile(lambda i: (x + 1).clamp(5 - i, 250), backend="llvm")
        for i in range(12):
            assert low(i).tolist() == np.clip(np.arange(1, 41), (5 - i) % 256, 250).tolist()
        assert len(low.traces) == 1
