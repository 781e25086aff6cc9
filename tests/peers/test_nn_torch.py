"""Every layer and loss against PyTorch: repr, parameters, values, gradients, buffers, initial weights, weights both ways."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from peers.common import assert_alike, numpy_of

Make = Callable[[Any], Any]


class Floats:
    """An input of floats between two bounds."""

    def __init__(self, *shape: int, low: float = -2.0, high: float = 2.0, grad: bool = True) -> None:
        self.shape, self.low, self.high, self.grad = shape, low, high, grad

    def draw(self, random: np.random.Generator) -> np.ndarray:
        return random.uniform(self.low, self.high, self.shape)


class Ints(Floats):
    """An input of classes or row numbers."""

    def __init__(self, *shape: int, high: int = 4) -> None:
        super().__init__(*shape, low=0, high=high, grad=False)

    def draw(self, random: np.random.Generator) -> np.ndarray:
        return random.integers(0, int(self.high), self.shape)


class Signs(Floats):
    """An input of -1 and 1."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape, grad=False)

    def draw(self, random: np.random.Generator) -> np.ndarray:
        return random.integers(0, 2, self.shape) * 2.0 - 1


F = Floats
# How to make a layer with either library, and its inputs.
LAYERS: list[tuple[Make, list[Any]]] = [
    (lambda t: t.nn.Identity(3, a=4), [F(2, 3)]),
    (lambda t: t.nn.Linear(4, 3), [F(5, 4)]),
    (lambda t: t.nn.Linear(4, 3, bias=False), [F(2, 5, 4)]),
    (lambda t: t.nn.Linear(4, 3), [F(4)]),
    (lambda t: t.nn.Bilinear(2, 3, 4), [F(5, 2), F(5, 3)]),
    (lambda t: t.nn.Bilinear(2, 3, 4, bias=False), [F(5, 6, 2), F(5, 6, 3)]),
    (lambda t: t.nn.Flatten(), [F(2, 3, 4)]),
    (lambda t: t.nn.Flatten(0, 1), [F(2, 3, 4)]),
    (lambda t: t.nn.Unflatten(1, (2, 3)), [F(2, 6)]),
    # convolutions
    (lambda t: t.nn.Conv1d(2, 3, 3), [F(2, 2, 7)]),
    (lambda t: t.nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2, groups=2, bias=False), [F(2, 2, 9)]),
    (lambda t: t.nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular"), [F(2, 2, 7)]),
    (lambda t: t.nn.Conv2d(2, 3, 3, padding="same"), [F(2, 2, 5, 6)]),
    (lambda t: t.nn.Conv2d(2, 3, (3, 2), (2, 1), padding=(1, 0), padding_mode="reflect"), [F(2, 2, 5, 6)]),
    (lambda t: t.nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), [F(2, 5, 6)]),
    (lambda t: t.nn.Conv2d(2, 3, 3, padding="valid"), [F(2, 2, 5, 6)]),
    (lambda t: t.nn.Conv3d(2, 3, 2, padding=1), [F(1, 2, 3, 4, 3)]),
    (lambda t: t.nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), [F(2, 2, 5)]),
    (lambda t: t.nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, groups=2, dilation=2), [F(2, 4, 3, 4)]),
    (lambda t: t.nn.ConvTranspose2d(2, 3, 3, bias=False), [F(2, 3, 4)]),
    (lambda t: t.nn.ConvTranspose3d(2, 2, 2, stride=2), [F(1, 2, 2, 3, 2)]),
    # pooling
    (lambda t: t.nn.MaxPool1d(3), [F(2, 2, 9)]),
    (lambda t: t.nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), [F(2, 2, 6, 7)]),
    (lambda t: t.nn.MaxPool2d((2, 3), dilation=2, return_indices=True), [F(2, 2, 6, 7)]),
    (lambda t: t.nn.MaxPool3d(2), [F(1, 2, 4, 4, 4)]),
    (lambda t: t.nn.AvgPool1d(3, padding=1, count_include_pad=False), [F(2, 2, 9)]),
    (lambda t: t.nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), [F(2, 2, 6, 7)]),
    (lambda t: t.nn.AvgPool2d((2, 3), divisor_override=4), [F(2, 2, 6, 7)]),
    (lambda t: t.nn.AvgPool3d(2), [F(1, 2, 4, 4, 4)]),
    (lambda t: t.nn.LPPool1d(2, 3), [F(2, 2, 9, low=0.5)]),
    (lambda t: t.nn.LPPool2d(1.5, 2, stride=1), [F(2, 2, 5, 5, low=0.5)]),
    (lambda t: t.nn.LPPool3d(2, 2), [F(1, 2, 4, 4, 4, low=0.5)]),
    (lambda t: t.nn.AdaptiveAvgPool1d(3), [F(2, 2, 7)]),
    (lambda t: t.nn.AdaptiveAvgPool2d((None, 2)), [F(2, 2, 5, 6)]),
    (lambda t: t.nn.AdaptiveAvgPool3d(1), [F(1, 2, 3, 4, 3)]),
    (lambda t: t.nn.AdaptiveMaxPool1d(3), [F(2, 2, 7)]),
    (lambda t: t.nn.AdaptiveMaxPool2d(2, return_indices=True), [F(2, 2, 5, 6)]),
    (lambda t: t.nn.AdaptiveMaxPool3d(2), [F(1, 2, 3, 4, 3)]),
    # norms
    (lambda t: t.nn.BatchNorm1d(3), [F(4, 3)]),
    (lambda t: t.nn.BatchNorm1d(3, momentum=None), [F(4, 3, 2)]),
    (lambda t: t.nn.BatchNorm1d(3, eps=0.1, momentum=0.3, affine=False), [F(4, 3, 2)]),
    (lambda t: t.nn.BatchNorm1d(3, bias=False), [F(4, 3, 2)]),
    (lambda t: t.nn.BatchNorm2d(2), [F(3, 2, 2, 3)]),
    (lambda t: t.nn.BatchNorm2d(2, track_running_stats=False), [F(3, 2, 2, 3)]),
    (lambda t: t.nn.BatchNorm3d(2), [F(3, 2, 2, 3, 2)]),
    (lambda t: t.nn.InstanceNorm1d(3), [F(2, 3, 4)]),
    (lambda t: t.nn.InstanceNorm1d(3), [F(3, 4)]),
    (lambda t: t.nn.InstanceNorm2d(3, affine=True, track_running_stats=True), [F(2, 3, 4, 2)]),
    (lambda t: t.nn.InstanceNorm3d(2, affine=True, bias=False), [F(2, 2, 2, 3, 2)]),
    (lambda t: t.nn.LayerNorm(4), [F(2, 3, 4)]),
    (lambda t: t.nn.LayerNorm((3, 4), eps=0.1, bias=False), [F(2, 3, 4)]),
    (lambda t: t.nn.LayerNorm([4], elementwise_affine=False), [F(2, 3, 4)]),
    (lambda t: t.nn.GroupNorm(2, 4), [F(2, 4, 3)]),
    (lambda t: t.nn.GroupNorm(4, 4, affine=False), [F(2, 4, 3)]),
    (lambda t: t.nn.RMSNorm(4), [F(2, 3, 4)]),
    (lambda t: t.nn.RMSNorm((3, 4), eps=0.1, elementwise_affine=False), [F(2, 3, 4)]),
    (lambda t: t.nn.LocalResponseNorm(3, alpha=0.1), [F(2, 5, 3)]),
    # tables
    (lambda t: t.nn.Embedding(5, 3), [Ints(2, 4)]),
    (lambda t: t.nn.Embedding(5, 3, padding_idx=-2, scale_grad_by_freq=True), [Ints(2, 4)]),
    (lambda t: t.nn.Embedding(5, 3, max_norm=0.5, norm_type=1.0), [Ints(6)]),
    (lambda t: t.nn.EmbeddingBag(5, 3), [Ints(2, 4)]),
    (lambda t: t.nn.EmbeddingBag(5, 3, mode="max", padding_idx=1), [Ints(2, 4)]),
    (lambda t: t.nn.EmbeddingBag(5, 3, mode="sum", max_norm=0.5), [Ints(2, 4)]),
    # activations
    (lambda t: t.nn.Threshold(0.1, 3.0), [F(3, 4)]),
    (lambda t: t.nn.ReLU(), [F(3, 4)]),
    (lambda t: t.nn.ReLU6(), [F(3, 4, high=9)]),
    (lambda t: t.nn.Hardtanh(-0.5, 0.7), [F(3, 4)]),
    (lambda t: t.nn.Sigmoid(), [F(3, 4)]),
    (lambda t: t.nn.Hardsigmoid(), [F(3, 4)]),
    (lambda t: t.nn.Tanh(), [F(3, 4)]),
    (lambda t: t.nn.SiLU(), [F(3, 4)]),
    (lambda t: t.nn.Mish(), [F(3, 4)]),
    (lambda t: t.nn.Hardswish(), [F(3, 4)]),
    (lambda t: t.nn.ELU(0.7), [F(3, 4)]),
    (lambda t: t.nn.CELU(0.7), [F(3, 4)]),
    (lambda t: t.nn.SELU(), [F(3, 4)]),
    (lambda t: t.nn.GLU(), [F(3, 4)]),
    (lambda t: t.nn.GLU(0), [F(4, 3)]),
    (lambda t: t.nn.GELU(), [F(3, 4)]),
    (lambda t: t.nn.GELU("tanh"), [F(3, 4)]),
    (lambda t: t.nn.Hardshrink(), [F(3, 4)]),
    (lambda t: t.nn.LeakyReLU(0.2), [F(3, 4)]),
    (lambda t: t.nn.LogSigmoid(), [F(3, 4)]),
    (lambda t: t.nn.Softplus(2, 1.5), [F(3, 4)]),
    (lambda t: t.nn.Softshrink(0.3), [F(3, 4)]),
    (lambda t: t.nn.PReLU(), [F(3, 4)]),
    (lambda t: t.nn.PReLU(4, 0.1), [F(3, 4)]),
    (lambda t: t.nn.Softsign(), [F(3, 4)]),
    (lambda t: t.nn.Tanhshrink(), [F(3, 4)]),
    (lambda t: t.nn.Softmin(dim=1), [F(3, 4)]),
    (lambda t: t.nn.Softmax(dim=-1), [F(3, 4)]),
    (lambda t: t.nn.Softmax2d(), [F(2, 3, 2, 2)]),
    (lambda t: t.nn.LogSoftmax(dim=0), [F(3, 4)]),
    # images
    (lambda t: t.nn.Upsample(scale_factor=2), [F(1, 2, 3, 4)]),
    (lambda t: t.nn.Upsample(size=(5, 7), mode="bilinear", align_corners=True), [F(1, 2, 3, 4)]),
    (lambda t: t.nn.Upsample(scale_factor=(2.0, 1.5), mode="bicubic"), [F(1, 2, 4, 4)]),
    (lambda t: t.nn.UpsamplingNearest2d(scale_factor=3), [F(1, 2, 3, 4)]),
    (lambda t: t.nn.UpsamplingBilinear2d(size=5), [F(1, 2, 3, 4)]),
    (lambda t: t.nn.PixelShuffle(2), [F(1, 8, 2, 3)]),
    (lambda t: t.nn.PixelUnshuffle(2), [F(1, 2, 4, 6)]),
    (lambda t: t.nn.ChannelShuffle(2), [F(1, 4, 2, 2)]),
    (lambda t: t.nn.Unfold(2, padding=1), [F(1, 2, 3, 4)]),
    (lambda t: t.nn.Fold((3, 4), (2, 2)), [F(1, 8, 6)]),
    *[
        (lambda t, kind=kind, n=n: getattr(t.nn, f"{kind}Pad{n}d")(2), [F(2, 3, *(4,) * n)])
        for kind in ("Reflection", "Replication", "Circular", "Zero")
        for n in (1, 2, 3)
    ],
    *[(lambda t, n=n: getattr(t.nn, f"ConstantPad{n}d")(1, 3.5), [F(2, 3, *(4,) * n)]) for n in (1, 2, 3)],
    (lambda t: t.nn.ReflectionPad2d((1, 2, 0, 1)), [F(2, 3, 4, 4)]),
    (lambda t: t.nn.ZeroPad2d((1, -1, 0, 2)), [F(2, 3, 4, 4)]),
    # distances and losses
    (lambda t: t.nn.PairwiseDistance(1.0, keepdim=True), [F(3, 4), F(3, 4)]),
    (lambda t: t.nn.CosineSimilarity(), [F(3, 4), F(3, 4)]),
    (lambda t: t.nn.L1Loss(), [F(3, 4), F(3, 4)]),
    (lambda t: t.nn.MSELoss(reduction="sum"), [F(3, 4), F(3, 4)]),
    (lambda t: t.nn.SmoothL1Loss(beta=0.5), [F(3, 4), F(3, 4)]),
    (lambda t: t.nn.HuberLoss(delta=0.5, reduction="none"), [F(3, 4), F(3, 4)]),
    (lambda t: t.nn.CrossEntropyLoss(), [F(3, 4), Ints(3)]),
    (lambda t: t.nn.CrossEntropyLoss(t.tensor([1.0, 2, 3, 4]), ignore_index=1, label_smoothing=0.1), [F(6, 4), Ints(6)]),
    (lambda t: t.nn.NLLLoss(t.tensor([1.0, 2, 3, 4])), [F(3, 4), Ints(3)]),
    (lambda t: t.nn.NLLLoss(reduction="none"), [F(2, 4, 3), Ints(2, 3)]),
    (lambda t: t.nn.BCELoss(), [F(3, 4, low=0.1, high=0.9), F(3, 4, low=0, high=1, grad=False)]),
    (lambda t: t.nn.BCELoss(t.tensor([1.0, 2, 3, 4])), [F(3, 4, low=0.1, high=0.9), F(3, 4, low=0, high=1, grad=False)]),
    (lambda t: t.nn.BCEWithLogitsLoss(), [F(3, 4), F(3, 4, low=0, high=1)]),
    (lambda t: t.nn.BCEWithLogitsLoss(pos_weight=t.tensor([1.0, 2, 3, 4])), [F(3, 4), F(3, 4, low=0, high=1, grad=False)]),
    (lambda t: t.nn.KLDivLoss(reduction="batchmean"), [F(3, 4), F(3, 4, low=0.1, high=1)]),
    (lambda t: t.nn.KLDivLoss(reduction="sum", log_target=True), [F(3, 4), F(3, 4)]),
    (lambda t: t.nn.PoissonNLLLoss(full=True), [F(3, 4), F(3, 4, low=0, high=5, grad=False)]),
    (lambda t: t.nn.GaussianNLLLoss(full=True), [F(3, 4), F(3, 4), F(3, 4, low=0.5)]),
    (lambda t: t.nn.HingeEmbeddingLoss(0.7), [F(3, 4), Signs(3, 4)]),
    (lambda t: t.nn.SoftMarginLoss(), [F(3, 4), Signs(3, 4)]),
    (lambda t: t.nn.MultiLabelMarginLoss(), [F(3, 4), Ints(3, 4)]),
    (lambda t: t.nn.MultiLabelSoftMarginLoss(t.tensor([1.0, 2, 3, 4])), [F(3, 4), F(3, 4, low=0, high=1, grad=False)]),
    (lambda t: t.nn.MultiMarginLoss(2, 0.5), [F(3, 4), Ints(3)]),
    (lambda t: t.nn.CosineEmbeddingLoss(0.3), [F(3, 4), F(3, 4), Signs(3)]),
    (lambda t: t.nn.MarginRankingLoss(0.3), [F(3), F(3), Signs(3)]),
    (lambda t: t.nn.TripletMarginLoss(swap=True), [F(3, 4), F(3, 4), F(3, 4)]),
    (lambda t: t.nn.TripletMarginWithDistanceLoss(), [F(3, 4), F(3, 4), F(3, 4)]),
    # in eval mode (or p=0) nothing is random
    *[
        (lambda t, name=name: getattr(t.nn, name)(0.3).eval(), [F(2, 3, *(4,) * n)])
        for name, n in [
            ("Dropout", 1),
            ("Dropout1d", 1),
            ("Dropout2d", 2),
            ("Dropout3d", 3),
            ("AlphaDropout", 1),
            ("FeatureAlphaDropout", 1),
            ("RReLU", 1),
        ]
    ],
]


