"""Programs that `test_targets.py` runs in processes of their own, with `TAPEJIT_CPU`: some of everything that is generated, on
a CPU that has less than this one. Each runs twice, as a reference program and natively (`shadow`); the last line says what it
was for.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.runtime import jit
from tapejit.tracer.execute import reference_program as program

from support import harness, shadow

EVERY = 9  # one op of so many


def random(*shape: int, dtype: Any = tj.float32, grad: bool = False) -> Any:
    made = np.random.default_rng(sum(shape)).standard_normal(shape)
    return tj.tensor(made, dtype=tj.float32).to(dtype).requires_grad_(grad)


def ops() -> Any:
    """A sample of the op table."""
    cases = list({case.key: case for case in harness.ALL}.values())[::EVERY]
    given = [harness.tensors(case, case.arrays(), tj.float32) for case in cases]
    return lambda: [case.call(x) for case, x in zip(cases, given, strict=True)]


def matmuls(dtype: Any) -> Any:
    a, b, c = random(19, 37, dtype=dtype), random(37, 45, dtype=dtype), random(2, 45, 3, dtype=dtype)
    bias = random(3, 1, dtype=dtype)
    return lambda: (a @ b @ c, b.T @ a.T, F.gelu(a @ b), a @ b @ c + F.pad(bias, (1, 1))[:1])


def convolution(dtype: Any) -> Any:
    x, w = random(3, 4, 9, 11, dtype=dtype, grad=True), random(6, 4, 3, 3, dtype=dtype, grad=True)

    def step() -> Any:
        x.grad = w.grad = None
        out = F.conv2d(x, w, stride=(1, 2), padding=1)
        out.sum().backward()
        return out, x.grad, w.grad

    return step


def attention(dtype: Any) -> Any:
    q, k, v = (random(2, 2, 21, n, dtype=dtype, grad=True) for n in (8, 8, 5))

    def step() -> Any:
        q.grad = k.grad = v.grad = None
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        (out * out).sum().backward()
        return out, q.grad, k.grad, v.grad

    return step


def training() -> Any:
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 33), nn.LayerNorm(33), nn.Tanh(), nn.Linear(33, 5))
    optimizer = tj.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = random(21, 10), tj.arange(21) % 5

    def step() -> Any:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def main() -> None:
    seen = shadow.Seen()
    program.make_program = shadow.shadowed(seen)  # type: ignore[assignment]
    add = jit.Batch.add
    jit.Batch.add = lambda batch, text, opt=0, now=True: add(batch, text, 0, now)  # type: ignore[method-assign, misc]
    warnings.simplefilter("ignore")  # NumPy's, about infinities
    halves = (tj.float32, tj.bfloat16, tj.float16)
    several = [make(dtype) for make in (matmuls, convolution, attention) for dtype in halves]
    for function in (ops(), *several, training()):
        compiled = tj.compile(function)
        for _ in range(4):
            compiled()
    print(seen.runs, len(seen.left), host())


main()
