"""Prints scalar ops as Triton text: types, literals, conversions, and one line for each op.

Halves are computed in float32 and rounded after each op, as the eager ops do it; plain arithmetic is rounded as IEEE 754 says.
Booleans are bytes in memory.
"""

from __future__ import annotations

import math
from typing import Any

from ...lowering.random_ops import RANDOM_OPS

TYPES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "int16": "i16",
    "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "u8",
}  # fmt: skip
HALVES = ("float16", "bfloat16")
THROUGH_INT64 = ("int64", "uint32", "uint64")  # floats are converted to these by way of int64, to others of int32
KEPT_BITS = {"float16": 11, "bfloat16": 8, "float32": 24}  # random bits of uniform numbers


def type_of(dtype: str) -> str:
    """Triton type of a dtype in registers."""
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"


def floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def unsigned(dtype: str) -> bool:
    return dtype == "bool" or dtype.startswith("u")


def accumulator(dtype: str) -> str:
    """Accumulator dtype: float32 for halves."""
    return "float32" if dtype in HALVES else dtype


# ---- numbers


def literal(value: Any) -> str:
    """Literal as Python writes it; it takes the type of the other operand."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f"({value!r})" if not isinstance(value, bool) and str(value).startswith("-") else repr(value)


def number(value: Any, dtype: str) -> str:
    """Literal with an explicit type."""
    return f"tl.full((), {literal(value)}, {type_of(dtype)})"


def identity(op: str, dtype: str) -> Any:
    """Neutral element of a reduction."""
    if op in ("amax", "amin"):
        if floating(dtype):
            return -math.inf if op == "amax" else math.inf
        if dtype == "bool":
            return op == "amin"
        bits = int("".join(c for c in dtype if c.isdigit()))
        if unsigned(dtype):
            return 0 if op == "amax" else (1 << bits) - 1
        return -(1 << bits - 1) if op == "amax" else (1 << bits - 1) - 1
    one = op in ("prod", "all")
    return bool(one) if dtype == "bool" else float(one) if floating(dtype) else int(one)


# ---- conversion


def cast(x: str, source: str, dtype: str) -> str:
    """Cast as NumPy does, except that halves go through float32."""
    if source == dtype:
        return x
    if dtype == "bool":
        return f"({x} != 0)"
    if source in HALVES:
        return cast(f"{x}.to(tl.float32)", "float32", dtype)
    if dtype in HALVES and source != "float32":
        return f"{cast(x, source, 'float32')}.to(tl.{dtype})"
    if floating(source) and not floating(dtype):
        wide, least = ("int64", -(2**63)) if dtype in THROUGH_INT64 else ("int32", -(2**31))
        found = f"maths.whole({x}, tl.{wide}, {least})"
        return found if wide == dtype else f"{found}.to(tl.{dtype})"
    return f"{x}.to(tl.{dtype})"


def to_memory(x: str, dtype: str) -> str:
    return f"{x}.to(tl.uint8)" if dtype == "bool" else x


# ---- ops

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
OF_BOOLS = {"add": "|", "mul": "&", "sub": "^", "maximum": "|", "fmax": "|", "minimum": "&", "fmin": "&"}
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
LIBRARY = {
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "pow", "atan2", "hypot", "fmod", "copysign", "trunc",
}  # fmt: skip
OWN = {"maximum", "minimum", "fmax", "fmin", "remainder", "floor_divide", "logaddexp", "logaddexp2", "xlogy", "sigmoid"}


class Operand:
    """Operand text: a name, or a literal."""

    def __init__(self, text: str, dtype: str, value: Any = None) -> None:
        self.text = text
        self.dtype = dtype
        self.value = value  # value of a literal

    @property
    def typed(self) -> str:
        return self.text if self.value is None else number(self.value, self.dtype)

    def beside(self, other: Operand) -> str:
        """Text beside another operand: an untyped literal, if the other determines the type."""
        plain = self.value is not None and other.value is None and self.dtype != "bool"
        return literal(self.value) if plain else self.typed

    def widened(self) -> Operand:
        if self.dtype not in HALVES:
            return self
        return Operand(f"{self.typed}.to(tl.float32)", "float32")


def operate(name: str, dtype: str, args: list[Operand]) -> str:
    """Print an op on operands, with a result of the given dtype."""
    if name == "where":
        condition, a, b = args
        return f"tl.where({condition.typed}, {a.beside(b)}, {b.beside(a)})"
    if name == "cast":
        return cast(args[0].typed, args[0].dtype, dtype)
    if any(a.dtype in HALVES for a in args):
        result = accumulator(dtype)
        return cast(f"({operate(name, result, [a.widened() for a in args])})", result, dtype)
    if name in INFIX or (name in OF_BOOLS and args[0].dtype == "bool"):
        return infix(name, *args)
    if name in RANDOM_OPS:
        return drawn(name, dtype, args)
    if floating(args[0].dtype):
        return of_floats(name, args)
    return of_integers(name, args)


def infix(name: str, a: Operand, b: Operand) -> str:
    if a.dtype == "bool" and name in OF_BOOLS:
        return f"{a.typed} {OF_BOOLS[name]} {b.typed}"
    if a.dtype == "bool" and name in COMPARISONS:  # True would be -1
        return f"{a.typed}.to(tl.int32) {INFIX[name]} {b.typed}.to(tl.int32)"
    return f"{a.beside(b)} {INFIX[name]} {b.beside(a)}"


def of_floats(name: str, args: list[Operand]) -> str:
    a = args[0].typed
    single = args[0].dtype == "float32"
    root = f"tl.sqrt_rn({a})" if single else f"tl.sqrt({a})"
    texts = {
        "neg": f"-{a}",
        "abs": f"tl.abs({a})",
        "square": f"{a} * {a}",
        "sqrt": root,
        "rsqrt": divided("1.0", root, single),
        "reciprocal": divided("1.0", a, single),
        "sign": f"({a} > 0).to(tl.{args[0].dtype}) - ({a} < 0).to(tl.{args[0].dtype})",
        "floor": f"tl.floor({a})",
        "ceil": f"tl.ceil({a})",
        "round": f"libdevice.rint({a})",
        "isnan": f"{a} != {a}",
        "isinf": f'tl.abs({a}) == float("inf")',
        "isfinite": f'tl.abs({a}) < float("inf")',
        "signbit": f"maths.signbit({a})",
        "logical_not": f"{a} == 0",
    }
    if name in texts:
        return texts[name]
    if name == "true_divide":
        return divided(args[0].beside(args[1]), args[1].beside(args[0]), single)
    if name in ("lgamma", "digamma"):  # near their zeros float32 is not enough
        function = f"{'libdevice' if name == 'lgamma' else 'maths'}.{name}"
        return f"{function}({a}.to(tl.float64)).to(tl.float32)" if single else f"{function}({a})"
    if name in LIBRARY or name in OWN:
        return f"{'libdevice' if name in LIBRARY else 'maths'}.{name}({', '.join(x.typed for x in args)})"
    raise NotImplementedError(f"[compile] {name} of floats has no Triton text")


def divided(a: str, b: str, single: bool) -> str:
    return f"tl.div_rn({a}, {b})" if single else f"{a} / {b}"


def of_integers(name: str, args: list[Operand]) -> str:
    a, dtype = args[0].typed, args[0].dtype
    texts = {
        "neg": f"-{a}",
        "abs": a if unsigned(dtype) else f"tl.abs({a})",
        "square": f"{a} * {a}",
        "sign": f"({a} > 0).to(tl.{dtype})" + ("" if unsigned(dtype) else f" - ({a} < 0).to(tl.{dtype})"),
        "isnan": f"{a} != {a}",
        "isinf": f"{a} != {a}",
        "isfinite": f"{a} == {a}",
        "signbit": f"{a} != {a}" if unsigned(dtype) else f"{a} < 0",
        "logical_not": f"~{a}" if dtype == "bool" else f"{a} == 0",
        "bitwise_not": f"~{a}",
        **dict.fromkeys(("floor", "ceil", "trunc", "round"), a),
    }
    if name in texts:
        return texts[name]
    given = ", ".join(x.typed for x in args)
    if name in ("maximum", "minimum", "fmax", "fmin", "trunc_divide"):
        return f"maths.{name}({given})"
    if name in ("floor_divide", "remainder", "fmod", "pow"):
        return f"maths.integer_{name}({given})"
    if name in ("bitwise_left_shift", "bitwise_right_shift"):
        return f"maths.shift({given}, {'left' in name})"
    raise NotImplementedError(f"[compile] {name} of {dtype} has no Triton text")


def takes_one_word(name: str, dtype: str) -> bool:
    return name == "random_mask" or (name == "random_uniform" and dtype != "float64")


def drawn(name: str, dtype: str, args: list[Operand], words: str = "") -> str:
    """Print random numbers from a seed, a call, settings and the element's number, or from words that are already computed."""
    given = ", ".join(a.typed for a in args)
    if takes_one_word(name, dtype):
        seed, call, *settings, at = [a.typed for a in args]
        given = ", ".join([words or f"maths.word({seed}, {call}, {at})", *settings])
        if name == "random_mask":
            return f"maths.random_mask({given})"
        return cast(f"maths.random_uniform({given}, {KEPT_BITS[dtype]})", accumulator(dtype), dtype)
    if name == "random_uniform":
        return f"maths.random_uniform_double({given})"
    if name == "random_normal":
        return cast(f"maths.random_normal({given}, {dtype == 'float64'})", accumulator(dtype), dtype)
    return f"maths.{name}({given})"


# ---- reductions

JOIN = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "all": "bitwise_and", "any": "bitwise_or"}
COMBINE = {"prod": "product", "amax": "maximum", "amin": "minimum", "any": "maximum", "all": "minimum"}


def joined(op: str, dtype: str, a: str, b: str) -> str:
    return operate(JOIN[op], dtype, [Operand(a, dtype), Operand(b, dtype)])


def reduced(op: str, dtype: str, x: str, axis: int, keep: bool) -> str:
    """Reduce a block along an axis."""
    kept = ", keep_dims=True" if keep else ""
    if dtype == "bool":  # `sum` is `any` there, and `prod` is `all`
        most = "max" if op in ("any", "sum", "amax") else "min"
        return f"(tl.{most}({x}.to(tl.int32), axis={axis}{kept}) != 0)"
    if op == "sum":
        found = f"tl.sum({x}, axis={axis}{kept})"
        return f"{found}.to(tl.{dtype})" if dtype in ("int8", "int16", "uint8", "uint16") else found
    return f"tl.reduce({x}, {axis}, maths.{COMBINE[op]}{kept})"
