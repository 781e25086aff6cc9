"""Random numbers in generated code: the words of `eager/arrays/philox.py`, and their conversion, element by element.

A call's bits depend on its seed and its number only: `Bits(f, seed, call)`, computed before a loop. Elements are given by
their indices in the op's result, in row-major order: as a run from a first index, which must be a multiple of 4, or as a
vector of arbitrary indices, which costs four times as much, as a block of four words is computed for each of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ....eager.arrays.philox import MULTIPLIERS, ROUNDS, WEYL
from ..ir.builder import F64, I64, Function, Type, Value, constant
from .common import branch_rarely, constant_like, magnitude
from .log import log
from .trig import sin_and_cos

LOW_WORD = 0xFFFFFFFF
KEPT_BITS = {"half": 11, "bfloat": 8, "float": 24}  # random bits that fit exactly below 1


class Bits:
    """The random bits of one call of an op. `seed` and `call` are i64, of which all bits count."""

    def __init__(self, f: Function, seed: Value, call: Value) -> None:
        halves = [self._half(f, seed, high) for high in (False, True)]
        steps = [[constant(r * int(step) & LOW_WORD, I64) for step in WEYL] for r in range(ROUNDS)]
        mask = constant(LOW_WORD, I64)
        self.keys = [[f.and_(f.add(k, s), mask) for k, s in zip(halves, step, strict=True)] for step in steps]
        self.call = [self._half(f, call, high) for high in (False, True)]

    @staticmethod
    def _half(f: Function, x: Value, high: bool) -> Value:
        return f.lshr(x, constant(32, x.type)) if high else f.and_(x, constant(LOW_WORD, x.type))

    def block(self, f: Function, index: Value) -> list[Value]:
        """The four words of each block, as 32 bits in an i64: ten rounds of multiply, cross and mix."""
        lanes = index.type.lanes
        first, second = (constant(int(m), index.type) for m in MULTIPLIERS.reshape(-1))
        w0, w1 = self._half(f, index, False), self._half(f, index, True)
        w2, w3 = (f.splat(half, lanes) for half in self.call)
        for key0, key1 in self.keys:
            p0, p1 = f.mul(w0, first), f.mul(w2, second)
            w0 = f.xor(f.xor(self._half(f, p1, True), w1), f.splat(key0, lanes))
            w2 = f.xor(f.xor(self._half(f, p0, True), w3), f.splat(key1, lanes))
            w1, w3 = self._half(f, p1, False), self._half(f, p0, False)
        return [w0, w1, w2, w3]

    def pairs(self, f: Function, index: Value) -> tuple[Value, Value]:
        """The words of each block, as two i64 of two words each: the first of a pair is the low half."""
        w0, w1, w2, w3 = self.block(f, index)
        up = constant(32, index.type)
        return f.or_(w0, f.shl(w1, up)), f.or_(w2, f.shl(w3, up))


class Elements(NamedTuple):
    """The elements of a vector: a run from `first`, an i64 that is a multiple of 4, or arbitrary indices `at`."""

    lanes: int
    first: Value | None = None
    at: Value | None = None

    def halved(self, f: Function) -> Elements:
        """Indices of the pairs, as elements 2 i and 2 i + 1 are made of one pair: half as many for a run, as many otherwise."""
        if self.first is not None:
            return Elements(self.lanes // 2, first=f.lshr(self.first, constant(1, I64)))
        assert self.at is not None
        return Elements(self.lanes, at=f.lshr(self.at, constant(1, self.at.type)))


# ---- words of elements


def words64(f: Function, bits: Bits, elements: Elements) -> Value:
    """Words 2 i (the low half) and 2 i + 1 of each element."""
    one = constant(1, I64)
    if elements.first is not None and elements.lanes % 2 == 0:
        return run_of_pairs(f, bits, f.lshr(elements.first, one), elements.lanes // 2)
    index = indices(f, elements)
    one = constant(1, index.type)
    low, high = bits.pairs(f, f.lshr(index, one))
    return f.select(f.compare("eq", f.and_(index, one), one), high, low)


def words32(f: Function, bits: Bits, elements: Elements) -> Value:
    """Word i of each element."""
    if elements.first is not None and elements.lanes % 4 == 0:
        pairs = run_of_pairs(f, bits, f.lshr(elements.first, constant(2, I64)), elements.lanes // 4)
        return f.bits(pairs, Type("i32", elements.lanes))
    index = indices(f, elements)
    one = constant(1, index.type)
    pair = words64(f, bits, Elements(elements.lanes, at=f.lshr(index, one)))
    up = f.shl(f.and_(index, one), constant(5, index.type))
    return f.convert("trunc", f.lshr(pair, up), "i32")


def run_of_pairs(f: Function, bits: Bits, first: Value, blocks: int) -> Value:
    """All words of blocks that follow each other, in order, as i64 of two words each."""
    index = f.add(f.splat(first, blocks), f.steps(blocks)) if blocks > 1 else first
    low, high = bits.pairs(f, index)
    if blocks == 1:
        both = Type("i64", 2)
        start = f.value(f"insertelement {both} poison, {low}, i32 0", both)
        return f.value(f"insertelement {start}, {high}, i32 1", both)
    return interleave(f, low, high)


def interleave(f: Function, a: Value, b: Value) -> Value:
    """a's first lane, b's first, a's second, ..."""
    lanes = a.type.lanes
    return f.shuffle(a, b, [k for i in range(lanes) for k in (i, i + lanes)])


