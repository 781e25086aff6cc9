"""Matmul problems, read from `matmul` nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....tracer.graph.ir import Node
from .tensor_view import Forms, TensorView, Views, tensor_view


@dataclass(frozen=True)
class MatmulProblem:
    """result[batch..., m, n] = sum over k of a[batch..., m, k] * b[batch..., k, n]. Operands are broadcast along dims of the
    batch that they lack, or in which they have size 1."""

    a: TensorView
    b: TensorView
    batch: tuple[int, ...]
    m: int
    n: int
    k: int

    @property
    def has_one_right_matrix(self) -> bool:
        """True if the whole batch is multiplied by the same matrix: its rows may be rows of one matmul then."""
        return math.prod(self.b.shape[:-2]) == 1


def read_matmul(node: Node, views: Views, forms: Forms) -> MatmulProblem:
    a, b = (tensor_view(x, views, forms) for x in node.operands)
    *batch, m, n = forms[node.results[0]].shape
    return MatmulProblem(a, b, tuple(batch), m, n, a.shape[-1])
