"""Loop nests as Triton kernels that a person can read.

`printed(nest)` gives the text of a module and its kernels, in the order in which they are launched. A nest is one kernel;
totals beside the rows, and what is added at indices, take a second one. Sizes are constants. Names are those of the ops and of
the graph's values; the docstring says which lines of the program a kernel is, and what its loops are.
"""

from __future__ import annotations

from ...nests.loop_nest import Nest
from .nest_printer import Printer
from .atomic_scatter import Scattering
from .split_reduction import SplitRows
from ..printing.kernel_text import Printed, arguments_of
from ..printing.tiling import tile_of


def printed(nest: Nest, sizes: dict[str, int] | None = None, deterministic: bool = False) -> Printed:
    """The kernels of a nest. `sizes` are the numbers of elements of buffers, which what is added at indices needs; these are
    added in a fixed order if `deterministic`."""
    if nest.scatters:
        assert sizes is not None
        return Scattering(nest, sizes, deterministic).printed()
    tile = tile_of(nest)
    printer = SplitRows if tile.parts > 1 else Printer
    return printer(nest, tile, arguments_of(nest)).printed()
