"""Kernel descriptions for `explain(kernels=True)`, from the plain data that a code generator reports."""

from __future__ import annotations

from collections import Counter
from typing import Any


def kernels_in_words(report: dict[str, Any]) -> list[str]:
    """Describe a program's kernels, line by line."""
    kernels, memory = report["kernels"], report["memory"]
    called = sum(k["kind"] == "opaque" for k in kernels)
    times = [k["seconds"] for k in kernels]
    measured = None if None in times or not times else sum(times)
    lines = [
        f"{number(len(kernels) - called, 'kernel')} in {number(report['functions'], 'function')}, "
        f"{number(report['barriers'], 'barrier')}" + (f", {number(called, 'opaque op')}" if called else ""),
        f"for {report['target']}" + ", from the disk cache" * report["from_disk"],
        f"{number(memory['buffers'], 'buffer')} in {size(memory['bytes'])} of memory; "
        f"{size(memory['together'])} without sharing",
    ]
    if measured is not None:
        lines.append(f"kernels timed one by one, in one thread, on synthetic values: {duration(measured)}")
    for k in kernels:
        lines += kernel_in_words(k)
    lines += ["", "buffers:", *indented([f"{name} = {buffer_in_words(b)}" for name, b in report["buffers"].items()])]
    lines += ["", "memory plan (offset, bytes, buffer):", *indented(memory["text"].splitlines())]
    lines += ["", "decisions:", *indented([d["words"] for d in report["decisions"]])]
    if "llvm" in report:
        lines += ["", "LLVM IR of the function that runs the kernels:", *indented(report["llvm"].splitlines())]
    return lines


def kernel_in_words(k: dict[str, Any]) -> list[str]:
    lines = ["", f"kernel {k['step']}: {k['what']}"]
    if k["ops"]:
        lines.append(f"  ops: {', '.join(grouped(k['ops']))}")
    if k["lines"]:
        lines.append(f"  from {', '.join(k['lines'])}")
    lines.append(f"  moves {size(k['bytes'])}" + ("" if k["flops"] is None else f", computes {amount(k['flops'])} flops"))
    lines[-1] += shared_out(k)
    lines.append(f"  {speed_in_words(k)}")
    if k.get("plan"):
        lines.append(f"  {k['plan']}")
    if k["call"] is not None:
        lines.append(f"    {k['call']}")
    if k["nest"] is not None:
        lines += indented(k["nest"].rstrip().splitlines(), 4)
    if k.get("same_code_as") is not None:
        lines.append(f"  same code as kernel {k['same_code_as']}")
    for name, title in (("llvm", "LLVM IR"), ("assembly", "assembly"), ("triton", "Triton")):
        if name in k and (name != "triton" or "llvm" not in k):
            lines += [f"  {title}:", *indented(k[name].rstrip().splitlines(), 4)]
    return lines


def shared_out(k: dict[str, Any]) -> str:
    """Number of pieces that threads can share, one for each phase."""
    pieces = k.get("pieces", [])
    if not pieces:
        return ""
    return f", in {' then '.join(map(str, pieces))} piece{'s' * (pieces != [1])}"


def speed_in_words(k: dict[str, Any]) -> str:
    if k["seconds"] is None:
        reason = k.get("untimed", "it, or a kernel before it, cannot run on synthetic values")
        return f"was not measured: {reason}"
    found = f"takes {duration(k['seconds'])}: {k['gigabytes_per_second']:.1f} GB/s"
    found += f", {k['gigaflops']:.1f} GFLOP/s" if k["gigaflops"] else ""
    return found + (f"; {min(k['roofline'], 1.0):.0%} of this machine's {k['bound']} limit" if k.get("roofline") else "")


def buffer_in_words(b: dict[str, Any]) -> str:
    return f"{b['dtype']} {b['shape']}, {b['kind']}"


def grouped(words: list[str]) -> list[str]:
    return [w if n == 1 else f"{n} {w}" for w, n in Counter(words).items()]


def number(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def size(n: float) -> str:
    if n < 1000:
        return f"{n} bytes"
    unit = "KB" if n < 1e6 else "MB" if n < 1e9 else "GB"
    return f"{n / {'KB': 1e3, 'MB': 1e6, 'GB': 1e9}[unit]:.1f} {unit}"


def amount(n: int) -> str:
    return f"{n:,}"


def duration(seconds: float) -> str:
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def indented(lines: list[str], by: int = 2) -> list[str]:
    return [" " * by + line if line else "" for line in lines]
