"""From the op table to tests: every sample of every op as a call with values, and finite differences to judge gradients.

A `Case` is one sample of one op; `cases()` lists them for `pytest.mark.parametrize`. `arrays()` draws its values, the same
ones in every process because the seed is the op's name. `call()` runs a function on them.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.eager.arrays.op_samples import A, Sample
from tapejit.eager.core.dispatch import execute
from tapejit.eager.core.op import OPS, Op
from tapejit.eager.core.tape.node import local

from support.paths import TESTS

HALF = {"float16": tj.float16, "bfloat16": tj.bfloat16}


class Case:
    """One sample of one op."""

    def __init__(self, key: str, op: Op, index: int) -> None:
        self.key, self.op, self.index = key, op, index
        self.sample: Sample = op.samples[index]
        shown = re.sub(r" at 0x[0-9a-f]+", "", repr(self.sample)).replace(" ", "").replace("::", ":")
        self.id = f"{key}-{index}({shown[:60]})"

    @functools.cached_property
    def specs(self) -> list[A]:
        return list(specs_in((*self.sample.args, *self.sample.kwargs.values())))

    @functools.cached_property
    def differentiable(self) -> list[int]:
        """Arrays that want a gradient."""
        return [i for i, s in enumerate(self.specs) if s.kind == "float" and s.grad and self.sample.grad]

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.key}/{self.index}/{purpose}".encode()))

    def arrays(self) -> list[np.ndarray]:
        """The sample's values: floats in float64."""
        random = self.random("values")
        return [np.asarray(draw(spec, random)) for spec in self.specs]

    def call(self, values: list[Any], function: Any = None) -> Any:
        """The op, or another function with the same parameters, on these values in the places of the arrays."""
        remaining = iter(values)
        args = [filled(a, remaining) for a in self.sample.args]
        kwargs = {k: filled(v, remaining) for k, v in self.sample.kwargs.items()}
        seed = getattr(tj, "manual_seed", None)
        if seed is not None:
            seed(7)
        return (function or self.op.function)(*args, **kwargs)

    def __repr__(self) -> str:
        return self.id


def specs_in(value: Any) -> Iterator[A]:
    if isinstance(value, A):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from specs_in(v)


def filled(value: Any, remaining: Iterator[Any]) -> Any:
    """An argument with the next values in the places of its arrays."""
    if isinstance(value, A):
        return next(remaining)
    if type(value) in (tuple, list):
        return type(value)(filled(v, remaining) for v in value)
    return value


def draw(spec: A, random: np.random.Generator) -> Any:
    """Values for one array argument."""
    count = int(np.prod(spec.shape))
    if spec.kind == "bool":
        return random.random(spec.shape) < 0.5
    if spec.kind == "int":
        if spec.distinct:
            return random.choice(np.arange(spec.lo, spec.hi), count, replace=False).reshape(spec.shape)
        return random.integers(int(spec.lo), int(spec.hi), spec.shape)
    if spec.distinct:
        steps = np.arange(count) + random.uniform(0.3, 0.7, count)
        return random.permutation(spec.lo + (spec.hi - spec.lo) * steps / max(count, 1)).reshape(spec.shape)
    return random.uniform(spec.lo, spec.hi, spec.shape)


def cases(keep: Callable[[Case], bool] = lambda case: True) -> list[Any]:
    """The samples of all ops as parameters of a test, those that `keep` likes."""
    return [pytest.param(case, id=case.id) for case in ALL if keep(case)]


ALL = [Case(key, op, i) for key, op in OPS.items() for i in range(len(op.samples))]

# ---- tensors from arrays


def tensors(case: Case, arrays: list[np.ndarray], dtype: Any = None, grad: bool = False, device: Any = None) -> list[Any]:
    """The arrays as tensors, floats in `dtype`; with `grad` those that are differentiable ask for it."""
    found = []
    for i, array in enumerate(arrays):
        t = tj.from_numpy(array)
        if array.dtype.kind == "f" and dtype is not None:
            t = t.to(dtype)
        if device is not None:
            t = t.to(device)
        found.append(t.requires_grad_() if grad and i in case.differentiable else t)
    return found


def flat(result: Any) -> list[Any]:
    """Return an op's results as a flat list of tensors or Python values."""
    if isinstance(result, (tuple, list)):
        return [x for r in result for x in flat(r)]
    return [result]


def floats(result: Any) -> list[tj.Tensor]:
    return [t for t in flat(result) if isinstance(t, tj.Tensor) and t.is_floating_point()]


def value(x: Any) -> np.ndarray:
    """A tensor, array or number as a NumPy array; half precision as float32, which holds it exactly."""
    if isinstance(x, tj.Tensor):
        x = x.detach()
        x = (x.float() if x.dtype in HALF.values() else x).cpu().numpy()
    return np.asarray(x)


