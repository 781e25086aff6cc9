"""Interpolation and shuffles beyond their samples: infinities, integers, round trips, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.eager.ops.spatial import interpolate as resize
from tapejit.nn import functional as F


def test_infinities_stay_with_their_neighbours() -> None:
    x = tj.tensor([[[math.inf, 1.0, 2.0, 3.0]]])
    y = F.interpolate(x, size=8, mode="linear")
    assert np.isfinite(y.numpy()[0, 0]).tolist() == [False] * 3 + [True] * 5
    assert F.interpolate(x, size=3, mode="nearest").tolist() == [[[math.inf, 1, 2]]]


def test_nearest_keeps_integers() -> None:
    x = tj.tensor([[[3, 1, 2]]], dtype=tj.uint8)
    y = F.interpolate(x, scale_factor=2)
    assert y.dtype is tj.uint8
    assert y.tolist() == [[[3, 3, 1, 1, 2, 2]]]


def test_align_corners_keeps_the_corners() -> None:
    x = tj.tensor(np.random.default_rng(0).standard_normal((1, 2, 3, 4)))
    for mode in ("bilinear", "bicubic"):
        y = F.interpolate(x, size=(7, 9), mode=mode, align_corners=True)
        np.testing.assert_allclose(y.numpy()[..., ::6, ::8], x.numpy()[..., ::2, ::3], atol=1e-12)


def test_a_constant_stays_one() -> None:
    x = tj.full((1, 1, 5, 7), 2.5, dtype=tj.float64)
    for settings in ({"mode": "bilinear"}, {"mode": "bicubic"}, {"mode": "area"}, {"mode": "bicubic", "antialias": True}):
        y = F.interpolate(x, size=(3, 11), **settings)
        np.testing.assert_allclose(y.numpy(), 2.5, rtol=1e-12)


def test_tables_are_transposed_twice_to_themselves() -> None:
    taps = resize.linear(5, 8, 5 / 8, False)
    assert taps.transposed.transposed is taps
    assert taps == resize.Taps(5, *taps.entries, 8)
    assert taps != taps.transposed
    assert hash(taps) == hash(resize.Taps(5, *taps.entries, 8))


def test_unshuffle_undoes_shuffle() -> None:
    x = tj.tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 2, 3)))
    assert tj.equal(tj.pixel_unshuffle(tj.pixel_shuffle(x, 2), 2), x)
    images = x[0]
    assert tj.equal(tj.channel_shuffle(tj.channel_shuffle(images, 2), 4), images)


ones = tj.ones


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda: F.interpolate(ones(1, 2, 4, 4)), ValueError, "either size or scale_factor should be defined"),
        (lambda: F.interpolate(ones(1, 2, 4, 4), size=2, scale_factor=2), ValueError, "only one of size or scale_factor"),
        (
            lambda: F.interpolate(ones(1, 2, 4, 4), size=(2, 2, 2)),
            ValueError,
            "must have the same number of spatial dimensions",
        ),
        (lambda: F.interpolate(ones(1, 2, 4, 4), scale_factor=(2,)), ValueError, "Input and scale_factor must have the same"),
        (
            lambda: F.interpolate(ones(4, 4), size=2),
            NotImplementedError,
            r"Only 3D, 4D and 5D input Tensors supported \(got 2D\)",
        ),
        (
            lambda: F.interpolate(ones(1, 2, 4), size=2, mode="bilinear"),
            NotImplementedError,
            "Got 3D input, but bilinear mode needs 4D",
        ),
        (lambda: F.interpolate(ones(1, 2, 4), size=2, mode="best"), NotImplementedError, r"\(got best\)"),
        (lambda: F.interpolate(ones(1, 2, 4), size=2, align_corners=True), ValueError, "align_corners option can only be set"),
        (lambda: F.interpolate(ones(1, 2, 4), size=2, antialias=True), ValueError, "Anti-alias option is restricted"),
        (lambda: F.interpolate(ones(1, 2, 4), size=0), RuntimeError, "sizes should be greater than 0"),
        (lambda: F.interpolate(ones(1, 2, 4), size=2.5), TypeError, "must be an int, not float"),
        (
            lambda: F.interpolate(ones(1, 2, 4), size=2, recompute_scale_factor=True),
            ValueError,
            "not meaningful with an explicit size",
        ),
        (lambda: F.interpolate(ones(1, 2, 4).long(), size=2, mode="linear"), NotImplementedError, "not implemented for 'Long'"),
        (lambda: F.interpolate(ones(1, 0, 4), size=2), RuntimeError, "Non-empty 3D data tensor expected"),
        (lambda: F.pixel_shuffle(ones(7, 2, 2), 2), RuntimeError, r"input.size\(-3\)=7 is not divisible by 4"),
        (lambda: F.pixel_shuffle(ones(7, 2), 2), RuntimeError, "at least 3 dimensions, but got input with 2"),
        (lambda: F.pixel_shuffle(ones(8, 2, 2), 0), RuntimeError, "expects a positive upscale_factor, but got 0"),
        (lambda: F.pixel_unshuffle(ones(1, 3, 4), 2), RuntimeError, r"expects height to be divisible .* input.size\(-2\)=3"),
        (lambda: F.channel_shuffle(ones(1, 5, 2, 2), 2), RuntimeError, "Got 5 channels and 2 groups"),
        (
            lambda: F.channel_shuffle(ones(4, 2), 2),
            RuntimeError,
            r"expects input with > 2 dims, but got input with sizes \[4, 2\]",
        ),
        (lambda: F.channel_shuffle(ones(4, 2, 2), 0), RuntimeError, "must be positive. Value of groups:0"),
    ],
)
def test_errors(call: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        call()


def test_upsample_is_an_old_name():
    with pytest.warns(UserWarning, match=r"`nn\.functional\.upsample` is deprecated\. Use `nn\.functional\.interpolate`"):
        assert F.upsample(tj.ones(1, 1, 2, 2), scale_factor=2).shape == (1, 1, 4, 4)
