"""The eager engine. In: op calls. Out: tensors and gradients. Runs alone: imports neither the tracer nor code generation."""

from . import autograd, ops
from .arrays import malloc
from .core import printing
from .ops import operators

malloc.keep_freed_memory()

__all__ = ["autograd", "operators", "ops", "printing"]
