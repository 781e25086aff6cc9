"""Attention with several heads and transformers: by hand from their parts, masks in all their forms, layouts, errors."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import nn
from tapejit.nn import functional as F

F64 = {"dtype": tj.float64}
MASK = nn.Transformer.generate_square_subsequent_mask


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    a, b = (x.detach().numpy() if isinstance(x, tj.Tensor) else np.asarray(x) for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def attention(*args: Any, **kwargs: Any) -> Any:
    tj.manual_seed(0)
    module = nn.MultiheadAttention(*args, **{**F64, **kwargs})
    with tj.no_grad():
        for p in module.parameters():  # biases too are worth a test
            p.uniform_(-1, 1)
    return module


def by_hand(module: Any, query: Any, key: Any, value: Any, mask: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """One sequence, head by head; `mask` is added to the scores (heads, L, S)."""
    query, key, value = (x.detach().numpy() for x in (query, key, value))
    weight, bias = module.in_proj_weight.detach().numpy(), module.in_proj_bias.detach().numpy()
    q, k, v = (x @ w.T + b for x, w, b in zip((query, key, value), np.split(weight, 3), np.split(bias, 3), strict=True))
    outputs, found = [], []
    for h, (a, b, c) in enumerate(zip(*(np.split(x, module.num_heads, -1) for x in (q, k, v)), strict=True)):
        scores = a @ b.T / math.sqrt(module.head_dim) + (0 if mask is None else mask[h])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        outputs.append(weights @ c)
        found.append(weights)
    out = module.out_proj
    return np.concatenate(outputs, -1) @ out.weight.detach().numpy().T + out.bias.detach().numpy(), np.stack(found)


# ---- attention


def test_parameters_and_repr() -> None:
    names = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert list(nn.MultiheadAttention(4, 2).state_dict()) == names
    module = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True, bias=False)
    shapes = {n: tuple(p.shape) for n, p in module.named_parameters()}
    assert shapes == {
        "q_proj_weight": (4, 4), "k_proj_weight": (4, 3), "v_proj_weight": (4, 5), "bias_k": (1, 1, 4), "bias_v": (1, 1, 4),
        "out_proj.weight": (4, 4),
    }  # fmt: skip
    assert repr(nn.MultiheadAttention(4, 2)) == (
        "MultiheadAttention(\n  (out_proj): NonDynamicallyQuantizableLinear(in_features=4, out_features=4, bias=True)\n)"
    )
    assert isinstance(nn.MultiheadAttention(4, 2).out_proj, nn.Linear)


def test_initial_values() -> None:
    tj.manual_seed(0)
    module = nn.MultiheadAttention(64, 4, add_bias_kv=True)
    weight, bound = module.in_proj_weight.detach().numpy(), math.sqrt(6 / (64 + 192))
    assert np.abs(weight).max() <= bound and abs(weight.std() - bound / math.sqrt(3)) < 0.01 * bound
    assert not module.in_proj_bias.any() and not module.out_proj.bias.any()
    assert abs(module.bias_k.detach().std() - math.sqrt(2 / 128)) < 0.05


def test_equal_keys_give_the_mean_of_the_values() -> None:
    module = attention(4, 2)
    key = tj.randn(1, 4, **F64).expand(5, 4)
    value = tj.randn(5, 4, **F64)
    output, weights = module(tj.randn(3, 4, **F64), key, value)
    close(weights, np.full((3, 5), 0.2))
    mean, _ = module(tj.randn(1, 4, **F64), key[:1], value.mean(0, keepdim=True))
    close(output, np.broadcast_to(mean.detach().numpy(), (3, 4)))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shared", ["none", "key", "all"])
def test_against_each_head_by_hand(shared: str, batch_first: bool) -> None:
    module = attention(6, 3, batch_first=batch_first)
    query = tj.randn(4, 2, 6, **F64)
    key = query if shared == "all" else tj.randn(5, 2, 6, **F64)
    value = key if shared != "none" else tj.randn(5, 2, 6, **F64)
    given = [query, key, value]
    if batch_first:
        turned = [x.transpose(0, 1).contiguous() for x in given]
        given = [turned[[x is y for y in given].index(True)] for x in given]  # what is the same tensor stays so
    for average in (True, False):
        output, weights = module(*given, average_attn_weights=average)
        fast, none = module(*given, need_weights=False)
        assert none is None
        close(fast, output)
        output = output.transpose(0, 1) if batch_first else output
        for n in range(2):
            expected, heads = by_hand(module, query[:, n], key[:, n], value[:, n])
            close(output[:, n], expected)
            close(weights[n], heads.mean(0) if average else heads)


def test_without_a_batch() -> None:
    module = attention(6, 3)
    for batch_first in (False, True):
        module.batch_first = batch_first
        q, k = tj.randn(4, 6, **F64), tj.randn(5, 6, **F64)
        output, weights = module(q, k, k, key_padding_mask=tj.tensor([False, True, False, False, True]))
        hidden = np.where([0, 1, 0, 0, 1], -np.inf, 0.0)
        expected, heads = by_hand(module, q, k, k, np.broadcast_to(hidden, (3, 4, 5)))
        close(output, expected)
        close(weights, heads.mean(0))
        output, weights = module(q, q, q, average_attn_weights=False)
        assert tuple(weights.shape) == (3, 4, 4)
        close(output, by_hand(module, q, q, q)[0])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(kind: str, need_weights: bool) -> None:
    module = attention(4, 2, batch_first=True)
    x = tj.randn(3, 5, 4, **F64)
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> tuple[tj.Tensor, np.ndarray]:
        """A mask that lets every query see the first key, and what it adds to the scores."""
        hidden = random.random(shape) < 0.4
        hidden[..., 0] = False
        added = np.where(hidden, -np.inf, 0.0) if kind == "bool" else np.where(hidden, -np.inf, random.standard_normal(shape))
        return tj.from_numpy(hidden if kind == "bool" else added), added

    padding, padding_added = drawn(3, 5)
    for mask, added in (drawn(5, 5), drawn(6, 5, 5), (None, np.zeros((5, 5)))):
        for pad, pad_added in ((padding, padding_added), (None, np.zeros((3, 5)))):
            output, _ = module(x, x, x, key_padding_mask=pad, attn_mask=mask, need_weights=need_weights)
            heads = np.broadcast_to(added, (6, 5, 5)).reshape(3, 2, 5, 5) + pad_added[:, None, None]
            for n in range(3):
                close(output[n], by_hand(module, x[n], x[n], x[n], heads[n])[0])


def test_masks_of_two_kinds_are_merged_with_a_warning() -> None:
    module = attention(4, 2, batch_first=True)
    x = tj.randn(2, 3, 4, **F64)
    padding, mask = tj.tensor([[False, False, True], [False, False, False]]), tj.randn(3, 3, **F64)
    with pytest.warns(UserWarning, match="mismatched key_padding_mask and attn_mask"):
        output, _ = module(x, x, x, key_padding_mask=padding, attn_mask=mask)
    both = tj.where(padding, -math.inf, tj.zeros(2, 3, **F64))
    close(output, module(x, x, x, key_padding_mask=both, attn_mask=mask)[0])


def test_the_causal_hint() -> None:
    module = attention(4, 2, batch_first=True)
    x = tj.randn(2, 5, 4, **F64)
    expected, _ = module(x, x, x, attn_mask=MASK(5, **F64))
    for mask in (MASK(5, **F64), MASK(5, dtype=tj.bool)):
        for need_weights in (True, False):
            close(module(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)[0], expected)
            padding = tj.zeros(2, 5, dtype=mask.dtype)
            close(
                module(x, x, x, key_padding_mask=padding, attn_mask=mask, is_causal=True, need_weights=need_weights)[0],
                expected,
            )
    with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
        module(x, x, x, is_causal=True)


@pytest.mark.parametrize("need_weights", [True, False])
def test_extra_keys(need_weights: bool) -> None:
    module = attention(4, 2, add_bias_kv=True, add_zero_attn=True)
    x = tj.randn(3, 2, 4, **F64)
    padding = tj.tensor([[True, True, True], [False, True, False]])  # the extra keys are never hidden
    output, weights = module(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    assert np.isfinite(output.detach().numpy()).all()
    if need_weights:
        assert tuple(weights.shape) == (2, 3, 5) and not weights[0, :, :3].any()
    keys, values = (b[0, 0].detach().numpy() for b in (module.bias_k, module.bias_v))
    n = 1
    q, k, v = (
        x[:, n].numpy() @ w.T + b
        for w, b in zip(
            np.split(module.in_proj_weight.detach().numpy(), 3), np.split(module.in_proj_bias.detach().numpy(), 3), strict=True
        )
    )
    seen = [0, 2]
    k, v = np.vstack([k[seen], keys, np.zeros(4)]), np.vstack([v[seen], values, np.zeros(4)])
    found = []
    for h in range(2):
        part = slice(2 * h, 2 * h + 2)
        scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(2))
        found.append(scores / scores.sum(-1, keepdims=True) @ v[:, part])
    expected = np.hstack(found) @ module.out_proj.weight.detach().numpy().T + module.out_proj.bias.detach().numpy()
    close(output[:, n], expected)


def test_dropout_of_weights() -> None:
    module = attention(4, 2, dropout=0.5)
    x = tj.randn(6, 3, 4, **F64)
    output, weights = module(x, x, x, average_attn_weights=False)
    assert 0.2 < float((weights == 0).double().mean()) < 0.8
    again, same = module.eval()(x, x, x, average_attn_weights=False)
    close(same.sum(-1), np.ones((3, 2, 6)))
    close(module(x, x, x, need_weights=False)[0], again)
    assert not np.allclose(output.detach().numpy(), again.detach().numpy())


@pytest.mark.parametrize("need_weights", [True, False])
def test_second_derivatives(need_weights: bool) -> None:
    module = attention(4, 2, batch_first=True)

    def outputs(x: tj.Tensor, weight: tj.Tensor) -> tj.Tensor:
        other = copy.copy(module)
        other._parameters = {**module._parameters, "in_proj_weight": weight}
        return other(x, x, x, need_weights=need_weights)[0]  # type: ignore[no-any-return]

    x = tj.randn(1, 3, 4, **F64).requires_grad_()
    weight = module.in_proj_weight.detach().clone().requires_grad_()
    assert tj.autograd.gradcheck(outputs, (x, weight))
    assert tj.autograd.gradgradcheck(outputs, (x, weight))


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16, tj.float32])
def test_dtypes(dtype: tj.dtype) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **F64)
    x = tj.randn(5, 2, 8, **F64)
    expected = layer(x)
    low = layer.to(dtype)
    mask = MASK(5, dtype=dtype)
    output = low(x.to(dtype))
    assert output.dtype is dtype and low(x.to(dtype), mask).dtype is dtype
    close(output.double(), expected, 1e-5 if dtype is tj.float32 else 0.1)
    low(x.to(dtype), mask.to(tj.bool)).sum().backward()
    assert low.self_attn.in_proj_weight.grad.dtype is dtype


# ---- transformers


def layer_by_hand(layer: Any, x: tj.Tensor, mask: Any = None) -> tj.Tensor:
    def attend(y: tj.Tensor) -> tj.Tensor:
        return layer.self_attn(y, y, y, attn_mask=mask)[0]  # type: ignore[no-any-return]

    def feed(y: tj.Tensor) -> tj.Tensor:
        return layer.linear2(layer.activation(layer.linear1(y)))  # type: ignore[no-any-return]

    if layer.norm_first:
        x = x + attend(layer.norm1(x))
        return x + feed(layer.norm2(x))  # type: ignore[no-any-return]
    x = layer.norm1(x + attend(x))
    return layer.norm2(x + feed(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", tj.tanh, nn.SiLU()], ids=["relu", "gelu", "function", "module"])
def test_encoder_layer(activation: Any, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation, norm_first=norm_first, layer_norm_eps=0.1, **F64)
    assert layer.norm1.eps == 0.1
    x = tj.randn(5, 3, 8, **F64)
    close(layer(x), layer_by_hand(layer, x))
    close(layer(x, MASK(5, **F64), is_causal=True), layer_by_hand(layer, x, MASK(5, **F64)))
    with tj.no_grad():
        close(layer.eval()(x), layer_by_hand(layer, x))


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(norm_first: bool) -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, norm_first=norm_first, batch_first=True, **F64)
    x, memory, mask = tj.randn(3, 5, 8, **F64), tj.randn(3, 4, 8, **F64), MASK(5, **F64)
    padding = tj.tensor([[False] * 4, [False, False, False, True], [False, True, True, True]])

    def own(y: tj.Tensor) -> tj.Tensor:
        return layer.self_attn(y, y, y, attn_mask=mask)[0]  # type: ignore[no-any-return]

    def cross(y: tj.Tensor) -> tj.Tensor:
        return layer.multihead_attn(y, memory, memory, key_padding_mask=padding)[0]  # type: ignore[no-any-return]

    def feed(y: tj.Tensor) -> tj.Tensor:
        return layer.linear2(layer.linear1(y).relu())  # type: ignore[no-any-return]

    y = x
    for norm, block in ((layer.norm1, own), (layer.norm2, cross), (layer.norm3, feed)):
        y = y + block(norm(y)) if norm_first else norm(y + block(y))
    close(layer(x, memory, mask, memory_key_padding_mask=padding, tgt_is_causal=True), y)


def test_stacks_are_made_of_copies() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **F64)
    encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(8, **F64), enable_nested_tensor=False)
    assert encoder.num_layers == 3 and len({id(p) for p in encoder.parameters()}) == 3 * 12 + 2
    assert layer not in list(encoder.modules())
    close(encoder.layers[2].linear1.weight, layer.linear1.weight, 0)
    x = tj.randn(2, 5, 8, **F64)
    y = x
    for each in encoder.layers:
        y = layer_by_hand(each, y)
    close(encoder(x), encoder.norm(y))
    assert "layers.1.self_attn.out_proj.weight" in encoder.state_dict()


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_a_causal_encoder_does_not_see_the_future(kind: str) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **F64), 2)
    mask = MASK(6, **F64) if kind == "float" else MASK(6, dtype=tj.bool)
    x = tj.randn(2, 6, 8, **F64)
    whole = encoder(x, mask)
    for n in (1, 4):
        close(encoder(x[:, :n], mask[:n, :n]), whole[:, :n])
    for hint in (True, False):
        close(encoder(x, mask, is_causal=hint), whole)
    padding = tj.zeros(2, 6, dtype=mask.dtype)
    close(encoder(x, mask, padding), whole)


def test_padding_is_not_seen() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **F64), 2).eval()
    x = tj.randn(2, 6, 8, **F64)
    padding = tj.tensor([[False] * 6, [False] * 4 + [True] * 2])
    close(encoder(x, src_key_padding_mask=padding)[1, :4], encoder(x[1:, :4])[0])
    with tj.no_grad():
        close(encoder(x, src_key_padding_mask=padding)[0], encoder(x)[0])
    with pytest.warns(UserWarning, match="mismatched src_key_padding_mask and mask"):
        encoder(x, MASK(6, **F64), padding)


@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_and_decoder(batch_first: bool) -> None:
    tj.manual_seed(0)
    model = nn.Transformer(8, 2, 2, 3, 16, dropout=0.0, batch_first=batch_first, **F64)
    src, tgt = tj.randn(2, 6, 8, **F64), tj.randn(2, 5, 8, **F64)
    given = (src, tgt) if batch_first else (src.transpose(0, 1), tgt.transpose(0, 1))
    output = model(*given, tgt_mask=MASK(5, **F64))
    memory = model.encoder(given[0])
    close(output, model.decoder(given[1], memory, MASK(5, **F64)))
    output.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    bound = math.sqrt(6 / (8 + 16))
    assert np.abs(model.decoder.layers[2].linear1.weight.detach().numpy()).max() <= bound
    alone = model(*(x[0] if batch_first else x[:, 0] for x in given), tgt_mask=MASK(5, **F64))
    close(alone, output[0] if batch_first else output[:, 0])


def test_custom_parts() -> None:
    class Double(nn.Module):
        def forward(self, x: tj.Tensor, *rest: Any, **options: Any) -> tj.Tensor:
            return 2 * x  # type: ignore[no-any-return]

    model = nn.Transformer(8, 2, custom_encoder=Double(), custom_decoder=Double())
    x = tj.randn(3, 2, 8)
    close(model(x, x), (2 * x).numpy(), 0)


def test_masks_of_the_future() -> None:
    assert MASK(3).tolist() == [[0, -math.inf, -math.inf], [0, 0, -math.inf], [0, 0, 0]]
    assert MASK(2, dtype=tj.bool).tolist() == [[False, True], [False, False]]
    assert MASK(2, dtype=tj.float16).dtype is tj.float16


def test_dropout_in_training_only() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.5, **F64)
    x = tj.randn(5, 3, 8, **F64)
    assert not np.allclose(layer(x).detach().numpy(), layer(x).detach().numpy())
    layer.eval()
    close(layer(x), layer(x), 0)
    close(layer(x), layer_by_hand(layer, x))


def test_a_small_language_model_learns_its_text() -> None:
    tj.manual_seed(0)
    text = tj.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7])
    embedding, head = nn.Embedding(10, 16), nn.Linear(16, 10)
    place = nn.Parameter(tj.randn(len(text) - 1, 16))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 1)
    parameters = [place, *(p for m in (embedding, head, encoder) for p in m.parameters())]
    optimizer = tj.optim.Adam(parameters, lr=0.02)
    mask = MASK(len(text) - 1)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        logits = head(encoder((embedding(text[:-1]) + place).unsqueeze(0), mask))[0]
        loss = F.cross_entropy(logits, text[1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 2 and losses[-1] < 0.1


# ---- errors


def test_errors_of_attention() -> None:
    z = tj.zeros
    module = nn.MultiheadAttention(4, 2)
    x = z(3, 2, 4)
    for call, error, sentence in (
        (lambda: nn.MultiheadAttention(0, 2), ValueError, "must be greater than 0"),
        (lambda: nn.MultiheadAttention(5, 2), AssertionError, "divisible by num_heads"),
        (lambda: module(z(3, 2, 6), x, x), AssertionError, "was expecting embedding dimension of 4, but got 6"),
        (lambda: module(z(3), x, x), AssertionError, "unbatched 2D or batched 3D tensor but received 1-D"),
        (lambda: module(x, z(3, 4), x), AssertionError, "expected `key` and `value` to be 3-D but found 2-D and 3-D"),
        (lambda: module(x, x, z(5, 2, 4)), AssertionError, "does not match value shape"),
        (lambda: module(x, x, x, z(2)), AssertionError, "expected `key_padding_mask` to be `None` or 2-D but found 1-D"),
        (lambda: module(x, x, x, z(2, 5)), AssertionError, r"Expected key_padded_mask.shape\[1\] to be 3, but got 5"),
        (lambda: module(x, x, x, z(3, 3)), AssertionError, r"Expected key_padded_mask.shape\[0\] to be 2, but got 3"),
        (lambda: module(x, x, x, attn_mask=z(3)), AssertionError, "expected `attn_mask` to be `None`, 2-D or 3-D"),
        (lambda: module(x, x, x, attn_mask=z(3, 4)), RuntimeError, "The shape of the 2D attn_mask is"),
        (lambda: module(x, x, x, attn_mask=z(3, 3, 3)), RuntimeError, "The shape of the 3D attn_mask is"),
        (
            lambda: module(x, x, x, attn_mask=z(3, 3, dtype=tj.int64)),
            AssertionError,
            "only bool and floating types of attn_mask",
        ),
        (lambda: module(x[:, 0], x[:, 0], x[:, 0], attn_mask=z(3, 3, 3)), AssertionError, "Expected `attn_mask` shape to be"),
    ):
        with pytest.raises(error, match=sentence):
            call()


def test_errors_of_functions() -> None:
    z = tj.zeros
    x, weight, out = z(3, 2, 4), z(12, 4), z(4, 4)

    def call(*args: Any, **kwargs: Any) -> Any:
        return F.multi_head_attention_forward(x, x, x, 4, 2, *args, False, 0.0, out, None, **kwargs)

    for wrong, sentence in (
        (lambda: call(None, None, None, None), "in_proj_weight is None"),
        (lambda: call(None, None, None, None, use_separate_proj_weight=True, q_proj_weight=out), "k_proj_weight is None"),
        (lambda: call(weight, None, z(1, 1, 4), None), "bias_k is set but bias_v is None"),
        (lambda: call(weight, None, None, z(1, 1, 4)), "bias_v is set but bias_k is None"),
        (lambda: call(weight, None, None, None, static_k=z(3, 3, 2)), r"expecting static_k.size\(0\) of 4, but got 3"),
        (lambda: call(weight, None, None, None, static_v=z(4, 3, 3)), r"expecting static_v.size\(2\) of 2, but got 3"),
        (lambda: call(weight, None, z(1, 1, 4), z(1, 1, 4), static_k=z(4, 3, 2)), "bias cannot be added to static key"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            wrong()


def test_errors_of_transformers() -> None:
    z = tj.zeros
    model = nn.Transformer(8, 2, 1, 1, 16)
    with pytest.raises(RuntimeError, match="the batch number of src and tgt must be equal"):
        model(z(3, 2, 8), z(3, 4, 8))
    with pytest.raises(RuntimeError, match="must be equal to d_model"):
        model(z(3, 2, 8), z(3, 2, 6))
    with pytest.raises(RuntimeError, match="activation should be relu/gelu, not tanh"):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")
    with pytest.raises(RuntimeError, match=r"in encoder.layers.0.self_attn"):
        model(z(3, 2, 8), z(3, 2, 8), src_mask=z(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, norm_first=True), 1)  # nothing to warn about here


def test_a_choice_of_kernels_changes_nothing() -> None:
    from tapejit.nn.attention import SDPBackend, sdpa_kernel

    q = tj.randn(1, 2, 5, 4)
    expected = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    for chosen in (SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        with sdpa_kernel(chosen):
            assert tj.equal(F.scaled_dot_product_attention(q, q, q, is_causal=True), expected)
    with pytest.raises(TypeError, match="expected an SDPBackend"), sdpa_kernel("flash"):
        pass
