"""The eager engine: tensors, ops, the tape. Runs with nothing else; imports neither the tracer nor code generation."""

from . import autograd, operators, ops, printing

__all__ = ["autograd", "operators", "ops", "printing"]