def named(case: tuple[Make, list[Any]]) -> Any:
    text = repr(case[0](torch)).replace("\n", " ")
    return pytest.param(*case, id=f"{text}-{len(case[1][0].shape)}d")


def pair(make: Make) -> tuple[Any, Any]:
    """The same layer in both libraries, in float64, with PyTorch's initial weights."""
    torch.manual_seed(0)
    theirs, mine = make(torch).double(), make(tj).double()
    assert isinstance(mine.load_state_dict(weights_for_tapejit(theirs)), tuple)
    return mine, theirs


def weights_for_tapejit(module: Any) -> dict[str, Any]:
    return {k: tj.tensor(v.numpy().copy()) for k, v in module.state_dict().items()}


def assert_same_state(mine: Any, theirs: Any) -> None:
    a, b = mine.state_dict(), theirs.state_dict()
    assert list(a) == list(b)
    for key in a:
        assert_alike(a[key], b[key], rtol=1e-9, atol=1e-11)


def outputs_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize(("make", "specs"), [named(case) for case in LAYERS])
def test_layer(make: Make, specs: list[Any]) -> None:
    mine, theirs = pair(make)
    assert repr(mine) == repr(theirs)
    assert [n for n, _ in mine.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    random = np.random.default_rng(1)
    for _ in range(2):  # the second time with running statistics that have moved
        arrays = [spec.draw(random) for spec in specs]
        a = [tj.tensor(x, requires_grad=s.grad) for x, s in zip(arrays, specs, strict=True)]
        b = [torch.tensor(x, requires_grad=s.grad) for x, s in zip(arrays, specs, strict=True)]
        results, expected = outputs_of(mine(*a)), outputs_of(theirs(*b))
        assert_alike(results, expected, rtol=1e-9, atol=1e-11)
        for result in (results[0], expected[0]):
            if result.requires_grad:
                (result * result).sum().backward()
        for x, y in zip((*a, *mine.parameters()), (*b, *theirs.parameters()), strict=True):
            assert_alike(x.grad, y.grad, rtol=1e-7, atol=1e-9)
        assert_same_state(mine, theirs)
    mine.eval()
    theirs.eval()
    assert_alike(outputs_of(mine(*a)), outputs_of(theirs(*b)), rtol=1e-9, atol=1e-11)
    theirs.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in mine.state_dict().items()})
    assert_same_state(mine, theirs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("seed", range(6))
def test_ctc(seed: int, reduction: str) -> None:
    random = np.random.default_rng(seed)
    steps, batch, classes, longest = (int(random.integers(a, b)) for a, b in ((1, 9), (1, 4), (2, 6), (1, 5)))
    x, targets = random.normal(size=(steps, batch, classes)), random.integers(1, classes, (batch, longest))
    lengths = random.integers(1, steps + 1, batch), random.integers(0, longest + 1, batch)
    results = []
    for t in (tj, torch):
        a = t.tensor(x, requires_grad=True)
        loss = t.nn.CTCLoss(reduction=reduction, zero_infinity=True)
        value = loss(a.log_softmax(2), t.tensor(targets), *(t.tensor(n) for n in lengths))
        results.append([value, *t.autograd.grad(value.sum(), a)])
    assert_alike(*results, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("bias", [False, True])
def test_adaptive_softmax(bias: bool) -> None:
    mine, theirs = pair(lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=2.0, head_bias=bias))
    assert repr(mine) == repr(theirs)
    x = np.random.default_rng(0).normal(size=(7, 8))
    for rows, target in ((x, np.array([0, 19, 4, 5, 9, 10, 12])), (x[:2], np.array([1, 3])), (x[0], np.array(13))):
        a, b = mine(tj.tensor(rows), tj.tensor(target)), theirs(torch.tensor(rows), torch.tensor(target))
        assert_alike(list(a), list(b), rtol=1e-9, atol=1e-11)
        mine.zero_grad()
        theirs.zero_grad()
        a.loss.backward()
        b.loss.backward()
        assert_alike([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], rtol=1e-8, atol=1e-10)
    assert mine.predict(tj.tensor(x)).tolist() == theirs.predict(torch.tensor(x)).tolist()


def test_unpooling_and_output_sizes() -> None:
    for n in (1, 2, 3):
        x = np.random.default_rng(n).normal(size=(1, 2, *(5,) * n))
        results = []
        for t in (tj, torch):
            pool, unpool = (
                getattr(t.nn, f"MaxPool{n}d")(2, stride=2, return_indices=True),
                getattr(t.nn, f"MaxUnpool{n}d")(2, 2),
            )
            even = t.tensor(x)[..., :4] if n == 1 else t.tensor(x)[..., :4, :4] if n == 2 else t.tensor(x)[..., :4, :4, :4]
            results.append((unpool(*pool(even)), unpool(*pool(t.tensor(x)), output_size=x.shape), repr(unpool)))
        assert_alike(results[0][:2], results[1][:2], rtol=0, atol=0)
        assert results[0][2] == results[1][2]
    mine, theirs = pair(lambda t: t.nn.ConvTranspose2d(2, 3, 3, stride=3, padding=1))
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 5))
    for size in ([12, 15], [1, 3, 11, 14]):
        assert_alike(mine(tj.tensor(x), output_size=size), theirs(torch.tensor(x), output_size=size), rtol=1e-9, atol=1e-11)


