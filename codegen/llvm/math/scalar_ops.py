"""From scalar expressions to LLVM's instructions: one function for each kind of op, over scalars or vectors alike."""

from __future__ import annotations

from collections.abc import Callable

from . import philox
from ..ir.builder import BYTES, Function, Type, Value, constant
from .philox import Bits, Elements
from . import MATHS, TAKE_UNSIGNED
from .common import rarely

SCALARS = {  # in registers; booleans are bytes in memory
    "float64": "double", "float32": "float", "float16": "half", "bfloat16": "bfloat", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "i8", "uint16": "i16", "uint32": "i32", "uint64": "i64", "bool": "i1",
}  # fmt: skip
HALVES = ("float16", "bfloat16")


def in_memory(dtype: str) -> str:
    return "i8" if dtype == "bool" else SCALARS[dtype]


def floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def unsigned(dtype: str) -> bool:
    return dtype == "bool" or dtype.startswith("u")


def number(x: object, dtype: str, lanes: int = 1) -> Value:
    """A constant of a dtype."""
    return constant(x, Type(SCALARS[dtype], lanes))  # type: ignore[arg-type]


# ---- conversion


def cast(f: Function, x: Value, source: str, dtype: str) -> Value:
    """As eager execution converts: bfloat16 through float32."""
    if source == dtype:
        return x
    if source in HALVES:
        return cast(f, f.convert("fpext", x, "float"), "float32", dtype)
    if dtype == "bool":
        return f.compare("ne", x, constant(0, x.type))
    if dtype in HALVES:
        if source == "float64":
            wide = to_odd(f, x) if dtype == "float16" else f.intrinsic("arithmetic.fence", f.convert("fptrunc", x, "float"))
        else:
            wide = x if source == "float32" else cast(f, x, source, "float32")
        return f.convert("fptrunc", wide, SCALARS[dtype])
    to = SCALARS[dtype]
    if floating(source):
        if floating(dtype):
            return f.convert("fpext" if dtype == "float64" else "fptrunc", x, to)
        return whole(f, x, dtype)
    if floating(dtype):
        return f.convert("uitofp" if unsigned(source) else "sitofp", x, to)
    if x.type.of(to).bytes < x.type.bytes and source != "bool":
        return f.convert("trunc", x, to)
    if SCALARS[source] == to:
        return x
    return f.convert("zext" if unsigned(source) else "sext", x, to)


def to_odd(f: Function, x: Value) -> Value:
    """A double as a float that is odd if it is not the same number: when it is rounded again, nothing was a tie that is none.

    LLVM, for its part, makes one rounding of two where a sign is copied before, and calls a library for that.
    """
    near = f.convert("fptrunc", x, "float")
    again, bits = f.convert("fpext", near, "double"), f.bits(near, near.type.of("i32"))
    beyond = f.compare("gt", f.intrinsic("fabs", again), f.intrinsic("fabs", x))
    bits = f.select(beyond, f.sub(bits, constant(1, bits.type)), bits)
    bits = f.select(f.compare("ne", again, x), f.or_(bits, constant(1, bits.type)), bits)
    return f.bits(bits, near.type)


def whole(f: Function, x: Value, dtype: str) -> Value:
    """A float as an integer: towards zero; the least one for what does not fit, as the processors NumPy runs on give it."""
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
    """An op on values of dtypes `kinds`; the result is of `dtype`."""
    if any(k in HALVES for k in kinds) and name != "where":
        wide = [cast(f, a, k, "float32") if k in HALVES else a for a, k in zip(args, kinds, strict=True)]
        result = "float32" if dtype in HALVES else dtype
        found = operate(f, name, result, wide, ["float32" if k in HALVES else k for k in kinds])
        return cast(f, found, result, dtype)
    plain = PLAIN.get(name)
    if plain is not None:
        return plain(f, args, kinds)
    maths = MATHS[name]
    if name in TAKE_UNSIGNED and not floating(kinds[0]):
        return maths(f, *args, unsigned=unsigned(kinds[0]))
    return maths(f, *args)


Plain = Callable[[Function, list[Value], list[str]], Value]


def _binary(name: str) -> Plain:
    def plain(f: Function, args: list[Value], kinds: list[str]) -> Value:
        if kinds[0] == "bool":
            return f.or_(*args) if name == "add" else f.and_(*args) if name == "mul" else f.xor(*args)
        return getattr(f, name)(*args)  # type: ignore[no-any-return]

    return plain


