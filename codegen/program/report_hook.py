"""Hook by which a program describes itself: `codegen/inspect` comes after the targets, so they may not import it.

The backends' records have it as `describe`, which imports `codegen/inspect` when the first report is asked for.
"""

from __future__ import annotations

from typing import Any

from ...tracer.execute.backends import BACKENDS

Report = dict[str, Any]  # plain data: kernels, memory plan, decisions


def report(target: str, program: Any, llvm: bool, assembly: bool) -> Report:
    describe = BACKENDS[target].describe
    assert describe is not None
    return describe(program, llvm, assembly)
