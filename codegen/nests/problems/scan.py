"""Scan problems, read from cumulative sums, products, extremes, log-sum-exps and linear recurrences."""

from __future__ import annotations

from dataclasses import dataclass

from ....tracer.graph.ir import Node
from .tensor_view import Forms, TensorView, Views, tensor_view


@dataclass(frozen=True)
class ScanProblem:
    """A scan along one dim of tensors of one shape; each place of all other dims is a row of its own."""

    op: str
    dim: int
    reverse: bool
    shape: tuple[int, ...]
    operands: tuple[TensorView, ...]
    results: tuple[TensorView, ...]
    line: str  # of the user's program

    @property
    def length(self) -> int:
        return self.shape[self.dim]

    @property
    def rows(self) -> tuple[int, ...]:
        """Sizes of all other dims."""
        return self.without_dim(self.shape)

    def without_dim(self, of_dims: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes or strides of all dims but the one that is scanned."""
        return (*of_dims[: self.dim], *of_dims[self.dim + 1 :])


def read_scan(node: Node, views: Views, forms: Forms) -> ScanProblem | None:
    """The problem of a node; None if it has no elements, or operands that are not tensors of the result's shape."""
    shape = forms[node.results[0]].shape
    if not shape or 0 in shape or any(not isinstance(x, str) or forms[x].shape != shape for x in node.operands):
        return None
    operands, results = (tuple(tensor_view(x, views, forms) for x in names) for names in (node.operands, node.results))
    dim = node.attrs["dim"] % len(shape)
    return ScanProblem(node.op.name, dim, node.attrs.get("reverse", False), shape, operands, results, node.line)
