"""Attention with several heads and transformers against PyTorch: values, gradients, training, weights both ways, errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from peers.common import assert_alike, numpy_of, outcome

Make = Callable[[Any, dict[str, Any]], Any]

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:Support for mismatched")


def pair(make: Make, dtype: str = "float64") -> tuple[Any, Any]:
    """The same module in both libraries, with PyTorch's weights; biases are not 0."""
    torch.manual_seed(0)
    theirs = make(torch, {"dtype": getattr(torch, dtype)})
    with torch.no_grad():
        for p in theirs.parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.2)
    mine = make(tj, {"dtype": getattr(tj, dtype)})
    result = mine.load_state_dict({k: tj.from_numpy(v.numpy().copy()) for k, v in theirs.state_dict().items()})
    assert str(result) == "<All keys matched successfully>"
    assert repr(mine) == repr(theirs)
    assert [n for n, _ in mine.named_modules()] == [n for n, _ in theirs.named_modules()]
    return mine, theirs


def drawn(*shapes: tuple[int, ...], dtype: str = "float64") -> list[tuple[Any, Any]]:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    return [(tj.from_numpy(a.copy()).requires_grad_(), torch.from_numpy(a.copy()).requires_grad_()) for a in arrays]


def hidden(*shape: int, kind: str = "bool", seed: int = 0) -> tuple[Any, Any]:
    """A mask for both libraries that hides some keys, never the first."""
    random = np.random.default_rng(seed)
    mask = random.random(shape) < 0.4
    mask[..., 0] = False
    array = mask if kind == "bool" else np.where(mask, -np.inf, random.standard_normal(shape))
    return tj.from_numpy(array.copy()), torch.from_numpy(array.copy())


def floats(result: Any) -> list[Any]:
    items = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in items if t is not None]


def compare(modules: tuple[Any, Any], results: tuple[Any, Any], inputs: list[tuple[Any, Any]], rtol: float = 1e-9) -> None:
    """Values, and the gradients of parameters and inputs for the same weights on the results."""
    assert_alike(floats(results[0]), floats(results[1]), rtol=rtol, atol=rtol)
    random = np.random.default_rng(1)
    weights = [random.standard_normal(tuple(t.shape)) for t in floats(results[1])]
    found = []
    for i, (lib, module, result) in enumerate(zip((tj, torch), modules, results, strict=True)):
        total = sum((t * lib.from_numpy(w).to(t.dtype)).sum() for t, w in zip(floats(result), weights, strict=True))
        wanted = [*module.parameters(), *(pair[i] for pair in inputs)]
        found.append(lib.autograd.grad(total, wanted, allow_unused=True))
    assert_alike(list(found[0]), list(found[1]), rtol=10 * rtol, atol=10 * rtol)


# ---- attention

ATTENTIONS: dict[str, Make] = {
    "plain": lambda t, d: t.nn.MultiheadAttention(6, 2, **d),
    "batch first": lambda t, d: t.nn.MultiheadAttention(6, 3, batch_first=True, **d),
    "no bias": lambda t, d: t.nn.MultiheadAttention(6, 2, bias=False, **d),
    "other dims": lambda t, d: t.nn.MultiheadAttention(6, 2, kdim=4, vdim=5, **d),
    "extra keys": lambda t, d: t.nn.MultiheadAttention(6, 2, add_bias_kv=True, add_zero_attn=True, **d),
    "all": lambda t, d: t.nn.MultiheadAttention(6, 2, bias=False, add_bias_kv=True, kdim=4, vdim=5, batch_first=True, **d),
}
CALLS: list[dict[str, Any]] = [
    {},
    {"need_weights": False},
    {"average_attn_weights": False, "attn_mask": lambda: hidden(4, 5)},
    {"need_weights": False, "attn_mask": lambda: hidden(4, 5, kind="float")},
    {"attn_mask": "heads", "key_padding_mask": lambda: hidden(3, 5, seed=2)},
    {"attn_mask": "heads", "key_padding_mask": lambda: hidden(3, 5, seed=2), "need_weights": False},
    {"key_padding_mask": lambda: hidden(3, 5, kind="float", seed=2), "attn_mask": lambda: hidden(4, 5, kind="float")},
    {"key_padding_mask": lambda: hidden(3, 5, kind="float", seed=2), "attn_mask": lambda: hidden(4, 5), "need_weights": False},
]


