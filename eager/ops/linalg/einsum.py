"""Contractions written as subscripts: `einsum`, `tensordot`, `inner`.

A subscript is a number: 0 to 51 for a letter, -1, -2, ... for the dims of an ellipsis counted from the right. What to do is
worked out from subscripts and shapes alone, once, as a list of steps: each operand loses its repeated subscripts (diagonals)
and those that only it has (sums), and the operands are contracted two at a time through `matmul`, or a plain product where
nothing is summed. Gradients come from the ops that the steps are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...arrays.op_samples import A, I, sample
from ...core.dispatch import apply
from ...core.registration import public
from ...core.tensor import Tensor, wrap_dim, wrap_dims
from ..pointwise import promote_operands
from ..shape.views import DIAGONAL, PERMUTE
from .matmul import check_tensors, matmul

Labels = tuple[int, ...]
Step = tuple[str, int, Any]  # what is done, to which operand, and how (or with which other operand)
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


# ---- from subscripts and shapes to an order


@functools.lru_cache(maxsize=512)
def steps_of(equation: str, shapes: tuple[tuple[int, ...], ...]) -> list[Step]:
    terms, output = read_equation(equation)
    return plan_equation(terms, output, shapes)


def plan_equation(
    terms: list[list[int | None]], output: list[int | None] | None, shapes: Sequence[tuple[int, ...]]
) -> list[Step]:
    """The steps that compute an equation."""
    if len(terms) != len(shapes):
        fewer = "fewer" if len(shapes) < len(terms) else "more"
        raise RuntimeError(
            f"einsum(): {fewer} operands were provided than specified in the equation: {len(shapes)} instead of {len(terms)}"
        )
    labels = [expand_ellipsis(term, shape, i) for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))]
    sizes = common_sizes(labels, shapes)
    result = implied_output(labels, sizes) if output is None else spread_output(output, sizes)
    steps: list[Step] = []
    operands = []
    for i, (term, shape) in enumerate(zip(labels, shapes, strict=True)):
        needed = set(result).union(*labels[:i], *labels[i + 1 :])
        operand = Operand(steps, i, term, shape).without_repeats()
        operands.append(operand.summed([s for s in operand.labels if s not in needed]))
    while len(operands) > 1:
        i, j, keep = cheapest_pair([frozenset(x.labels) for x in operands], frozenset(result), sizes)
        b, a = operands.pop(j), operands.pop(i)
        operands.append(contract_pair(a, b, keep))
    operands[0].arranged(result)
    steps.append(("return", operands[0].place, None))
    return steps


def expand_ellipsis(term: list[int | None], shape: tuple[int, ...], operand: int) -> Labels:
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


def implied_output(labels: list[Labels], sizes: dict[int, int]) -> Labels:
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


def cheapest_pair(held: list[frozenset[int]], result: frozenset[int], sizes: dict[int, int]) -> tuple[int, int, frozenset[int]]:
    """Choose the next pair to contract, and the labels to keep: greedily, the smallest result relative to its operands."""
    best: tuple[int, int, int, frozenset[int]] | None = None
    for i, j in itertools.combinations(range(len(held)), 2):
        keep = (held[i] | held[j]) & result.union(*(h for k, h in enumerate(held) if k not in (i, j)))
        cost = volume(keep, sizes) - volume(held[i], sizes) - volume(held[j], sizes)
        if best is None or cost < best[0]:
            best = (cost, i, j, keep)
    assert best is not None
    return best[1:]


def volume(labels: frozenset[int], sizes: dict[int, int]) -> int:
    return math.prod(sizes[s] for s in labels)


# ---- steps


class Operand:
    """An operand while steps are planned for it: its position, and its dims' labels and lengths."""

    def __init__(self, steps: list[Step], place: int, labels: Labels, shape: tuple[int, ...]) -> None:
        self.steps, self.place, self.labels = steps, place, labels
        self.shape = tuple(shape)

    def size(self, label: int) -> int:
        return self.shape[self.labels.index(label)]

    def become(self, step: str, how: Any, labels: Labels, shape: Sequence[int]) -> Operand:
        self.steps.append((step, self.place, how))
        self.labels, self.shape = labels, tuple(shape)
        return self

    def without_repeats(self) -> Operand:
        for label in dict.fromkeys(self.labels):
            while self.labels.count(label) > 1:
                first = self.labels.index(label)
                second = self.labels.index(label, first + 1)
                rest = [k for k in range(len(self.labels)) if k not in (first, second)]
                labels, shape = tuple(self.labels[k] for k in rest), [self.shape[k] for k in rest]
                how = {"offset": 0, "dim1": first, "dim2": second}
                self.become("diagonal", how, (*labels, label), (*shape, self.shape[first]))
        return self

    def summed(self, gone: Iterable[int], same_dtype: bool = False) -> Operand:
        dims = tuple(i for i, s in enumerate(self.labels) if s in gone)
        if not dims:
            return self
        kept = [i for i in range(len(self.labels)) if i not in dims]
        labels, shape = tuple(self.labels[i] for i in kept), [self.shape[i] for i in kept]
        return self.become("sum in its dtype" if same_dtype else "sum", dims, labels, shape)

    def squeezed(self, gone: Iterable[int]) -> Operand:
        """Without dims of length 1."""
        kept = tuple(s for s in self.labels if s not in gone)
        return self.reshaped([self.size(s) for s in kept], kept)

    def reshaped(self, shape: Sequence[int], labels: Labels) -> Operand:
        if tuple(shape) == self.shape:
            return self
        return self.become("reshape", tuple(shape), labels, shape)

    def arranged(self, labels: Labels) -> Operand:
        """The dims in this order."""
        if labels == self.labels:
            return self
        order = tuple(self.labels.index(s) for s in labels)
        return self.become("permute", {"dims": order}, labels, [self.shape[i] for i in order])

    def grouped(self, batch: Labels, rows: Labels, columns: Labels) -> Operand:
        """The dims in three groups: the first as they are, each of the others as one dim."""
        sizes = [math.prod(map(self.size, group)) for group in (rows, columns)]
        self.arranged(batch + rows + columns)
        return self.reshaped([*self.shape[: len(batch)], *sizes], self.labels)

    def aligned(self, order: Labels) -> Operand:
        """A dim for each label, of length 1 where it has none, to be broadcast."""
        self.arranged(tuple(s for s in order if s in self.labels))
        return self.reshaped([self.size(s) if s in self.labels else 1 for s in order], self.labels)


