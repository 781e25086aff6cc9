"""`@compile`: record, replay, fall back."""

from .compile import Compiled, CompileError, EagerPackage, compile, compile_stats
from .diff import Comparison, diff

__all__ = ["Comparison", "CompileError", "Compiled", "EagerPackage", "compile", "compile_stats", "diff"]
