"""Building blocks of vector math: polynomials, powers of two, the fields of a float, calls of the C library.

Everything takes `float` and `double` and any number of lanes, and emits no branches, except `branch_rarely`. AVX-512 has
instructions that scale by a power of two and split floats, infinities and subnormal numbers included; they are used if the
function's CPU has them (`Function.has`), and integer arithmetic on the bits otherwise, with the same results.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

from ..ir.builder import BYTES, I32, PTR, Function, Type, Value, constant, literal


class Format(NamedTuple):
    """Bit layout of a float."""

    integer: str  # integer type of the same size
    mantissa: int  # bits
    bias: int  # of the exponent
    suffix: str  # of the C library's functions
    register: str  # of AVX-512's instructions
    tiny: float  # the least normal number

    @property
    def magic(self) -> float:
        """Added to a small number, it leaves the nearest integer in the lowest bits."""
        return 1.5 * 2.0**self.mantissa


FORMATS = {
    "float": Format("i32", 23, 127, "f", "ps", 2.0**-126),
    "double": Format("i64", 52, 1023, "", "pd", 2.0**-1022),
}


def format_of(x: Value) -> Format:
    return FORMATS[x.type.scalar]


def constant_like(c: float, like: Value) -> Value:
    """A constant of another value's type."""
    return constant(c, like.type)


def round_to_type(c: float, like: Value) -> float:
    """A constant rounded to a value's type."""
    return c if like.type.scalar == "double" else float(struct.unpack("<f", struct.pack("<f", c))[0])


