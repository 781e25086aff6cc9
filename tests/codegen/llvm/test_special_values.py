"""Native code at the edges of floats: for each elementwise op of the op table, values and gradients have the bits of eager.

Which ops are elementwise is found out: each sample is run on a few elements at once and one by one. The inputs are all
combinations of zeros, infinities, NaN, subnormal numbers, extremes and a few ordinary numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.harness import ALL, Case, flat
from tapejit.tracer.tools.compare_speed import segments

# docs/codegen.md, "Accuracy": these are our own expansions, up to 2 units from the true value, where eager has NumPy's.
NAMES = (
    "acos acosh asin asinh atan atan2 atanh binary_cross_entropy binary_cross_entropy_with_logits celu cos cosh digamma elu "
    "erf erfc erfinv exp exp2 expm1 gaussian_nll_loss gelu hypot kl_div lgamma log log10 log1p log2 logaddexp logaddexp2 logit "
    "logsigmoid mish poisson_nll_loss polygamma pow selu sigmoid silu sin sinc sinh soft_margin_loss softplus tan tanh "
    "tanhshrink xlogy"
)
EXPANSIONS = set(NAMES.split())
UNITS = 8  # two from the true value here, four in NumPy, and a gradient has several factors
# Differences of these functions cancel: what was rounded is 1, or as large as the input, and not the result.
CANCELS = {
    "gelu": "1 + erf(x), 1 + tanh(x)",
    "tanh": "1 - tanh(x)^2",
    "tanhshrink": "x - tanh(x)",
    "sigmoid": "s (1 - s)",
    "silu": "s (1 - s)",
    "mish": "1 - tanh(...)^2",
    "expm1": "expm1(x) + 1 in the gradient",
    "kl_div": "log(target) - input",
    "poisson_nll_loss": "exp(input) - target input",
    "binary_cross_entropy_with_logits": "sigmoid(x) - target",
    "logit": "log(x) - log1p(-x)",
}
# (op, dtype): inputs at which eager and native differ, and why that is so.
ALLOWED: dict[tuple[str, str], tuple[float, str]] = {
    ("lgamma", "float64"): (-5e-324, "eager's reflection multiplies by pi, which has no precision among subnormal numbers"),
    **{
        (name, str(dtype)): (-float(np.finfo(dtype).smallest_subnormal), "eager halves x, and this one has no half")
        for name in ("elu", "selu", "celu")
        for dtype in ("float32", "float64")
    },
}
DOMAINS = {"binary_cross_entropy": (0.0, 1.0), "gaussian_nll_loss": (0.0, math.inf)}  # others are refused
OPAQUE = {"polygamma"}
# Of two zeros NumPy's loops return one or the other, depending on how many elements there are and on the CPU.
EITHER_ZERO = {"max", "maximum", "fmax", "min", "minimum", "fmin"}


def special(dtype: Any, count: int) -> np.ndarray:
    """Numbers at the edges, of both signs: fewer where `count` inputs are combined."""
    info = np.finfo(dtype)
    least, tiny, most = float(info.smallest_subnormal), float(info.tiny), float(info.max)
    numbers = [0.0, math.inf, math.nan, least, most, 1.0, 0.5, 3.0]
    if count == 1:
        numbers += [tiny, tiny * 0.75, float(info.eps), 6.0, 1.5, 2.0, 20.0, 88.0, 100.0, 200.0, 1e3]
    elif count == 3:
        numbers = [0.0, math.inf, math.nan, 1.0, 3.0]
    return np.array([s * x for x in numbers for s in (1, -1)], dtype)


def inputs(case: Case, dtype: Any) -> list[np.ndarray]:
    """All combinations of special numbers for the floats of a sample, and other arrays of the same length."""
    count = sum(s.kind == "float" for s in case.specs)
    numbers = special(dtype, count)
    if case.key in DOMAINS:
        low, high = DOMAINS[case.key]
        numbers = numbers[(numbers >= low) & (numbers <= high)]
    chosen = iter(np.array(list(itertools.product(numbers, repeat=count)), dtype).T.copy())
    size, random = len(numbers) ** count, np.random.default_rng(0)
    return [next(chosen) if s.kind == "float" else plain(s, size, random) for s in case.specs]


def plain(spec: Any, size: int, random: np.random.Generator) -> np.ndarray:
    if spec.kind == "bool":
        return random.random(size) < 0.5
    return random.integers(int(spec.lo), int(spec.hi), size) if spec.kind == "int" else random.uniform(spec.lo, spec.hi, size)


def is_elementwise(case: Case) -> bool:
    """True if a sample's op takes arrays of any one shape, and makes of each element what it makes of it alone."""
    if not 1 <= sum(s.kind == "float" for s in case.specs) <= 3:
        return False
    random = np.random.default_rng(0)
    arrays = [plain(s, 4, random) for s in case.specs]
    try:
        whole = flat(case.call([tj.from_numpy(a) for a in arrays]))
        parts = [flat(case.call([tj.from_numpy(a[k : k + 1].copy()) for a in arrays])) for k in range(4)]
        again = flat(case.call([tj.from_numpy(a) for a in arrays]))
    except Exception:
        return False
    if len(whole) != 1 or not isinstance(whole[0], tj.Tensor) or not whole[0].is_floating_point():
        return False
    if whole[0].shape != (4,) or any(part[0].shape != (1,) for part in parts):
        return False
    values = whole[0].tolist()
    return values == again[0].tolist() and values == [part[0].item() for part in parts]


ELEMENTWISE = [case for case in ALL if is_elementwise(case)]