@pytest.mark.parametrize("call", range(len(CALLS)))
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str, call: int) -> None:
    modules = pair(ATTENTIONS[name])
    mine = modules[0]

    def shape(length: int, width: int) -> tuple[int, ...]:
        return (3, length, width) if mine.batch_first else (length, 3, width)

    inputs = drawn(shape(4, 6), shape(5, mine.kdim), shape(5, mine.vdim))
    options: list[dict[str, Any]] = [{}, {}]
    for key, value in CALLS[call].items():
        both = hidden(3 * mine.num_heads, 4, 5) if value == "heads" else value() if callable(value) else (value, value)
        options[0][key], options[1][key] = both
    results = tuple(m(*(x[i] for x in inputs), **options[i]) for i, m in enumerate(modules))
    compare(modules, results, inputs)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_self_attention(batched: bool, batch_first: bool) -> None:
    modules = pair(lambda t, d: t.nn.MultiheadAttention(6, 2, batch_first=batch_first, **d))
    (x,) = drawn((4, 4, 6) if batched else (4, 6))
    for need_weights in (True, False):
        for hint in (False, True):
            results = []
            for lib, m, a in zip((tj, torch), modules, x, strict=True):
                mask = lib.nn.Transformer.generate_square_subsequent_mask(4, dtype=lib.float64) if hint else None
                results.append(m(a, a, a, attn_mask=mask, is_causal=hint, need_weights=need_weights))
            compare(modules, tuple(results), [x])
    for lib, m, a in zip((tj, torch), modules, x, strict=True):
        with lib.no_grad():
            results.append(m.eval()(a, a, a)[0])
    assert_alike(results[-2], results[-1], rtol=1e-9, atol=1e-9)


def test_second_derivatives() -> None:
    modules = pair(lambda t, d: t.nn.TransformerEncoderLayer(4, 2, 8, 0.0, "gelu", **d))
    (x,) = drawn((3, 2, 4))
    found = []
    for lib, m, a in zip((tj, torch), modules, x, strict=True):
        if lib is torch:  # its quick attention on the CPU has no second derivative
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                (first,) = lib.autograd.grad((m(a) ** 3).sum(), a, create_graph=True)
        else:
            (first,) = lib.autograd.grad((m(a) ** 3).sum(), a, create_graph=True)
        found.append(lib.autograd.grad((first**2).sum(), [a, *m.parameters()], allow_unused=True))
    assert_alike(list(found[0]), list(found[1]), rtol=1e-7, atol=1e-7)


# ---- layers and stacks

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm first": {"norm_first": True, "activation": "gelu"},
    "no bias": {"bias": False, "batch_first": True},
    "eps": {"layer_norm_eps": 0.1, "batch_first": True, "norm_first": True},
}


def layer_options(name: str, place: dict[str, Any]) -> dict[str, Any]:
    return {"dim_feedforward": 10, "dropout": 0.0, **LAYERS[name], **place}