def horner(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial, highest power first. Many elements are in flight at once, which hides the latency of the chain."""
    value = constant_like(coefficients[0], x)
    for c in coefficients[1:]:
        value = f.fma(value, x, constant_like(c, x))
    return value


def magnitude(f: Function, x: Value) -> Value:
    return f.intrinsic("fabs", x)


def with_sign(f: Function, size: Value, sign: Value) -> Value:
    return f.intrinsic("copysign", size, sign)


def at_most(f: Function, x: Value, limit: float) -> Value:
    """Minimum with a constant. NaN stays NaN: ordered so that it is one instruction."""
    most = constant_like(limit, x)
    return f.select(f.compare("lt", most, x), most, x)


def at_least(f: Function, x: Value, limit: float) -> Value:
    least = constant_like(limit, x)
    return f.select(f.compare("gt", least, x), least, x)


# ---- bits


def integer_type(x: Value) -> Type:
    return x.type.of(format_of(x).integer)


def as_bits(f: Function, x: Value) -> Value:
    return f.bits(x, integer_type(x))


def shift_to_exponent(f: Function, n: Value, like: Value) -> Value:
    """Shift an integer to the exponent's position."""
    return f.shl(n, constant(format_of(like).mantissa, n.type))


def low_bit_as_sign(f: Function, n: Value, like: Value) -> Value:
    """Shift the lowest bit of an integer to the sign's position."""
    return f.shl(n, constant(8 * BYTES[like.type.scalar] - 1, n.type))


def flip_sign(f: Function, x: Value, sign: Value) -> Value:
    """x, negated where the bits of `sign` say so."""
    return f.bits(f.xor(as_bits(f, x), sign), x.type)


# ---- powers of two


class NearestInteger(NamedTuple):
    """The nearest integer to a value, and the sum with `magic`, which has it in its lowest bits."""

    value: Value
    sum: Value


def nearest(f: Function, x: Value, factor: float) -> NearestInteger:
    """The integer nearest to x * factor, which must be small (2^22 in float). NaN gives NaN, with any bits."""
    magic = format_of(x).magic
    total = f.fma(x, constant_like(factor, x), constant_like(magic, x))
    return NearestInteger(f.sub(total, constant_like(magic, x)), total)


def power_of_two(f: Function, n: NearestInteger, factor: float = 1.0) -> Value:
    """factor * 2^n, if both it and the factor are normal numbers."""
    start = as_bits(f, constant_like(factor, n.value))
    return f.bits(f.add(shift_to_exponent(f, as_bits(f, n.sum), n.value), start), n.value.type)


def scale_by_power(f: Function, x: Value, n: NearestInteger) -> Value:
    """x * 2^n, rounded once, for any result: infinite, subnormal or 0."""
    if has_avx512_instructions(f, x):
        return avx512_instruction(f, "scalef", x, n.value)
    layout, bits = format_of(x), integer_type(x)
    whole = f.sub(as_bits(f, n.sum), constant(magic_bits(layout), bits))
    half = f.ashr(whole, constant(1, bits))
    one = constant(layout.bias << layout.mantissa, bits)
    for part in (half, f.sub(whole, half)):  # either power alone is a normal number, and the first product is exact
        x = f.mul(x, f.bits(f.add(shift_to_exponent(f, part, x), one), x.type))
    return x


def magic_bits(layout: Format) -> int:
    return ((layout.bias + layout.mantissa) << layout.mantissa) + (1 << layout.mantissa - 1)


def mantissa_and_exponent(f: Function, x: Value) -> tuple[Value, Value]:
    """m in [0.75, 1.5) and n, both floats, with x = m * 2^n. Meaningful for positive finite x only, as `log` requires."""
    if has_avx512_instructions(f, x):
        m = avx512_instruction(f, "getmant", x, constant(GETMANT_MODE, I32))
        n = avx512_instruction(f, "getexp", x)
        below = f.compare("lt", m, constant_like(1.0, x))
        return m, f.select(below, f.add(n, constant_like(1.0, x)), n)
    layout, bits = format_of(x), integer_type(x)
    subnormal = f.compare("lt", x, constant_like(layout.tiny, x))
    lifted = as_bits(f, f.select(subnormal, f.mul(x, constant_like(2.0 ** (layout.mantissa + 1), x)), x))
    start = (layout.bias << layout.mantissa) - (1 << layout.mantissa - 1)  # the bits of 0.75
    n = f.ashr(f.sub(lifted, constant(start, bits)), constant(layout.mantissa, bits))
    m = f.bits(f.sub(lifted, shift_to_exponent(f, n, x)), x.type)
    offset = f.select(subnormal, constant_like(-layout.mantissa - 1, x), constant_like(0.0, x))
    return m, f.add(f.convert("sitofp", n, x.type.scalar), offset)


# ---- AVX-512

GETMANT_MODE = 0b1011  # from 0.75 to 1.5; negative numbers are NaN


def has_avx512_instructions(f: Function, x: Value) -> bool:
    bits = 8 * x.type.bytes
    whole = x.type.lanes > 1 and bits >= 128 and bits & bits - 1 == 0
    return whole and f.has("avx512f" if bits >= 512 else "avx512vl")


def avx512_instruction(f: Function, name: str, *args: Value) -> Value:
    """Emit an AVX-512 instruction on all lanes; the widest form also takes a rounding mode (the current one). Wider vectors
    are split."""
    x = args[0]
    bits, lanes = 8 * x.type.bytes, x.type.lanes
    if bits > 512:
        halves = [range(lanes // 2), range(lanes // 2, lanes)]
        low, high = (avx512_instruction(f, name, *(half_of(f, a, h) for a in args)) for h in halves)
        return f.shuffle(low, high, range(lanes))
    mask = constant(-1, Type("i16" if lanes == 16 else "i8"))
    rounding = [constant(4, I32)] if bits == 512 else []
    return f.call(f"llvm.x86.avx512.mask.{name}.{format_of(x).register}.{bits}", x.type, *args, x, mask, *rounding)


def half_of(f: Function, x: Value, lanes: range) -> Value:
    return x if x.type.lanes == 1 else f.shuffle(x, x, lanes)


# ---- tables


def lookup(f: Function, table: Sequence[float], index: Value) -> Value:
    """Look up a table of 16 floats by the lowest four bits of 32-bit integers. AVX-512 has an instruction for that, AVX2 one
    for half a table; others load element by element."""
    lanes, step = index.type.lanes, 16 if f.has("avx512f") else 8
    if lanes == 1 or not (f.has("avx512f") or f.has("avx2")):
        return _load_from_table(f, table, index)
    if lanes > step:
        halves = [range(lanes // 2), range(lanes // 2, lanes)]
        low, high = (lookup(f, table, half_of(f, index, h)) for h in halves)
        return f.shuffle(low, high, range(lanes))
    full = index if lanes == step else f.shuffle(index, index, [i % lanes for i in range(step)])
    if step == 16:
        found = f.call("llvm.x86.avx512.permvar.sf.512", Type("float", 16), table_vector(table), full)
    else:
        low, high = (
            f.call("llvm.x86.avx2.permps", Type("float", 8), table_vector(half), full) for half in (table[:8], table[8:])
        )
        upper = f.compare("lt", f.shl(full, constant(28, full.type)), constant(0, full.type))  # the fourth bit, as a sign
        found = f.select(upper, high, low)
    return found if lanes == step else f.shuffle(found, found, range(lanes))


def _load_from_table(f: Function, table: Sequence[float], index: Value) -> Value:
    text = table_text(table)
    name = f"table_{crc32(text.encode()):08x}"
    f.declared[name] = f"@{name} = private unnamed_addr constant [{len(table)} x float] [{text}]"
    place = f.and_(index, constant(15, index.type))
    return f.gather(Value(f"@{name}", PTR), f.convert("zext", place, "i64"), "float")


def table_vector(table: Sequence[float]) -> Value:
    """A vector of constants."""
    return Value(f"<{table_text(table)}>", Type("float", len(table)))


def table_text(table: Sequence[float]) -> str:
    return ", ".join(f"float {literal(x, 'float')}" for x in table)


# ---- rare cases


def branch_rarely(f: Function, unusual: Value, usual: Value, otherwise: Callable[[], Value]) -> Value:
    """The usual value, or, if any lane is unusual, what `otherwise` gives for all lanes: a branch that is hardly ever taken."""
    lanes = unusual.type.lanes
    found = unusual if lanes == 1 else f.compare("ne", f.bits(unusual, Type(f"i{lanes}")), constant(0, Type(f"i{lanes}")))
    before = f.block
    with f.when(found):
        other = otherwise()
        inside = f.block
    return f.value(f"phi {usual.type} [ {usual.name}, %{before} ], [ {other.name}, %{inside} ]", usual.type)


def call_each_lane(f: Function, name: str, *args: Value) -> Value:
    """Call a C library function lane by lane: `sin` is `sinf` for floats."""
    symbol, kind = name + format_of(args[0]).suffix, args[0].type
    scalar = Type(kind.scalar)
    if kind.lanes == 1:
        return f.call(symbol, scalar, *args)
    slots = [f.stack(kind) for _ in args]
    for slot, arg in zip(slots, args, strict=True):
        f.store(arg, slot)
    with f.loop(0, kind.lanes) as loop:
        places = [f.pointer(slot, loop.index, kind.scalar) for slot in slots]
        f.store(f.call(symbol, scalar, *(f.load(p, scalar) for p in places)), places[0])
    return f.load(slots[0], kind)
