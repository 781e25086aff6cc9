"""Random bits: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A counter-based generator has no state to carry along: word i of call n under seed s is a pure function of (s, n, i),
so every device and the compiled code can make the same numbers, in any order. The key is the seed's two halves; the
counter is (block, block >> 32, call, call >> 32), where a block holds words 4 * block to 4 * block + 3.

What becomes of the words is here too: `uniform`, `normal`, `integers`. An element takes one word, or two where it needs
more bits (float64, wide ranges of integers): element i then has words 2 * i (the low half) and 2 * i + 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
MASK = np.uint64(0xFFFFFFFF)
HALF_WORD = np.uint64(32)
ROUNDS = 10
CHUNK = 1 << 13  # blocks at a time on the CPU: the working arrays stay in the cache

# Half precision takes as many bits as fit exactly below 1: no rounding, so never 1.0.
SIGNIFICAND_BITS = {np.dtype(np.float16): 11, np.dtype(ml_dtypes.bfloat16): 8, np.dtype(np.float32): 24}


@functools.lru_cache(maxsize=64)
def round_keys(seed: int) -> np.ndarray[Any, Any]:
    """The key of each round: shape (rounds, 2, 1)."""
    key = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64)
    return ((key + np.arange(ROUNDS, dtype=np.uint64)[:, None] * WEYL) & MASK)[:, :, None].astype(np.uint32)


class Mixer:
    """Ten rounds over many counters at once, in arrays that are used again and again.

    A counter's words 0 and 2 are 32 bits in a uint64, so that their products have room. A round multiplies them, crosses
    the two products and mixes their high halves with words 1 and 3, which are the low halves of the round before: these
    are never copied, only looked at, and two arrays of products take turns.
    """

    def __init__(self, xp: Any, size: int, seed: int) -> None:
        self.xp = xp
        self.even = xp.zeros((2, size), np.uint64)  # words 0 and 2; the high halves stay 0
        self.odd = xp.empty((2, size), np.uint32)  # words 1 and 3, at first
        self.products = [xp.empty((2, size), np.uint64) for _ in range(2)]
        self.multipliers, self.keys = xp.asarray(MULTIPLIERS), list(xp.asarray(round_keys(seed)))
        self.words = xp.empty((size, 4), np.uint32)

    def __call__(self, start: int, n: int, call: int) -> Any:
        """The words of blocks start to start + n - 1, as one uint32 array."""
        xp, even, odd = self.xp, self.even[:, :n], self.odd[:, :n]
        even[0] = xp.arange(start, start + n, dtype=np.uint64) & MASK
        even[1], odd[0], odd[1] = call & 0xFFFFFFFF, 0, call >> 32
        if start + n > 1 << 32:
            odd[0] = xp.arange(start, start + n, dtype=np.uint64) >> HALF_WORD
        found = self.words[:n]
        found[:, 0::2], found[:, 1::2] = (w.T for w in self.mix(even, odd))
        return found.reshape(-1)

    def mix(self, even: Any, odd: Any) -> tuple[Any, Any]:
        """Words 0 and 2, and 1 and 3, after all rounds; `even` is overwritten."""
        multiply, xor = self.xp.multiply, self.xp.bitwise_xor
        products = [p[:, : even.shape[1]] for p in self.products]
        halves = [p.view(np.uint32)[::-1] for p in products]
        low, high = [h[:, 0::2] for h in halves], [h[:, 1::2] for h in halves]
        low_even = even.view(np.uint32)[:, 0::2]
        for i, key in enumerate(self.keys):
            turn = i & 1
            multiply(even, self.multipliers, products[turn])
            xor(high[turn], odd, low_even)
            xor(low_even, key, low_even)
            odd = low[turn]
        return low_even, odd


def chunks(xp: Any, seed: int, call: int, count: int) -> Iterator[tuple[int, Any]]:
    """The first `count` words of a call and up to 3 more, as (position of the first, uint32 array). Each array is
    overwritten by the next."""
    total = -(-count // 4)
    step = min(total, CHUNK) if xp is np else total
    if not total:
        return
    mixer = Mixer(xp, step, seed)
    for start in range(0, total, step):
        yield 4 * start, mixer(start, min(step, total - start), call)


def fill(xp: Any, seed: int, call: int, count: int, dtype: Any, each: int, convert: Callable[[Any], Any]) -> Any:
    """`count` elements made by `convert` from `each` words apiece, chunk by chunk."""
    out = xp.empty(count, dtype)
    for start, words in chunks(xp, seed, call, count * each):
        part = out[start // each : start // each + len(words) // each]
        part[...] = convert(words)[: len(part)]
    return out


# ---- from words to numbers


def uniform(xp: Any, seed: int, call: int, count: int, dtype: np.dtype[Any]) -> Any:
    """Uniform in [0, 1): 24 bits as float32, 53 as float64, what fits as half precision."""
    if dtype == np.float64:
        return fill(xp, seed, call, count, dtype, 2, _fraction64)
    bits = SIGNIFICAND_BITS[dtype]
    return fill(xp, seed, call, count, dtype, 1, lambda words: _fraction32(words, bits))


def _fraction32(words: Any, bits: int) -> Any:
    return (words >> np.uint32(32 - bits)).view(np.int32).astype(np.float32) * np.float32(2.0**-bits)


def _fraction64(words: Any) -> Any:
    return (words.view(np.uint64) >> np.uint64(11)).view(np.int64).astype(np.float64) * 2.0**-53


def normal(xp: Any, seed: int, call: int, count: int, dtype: np.dtype[Any]) -> Any:
    """Standard normal, by Box and Muller: elements 2 * i and 2 * i + 1 are the cosine and the sine of one pair."""
    if dtype == np.float64:
        return fill(xp, seed, call, count, dtype, 2, lambda words: _box_muller(xp, *_pair64(words)))
    return fill(xp, seed, call, count, dtype, 1, lambda words: _box_muller(xp, *_pair32(words)))


def _pair32(words: Any) -> tuple[Any, Any]:
    """A number in (0, 1] and an angle in [0, 2 pi]. All 32 bits of the first count: they are the distribution's tail."""
    unit = words[::2].astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    return unit, words[1::2].astype(np.float32) * np.float32(2 * math.pi * 2.0**-32)


