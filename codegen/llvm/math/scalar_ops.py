"""Emits scalar ops as LLVM instructions: one function per kind of op, for scalars and vectors alike."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.builder import BYTES, Function, Type, Value, constant
from . import TAKE_UNSIGNED, VECTOR_MATH, philox
from .common import branch_rarely
from .philox import Bits, Elements

SCALARS = {  # in registers; booleans are bytes in memory
    "float64": "double", "float32": "float", "float16": "half", "bfloat16": "bfloat", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "i8", "uint16": "i16", "uint32": "i32", "uint64": "i64", "bool": "i1",
}  # fmt: skip
HALF_DTYPES = ("float16", "bfloat16")


def memory_scalar(dtype: str) -> str:
    return "i8" if dtype == "bool" else SCALARS[dtype]


def is_floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def is_unsigned(dtype: str) -> bool:
    return dtype == "bool" or dtype.startswith("u")


def dtype_constant(x: object, dtype: str, lanes: int = 1) -> Value:
    """A constant of a dtype."""
    return constant(x, Type(SCALARS[dtype], lanes))  # type: ignore[arg-type]


# ---- conversion


def cast(f: Function, x: Value, source: str, dtype: str) -> Value:
    """Convert as eager execution does: bfloat16 through float32."""
    if source == dtype:
        return x
    if source in HALF_DTYPES:
        return cast(f, f.convert("fpext", x, "float"), "float32", dtype)
    if dtype == "bool":
        return f.compare("ne", x, constant(0, x.type))
    if dtype in HALF_DTYPES:
        if source == "float64":
            wide = (
                round_to_odd(f, x) if dtype == "float16" else f.intrinsic("arithmetic.fence", f.convert("fptrunc", x, "float"))
            )
        else:
            wide = x if source == "float32" else cast(f, x, source, "float32")
        return f.convert("fptrunc", wide, SCALARS[dtype])
    to = SCALARS[dtype]
    if is_floating(source):
        if is_floating(dtype):
            return f.convert("fpext" if dtype == "float64" else "fptrunc", x, to)
        return float_to_integer(f, x, dtype)
    if is_floating(dtype):
        return f.convert("uitofp" if is_unsigned(source) else "sitofp", x, to)
    if x.type.of(to).bytes < x.type.bytes and source != "bool":
        return f.convert("trunc", x, to)
    if SCALARS[source] == to:
        return x
    return f.convert("zext" if is_unsigned(source) else "sext", x, to)


def round_to_odd(f: Function, x: Value) -> Value:
    """Round a double to a float that is odd if inexact, so that rounding it again makes no false ties.

    LLVM merges two roundings into one where a sign is copied before, and calls a library for that.
    """
    near = f.convert("fptrunc", x, "float")
    again, bits = f.convert("fpext", near, "double"), f.bits(near, near.type.of("i32"))
    beyond = f.compare("gt", f.intrinsic("fabs", again), f.intrinsic("fabs", x))
    bits = f.select(beyond, f.sub(bits, constant(1, bits.type)), bits)
    bits = f.select(f.compare("ne", again, x), f.or_(bits, constant(1, bits.type)), bits)
    return f.bits(bits, near.type)


def float_to_integer(f: Function, x: Value, dtype: str) -> Value:
    """Convert a float to an integer, towards zero; the least integer for what does not fit, as NumPy gives it on x86."""
    wide = "i64" if dtype in ("int64", "uint32", "uint64") else "i32"
    limit = 2.0**63 if wide == "i64" else 2.0**31
    fits = f.and_(
        f.compare("ge", x, constant(-limit, x.type)),
        f.compare("lt", x, constant(limit, x.type)),
    )
    safe = f.select(fits, x, constant(0, x.type))
    found = f.convert("fptosi", safe, wide)
    found = f.select(fits, found, constant(-int(limit), found.type))
    to = SCALARS[dtype]
    return found if to == wide else f.convert("trunc", found, to)


# ---- ops


def operate(f: Function, name: str, dtype: str, args: list[Value], kinds: list[str]) -> Value:
    """Emit an op on values of dtypes `kinds`; the result is of `dtype`."""
    if any(k in HALF_DTYPES for k in kinds) and name != "where":
        wide = [cast(f, a, k, "float32") if k in HALF_DTYPES else a for a, k in zip(args, kinds, strict=True)]
        result = "float32" if dtype in HALF_DTYPES else dtype
        found = operate(f, name, result, wide, ["float32" if k in HALF_DTYPES else k for k in kinds])
        return cast(f, found, result, dtype)
    plain = INSTRUCTIONS.get(name)
    if plain is not None:
        return plain(f, args, kinds)
    maths = VECTOR_MATH[name]
    if name in TAKE_UNSIGNED and not is_floating(kinds[0]):
        return maths(f, *args, unsigned=is_unsigned(kinds[0]))
    return maths(f, *args)


InstructionEmitter = Callable[[Function, list[Value], list[str]], Value]


def _binary(name: str) -> InstructionEmitter:
    def plain(f: Function, args: list[Value], kinds: list[str]) -> Value:
        if kinds[0] == "bool":
            return f.or_(*args) if name == "add" else f.and_(*args) if name == "mul" else f.xor(*args)
        return getattr(f, name)(*args)  # type: ignore[no-any-return]

    return plain


def _comparison(name: str) -> InstructionEmitter:
    return lambda f, args, kinds: f.compare(name, args[0], args[1], unsigned=is_unsigned(kinds[0]))


def _logical_not(f: Function, args: list[Value], kinds: list[str]) -> Value:
    return f.not_(args[0]) if kinds[0] == "bool" else f.compare("eq", args[0], constant(0, args[0].type))


def _where(f: Function, args: list[Value], kinds: list[str]) -> Value:
    return f.select(*args)


def _shift(f: Function, args: list[Value], kinds: list[str], left: bool) -> Value:
    """Shift as NumPy does: a shift by all bits or more leaves only the sign."""
    a, count = args
    bits = 8 * BYTES[a.type.scalar]
    fits = f.compare("lt", count, constant(bits, a.type), unsigned=True)
    if left or is_unsigned(kinds[0]):
        return f.select(fits, (f.shl if left else f.lshr)(a, count), constant(0, a.type))
    return f.ashr(a, f.select(fits, count, constant(bits - 1, a.type)))


def _pow(f: Function, args: list[Value], kinds: list[str]) -> Value:
    """Small powers are multiplications, as in eager execution, though the exponent may be a scalar that each call passes."""
    a, b = args
    if not is_floating(kinds[0]):
        return VECTOR_MATH["pow"](f, a, b, unsigned=is_unsigned(kinds[0]))
    square = f.mul(a, a)
    ways = {2.0: square, 3.0: f.mul(square, a), -1.0: f.div(constant(1.0, a.type), a)}
    found, small = square, constant(False, a.type.of("i1"))
    for power, value in ways.items():
        here = f.compare("eq", b, constant(power, b.type))
        found, small = f.select(here, value, found), f.or_(small, here)
    if a.type.lanes == 1:  # without a branch: this may be in a function's entry block
        return f.select(small, found, VECTOR_MATH["pow"](f, a, b))
    return branch_rarely(f, f.not_(small), found, lambda: f.select(small, found, VECTOR_MATH["pow"](f, a, b)))


INSTRUCTIONS: dict[str, InstructionEmitter] = {
    "pow": _pow,
    "bitwise_left_shift": lambda f, args, kinds: _shift(f, args, kinds, True),
    "bitwise_right_shift": lambda f, args, kinds: _shift(f, args, kinds, False),
    "add": _binary("add"),
    "sub": _binary("sub"),
    "mul": _binary("mul"),
    "true_divide": _binary("div"),
    "neg": lambda f, args, kinds: f.neg(args[0]),
    "logical_not": _logical_not,
    "bitwise_not": lambda f, args, kinds: f.not_(args[0]),
    "bitwise_and": lambda f, args, kinds: f.and_(*args),
    "bitwise_or": lambda f, args, kinds: f.or_(*args),
    "bitwise_xor": lambda f, args, kinds: f.xor(*args),
    "where": _where,
    **{name: _comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}


def random_numbers(f: Function, name: str, dtype: str, bits: Bits, elements: Elements, settings: list[Value]) -> Value:
    """Emit the random numbers of an op, whose settings are doubles or integers."""
    if name == "random_mask":
        return philox.mask(f, bits, elements, philox.mask_bound(f, settings[0]))
    if name == "random_integers":
        return philox.integers(f, bits, elements, *settings)
    if name == "random_uniform":
        found = philox.scale_uniform(f, philox.uniform(f, bits, elements, SCALARS[dtype]), *settings)
    else:
        found = philox.scale_normal(f, philox.normal(f, bits, elements, "double" if dtype == "float64" else "float"), *settings)
    return cast(f, found, "float32", dtype) if dtype in HALF_DTYPES else found


# ---- reductions

REDUCTION_OPS = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "all": "bitwise_and", "any": "bitwise_or"}


def identity(op: str, dtype: str, lanes: int) -> Value:
    """Neutral element of a reduction."""
    if op in ("amax", "amin"):
        if is_floating(dtype):
            return dtype_constant(float("-inf") if op == "amax" else float("inf"), dtype, lanes)
        bits = 8 * int(SCALARS[dtype].removeprefix("i")) // 8
        if is_unsigned(dtype):
            return dtype_constant(0 if op == "amax" else (1 << bits) - 1 if dtype != "bool" else 1, dtype, lanes)
        return dtype_constant(-(1 << bits - 1) if op == "amax" else (1 << bits - 1) - 1, dtype, lanes)
    return dtype_constant(1 if op in ("prod", "all") else 0, dtype, lanes)


def combine(f: Function, op: str, dtype: str, a: Value, b: Value) -> Value:
    return operate(f, REDUCTION_OPS[op], dtype, [a, b], [dtype, dtype])


def reduce_lanes(f: Function, op: str, dtype: str, x: Value) -> Value:
    """Reduce the lanes of a vector by halves: the order is the same for every vector width."""
    while x.type.lanes > 1:
        half = x.type.lanes // 2
        low = shuffled(f, x, range(half))
        high = shuffled(f, x, range(half, 2 * half))
        x = combine(f, op, dtype, low, high)
    return x


def shuffled(f: Function, x: Value, lanes: range) -> Value:
    if len(lanes) == 1:
        return f.lane(x, lanes[0])
    picks = ", ".join(f"i32 {i}" for i in lanes)
    text = f"shufflevector {x}, {x.type} poison, <{len(lanes)} x i32> <{picks}>"
    return f.value(text, Type(x.type.scalar, len(lanes)))
