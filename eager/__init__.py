"""The eager engine: tensors, ops, the tape. Runs with nothing else; imports neither the tracer nor code generation."""

from . import autograd, ops, operators, printing

__all__ = ["autograd", "operators", "ops", "printing"]