def contract_pair(a: Operand, b: Operand, keep: frozenset[int], same_dtype: bool = False) -> Operand:
    """Two operands as one that has the labels in `keep`. A label that one has with length 1 is as if it did not have it."""
    both = [s for s in a.labels if s in b.labels]
    only_b = [s for s in both if a.size(s) == 1 != b.size(s)]
    only_a = [s for s in both if b.size(s) == 1 != a.size(s)]
    a.squeezed(only_b).summed([s for s in only_a if s not in keep], same_dtype)
    b.squeezed(only_a).summed([s for s in only_b if s not in keep], same_dtype)
    both = [s for s in a.labels if s in b.labels]
    batch, inner = tuple(s for s in both if s in keep), tuple(s for s in both if s not in keep)
    left, right = tuple(s for s in a.labels if s not in both), tuple(s for s in b.labels if s not in both)
    labels = batch + left + right
    shape = [*map(a.size, batch + left), *map(b.size, right)]
    if not inner or (batch and not left and not right):
        full = [*shape, *map(a.size, inner)]
        a.aligned(labels + inner)
        b.aligned(labels + inner)
        return a.become("multiply", b.place, labels + inner, full).summed(inner, same_dtype=True)
    a.grouped(batch, left, inner)
    b.grouped(batch, inner, right)
    a.become("matmul", b.place, (), (*a.shape[:-1], b.shape[-1]))
    a.reshaped(shape, labels)
    a.labels = labels
    return a


