"""The eager engine: tensors, ops, the tape. Runs with nothing else; imports neither the tracer nor code generation."""

from . import autograd, memory, operators, ops, printing

memory.keep_freed_memory()

__all__ = ["autograd", "operators", "ops", "printing"]
