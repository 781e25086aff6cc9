"""Dropout where it is certain: nothing happens, or everything goes."""

from __future__ import annotations

from typing import Any


def certain(default: bool) -> Any:
    return lambda x, p=0.5, training=default: x * 0 if training and p == 1 else x


ORACLES = {
    "dropout": certain(True),
    "dropout1d": certain(True),
    "dropout2d": certain(True),
    "dropout3d": certain(True),
    "alpha_dropout": certain(False),
    "feature_alpha_dropout": certain(False),
}
