"""Which results go past the caches: large ones that nobody reads soon.

An ordinary store reads a line of memory before it writes to it, and drives another line out of the caches. Of a result that is
larger than the caches both are in vain: when somebody reads it, its beginning is long gone. Stores past the caches save a third
of what a loop moves that reads as much as it writes.

They need vectors at multiples of their size, and NumPy's arrays begin anywhere. So the loop begins a little before the row,
where such a vector begins, and the first vector and the last are moved inside: a few elements are computed twice, and written
once (`llvm/loops.py`). That is only right where nothing is added up, and nothing is overwritten that the loop reads.

New memory was filled with zeros by the system just now, and is in the caches: there stores past them took half as long again.
So each such result has a flag, which says whether its memory is that of the run before, as a gradient's is (`runner.py`).
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

from ...tracer.graph.ir import Form
from ..lowering.random_ops import DRAWN
from ..ir.expr import walk
from ..nests.kernels import Launch
from .ir.target import Target
from ..nests.loop_nest import Nest, Stage

ROW = 4096  # bytes from which on a vector more in each row does not count
LARGE = 32 << 20  # where the size of the last cache is not known
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def send_past(steps: list[Launch], outputs: set[str], forms: dict[str, Form], target: Target) -> None:
    """Mark the stores that go past the caches."""
    if not target.has("sse2") or target.bits < 128:
        return  # there is no instruction for it, or it was not measured
    large = {b for b in outputs if forms[b].nbytes >= last_cache()}
    large -= {b for x in steps for b in x.reads}
    writers = Counter(s.buffer for x in steps if x.nest is not None for s in x.nest.stores())
    for x in steps if large else ():
        if x.kind != "nest" or x.nest is None or x.nest.scatters or x.nest.vector != "c":
            continue
        for stage in x.nest.stages:
            if may_repeat(stage, x.nest, outputs):
                for s in stage.stores:
                    long = x.nest.domain.cols * forms[s.buffer].itemsize >= ROW
                    s.past = long and s.buffer in large and writers[s.buffer] == 1


def may_repeat(stage: Stage, nest: Nest, outputs: set[str]) -> bool:
    """Whether elements may be computed twice, and from any column on. What is not an output may be where something was that
    the loop reads; random numbers are made in fours."""
    if stage.totals or stage.columns or any(s.buffer not in outputs or s.buffer in nest.reads() for s in stage.stores):
        return False
    if any(s.index.factor(nest.domain.c) != 1 for s in stage.stores):
        return False
    return not any(e.kind == "op" and e.data[0] in DRAWN for e in walk([s.expr for s in stage.stores]))


@cache
def last_cache() -> int:
    """Bytes of the largest cache, as Linux tells them."""
    try:
        sizes = [(x / "size").read_text().strip() for x in CACHES.glob("index*")]
        return max(int(x[:-1]) << {"K": 10, "M": 20, "G": 30}[x[-1]] for x in sizes)
    except (OSError, ValueError, KeyError, IndexError):
        return LARGE