REPRS: list[Make] = [
    lambda t: t.nn.Sequential(t.nn.Linear(2, 3), t.nn.Sequential(t.nn.ReLU(True), t.nn.Identity())),
    lambda t: t.nn.ModuleList([t.nn.Linear(2, 3), t.nn.Linear(2, 3), t.nn.ReLU(), t.nn.Linear(2, 3)]),
    lambda t: t.nn.ModuleList([t.nn.Sequential(t.nn.Linear(2, 3)) for _ in range(3)]),
    lambda t: t.nn.ModuleList(),
    lambda t: t.nn.ModuleDict({"b": t.nn.Linear(2, 3), "a": t.nn.ModuleList([t.nn.ReLU()])}),
    lambda t: t.nn.ParameterList([t.zeros(2, 3), t.nn.Parameter(t.zeros(4)), "text"]),
    lambda t: t.nn.ParameterDict({"b": t.zeros(2, 3), "a": t.zeros(()), "c": 5}),
    lambda t: t.nn.Sequential(OrderedDict(first=t.nn.ELU(inplace=True), second=t.nn.Hardtanh(inplace=True))),
    lambda t: t.nn.Sequential(
        t.nn.ReLU6(True), t.nn.LeakyReLU(inplace=True), t.nn.Threshold(1, 2, True), t.nn.RReLU(inplace=True)
    ),
    lambda t: t.nn.Sequential(t.nn.Dropout(0.2, True), t.nn.Hardswish(True), t.nn.SiLU(True), t.nn.CELU(inplace=True)),
    lambda t: t.nn.utils.parametrizations.weight_norm(t.nn.Linear(2, 3)),
    lambda t: t.nn.utils.parametrizations.spectral_norm(t.nn.Conv1d(2, 3, 4)),
]