def indices(f: Function, elements: Elements) -> Value:
    if elements.at is not None:
        return elements.at
    assert elements.first is not None
    return f.add(f.splat(elements.first, elements.lanes), f.steps(elements.lanes)) if elements.lanes > 1 else elements.first


# ---- from words to numbers


def uniform(f: Function, bits: Bits, elements: Elements, scalar: str) -> Value:
    """Uniform in [0, 1), as `scalar`, but half precision as the `float` that is equal to it: bit for bit eager's."""
    if scalar == "double":
        return fraction(f, words64(f, bits, elements))
    kept = KEPT_BITS[scalar]
    words = words32(f, bits, elements)
    whole = f.convert("sitofp", f.lshr(words, constant(32 - kept, words.type)), "float")
    return f.mul(whole, constant_like(2.0**-kept, whole))


def fraction(f: Function, words: Value) -> Value:
    whole = f.convert("sitofp", f.lshr(words, constant(11, words.type)), "double")
    return f.mul(whole, constant_like(2.0**-53, whole))


def scale_uniform(f: Function, drawn: Value, low: Value, high: Value) -> Value:
    """Map uniform numbers in [0, 1) to [low, high), scalars in double, as Python's numbers are."""
    span, start = (splat_like(f, x, drawn) for x in (f.sub(high, low), low))
    return f.add(f.mul(drawn, span), start)


def scale_normal(f: Function, drawn: Value, mean: Value, std: Value) -> Value:
    """Map standard normal numbers to another mean and deviation, scalars in double."""
    return f.add(f.mul(drawn, splat_like(f, std, drawn)), splat_like(f, mean, drawn))


def splat_like(f: Function, x: Value, like: Value) -> Value:
    return f.splat(f.convert("fptrunc", x, "float") if like.type.scalar == "float" else x, like.type.lanes)


def mask(f: Function, bits: Bits, elements: Elements, bound: Value) -> Value:
    """True with probability p, where `bound` is `mask_bound` of it."""
    words = words32(f, bits, elements)
    drawn = f.lshr(words, constant(8, words.type))
    return f.compare("lt", drawn, f.splat(bound, elements.lanes))


def mask_bound(f: Function, p: Value) -> Value:
    """Bound, an i32, that 24 random bits have to be below, for a probability in double."""
    scaled = f.intrinsic("ceil", f.mul(p, constant(2.0**24, F64)))
    least, most = constant(0.0, F64), constant(2.0**24, F64)
    scaled = f.select(f.compare("gt", scaled, least), scaled, least)
    scaled = f.select(f.compare("lt", scaled, most), scaled, most)
    return f.convert("fptosi", scaled, "i32")


