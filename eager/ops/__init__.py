"""The op table, one family a file. In: the core. Out: a filled `eager.core.op.OPS`, and the methods of Tensor."""

from . import convert, create, pointwise, random, reduce, scan, softmax
from .indexing import embedding, gather, getitem, primitives, select, sort
from .linalg import api, decompositions, einsum, matmul, norms
from .neural import (
    activation,
    attention,
    cross_entropy,
    ctc_loss,
    dropout,
    loss,
    multihead_attention,
    normalization,
    rnn,
    rnn_kernels,
)
from .shape import join, rearrange, reshape, views
from .spatial import adaptive_pool, conv, grid_sample, interpolate, pool, windows

TRUST = "ops"  # see core/library.py: functions in this package do nothing but run ops