@pytest.mark.parametrize("make", REPRS)
def test_repr(make: Make) -> None:
    assert repr(make(tj)).replace("tapejit.", "torch.") == repr(make(torch))


def convnet(t: Any) -> Any:
    features = t.nn.Sequential(t.nn.Conv2d(1, 4, 3, padding=1), t.nn.BatchNorm2d(4), t.nn.ReLU(), t.nn.MaxPool2d(2))
    head = t.nn.Sequential(t.nn.Flatten(), t.nn.LayerNorm(36), t.nn.Linear(36, 8), t.nn.GELU(), t.nn.Linear(8, 3))
    return t.nn.Sequential(features, t.nn.Sequential(t.nn.GroupNorm(2, 4), t.nn.PReLU(4)), head)


def test_state_after_ten_steps() -> None:
    mine, theirs = pair(convnet)
    for seed in range(10):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=(8, 1, 6, 6)), random.integers(0, 3, 8)
        for t, model in ((tj, mine), (torch, theirs)):
            model.zero_grad()
            t.nn.CrossEntropyLoss(label_smoothing=0.1)(model(t.tensor(x)), t.tensor(y)).backward()
            t.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with t.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
    a, b = mine.state_dict(), theirs.state_dict()
    assert list(a) == list(b)
    assert_alike(list(a.values()), list(b.values()), rtol=1e-7, atol=1e-9)