def test_the_ops_are_found() -> None:
    """A change that hides ops from this file fails here."""
    names = {case.key for case in ELEMENTWISE}
    assert {"add", "relu", "hardtanh", "relu6", "hardsigmoid", "silu", "elu", "clamp", "where", "pow", "mse_loss"} <= names
    assert len(names) >= 120 and names >= EXPANSIONS | {name for name, _ in ALLOWED} | EITHER_ZERO


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Native code from the first call on."""
    before = tj.are_deterministic_algorithms_enabled()
    tj.use_deterministic_algorithms(True)
    yield
    tj.use_deterministic_algorithms(before)


def compare(name: str, function: Any, arrays: list[np.ndarray], wanted: list[int]) -> None:
    """Run eagerly and natively, forward and backward, and compare values and gradients to the bit, but for what is allowed."""
    floats = [a for a in arrays if a.dtype.kind == "f"]

    def step(g: tj.Tensor, *given: tj.Tensor) -> tj.Tensor:
        (y,) = flat(function(*given))
        if y.requires_grad:
            y.backward(g)
        return y  # type: ignore[no-any-return]

    with np.errstate(all="ignore"):
        expected = values_and_gradients(step, arrays, wanted)
        compiled = tj.compile(step, backend="llvm")
        for _ in range(3):  # recorded, and replayed
            found = values_and_gradients(compiled, arrays, wanted)
        assert all(s.native or s.status == "nothing to run" for s in segments(compiled))
        assert opaque(compiled) <= OPAQUE
        for a, b in zip(found, expected, strict=True):
            same = agreement(name, a, b, floats)
            wrong = [(*[x[k] for x in floats], a[k], b[k]) for k in np.flatnonzero(~same)]
            assert not wrong, f"inputs, native, eager: {wrong[:5]}"


def opaque(compiled: Any) -> set[str]:
    """The ops of which no code was made: their eager kernels are called, and there is nothing to compare."""
    steps = [x for s in segments(compiled) if s.native for x in zip(s.native.launches, s.native.made, strict=True)]
    return {launch.node.op.name for launch, made in steps if made is None}


def values_and_gradients(function: Any, arrays: list[np.ndarray], wanted: list[int]) -> list[np.ndarray]:
    given = [tj.from_numpy(a.copy()) for a in arrays]
    for i in wanted:
        given[i].requires_grad_()
    value = function(tj.from_numpy(np.resize(np.array([1, -1, 2.5], arrays[0].dtype), arrays[0].shape)), *given)
    gradients = [given[i].grad for i in wanted]
    return [value.detach().numpy(), *[np.zeros(0) if g is None else g.numpy() for g in gradients]]


def agreement(name: str, a: np.ndarray, b: np.ndarray, floats: list[np.ndarray]) -> np.ndarray:
    """Tell of each element whether native code and eager execution agree as they should."""
    assert a.shape == b.shape and a.dtype == b.dtype
    same = (a.view(f"i{a.itemsize}") == b.view(f"i{b.itemsize}")) | (np.isnan(a) & np.isnan(b))
    if not a.size:
        return same
    if name in EXPANSIONS:
        close = (np.signbit(a) == np.signbit(b)) & ((a == 0) == (b == 0)) & (units(a, b) <= UNITS)
        if name in CANCELS:
            close |= np.abs(a - b) <= 4 * np.finfo(a.dtype).eps * (sum(np.abs(x) for x in floats) + 1)
        same |= np.isfinite(a) & np.isfinite(b) & close
    if name in EITHER_ZERO:
        same |= (a == 0) & (b == 0)
    if (name, a.dtype.name) in ALLOWED:
        same |= floats[0] == ALLOWED[name, a.dtype.name][0]
    return same


def units(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count the floats between two of one sign."""
    kind = np.dtype(f"i{a.itemsize}")
    return np.abs(a.view(kind) - b.view(kind))


both = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@both
@pytest.mark.parametrize("case", ELEMENTWISE, ids=repr)
def test_special_values(case: Case, dtype: Any) -> None:
    arrays = [a.astype(dtype) if a.dtype.kind == "f" else a for a in inputs(case, dtype)]
    compare(case.key, lambda *given: case.call(list(given)), arrays, case.differentiable)


SETTINGS: dict[str, Any] = {  # that the samples do not have
    "elu of infinity": lambda x: F.elu(x, math.inf),
    "elu of -infinity": lambda x: F.elu(x, -math.inf),
    "relu_": lambda x: (x * 1).relu_(),
    "hardtanh_": lambda x: F.hardtanh(x * 1, inplace=True),
    "hardtanh from 0": lambda x: F.hardtanh(x, 0.0, 1.0),
    "hardtanh to -0": lambda x: F.hardtanh(x, -1.0, -0.0),
    "clamp from 0": lambda x: x.clamp(min=0.0),
    "clamp to 0": lambda x: x.clamp(max=0.0),
    "clamp from -0": lambda x: x.clamp(min=-0.0),
    "clamp from NaN": lambda x: x.clamp(min=math.nan),
    "clamp to tensors": lambda x: x.clamp(x.detach().flip(0), x.detach() * 0),
    "threshold": lambda x: F.threshold(x, 0.0, -0.0),
    "softshrink of 0": lambda x: F.softshrink(x, 0.0),
    "hardshrink of 0": lambda x: F.hardshrink(x, 0.0),
}


@both
@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str, dtype: Any) -> None:
    compare("elu" if name.startswith("elu") else name, SETTINGS[name], [special(dtype, 1)], [0])


@both
@pytest.mark.parametrize("name", ["max", "min"])
def test_gradients_of_extremes(name: str, dtype: Any) -> None:
    """Give it to the NaNs if there are some, in equal parts."""
    for numbers in (special(dtype, 1), special(dtype, 1)[:4], np.zeros(3, dtype)):
        compare(name, lambda x: getattr(x, name)().reshape(1).expand(len(x)) * 1, [numbers], [0])
