"""Convolution problems, read from `conv`, `conv_input_grad` and `conv_weight_grad` nodes."""

from __future__ import annotations

from dataclasses import dataclass

from ....eager.ops.spatial.windows import Geometry
from ....tracer.graph.ir import Node
from .tensor_view import Forms, TensorView, Views, tensor_view


@dataclass(frozen=True)
class ConvProblem:
    """A convolution or one of its gradients. Images are (sample, channel, places...), weights (channel out, channel in of a
    group, taps...), gradients as the convolution's result.

    op                 first      second     result
    conv               image      weight     output
    conv_input_grad    gradient   weight     as the image
    conv_weight_grad   image      gradient   as the weight
    """

    op: str
    first: TensorView
    second: TensorView
    result: tuple[int, ...]  # shape
    geometry: Geometry


def read_conv(node: Node, views: Views, forms: Forms) -> ConvProblem:
    first, second = (tensor_view(x, views, forms) for x in node.operands)
    return ConvProblem(node.op.name, first, second, forms[node.results[0]].shape, node.attrs["geometry"])
