"""`@compile`: record, replay, bail out."""

from .api.compile import compile, compile_stats
from .api.compiled_function import CompiledFunction
from .api.eager_switch import EagerPackage
from .api.path_cache import CompileError

__all__ = ["CompileError", "CompiledFunction", "EagerPackage", "compile", "compile_stats"]
