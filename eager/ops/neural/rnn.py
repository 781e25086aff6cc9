"""Recurrent layers and cells as functions: `lstm`, `gru`, `rnn_tanh`, `rnn_relu`, and one step of each.

The layers take padded batches, or packed ones (rows of data and the number of rows of each step). Either way a layer works
on rows: the input's contribution to all gates of all steps is one matmul, the rest is an op of `rnn_kernels.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...arrays.op_samples import A, Sample, sample
from ...core.dispatch import apply
from ...core.op import Op
from ...core.registration import public
from ...core.tensor import Tensor
from ..linalg.matmul import linear
from ..shape.reshape import cat, stack
from .dropout import dropout as drop
from .rnn_kernels import ELMAN, GRU, LSTM, Sizes


class Kind(NamedTuple):
    """A sort of recurrence."""

    name: str
    op: Op
    gates: int
    states: int
    attrs: dict[str, Any]


KINDS = {
    "rnn_tanh": Kind("rnn_tanh", ELMAN, 1, 1, {"relu": False}),
    "rnn_relu": Kind("rnn_relu", ELMAN, 1, 1, {"relu": True}),
    "lstm": Kind("lstm", LSTM, 4, 2, {}),
    "gru": Kind("gru", GRU, 3, 1, {}),
}


class Weights(NamedTuple):
    """The parameters of one direction of one layer."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    w_hr: Tensor | None = None


def check_dtypes(kind: Kind, first: Tensor, others: list[Tensor | None]) -> None:
    for t in others:
        if t is not None and t.tj_array.dtype != first.tj_array.dtype:
            raise RuntimeError(
                f"{kind.name}: expected input, hidden states and weights to have the same dtype, but got: "
                f"{first.dtype.name} != {t.dtype.name}; convert one with .to(dtype)"
            )


def recur(
    kind: Kind, input: Tensor, states: list[Tensor], weights: Weights, sizes: Sizes, reverse: bool
) -> tuple[Tensor, list[Tensor]]:
    """One direction of one layer over rows of input: the rows of output and the last states."""
    check_dtypes(kind, input, [*states, *weights])
    x = linear(input, weights.w_ih, weights.b_ih)
    inputs = (x, *states, weights.w_hh, 0 if weights.b_hh is None else weights.b_hh)
    attrs = {**kind.attrs, "sizes": sizes, "reverse": reverse}
    if weights.w_hr is not None:  # no kernel has projections
        found = kind.op.expand(*inputs, **attrs, projection=weights.w_hr)  # type: ignore[misc]
    elif not input.dtype.is_floating_point:  # which PyTorch's plain cells take, and give floats
        found = kind.op.expand(*inputs, **attrs)  # type: ignore[misc]
    else:
        found = apply(kind.op, inputs, attrs)
    return found[0], list(found[1 : 1 + kind.states])


# ---- layers


def grouped(kind: Kind, params: Any, has_biases: bool, projected: bool, count: int) -> list[Weights]:
    """The flat list of parameters by layers and directions."""
    names = ["w_ih", "w_hh", *(["b_ih", "b_hh"] if has_biases else []), *(["w_hr"] if projected else [])]
    if len(params) != count * len(names):
        raise RuntimeError(
            f"{kind.name}: expected {len(names)} parameters for each of {count} layers and directions, got {len(params)} in all"
        )
    parts = [params[i : i + len(names)] for i in range(0, len(params), len(names))]
    return [Weights(**dict(zip(names, part, strict=True))) for part in parts]


