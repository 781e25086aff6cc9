"""Builder of LLVM IR text: types, values, functions and modules.

Emitters call the methods of a `Function`, one per instruction, and get a `Value` back. Values may be vectors; instructions mean
the same for both. Loops are `with f.loop(0, n, step) as loop:`; values carried from one iteration to the next (`loop.carried`)
are passed on with `loop.next(...)`.

No optimisation passes run over the text: emitters hoist and unroll themselves. Loads and stores always name their alignment,
that of one element, as NumPy guarantees no more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

BYTES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
FLOATS = ("half", "bfloat", "float", "double")
CACHE_LINE = 64  # bytes
HALF_SCALARS = ("half", "bfloat")  # masked loads and stores move them as integers: LLVM would convert them
TEXT_TYPES = {"bfloat": "i16"}  # LLVM calls a library for bfloat arithmetic, so the text has only its bits: see `convert`
PREDICATES = {  # of floats (ordered, except `ne`), of signed and of unsigned integers
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}


class Type(NamedTuple):
    """A scalar, or a vector of `lanes` scalars."""

    scalar: str
    lanes: int = 1

    def __str__(self) -> str:
        written = TEXT_TYPES.get(self.scalar, self.scalar)
        return written if self.lanes == 1 else f"<{self.lanes} x {written}>"

    @property
    def floating(self) -> bool:
        return self.scalar in FLOATS

    @property
    def bytes(self) -> int:
        return BYTES[self.scalar] * self.lanes

    def of(self, scalar: str) -> Type:
        """The same number of lanes of another scalar."""
        return Type(scalar, self.lanes)

    @property
    def mangled(self) -> str:
        """The type's name inside names of intrinsics: f32, v16f32."""
        short = {"half": "f16", "bfloat": "i16", "float": "f32", "double": "f64", "ptr": "p0"}.get(self.scalar, self.scalar)
        return short if self.lanes == 1 else f"v{self.lanes}{short}"


I1, I8, I16, I32, I64, F32, F64, PTR = (Type(s) for s in ("i1", "i8", "i16", "i32", "i64", "float", "double", "ptr"))


class Value(NamedTuple):
    """The result of an instruction, a parameter or a constant."""

    name: str
    type: Type

    def __str__(self) -> str:  # with its type, as most instructions take it
        return f"{self.type} {self.name}"


def constant(x: float | int | bool, type: Type) -> Value:
    """A number, broadcast to all lanes of a vector type."""
    one = literal(x, type.scalar)
    if type.lanes > 1:
        if one in ("0", "false", "0.0"):
            return Value("zeroinitializer", type)
        one = f"splat ({Type(type.scalar)} {one})"
    return Value(one, type)


def literal(x: Any, scalar: str) -> str:
    """A number in LLVM's syntax: floats by their bits, as decimals would have to be exact."""
    if scalar == "i1":
        return "true" if x else "false"
    if scalar not in FLOATS:
        return str(int(x))
    if scalar == "double":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(x)))[0]:016X}"
    if scalar == "float":  # written as the double that is equal to it
        rounded = _as_float32(float(x))
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    import numpy as np

    if scalar == "half":
        return f"0xH{np.float16(x).view(np.uint16):04X}"
    import ml_dtypes

    return str(np.asarray(x, ml_dtypes.bfloat16).view(np.uint16))


