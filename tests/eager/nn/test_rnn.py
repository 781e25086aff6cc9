"""Recurrent layers and cells: closed forms, layers against loops over cells, packed batches against single sequences."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from hypothesis import given, settings
from hypothesis import strategies as st
from tapejit import nn
from tapejit.nn.utils.rnn import (
    PackedSequence,
    invert_permutation,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
    unpad_sequence,
)

KINDS = ["RNN", "GRU", "LSTM"]
F64 = {"dtype": tj.float64}


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    a, b = (x.detach().numpy() if isinstance(x, tj.Tensor) else np.asarray(x) for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def make(kind: str, *args: Any, **kwargs: Any) -> Any:
    tj.manual_seed(0)
    return getattr(nn, kind)(*args, **{**F64, **kwargs})


def states_of(hx: Any) -> tuple[tj.Tensor, ...]:
    return hx if isinstance(hx, tuple) else (hx,)


def given_states(kind: str, *shape: int) -> Any:
    states = tuple(tj.randn(*shape, **F64) for _ in range(2 if kind == "LSTM" else 1))
    return states if kind == "LSTM" else states[0]


def through_cells(layer: Any, x: tj.Tensor, hx: Any) -> tuple[tj.Tensor, Any]:
    """One layer and direction as a loop over a cell with the same parameters."""
    cell = getattr(nn, type(layer).__name__ + "Cell")(layer.input_size, layer.hidden_size, layer.bias, **F64)
    for name in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layer.bias else ())):
        cell._parameters[name] = getattr(layer, f"{name}_l0")
    outputs = []
    for step in x:
        hx = cell(step, hx)
        outputs.append(states_of(hx)[0])
    return tj.stack(outputs), hx


# ---- parameters


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_names_shapes_and_initial_values(kind: str, gates: int) -> None:
    layer = make(kind, 3, 16, 2, bidirectional=True)
    expected = {}
    for k, width in ((0, 3), (1, 32)):
        for suffix in ("", "_reverse"):
            expected[f"weight_ih_l{k}{suffix}"] = (gates * 16, width)
            expected[f"weight_hh_l{k}{suffix}"] = (gates * 16, 16)
            expected[f"bias_ih_l{k}{suffix}"] = expected[f"bias_hh_l{k}{suffix}"] = (gates * 16,)
    assert {n: tuple(p.shape) for n, p in layer.state_dict().items()} == expected
    values = np.concatenate([p.detach().numpy().ravel() for p in layer.parameters()])
    assert np.abs(values).max() <= 0.25 and abs(values.mean()) < 0.01 and abs(values.std() - 0.25 / np.sqrt(3)) < 0.005
    assert [len(group) for group in layer.all_weights] == [4] * 4
    assert layer.all_weights[3][1] is layer.weight_hh_l1_reverse
    layer.flatten_parameters()


def test_repr() -> None:
    assert repr(nn.LSTM(3, 4)) == "LSTM(3, 4)"
    layer = nn.GRU(3, 4, 2, bias=False, batch_first=True, dropout=0.5, bidirectional=True)
    assert repr(layer) == "GRU(3, 4, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True)"
    assert repr(nn.LSTM(3, 4, proj_size=2)) == "LSTM(3, 4, proj_size=2)"
    assert repr(nn.RNNCell(3, 4, bias=False, nonlinearity="relu")) == "RNNCell(3, 4, bias=False, nonlinearity=relu)"
    assert repr(nn.LSTMCell(3, 4)) == "LSTMCell(3, 4)"


def test_a_deep_copy_has_parameters_of_its_own() -> None:
    layer = make("LSTM", 2, 3)
    other = copy.deepcopy(layer)
    x = tj.randn(4, 1, 2, **F64)
    close(other(x)[0], layer(x)[0], 0)
    with tj.no_grad():
        other.weight_hh_l0.zero_()
    assert not np.allclose(other(x)[0].detach().numpy(), layer(x)[0].detach().numpy())
    other.load_state_dict(layer.state_dict())
    close(other(x)[0], layer(x)[0], 0)


# ---- closed forms


def test_a_relu_network_of_identities_sums() -> None:
    layer = make("RNN", 2, 2, nonlinearity="relu", bias=False, bidirectional=True)
    with tj.no_grad():
        for p in layer.parameters():
            p.copy_(tj.eye(2))
    x = tj.rand(5, 3, 2, **F64)
    output, h = layer(x)
    up, down = np.cumsum(x.numpy(), 0), np.cumsum(x.numpy()[::-1], 0)[::-1]
    close(output, np.concatenate([up, down], -1))
    close(h, np.stack([up[-1], down[0]]))


def test_a_gru_of_zeros_halves_its_state() -> None:
    layer = make("GRU", 2, 3)
    with tj.no_grad():
        for p in layer.parameters():
            p.zero_()
    h0 = tj.ones(1, 2, 3, **F64)
    output, _ = layer(tj.randn(4, 2, 2, **F64), h0)
    close(output, np.broadcast_to(0.5 ** np.arange(1, 5)[:, None, None], (4, 2, 3)))


def test_an_lstm_with_open_gates_remembers() -> None:
    layer = make("LSTM", 1, 1)
    with tj.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.bias_ih_l0.copy_(tj.tensor([-50.0, 50.0, 0.0, 50.0]))  # nothing in, nothing forgotten, all out
    c0 = tj.tensor([[[0.7]]], **F64)
    output, (h, c) = layer(tj.randn(6, 1, 1, **F64), (tj.zeros(1, 1, 1, **F64), c0))
    close(output, np.full((6, 1, 1), np.tanh(0.7)))
    close(c, c0)
    close(h, output[-1:])


# ---- layers and cells


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_a_loop_over_its_cell(kind: str, bias: bool) -> None:
    layer = make(kind, 3, 4, bias=bias)
    x = tj.randn(6, 2, 3, **F64).requires_grad_()
    hx = given_states(kind, 1, 2, 4)
    output, last = layer(x, hx)
    cells = tuple(h[0] for h in states_of(hx))
    expected, expected_last = through_cells(layer, x, cells if kind == "LSTM" else cells[0])
    close(output, expected)
    for a, b in zip(states_of(last), states_of(expected_last), strict=True):
        close(a[0], b)
    weights = tj.randn(6, 2, 4, **F64)
    wanted = [x, *layer.parameters()]
    found = tj.autograd.grad((output * weights).sum() + sum(s.sum() for s in states_of(last)), wanted)
    total = (expected * weights).sum() + sum(s.sum() for s in states_of(expected_last))
    for a, b in zip(found, tj.autograd.grad(total, wanted), strict=True):
        close(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_directions_by_hand(kind: str) -> None:
    layer = make(kind, 3, 2, 2, bidirectional=True)
    x, hx = tj.randn(5, 2, 3, **F64), given_states(kind, 4, 2, 2)
    output, last = layer(x, hx)
    below = x
    for k in range(2):
        found = []
        for d in range(2):
            single = make(kind, below.shape[-1], 2)
            suffix = f"_l{k}" + ("_reverse" if d else "")
            single.load_state_dict(
                {f"{n}_l0": getattr(layer, n + suffix) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
            )
            start = tuple(h[2 * k + d : 2 * k + d + 1] for h in states_of(hx))
            y, end = single(below.flip(0) if d else below, start if kind == "LSTM" else start[0])
            found.append(y.flip(0) if d else y)
            for a, b in zip(states_of(last), states_of(end), strict=True):
                close(a[2 * k + d], b[0])
        below = tj.cat(found, -1)
    close(output, below)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_that_inputs_come_in(kind: str) -> None:
    layer = make(kind, 3, 4, 2, bidirectional=True)
    x, hx = tj.randn(5, 2, 3, **F64), given_states(kind, 4, 2, 4)
    output, last = layer(x, hx)
    layer.batch_first = True
    turned, same = layer(x.transpose(0, 1), hx)
    close(turned.transpose(0, 1), output)
    for a, b in zip(states_of(same), states_of(last), strict=True):
        close(a, b)
    alone = tuple(h[:, 1] for h in states_of(hx))
    single, ends = layer(x[:, 1], alone if kind == "LSTM" else alone[0])
    close(single, output[:, 1])
    for a, b in zip(states_of(ends), states_of(last), strict=True):
        close(a, b[:, 1])
    zeros = tuple(tj.zeros(4, 2, 4, **F64) for _ in states_of(hx))
    close(layer(x.transpose(0, 1))[0], layer(x.transpose(0, 1), zeros if kind == "LSTM" else zeros[0])[0])
    empty, _ = layer(x[:, :0].transpose(0, 1))
    assert tuple(empty.shape) == (0, 5, 8)


@pytest.mark.parametrize("cell", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells_without_a_batch_or_a_state(cell: str) -> None:
    step = make(cell, 3, 4)
    x = tj.randn(2, 3, **F64)
    states = [tj.zeros(2, 4, **F64)] * (2 if cell == "LSTMCell" else 1)
    batched = states_of(step(x, tuple(states) if cell == "LSTMCell" else states[0]))
    for a, b, c in zip(batched, states_of(step(x)), states_of(step(x[1])), strict=True):
        close(a, b, 0)
        close(c, a[1])


def test_a_projection_is_applied_to_the_outputs() -> None:
    layer = make("LSTM", 3, 4, 2, proj_size=2, bidirectional=True)
    assert tuple(layer.weight_hr_l1_reverse.shape) == (2, 4) and tuple(layer.weight_ih_l1.shape) == (16, 4)
    output, (h, c) = layer(tj.randn(5, 2, 3, **F64))
    assert [tuple(t.shape) for t in (output, h, c)] == [(5, 2, 4), (4, 2, 2), (4, 2, 4)]
    output.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind: str) -> None:
    layer = make(kind, 2, 2, bidirectional=True)
    x = tj.randn(3, 2, 2, **F64).requires_grad_()
    assert tj.autograd.gradgradcheck(lambda x, w: outputs_with(layer, x, w), (x, layer.weight_hh_l0))


def outputs_with(layer: Any, x: tj.Tensor, weight: tj.Tensor) -> tj.Tensor:
    other = copy.copy(layer)
    other._parameters = {**layer._parameters, "weight_hh_l0": weight}
    return other(x)[0]  # type: ignore[no-any-return]


def test_dropout_is_between_layers_and_in_training_only() -> None:
    x = tj.randn(4, 2, 3, **F64)
    layer = make("GRU", 3, 8, 2, dropout=0.5)
    plain = make("GRU", 3, 8, 2)
    assert not np.allclose(layer(x)[0].detach().numpy(), plain(x)[0].detach().numpy())
    close(layer.eval()(x)[0], plain(x)[0], 0)
    layer.train().dropout = 1.0  # then the upper layer sees nothing
    close(layer(x)[0], layer(tj.zeros_like(x))[0])
    assert layer(x)[1][0].abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16, tj.float32])
def test_dtypes(kind: str, dtype: tj.dtype) -> None:
    layer = make(kind, 3, 4, bidirectional=True)
    x = tj.randn(5, 2, 3, **F64)
    expected = layer(x)[0]
    low = layer.to(dtype)
    output, last = low(x.to(dtype))
    assert {output.dtype, *(s.dtype for s in states_of(last))} == {dtype}
    close(output.double(), expected, 1e-6 if dtype is tj.float32 else 0.05)
    output.sum().backward()
    assert low.weight_hh_l0.grad.dtype is dtype


@pytest.mark.parametrize("kind", KINDS)
def test_results_may_be_overwritten(kind: str) -> None:
    layer = make(kind, 3, 4)
    x = tj.randn(5, 2, 3, **F64)
    output, last = layer(x)
    (output * 2).sum().backward()
    expected = layer.weight_hh_l0.grad.clone()
    layer.zero_grad()
    output, last = layer(x)
    total = (output * 2).sum()
    output.zero_()
    for s in states_of(last):
        s.mul_(3)
    total.backward()
    close(layer.weight_hh_l0.grad, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_only_wanted_gradients(kind: str) -> None:
    layer = make(kind, 3, 4).requires_grad_(False)
    x = tj.randn(5, 2, 3, **F64)
    assert not layer(x)[0].requires_grad
    layer.bias_hh_l0.requires_grad_()
    layer(x)[0].sum().backward()
    alone = layer.bias_hh_l0.grad
    layer.requires_grad_().zero_grad()
    layer(x)[0].sum().backward()
    close(alone, layer.bias_hh_l0.grad)


def test_the_tape_of_a_layer_is_freed_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        output, _ = make("LSTM", 3, 4)(tj.randn(5, 2, 3, **F64))
        output.sum().backward()
        watch = weakref.ref(output)
        del output
        assert watch() is None
    finally:
        gc.enable()


def test_an_lstm_learns_to_add() -> None:
    tj.manual_seed(3)
    model = nn.LSTM(2, 16, batch_first=True)
    head = nn.Linear(16, 1)
    parameters = [*model.parameters(), *head.parameters()]
    losses = []
    for _ in range(60):
        x = tj.rand(64, 6, 2)
        target = x[:, :, 0].sum(1, keepdim=True) / 6
        loss = ((head(model(x)[0][:, -1]) - target) ** 2).mean()
        for p in parameters:
            p.grad = None
        loss.backward()
        with tj.no_grad():
            for p in parameters:
                p -= 0.3 * p.grad
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 10


# ---- packed batches


def random_sequences(lengths: list[int], *shape: int) -> list[tj.Tensor]:
    return [tj.randn(n, *shape, **F64) for n in lengths]


@pytest.mark.parametrize("lengths", [[4, 4, 4], [5, 3, 1], [2, 6, 1, 6]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_batch_is_its_sequences_one_by_one(kind: str, lengths: list[int]) -> None:
    layer = make(kind, 3, 2, 2, bidirectional=True)
    sequences = [s.requires_grad_() for s in random_sequences(lengths, 3)]
    hx = given_states(kind, 4, len(lengths), 2)
    packed, last = layer(pack_sequence(sequences, enforce_sorted=False), hx)
    outputs = unpack_sequence(packed)
    total = sum((y * y).sum() for y in outputs) + sum((s * s).sum() for s in states_of(last))
    wanted = [*sequences, *layer.parameters()]
    found = tj.autograd.grad(total, wanted)
    total = tj.zeros((), **F64)
    for e, s in enumerate(sequences):
        start = tuple(h[:, e].contiguous() for h in states_of(hx))
        y, ends = layer(s, start if kind == "LSTM" else start[0])
        close(outputs[e], y)
        for a, b in zip(states_of(last), states_of(ends), strict=True):
            close(a[:, e], b)
        total = total + (y * y).sum() + sum((end * end).sum() for end in states_of(ends))
    for a, b in zip(found, tj.autograd.grad(total, wanted), strict=True):
        close(a, b)


def test_packed_by_hand() -> None:
    x = tj.tensor([[1, 2, 0], [3, 0, 0], [4, 5, 6]])
    packed = pack_padded_sequence(x, [2, 1, 3], batch_first=True, enforce_sorted=False)
    assert packed.data.tolist() == [4, 1, 3, 5, 2, 6] and packed.batch_sizes.tolist() == [3, 2, 1]
    assert packed.sorted_indices.tolist() == [2, 0, 1] and packed.unsorted_indices.tolist() == [1, 2, 0]
    padded, lengths = pad_packed_sequence(packed, batch_first=True)
    assert padded.tolist() == x.tolist() and lengths.tolist() == [2, 1, 3]
    longer, _ = pad_packed_sequence(packed, padding_value=-1, total_length=4)
    assert longer.T.tolist() == [[1, 2, -1, -1], [3, -1, -1, -1], [4, 5, 6, -1]]
    assert repr(pack_sequence([tj.tensor([1, 2]), tj.tensor([3])])) == (
        "PackedSequence(data=tensor([1, 3, 2]), batch_sizes=tensor([2, 1]), sorted_indices=None, unsorted_indices=None)"
    )


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([(), (2,), (2, 3)]),
    st.sampled_from(["left", "right"]),
)
def test_padding_and_packing_undo_each_other(lengths: list[int], batch_first: bool, shape: tuple[int, ...], side: str) -> None:
    sequences = random_sequences(lengths, *shape)
    padded = pad_sequence(sequences, batch_first, -7.0, side)
    longest = max(lengths)
    for e, s in enumerate(sequences):
        row = (padded if batch_first else padded.transpose(0, 1))[e].numpy()
        fill = np.full((longest - len(s), *shape), -7.0)
        assert np.array_equal(row, np.concatenate([s.numpy(), fill] if side == "right" else [fill, s.numpy()]))
    padded = pad_sequence(sequences, batch_first)
    for a, s in zip(unpad_sequence(padded, tj.tensor(lengths), batch_first), sequences, strict=True):
        assert np.array_equal(a.numpy(), s.numpy())
    packed = pack_padded_sequence(padded, lengths, batch_first, enforce_sorted=False)
    assert len(packed.data) == sum(lengths) and packed.batch_sizes.sum() == sum(lengths)
    again, counts = pad_packed_sequence(packed, batch_first)
    assert np.array_equal(again.numpy(), padded.numpy()) and counts.tolist() == lengths
    for a, s in zip(unpack_sequence(packed), sequences, strict=True):
        assert np.array_equal(a.numpy(), s.numpy())


def test_gradients_of_padding_and_packing() -> None:
    sequences = [s.requires_grad_() for s in random_sequences([2, 3], 2)]
    padded, _ = pad_packed_sequence(pack_sequence(sequences, enforce_sorted=False), total_length=5)
    (padded * tj.arange(20.0, **F64).view(5, 2, 2)).sum().backward()
    close(sequences[0].grad, [[0, 1], [4, 5]])
    close(sequences[1].grad, [[2, 3], [6, 7], [10, 11]])


def test_conversions_of_a_packed_batch() -> None:
    packed = pack_sequence([tj.arange(3.0), tj.arange(2.0)], enforce_sorted=False)
    assert packed.to(tj.float32) is packed and packed.cpu() is packed and not packed.is_cuda
    for name, dtype in (
        ("double", tj.float64),
        ("half", tj.float16),
        ("long", tj.int64),
        ("int", tj.int32),
        ("byte", tj.uint8),
    ):
        other = getattr(packed, name)()
        assert isinstance(other, PackedSequence) and other.data.dtype is dtype
        assert other.batch_sizes.dtype is tj.int64 and other.sorted_indices.tolist() == [0, 1]
    assert invert_permutation(None) is None and invert_permutation(tj.tensor([2, 0, 1])).tolist() == [1, 2, 0]


# ---- errors


def test_errors_of_layers() -> None:
    z = tj.zeros
    lstm, gru = nn.LSTM(3, 4), nn.GRU(3, 4)
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size. Expected 3, got 4"):
        lstm(z(5, 2, 4))
    with pytest.raises(ValueError, match="LSTM: Expected input to be 2D or 3D, got 4D"):
        lstm(z(5, 2, 4, 1))
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 2, 4\), got \[1, 3, 4\]"):
        lstm(z(5, 2, 3), (z(1, 3, 4), z(1, 2, 4)))
    with pytest.raises(RuntimeError, match=r"For batched 3-D input, hx and cx should also be 3-D"):
        lstm(z(5, 2, 3), (z(2, 4), z(2, 4)))
    with pytest.raises(RuntimeError, match="For unbatched 2-D input, hx should also be 2-D but got 3-D tensor"):
        gru(z(5, 3), z(1, 1, 4))
    with pytest.raises(RuntimeError, match=r"Expected hidden size \(1, 2, 4\), got \[2, 2, 4\]"):
        gru(z(5, 2, 3), z(2, 2, 4))
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0"):
        gru(z(0, 2, 3))
    with pytest.raises(ValueError, match="does not match weight dtype"):
        gru(z(5, 2, 3, **F64))
    with pytest.raises(RuntimeError, match="same dtype"):
        gru(z(5, 2, 3), z(1, 2, 4, **F64))
    with pytest.raises(RuntimeError, match="input must have 2 dimensions, got 1"):
        gru(pack_sequence([z(3), z(2)]))
    with pytest.raises(RuntimeError, match="do not fit 5 rows"):
        gru(PackedSequence(z(5, 3), tj.tensor([2, 2])))


def test_errors_of_options() -> None:
    for kwargs, error in (
        ({"num_layers": 0}, ValueError),
        ({"dropout": 1.5}, ValueError),
        ({"dropout": True}, ValueError),
        ({"bias": 1}, TypeError),
        ({"batch_first": 0}, TypeError),
        ({"proj_size": 4}, ValueError),
        ({"proj_size": -1}, ValueError),
    ):
        with pytest.raises(error):
            nn.LSTM(3, 4, **kwargs)
    with pytest.raises(ValueError, match="only supported for LSTM"):
        nn.GRU(3, 4, proj_size=2)
    with pytest.raises(ValueError, match="Unknown nonlinearity 'sin'"):
        nn.RNN(3, 4, nonlinearity="sin")
    with pytest.raises(ValueError, match="hidden_size must be greater than zero"):
        nn.RNN(3, 0)
    with pytest.raises(TypeError, match="input_size should be of type int, got: float"):
        nn.RNN(3.0, 4)
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last recurrent layer"):
        nn.RNN(3, 4, dropout=0.5)


def test_errors_of_cells() -> None:
    z = tj.zeros
    with pytest.raises(RuntimeError, match="input has inconsistent input_size: got 2 expected 3"):
        nn.GRUCell(3, 4)(z(2, 2))
    with pytest.raises(RuntimeError, match="hidden0 has inconsistent hidden_size: got 3, expected 4"):
        nn.RNNCell(3, 4)(z(2, 3), z(2, 3))
    with pytest.raises(RuntimeError, match="Input batch size 2 doesn't match hidden1 batch size 5"):
        nn.LSTMCell(3, 4)(z(2, 3), (z(2, 4), z(5, 4)))
    with pytest.raises(ValueError, match=r"LSTMCell: Expected hx\[1\] to be 1D or 2D, got 3D"):
        nn.LSTMCell(3, 4)(z(2, 3), (z(2, 4), z(1, 2, 4)))
    with pytest.raises(ValueError, match="RNNCell: Expected input to be 1D or 2D, got 3D"):
        nn.RNNCell(3, 4)(z(1, 2, 3))
    with pytest.raises(RuntimeError, match="Unknown nonlinearity: sin"):
        nn.RNNCell(3, 4, nonlinearity="sin")(z(2, 3))


def test_errors_of_packing() -> None:
    z = tj.zeros
    for lengths, sentence in (
        ([2, 4], "must be sorted in decreasing order"),
        ([4, 0], "has to be greater than 0"),
        ([4, 3, 2], r"Expected `len\(lengths\)` to be equal to batch_size, but got 3 \(batch_size=2\)"),
        ([5, 4], "a length of 5"),
        (tj.tensor([[4, 3]]), "should be a 1D CPU int64 tensor"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            pack_padded_sequence(z(4, 2, 1), lengths)
    with pytest.raises(RuntimeError, match="Cannot pack empty tensors"):
        pack_padded_sequence(z(0, 2, 1), [0, 0])
    with pytest.raises(ValueError, match="total_length=2 and max sequence length being 3"):
        pad_packed_sequence(pack_sequence([z(3)]), total_length=2)
    with pytest.raises(RuntimeError, match="empty list of sequences"):
        pad_sequence([])
    with pytest.raises(RuntimeError, match="Expected iterable"):
        pad_sequence(3)
    with pytest.raises(RuntimeError, match="padding_side"):
        pad_sequence([z(2)], padding_side="top")
