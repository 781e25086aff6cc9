"""`@compile`: record, replay, fall back."""

from .compile import Compiled, EagerPackage, compile, compile_stats

__all__ = ["Compiled", "EagerPackage", "compile", "compile_stats"]
