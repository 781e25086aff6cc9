"""`@compile`: record, replay, fall back."""

from .api.compile import Compiled, CompileError, EagerPackage, compile, compile_stats
from .tools.diff import Comparison, diff

__all__ = ["Comparison", "CompileError", "Compiled", "EagerPackage", "compile", "compile_stats", "diff"]
