"""The eager engine: tensors, ops, the tape. Runs with nothing else; imports neither the tracer nor code generation."""

from .arrays import malloc as memory
from .ops import operators
from .core import printing
from . import autograd, ops

memory.keep_freed_memory()

__all__ = ["autograd", "operators", "ops", "printing"]