def _comparison(name: str) -> Plain:
    return lambda f, args, kinds: f.compare(name, args[0], args[1], unsigned=unsigned(kinds[0]))


def _logical_not(f: Function, args: list[Value], kinds: list[str]) -> Value:
    return f.not_(args[0]) if kinds[0] == "bool" else f.compare("eq", args[0], constant(0, args[0].type))


def _where(f: Function, args: list[Value], kinds: list[str]) -> Value:
    return f.select(*args)


def _shift(f: Function, args: list[Value], kinds: list[str], left: bool) -> Value:
    """As NumPy shifts: by more bits than there are, nothing is left but the sign."""
    a, count = args
    bits = 8 * BYTES[a.type.scalar]
    fits = f.compare("lt", count, constant(bits, a.type), unsigned=True)
    if left or unsigned(kinds[0]):
        return f.select(fits, (f.shl if left else f.lshr)(a, count), constant(0, a.type))
    return f.ashr(a, f.select(fits, count, constant(bits - 1, a.type)))


def _pow(f: Function, args: list[Value], kinds: list[str]) -> Value:
    """Small powers are products, as in eager execution, though the exponent may be a number that each call brings."""
    a, b = args
    if not floating(kinds[0]):
        return MATHS["pow"](f, a, b, unsigned=unsigned(kinds[0]))
    square = f.mul(a, a)
    ways = {2.0: square, 3.0: f.mul(square, a), -1.0: f.div(constant(1.0, a.type), a)}
    found, small = square, constant(False, a.type.of("i1"))
    for power, value in ways.items():
        here = f.compare("eq", b, constant(power, b.type))
        found, small = f.select(here, value, found), f.or_(small, here)
    if a.type.lanes == 1:  # without a branch: it may be at a function's beginning
        return f.select(small, found, MATHS["pow"](f, a, b))
    return rarely(f, f.not_(small), found, lambda: f.select(small, found, MATHS["pow"](f, a, b)))


PLAIN: dict[str, Plain] = {
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
    """Random numbers of an op, with its settings as doubles or whole numbers."""
    if name == "random_mask":
        return philox.mask(f, bits, elements, philox.mask_bound(f, settings[0]))
    if name == "random_integers":
        return philox.integers(f, bits, elements, *settings)
    if name == "random_uniform":
        found = philox.between(f, philox.uniform(f, bits, elements, SCALARS[dtype]), *settings)
    else:
        found = philox.shaped(f, philox.normal(f, bits, elements, "double" if dtype == "float64" else "float"), *settings)
    return cast(f, found, "float32", dtype) if dtype in HALVES else found


# ---- reductions

JOIN = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "all": "bitwise_and", "any": "bitwise_or"}


def identity(op: str, dtype: str, lanes: int) -> Value:
    """What changes nothing when it is joined."""
    if op in ("amax", "amin"):
        if floating(dtype):
            return number(float("-inf") if op == "amax" else float("inf"), dtype, lanes)
        bits = 8 * int(SCALARS[dtype].removeprefix("i")) // 8
        if unsigned(dtype):
            return number(0 if op == "amax" else (1 << bits) - 1 if dtype != "bool" else 1, dtype, lanes)
        return number(-(1 << bits - 1) if op == "amax" else (1 << bits - 1) - 1, dtype, lanes)
    return number(1 if op in ("prod", "all") else 0, dtype, lanes)


def join(f: Function, op: str, dtype: str, a: Value, b: Value) -> Value:
    return operate(f, JOIN[op], dtype, [a, b], [dtype, dtype])


def across(f: Function, op: str, dtype: str, x: Value) -> Value:
    """The lanes of a vector put together, by halves: the order is the same for every width of the machine's vectors."""
    while x.type.lanes > 1:
        half = x.type.lanes // 2
        low = shuffled(f, x, range(half))
        high = shuffled(f, x, range(half, 2 * half))
        x = join(f, op, dtype, low, high)
    return x


def shuffled(f: Function, x: Value, lanes: range) -> Value:
    if len(lanes) == 1:
        return f.lane(x, lanes[0])
    picks = ", ".join(f"i32 {i}" for i in lanes)
    text = f"shufflevector {x}, {x.type} poison, <{len(lanes)} x i32> <{picks}>"
    return f.value(text, Type(x.type.scalar, len(lanes)))