@pytest.mark.parametrize("name", LAYERS)
def test_encoder(name: str) -> None:
    def make(t: Any, d: dict[str, Any]) -> Any:
        layer = t.nn.TransformerEncoderLayer(6, 2, **layer_options(name, d))
        return t.nn.TransformerEncoder(layer, 2, t.nn.LayerNorm(6, **d))

    modules = pair(make)
    (x,) = drawn((3, 5, 6) if LAYERS[name].get("batch_first") else (5, 3, 6))
    masks: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {})]
    causal = [lib.nn.Transformer.generate_square_subsequent_mask(5, dtype=lib.float64) for lib in (tj, torch)]
    masks.append(({"mask": causal[0]}, {"mask": causal[1]}))
    masks.append(({"mask": causal[0].bool()}, {"mask": causal[1].bool()}))
    masks.append(({"mask": causal[0], "is_causal": True}, {"mask": causal[1], "is_causal": True}))
    for kind in ("bool", "float"):
        a, p = hidden(5, 5, kind=kind), hidden(3, 5, kind=kind, seed=3)
        masks.append(tuple({"mask": a[i], "src_key_padding_mask": p[i]} for i in range(2)))  # type: ignore[arg-type]
        masks.append(tuple({"src_key_padding_mask": p[i]} for i in range(2)))  # type: ignore[arg-type]
    for options in masks:
        compare(modules, tuple(m(a, **o) for m, a, o in zip(modules, x, options, strict=True)), [x])
    found = []
    for lib, m, a in zip((tj, torch), modules, x, strict=True):
        with lib.no_grad():
            found.append(m.eval()(a))
    assert_alike(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LAYERS)
def test_decoder(name: str) -> None:
    def make(t: Any, d: dict[str, Any]) -> Any:
        return t.nn.TransformerDecoder(t.nn.TransformerDecoderLayer(6, 2, **layer_options(name, d)), 2)

    modules = pair(make)
    batch_first = LAYERS[name].get("batch_first")
    x, memory = drawn((3, 5, 6), (3, 4, 6)) if batch_first else drawn((5, 3, 6), (4, 3, 6))
    for kind in ("bool", "float"):
        given = {
            "tgt_mask": hidden(5, 5, kind=kind),
            "memory_mask": hidden(5, 4, kind=kind, seed=1),
            "tgt_key_padding_mask": hidden(3, 5, kind=kind, seed=2),
            "memory_key_padding_mask": hidden(3, 4, kind=kind, seed=3),
        }
        for names in ((), ("tgt_mask",), tuple(given)):
            options = [{n: given[n][i] for n in names} for i in range(2)]
            results = tuple(m(x[i], memory[i], **options[i]) for i, m in enumerate(modules))
            compare(modules, results, [x, memory])


def test_transformer() -> None:
    modules = pair(lambda t, d: t.nn.Transformer(6, 2, 2, 1, 12, 0.0, "gelu", batch_first=True, **d))
    src, tgt = drawn((3, 4, 6), (3, 5, 6))
    padding = hidden(3, 4)
    results = []
    for i, (lib, m) in enumerate(zip((tj, torch), modules, strict=True)):
        mask = lib.nn.Transformer.generate_square_subsequent_mask(5, dtype=lib.bool)
        options = {"tgt_mask": mask, "src_key_padding_mask": padding[i], "memory_key_padding_mask": padding[i]}
        results.append(m(src[i], tgt[i], **options))
    compare(modules, tuple(results), [src, tgt])


def test_a_module_as_activation() -> None:
    """In an encoder: PyTorch's copies of a decoder layer forget such an activation and use relu."""
    modules = pair(lambda t, d: t.nn.TransformerEncoder(t.nn.TransformerEncoderLayer(6, 2, 12, 0.0, t.nn.SiLU(), **d), 2))
    (x,) = drawn((4, 3, 6))
    compare(modules, tuple(m(a) for m, a in zip(modules, x, strict=True)), [x])


def test_single_precision() -> None:
    modules = pair(lambda t, d: t.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, **d), "float32")
    (x,) = drawn((8, 20, 32), dtype="float32")
    compare(modules, tuple(m(a) for m, a in zip(modules, x, strict=True)), [x], rtol=2e-5)


