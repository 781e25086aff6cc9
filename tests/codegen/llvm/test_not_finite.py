"""Ops of numbers that are not finite: native code gives NaN and infinities where eager execution does, and nowhere else.

Each op is called with NaN, infinities and zeros among its values. A composite has a kernel and a meaning in other ops, and they
have to agree about them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support import harness, shadow
from tapejit.codegen.llvm.runtime import jit

NUMBERS = (np.nan, np.inf, -np.inf, 0.0, 1.0)
# Where sums of other orders, or zeros that take part in them or do not, make NaN of infinities: see `docs/codegen.md`.
OTHERWISE = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cdist", "scaled_dot_product_attention"}
OTHERWISE |= {"multi_head_attention_forward"}
# And of gradients: norms, which are made of other sums, and running products.
SLOPES = OTHERWISE | {"conv1d", "conv2d", "conv3d", "cumprod"}
SLOPES |= {"layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        add = jit.Batch.add
        patch.setattr(jit.Batch, "add", lambda batch, text, opt=0, now=True: add(batch, text, 0, now))
        yield


def arrays(case: harness.Case) -> list[Any]:
    """The values of a sample, and in the place of every fourth another number."""
    random, found = case.random("not finite"), []
    for given in case.arrays():
        array = np.array(given)
        if array.dtype.kind == "f" and array.size:
            some = random.choice(array.size, max(1, array.size // 4), replace=False)
            array.reshape(-1)[some] = random.choice(NUMBERS, len(some))
        found.append(array)
    return found


def call(case: harness.Case, given: list[Any], slopes: bool) -> Any:
    return harness.gradients(case, given) if slopes else case.call(given)


def runs(case: harness.Case, given: list[Any], slopes: bool) -> bool:
    """True if the op takes such numbers: probabilities and matrices to be solved may not be NaN."""
    try:
        call(case, given, slopes)
    except (RuntimeError, ValueError, np.linalg.LinAlgError):
        return False
    return True


@pytest.mark.parametrize("slopes", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("part", range(4))
def test_every_op(monkeypatch: Any, part: int, slopes: bool) -> None:
    left = SLOPES if slopes else OTHERWISE
    cases = [c for c in harness.ALL if c.key.split(".")[-1] not in left and (c.differentiable if slopes else c.specs)]
    cases = cases[part::4]
    with shadow.watching(monkeypatch) as seen:
        seen.tolerance = 50
        given = [(c, harness.tensors(c, arrays(c), tj.float32, grad=slopes)) for c in cases]
        given = [(c, x) for c, x in given if runs(c, x, slopes)]
        assert len(given) > len(cases) * 0.9
        for i in range(0, len(given), 60):
            compiled = tj.compile(lambda some=given[i : i + 60]: [call(c, x, slopes) for c, x in some])
            for _ in range(2):
                compiled()
