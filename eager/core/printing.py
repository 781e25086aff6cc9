"""Print tensors as PyTorch does, and the print options.

The numbers of a tensor share one format, chosen from all that are shown: whole, fixed or scientific. Of a large tensor
only the edges of each dimension are fetched and shown. Nothing here goes through an op, so printing leaves no trace on
the tape.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arrays import devices, dtypes
from .tensor import Tensor

PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}


class Options:
    """Print options: see `set_printoptions`."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


options = Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors are printed.

    `precision` is the number of digits after the point, `threshold` the number of elements above which only `edgeitems` at
    the ends of each dimension are shown, `linewidth` the length of a line, `sci_mode` scientific notation (None: as the
    numbers ask for it). `profile` is "default", "short" or "full".
    """
    if profile is not None and profile not in PROFILES:
        raise ValueError(f"set_printoptions: profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    chosen = dict(PROFILES[profile]) if profile is not None else {}
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    chosen.update({name: value for name, value in given.items() if value is not None})
    for name, value in chosen.items():
        setattr(options, name, value)
    options.sci_mode = sci_mode


def get_printoptions() -> dict[str, Any]:
    """Return the current options, as a dictionary for `set_printoptions(**...)`."""
    return {name: getattr(options, name) for name in ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")}


@contextlib.contextmanager
def printoptions(**kwargs: Any) -> Iterator[None]:
    """A context with other print options."""
    before = get_printoptions()
    set_printoptions(**kwargs)
    try:
        yield
    finally:
        set_printoptions(**before)


# ---- numbers


class Formatter:
    """One format for all numbers of a tensor, so that they line up."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.spec: str | None = None  # None: integers and booleans, by `str`
        self.point = ""
        self.width = 1
        if values.dtype.kind != "f":
            texts = [str(v) for v in values.reshape(-1).tolist()]
            self.width = max(map(len, texts), default=1)
            return
        self.spec, self.point = ".0f", "."
        telling = values[np.isfinite(values) & (values != 0)].astype(np.float64)
        if telling.size == 0:
            return
        if self.is_scientific(np.abs(telling)):
            self.spec, self.point = f".{options.precision}e", ""
        elif bool((telling != np.ceil(telling)).any()):
            self.spec, self.point = f".{options.precision}f", ""
        self.width = max(len(format(v, self.spec)) for v in telling.tolist()) + len(self.point)

    @staticmethod
    def is_scientific(sizes: np.ndarray[Any, Any]) -> bool:
        if options.sci_mode is not None:
            return options.sci_mode
        least, most = float(sizes.min()), float(sizes.max())
        return most / least > 1000.0 or most > 1.0e8 or least < 1.0e-4

    def __call__(self, value: Any) -> str:
        if self.spec is None:
            return str(value).rjust(self.width)
        text = format(value, self.spec)
        return (text + self.point if math.isfinite(value) else text).rjust(self.width)


# ---- shapes


def edges(array: Any) -> np.ndarray[Any, Any]:
    """Return the elements shown of an array that is too large: the ends of each dim."""
    xp, n = devices.module_of(array), options.edgeitems
    with devices.on(devices.device_of(array)):
        for d, length in enumerate(array.shape):
            if length > 2 * n:
                at = (slice(None),) * d
                array = xp.concatenate([array[(*at, slice(n))], array[(*at, slice(length - n, None))]], axis=d)
        return devices.to_numpy(array)


def vector(values: list[Any], cut: bool, indent: int, show: Formatter) -> str:
    """A row of numbers, in lines of at most `linewidth`; with `cut` dots stand for those left out in the middle."""
    texts = [show(v) for v in values]
    if cut:
        texts.insert(len(texts) // 2, " ..." if texts else "...")
    per_line = max(1, (options.linewidth - indent) // (show.width + 2))
    lines = [", ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def block(array: np.ndarray[Any, Any], cuts: tuple[bool, ...], indent: int, show: Formatter) -> str:
    """Nested brackets of an array of which the dimensions in `cuts` show only their ends."""
    if array.ndim == 0:
        return show(array.item())
    if array.ndim == 1:
        return vector(array.tolist(), cuts[0], indent, show)
    parts = [block(part, cuts[1:], indent + 1, show) for part in array]
    if cuts[0]:
        parts.insert(len(parts) // 2, "...")
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def contents(array: Any, indent: int) -> str:
    if array.size == 0:
        return "[]"
    large = array.size > options.threshold
    shown = edges(array) if large else devices.to_numpy(array)
    if shown.dtype in dtypes.HALF:
        shown = shown.astype(np.float32)
    cuts = tuple(large and n > 2 * options.edgeitems for n in array.shape)
    return block(shown, cuts, indent, Formatter(shown))


def suffixes(self: Tensor) -> list[str]:
    """Text after the numbers: device, dtype and grad_fn, where they are not the default."""
    found = []
    if self.is_cuda:
        found.append(f"device='{self.device}'")
    is_empty = self.tj_array.size == 0
    if (is_empty and self.tj_array.ndim != 1) or (not is_empty and not options.edgeitems):
        found.append(f"size={self.tj_array.shape}")
    unsaid = [dtypes.get_default_dtype()] if is_empty else [dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_]
    if self.dtype not in unsaid:
        found.append(f"dtype={self.dtype}")
    node = self.grad_fn
    if node is not None:
        found.append(f"grad_fn=<{node.name()}>")
    elif self.requires_grad:
        found.append("requires_grad=True")
    return found


def text(self: Tensor, name: str = "tensor") -> str:
    """`name([...], dtype=...)`."""
    prefix = name + "("
    found = prefix + contents(self.tj_array, len(prefix))
    used = len(found) - found.rfind("\n") + 1
    for suffix in suffixes(self):
        if used + len(suffix) + 2 > options.linewidth:
            found += ",\n" + " " * len(prefix) + suffix
            used = len(prefix) + len(suffix)
        else:
            found += ", " + suffix
            used += len(suffix) + 2
    return found + ")"


def representation(self: Tensor) -> str:
    return text(self, "tensor" if type(self) is Tensor else type(self).__name__)


setattr(Tensor, "__repr__", representation)  # noqa: B010 -- and str(), which falls back on it
