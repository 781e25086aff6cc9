"""Attention, scans and sums in a fixed order on a GPU: compiled programs equal eager execution, on the stand-in and on a real
device where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F

pytest.importorskip("triton", reason="Triton has no wheel for this platform", exc_type=ImportError)

from tapejit.codegen.triton.runtime.launcher import OP

from .test_compile import gpu as gpu
from .test_compile import numbers, programs, same


def only_kernels(compiled: Any) -> None:
    """No op is called as it is: what is tested here has kernels of its own."""
    assert not any(kind == OP for p in programs(compiled) for kind, _ in p.executable.plan.order)


def test_attention() -> None:
    def script(compile: Any) -> list[Any]:
        x = numbers(2, 24, 4 * 48).to(tj.bfloat16).requires_grad_()

        @compile
        def step() -> Any:
            q, k, v = (x[..., i : i + n].unflatten(-1, (-1, 16)).transpose(1, 2) for i, n in ((0, 64), (64, 32), (96, 32)))
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return [found.float(), *[t.float() for t in tj.autograd.grad((found * found.detach()).sum(), [x])]]

        return [y for _ in range(4) for y in step()]

    only_kernels(same(script, 3e-2, 3e-2))


def test_scans() -> None:
    def script(compile: Any) -> list[Any]:
        x = numbers(3, 70).requires_grad_()

        @compile
        def step() -> Any:
            found = [x.cumsum(1), x.cumsum(0), x.logcumsumexp(1), *x.cummax(1)]
            return [*found, *tj.autograd.grad(sum((y.cos()).sum() for y in found[:4]), [x])]

        return [y for _ in range(4) for y in step()]

    only_kernels(same(script))


def test_sums_in_a_fixed_order() -> None:
    def script(compile: Any) -> list[Any]:
        table = numbers(9, 20).requires_grad_()
        index = tj.from_numpy(np.random.default_rng(0).integers(0, 9, 40)).to("cuda")

        @compile
        def step() -> Any:
            return tj.autograd.grad(F.embedding(index, table).cos().sum(), [table])

        return [y for _ in range(4) for y in step()]

    tj.use_deterministic_algorithms(True)
    try:
        only_kernels(same(script, 1e-4, 1e-4))
    finally:
        tj.use_deterministic_algorithms(False)
