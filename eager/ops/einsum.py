"""Contractions written as subscripts: `einsum` and `tensordot`.

A subscript is a number: 0 to 51 for a letter, -1, -2, ... for the dims of an ellipsis counted from the right. What to do is
worked out from subscripts and shapes alone and remembered; then each operand loses its repeated subscripts (diagonals) and
those that only it has (sums), and the operands are contracted two at a time through `matmul`, or a plain product where
nothing is summed. Gradients come from the ops that this is made of.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..op import apply, public
from ..samples import A, I, sample
from ..tensor import Tensor, wrap_dim, wrap_dims
from .contraction import check_tensors, matmul
from .movement import DIAGONAL, PERMUTE
from .pointwise import promoted

Labels = tuple[int, ...]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# ---- reading the subscripts


def read_equation(equation: str) -> tuple[list[list[int | None]], list[int | None] | None]:
    """Subscripts of the operands and of the result, if the equation gives it; None stands for an ellipsis."""
    left, arrow, right = equation.partition("->")
    terms, place = [], 0
    for i, term in enumerate(left.split(",")):
        terms.append(read_term(term, place, f"operand {i}"))
        place += len(term) + 1
    return terms, read_term(right, len(left) + 2, "output") if arrow else None


def read_term(term: str, place: int, name: str) -> list[int | None]:
    """One operand's subscripts. `place` is where it stands in the equation, for errors."""
    found: list[int | None] = []
    skip = 0
    for i, letter in enumerate(term):
        if skip:
            skip -= 1
        elif letter == ".":
            if None in found:
                raise RuntimeError(f"einsum(): found '.' for {name} for which an ellipsis was already found")
            if term[i : i + 3] != "...":
                raise RuntimeError(f"einsum(): found '.' for {name} that is not part of any ellipsis")
            found.append(None)
            skip = 2
        elif letter in LETTERS:
            found.append(LETTERS.index(letter))
        elif letter != " ":
            raise RuntimeError(
                f"einsum(): invalid subscript given at index {place + i} in the equation string, subscripts must be in [a-zA-Z]"
            )
    return found


def read_lists(args: tuple[Any, ...]) -> tuple[list[list[int | None]], list[int | None] | None, list[Any]]:
    """The other way to call: operand, list of numbers, operand, list of numbers, ..., and the result's list."""
    operands = list(args[0 : len(args) - len(args) % 2 : 2])
    terms = [read_list(s) for s in args[1::2]]
    return terms, read_list(args[-1]) if len(args) % 2 else None, operands


def read_list(subscripts: Any) -> list[int | None]:
    found: list[int | None] = []
    for s in subscripts:
        if s is Ellipsis:
            found.append(None)
        elif isinstance(s, int) and 0 <= s < len(LETTERS):
            found.append(s)
        else:
            raise ValueError(f"einsum(): subscript {s!r} in subscript list is not within the valid range [0, 52)")
    return found


def name_of(label: int) -> str:
    return LETTERS[label] if label >= 0 else "..."


# ---- what to do, from subscripts and shapes


class Pair(NamedTuple):
    """A contraction of operands i and j (which leave the list) into a new one at its end."""

    i: int
    j: int
    keep: frozenset[int]


class Plan(NamedTuple):
    """How to compute an equation: labels of the operands, labels still needed at the start, the pairs, the result's labels."""

    terms: tuple[Labels, ...]
    needed: tuple[frozenset[int], ...]
    pairs: tuple[Pair, ...]
    output: Labels


@functools.lru_cache(maxsize=512)
def plan_of(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Plan:
    terms, output = read_equation(equation)
    return make_plan(terms, output, shapes)


def make_plan(terms: list[list[int | None]], output: list[int | None] | None, shapes: Sequence[tuple[int, ...]]) -> Plan:
    if len(terms) != len(shapes):
        fewer = "fewer" if len(shapes) < len(terms) else "more"
        raise RuntimeError(
            f"einsum(): {fewer} operands were provided than specified in the equation: {len(shapes)} instead of {len(terms)}"
        )
    labels = [spread(term, shape, i) for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))]
    sizes = common_sizes(labels, shapes)
    result = implied(labels, sizes) if output is None else spread_output(output, sizes)
    needed = []
    for i, term in enumerate(labels):
        others = set(result).union(*labels[:i], *labels[i + 1 :])
        needed.append(frozenset(others.intersection(term)))
    held = [frozenset(term) & need for term, need in zip(labels, needed, strict=True)]
    return Plan(tuple(labels), tuple(needed), tuple(ordered_pairs(held, frozenset(result), sizes)), result)


