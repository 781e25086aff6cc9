"""The native attention kernels against PyTorch's scaled_dot_product_attention, one thread each, and their memory.

    python bench/attention.py [NAME ...] [--rounds 100] [--dtype bfloat16]

Queries, keys and values are parts of one projection [B, T, 3, H, D], read where they are, as a transformer makes them. Both
sides are measured by the CPU time of the one thread, in rounds that take turns; the best round counts. GFLOP/s count the
matmuls that attention needs: with causal attention half of them. PyTorch's are its flash operators alone, without the tape.
Results are compared before any time is printed. The memory is all that the kernels need beside inputs and results, against
what one matrix of scores for all heads would take. With a 16-bit --dtype, PyTorch's operators have it too, and our
own kernels in float32 take turns as well: `float32` is how much longer those take.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gemm import DTYPES, NAMES, as_torch
from tapejit.codegen.llvm.attention.backward import emit_backward
from tapejit.codegen.llvm.attention.blocks import NativeAttention, TensorLayout
from tapejit.codegen.llvm.attention.forward import emit_forward
from tapejit.codegen.llvm.ir.builder import Module
from tapejit.codegen.llvm.ir.kernel import NativeKernel
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.runtime.jit import compile_text, link


class Shape(NamedTuple):
    batch: int
    heads: int
    length: int
    width: int
    causal: bool = True

    @property
    def pairs(self) -> int:
        """Queries with the keys they see, of all heads."""
        length = self.length
        return self.batch * self.heads * (length * (length + 1) // 2 if self.causal else length * length)


SHAPES = {
    "gpt small": Shape(16, 4, 64, 32),
    "gpt medium": Shape(8, 6, 128, 64),
    "128, all keys": Shape(1, 8, 128, 64, False),
    "1024": Shape(1, 8, 1024, 64),
    "2048": Shape(1, 8, 2048, 64),
    "512, wide": Shape(1, 8, 512, 128),
}
MATMULS = {"forward": 2, "backward": 5}


class Native:
    """Both kernels of a shape, compiled, with the arrays they work on."""

    def __init__(self, shape: Shape, dtype: str = "float32") -> None:
        b, h, t, d, causal = shape
        rng = np.random.default_rng(0)
        self.joined = rng.standard_normal((b, t, 3, h, d), dtype=np.float32).astype(DTYPES[NAMES[dtype]])
        self.pull = rng.standard_normal((b, t, h, d), dtype=np.float32).astype(self.joined.dtype)
        self.out, self.grads = np.empty_like(self.pull), np.empty_like(self.joined)
        self.log_total = np.empty((b, h, t, 1), np.float32)
        arrays = {"pull": self.pull.swapaxes(1, 2), "out": self.out.swapaxes(1, 2), "log_total": self.log_total}
        for i, part in enumerate(("query", "key", "value")):
            arrays[part] = self.joined[:, :, i].swapaxes(1, 2)
            arrays[f"of_{part}"] = self.grads[:, :, i].swapaxes(1, 2)
        self.addresses = [x.ctypes.data for x in arrays.values()]
        layouts: dict[str, Any] = {
            name: TensorLayout(i, tuple(s // x.itemsize for s in x.strides)) for i, (name, x) in enumerate(arrays.items())
        }
        self.spec = NativeAttention((b, h), t, t, d, d, 1 / math.sqrt(d), causal=causal, scalar=NAMES[dtype], **layouts)
        self.kernels: dict[str, NativeKernel] = {}
        self.compile_ms: dict[str, float] = {}
        self.forward = self.built("forward", emit_forward)
        self.backward = self.built("backward", emit_backward)

    def built(self, name: str, emit: Callable[..., NativeKernel | None]) -> Callable[[], None]:
        start = time.thread_time_ns()
        module = Module(host().features)
        kernel = emit(module, "attend", self.spec, len(self.addresses), host())
        assert kernel is not None
        code = compile_text(str(module))
        self.kernels[name], self.compile_ms[name] = kernel, (time.thread_time_ns() - start) / 1e6
        library = link([code], {}, [phase.function for phase in kernel.phases])
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(self.addresses) + 2), ctypes.c_int64, ctypes.c_int64)
        memory = [np.empty(size + 64, np.uint8) for size in (kernel.shared, kernel.scratch)]
        calls = [(kind(library[phase.function]), phase.pieces) for phase in kernel.phases]

        def call(kept: Any = (library, memory)) -> None:
            for function, pieces in calls:
                function(*self.addresses, *(-(-x.ctypes.data // 64) * 64 for x in memory), 0, pieces)

        return call


def peer(native: Native, causal: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """PyTorch's operators on the same arrays. Fails if the results differ."""
    import torch

    torch.set_num_threads(1)
    query, key, value = (x.transpose(1, 2) for x in as_torch(torch, native.joined).unbind(2))
    pull = as_torch(torch, native.pull).transpose(1, 2)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    out, log_total = attend(query, key, value, 0.0, causal)
    forward = lambda: attend(query, key, value, 0.0, causal)
    backward = lambda: attend_backward(pull, query, key, value, out, log_total, 0.0, causal)
    native.forward()
    halves = native.out.itemsize == 2  # PyTorch rounds probabilities to these as well
    near, far = (
        ({"rtol": 0.05, "atol": 0.05}, {"rtol": 0.1, "atol": 0.2})
        if halves
        else ({"rtol": 1e-4, "atol": 1e-5}, {"rtol": 1e-3, "atol": 1e-4})
    )
    np.testing.assert_allclose(native.out.swapaxes(1, 2).astype(np.float32), out.float().numpy(), **near)
    native.backward()
    for i, grad in enumerate(backward()):
        np.testing.assert_allclose(native.grads[:, :, i].swapaxes(1, 2).astype(np.float32), grad.float().numpy(), **far)
    return forward, backward


def best(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The least CPU time of each, in seconds, taking turns."""
    found = [math.inf] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = time.thread_time_ns()
            call()
            found[i] = min(found[i], (time.thread_time_ns() - start) / 1e9)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(SHAPES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--dtype", choices=list(NAMES), default="float32")
    options = parser.parse_args()
    halves = options.dtype != "float32"
    titles = ("us", "GFLOP/s", "PyTorch us", "ratio", *["float32"][:halves], "compile ms", "memory KB", "scores KB")
    print(f"{'':24}" + "".join(f"{title:>11}" for title in titles))
    for name in options.names:
        shape = SHAPES[name]
        native = Native(shape, options.dtype)
        single = Native(shape) if halves else native
        peers = peer(native, shape.causal)
        single.forward()  # its backward kernel reads what this writes
        for way, theirs in zip(MATMULS, peers, strict=True):
            mine, other, wide = best([getattr(native, way), theirs, getattr(single, way)], options.rounds)
            rate = 2 * MATMULS[way] * shape.pairs * shape.width / mine / 1e9
            memory = (native.kernels[way].scratch + native.kernels[way].shared) / 1024
            scores = 4 * shape.batch * shape.heads * shape.length**2 / 1024
            times = f"{mine * 1e6:11.0f}{rate:11.1f}{other * 1e6:11.0f}{mine / other:11.2f}" + (
                f"{wide / mine:11.2f}" if halves else ""
            )
            print(f"{name + ', ' + way:24}{times}{native.compile_ms[way]:11.0f}{memory:11.0f}{scores:11.0f}", flush=True)


if __name__ == "__main__":
    main()