# ---- what constructors refuse


REFUSED: list[Make] = [
    lambda t: t.nn.Conv2d(3, 4, 3, groups=2),
    lambda t: t.nn.Conv2d(4, 3, 3, groups=2),
    lambda t: t.nn.Conv2d(4, 4, 3, groups=0),
    lambda t: t.nn.Conv2d(4, 4, 3, padding="some"),
    lambda t: t.nn.Conv2d(4, 4, 3, stride=2, padding="same"),
    lambda t: t.nn.Conv2d(4, 4, 3, padding_mode="mirror"),
    lambda t: t.nn.ConvTranspose2d(4, 4, 3, padding_mode="reflect"),
    lambda t: t.nn.ConvTranspose1d(1, 1, 3, stride=2)(t.ones(1, 1, 4), output_size=[20]),
    lambda t: t.nn.ConvTranspose1d(1, 1, 3, stride=2)(t.ones(1, 1, 4), output_size=[1, 2, 3, 4]),
    lambda t: t.nn.BatchNorm1d(3)(t.ones(1, 3)),
    lambda t: t.nn.BatchNorm1d(3)(t.ones(3)),
    lambda t: t.nn.BatchNorm2d(3)(t.ones(1, 3)),
    lambda t: t.nn.BatchNorm2d(3)(t.ones(2, 4, 2, 2)),
    lambda t: t.nn.InstanceNorm2d(3)(t.ones(1, 3)),
    lambda t: t.nn.InstanceNorm1d(3, affine=True)(t.ones(1, 4, 2)),
    lambda t: t.nn.GroupNorm(3, 4),
    lambda t: t.nn.LayerNorm(4)(t.ones(2, 3)),
    lambda t: t.nn.Embedding(3, 4, padding_idx=3),
    lambda t: t.nn.Embedding(3, 4)(t.tensor([3])),
    lambda t: t.nn.Embedding(3, 4)(t.tensor([0.5])),
    lambda t: t.nn.Embedding.from_pretrained(t.ones(3)),
    lambda t: t.nn.Embedding(3, 4, _weight=t.ones(2, 4)),
    lambda t: t.nn.Dropout(1.5),
    lambda t: t.nn.Dropout(-0.1),
    lambda t: t.nn.Hardtanh(2, 1),
    lambda t: t.nn.MultiMarginLoss(p=3),
    lambda t: t.nn.TripletMarginLoss(margin=0),
    lambda t: t.nn.HuberLoss(delta="a"),
    lambda t: t.nn.Unflatten(1, "abc"),
    lambda t: t.nn.Unflatten(1, (2.0,)),
    lambda t: t.nn.Bilinear(0, 2, 3),
    lambda t: t.nn.Softmax2d()(t.ones(2, 2)),
    lambda t: t.nn.CircularPad1d(1)(t.ones(2)),
    lambda t: t.nn.Linear(3, 4)(t.ones(2, 4)),
    lambda t: t.nn.Linear(3, 4)(t.ones(2, 3, dtype=t.float64)),
    lambda t: t.nn.Linear(3, 4, 5, 6, 7, 8),
    lambda t: t.nn.Conv2d(3, 4, 3)(t.ones(2, 4, 5, 5)),
    lambda t: t.nn.MSELoss(reduction="median")(t.ones(2), t.ones(2)),
]