def _pair64(words: Any) -> tuple[Any, Any]:
    fraction = _fraction64(words)
    return fraction[::2] + 2.0**-53, fraction[1::2] * (2 * math.pi)


def _box_muller(xp: Any, unit: Any, angle: Any) -> Any:
    radius = xp.log(unit)
    radius *= -2
    radius = xp.sqrt(xp.abs(radius))
    pair = xp.empty(2 * len(unit), unit.dtype)
    pair[::2] = radius * xp.cos(angle)
    pair[1::2] = radius * xp.sin(angle)
    return pair


def integers(xp: Any, seed: int, call: int, count: int, low: int, high: int) -> Any:
    """Whole numbers in [low, high) as int64. A number is at most one part in 65536 likelier than another, and for ranges
    up to 2**32 wider than 65536 one part in 2**32."""
    span = high - low
    if span <= 1 << 16:
        return fill(xp, seed, call, count, np.int64, 1, lambda words: multiply_high(words, span) + low)
    if span <= 1 << 32:
        return fill(xp, seed, call, count, np.int64, 2, lambda words: _multiply_high64(words, span) + low)
    return fill(xp, seed, call, count, np.int64, 2, lambda words: _wrapped(words.view(np.uint64) % np.uint64(span), low))


def multiply_high(words: Any, span: int) -> Any:
    """The high half of word * span: in [0, span) without a division."""
    return (words.astype(np.uint64) * np.uint64(span) >> HALF_WORD).view(np.int64)


def _multiply_high64(words: Any, span: int) -> Any:
    low = words[::2].astype(np.uint64) * np.uint64(span) >> HALF_WORD
    return (words[1::2].astype(np.uint64) * np.uint64(span) + low >> HALF_WORD).view(np.int64)


def _wrapped(offsets: Any, low: int) -> Any:
    """offset + low, where the offset may be beyond int64 but the sum is not: the wrap-around of uint64 gets it right."""
    return (offsets + np.uint64(low % (1 << 64))).view(np.int64)


def bernoulli(xp: Any, seed: int, call: int, count: int, p: float) -> Any:
    """True with probability p: whether a uniform float32 of the same word is below p, compared exactly."""
    bound = np.uint32(min(max(math.ceil(p * 2.0**24), 0), 1 << 24))
    return fill(xp, seed, call, count, np.bool_, 1, lambda words: words >> np.uint32(8) < bound)


def permutation(xp: Any, seed: int, call: int, count: int) -> Any:
    """0 to count - 1 in the order of random 64-bit keys; two equal keys are a matter of one in 2**64 pairs."""
    return xp.argsort(fill(xp, seed, call, count, np.uint64, 2, lambda words: words.view(np.uint64)))