def bernoulli(f: Function, bits: Bits, elements: Elements, p: Value) -> Value:
    """True with each element's own probability, of `float` (also for half precision) or `double`."""
    return f.compare("lt", uniform(f, bits, elements, p.type.scalar), p)


def normal(f: Function, bits: Bits, elements: Elements, scalar: str) -> Value:
    """Standard normal, in `float` (also for half precision) or `double`, by Box and Muller: elements 2 * i and 2 * i + 1 are
    the cosine and the sine of one pair."""
    if elements.lanes < 4:
        elements = Elements(elements.lanes, at=indices(f, elements))
    pairs = elements.halved(f)
    unit, angle = (pair_double if scalar == "double" else pair_float)(f, bits, pairs)
    radius = f.intrinsic("sqrt", magnitude(f, f.mul(log(f, unit), constant_like(-2.0, unit))))
    sine, cosine = sin_and_cos(f, angle)
    first, second = f.mul(radius, cosine), f.mul(radius, sine)
    if elements.first is not None:
        return interleave(f, first, second)
    index = indices(f, elements)
    one = constant(1, index.type)
    return f.select(f.compare("eq", f.and_(index, one), one), second, first)


def pair_float(f: Function, bits: Bits, pairs: Elements) -> tuple[Value, Value]:
    """A number in (0, 1] and an angle in [0, 2 pi]."""
    words = words64(f, bits, pairs)
    low, high = f.and_(words, constant(LOW_WORD, words.type)), f.lshr(words, constant(32, words.type))
    unit, angle = (f.convert("uitofp", f.convert("trunc", x, "i32"), "float") for x in (low, high))
    unit = f.add(f.mul(unit, constant_like(2.0**-32, unit)), constant_like(2.0**-33, unit))
    return unit, f.mul(angle, constant_like(2 * math.pi * 2.0**-32, angle))


def pair_double(f: Function, bits: Bits, pairs: Elements) -> tuple[Value, Value]:
    unit, angle = (fraction(f, words) for words in bits.pairs(f, indices(f, pairs)))
    return f.add(unit, constant_like(2.0**-53, unit)), f.mul(angle, constant_like(2 * math.pi, angle))


def integers(f: Function, bits: Bits, elements: Elements, low: Value, high: Value) -> Value:
    """Whole numbers in [low, high), i64 scalars, as i64: one word for up to 65536 different ones, else two."""
    span = f.sub(high, low)
    wide = f.splat(span, elements.lanes)
    few = f.compare("le", f.sub(span, constant(1, I64)), constant((1 << 16) - 1, I64), unsigned=True)
    many = f.compare("gt", f.sub(span, constant(1, I64)), constant(LOW_WORD, I64), unsigned=True)
    words = words64(f, bits, elements)
    shift, lowest = constant(32, words.type), constant(LOW_WORD, words.type)
    carried = f.lshr(f.mul(f.and_(words, lowest), wide), shift)
    value = f.lshr(f.add(f.mul(f.lshr(words, shift), wide), carried), shift)
    value = branch_rarely(f, few, value, lambda: f.lshr(f.mul(words32_as_i64(f, bits, elements), wide), shift))
    value = branch_rarely(f, many, value, lambda: f.binary("urem", words, f.splat(nonzero_span(f, span), elements.lanes)))
    return f.add(value, f.splat(low, elements.lanes))


def words32_as_i64(f: Function, bits: Bits, elements: Elements) -> Value:
    return f.convert("zext", words32(f, bits, elements), "i64")


def nonzero_span(f: Function, span: Value) -> Value:
    """The span, or 1 for 0: a division by 0 would trap. Eager execution raises an error for 2**64 different numbers."""
    one = constant(1, I64)
    return f.select(f.compare("eq", span, constant(0, I64)), one, span)
