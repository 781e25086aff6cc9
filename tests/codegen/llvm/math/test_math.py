"""Vector math of generated code: within 2 units in the last place over all exponents, and exact where NumPy is.

The oracles are NumPy in float64 for float32, and x86's long double, which has 64 bits, for float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.codegen import long_double_oracles
from support.codegen.emitted import Emitted, alike, any_cpu, patterns, specials, units, worst
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.math import TAKE_UNSIGNED, VECTOR_MATH
from tapejit.codegen.llvm.math.pow import pow_number
from tapejit.eager.arrays import special_functions as special
from tapejit.eager.core.op import PRIMITIVES
from tapejit.eager.ops.pointwise import power

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
extended = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double has no more bits than float64 here")

MORE = {np.float32: np.float64, np.float64: np.longdouble}
FLOATS = [np.float32, pytest.param(np.float64, marks=extended)]
ELEMENTARY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


def numbers(dtype: Any, count: int = 1 << 15) -> Any:
    """Numbers of all sizes, and many where functions bend."""
    rng = np.random.default_rng(0)
    ranges = [rng.uniform(-size, size, count // 4) for size in (1, 20, 110, 750, 60000)]
    near = [1 + rng.normal(size=count // 8) * 1e-3, rng.normal(size=count // 8) * 1e-3]
    return np.concatenate([patterns(dtype, count), *(r.astype(dtype) for r in (*ranges, *near)), specials(dtype)])


def everywhere(name: str, dtype: Any, operands: int = 1, result: Any = None) -> list[Emitted]:
    """On this machine at its width, on one without AVX-512 at half of it, and one element at a time."""
    wide, plain = host(), any_cpu()
    kind = "float" if dtype is np.float32 else "double"
    widths = [(wide.lanes(kind), wide), (max(2, plain.lanes(kind)), plain), (1, wide)]
    return [Emitted(VECTOR_MATH[name], dtype, lanes, operands, result, target) for lanes, target in widths]


def test_every_op_of_the_table_is_known() -> None:
    assert set(VECTOR_MATH) <= {name for name, op in PRIMITIVES.items() if op.kind == "pointwise"}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary(name: str, dtype: Any) -> None:
    x = numbers(dtype)
    exact = ELEMENTARY[name](x.astype(MORE[dtype]))
    if name == "sigmoid":  # 0 where exp(-x) overflows, as in eager execution
        exact = np.where(np.isinf(np.exp(-x)) & np.isfinite(x), 0, exact)
    zeros = np.array([0.0, -0.0], dtype)
    for function in everywhere(name, dtype):
        off, where = worst(function(x), exact, x)
        assert off <= 2, where
        assert alike(function(zeros), ELEMENTARY[name](zeros))


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "erf", "sin", "log1p", "sinh"])
def test_every_width_gives_the_same_bits(name: str) -> None:
    for dtype in (np.float32, np.float64):
        x = numbers(dtype, 1 << 9)
        one, *others = [function(x) for function in everywhere(name, dtype)]
        others += [Emitted(VECTOR_MATH[name], dtype, lanes)(x) for lanes in (2, 3, 4, 32)]
        assert all(alike(one, other) for other in others)


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "lgamma", "digamma"])
def test_special_in_float32(name: str) -> None:
    """Against the eager kernels in float64."""
    x = numbers(np.float32, 1 << 13)
    exact = getattr(special, name)(np, x.astype(np.float64))
    for function in everywhere(name, np.float32):
        off, where = worst(function(x), exact, x)
        assert off <= 2, where


@extended
def test_error_function_in_float64() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-2, 2, 3000), rng.uniform(-27, 27, 2000), patterns(np.float64, 500), specials(np.float64)])
    for name in ("erf", "erfc"):
        exact = getattr(long_double_oracles, name)(x)
        for function in everywhere(name, np.float64):
            off, where = worst(function(x), exact, x)
            assert off <= 2, where
    y = np.concatenate([rng.uniform(0, 1, 3000), 1 - 2.0 ** rng.uniform(-53, -1, 500), 2.0 ** rng.uniform(-300, -1, 500)])
    for function in everywhere("erfinv", np.float64):
        off, where = worst(function(y), long_double_oracles.erfinv(y, function(y)), y)
        assert off <= 2, where
        assert alike(function(np.array([0, -0.0, 1, -1, 2, np.nan])), np.array([0, -0.0, np.inf, -np.inf, np.nan, np.nan]))
        assert alike(function(-y), -function(y))


@extended
def test_gamma_in_float64() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(0, 3, 2000), rng.uniform(0, 60, 2000), 2.0 ** rng.uniform(-300, 300, 500)])
    for function in everywhere("digamma", np.float64):
        far = x[np.abs(x - 1.4616) > 0.01]  # nearer to its root the oracle is not precise enough
        off, where = worst(function(far), long_double_oracles.digamma(far), far)
        assert off <= 4, where
        assert np.allclose(function(x), special.digamma(np, x), 1e-14, 0)
        assert np.allclose(function(-x), special.digamma(np, -x), 1e-12, 1e-12, equal_nan=True)
        edges = np.array([0.0, -0.0, -1.0, -7.0, np.inf, -np.inf, np.nan])
        assert alike(function(edges), special.digamma(np, edges))
    for function in everywhere("lgamma", np.float64):
        # Near its roots at 1 and 2 it is a difference of numbers of about 1, of which each is off by an epsilon or two.
        assert np.allclose(function(x), [math.lgamma(v) for v in x], 1e-14, 4e-15)


def test_results_stay_where_they_belong() -> None:
    x = np.concatenate([numbers(np.float32), (np.arange(1, 9000) * (np.pi / 2)).astype(np.float32)])
    for name, least in (("sin", -1), ("cos", -1), ("tanh", -1), ("erf", -1), ("sigmoid", 0), ("exp", 0), ("cosh", 1)):
        found = everywhere(name, np.float32)[0](x)
        assert np.nanmin(found) >= least and (name in ("exp", "cosh") or np.nanmax(found) <= 1)


# ---- two operands


def pairs(dtype: Any, count: int = 1 << 14) -> tuple[Any, Any]:
    """All pairs of special numbers, and some others of like and of unlike size."""
    rng = np.random.default_rng(3)
    odd = specials(dtype, [2.5, 7.0, 2.0**23, 2.0**24 - 1, 2.0**53, 1e30])
    a, b = np.array(list(itertools.product(odd, odd)), dtype).T
    x, y = rng.uniform(-20, 20, (2, count)).astype(dtype)
    u = patterns(dtype, count)
    return np.concatenate([a, x, x, u, u]), np.concatenate([b, y, x * (1 + y * dtype(1e-3)), rng.permutation(u), y])


REFERENCES: dict[str, Callable[..., Any]] = {"atan2": np.arctan2, "hypot": np.hypot}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", REFERENCES)
def test_two_operands(name: str, dtype: Any) -> None:
    a, b = pairs(dtype)
    exact = REFERENCES[name](a.astype(MORE[dtype]), b.astype(MORE[dtype]))
    for function in everywhere(name, dtype, 2):
        found = function(a, b)
        off, where = worst(found, exact, a, b)
        assert off <= 2, where
        zero = found == 0
        assert (np.signbit(found[zero]) == np.signbit(exact[zero])).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    a, b = pairs(dtype)
    sizes = np.abs(patterns(dtype, 1 << 14))
    limit = 120 if dtype is np.float32 else 1000
    exponents = (rng.uniform(-limit, limit, len(sizes)) / np.log2(sizes)).astype(dtype)
    close = (1 + rng.normal(size=1 << 13) * 1e-3).astype(dtype)
    far = (rng.uniform(-limit, limit, len(close)) * 500).astype(dtype)
    a, b = np.concatenate([a, sizes, close]), np.concatenate([b, exponents, far])
    exact = np.power(a.astype(MORE[dtype]), b.astype(MORE[dtype]))
    for function in everywhere("pow", dtype, 2):
        found = function(a, b)
        off, where = worst(found, exact, a, b)
        assert off <= 2, where
        zero = found == 0
        assert (np.signbit(found[zero]) == np.signbit(exact[zero])).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, 2.0, 0, -2, 1.7])
def test_pow_of_a_number(exponent: float, dtype: Any) -> None:
    x = numbers(dtype, 1 << 10)
    found = Emitted(lambda f, v: pow_number(f, v, exponent), dtype, 8)(x)
    want = power(np, x, exponent)
    assert alike(found, want) if exponent in (2, 3, 0.5, -1) else worst(found, want.astype(np.longdouble), x)[0] <= 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_logaddexp(name: str, dtype: Any) -> None:
    """Results near 0, as of log(0.5 + 0.5), are exact to the last place of what is added up."""
    a, b = pairs(dtype)
    exact = getattr(np, name)(a.astype(MORE[dtype]), b.astype(MORE[dtype]))
    for function in everywhere(name, dtype, 2):
        off = units(function(a, b), exact)
        spacing = np.where(np.isfinite(exact), np.maximum(1, np.maximum(np.abs(a), np.abs(b))) / np.abs(exact), 1)
        assert (off <= 2 * np.maximum(1, spacing)).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_xlogy(dtype: Any) -> None:
    a, b = pairs(dtype)
    wide_a, wide_b = a.astype(MORE[dtype]), b.astype(MORE[dtype])
    exact = np.where((wide_a == 0) & ~np.isnan(wide_b), 0, wide_a * np.log(wide_b))
    for function in everywhere("xlogy", dtype, 2):
        off, where = worst(function(a, b), exact, a, b)
        assert off <= 2.5, where


# ---- as NumPy, to the bit

EXACT: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: np.true_divide(1, x), "square": np.square,
    "abs": np.abs, "sign": lambda x: PRIMITIVES["sign"].run(np, x), "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "round": np.rint, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit,
}  # fmt: skip
EXACT_OF_TWO = ("maximum", "minimum", "fmax", "fmin", "copysign", "fmod", "remainder", "floor_divide")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str, dtype: Any) -> None:
    x = np.concatenate([numbers(dtype, 1 << 10), np.arange(-20, 20).astype(dtype) / 4])
    want = EXACT[name](x)
    for function in everywhere(name, dtype, 1, want.dtype):
        found = function(x)
        assert (found == want).all() if want.dtype == bool else alike(found, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT_OF_TWO)
def test_exact_of_two(name: str, dtype: Any) -> None:
    a, b = pairs(dtype, 1 << 12)
    if name in ("fmax", "fmin"):  # of 0 and -0 NumPy gives the one or the other, as its loops have it
        a, b = np.where(a == 0, 0, a).astype(dtype), np.where(b == 0, 0, b).astype(dtype)
    a, b = np.concatenate([a, b]), np.concatenate([b, a])
    want = getattr(np, name)(a, b)
    for function in everywhere(name, dtype, 2):
        found = function(a, b)
        assert alike(found, want), [(x, y, u, v) for x, y, u, v in zip(a, b, found, want, strict=True) if u != v and v == v][:5]


INTEGERS = [np.dtype(f"{u}int{bits}").type for u in ("", "u") for bits in (8, 16, 32, 64)]
WHOLE = ("floor_divide", "remainder", "fmod", "pow", "maximum", "minimum", "fmax", "fmin", "trunc_divide")


def whole_numbers(dtype: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 100] + ([-1, -2, -7] if info.min else [])
    a, b = np.array(list(itertools.product(edges, edges)), dtype).T
    x, y = rng.integers(info.min, info.max, (2, 500), dtype, endpoint=True)
    return np.concatenate([a, x, x]), np.concatenate([b, y, (y % 23).astype(dtype)])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", WHOLE)
def test_integers(name: str, dtype: Any) -> None:
    a, b = whole_numbers(dtype)
    if name == "pow" and np.iinfo(dtype).min:  # the least integer has no opposite: the eager kernel fails
        a, b = a[b != np.iinfo(dtype).min], b[b != np.iinfo(dtype).min]
    if "divide" in name or name in ("remainder", "fmod"):
        a, b = a[b != 0], b[b != 0]
    want = PRIMITIVES[name].run(np, a, b) if PRIMITIVES[name].run else getattr(np, name)(a, b)
    unsigned = np.dtype(dtype).kind == "u"
    for lanes in (16, 4, 1):
        found = Emitted(lambda f, x, y: VECTOR_MATH[name](f, x, y, unsigned=unsigned), dtype, lanes, 2)(a, b)
        assert (found == want).all(), [z for z in zip(a, b, found, want, strict=True) if z[2] != z[3]][:5]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_one_operand(dtype: Any) -> None:
    x, _ = whole_numbers(dtype)
    unsigned = np.dtype(dtype).kind == "u"
    for name in ("abs", "sign", "signbit", "square", "floor", "round", "isnan", "isinf", "isfinite"):
        keywords = {"unsigned": unsigned} if name in TAKE_UNSIGNED else {}
        want = PRIMITIVES[name].run(np, x, **({"decimals": 0} if name == "round" else {})) if name != "abs" else np.abs(x)
        found = Emitted(lambda f, v, n=name, k=keywords: VECTOR_MATH[n](f, v, **k), dtype, 8, 1, want.dtype)(x)
        assert (found == want).all()


def test_a_zero_divisor_does_not_trap() -> None:
    for dtype in (np.int8, np.int32, np.int64, np.uint64):
        a, zero = np.arange(1, 9).astype(dtype), np.zeros(8, dtype)
        for name in ("floor_divide", "remainder", "fmod", "trunc_divide"):
            unsigned = np.dtype(dtype).kind == "u"
            Emitted(lambda f, x, y, n=name, u=unsigned: VECTOR_MATH[n](f, x, y, unsigned=u), dtype, 4, 2)(a, zero)
