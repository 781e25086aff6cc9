"""Emitted convolutions and their gradients against PyTorch's (oneDNN), in one thread.

    python bench/conv.py [NAME ...] [--rounds 20] [--dtype bfloat16]

A shape is "64 1-16 28 k3 p1": batch, channels in and out, size of the image, of the kernel, and padding; "s2" is a stride.
Times are CPU time of this thread, best of the rounds, which take turns. With a 16-bit --dtype, PyTorch uses it
too, and the last column is how much longer our own convolution in float32 takes.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gemm import DTYPES, as_torch, seconds
from gemm import NAMES as SCALARS
from tapejit.codegen.llvm.conv.from_graph import NativeConv, emit_conv
from tapejit.codegen.llvm.conv.input_layout import ConvArray
from tapejit.codegen.llvm.gemm.select_kernel import store_epilogue
from tapejit.codegen.llvm.ir.builder import Module
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.runtime.jit import compile_text, link
from tapejit.codegen.llvm.tuning.measure import emit_repeat
from tapejit.eager.ops.spatial.windows import exact, output_size

SHAPES = """
64 1-16 28 k3 p1, 64 16-32 28 k3 p1, 64 16-32 14 k3 p1, 64 1-16 28 k5 p2, 64 16-32 14 k5 p2, 64 16-32 28 k5 p2
32 32-64 16 k3 p1, 32 64-64 8 k3 p1, 16 64-128 16 k1 p0, 32 16-32 28 k3 p1 s2, 1 16-32 56 k3 p1, 1 256-256 14 k3 p1
"""


def array(pointer: int, x: np.ndarray) -> ConvArray:
    return ConvArray(pointer, x.shape, tuple(s // x.itemsize for s in x.strides), SCALARS[x.dtype.name])


def native(op: str, a: np.ndarray, b: np.ndarray, out: np.ndarray, geometry: Any) -> tuple[Callable[[int], None], float]:
    """A function that repeats a convolution, and the milliseconds that compiling it took."""
    rest = int(np.prod(out.shape[1:] if op == "conv_weight_grad" else out.shape[2:]))
    store = store_epilogue(2, () if op == "conv_weight_grad" else (out.shape[1] * rest,), rest, 1, SCALARS[out.dtype.name])
    start = time.thread_time()
    module = Module(host().features)
    kernel = emit_conv(module, "convolution", NativeConv(op, array(0, a), array(1, b), geometry), 3, store, host())
    assert kernel is not None
    compile_text(str(module))
    took = time.thread_time() - start
    emit_repeat(module, kernel, 3)
    library = link([compile_text(str(module))], {}, ["repeat"])
    room = [np.zeros(size + 64, np.uint8) for size in (kernel.shared, kernel.scratch)]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64)(library["repeat"])
    places = [x.ctypes.data for x in (a, b, out)] + [-(-x.ctypes.data // 64) * 64 for x in room]
    keep = (library, room, a, b, out)
    return lambda times, keep=keep: function(*places, times), took * 1e3


def measure(name: str, rounds: int, dtype: str) -> None:
    n, channels, size, kernel, padding, *rest = name.split()
    c, m = map(int, channels.split("-"))
    k, p, s = int(kernel[1:]), int(padding[1:]), int(rest[0][1:]) if rest else 1
    rng = np.random.default_rng(0)
    kind = DTYPES[SCALARS[dtype]]
    x = rng.standard_normal((int(n), c, int(size), int(size)), np.float32).astype(kind)
    w = rng.standard_normal((m, c, k, k), np.float32).astype(kind)
    geometry = exact(x.shape[2:], (k, k), (s, s), ((p, p), (p, p)), (1, 1))
    y = np.zeros((int(n), m, *output_size(x.shape[2:], (k, k), geometry)), kind)
    g = rng.standard_normal(y.shape, np.float32).astype(kind)
    tx, tw, tg = (as_torch(torch, v) for v in (x, w, g))
    back = torch.ops.aten.convolution_backward
    options = (None, [s, s], [p, p], [1, 1], False, [0, 0], 1)
    cases = {
        "conv": (x, w, y, lambda: torch.conv2d(tx, tw, None, s, p)),
        "conv_input_grad": (g, w, np.zeros_like(x), lambda: back(tg, tx, tw, *options, [True, False, False])),
        "conv_weight_grad": (x, g, np.zeros_like(w), lambda: back(tg, tx, tw, *options, [False, True, False])),
    }
    flops = 2 * y.size * c * k * k
    for op, (a, b, out, peer) in cases.items():
        run, compiled = native(op, a, b, out, geometry)
        times = max(1, int(300e-6 / (flops / 100e9)))

        def peers(times: int, peer: Any = peer) -> None:
            for _ in range(times):
                peer()

        runs = [run, peers]
        if dtype != "float32":
            runs.append(native(op, *[v.astype(np.float32) for v in (a, b, out)], geometry)[0])
        taken = [[seconds(one, times) for one in runs] for _ in range(rounds)]
        own, other, *single = (min(some) for some in zip(*taken, strict=True))
        speeds = f"{flops / own / 1e9:9.1f}{flops / other / 1e9:9.1f}{other / own:7.2f}"
        longer = f"{single[0] / own:9.2f}" if single else ""
        print(f"{name:22}{op:18}{own * 1e6:9.1f}{other * 1e6:9.1f}{speeds}{compiled:8.1f}{longer}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", choices=list(SCALARS), default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(
        f"{'shape':22}{'op':18}{'µs':>9}{'torch':>9}{'GFLOP/s':>9}{'torch':>9}{'ratio':>7}{'ms':>8}"
        + ("  float32" if options.dtype != "float32" else "")
    )
    for line in SHAPES.strip().splitlines():
        for name in line.split(","):
            if not options.names or any(word in name for word in options.names):
                measure(name.strip(), options.rounds, options.dtype)


if __name__ == "__main__":
    main()