def assert_same(found: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Equal structure, shapes and values; NaN equals NaN."""
    a, b = flat(found), flat(expected)
    assert len(a) == len(b), f"{len(a)} results instead of {len(b)}"
    for x, y in zip(a, b, strict=True):
        if y is None:
            assert x is None
            continue
        x, y = value(x), value(y)
        assert x.shape == y.shape, f"the shape is {x.shape} instead of {y.shape}"
        if y.dtype.kind == "f" or x.dtype.kind == "f":
            scale = np.max(np.abs(y[np.isfinite(y)]), initial=1.0)
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol * scale)
        else:
            np.testing.assert_array_equal(x, y)


# ---- gradients


def weights_like(outputs: list[tj.Tensor], random: np.random.Generator) -> list[np.ndarray]:
    """Random numbers to multiply outputs by, so that their sum is one number that depends on all of them."""
    return [np.asarray(random.uniform(0.5, 1.5, t.shape) * random.choice([-1, 1], t.shape)) for t in outputs]


def projected(outputs: list[tj.Tensor], weights: list[np.ndarray]) -> tj.Tensor:
    """The weighted sum of all outputs."""
    total = None
    for t, w in zip(outputs, weights, strict=True):
        term = (t * tj.from_numpy(w).to(t.device).to(t.dtype)).sum()
        total = term if total is None else total + term
    assert total is not None, "the sample says it is differentiable but the op returned no floating-point tensor"
    return total


def gradients(case: Case, inputs: list[Any], create_graph: bool = False, function: Any = None) -> list[Any]:
    """The gradients of a random projection of the outputs, None where an input has no influence."""
    outputs = floats(case.call(inputs, function))
    total = projected(outputs, weights_like(outputs, case.random("weights")))
    wanted = [inputs[i] for i in case.differentiable]
    if not total.requires_grad:
        return [None] * len(wanted)
    return list(tj.autograd.grad(total, wanted, create_graph=create_graph, allow_unused=True))


Slope = tuple[Any, float, list[np.ndarray]]


def numerical(case: Case, function: Callable[[list[np.ndarray]], float], limit: int = 60) -> list[Slope]:
    """Central differences of a number in every direction that matters.

    Gives (name, slope, direction) for each element of the differentiable arrays; of large ones only for some elements, and
    for random directions through all of them.
    """
    arrays, random, step = case.arrays(), case.random("directions"), 1e-5
    places = [(i, j) for i in case.differentiable for j in np.ndindex(arrays[i].shape)]
    directions: list[tuple[Any, list[np.ndarray]]] = []
    if len(places) > limit:
        for k in range(2):
            direction = [random.uniform(-1, 1, arrays[i].shape) for i in case.differentiable]
            directions.append((f"direction {k}", direction))
        places = [places[k] for k in random.choice(len(places), limit // 2, replace=False)]
    for i, j in places:
        direction = [np.zeros(arrays[k].shape) for k in case.differentiable]
        direction[case.differentiable.index(i)][j] = 1
        directions.append(((i, j), direction))

    def moved(direction: list[np.ndarray], by: float) -> float:
        values = list(arrays)
        for i, d in zip(case.differentiable, direction, strict=True):
            values[i] = np.asarray(arrays[i] + by * d)
        return function(values)

    return [(name, (moved(d, step) - moved(d, -step)) / (2 * step), d) for name, d in directions]


def assert_slopes(found: list[Any], slopes: list[Slope], what: str) -> None:
    """Gradients agree with finite differences."""
    arrays = [None if g is None else value(g) for g in found]
    scale = max([1.0, *(abs(slope) for _, slope, _ in slopes)])
    for name, slope, direction in slopes:
        mine = sum(float((g * d).sum()) for g, d in zip(arrays, direction, strict=True) if g is not None)
        close = abs(mine - slope) <= 2e-5 * abs(slope) + 1e-6 * scale
        assert close, f"{what} at {name}: {mine} but finite differences say {slope}"


def execute_now(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any = None) -> Any:
    """Do what `apply` does when no handler is set."""
    return execute(op, inputs, attrs, out, local.state)


# ---- memory that is out of order

# Ops whose meaning depends on the memory layout.
LAYOUT = {"view": "refuses memory that is not in order", "as_strided": "is about the memory itself"}


def scatter(array: np.ndarray) -> np.ndarray:
    """The same values in memory that is out of order and has gaps."""
    if array.ndim == 0:
        return array
    wide = np.zeros((*array.shape[::-1], 2), array.dtype)
    found = wide[..., 1].T
    found[...] = array
    return found


# ---- oracles


def load_oracles() -> dict[str, Any]:
    """All `tests/oracles/*.py` together: a NumPy function for each op."""
    found: dict[str, Any] = {}
    for path in sorted((TESTS / "oracles").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"oracles_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        twice = found.keys() & module.ORACLES.keys()
        assert not twice, f"{path.name} repeats the oracles of {sorted(twice)}"
        found.update(module.ORACLES)
    return found


@functools.cache
def oracles() -> dict[str, Any]:
    return load_oracles()