def run_steps(steps: list[Step], operands: list[Any]) -> Tensor:
    for step, place, how in steps:
        x = operands[place]
        if step == "permute":
            x = apply(PERMUTE, (x,), how)
        elif step == "reshape":
            x = x.reshape(how)
        elif step == "matmul":
            x, operands[how] = promoting_matmul(x, operands[how]), None
        elif step == "multiply":
            x, operands[how] = x * operands[how], None
        elif step == "diagonal":
            x = apply(DIAGONAL, (x,), how)
        elif step == "return":
            return x  # type: ignore[no-any-return]
        else:
            x = x.sum(dim=how, dtype=x.dtype if step == "sum in its dtype" else None)
        operands[place] = x
    raise AssertionError("a plan ends with a return")


def promoting_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices; those of integers also where one operand has become int64 by being summed."""
    if a.tj_array.dtype != b.tj_array.dtype and not a.dtype.is_floating_point and not b.dtype.is_floating_point:
        a, b = promote_operands("einsum", a, b)
    return matmul(a, b)  # type: ignore[no-any-return]


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
        steps = steps_of(args[0], tuple([x.tj_array.shape for x in operands]))
    else:
        terms, output, operands = read_lists(args)
        check_operands(operands)
        steps = plan_equation(terms, output, [x.tj_array.shape for x in operands])
    return run_steps(steps, operands)


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
    if a.tj_array.dtype != b.tj_array.dtype:
        raise RuntimeError(f"both inputs should have same dtype, but tensordot() got {a.dtype.name} and {b.dtype.name}")
    return run_steps(steps_for_dims(a.tj_array.shape, b.tj_array.shape, first, second), [a, b])


@functools.lru_cache(maxsize=512)
def steps_for_dims(a: tuple[int, ...], b: tuple[int, ...], first: Labels, second: Labels) -> list[Step]:
    left, right = list(range(len(a))), list(range(len(a), len(a) + len(b)))
    for d, e in zip(first, second, strict=True):
        if a[d] != b[e] and 1 not in (a[d], b[e]):
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {a[d]} in dim {d} and second has size {b[e]} in "
                f"dim {e}"
            )
        right[e] = left[d]
    steps: list[Step] = []
    keep = tuple(s for s in (*left, *right) if left.count(s) + right.count(s) == 1)
    operands = Operand(steps, 0, tuple(left), a), Operand(steps, 1, tuple(right), b)
    contract_pair(*operands, frozenset(keep), same_dtype=True).arranged(keep)
    steps.append(("return", 0, None))
    return steps


def paired_dims(a: Tensor, b: Tensor, dims: Any) -> tuple[Labels, Labels]:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.tj_array.ndim, b.tj_array.ndim):
            raise RuntimeError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        return tuple(range(a.tj_array.ndim - dims, a.tj_array.ndim)), tuple(range(dims))
    first, second = ([d] if isinstance(d, int) else list(d) for d in dims)
    if len(first) != len(second):
        raise RuntimeError(f"both dimension lists should have same length, but they are {first} and {second}")
    return distinct(first, a.tj_array.ndim), distinct(second, b.tj_array.ndim)


def distinct(dims: list[int], ndim: int) -> Labels:
    return wrap_dims(dims, ndim) if dims else tuple(wrap_dim(d, ndim) for d in dims)


@public(samples=[sample(A(2, 3), A(4, 3)), sample(A(3), A(3)), sample(A(2, 3), A()), sample(A(3), A(2, 2, 3))])
def inner(input: Tensor, other: Tensor) -> Tensor:
    """Sum products over the last dims of both; with a 0-dim tensor, the plain product."""
    check_tensors("inner", input=input, other=other)
    if input.tj_array.ndim == 0 or other.tj_array.ndim == 0:
        return input * other
    if input.tj_array.shape[-1] != other.tj_array.shape[-1]:
        raise RuntimeError(
            f"inner() the last dimension must match on both input tensors but got shapes {list(input.shape)} and "
            f"{list(other.shape)}"
        )
    return tensordot(input, other, dims=([-1], [-1]))