def through_layers(
    kind: Kind,
    rows: Tensor,
    sizes: Sizes,
    hx: list[Tensor],
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """All layers over rows of input: the rows of output and the last states of all layers and directions."""
    if not sizes:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    directions = 2 if bidirectional else 1
    projected = kind.states == 2 and hx[0].shape[2] != hx[1].shape[2]
    weights = grouped(kind, params, has_biases, projected, num_layers * directions)
    for h in hx:
        if h.shape[:2] != (len(weights), sizes[0]):
            raise RuntimeError(
                f"{kind.name}: Expected hidden size {(len(weights), sizes[0], h.shape[-1])}, got {list(h.shape)}"
            )
    starts = list(zip(*[h.unbind(0) for h in hx], strict=True))
    ends = []
    for layer in range(num_layers):
        outputs = []
        for k in range(layer * directions, (layer + 1) * directions):
            output, last = recur(kind, rows, list(starts[k]), weights[k], sizes, k % directions == 1)
            outputs.append(output)
            ends.append(last)
        rows = outputs[0] if len(outputs) == 1 else cat(outputs, 1)
        if dropout > 0 and train and layer < num_layers - 1:
            rows = drop(rows, dropout, True)
    return (rows, *(stack(list(each)) for each in zip(*ends, strict=True)))


def run_layers(kind: Kind, *arguments: Any) -> tuple[Tensor, ...]:
    """A layer function's nine arguments; those of a packed batch are (data, batch_sizes, hx, params, ...)."""
    if isinstance(arguments[3], (list, tuple)):
        data, batch_sizes, hx, params, *options = arguments
        sizes = tuple(batch_sizes.tolist() if isinstance(batch_sizes, Tensor) else batch_sizes)
        if sum(sizes) != len(data) or list(sizes) != sorted(sizes, reverse=True):
            raise RuntimeError(f"{kind.name}: batch_sizes {list(sizes)} do not fit {len(data)} rows of packed data")
        return through_layers(kind, data, sizes, hidden_states(kind, hx), params, *options)
    input, hx, params, *options, batch_first = arguments
    if input.ndim != 3:
        raise RuntimeError(f"{kind.name}: input must have 3 dimensions, got {input.ndim}")
    input = input.transpose(0, 1) if batch_first else input
    time, batch, width = input.shape
    rows, *states = through_layers(
        kind, input.reshape(time * batch, width), (batch,) * time, hidden_states(kind, hx), params, *options
    )
    output = rows.reshape(time, batch, rows.shape[1])
    return (output.transpose(0, 1) if batch_first else output, *states)


def hidden_states(kind: Kind, hx: Any) -> list[Tensor]:
    """The initial states, as many as this kind has."""
    if kind.states == 1:
        return [hx]
    if isinstance(hx, Tensor) or len(hx) != kind.states:
        raise RuntimeError(f"{kind.name} expects two hidden states")
    return list(hx)


def described(gates: int, width: int, hidden: int, biases: bool = True) -> list[A]:
    """Samples of the parameters of one direction of one layer."""
    weights = [A(gates * hidden, width), A(gates * hidden, hidden)]
    return [*weights, A(gates * hidden), A(gates * hidden)] if biases else weights


def described_calls(kind: str, lo: float = -2.0) -> list[Sample]:
    """Samples of a layer function: one layer, two directions, two layers, and a packed batch."""
    gates, several = KINDS[kind].gates, KINDS[kind].states > 1

    def states(*shape: int) -> Any:
        return [A(*shape), A(*shape)] if several else A(*shape)

    rows, flags = A(6, 2, lo=lo), (0.0, False)
    return [
        sample(A(3, 2, 2, lo=lo), states(1, 2, 2), described(gates, 2, 2), True, 1, *flags, False, False),
        sample(A(2, 3, 2, lo=lo), states(2, 2, 1), described(gates, 2, 1, False) * 2, False, 1, *flags, True, True),
        sample(
            A(2, 1, 2, lo=lo), states(2, 1, 1), described(gates, 2, 1) + described(gates, 1, 1), True, 2, *flags, False, False
        ),
        sample(rows, [3, 2, 1], states(2, 3, 1), described(gates, 2, 1) * 2, True, 1, *flags, True, peer=False),
    ]


@public(
    method=False,
    samples=[
        *described_calls("lstm"),
        sample(A(2, 1, 2), [A(1, 1, 1), A(1, 1, 2)], [A(8, 2), A(8, 1), A(1, 2)], False, 1, 0.0, False, False, False),
    ],
)
def lstm(
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: Any,
    num_layers: Any,
    dropout: Any,
    train: Any,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """Long short-term memory over a batch of sequences: outputs, last hidden states and last cells."""
    return run_layers(KINDS["lstm"], input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)


@public(method=False, samples=described_calls("gru"))
def gru(
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: Any,
    num_layers: Any,
    dropout: Any,
    train: Any,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """Gated recurrent units over a batch of sequences: outputs and last states."""
    return run_layers(KINDS["gru"], input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)


@public(method=False, samples=described_calls("rnn_tanh"))
def rnn_tanh(
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: Any,
    num_layers: Any,
    dropout: Any,
    train: Any,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """A plain recurrent network with tanh over a batch of sequences: outputs and last states."""
    return run_layers(KINDS["rnn_tanh"], input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)


@public(method=False, samples=described_calls("rnn_relu"))
def rnn_relu(
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: Any,
    num_layers: Any,
    dropout: Any,
    train: Any,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """A plain recurrent network with relu over a batch of sequences: outputs and last states."""
    return run_layers(KINDS["rnn_relu"], input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)


# ---- cells


def step(kind: Kind, input: Tensor, states: list[Tensor], weights: Weights) -> list[Tensor]:
    """One step of a recurrence, from states to states."""
    if input.ndim != 2:
        raise RuntimeError(f"{kind.name}_cell: input must have 2 dimensions, got {input.ndim}")
    width = weights.w_ih.tj_array.shape[1]
    if input.tj_array.shape[1] != width:
        raise RuntimeError(f"input has inconsistent input_size: got {input.shape[1]} expected {width}")
    expected = (input.tj_array.shape[0], weights.w_hh.tj_array.shape[1])
    for k, h in enumerate(states):
        if h.tj_array.shape != expected:
            raise unfit_state(h, k, *expected)
    return recur(kind, input, states, weights, (expected[0],), False)[1]


def unfit_state(h: Tensor, k: int, batch: int, width: int) -> RuntimeError:
    if h.ndim != 2:
        return RuntimeError(f"hidden{k} must have 2 dimensions, got {h.ndim}")
    if h.shape[0] != batch:
        return RuntimeError(f"Input batch size {batch} doesn't match hidden{k} batch size {h.shape[0]}")
    return RuntimeError(f"hidden{k} has inconsistent hidden_size: got {h.shape[1]}, expected {width}")


@public(
    method=False,
    samples=[
        sample(A(2, 3), [A(2, 2), A(2, 2)], *described(4, 3, 2)),
        sample(A(1, 2), [A(1, 3), A(1, 3)], *described(4, 2, 3, False)),
    ],
)
def lstm_cell(
    input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One step of long short-term memory: the new hidden state and cell."""
    if isinstance(hx, Tensor) or len(hx) != 2:
        raise RuntimeError("lstm_cell expects two hidden states")
    h, c = step(KINDS["lstm"], input, list(hx), Weights(w_ih, w_hh, b_ih, b_hh))
    return h, c


@public(
    method=False, samples=[sample(A(2, 3), A(2, 2), *described(3, 3, 2)), sample(A(1, 2), A(1, 3), *described(3, 2, 3, False))]
)
def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of gated recurrent units: the new state."""
    return step(KINDS["gru"], input, [hx], Weights(w_ih, w_hh, b_ih, b_hh))[0]


@public(
    method=False, samples=[sample(A(2, 3), A(2, 2), *described(1, 3, 2)), sample(A(1, 2), A(1, 3), *described(1, 2, 3, False))]
)
def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a plain recurrent network: tanh(w_ih x + b_ih + w_hh h + b_hh)."""
    return step(KINDS["rnn_tanh"], input, [hx], Weights(w_ih, w_hh, b_ih, b_hh))[0]


@public(
    method=False, samples=[sample(A(2, 3), A(2, 2), *described(1, 3, 2)), sample(A(1, 2), A(1, 3), *described(1, 2, 3, False))]
)
def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a plain recurrent network: relu(w_ih x + b_ih + w_hh h + b_hh)."""
    return step(KINDS["rnn_relu"], input, [hx], Weights(w_ih, w_hh, b_ih, b_hh))[0]
