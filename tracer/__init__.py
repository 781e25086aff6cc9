"""`@compile`: record, replay, fall back."""

from .compile import Compiled, EagerPackage, compile, compile_stats
from .diff import Comparison, diff

__all__ = ["Comparison", "Compiled", "EagerPackage", "compile", "compile_stats", "diff"]