def spread(term: list[int | None], shape: tuple[int, ...], operand: int) -> Labels:
    """A term's labels with the ellipsis as one label for each dim it covers."""
    given = len(term) - (None in term)
    covered = len(shape) - given
    if (None not in term and covered) or covered < 0:
        relation, also = ("is more than", "") if None in term else ("does not match", " and no ellipsis was given")
        raise RuntimeError(
            f"einsum(): the number of subscripts in the equation ({given}) {relation} the number of dimensions ({len(shape)}) "
            f"for operand {operand}{also}"
        )
    return tuple(label for s in term for label in ([s] if s is not None else range(-covered, 0)))


def common_sizes(labels: list[Labels], shapes: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """The length of each label; a length of 1 broadcasts, except within one operand."""
    sizes: dict[int, int] = {}
    for i, (term, shape) in enumerate(zip(labels, shapes, strict=True)):
        own: dict[int, int] = {}
        for dim, (label, n) in enumerate(zip(term, shape, strict=True)):
            if own.setdefault(label, n) != n:
                raise RuntimeError(
                    f"einsum(): subscript {name_of(label)} is repeated for operand {i} but the sizes don't match, "
                    f"{n} != {own[label]}"
                )
            before = sizes.get(label, 1)
            if 1 not in (n, before) and n != before:
                if label < 0:
                    raise RuntimeError(
                        f"einsum(): dimension {dim} covered by ellipsis in operand {i} has size {n} which does not broadcast "
                        f"with previously seen ellipsis with size {before} for the respective dimension"
                    )
                raise RuntimeError(
                    f"einsum(): subscript {name_of(label)} has size {n} for operand {i} which does not broadcast with "
                    f"previously seen size {before}"
                )
            sizes[label] = n if before == 1 else before
    return sizes


def implied(labels: list[Labels], sizes: dict[int, int]) -> Labels:
    """Without an arrow: the ellipsis, then what occurs once, in alphabetical order."""
    every = list(itertools.chain(*labels))
    return tuple(sorted(s for s in sizes if s < 0 or every.count(s) == 1))


def spread_output(output: list[int | None], sizes: dict[int, int]) -> Labels:
    covered = sorted(s for s in sizes if s < 0)
    for s in output:
        if s is not None and s not in sizes:
            raise RuntimeError(f"einsum(): output subscript {name_of(s)} does not appear in the equation for any input operand")
        if s is not None and output.count(s) > 1:
            raise RuntimeError(f"einsum(): output subscript {name_of(s)} appears more than once in the output")
    return tuple(label for s in output for label in ([s] if s is not None else covered))


def ordered_pairs(held: list[frozenset[int]], result: frozenset[int], sizes: dict[int, int]) -> list[Pair]:
    """Which operands to contract, two at a time: always the pair whose result is smallest for what goes away."""
    held, pairs = list(held), []
    while len(held) > 1:
        best: tuple[float, int, int, frozenset[int]] | None = None
        for i, j in itertools.combinations(range(len(held)), 2):
            rest = result.union(*(h for k, h in enumerate(held) if k not in (i, j)))
            keep = (held[i] | held[j]) & rest
            cost = volume(keep, sizes) - volume(held[i], sizes) - volume(held[j], sizes)
            if best is None or cost < best[0]:
                best = (cost, i, j, keep)
        assert best is not None
        _, i, j, keep = best
        pairs.append(Pair(i, j, keep))
        held = [h for k, h in enumerate(held) if k not in (i, j)] + [keep]
    return pairs


def volume(labels: frozenset[int], sizes: dict[int, int]) -> int:
    return math.prod(sizes[s] for s in labels)


# ---- doing it


class Operand:
    """A tensor and the labels of its dims, each one once."""

    __slots__ = ("labels", "tensor")

    def __init__(self, tensor: Tensor, labels: Labels) -> None:
        self.tensor, self.labels = tensor, labels

    def size(self, label: int) -> int:
        return int(self.tensor._array.shape[self.labels.index(label)])

    def without_repeats(self) -> Operand:
        tensor, labels = self.tensor, list(self.labels)
        for label in dict.fromkeys(self.labels):
            while labels.count(label) > 1:
                first = labels.index(label)
                second = labels.index(label, first + 1)
                tensor = apply(DIAGONAL, (tensor,), {"offset": 0, "dim1": first, "dim2": second})
                labels = [s for k, s in enumerate(labels) if k not in (first, second)] + [label]
        return Operand(tensor, tuple(labels))

    def summed(self, gone: frozenset[int], dtype: Any = None) -> Operand:
        dims = tuple(i for i, s in enumerate(self.labels) if s in gone)
        if not dims:
            return self
        return Operand(self.tensor.sum(dim=dims, dtype=dtype), tuple(s for s in self.labels if s not in gone))

    def squeezed(self, gone: frozenset[int]) -> Operand:
        """Without dims of length 1."""
        if not gone:
            return self
        kept = tuple(s for s in self.labels if s not in gone)
        return Operand(self.tensor.reshape([self.size(s) for s in kept]), kept)

    def arranged(self, labels: Labels) -> Tensor:
        """The dims in this order."""
        if labels == self.labels:
            return self.tensor
        return apply(PERMUTE, (self.tensor,), {"dims": tuple(self.labels.index(s) for s in labels)})  # type: ignore[no-any-return]

    def grouped(self, groups: tuple[Labels, Labels, Labels]) -> Tensor:
        """The dims in three groups: the first as they are, each of the others as one dim."""
        batch, rows, columns = groups
        found = self.arranged(batch + rows + columns)
        if len(rows) == 1 == len(columns):
            return found
        return found.reshape([*map(self.size, batch), *(math.prod(map(self.size, group)) for group in (rows, columns))])  # type: ignore[no-any-return]


def contracted(a: Operand, b: Operand, keep: frozenset[int], dtype: Any = None) -> Operand:
    """Two operands as one that has the labels in `keep`. `dtype` is for what is summed alone, to be broadcast."""
    shared = [s for s in a.labels if s in b.labels]
    a_stretched = frozenset(s for s in shared if a.size(s) == 1 != b.size(s))
    b_stretched = frozenset(s for s in shared if b.size(s) == 1 != a.size(s))
    a = a.squeezed(a_stretched).summed(b_stretched - keep, dtype)
    b = b.squeezed(b_stretched).summed(a_stretched - keep, dtype)
    shared = [s for s in a.labels if s in b.labels]
    batch, inner = tuple(s for s in shared if s in keep), tuple(s for s in shared if s not in keep)
    left, right = tuple(s for s in a.labels if s not in shared), tuple(s for s in b.labels if s not in shared)
    if not inner or (batch and not left and not right):
        order = batch + left + right + inner
        found = aligned(a, order) * aligned(b, order)
        return Operand(found, order).summed(frozenset(inner), found.dtype)
    x, y = a.grouped((batch, left, inner)), b.grouped((batch, inner, right))
    if not x.dtype.is_floating_point and not y.dtype.is_floating_point:
        x, y = promoted("einsum", x, y)  # an operand that has been summed is int64
    value = matmul(x, y)
    if len(left) != 1 or len(right) != 1:
        value = value.reshape([*map(a.size, batch + left), *map(b.size, right)])
    return Operand(value, batch + left + right)


def aligned(x: Operand, order: Labels) -> Tensor:
    """A tensor with a dim for each label, of length 1 where it has none, to be broadcast."""
    found = x.arranged(tuple(s for s in order if s in x.labels))
    if len(x.labels) == len(order):
        return found
    return found.reshape([x.size(s) if s in x.labels else 1 for s in order])  # type: ignore[no-any-return]


def carry_out(plan: Plan, tensors: Sequence[Tensor]) -> Tensor:
    operands = []
    for tensor, term, needed in zip(tensors, plan.terms, plan.needed, strict=True):
        operand = Operand(tensor, term).without_repeats()
        operands.append(operand.summed(frozenset(term) - needed))
    for i, j, keep in plan.pairs:
        b, a = operands.pop(j), operands.pop(i)
        operands.append(contracted(a, b, keep))
    return operands[0].arranged(plan.output)


@public(
    samples=[
        sample("ij,jk->ik", A(2, 3), A(3, 4)),
        sample("bhqd,bhkd->bhqk", A(2, 2, 3, 4), A(2, 2, 2, 4)),
        sample("ii->i", A(3, 3)),
        sample("ii", A(3, 3)),
        sample("ij", A(2, 3)),
        sample("ba", A(2, 3)),
        sample("...ij,...jk->...ik", A(2, 1, 2, 3), A(4, 3, 2)),
        sample("i,j->ij", A(2), A(3)),
        sample("bi,bi->b", A(2, 3), A(2, 3)),
        sample("ij,ij->", A(2, 3), A(2, 3)),
        sample("bn,anm,bm->ba", A(2, 3), A(4, 3, 2), A(2, 2)),
        sample("ij,jk,kl->il", A(2, 3), A(3, 4), A(4, 2)),
        sample("iji,j->i", A(2, 3, 2), A(3)),
        sample("i...->...", A(2, 3)),
        sample("ij,jk->ik", A(2, 1), A(3, 4)),
        sample("abc,cbd->ad", A(2, 3, 4), A(4, 3, 2)),
        sample("ij,jk->ik", I(2, 3), I(3, 2)),
        sample(A(2, 3), [0, 1], A(3, 4), [1, 2], [2, 0]),
        sample(A(2, 3), [..., 0], [...]),
    ],
    method=False,
)
def einsum(*args: Any) -> Tensor:
    """Sum products of elements along dims that are named by letters: `einsum("ij,jk->ik", a, b)`.

    Also `einsum(a, [0, 1], b, [1, 2], [0, 2])`, with numbers in the place of letters.
    """
    if len(args) < 2:
        raise ValueError(
            "einsum(): must specify the equation string and at least one operand, or at least one operand and its subscripts "
            "list"
        )
    if isinstance(args[0], str):
        operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
        check_operands(operands)
        plan = plan_of(args[0], tuple(x._array.shape for x in operands))
    else:
        terms, output, operands = read_lists(args)
        check_operands(operands)
        plan = make_plan(terms, output, [x._array.shape for x in operands])
    return carry_out(plan, operands)


def check_operands(operands: list[Any]) -> None:
    check_tensors("einsum", **{f"operand {i}": x for i, x in enumerate(operands)})


# ---- contraction of dims given by number


@public(
    samples=[
        sample(A(2, 3, 4), A(3, 4, 2)),
        sample(A(2, 3), A(3, 2), dims=1),
        sample(A(2, 3), A(2), dims=0),
        sample(A(2, 3, 4), A(4, 2, 3), dims=([2, 0], [0, 1])),
        sample(A(2, 3), A(1, 4), dims=([1], [0])),
    ],
    method=False,
)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sum products over pairs of dims: the last `dims` of `a` with the first of `b`, or two lists of dims."""
    check_tensors("tensordot", a=a, b=b)
    first, second = paired_dims(a, b, dims)
    if a._array.dtype != b._array.dtype:
        raise RuntimeError(f"both inputs should have same dtype, but tensordot() got {a.dtype.name} and {b.dtype.name}")
    left, right = list(range(a._array.ndim)), [100 + i for i in range(b._array.ndim)]
    for i, (d, e) in enumerate(zip(first, second, strict=True)):
        n, m = a._array.shape[d], b._array.shape[e]
        if n != m and 1 not in (n, m):
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {n} in dim {d} and second has size {m} in dim {e}"
            )
        left[d] = right[e] = 200 + i
    keep = tuple(s for s in (*left, *right) if s < 200)
    return contracted(Operand(a, tuple(left)), Operand(b, tuple(right)), frozenset(keep), a.dtype).arranged(keep)


def paired_dims(a: Tensor, b: Tensor, dims: Any) -> tuple[Labels, Labels]:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a._array.ndim, b._array.ndim):
            raise RuntimeError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        return tuple(range(a._array.ndim - dims, a._array.ndim)), tuple(range(dims))
    first, second = ([d] if isinstance(d, int) else list(d) for d in dims)
    if len(first) != len(second):
        raise RuntimeError(f"both dimension lists should have same length, but they are {first} and {second}")
    return distinct(first, a._array.ndim), distinct(second, b._array.ndim)


def distinct(dims: list[int], ndim: int) -> Labels:
    return wrap_dims(dims, ndim) if dims else tuple(wrap_dim(d, ndim) for d in dims)


@public(samples=[sample(A(2, 3), A(4, 3)), sample(A(3), A(3)), sample(A(2, 3), A()), sample(A(3), A(2, 2, 3))])
def inner(input: Tensor, other: Tensor) -> Tensor:
    """Sum products over the last dims of both; with a 0-dim tensor, the plain product."""
    check_tensors("inner", input=input, other=other)
    if input._array.ndim == 0 or other._array.ndim == 0:
        return input * other
    if input._array.shape[-1] != other._array.shape[-1]:
        raise RuntimeError(
            f"inner() the last dimension must match on both input tensors but got shapes {list(input.shape)} and "
            f"{list(other.shape)}"
        )
    return tensordot(input, other, dims=([-1], [-1]))
