"""float16 <-> float32 by integer arithmetic, for CPUs without the instruction, where LLVM would call a library.

Rounds to nearest even, keeps subnormal numbers, and turns NaN into a quiet NaN with the same upper bits, as the instructions
do.
"""

from __future__ import annotations

from .builder import Function, Type, Value, constant

SIGN, MAGNITUDE = 0x8000, 0x7FFF
INFINITE = 0x7C00
SMALLEST_NORMAL = 0x0400
OVERFLOW = 143 << 23  # 65536 as a float: from here on the half is infinite
SUBNORMAL = 113 << 23  # 2**-14 as a float: less is subnormal


def half_to_float(f: Function, a: Value) -> Value:
    """Convert halves to floats."""
    kind = a.type.of("i32")
    bits = f.convert("zext", f.bits(a, a.type.of("i16")), "i32")
    rest, sign = f.and_(bits, constant(MAGNITUDE, kind)), f.shl(f.and_(bits, constant(SIGN, kind)), constant(16, kind))
    moved = f.shl(rest, constant(13, kind))
    usual = f.add(moved, constant(112 << 23, kind))
    small = f.mul(f.convert("sitofp", rest, "float"), constant(2.0**-24, a.type.of("float")))
    quiet = f.select(f.compare("gt", rest, constant(INFINITE, kind)), constant(0x7FC00000, kind), constant(0x7F800000, kind))
    found = f.select(f.compare("lt", rest, constant(SMALLEST_NORMAL, kind)), f.bits(small, kind), usual)
    found = f.select(f.compare("ge", rest, constant(INFINITE, kind)), f.or_(moved, quiet), found)
    return f.bits(f.or_(found, sign), a.type.of("float"))


def float_to_half(f: Function, a: Value) -> Value:
    """Convert floats to halves."""
    kind = a.type.of("i32")
    bits = f.bits(a, kind)
    rest = f.and_(bits, constant(0x7FFFFFFF, kind))
    sign = f.and_(f.lshr(bits, constant(16, kind)), constant(SIGN, kind))
    odd = f.and_(f.lshr(rest, constant(13, kind)), constant(1, kind))
    usual = f.lshr(f.add(f.add(rest, constant(0xFFF - (112 << 23), kind)), odd), constant(13, kind))
    half = constant(0.5, a.type)  # added to it, the last bit is that of a subnormal half
    small = f.sub(f.bits(f.add(f.bits(rest, a.type), half), kind), f.bits(half, kind))
    payload = f.and_(f.lshr(rest, constant(13, kind)), constant(0x1FF, kind))
    nan = f.or_(payload, constant(0x7E00, kind))
    beyond = f.select(f.compare("gt", rest, constant(0x7F800000, kind)), nan, constant(INFINITE, kind))
    found = f.select(f.compare("lt", rest, constant(SUBNORMAL, kind)), small, usual)
    found = f.select(f.compare("ge", rest, constant(OVERFLOW, kind)), beyond, found)
    short = f.convert("trunc", f.or_(found, sign), "i16")
    return f.bits(short, Type("half", a.type.lanes))
