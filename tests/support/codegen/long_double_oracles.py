"""Special functions with the 64 bits of x86's long double, as oracles for float64: series that lose nothing, however slow."""

from __future__ import annotations

from typing import Any

import numpy as np

Long = np.longdouble
PI = Long("3.14159265358979323846264338327950288")


def erf(x: Any) -> Any:
    """2 / sqrt(pi) exp(-x^2) (x + 2/3 x^3 + 4/15 x^5 + ...), whose terms have one sign."""
    x = np.asarray(x, Long)
    small = np.clip(x, -7, 7)
    term, total = small, np.zeros_like(small)
    for n in range(1, 300):
        total = total + term
        term = term * 2 * small * small / (2 * n + 1)
    return np.where(np.isnan(x), x, 2 / np.sqrt(PI) * np.exp(-small * small) * total)


def erfc(x: Any) -> Any:
    """From 2 on a continued fraction, before it 1 - erf."""
    x = np.asarray(x, Long)
    large = np.clip(x, 2, 200)
    fraction = np.zeros_like(large)
    for k in range(200, 0, -1):
        fraction = (Long(k) / 2) / (large + fraction)
    return np.where(x < 2, 1 - erf(x), np.exp(-large * large) / np.sqrt(PI) / (large + fraction))


def erfinv(y: Any, guess: Any) -> Any:
    """Newton's method from a guess that is right to a few digits."""
    y, x = np.asarray(y, Long), np.asarray(guess, Long)
    for _ in range(3):
        excess = np.where(y > 0.5, (1 - y) - erfc(x), erf(x) - y)
        x = x - excess * np.sqrt(PI) / 2 * np.exp(x * x)
    return x


def digamma(x: Any) -> Any:
    """For x > 0: the asymptotic series from 40 on, where digamma(x + 1) = digamma(x) + 1 / x leads."""
    x = np.asarray(x, Long)
    total = np.zeros_like(x)
    for _ in range(40):
        total, x = total - np.where(x < 40, 1 / x, 0), np.where(x < 40, x + 1, x)
    z = 1 / (x * x)
    bernoulli = [Long(1) / 12, Long(-1) / 120, Long(1) / 252, Long(-1) / 240, Long(1) / 132, Long(-691) / 32760]
    series = sum(b * z ** (k + 1) for k, b in enumerate(bernoulli))
    return total + np.log(x) - 1 / (2 * x) - series
