"""The op table, one family a file. Importing this package fills `eager.op.OPS` and attaches the methods of Tensor."""

from .neural import activation
from .spatial import adaptive_pool as adaptive
from .shape import rearrange as arrange
from .neural import attention
from .linalg import matmul as contraction
from .spatial import conv
from .neural import cross_entropy
from .neural import ctc_loss as ctc
from .linalg import decompositions
from .linalg import norms as distance
from .neural import dropout
from .linalg import einsum
from .indexing import embedding
from .indexing import gather
from .spatial import grid_sample as grid
from .indexing import primitives as index
from .shape import join
from .linalg import api as linalg
from .neural import loss
from .shape import views as movement
from .neural import multihead_attention as multihead
from .neural import normalization as norm
from .indexing import select as pick
from .spatial import pool
from .neural import rnn_kernels as recurrence
from .neural import rnn as recurrent
from .spatial import interpolate as resize
from .shape import reshape as shape
from .indexing import sort
from .indexing import getitem as subscript
from .spatial import windows
from . import convert, create, pointwise, random, reduce, scan, softmax

__all__ = [
    "activation",
    "adaptive",
    "arrange",
    "attention",
    "contraction",
    "conv",
    "convert",
    "create",
    "cross_entropy",
    "ctc",
    "decompositions",
    "distance",
    "dropout",
    "einsum",
    "embedding",
    "gather",
    "grid",
    "index",
    "join",
    "linalg",
    "loss",
    "movement",
    "multihead",
    "norm",
    "pick",
    "pointwise",
    "pool",
    "random",
    "recurrence",
    "recurrent",
    "reduce",
    "resize",
    "scan",
    "shape",
    "softmax",
    "sort",
    "subscript",
    "windows",
]
