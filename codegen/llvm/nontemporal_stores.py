"""Chooses non-temporal stores: outputs at least as large as the last-level cache that this program does not read again.

An ordinary store reads a cache line before it writes to it, and evicts another line. For a result larger than the caches
both are wasted: when it is read, its beginning is long evicted. Non-temporal stores save a third of the memory traffic of a
loop that reads as much as it writes.

They need vectors aligned to their size, and NumPy's arrays begin anywhere. So the loop begins a little before the row, at an
aligned address, and the first and the last vector are moved inside: a few elements are computed twice, and written once
(`codegen/llvm/loops/nest_emitter.py`). That is only correct where nothing is reduced, and nothing is overwritten that the
loop reads.

New memory has just been zeroed by the system and is in the caches: there non-temporal stores took half as long again. So
each such result has a flag that tells whether its memory is that of the run before, as a gradient's is
(`codegen/program/call_wrapper.py`).
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

from ...tracer.graph.ir import Form
from ..ir.expr import walk
from ..lowering.random_ops import RANDOM_OPS
from ..nests.kernels import Launch
from ..nests.loop_nest import Nest, Stage
from .ir.target import Target

MIN_ROW_BYTES = 4096  # from here on one more vector per row is negligible
DEFAULT_CACHE_BYTES = 32 << 20  # where the size of the last-level cache is unknown
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def mark_nontemporal_stores(steps: list[Launch], outputs: set[str], forms: dict[str, Form], target: Target) -> None:
    """Mark the stores of `steps` that are to be non-temporal."""
    if not target.has("sse2") or target.bits < 128:
        return  # no instruction for it, or not measured
    large = {b for b in outputs if forms[b].nbytes >= last_level_cache_bytes()}
    large -= {b for x in steps for b in x.reads}
    writers = Counter(s.buffer for x in steps if x.nest is not None for s in x.nest.stores())
    for x in steps if large else ():
        if x.kind != "nest" or x.nest is None or x.nest.scatters or x.nest.vector != "c":
            continue
        for stage in x.nest.stages:
            if can_recompute(stage, x.nest, outputs):
                for s in stage.stores:
                    long = x.nest.domain.cols * forms[s.buffer].itemsize >= MIN_ROW_BYTES
                    s.nontemporal = long and s.buffer in large and writers[s.buffer] == 1


def can_recompute(stage: Stage, nest: Nest, outputs: set[str]) -> bool:
    """True if elements may be computed twice, starting at any column. A buffer that is no output may share memory with
    something that the loop reads; random numbers are drawn in fours."""
    if stage.totals or stage.columns or any(s.buffer not in outputs or s.buffer in nest.reads() for s in stage.stores):
        return False
    if any(s.index.factor(nest.domain.c) != 1 for s in stage.stores):
        return False
    return not any(e.kind == "op" and e.data[0] in RANDOM_OPS for e in walk([s.expr for s in stage.stores]))


@cache
def last_level_cache_bytes() -> int:
    """Size of the largest cache, as Linux reports it."""
    try:
        sizes = [(x / "size").read_text().strip() for x in CACHES.glob("index*")]
        return max(int(x[:-1]) << {"K": 10, "M": 20, "G": 30}[x[-1]] for x in sizes)
    except (OSError, ValueError, KeyError, IndexError):
        return DEFAULT_CACHE_BYTES
