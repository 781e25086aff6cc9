"""Recurrent layers, cells and packed batches against PyTorch: values, gradients, training, weights both ways, errors."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from peers.common import assert_alike, numpy_of, outcome

KINDS = ["RNN", "GRU", "LSTM"]


def pair(kind: str, *args: Any, dtype: str = "float64", **kwargs: Any) -> tuple[Any, Any]:
    """The same layer in both libraries, with PyTorch's weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(*args, dtype=getattr(torch, dtype), **kwargs)
    mine = getattr(tj.nn, kind)(*args, dtype=getattr(tj, dtype), **kwargs)
    result = mine.load_state_dict({k: tj.from_numpy(v.numpy().copy()) for k, v in theirs.state_dict().items()})
    assert str(result) == "<All keys matched successfully>"
    return mine, theirs


def drawn(*shapes: tuple[int, ...], dtype: str = "float64") -> list[tuple[Any, Any]]:
    """Leaves with the same values in both libraries."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    return [(tj.from_numpy(a.copy()).requires_grad_(), torch.from_numpy(a.copy()).requires_grad_()) for a in arrays]


def hidden(states: tuple[Any, ...]) -> Any:
    return states if len(states) > 1 else states[0]


def flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [t for r in result for t in flat(r)]
    return [result]


def floats(result: Any) -> list[Any]:
    return [t for t in flat(result) if t is not None and t.is_floating_point()]


def compare(modules: tuple[Any, Any], results: tuple[Any, Any], inputs: list[tuple[Any, Any]], rtol: float = 1e-9) -> None:
    """Values, and the gradients of parameters and inputs for the same weights on the results."""
    mine, theirs = results
    assert_alike(flat(mine), flat(theirs), rtol=rtol, atol=rtol)
    random = np.random.default_rng(1)
    weights = [random.standard_normal(tuple(t.shape)) for t in floats(theirs)]
    wanted = [[*module.parameters(), *(pair[i] for pair in inputs)] for i, module in enumerate(modules)]
    total = sum((t * tj.from_numpy(w).to(t.dtype)).sum() for t, w in zip(floats(mine), weights, strict=True))
    found = tj.autograd.grad(total, wanted[0], allow_unused=True)
    total = sum((t * torch.from_numpy(w).to(t.dtype)).sum() for t, w in zip(floats(theirs), weights, strict=True))
    expected = torch.autograd.grad(total, wanted[1], allow_unused=True)
    assert_alike(list(found), list(expected), rtol=10 * rtol, atol=10 * rtol)


OPTIONS = [
    {},
    {"bias": False},
    {"batch_first": True},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 3, "bidirectional": True, "batch_first": True, "bias": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind: str, options: dict[str, Any]) -> None:
    modules = pair(kind, 3, 5, **options)
    assert repr(modules[0]) == repr(modules[1])
    assert [(n, tuple(p.shape)) for n, p in modules[0].named_parameters()] == [
        (n, tuple(p.shape)) for n, p in modules[1].named_parameters()
    ]
    count = modules[0].num_layers * (2 if modules[0].bidirectional else 1)
    states = 2 if kind == "LSTM" else 1
    for batch in (4, None):
        lead = (7, 4) if batch and not options.get("batch_first") else (4, 7) if batch else (7,)
        shape = (count, 4, 5) if batch else (count, 5)
        x, *hx = drawn((*lead, 3), *[shape] * states)
        compare(modules, tuple(m(a) for m, a in zip(modules, x, strict=True)), [x])
        results = tuple(m(a, hidden(h)) for m, a, h in zip(modules, x, zip(*hx, strict=True), strict=True))
        compare(modules, results, [x, *hx])


@pytest.mark.parametrize(
    "kwargs", [{"nonlinearity": "relu"}, {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True}], ids=str
)
def test_relu(kwargs: dict[str, Any]) -> None:
    modules = pair("RNN", 3, 5, **kwargs)
    (x,) = drawn((6, 2, 3))
    compare(modules, tuple(m(a) for m, a in zip(modules, x, strict=True)), [x])
    assert repr(modules[0]) == repr(modules[1])


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "bias": False}], ids=str)
def test_projections(options: dict[str, Any]) -> None:
    modules = pair("LSTM", 3, 5, proj_size=2, **options)
    (x,) = drawn((6, 2, 3))
    compare(modules, tuple(m(a) for m, a in zip(modules, x, strict=True)), [x])
    assert repr(modules[0]) == repr(modules[1])


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision(kind: str) -> None:
    modules = pair(kind, 16, 32, num_layers=2, dtype="float32")
    (x,) = drawn((20, 8, 16), dtype="float32")
    compare(modules, tuple(m(a) for m, a in zip(modules, x, strict=True)), [x], rtol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind: str, bias: bool) -> None:
    modules = pair(f"{kind}Cell", 3, 5, bias=bias)
    assert repr(modules[0]) == repr(modules[1])
    for lead in ((4,), ()):
        x, *hx = drawn((*lead, 3), *[(*lead, 5)] * (2 if kind == "LSTM" else 1))
        compare(modules, tuple(m(a) for m, a in zip(modules, x, strict=True)), [x])
        results = []
        for m, a, h in zip(modules, x, zip(*hx, strict=True), strict=True):
            state = hidden(h)
            for _ in range(3):
                state = m(a, state)
            results.append(state)
        compare(modules, tuple(results), [x, *hx])


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind: str) -> None:
    # PyTorch's own layer has no second derivative on the CPU for LSTM, its cell has.
    modules = pair(f"{kind}Cell", 3, 4)
    x, *hx = drawn((2, 3), *[(2, 4)] * (2 if kind == "LSTM" else 1))
    found = []
    for m, a, h, lib in zip(modules, x, zip(*hx, strict=True), (tj, torch), strict=True):
        state = hidden(h)
        for _ in range(3):
            state = m(a, state)
        (first,) = lib.autograd.grad((floats(state)[0] ** 2).sum(), a, create_graph=True)
        found.append(lib.autograd.grad((first**2).sum(), [a, *h, *m.parameters()]))
    assert_alike(list(found[0]), list(found[1]), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [2, 5, 1, 4]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_packed(kind: str, lengths: list[int]) -> None:
    modules = pair(kind, 3, 4, num_layers=2, bidirectional=True)
    ordered = lengths == sorted(lengths, reverse=True)
    x, *hx = drawn((5, 4, 3), *[(4, 4, 4)] * (2 if kind == "LSTM" else 1))
    results = []
    for lib, m, a, h in zip((tj, torch), modules, x, zip(*hx, strict=True), strict=True):
        rnn = lib.nn.utils.rnn
        for start in (None, hidden(h)):
            packed = rnn.pack_padded_sequence(a, lengths, enforce_sorted=ordered)
            output, last = m(packed, start)
            results.append((*packed, *output, last, *rnn.pad_packed_sequence(output, total_length=6, padding_value=2.0)))
    for i in range(2):
        compare(modules, (results[i], results[i + 2]), [x, *hx] if i else [x])


@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_and_packing(batch_first: bool) -> None:
    random = np.random.default_rng(0)
    for shape, side in itertools.product([(), (2,), (2, 3)], ["left", "right"]):
        arrays = [random.standard_normal((n, *shape)) for n in (2, 4, 1, 4)]
        results = []
        for lib, convert in ((tj, tj.from_numpy), (torch, torch.from_numpy)):
            rnn = lib.nn.utils.rnn
            sequences = [convert(a.copy()) for a in arrays]
            padded = rnn.pad_sequence(sequences, batch_first, 3.0, side)
            packed = rnn.pack_sequence(sequences, enforce_sorted=False)
            again = rnn.pad_packed_sequence(packed, batch_first, -1.0, 6)
            whole = rnn.pad_sequence(sequences, True)
            results.append([padded, *packed, *again, *rnn.unpack_sequence(packed), *rnn.unpad_sequence(whole, again[1], True)])
        assert_alike(*results, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_training(kind: str) -> None:
    """The same losses and weights over ten steps, and the weights back in PyTorch."""
    mine, theirs = pair(kind, 4, 6, num_layers=2, batch_first=True, dtype="float32")
    random = np.random.default_rng(0)
    data = [(random.standard_normal((8, 7, 4)).astype("f"), random.standard_normal((8, 7, 6)).astype("f")) for _ in range(10)]
    losses = []
    for lib, module in ((tj, mine), (torch, theirs)):
        optimizer = lib.optim.Adam(module.parameters(), lr=0.01)
        found = []
        for x, y in data:
            optimizer.zero_grad()
            loss = lib.nn.functional.mse_loss(module(lib.from_numpy(x.copy()))[0], lib.from_numpy(y.copy()))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    back = {k: torch.from_numpy(numpy_of(v)) for k, v in mine.state_dict().items()}
    for k, v in theirs.state_dict().items():
        np.testing.assert_allclose(back[k].numpy(), v.numpy(), rtol=1e-3, atol=1e-4)
    theirs.load_state_dict(back)


@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights_have_the_same_distribution(kind: str) -> None:
    values = []
    for lib in (tj, torch):
        lib.manual_seed(0)
        values.append(np.concatenate([numpy_of(p).ravel() for p in getattr(lib.nn, kind)(30, 100).parameters()]))
    mine, theirs = values
    assert mine.shape == theirs.shape and np.abs(mine).max() <= 0.1
    np.testing.assert_allclose(np.quantile(mine, np.linspace(0, 1, 11)), np.quantile(theirs, np.linspace(0, 1, 11)), atol=3e-3)


def z(lib: Any, *shape: int) -> Any:
    return lib.zeros(*shape)


ERRORS: list[Any] = [
    lambda t: t.nn.LSTM(3, 4)(z(t, 5, 2, 4)),
    lambda t: t.nn.LSTM(3, 4)(z(t, 5, 2, 3, 1)),
    lambda t: t.nn.LSTM(3, 4)(z(t, 5, 2, 3), z(t, 1, 2, 4)),
    lambda t: t.nn.LSTM(3, 4)(z(t, 5, 2, 3), (z(t, 1, 2, 4), z(t, 1, 3, 4))),
    lambda t: t.nn.LSTM(3, 4)(z(t, 5, 3), (z(t, 1, 1, 4), z(t, 1, 1, 4))),
    lambda t: t.nn.GRU(3, 4)(z(t, 5, 2, 3), z(t, 2, 2, 4)),
    lambda t: t.nn.GRU(3, 4)(z(t, 5, 2, 3), z(t, 2, 4)),
    lambda t: t.nn.GRU(3, 4)(z(t, 0, 2, 3)),
    lambda t: t.nn.GRU(3, 4)(z(t, 5, 2, 3).double()),
    lambda t: t.nn.GRU(3, 4, proj_size=2),
    lambda t: t.nn.RNN(3, 4, nonlinearity="sin"),
    lambda t: t.nn.RNN(3, 4, num_layers=0),
    lambda t: t.nn.RNN(3, 4, dropout=2),
    lambda t: t.nn.RNN(3.5, 4),
    lambda t: t.nn.RNN(3, 0),
    lambda t: t.nn.LSTM(3, 4, proj_size=4),
    lambda t: t.nn.LSTM(3, 4, bias=1),
    lambda t: t.nn.LSTMCell(3, 4)(z(t, 2, 4)),
    lambda t: t.nn.LSTMCell(3, 4)(z(t, 2, 3), (z(t, 3, 4), z(t, 3, 4))),
    lambda t: t.nn.GRUCell(3, 4)(z(t, 2, 3), z(t, 2, 5)),
    lambda t: t.nn.GRUCell(3, 4)(z(t, 1, 2, 3)),
    lambda t: t.nn.RNNCell(3, 4, nonlinearity="sin")(z(t, 2, 3)),
    lambda t: t.nn.utils.rnn.pack_padded_sequence(z(t, 4, 2), [2, 4]),
    lambda t: t.nn.utils.rnn.pack_padded_sequence(z(t, 4, 2), [4, 0]),
    lambda t: t.nn.utils.rnn.pack_padded_sequence(z(t, 4, 2), [4]),
    lambda t: t.nn.utils.rnn.pack_padded_sequence(z(t, 4), [4]),
    lambda t: t.nn.utils.rnn.pack_padded_sequence(z(t, 0, 2), [1, 1]),
    lambda t: t.nn.utils.rnn.pad_sequence([]),
    lambda t: t.nn.utils.rnn.pad_sequence(3),
    lambda t: t.nn.utils.rnn.pad_sequence([z(t, 2)], padding_side="top"),
    lambda t: t.nn.utils.rnn.pad_packed_sequence(t.nn.utils.rnn.pack_sequence([z(t, 3)]), total_length=2),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, mine = outcome(ERRORS[number], torch), outcome(ERRORS[number], tj)
    assert isinstance(theirs, type) and mine is theirs
