"""The eager engine: tensors, ops, the tape. Runs with nothing else; imports neither the tracer nor code generation."""

from . import autograd, ops
from .arrays import malloc
from .core import printing
from .ops import operators

malloc.keep_freed_memory()

__all__ = ["autograd", "operators", "ops", "printing"]
