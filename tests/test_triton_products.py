"""Products of matrices as Triton kernels, with what follows them: interpreted, they do what plain programs do; and they compile
for devices that are not here, to instructions of the matrix units.

Programs run under `shadow`: twice from the same memory, plainly and by kernels. Nothing here has run on a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import shadow
import tapejit as tj
import tapejit.nn.functional as F
from tapejit.tracer import program
from test_native import run, values

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

import interpreted

MAKE = program.make_program
SIZES = [(1, 1, 1), (1, 40, 70), (33, 1, 17), (17, 65, 1), (16, 16, 16), (31, 33, 64), (64, 65, 129), (129, 63, 31)]


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels."""
    found = shadow.Seen()
    found.tolerance = 0.5  # float32 to 1e-5
    monkeypatch.setattr(program, "make_program", interpreted.shadowed(found, shadow.both, MAKE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about infinities
        yield found
    assert found.runs and any(x for p in found.programs for x in p.products)


def tensor(*shape: int) -> Any:
    return tj.from_numpy(values(shape))


def test_shapes(seen: Any) -> None:
    given = [(tensor(m, k), tensor(k, n)) for m, n, k in SIZES]
    run(lambda: [a @ b for a, b in given])


def test_what_follows_is_part_of_the_kernel(seen: Any) -> None:
    x, w, bias, rest = tensor(33, 40), tensor(70, 40), tensor(70), tensor(33, 70)
    run(lambda: F.dropout(F.gelu(F.linear(x, w, bias)), 0.3) + rest)