def _as_float32(x: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")


class Loop:
    """A loop that is being emitted: see `Function.loop`."""

    def __init__(self, index: Value, carried: list[Value]) -> None:
        self.index = index
        self.carried = carried  # at the beginning of an iteration
        self.following: list[Value] | None = None
        self.results: list[Value] = []  # after the loop

    def next(self, *values: Value) -> None:
        """Set the values carried into the next iteration."""
        self.following = list(values)


class Function:
    """The text of one function. Its parameters are values: `f.params`, in order."""

    def __init__(
        self,
        name: str,
        params: Sequence[tuple[str, Type]],
        returns: str = "void",
        internal: bool = False,
        attributes: str = "",
        features: str = "",
    ) -> None:
        self.name = name
        self.features = frozenset(features.split(","))
        self.params = [Value(f"%{n}", t) for n, t in params]
        self.returns = returns
        self.internal = internal
        self.attributes = attributes
        self.lines: list[str] = []
        self.block = "entry"
        self.count = 0
        self.declared: dict[str, str] = {}  # declarations of the functions that it calls, by name
        self.hoisted: dict[Any, Value] = {}  # values computed in the entry block: see `once`
        self.entry: list[str] = []

    def has(self, feature: str) -> bool:
        """True if the target CPU has a feature, by LLVM's name: "avx512f"."""
        return f"+{feature}" in self.features

    # ---- text

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def name_for(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def value(self, instruction: str, type: Type) -> Value:
        """The result of an instruction given as text."""
        self.count += 1
        name = f"%t{self.count}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(name, type)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: Value, then: str, otherwise: str) -> None:
        self.emit(f"br {condition}, label %{then}, label %{otherwise}")

    def once(self, key: Any, make: Callable[[Function], Value]) -> Value:
        """A value that depends on parameters alone: emitted once, in the entry block."""
        if key not in self.hoisted:
            lines, self.lines = self.lines, self.entry
            self.hoisted[key] = make(self)
            self.lines = lines
        return self.hoisted[key]

    def __str__(self) -> str:
        params = ", ".join(map(str, self.params))
        kind = "define internal" if self.internal else "define"
        body = "\n".join(self.entry + self.lines)
        return f"{kind} {self.returns} @{self.name}({params}) {self.attributes}{{\nentry:\n{body}\n}}\n"

    # ---- arithmetic

    def binary(self, op: str, a: Value, b: Value) -> Value:
        return self.value(f"{op} {a.type} {a.name}, {b.name}", a.type)

    def add(self, a: Value, b: Value) -> Value:
        return self.binary("fadd" if a.type.floating else "add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.binary("fsub" if a.type.floating else "sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.binary("fmul" if a.type.floating else "mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Division of floats, or of signed integers, towards zero."""
        return self.binary("fdiv" if a.type.floating else "sdiv", a, b)

    def rem(self, a: Value, b: Value) -> Value:
        return self.binary("frem" if a.type.floating else "srem", a, b)

    def neg(self, a: Value) -> Value:
        return self.value(f"fneg {a}", a.type) if a.type.floating else self.sub(constant(0, a.type), a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def and_(self, a: Value, b: Value) -> Value:
        return self.binary("and", a, b)

    def or_(self, a: Value, b: Value) -> Value:
        return self.binary("or", a, b)

    def xor(self, a: Value, b: Value) -> Value:
        return self.binary("xor", a, b)

    def shl(self, a: Value, b: Value) -> Value:
        return self.binary("shl", a, b)

    def ashr(self, a: Value, b: Value) -> Value:
        return self.binary("ashr", a, b)

    def lshr(self, a: Value, b: Value) -> Value:
        return self.binary("lshr", a, b)

    def not_(self, a: Value) -> Value:
        return self.xor(a, constant(True if a.type.scalar == "i1" else -1, a.type))

    def compare(self, how: str, a: Value, b: Value, unsigned: bool = False) -> Value:
        """Compare by `how`: eq, ne, lt, le, gt or ge. Comparisons with NaN are false, except `ne`."""
        floats, signed, plain = PREDICATES[how]
        op = f"fcmp {floats}" if a.type.floating else f"icmp {plain if unsigned else signed}"
        return self.value(f"{op} {a}, {b.name}", a.type.of("i1"))

    def is_nan(self, a: Value) -> Value:
        return self.value(f"fcmp uno {a}, {a.name}", a.type.of("i1"))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.value(f"select {condition}, {a}, {b}", a.type)

    def intrinsic(self, name: str, *args: Value, returns: Type | None = None) -> Value:
        """Call `llvm.<name>` overloaded on the type of the first argument, as in `intrinsic("sqrt", x)`."""
        kind = returns or args[0].type
        return self.call(f"llvm.{name}.{args[0].type.mangled}", kind, *args)

    def call(self, name: str, returns: Type | None, *args: Value) -> Value:
        """Call an intrinsic or a function of another module, which gets declared. For one of the same module: `call_local`."""
        what = "void" if returns is None else str(returns)
        self.declared[name] = f"declare {what} @{name}({', '.join(str(a.type) for a in args)})"
        return self.call_local(name, returns, *args)

    def call_local(self, name: str, returns: Type | None, *args: Value) -> Value:
        text = f"call {'void' if returns is None else returns} @{name}({', '.join(map(str, args))})"
        if returns is None:
            self.emit(text)
            return Value("void", PTR)
        return self.value(text, returns)

    # ---- conversion

    def convert(self, op: str, a: Value, scalar: str) -> Value:
        """Convert by `op`: fpext, fptrunc, sitofp, uitofp, fptosi, fptoui, sext, zext or trunc."""
        if a.type.scalar == "bfloat" and op == "fpext":
            wide = self.shl(self.convert("zext", a, "i32"), constant(16, a.type.of("i32")))
            found = self.bits(wide, a.type.of("float"))
            return found if scalar == "float" else self.convert("fpext", found, scalar)
        if scalar == "bfloat":
            assert op == "fptrunc"
            return self.round_to_bfloat(a if a.type.scalar == "float" else self.convert("fptrunc", a, "float"))
        if "half" in (a.type.scalar, scalar) and self.has("sse2") and not self.has("f16c"):
            return self.convert_half(a, scalar)
        to = a.type.of(scalar)
        return self.value(f"{op} {a} to {to}", to)

    def convert_half(self, a: Value, scalar: str) -> Value:
        """Convert to or from half floats by integers, on an x86 CPU without f16c."""
        from .half_conversion import float_to_half, half_to_float  # imports this module

        if a.type.scalar == "half":
            found = half_to_float(self, a)
            return found if scalar == "float" else self.convert("fpext", found, scalar)
        return float_to_half(self, a if a.type.scalar == "float" else self.convert("fptrunc", a, "float"))

    def round_to_bfloat(self, a: Value) -> Value:
        """Round a float to bfloat, ties to even: the upper half of its bits."""
        bits = self.bits(a, a.type.of("i32"))
        odd = self.and_(self.lshr(bits, constant(16, bits.type)), constant(1, bits.type))
        rounded = self.add(self.add(bits, constant(0x7FFF, bits.type)), odd)
        quiet = self.or_(bits, constant(0x400000, bits.type))  # NaN stays NaN
        upper = self.lshr(self.select(self.is_nan(a), quiet, rounded), constant(16, bits.type))
        return Value(self.convert("trunc", upper, "i16").name, a.type.of("bfloat"))

    def bits(self, a: Value, type: Type) -> Value:
        """Reinterpret the bits as another type."""
        return self.value(f"bitcast {a} to {type}", type)

    # ---- vectors

    def splat(self, a: Value, lanes: int) -> Value:
        """Broadcast a scalar to all lanes."""
        if lanes == 1:
            return a
        to = Type(a.type.scalar, lanes)
        one = self.value(f"insertelement {to} poison, {a}, i32 0", to)
        return self.value(f"shufflevector {one}, {to} poison, <{lanes} x i32> zeroinitializer", to)

    def lane(self, a: Value, i: int | Value) -> Value:
        which = f"i32 {i}" if isinstance(i, int) else str(i)
        return self.value(f"extractelement {a}, {which}", Type(a.type.scalar))

    def shuffle(self, a: Value, b: Value, indices: Sequence[int]) -> Value:
        """Select lanes of two concatenated vectors by index."""
        which = ", ".join(f"i32 {i}" for i in indices)
        return self.value(f"shufflevector {a}, {b}, <{len(indices)} x i32> <{which}>", Type(a.type.scalar, len(indices)))

    def steps(self, lanes: int, scalar: str = "i64") -> Value:
        """The vector 0, 1, 2, ..."""
        if lanes == 1:
            return constant(0, Type(scalar))
        return Value(f"<{', '.join(f'{scalar} {i}' for i in range(lanes))}>", Type(scalar, lanes))

    def mask_below(self, count: Value, lanes: int) -> Value:
        """A mask of the lanes before `count`, an i64."""
        if count.name.isdigit():
            rows = ["i1 true" if i < int(count.name) else "i1 false" for i in range(lanes)]
            return Value(f"<{', '.join(rows)}>", Type("i1", lanes))
        small = self.convert("trunc", count, "i32")
        return self.compare("lt", self.steps(lanes, "i32"), self.splat(small, lanes))

    # ---- memory

    def pointer(self, base: Value, index: Value | int, scalar: str) -> Value:
        """Address of an element; `index` counts elements, as an i64."""
        if isinstance(index, int):
            if index == 0:
                return base
            return self.value(f"getelementptr {scalar}, {base}, i64 {index}", PTR)
        return self.value(f"getelementptr {scalar}, {base}, {index}", PTR)

    def load(self, pointer: Value, type: Type, mask: Value | None = None) -> Value:
        """Load a value. Lanes that the mask leaves out are 0 and are not read."""
        align = BYTES[type.scalar]
        if mask is None:
            return self.value(f"load {type}, {pointer}, align {align}", type)
        if type.lanes == 1:
            before, zero = self.block, constant(0, type)
            with self.when(mask):
                found, inside = self.load(pointer, type), self.block
            return self.value(f"phi {type} [ {zero.name}, %{before} ], [ {found.name}, %{inside} ]", type)
        if type.scalar in HALF_SCALARS:
            return self.bits(self.load(pointer, type.of("i16"), mask), type)
        name = f"llvm.masked.load.{type.mangled}.p0"
        self.declared[name] = f"declare {type} @{name}(ptr, i32, {mask.type}, {type})"
        zero = constant(0, type)
        return self.value(f"call {type} @{name}({pointer}, i32 {align}, {mask}, {zero})", type)

    def store(self, value: Value, pointer: Value, mask: Value | None = None) -> None:
        align = BYTES[value.type.scalar]
        if mask is None:
            self.emit(f"store {value}, {pointer}, align {align}")
            return
        lanes = mask.name.strip("<>").split(", ")
        if lanes.count("i1 true") == 1:  # LLVM 22 would store an element as wide as what it was converted from
            at = lanes.index("i1 true")
            self.store(self.lane(value, at), self.pointer(pointer, at, value.type.scalar))
            return
        if value.type.scalar in HALF_SCALARS:
            value = self.bits(value, value.type.of("i16"))
        name = f"llvm.masked.store.{value.type.mangled}.p0"
        self.declared[name] = f"declare void @{name}({value.type}, ptr, i32, {mask.type})"
        self.emit(f"call void @{name}({value}, {pointer}, i32 {align}, {mask})")

    def store_nontemporal(self, value: Value, pointer: Value, forbidden: Value) -> None:
        """Store a vector non-temporally, or ordinarily where its address has a bit of `forbidden`."""
        if value.type.scalar in HALF_SCALARS:
            value = self.bits(value, value.type.of("i16"))
        rest = self.and_(self.value(f"ptrtoint {pointer} to i64", I64), forbidden)
        past, near, end = (self.name_for(stem) for stem in ("past", "near", "stored"))
        self.branch(self.compare("eq", rest, constant(0, I64)), past, near)
        self.label(past)
        align = min(value.type.bytes, CACHE_LINE)
        self.emit(f"store {value}, {pointer}, align {align}, !nontemporal !{{i32 1}}")
        self.jump(end)
        self.label(near)
        self.store(value, pointer)
        self.jump(end)
        self.label(end)

    def prefetch(self, pointer: Value, to_write: bool = False) -> None:
        """Prefetch a cache line into L2, or into L1 if it will be written to. The address need not be valid."""
        self.declared["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        self.emit(f"call void @llvm.prefetch.p0({pointer}, i32 {int(to_write)}, i32 {3 if to_write else 2}, i32 1)")

    def gather(self, base: Value, index: Value, scalar: str, mask: Value | None = None) -> Value:
        """Load elements at `index`, a vector of i64."""
        lanes = index.type.lanes
        if lanes == 1:
            return self.load(self.pointer(base, index, scalar), Type(scalar), mask)
        if scalar in HALF_SCALARS:
            return self.bits(self.gather(base, index, "i16", mask), Type(scalar, lanes))
        where = self.value(f"getelementptr {scalar}, {base}, {index}", Type("ptr", lanes))
        type = Type(scalar, lanes)
        mask = mask or constant(True, Type("i1", lanes))
        name = f"llvm.masked.gather.{type.mangled}.v{lanes}p0"
        self.declared[name] = f"declare {type} @{name}({where.type}, i32, {mask.type}, {type})"
        return self.value(f"call {type} @{name}({where}, i32 {BYTES[scalar]}, {mask}, {constant(0, type)})", type)

    def scatter(self, value: Value, base: Value, index: Value, mask: Value | None = None) -> None:
        """Store elements at `index`; where indices repeat, the last lane wins."""
        lanes, scalar = index.type.lanes, value.type.scalar
        if lanes == 1:
            self.store(value, self.pointer(base, index, scalar))
            return
        if scalar in HALF_SCALARS:
            value, scalar = self.bits(value, value.type.of("i16")), "i16"
        where = self.value(f"getelementptr {scalar}, {base}, {index}", Type("ptr", lanes))
        mask = mask or constant(True, Type("i1", lanes))
        name = f"llvm.masked.scatter.{value.type.mangled}.v{lanes}p0"
        self.declared[name] = f"declare void @{name}({value.type}, {where.type}, i32, {mask.type})"
        self.emit(f"call void @{name}({value}, {where}, i32 {BYTES[scalar]}, {mask})")

    def stack(self, type: Type, count: int = 1, align: int = 64) -> Value:
        """Allocate `count` elements on the stack, until the function returns."""
        self.count += 1
        name = f"%s{self.count}"
        self.entry.insert(0, f"  {name} = alloca {type}, i64 {count}, align {align}")
        return Value(name, PTR)

    # ---- control

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: int = 1, carried: Sequence[Value] = ()) -> Iterator[Loop]:
        """Emit a loop that counts an i64 from `start` while it is below `stop`; there may be no iteration at all.

        After the loop, `loop.results` are the final carried values.
        """
        first = start if isinstance(start, Value) else constant(start, I64)
        last = stop if isinstance(stop, Value) else constant(stop, I64)
        head, body, end = (self.name_for(stem) for stem in ("head", "body", "end"))
        before = self.block
        self.jump(head)
        self.label(head)
        index = Value(f"%{self.name_for('i')}", I64)
        inside = [Value(f"%{self.name_for('c')}", v.type) for v in carried]
        place = len(self.lines)
        self.lines.extend([""] * (1 + len(inside)))
        self.branch(self.compare("lt", index, last), body, end)
        self.label(body)
        loop = Loop(index, inside)
        yield loop
        following = loop.following if loop.following is not None else inside
        assert [v.type for v in following] == [v.type for v in inside], "a carried value changes its type"
        increased = self.add(index, constant(step, I64))
        latch = self.block
        self.jump(head)
        self.label(end)
        pairs = [(index, first, increased), *zip(inside, carried, following, strict=True)]
        for k, (phi, initial, again) in enumerate(pairs):
            names = f"[ {initial.name}, %{before} ], [ {again.name}, %{latch} ]"
            self.lines[place + k] = f"  {phi.name} = phi {phi.type} {names}"
        loop.results = inside

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Emit a block that runs only where a scalar condition holds."""
        then, end = self.name_for("then"), self.name_for("after")
        self.branch(condition, then, end)
        self.label(then)
        yield
        self.jump(end)
        self.label(end)

    def ret(self, value: Value | None = None) -> None:
        self.emit("ret void" if value is None else f"ret {value}")


class Module:
    """Functions that are compiled together. `features` are the CPU's, as in `Target.features`; empty means code for any CPU."""

    def __init__(self, features: str = "") -> None:
        self.features = features
        self.functions: dict[str, Function] = {}
        self.globals: dict[str, str] = {}  # by name: the whole definition

    def function(
        self, name: str, params: Sequence[tuple[str, Type]], returns: str = "void", internal: bool = False, attributes: str = ""
    ) -> Function:
        assert name not in self.functions, f"{name} is defined twice"
        found = self.functions[name] = Function(name, params, returns, internal, attributes, self.features)
        return found

    def __str__(self) -> str:
        declared: dict[str, str] = {}
        for f in self.functions.values():
            declared.update(f.declared)
        outside = [text for name, text in declared.items() if name not in self.functions]
        return "\n".join([*self.globals.values(), *outside, "", *map(str, self.functions.values())])
