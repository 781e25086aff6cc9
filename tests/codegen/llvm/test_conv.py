"""Direct convolution kernels and their gradients against sums over the kernel's taps in float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codegen.kernels import Compiled, guarded, target
from support.tolerances import assert_within, spread
from tapejit.codegen.llvm.conv import weight_grad_outer as conv_outer
from tapejit.codegen.llvm.conv.from_graph import NativeConv, emit_conv
from tapejit.codegen.llvm.conv.input_layout import ConvArray
from tapejit.codegen.llvm.gemm.select_kernel import store_epilogue
from tapejit.codegen.llvm.ir.builder import Module, Type, constant
from tapejit.codegen.llvm.ir.target import Target, host, target_for
from tapejit.eager.ops.spatial.windows import Geometry, exact, input_size, output_size

SCALARS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat"}
BFLOAT = ml_dtypes.bfloat16
DOT = "dpbf16ps"
every_float = pytest.mark.parametrize("dtype", [np.float32, BFLOAT, np.float16])


def places(x: np.ndarray, kernel: tuple[int, ...], out: tuple[int, ...], geometry: Geometry) -> Any:
    """For each place of the kernel: the elements of the padded input that stand there, as a view of it that can be added to."""
    for place in itertools.product(*map(range, kernel)):
        reach = zip(place, out, geometry.stride, geometry.dilation, strict=True)
        yield place, (..., *(slice(k * d, k * d + s * (m - 1) + 1, s) for k, m, s, d in reach))


def padding(x: np.ndarray, geometry: Geometry) -> np.ndarray:
    """With zeros around it; negative padding cuts off."""
    around = [(max(a, 0), max(b, 0)) for a, b in geometry.padding]
    cut = [slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape[2:], geometry.padding, strict=True)]
    return np.pad(x.astype(np.float64)[(..., *cut)], [(0, 0), (0, 0), *around])


def forward(x: np.ndarray, w: np.ndarray, geometry: Geometry) -> np.ndarray:
    groups, kernel = geometry.groups, w.shape[2:]
    out = output_size(x.shape[2:], kernel, geometry)
    full = padding(x, geometry)
    full = full.reshape(len(x), groups, -1, *full.shape[2:])
    w = w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
    total: Any = 0.0
    for place, where in places(full, kernel, out, geometry):
        total = total + np.einsum("gmc,ngc...->ngm...", w[(..., *place)], full[where])
    return total.reshape(len(x), -1, *out)


def backward(g: np.ndarray, w: np.ndarray, geometry: Geometry) -> np.ndarray:
    """By the definition of a transpose: what each output has got from an input goes back to it."""
    groups, kernel = geometry.groups, w.shape[2:]
    size = input_size(g.shape[2:], kernel, geometry)
    w = w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
    some = g.astype(np.float64).reshape(len(g), groups, -1, *g.shape[2:])
    full = padding(np.zeros((len(g), groups * w.shape[2], *size)), geometry)
    room = full.reshape(len(g), groups, -1, *full.shape[2:])
    for place, where in places(room, kernel, g.shape[2:], geometry):
        room[where] += np.einsum("gmc,ngm...->ngc...", w[(..., *place)], some)
    found = np.zeros((len(g), full.shape[1], *size))
    part, place = [], []
    for n, (a, b) in zip(size, geometry.padding, strict=True):
        part.append(slice(max(-a, 0), n - max(-b, 0)))
        place.append(slice(max(a, 0), max(a, 0) + n - max(-b, 0) - max(-a, 0)))
    found[(..., *part)] = full[(..., *place)]
    return found


def weights(x: np.ndarray, g: np.ndarray, kernel: tuple[int, ...], geometry: Geometry) -> np.ndarray:
    groups = geometry.groups
    full = padding(x, geometry)
    full = full.reshape(len(x), groups, -1, *full.shape[2:])
    some = g.astype(np.float64).reshape(len(g), groups, -1, *g.shape[2:])
    found = np.zeros((groups, some.shape[2], full.shape[2], *kernel))
    dims = "xyz"[: len(kernel)]
    for place, where in places(full, kernel, g.shape[2:], geometry):
        found[(..., *place)] = np.einsum(f"ngm{dims},ngc{dims}->gmc", some, full[where])
    return found.reshape(-1, *found.shape[2:])


def array(pointer: int, x: np.ndarray) -> ConvArray:
    return ConvArray(pointer, x.shape, tuple(s // x.itemsize for s in x.strides), SCALARS[x.dtype.name])


def run(op: str, a: np.ndarray, b: np.ndarray, shape: tuple[int, ...], geometry: Geometry, bits: int = 512) -> np.ndarray:
    rest = int(np.prod(shape[1:] if op == "conv_weight_grad" else shape[2:]))
    batch = () if op == "conv_weight_grad" else (shape[1] * rest,)
    module = Module(host().features)
    conv = NativeConv(op, array(0, a), array(1, b), geometry)
    dtype = np.dtype(np.float32) if a.itemsize == 2 else a.dtype  # sums of halves are seen as they are, not rounded
    kernel = emit_conv(module, "convolution", conv, 3, store_epilogue(2, batch, rest, 1, SCALARS[dtype.name]), target(bits))
    assert kernel is not None
    compiled = Compiled(module, kernel, 3)
    found = guarded(np.full(shape, np.nan, dtype))
    compiled(a, b, found, order=np.random.default_rng(0))
    again = guarded(np.full(shape, np.nan, dtype))
    compiled(a, b, again)
    assert found.tobytes() == again.tobytes()
    return found


def check(x: np.ndarray, w: np.ndarray, geometry: Geometry, bits: int = 512) -> None:
    """The convolution and both gradients, each up to how it may be added up."""
    rng = np.random.default_rng(1)
    taps, dtype = int(np.prod(w.shape[2:])), np.result_type(x.dtype, np.float32)
    expected = forward(x, w, geometry)
    bound = spread(forward(abs(x), abs(w), geometry), w.shape[1] * taps, dtype)
    assert_within(run("conv", x, w, expected.shape, geometry, bits), expected, bound)
    g = guarded(rng.standard_normal(expected.shape).astype(x.dtype))
    bound = spread(backward(abs(g), abs(w), geometry), len(w) // geometry.groups * taps, dtype)
    assert_within(run("conv_input_grad", g, w, x.shape, geometry, bits), backward(g, w, geometry), bound)
    bound = spread(weights(abs(x), abs(g), w.shape[2:], geometry), len(x) * int(np.prod(g.shape[2:])), dtype)
    assert_within(run("conv_weight_grad", x, g, w.shape, geometry, bits), weights(x, g, w.shape[2:], geometry), bound)


def inputs(n: int, c: int, m: int, size: tuple[int, ...], kernel: tuple[int, ...], groups: int, dtype: Any) -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, c * groups, *size)).astype(dtype)
    w = rng.standard_normal((m * groups, c, *kernel)).astype(dtype)
    return guarded(x), guarded(w)


@pytest.mark.parametrize(
    ("c", "m", "size", "kernel", "pad"),
    [
        (1, 16, (28, 28), (3, 3), 1),
        (16, 32, (14, 14), (3, 3), 1),
        (3, 8, (28, 28), (5, 5), 2),
        (5, 7, (9, 33), (3, 3), 0),
        (6, 10, (12, 12), (1, 1), 0),
        (2, 3, (6, 70), (2, 4), 3),
        (8, 10, (8, 8), (3, 3), 1),
        (9, 5, (7, 7), (2, 3), 0),
        (33, 3, (5, 5), (1, 1), 0),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
@every_float
def test_images(n: int, c: int, m: int, size: tuple[int, int], kernel: tuple[int, int], pad: int, dtype: Any) -> None:
    x, w = inputs(n, c, m, size, kernel, 1, dtype)
    check(x, w, exact(size, kernel, (1, 1), ((pad, pad), (pad, pad)), (1, 1)))


@settings(max_examples=80)
@given(st.integers(1, 3), st.data())
def test_any_geometry(dims: int, data: Any) -> None:
    """1, 2 and 3 spatial dims; strides, dilations, uneven padding, groups, vector widths."""
    kernel = tuple(data.draw(st.integers(1, 3)) for _ in range(dims))
    dilation = tuple(data.draw(st.integers(1, 2)) for _ in range(dims))
    stride = tuple(data.draw(st.integers(1, 3)) for _ in range(dims))
    pads = tuple((data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(dims))
    most = {1: 70, 2: 20, 3: 8}[dims]
    size = tuple(data.draw(st.integers(d * (k - 1) + 1, most)) for k, d in zip(kernel, dilation, strict=True))
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    n, c, m = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 17))
    dtype = data.draw(st.sampled_from([np.float32, np.float32, np.float64, BFLOAT, BFLOAT, np.float16]))
    x, w = inputs(n, c, m, size, kernel, groups, dtype)
    check(x, w, exact(size, kernel, stride, pads, dilation, groups), data.draw(st.sampled_from([512, 256, 128, 32])))


@pytest.mark.parametrize("room", [1, 5000, 1 << 20])
@every_float
def test_pieces_of_samples_and_channels(monkeypatch: pytest.MonkeyPatch, room: int, dtype: Any) -> None:
    """However many sums there is room for."""
    monkeypatch.setattr(conv_outer, "MAX_SUM_BYTES", room)
    x, w = inputs(5, 2, 70, (6, 7), (3, 2), 2, dtype)
    check(x, w, exact((6, 7), (3, 2), (1, 1), ((1, 1), (1, 1)), (1, 1), 2))


@every_float
def test_short_lines_of_volumes(dtype: Any) -> None:
    x, w = inputs(2, 4, 9, (3, 5, 6), (2, 3, 3), 2, dtype)
    check(x, w, exact((3, 5, 6), (2, 3, 3), (2, 1, 1), ((1, 1), (1, 0), (1, 1)), (1, 1, 1), 2))


@every_float
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1)])
def test_strided_inputs(dtype: Any, kernel: tuple[int, int]) -> None:
    """Weights with any strides, inputs whose channels are last, or all the same."""
    rng = np.random.default_rng(0)
    geometry = exact((10, 12), kernel, (1, 1), ((1, 1), (1, 1)), (1, 1))
    x = guarded(rng.standard_normal((2, 10, 12, 3)).astype(dtype)).transpose(0, 3, 1, 2)
    w = guarded(rng.standard_normal((*kernel, 4, 3)).astype(dtype)).transpose(2, 3, 0, 1)
    check(x, w, geometry)
    check(x, guarded(rng.standard_normal((3, 4, *kernel)).astype(dtype)).swapaxes(0, 1), geometry)
    check(np.broadcast_to(x[:, :1], x.shape), w[..., ::-1, :], geometry)


@every_float
def test_many_samples_are_added_in_pieces(dtype: Any) -> None:
    x, w = inputs(70, 2, 3, (6, 7), (3, 3), 1, dtype)
    check(x, w, exact((6, 7), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)))


@pytest.mark.parametrize("lines", [0, 60])
def test_epilogues(lines: int) -> None:
    """A bias for each channel, and more for long epilogues."""
    x, w = inputs(2, 3, 9, (10, 21), (3, 3), 2, np.float32)
    geometry = exact((10, 21), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 2)
    bias = guarded(np.arange(18, dtype=np.float32))
    store = store_epilogue(2, (18 * 210,), 210, 1)

    def epilogue(f: Any, sample: Any, channel: Any, pixel: Any, value: Any, mask: Any) -> None:
        kind = value.type
        value = f.add(value, f.splat(f.load(f.pointer(f.params[3], channel, "float"), Type("float")), kind.lanes))
        for _ in range(lines):
            value = f.add(value, constant(1, kind))
        store(f, sample, channel, pixel, value, mask)

    module = Module(host().features)
    kernel = emit_conv(module, "c", NativeConv("conv", array(0, x), array(1, w), geometry), 4, epilogue, target(512))
    assert kernel is not None
    found = guarded(np.full((2, 18, 10, 21), np.nan, np.float32))
    Compiled(module, kernel, 4)(x, w, found, bias, order=np.random.default_rng(0))
    more = bias[:, None, None] + lines
    bound = spread(forward(abs(x), abs(w), geometry) + more, 3 * 9 + 1 + lines)
    assert_within(found, forward(x, w, geometry) + more, bound)


def test_what_is_not_covered() -> None:
    """Integers, and gradients whose last dim is not along memory."""
    half = ConvArray(0, (1, 1, 4, 4), (16, 16, 4, 1), "i32")
    weight = ConvArray(1, (1, 1, 3, 3), (9, 9, 3, 1), "i32")
    geometry = Geometry((1, 1), ((0, 0), (0, 0)), (1, 1))
    assert (
        emit_conv(Module(), "c", NativeConv("conv", half, weight, geometry), 3, store_epilogue(2, (4,), 4, 1), target(512))
        is None
    )
    x, g = ConvArray(0, (1, 1, 4, 4), (16, 16, 4, 1)), ConvArray(1, (1, 1, 2, 2), (4, 4, 1, 2))
    assert (
        emit_conv(Module(), "c", NativeConv("conv_weight_grad", x, g, geometry), 3, store_epilogue(2, (), 9, 1), target(512))
        is None
    )


def texts(dtype: Any, cpu: Target, c: int = 8, size: int = 8) -> list[str]:
    """Texts of a convolution and both of its gradients."""
    x, w = np.zeros((2, c, size, size), dtype), np.zeros((16, c, 3, 3), dtype)
    g, geometry = np.zeros((2, 16, size, size), dtype), exact((size, size), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    found = []
    for op, a, b in (("conv", x, w), ("conv_input_grad", g, w), ("conv_weight_grad", x, g)):
        module = Module(cpu.features)
        store = store_epilogue(2, () if op == "conv_weight_grad" else (1,), 1, 1)
        kernel = emit_conv(module, "c", NativeConv(op, array(0, a), array(1, b), geometry), 3, store, cpu)
        assert kernel is not None
        found.append(str(module))
    return found


def test_only_cpus_that_have_it_multiply_pairs() -> None:
    assert all(DOT in text for text in texts(BFLOAT, target_for("cooperlake")))
    for cpu in ("x86-64-v2", "haswell", "x86-64-v4", "neoverse-n1"):
        assert not any(DOT in text for text in texts(BFLOAT, target_for(cpu)))
    for dtype in (np.float32, np.float16):
        assert not any(DOT in text for text in texts(dtype, target_for("cooperlake")))
    alone, _, odd = texts(BFLOAT, target_for("cooperlake"), c=1, size=7)
    assert DOT not in alone and DOT not in odd  # one channel, and lines that end in the middle of a pair


@pytest.mark.skipif(not host().has("avx512bf16"), reason="this CPU does not multiply pairs of bfloat16")
@pytest.mark.parametrize("size", [6, 7])
def test_infinities_and_nans_stay_in_their_windows(size: int) -> None:
    """With an odd number of channels, and lines that are read in pairs."""
    x, w = inputs(2, 3, 20, (size, size), (3, 3), 1, BFLOAT)
    geometry = exact((size, size), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    x[0, 2, 0, size - 1], x[1, 0, 3, 3] = np.nan, np.inf
    found, expected = run("conv", x, w, (2, 20, size, size), geometry), forward(x, w, geometry)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert_within(found, expected, spread(forward(abs(x), abs(w), geometry), 3 * 9))
    g = guarded(np.ones((2, 20, size, size), BFLOAT))
    found, expected = run("conv_weight_grad", x, g, w.shape, geometry), weights(x, g, (3, 3), geometry)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
