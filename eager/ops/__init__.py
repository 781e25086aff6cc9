"""The op table, one family a file. Importing this package fills `eager.op.OPS` and attaches the methods of Tensor."""

from . import (
    activation,
    contraction,
    conv,
    convert,
    create,
    einsum,
    gather,
    index,
    movement,
    norm,
    pick,
    pointwise,
    random,
    reduce,
    shape,
    softmax,
)

__all__ = [
    "activation",
    "contraction",
    "conv",
    "convert",
    "create",
    "einsum",
    "gather",
    "index",
    "movement",
    "norm",
    "pick",
    "pointwise",
    "random",
    "reduce",
    "shape",
    "softmax",
]
