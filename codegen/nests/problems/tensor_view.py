"""Operands and results of a problem: where the elements of a tensor are, in which dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ....tracer.graph.ir import Form, Node
from ...lowering.op_lowering import dtype_of
from ...schedule.step import BufferView

Forms = Mapping[str, Form]
Layout = Callable[[str], tuple[int, ...]]  # strides of a result, by its name
Views = Mapping[str, BufferView]  # of operands and results in memory; operands that prologue fusion computes have none


@dataclass(frozen=True)
class TensorView:
    """A tensor in memory: element (i, j, ...) of `buffer` is at offset + i * strides[0] + j * strides[1] + ..., in elements. An
    operand that a prologue computes while it is read is in no buffer, and has no strides."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: str = ""
    offset: int = 0
    strides: tuple[int, ...] = ()

    def padded_strides(self, ndim: int, single: int = 0) -> tuple[int, ...]:
        """Strides for `ndim` dims, the last ones being the tensor's own: 0 for dims it lacks, `single` for those of size 1."""
        own = [single if n == 1 else s for n, s in zip(self.shape, self.strides, strict=True)]
        return (*[0] * (ndim - len(self.shape)), *own)


def views_of_all(node: Node, operands: Views, layout: Layout) -> Views:
    """Views of a node's operands and of its results, which begin their buffers."""
    return {**{x: (x, 0, layout(x)) for x in node.results}, **operands}


def tensor_view(name: str, views: Views, forms: Forms) -> TensorView:
    form = forms[name]
    return TensorView(name, form.shape, dtype_of(form), *views.get(name, ()))
