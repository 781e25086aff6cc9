"""Lower ops: one element of each result, as an expression of elements of the operands.

There is one function for each op that moves data, and one for all pointwise ops. Views, slices, padding and concatenation are
index arithmetic and cost nothing. The reader decides where an operand's elements come from (`Reader.get`): memory, or its
definition here, inlined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...eager.arrays import dtypes
from ...tracer.graph.ir import Form, Node, Operand
from ...tracer.trace.trace import Constant, Number
from ..ir.expr import Expr, ExprBuilder, Guard, is_never_true, simplify_guard
from ..ir.index import ZERO, Index, IndirectIndex, atom, reshape_index, unflatten_index
from .definitions import DEFINITIONS, define

Place = tuple[Index, ...]


class Reader(Protocol):
    """Gives the elements of operands."""

    exprs: ExprBuilder
    forms: dict[str, Form]

    def get(self, name: str, place: Place, guard: Guard) -> Expr: ...


Definition = Callable[[Reader, Node, int, Place, Guard], Expr]


def dtype_of(form: Form) -> str:
    return dtypes.from_numpy(form.dtype).name


def shape_of(reader: Reader, x: Operand) -> tuple[int, ...]:
    return reader.forms[x].shape if isinstance(x, str) else ()


def broadcast(place: Place, shape: tuple[int, ...]) -> Place:
    """The place in an operand of `shape` that a place in the broadcast result reads."""
    return tuple(ZERO if n == 1 else i for i, n in zip(place[len(place) - len(shape) :], shape, strict=True))


def scalar(reader: Reader, x: Operand, dtype: str) -> Expr:
    """A scalar operand as an expression of a dtype."""
    if isinstance(x, Number):
        kind = {float: "float64", int: "int64", bool: "bool"}[x.type]
        return reader.exprs.cast(reader.exprs.number(x.place, kind), dtype)
    return reader.exprs.const(convert_scalar(x.value, dtype), dtype)


def convert_scalar(value: Any, dtype: str) -> Any:
    if dtype == "bool":
        return bool(value)
    if dtype.startswith(("int", "uint")):
        return int(np.asarray(value).astype(dtype)) if isinstance(value, int) else int(value)
    return float(value)


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def compute_dtype(dtype: str) -> str:
    """The dtype to compute several steps in before rounding once: float32 for 16-bit floats."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


# ---- pointwise

COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "signbit"}
LOGICAL = {"logical_and", "logical_or", "logical_xor", "logical_not"}