def test_training() -> None:
    """The same losses and weights over ten steps, and the weights back in PyTorch."""
    mine, theirs = pair(lambda t, d: t.nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True, **d), "float32")
    random = np.random.default_rng(0)
    data = [[random.standard_normal((4, n, 8)).astype("f") for n in (6, 5, 5)] for _ in range(10)]
    losses = []
    for lib, module in ((tj, mine), (torch, theirs)):
        # not Adam: it would make steps of the gradients of the keys' biases, which are 0 but for rounding
        optimizer = lib.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        found = []
        for arrays in data:
            src, tgt, wanted = (lib.from_numpy(a.copy()) for a in arrays)
            optimizer.zero_grad()
            loss = lib.nn.functional.mse_loss(module(src, tgt, tgt_mask=module.generate_square_subsequent_mask(5)), wanted)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    back = {k: torch.from_numpy(numpy_of(v)) for k, v in mine.state_dict().items()}
    for k, v in theirs.state_dict().items():
        np.testing.assert_allclose(back[k].numpy(), v.numpy(), rtol=1e-3, atol=2e-4)
    theirs.load_state_dict(back)


def test_initial_weights_have_the_same_distribution() -> None:
    makes: list[Callable[[Any], Any]] = [
        lambda t: t.nn.MultiheadAttention(48, 4, add_bias_kv=True),
        lambda t: t.nn.MultiheadAttention(48, 4, kdim=20),
        lambda t: t.nn.TransformerDecoderLayer(48, 4, 100),
        lambda t: t.nn.Transformer(48, 4, 1, 1, 100),
    ]
    for make in makes:
        tj.manual_seed(0)
        torch.manual_seed(0)
        for (name, a), (other, b) in zip(make(tj).named_parameters(), make(torch).named_parameters(), strict=True):
            p, q = numpy_of(a), numpy_of(b)
            assert name == other and p.shape == q.shape
            noise = 5 * q.std() / math.sqrt(q.size) + 1e-6
            assert abs(p.mean() - q.mean()) < 2 * noise and abs(p.std() - q.std()) < 2 * noise, name
            if q.size > 1000:
                assert abs(np.abs(p).max() / np.abs(q).max() - 1) < 0.05, name


def z(t: Any, *shape: int, **options: Any) -> Any:
    return t.zeros(*shape, **options)


def attend(t: Any, *args: Any, **options: Any) -> Any:
    return t.nn.MultiheadAttention(4, 2)(*args, **options)


ERRORS: list[Any] = [
    lambda t: t.nn.MultiheadAttention(0, 2),
    lambda t: t.nn.MultiheadAttention(5, 2),
    lambda t: attend(t, z(t, 3, 2, 6), z(t, 3, 2, 6), z(t, 3, 2, 6)),
    lambda t: attend(t, z(t, 3), z(t, 3), z(t, 3)),
    lambda t: attend(t, z(t, 3, 2, 4), z(t, 3, 4), z(t, 3, 4)),
    lambda t: attend(t, z(t, 3, 2, 4), z(t, 3, 2, 4), z(t, 5, 2, 4)),
    lambda t: attend(t, *[z(t, 3, 2, 4)] * 3, key_padding_mask=z(t, 2)),
    lambda t: attend(t, *[z(t, 3, 2, 4)] * 3, key_padding_mask=z(t, 2, 5)),
    lambda t: attend(t, *[z(t, 3, 2, 4)] * 3, attn_mask=z(t, 3)),
    lambda t: attend(t, *[z(t, 3, 2, 4)] * 3, attn_mask=z(t, 3, 4)),
    lambda t: attend(t, *[z(t, 3, 2, 4)] * 3, attn_mask=z(t, 3, 3, 3)),
    lambda t: attend(t, *[z(t, 3, 2, 4)] * 3, attn_mask=z(t, 3, 3, dtype=t.int64)),
    lambda t: attend(t, *[z(t, 3, 2, 4)] * 3, is_causal=True),
    lambda t: attend(t, *[z(t, 3, 2, 4).double()] * 3),
    lambda t: t.nn.Transformer(8, 2, 1, 1, 16)(z(t, 3, 2, 8), z(t, 3, 4, 8)),
    lambda t: t.nn.Transformer(8, 2, 1, 1, 16)(z(t, 3, 2, 6), z(t, 3, 2, 6)),
    lambda t: t.nn.TransformerEncoderLayer(8, 2, activation="tanh"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, mine = outcome(ERRORS[number], torch), outcome(ERRORS[number], tj)
    assert isinstance(theirs, type) and mine is theirs
