"""Prints loop nests as readable Triton kernels.

`printed(nest)` gives the text of a module and its kernels, in launch order. A nest is one kernel; column totals and
scatter-adds take a second one. Sizes are constants. Names are those of the ops and of the graph's values; the docstring names
the lines of the program that a kernel implements, and its loops.
"""

from __future__ import annotations

from ...nests.loop_nest import Nest
from ..printing.kernel_text import Printed, arguments_of
from ..printing.tiling import tile_of
from .atomic_scatter import AtomicScatterPrinter
from .nest_printer import Printer
from .split_reduction import SplitRows


def print_nest(nest: Nest, sizes: dict[str, int] | None = None, deterministic: bool = False) -> Printed:
    """Print the kernels of a nest. `sizes` are the numbers of elements of buffers, needed for scatter-adds, which add in a
    fixed order if `deterministic`."""
    if nest.scatters:
        assert sizes is not None
        return AtomicScatterPrinter(nest, sizes, deterministic).printed()
    tile = tile_of(nest)
    printer = SplitRows if tile.parts > 1 else Printer
    return printer(nest, tile, arguments_of(nest)).printed()