def pointwise(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """The op on the operands' elements."""
    name, result = node.op.name, dtype_of(reader.forms[node.results[0]])
    kinds = [dtype_of(reader.forms[x]) for x in node.operands if isinstance(x, str)]
    common = result
    if name in COMPARISONS or name in LOGICAL:
        common = kinds[0]
    if name == "clamp":
        return clamp(reader, reader.get(node.operands[0], place, guard), node, result)
    args = []
    for k, x in enumerate(node.operands):
        if isinstance(x, str):
            args.append(reader.get(x, broadcast(place, reader.forms[x].shape), guard))
        else:
            args.append(scalar(reader, x, "bool" if name == "where" and k == 0 else compute_dtype(common)))
    return operation(reader.exprs, name, result, common, args, node)


def operation(exprs: ExprBuilder, name: str, result: str, common: str, args: list[Expr], node: Node) -> Expr:
    if name == "cast":
        return exprs.cast(args[0], result)
    if name in LOGICAL:
        flags = [as_bool(exprs, a) for a in args]
        if name == "logical_not":
            return exprs.op("logical_not", "bool", flags[0])
        return exprs.op(name.replace("logical", "bitwise"), "bool", *flags)
    if name == "round":
        return round_decimals(exprs, args[0], node.attrs["decimals"], result)
    if name == "pow":
        a, b = (exprs.cast(x, compute_dtype(result)) for x in args)
        found = power(exprs, a, b, compute_dtype(result))
        if isinstance(node.operands[1], Number) and is_float(result):  # not for tensors: a power of minus infinity is no root
            half = exprs.op("eq", "bool", b, exprs.const(0.5, b.dtype))
            found = exprs.where(half, exprs.op("sqrt", b.dtype, a), found)
        return exprs.cast(found, result)
    if name == "where":
        return exprs.where(args[0], exprs.cast(args[1], result), exprs.cast(args[2], result))
    given = [a if a.dtype == compute_dtype(common) else exprs.cast(a, common) for a in args]
    return exprs.op(name, result, *given)


def as_bool(exprs: ExprBuilder, x: Expr) -> Expr:
    return x if x.dtype == "bool" else exprs.op("ne", "bool", x, exprs.const(convert_scalar(0, x.dtype), x.dtype))


def clamp(reader: Reader, x: Expr, node: Node, dtype: str) -> Expr:
    for name, limit in zip(("maximum", "minimum"), node.operands[1:], strict=True):
        if isinstance(limit, Number) or limit.value is not None:
            x = reader.exprs.op(name, dtype, scalar(reader, limit, dtype), x)  # of equal ones the second: a zero keeps its sign
    return x


def round_decimals(exprs: ExprBuilder, x: Expr, decimals: int, dtype: str) -> Expr:
    """As the eager kernel: scaled, rounded half to even, and scaled back."""
    if not is_float(dtype):
        return x
    if decimals == 0:
        return exprs.op("round", dtype, x)
    wide = compute_dtype(dtype)
    scale = exprs.const(10.0 ** abs(decimals), wide)
    there, back = ("mul", "true_divide") if decimals > 0 else ("true_divide", "mul")
    found = exprs.op("round", wide, exprs.op(there, wide, exprs.cast(x, wide), scale))
    return exprs.cast(exprs.op(back, wide, found, scale), dtype)


def power(exprs: ExprBuilder, a: Expr, b: Expr, dtype: str) -> Expr:
    """As the eager kernel: small powers are multiplications."""
    if b.kind == "const":
        if b.data == 2:
            return exprs.op("mul", dtype, a, a)
        if b.data == 3:
            return exprs.op("mul", dtype, exprs.op("mul", dtype, a, a), a)
        if is_float(dtype):
            if b.data == 1:
                return a
            if b.data == 0.5:
                return exprs.op("sqrt", dtype, a)
            if b.data == -1:
                return exprs.op("true_divide", dtype, exprs.const(1.0, dtype), a)
    return exprs.op("pow", dtype, a, b)


# ---- other indices


@define("same", "clone", "store")
def same(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    return reader.get(node.operands[0], broadcast(place, shape_of(reader, node.operands[0])), guard)


@define("view")
def view(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    before = shape_of(reader, node.operands[0])
    return reader.get(node.operands[0], reshape_index(place, shape_of(reader, node.results[0]), before), guard)


@define("permute")
def permute(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    inner = [ZERO] * len(place)
    for i, d in zip(place, node.attrs["dims"], strict=True):
        inner[d] = i
    return reader.get(node.operands[0], tuple(inner), guard)


@define("expand")
def expand(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    return reader.get(node.operands[0], broadcast(place, shape_of(reader, node.operands[0])), guard)


def subscripts(index: Any, ndim: int) -> list[Any]:
    """A slice's index with full slices for `...` and for omitted dims."""
    index = index if isinstance(index, tuple) else (index,)
    used = sum(1 for i in index if i is not None and i is not ...)
    rest = [slice(None)] * (ndim - used)
    found: list[Any] = []
    for i in index:
        found += rest if i is ... else [i]
    return found if ... in index else found + rest


@define("slice")
def sliced(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    shape = shape_of(reader, node.operands[0])
    inner: list[Index] = []
    rest = iter(place)
    for i in subscripts(node.attrs["index"], len(shape)):
        if i is None:
            next(rest)
            continue
        n = shape[len(inner)]
        if isinstance(i, slice):
            start, _, step = i.indices(n)
            inner.append(next(rest) * step + start)
        else:
            inner.append(ZERO + (int(i) % n if n else 0))
    return reader.get(node.operands[0], tuple(inner), guard)


def invert_slice(index: Any, place: Place, shape: tuple[int, ...]) -> tuple[Place, Guard]:
    """The place in a slice of the element at a place in the whole, and the guard that it is in the slice."""
    found: list[Index] = []
    guard: list[tuple[Index, int]] = []
    rest = iter(zip(place, shape, strict=True))
    for i in subscripts(index, len(shape)):
        if i is None:
            found.append(ZERO)
            continue
        at, n = next(rest)
        if not isinstance(i, slice):
            guard.append((at - int(i) % max(n, 1), 1))
            continue
        bounds = range(*i.indices(n))
        shifted = (at - bounds.start) * (1 if bounds.step > 0 else -1)
        step = abs(bounds.step)
        found.append(shifted // step)
        guard.append((shifted, max((len(bounds) - 1) * step + 1, 0)))
        if step > 1:
            guard.append((shifted % step, 1))
    return tuple(found), tuple(guard)


def read_or_fill(reader: Reader, name: str, place: Place, inside: Guard, guard: Guard, otherwise: Expr) -> Expr:
    """An element of a value where the guard `inside` holds, and `otherwise` elsewhere."""
    if is_never_true(inside):
        return otherwise
    inside = simplify_guard(inside)
    found = reader.get(name, place, merge_guards(guard, inside))
    return reader.exprs.where(reader.exprs.inside(inside), found, otherwise)


def merge_guards(a: Guard, b: Guard) -> Guard:
    return (*a, *[g for g in b if g not in a])


@define("unslice")
def unslice(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    inner, inside = invert_slice(node.attrs["index"], place, node.attrs["shape"])
    dtype = dtype_of(reader.forms[node.results[0]])
    return read_or_fill(
        reader,
        node.operands[0],
        inner,
        inside,
        guard,
        reader.exprs.const(convert_scalar(node.attrs["fill"], dtype), dtype),
    )


@define("flip")
def flip(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    shape, dims = shape_of(reader, node.operands[0]), node.attrs["dims"]
    dims = {d % len(shape) for d in (dims if isinstance(dims, tuple) else (dims,))} if shape else set()
    inner = tuple(i * -1 + (n - 1) if d in dims else i for d, (i, n) in enumerate(zip(place, shape, strict=True)))
    return reader.get(node.operands[0], inner, guard)


@define("diagonal")
def diagonal(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    offset, dim1, dim2 = (node.attrs[k] for k in ("offset", "dim1", "dim2"))
    rest = iter(place[:-1])
    inner = [
        place[-1] + max(-offset, 0) if d == dim1 else place[-1] + max(offset, 0) if d == dim2 else next(rest)
        for d in range(len(place) + 1)
    ]
    return reader.get(node.operands[0], tuple(inner), guard)


@define("undiagonal")
def undiagonal(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    offset, dim1, dim2 = (node.attrs[k] for k in ("offset", "dim1", "dim2"))
    along, across = place[dim1] - max(-offset, 0), place[dim2] - max(offset, 0)
    length = shape_of(reader, node.operands[0])[-1]
    inner = (*[i for d, i in enumerate(place) if d not in (dim1, dim2)], along)
    dtype = dtype_of(reader.forms[node.results[0]])
    zero = reader.exprs.const(convert_scalar(0, dtype), dtype)
    return read_or_fill(reader, node.operands[0], inner, ((along, length), (across - along, 1)), guard, zero)


@define("windows")
def windows(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    d = node.attrs["dim"]
    inner = (*place[:d], place[d] * node.attrs["step"] + place[-1], *place[d + 1 : -1])
    return reader.get(node.operands[0], inner, guard)


@define("unwindows")
def unwindows(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """The sum over all windows that an element is in."""
    d, step, size = (node.attrs[k] for k in ("dim", "step", "size"))
    count = shape_of(reader, node.operands[0])[d]
    dtype = dtype_of(reader.forms[node.results[0]])
    found = zero = reader.exprs.const(convert_scalar(0, dtype), dtype)
    for k in range(size):
        shifted = place[d] - k
        inside: Guard = ((shifted, (count - 1) * step + 1), (shifted % step, 1))
        inner = (*place[:d], shifted // step, *place[d + 1 :], ZERO + k)
        part = read_or_fill(reader, node.operands[0], inner, inside, guard, zero)
        if part is not zero:
            found = part if found is zero else reader.exprs.op("add", dtype, found, part)
    return found


@define("as_strided")
def as_strided(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    flat = ZERO + node.attrs["offset"]
    for i, s in zip(place, node.attrs["stride"], strict=True):
        flat = flat + i * s
    return reader.get(node.operands[0], unflatten_index(flat, shape_of(reader, node.operands[0])), guard)


@define("split")
def split(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    d, start = node.attrs["dim"], sum(node.attrs["sizes"][:which])
    return reader.get(node.operands[0], (*place[:d], place[d] + start, *place[d + 1 :]), guard)


@define("unbind")
def unbind(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    d = node.attrs["dim"]
    return reader.get(node.operands[0], (*place[:d], ZERO + which, *place[d:]), guard)


@define("cat")
def cat(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    d, start = node.attrs["dim"], 0
    pieces: list[tuple[Guard, Expr]] = []
    for x in node.operands:
        n = shape_of(reader, x)[d]
        shifted = place[d] - start
        inside: Guard = ((shifted, n),)
        if n and not is_never_true(inside):
            inside = simplify_guard(inside)
            inner = (*place[:d], shifted, *place[d + 1 :])
            pieces.append((inside, reader.get(x, inner, merge_guards(guard, inside))))
        start += n
    if not pieces:
        dtype = dtype_of(reader.forms[node.results[0]])
        return reader.exprs.const(convert_scalar(0, dtype), dtype)
    found = pieces[-1][1]
    for inside, piece in reversed(pieces[:-1]):
        found = reader.exprs.where(reader.exprs.inside(inside), piece, found)
    return found


@define("view_scatter")
def view_scatter(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    base, value = node.operands
    inner, shape = place, shape_of(reader, base)
    inside: Guard = ()
    for op, attrs, index in node.attrs["chain"]:
        inner, more, shape = invert_view(op.name, attrs, index, inner, shape)
        inside = merge_guards(inside, more)
    otherwise = reader.get(base, place, guard)
    if is_never_true(inside):
        return otherwise
    inside = simplify_guard(inside)
    found = reader.get(value, broadcast(inner, shape_of(reader, value)), merge_guards(guard, inside))
    return reader.exprs.where(reader.exprs.inside(inside), found, otherwise)


INVERTIBLE = {"view", "permute", "slice", "split", "unbind"}


def invert_view(
    name: str, attrs: dict[str, Any], which: int | None, place: Place, shape: tuple[int, ...]
) -> tuple[Place, Guard, tuple[int, ...]]:
    """The place in a view of the element at a place in its base, the guard that it is in the view, and the view's shape."""
    if name == "view":
        return reshape_index(place, shape, attrs["shape"]), (), attrs["shape"]
    if name == "permute":
        return tuple(place[d] for d in attrs["dims"]), (), tuple(shape[d] for d in attrs["dims"])
    if name == "slice":
        inner, guard = invert_slice(attrs["index"], place, shape)
        sizes = iter(shape)
        lengths = [(i, 1 if i is None else next(sizes)) for i in subscripts(attrs["index"], len(shape))]
        left = [1 if i is None else len(range(*i.indices(n))) for i, n in lengths if i is None or isinstance(i, slice)]
        return inner, guard, tuple(left)
    assert which is not None
    d = attrs["dim"]
    if name == "split":
        n = attrs["sizes"][which]
        shifted = place[d] - sum(attrs["sizes"][:which])
        return (*place[:d], shifted, *place[d + 1 :]), ((shifted, n),), (*shape[:d], n, *shape[d + 1 :])
    return (*place[:d], *place[d + 1 :]), ((place[d] - which, 1),), (*shape[:d], *shape[d + 1 :])


# ---- creation


@define("full", "empty")
def full(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    dtype = dtype_of(reader.forms[node.results[0]])
    return scalar(reader, node.operands[0], dtype) if node.operands else reader.exprs.const(convert_scalar(0, dtype), dtype)


@define("number")
def number(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    return scalar(reader, node.operands[0], dtype_of(reader.forms[node.results[0]]))


@define("arange")
def arange(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    exprs, (start, step) = reader.exprs, node.operands
    floating = any(x.type is float if isinstance(x, Number) else isinstance(x.value, float) for x in (start, step))
    kind = "float64" if floating else "int64"
    found = exprs.cast(exprs.index(place[0]), kind)
    found = exprs.op("mul", kind, found, scalar(reader, step, kind))
    found = exprs.op("add", kind, found, scalar(reader, start, kind))
    return exprs.cast(found, dtype_of(reader.forms[node.results[0]]))


# ---- reads by indices


def indirect_index(reader: Reader, name: str, place: Place, guard: Guard, size: int) -> Index:
    """An index that is read from a tensor of indices, which was checked: see `prepare/bounds_checks.py`."""
    return atom(IndirectIndex(reader.exprs.cast(reader.get(name, place, guard), "int64"), size))


@define("embedding")
def embedding(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    weight, indices = node.operands
    row = indirect_index(reader, indices, place[:-1], guard, shape_of(reader, weight)[0])
    return reader.get(weight, (row, place[-1]), guard)


@define("gather")
def gather(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    x, index = node.operands
    d = node.attrs["dim"]
    row = indirect_index(reader, index, place, guard, shape_of(reader, x)[d])
    return reader.get(x, (*place[:d], row, *place[d + 1 :]), guard)


@define("index")
def index(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    x, indices, dims = node.operands[0], node.operands[1:], node.attrs["dims"]
    shape = shape_of(reader, x)
    ndim = max(len(shape_of(reader, i)) for i in indices)
    at = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0  # NumPy puts them first if the indexed dims are not adjacent
    picked, rest = place[at : at + ndim], iter((*place[:at], *place[at + ndim :]))
    inner: list[Index] = []
    for d, n in enumerate(shape):
        if d in dims:
            i = indices[dims.index(d)]
            inner.append(indirect_index(reader, i, broadcast(picked, shape_of(reader, i)), guard, n))
        else:
            inner.append(next(rest))
    return reader.get(x, tuple(inner), guard)


@define("class_index")
def class_index(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    exprs, target = reader.exprs, reader.get(node.operands[0], place, guard)
    counts = exprs.op("ne", "bool", target, exprs.const(convert_scalar(node.attrs["ignore_index"], target.dtype), target.dtype))
    return counts if which else exprs.where(counts, target, exprs.const(0, target.dtype))


@define("scatter")
def scatter(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """Replace one element of each row along the dim."""
    x, index, src = node.operands
    exprs, d = reader.exprs, node.attrs["dim"]
    row = (*place[:d], ZERO, *place[d + 1 :])
    chosen = exprs.cast(reader.get(index, row, guard), "int64")
    dtype = dtype_of(reader.forms[node.results[0]])
    here = exprs.op("eq", "bool", chosen, exprs.index(place[d]))
    value = (
        reader.get(src, broadcast(row, shape_of(reader, src)), guard) if isinstance(src, str) else scalar(reader, src, dtype)
    )
    return exprs.where(here, value, reader.get(x, place, guard))


# ---- scatter-adds


def is_scatter_add(node: Node, forms: dict[str, Form]) -> bool:
    """True for nodes that add elements at places given by indices."""
    name = node.op.name
    if name not in ("row_sum", "scatter_sum", "index_sum") or node.attrs.get("by_frequency"):
        return False
    if any(not isinstance(x, str) for x in node.operands):
        return False
    return forms[node.operands[0]].dtype.kind in "fiu" and all(forms[x].dtype.kind in "iu" for x in node.operands[1:])


def scatter_element(reader: Reader, node: Node, place: Place) -> tuple[Expr, Place]:
    """The element that is added for a place of the source, and the place it is added to."""
    exprs, source, name = reader.exprs, node.operands[0], node.op.name
    value = reader.get(source, place, ())
    if name == "row_sum":
        row = indirect_index(reader, node.operands[1], place[:-1], (), node.attrs["rows"])
        padding = node.attrs["padding_idx"]
        if padding >= 0:
            here = exprs.op("eq", "bool", row.terms[0][0].expr, exprs.const(padding, "int64"))
            value = exprs.where(here, exprs.const(convert_scalar(0, value.dtype), value.dtype), value)
        return value, (row, place[-1])
    shape = node.attrs["shape"]
    if name == "scatter_sum":
        d = node.attrs["dim"]
        row = indirect_index(reader, node.operands[1], place, (), shape[d])
        return value, (*place[:d], row, *place[d + 1 :])
    indices, dims = node.operands[1:], node.attrs["dims"]
    ndim = max(len(shape_of(reader, i)) for i in indices)
    at = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    picked, rest = place[at : at + ndim], iter((*place[:at], *place[at + ndim :]))
    where: list[Index] = []
    for d, n in enumerate(shape):
        if d in dims:
            i = indices[dims.index(d)]
            where.append(indirect_index(reader, i, broadcast(picked, shape_of(reader, i)), (), n))
        else:
            where.append(next(rest))
    return value, tuple(where)


# ---- which nodes can be lowered


def is_lowerable(node: Node, forms: dict[str, Form]) -> bool:
    """True if the elements of a node's results can be lowered to expressions."""
    name = node.op.name
    for x in (*node.values(), *node.results):
        dtype = forms[x].dtype
        if dtype.kind not in "fiub" and dtype.itemsize != 2:
            return False
    if node.op.kind == "pointwise":
        return is_pointwise_lowerable(node, forms)
    if name == "view_scatter":
        return all(op.name in INVERTIBLE for op, _, _ in node.attrs["chain"])
    if name == "scatter":
        shape, index = forms[node.operands[0]].shape, forms[node.operands[1]].shape
        d = node.attrs["dim"]
        return len(shape) > 0 and index[d] == 1 and (*index[:d], *index[d + 1 :]) == (*shape[:d], *shape[d + 1 :])
    if name == "index":
        return all(isinstance(x, str) and forms[x].dtype.kind in "iu" for x in node.operands[1:])
    if name == "unwindows":
        return bool(node.attrs["size"] <= 32)
    if name == "empty":
        return True
    return name in DEFINITIONS


DIVISIONS = {"floor_divide", "remainder", "fmod", "trunc_divide"}
CHECKED_ON_INTEGERS = {*DIVISIONS, "pow", "bitwise_left_shift", "bitwise_right_shift"}


def is_pointwise_lowerable(node: Node, forms: dict[str, Form]) -> bool:
    """`is_lowerable` of pointwise ops. Divisors and exponents of integers are checked first: see `prepare/bounds_checks.py`."""
    name, values = node.op.name, node.values()
    if name == "polygamma" or not values:
        return False
    if name not in CHECKED_ON_INTEGERS or is_float(dtype_of(forms[node.results[0]])):
        return True
    if any(forms[x].dtype.kind not in "iu" for x in (*values, *node.results)):
        return False
    second = node.operands[1]
    if isinstance(second, Constant):
        return second.value != 0 if name in DIVISIONS else second.value >= 0
    return True


def definition_of(node: Node) -> Definition:
    return pointwise if node.op.kind == "pointwise" else DEFINITIONS[node.op.name]
