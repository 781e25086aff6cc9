"""The op table, one family a file. Importing this package fills `eager.op.OPS` and attaches the methods of Tensor."""

from . import convert, create, pointwise, random, reduce, scan, softmax
from .indexing import embedding, gather, sort
from .indexing import getitem as subscript
from .indexing import primitives as index
from .indexing import select as pick
from .linalg import api as linalg
from .linalg import decompositions, einsum
from .linalg import matmul as contraction
from .linalg import norms as distance
from .neural import activation, attention, cross_entropy, dropout, loss
from .neural import ctc_loss as ctc
from .neural import multihead_attention as multihead
from .neural import normalization as norm
from .neural import rnn as recurrent
from .neural import rnn_kernels as recurrence
from .shape import join
from .shape import rearrange as arrange
from .shape import reshape as shape
from .shape import views as movement
from .spatial import adaptive_pool as adaptive
from .spatial import conv, pool, windows
from .spatial import grid_sample as grid
from .spatial import interpolate as resize

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

TRUST = "ops"  # see core/library.py: functions in this package do nothing but run ops
