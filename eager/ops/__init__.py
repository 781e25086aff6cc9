"""The op table, one family a file. Importing this package fills `eager.op.OPS` and attaches the methods of Tensor."""

from . import contraction, convert, create, index, movement, pointwise, random, reduce, shape

__all__ = ["contraction", "convert", "create", "index", "movement", "pointwise", "random", "reduce", "shape"]