@pytest.mark.parametrize("action", REFUSED)
def test_refusals(action: Make) -> None:
    with pytest.raises(Exception) as theirs:
        action(torch)
    with pytest.raises(Exception) as mine:
        action(tj)
    assert type(mine.value) is type(theirs.value), f"{mine.value!r} against {theirs.value!r}"


# ---- tools


def trained_pair(make: Make) -> tuple[Any, Any, np.ndarray]:
    mine, theirs = pair(make)
    x = np.random.default_rng(0).normal(size=(6, 4))
    (mine(tj.tensor(x)) ** 2).sum().backward()
    (theirs(torch.tensor(x)) ** 2).sum().backward()
    return mine, theirs, x


@pytest.mark.parametrize("norm_type", [2.0, 1, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_grad_norm(norm_type: float, max_norm: float) -> None:
    mine, theirs, _ = trained_pair(lambda t: t.nn.Sequential(t.nn.Linear(4, 5), t.nn.Tanh(), t.nn.Linear(5, 2)))
    a = tj.nn.utils.clip_grad_norm_(mine.parameters(), max_norm, norm_type)
    b = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type)
    assert_alike(a, b, rtol=1e-10, atol=0)
    assert_alike([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], rtol=1e-10, atol=1e-13)
    tj.nn.utils.clip_grad_value_(mine.parameters(), 0.01)
    torch.nn.utils.clip_grad_value_(theirs.parameters(), 0.01)
    assert_alike([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], rtol=1e-10, atol=1e-13)


NORMED: list[Make] = [
    lambda t: t.nn.utils.weight_norm(t.nn.Linear(4, 3)),
    lambda t: t.nn.utils.weight_norm(t.nn.Linear(4, 3), dim=None),
    lambda t: t.nn.utils.weight_norm(t.nn.Linear(4, 3), dim=1),
    lambda t: t.nn.utils.parametrizations.weight_norm(t.nn.Linear(4, 3)),
    lambda t: t.nn.utils.parametrizations.weight_norm(t.nn.Linear(4, 3), dim=None),
    lambda t: t.nn.utils.spectral_norm(t.nn.Linear(4, 3), n_power_iterations=2),
    lambda t: t.nn.utils.parametrizations.spectral_norm(t.nn.Linear(4, 3)),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("make", NORMED)
def test_normed_weights(make: Make) -> None:
    torch.manual_seed(0)
    theirs, mine = make(torch), make(tj)
    mine.load_state_dict(weights_for_tapejit(theirs))
    for _ in range(3):
        x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
        a, b = mine(tj.tensor(x)), theirs(torch.tensor(x))
        assert_alike(a, b, rtol=1e-4, atol=1e-5)
        (a * a).sum().backward()
        (b * b).sum().backward()
        assert [n for n, _ in mine.named_parameters()] == [n for n, _ in theirs.named_parameters()]
        assert_alike([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], rtol=1e-4, atol=1e-5)
    assert {k: tuple(v.shape) for k, v in mine.state_dict().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }


def test_vectors_and_fusion() -> None:
    mine, theirs = pair(lambda t: t.nn.Sequential(t.nn.Conv1d(2, 3, 2), t.nn.BatchNorm1d(3)))
    for library, model in ((tj, mine), (torch, theirs)):
        x = library.tensor(np.random.default_rng(0).normal(size=(4, 2, 6)))
        model(x)
        model.eval()
        fused = library.nn.utils.fuse_conv_bn_eval(model[0], model[1])
        np.testing.assert_allclose(numpy_of(fused(x)), numpy_of(model(x)), rtol=1e-9, atol=1e-11)
    a, b = tj.nn.utils.parameters_to_vector(mine.parameters()), torch.nn.utils.parameters_to_vector(theirs.parameters())
    assert_alike(a, b, rtol=0, atol=0)
    tj.nn.utils.vector_to_parameters(a.detach() * 2, mine.parameters())
    torch.nn.utils.vector_to_parameters(b.detach() * 2, theirs.parameters())
    assert_same_state(mine, theirs)


# ---- initialisation: the same distributions


INITIALISED: list[Make] = [
    lambda t: t.nn.Linear(300, 200),
    lambda t: t.nn.Bilinear(30, 20, 100),
    lambda t: t.nn.Conv1d(60, 50, 20),
    lambda t: t.nn.Conv2d(64, 60, 5, groups=4),
    lambda t: t.nn.Conv3d(20, 30, 4),
    lambda t: t.nn.ConvTranspose1d(60, 50, 20),
    lambda t: t.nn.ConvTranspose2d(40, 60, 5, groups=2),
    lambda t: t.nn.Embedding(300, 200, padding_idx=3),
    lambda t: t.nn.EmbeddingBag(300, 200),
    lambda t: t.nn.PReLU(5),
    lambda t: t.nn.BatchNorm2d(5),
    lambda t: t.nn.LayerNorm(5),
]


@pytest.mark.parametrize("make", INITIALISED)
def test_initial_distribution(make: Make) -> None:
    tj.manual_seed(0)
    torch.manual_seed(0)
    mine, theirs = make(tj), make(torch)
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        p, q = numpy_of(a).ravel(), numpy_of(b).ravel()
        spread = max(q.std(), 1e-12)
        assert abs(p.mean() - q.mean()) <= 6 * spread / np.sqrt(p.size / 2), name
        assert abs(p.std() - q.std()) <= 6 * spread / np.sqrt(p.size), name
        assert np.abs(p).max() <= np.abs(q).max() * (1.3 if "weight" in name and q.std() > 0.9 else 1 + 20 / p.size), name
