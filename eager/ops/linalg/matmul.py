"""Contractions: matrix products and what is a matrix product in other clothes.

`matmul` is multiply-and-sum with a fast path. `linear`, the hottest op of training, has kernels of its own so that forward
and backward are few array calls: `project` (x @ weight.T) and `outer_sum` (the sum over all rows of the outer products of two
tensors' rows) are each other's gradients. Leading dims are flattened inside the kernels: one large matmul instead of many
small ones, with nothing about it on the tape. `einsum.py` has the contractions that are written as subscripts.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, I, sample
from ...core.autocast import cast_matmul_operands
from ...core.cast import cast
from ...core.dispatch import STORE, apply
from ...core.errors import broadcast_error
from ...core.op import primitive
from ...core.registration import public
from ...core.shape_inference import Spec
from ...core.tape.engine import sum_to
from ...core.tensor import Tensor, wrap_dim
from ..pointwise import promote_operands, put
from ..reduce import SUM
from ..shape.reshape import stack
from ..shape.views import PERMUTE

SMALL = 2048  # below so many elements `a.dot(b)` is quicker: no ufunc machinery, but it clears the result first


def matmul_arrays(xp: Any, a: Any, b: Any) -> Any:
    """a @ b for `b` a matrix or a batch of them; the leading dims of `a` are flattened if there is only one matrix."""
    if b.ndim > 2 or a.ndim < 2:
        return xp.matmul(a, b)
    if a.ndim > 2:
        return matmul_arrays(xp, rows_of(a), b).reshape(*a.shape[:-1], b.shape[-1])
    return a.dot(b) if a.size < SMALL else xp.matmul(a, b)


def rows_of(a: Any) -> Any:
    """All but the last dim as one."""
    return a if a.ndim == 2 else a.reshape(math.prod(a.shape[:-1]), a.shape[-1])


def transposed(x: Tensor) -> Tensor:
    """The last two dims swapped."""
    n = x.tj_array.ndim
    return apply(PERMUTE, (x,), {"dims": (*range(n - 2), n - 1, n - 2)})  # type: ignore[no-any-return]


def left_gradient(g: Tensor, b: Tensor, a_shape: tuple[int, ...]) -> Tensor:
    if b.tj_array.ndim == 2:
        return apply(PROJECT, (g, b))  # type: ignore[no-any-return]
    return sum_to(apply(MATMUL, (g, transposed(b))), a_shape)


def right_gradient(g: Tensor, a: Tensor, b_shape: tuple[int, ...]) -> Tensor:
    if len(b_shape) == 2:
        return outer_sum(a, g)
    return sum_to(apply(MATMUL, (transposed(a), g)), b_shape)


def infer_matmul(a: Spec, b: Spec) -> tuple[Spec]:
    check_agree(a, a.shape[-1], b, b.shape[-2])
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (Spec((*batch, a.shape[-2], b.shape[-1]), a.dtype),)


def check_agree(a: Spec, n: int, b: Spec, m: int) -> None:
    if n != m or a.dtype != b.dtype:
        raise ValueError(f"{a} and {b} cannot be multiplied")


def infer_project(x: Spec, weight: Spec, bias: Spec | None = None) -> tuple[Spec]:
    check_agree(x, x.shape[-1], weight, weight.shape[1])
    if bias is not None:
        check_agree(weight, weight.shape[0], bias, bias.shape[0])
    return (Spec((*x.shape[:-1], weight.shape[0]), x.dtype),)


def infer_outer_sum(a: Spec, b: Spec) -> tuple[Spec]:
    check_agree(a, math.prod(a.shape[:-1]), b, math.prod(b.shape[:-1]))
    return (Spec((a.shape[-1], b.shape[-1]), a.dtype),)


# At least 2-D on both sides, batch dims broadcast.
MATMUL = primitive("matmul", "contraction", matmul_arrays, grad={"a": left_gradient, "b": right_gradient}, infer=infer_matmul)


def run_project(xp: Any, x: Any, weight: Any) -> Any:
    return matmul_arrays(xp, x, weight.T)


def run_linear(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    y = matmul_arrays(xp, x, weight.T)
    y += bias
    return y


def run_outer_sum(xp: Any, a: Any, b: Any) -> Any:
    if a.ndim == 1:
        return a[:, None] * b
    return matmul_arrays(xp, rows_of(a).T, rows_of(b))


def matmul_rows(g: Tensor, weight: Tensor) -> Tensor:
    """g @ weight, for a gradient of any number of dims."""
    return apply(MATMUL, (g, weight)) if g.tj_array.ndim > 1 else matmul(g, weight)  # type: ignore[no-any-return]


def outer_sum(a: Tensor, b: Tensor) -> Tensor:
    """The sum over all rows of the outer products of the rows of `a` and `b`."""
    return apply(OUTER_SUM, (a, b))  # type: ignore[no-any-return]


def sum_of_rows(g: Tensor) -> Tensor:
    """The sum over all dims but the last."""
    dims = tuple(range(g.tj_array.ndim - 1))
    return apply(SUM, (g,), {"dims": dims, "keepdim": False}) if dims else g  # type: ignore[no-any-return]


def expand_project(x: Tensor, weight: Tensor) -> Tensor:
    return matmul(x, transposed(weight))


def expand_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return matmul(x, transposed(weight)) + bias


def expand_outer_sum(a: Tensor, b: Tensor) -> Tensor:
    return matmul(transposed(flat_rows(a)), flat_rows(b))


PROJECT = primitive(
    "project",
    "composite",
    run_project,
    grad={"x": lambda g, weight: matmul_rows(g, weight), "weight": lambda g, x: outer_sum(g, x)},
    expand=expand_project,
    infer=infer_project,
)
LINEAR = primitive(
    "linear",
    "composite",
    run_linear,
    grad={
        "x": lambda g, weight: matmul_rows(g, weight),
        "weight": lambda g, x: outer_sum(g, x),
        "bias": lambda g: sum_of_rows(g),
    },
    expand=expand_linear,
    infer=infer_project,
)
OUTER_SUM = primitive(
    "outer_sum",
    "composite",
    run_outer_sum,
    grad={"a": lambda g, b: apply(PROJECT, (b, g)), "b": lambda g, a: matmul_rows(a, g)},
    expand=expand_outer_sum,
    infer=infer_outer_sum,
)


def flat_rows(x: Tensor) -> Tensor:
    shape = x.tj_array.shape
    return x if len(shape) == 2 else x.reshape(math.prod(shape[:-1]), shape[-1])  # type: ignore[no-any-return]


# ---- what is checked first


def check_tensors(name: str, **arguments: Any) -> None:
    for argument, x in arguments.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}(): argument '{argument}' must be Tensor, not {type(x).__name__}")


def check_dtypes(a: Tensor, b: Tensor) -> None:
    """PyTorch's products promote nothing."""
    if a.tj_array.dtype != b.tj_array.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {a.dtype.name} != {b.dtype.name}; convert one with .to(dtype)"
        )
    if a.tj_array.dtype.kind == "b" and a.tj_array.size and b.tj_array.size:
        raise NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'Bool'; convert to an integer or float dtype first")


def check_inner(a: Tensor, b: Tensor) -> None:
    """`b`, a matrix or a vector, is as high as `a` is wide. `a` is shown as its rows, as in PyTorch."""
    left, right = a.tj_array.shape, b.tj_array.shape
    rows = math.prod(left[:-1])
    if len(right) == 1 and left[-1] != right[0]:
        raise RuntimeError(f"size mismatch, got input ({rows}), mat ({rows}x{left[-1]}), vec ({right[0]})")
    if len(right) == 2 and left[-1] != right[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({rows}x{left[-1]} and {right[0]}x{right[1]})")


def check_batches(a: Tensor, b: Tensor) -> None:
    """Matrices in batches: inner lengths agree, batch dims broadcast."""
    left, right = a.tj_array.shape, b.tj_array.shape
    if left[:-2] != right[:-2]:
        clash = broadcast_error([left[:-2], right[:-2]])
        if clash is not None:
            raise RuntimeError(f"matmul: {clash}")
    inner = left[-1]
    if inner != right[-2]:
        longer = max(left[:-2], right[:-2], key=len)
        batch = math.prod(longer)
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{batch}, {inner}] but got: "
            f"[{batch}, {right[-2]}]. (matmul of shapes {list(left)} and {list(right)})"
        )


# ---- products


@public(
    samples=[
        sample(A(3, 4), A(4, 2)),
        sample(A(4), A(4)),
        sample(A(3, 4), A(4)),
        sample(A(4), A(4, 2)),
        sample(A(2, 3, 4), A(4, 2)),
        sample(A(1, 3, 4), A(5, 4, 2)),
        sample(A(2, 1, 3, 4), A(5, 4, 2), peer=False),  # PyTorch copies what it broadcasts, which the peer's tests would see
        sample(A(4), A(2, 4, 3)),
        sample(A(2, 3, 4), A(4)),
        sample(A(2, 3), A(2, 3, 1)),
        sample(A(2, 0), A(0, 3)),
        sample(I(2, 3), I(3, 2)),
    ],
    op=MATMUL,
    checked=True,
)
def matmul(input: Tensor, other: Tensor, *, out: Any = None) -> Tensor:
    """The matrix product; vectors are rows on the left and columns on the right, and leading dims are batches."""
    if not (isinstance(input, Tensor) and isinstance(other, Tensor)):
        check_tensors("matmul", input=input, other=other)
    a, b = input.tj_array, other.tj_array
    if a.ndim == 0 or b.ndim == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D")
    if a.ndim == 1 == b.ndim:
        return dot(*cast_matmul_operands(input, other), out=out)
    if a.dtype != b.dtype or a.dtype.kind == "b":
        input, other = cast_matmul_operands(input, other)
        check_dtypes(input, other)
    if b.ndim > 2:
        check_batches(input if a.ndim > 1 else input.unsqueeze(0), other)
    elif a.shape[-1] != b.shape[0]:
        check_inner(input, other)
    if a.ndim == 1:
        value = matmul(input.unsqueeze(0), other).squeeze(-2)
    elif b.ndim == 1:
        value = matmul(input, other.unsqueeze(-1)).squeeze(-1)
    else:
        return apply(MATMUL, (input, other)) if out is None else put(MATMUL, (input, other), {}, out)  # type: ignore[no-any-return]
    return value if out is None else put(STORE, (value,), {"called": "matmul"}, out)  # type: ignore[no-any-return]


@public(samples=[sample(A(3, 4), A(4, 2)), sample(A(0, 4), A(4, 2)), sample(I(2, 3), I(3, 2))])
def mm(input: Tensor, mat2: Tensor, *, out: Any = None) -> Tensor:
    """The product of two matrices."""
    check_tensors("mm", input=input, mat2=mat2)
    if input.tj_array.ndim != 2:
        raise RuntimeError(f"self must be a matrix, but mm() got a tensor of shape {list(input.shape)}")
    if mat2.tj_array.ndim != 2:
        raise RuntimeError(f"mat2 must be a matrix, but mm() got a tensor of shape {list(mat2.shape)}")
    return matmul(input, mat2, out=out)


@public(samples=[sample(A(2, 3, 4), A(2, 4, 2)), sample(A(2, 3, 0), A(2, 0, 2))])
def bmm(input: Tensor, mat2: Tensor, *, out: Any = None) -> Tensor:
    """The products of two batches of matrices."""
    check_tensors("bmm", input=input, mat2=mat2)
    check_pair_of_batches(input, mat2)
    return matmul(input, mat2, out=out)


def check_pair_of_batches(batch1: Tensor, batch2: Tensor) -> None:
    for name, x in (("batch1", batch1), ("batch2", batch2)):
        if x.tj_array.ndim != 3:
            raise RuntimeError(f"{name} must be a 3D tensor, but its shape is {list(x.shape)}")
    check_dtypes(batch1, batch2)
    (count, _, inner), found = batch1.tj_array.shape, list(batch2.tj_array.shape[:2])
    if found != [count, inner]:
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{count}, {inner}] but got: {found}."
        )


@public(samples=[sample(A(3, 4), A(4)), sample(I(3, 2), I(2))])
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix times a vector."""
    check_tensors("mv", input=input, vec=vec)
    if input.tj_array.ndim != 2 or vec.tj_array.ndim != 1:
        raise RuntimeError(
            f"vector + matrix @ vector expected, got {vec.tj_array.ndim}, {input.tj_array.ndim}, {vec.tj_array.ndim} dimensions"
        )
    return matmul(input, vec)


DOT = primitive(
    "dot",
    "composite",
    lambda xp, a, b: xp.dot(a, b),
    grad={"a": lambda g, b: g * b, "b": lambda g, a: g * a},
    expand=lambda a, b: cast((a * b).sum(), a.dtype),
)


@public(samples=[sample(A(4), A(4)), sample(A(0), A(0)), sample(I(4), I(4))], op=DOT)
def dot(input: Tensor, tensor: Tensor, *, out: Any = None) -> Tensor:
    """The sum of the products of two vectors' elements."""
    check_tensors("dot", input=input, tensor=tensor)
    left, right = input.tj_array.shape, tensor.tj_array.shape
    if len(left) != 1 or len(right) != 1:
        raise RuntimeError(f"1D tensors expected, but got {len(left)}D and {len(right)}D tensors")
    if input.tj_array.dtype != tensor.tj_array.dtype:
        raise RuntimeError(
            f"dot : expected both vectors to have same dtype, but found {input.dtype.legacy} and {tensor.dtype.legacy}"
        )
    if input.tj_array.dtype.kind == "b":
        raise NotImplementedError("\"dot\" not implemented for 'Bool'; convert to an integer or float dtype first")
    if left != right:
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor {list(left)} and src {list(right)} to have the same number of "
            f"elements, but got {left[0]} and {right[0]} elements respectively"
        )
    return put(DOT, (input, tensor), {}, out)


@public(samples=[sample(A(4), A(4))])
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """`dot`; for complex numbers, which there are none of here, it would conjugate the first."""
    return dot(input, other)


@public(samples=[sample(A(3), A(2)), sample(A(3), I(2))])
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Every element of one vector times every element of another."""
    check_tensors("outer", input=input, vec2=vec2)
    for name, x in (("self", input), ("vec2", vec2)):
        if x.tj_array.ndim != 1:
            raise RuntimeError(f"outer: Expected 1-D argument {name}, but got {x.tj_array.ndim}-D")
    return input.unsqueeze(1) * vec2  # type: ignore[no-any-return]


@public(samples=[sample(A(3), A(2))])
def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """The old name of `outer`."""
    return outer(input, vec2)


# ---- products that are added to something


def scale_in_dtype(x: Tensor, factor: Any) -> Tensor:
    """factor * x in x's own dtype."""
    if factor == 1:
        return x
    return x * (factor if x.dtype.is_floating_point else int(factor))


def add_scaled(input: Tensor, value: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * input + alpha * value, in the shape of the value. With beta 0, NaN in the input does not matter."""
    expanded = input.expand(value.tj_array.shape)  # for its error; the sum broadcasts
    if beta == 0:
        return scale_in_dtype(value, alpha)
    return scale_in_dtype(input if expanded.tj_array.size else expanded, beta) + scale_in_dtype(value, alpha)


def same_dtype_as_input(input: Tensor, mat2: Tensor) -> None:
    if input.tj_array.dtype != mat2.tj_array.dtype:
        raise RuntimeError(
            f"self and mat2 must have the same dtype, but got {input.dtype.legacy} and {mat2.dtype.legacy}; "
            "convert one with .to(dtype)"
        )


@public(
    samples=[
        sample(A(3, 2), A(3, 4), A(4, 2)),
        sample(A(2), A(3, 4), A(4, 2), beta=0.5, alpha=2.0),
        sample(A(3, 1), A(3, 4), A(4, 2), beta=0, alpha=3),
        sample(I(2), I(3, 4), I(4, 2), beta=2, alpha=3),
    ],
    inplace=True,
)
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2."""
    check_tensors("addmm", input=input, mat1=mat1, mat2=mat2)
    for name, x in (("mat1", mat1), ("mat2", mat2)):
        if x.tj_array.ndim != 2:
            raise RuntimeError(f"{name} must be a matrix, got {x.tj_array.ndim}-D tensor")
    same_dtype_as_input(input, mat2)
    return add_scaled(input, matmul(mat1, mat2), beta, alpha)


@public(
    samples=[sample(A(3), A(3, 4), A(4)), sample(A(), A(3, 4), A(4), beta=0.5, alpha=2.0), sample(A(3), A(3, 4), A(4), beta=0)],
    inplace=True,
)
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat @ vec."""
    check_tensors("addmv", input=input, mat=mat, vec=vec)
    dims = [x.tj_array.ndim for x in (input, mat, vec)]
    if dims[0] > 1 or dims[1:] != [2, 1]:
        raise RuntimeError("vector + matrix @ vector expected, got {}, {}, {}".format(*dims))
    if len({x.tj_array.dtype for x in (input, mat, vec)}) != 1:
        kinds = [x.dtype.legacy for x in (input, mat, vec)]
        raise RuntimeError("addmv input tensors must have the same dtype, but got {}, {}, and {}".format(*kinds))
    (rows, columns), length = mat.tj_array.shape, vec.tj_array.shape[0]
    if columns != length or input.tj_array.size not in (1, rows):
        raise RuntimeError(f"size mismatch, got input ({input.tj_array.size}), mat ({rows}x{columns}), vec ({length})")
    return add_scaled(input, mv(mat, vec), beta, alpha)


@public(
    samples=[
        sample(A(3, 2), A(3), A(2)),
        sample(A(2), A(3), A(2), beta=0.5, alpha=2.0),
        sample(A(3, 2), A(3), A(2), beta=0),
        sample(I(3, 2), A(3), I(2), peer=False),
    ],
    inplace=True,
)
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2)."""
    check_tensors("addr", input=input, vec1=vec1, vec2=vec2)
    for name, x in (("vec1", vec1), ("vec2", vec2)):
        if x.tj_array.ndim != 1:
            raise RuntimeError(f"addr: Expected 1-D argument {name}, but got {x.tj_array.ndim}-D")
    floating = any(x.dtype.is_floating_point for x in (input, vec1, vec2))
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if isinstance(factor, float) and not floating:
            raise RuntimeError(f"For integral input tensors, argument {name} must not be a floating point number.")
    input, vec1, vec2 = promote_operands("addr", input, vec1, vec2)
    return add_scaled(input, outer(vec1, vec2), beta, alpha)


@public(
    samples=[
        sample(A(2, 3, 5), A(2, 3, 4), A(2, 4, 5)),
        sample(A(5), A(2, 3, 4), A(2, 4, 5), beta=0.5, alpha=2.0),
        sample(A(3, 1), A(2, 3, 4), A(2, 4, 5), beta=0),
    ],
    inplace=True,
)
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * batch1 @ batch2, for batches of matrices."""
    check_tensors("baddbmm", input=input, batch1=batch1, batch2=batch2)
    check_pair_of_batches(batch1, batch2)
    if input.tj_array.dtype != batch1.tj_array.dtype:
        raise RuntimeError(
            f"Input dtypes must be the same, got: input {input.dtype.name}, batch1: {batch1.dtype.name}, "
            f"batch2: {batch2.dtype.name}"
        )
    return add_scaled(input, matmul(batch1, batch2), beta, alpha)


@public(
    samples=[
        sample(A(3, 5), A(2, 3, 4), A(2, 4, 5)),
        sample(A(5), A(2, 3, 4), A(2, 4, 5), beta=0.5, alpha=2.0),
        sample(A(5), A(0, 3, 4), A(0, 4, 5), beta=0.5),
    ],
    inplace=True,
)
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the sum of the products of two batches of matrices."""
    check_tensors("addbmm", input=input, batch1=batch1, batch2=batch2)
    check_pair_of_batches(batch1, batch2)
    same_dtype_as_input(input, batch2)
    count, rows, inner = batch1.tj_array.shape
    left = batch1.permute(1, 0, 2).reshape(rows, count * inner)  # summing over the batch is summing over a longer row
    return add_scaled(input, matmul(left, batch2.reshape(count * inner, batch2.tj_array.shape[2])), beta, alpha)


# ---- layers


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(4, 3), A(4)),
        sample(A(2, 3), A(4, 3)),
        sample(A(2, 2, 3), A(4, 3), A(4)),
        sample(A(3), A(4, 3), A(4)),
        sample(A(3), A(4, 3)),
        sample(A(2, 3), A(3)),
        sample(A(2, 2, 3), A(4, 3), A(2, 4)),
        sample(A(0, 3), A(4, 3), A(4)),
    ],
    op=LINEAR,
    checked=True,
)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias, the layer that all networks are made of."""
    if isinstance(input, Tensor) and isinstance(weight, Tensor):  # what fits goes straight to the kernel
        x, w = input.tj_array, weight.tj_array
        if w.ndim == 2 and x.ndim and x.shape[-1] == w.shape[1] and x.dtype == w.dtype and x.dtype.kind != "b":
            if bias is None:
                return apply(PROJECT, (input, weight))  # type: ignore[no-any-return]
            if isinstance(bias, Tensor) and bias.tj_array.shape == w.shape[:1] and bias.tj_array.dtype == w.dtype:
                return apply(LINEAR, (input, weight, bias))  # type: ignore[no-any-return]
    return general_linear(input, weight, bias)


def general_linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Linear with a vector as weight or a bias that broadcasts, as PyTorch allows; anything else is an error."""
    check_tensors("linear", input=input, weight=weight)
    input, weight, bias = cast_matmul_operands(input, weight, bias)
    left, right = input.tj_array.shape, weight.tj_array.shape
    if not left or not right:
        raise RuntimeError(f"both arguments to linear need to be at least 1D, but they are {len(left)}D and {len(right)}D")
    if len(right) > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {len(right)}D: linear's weight is a matrix, not of shape "
            f"{list(right)}"
        )
    if len(right) == 1:
        if bias is not None:
            raise RuntimeError("mat2 must be a matrix, got 1-D tensor: linear with a bias needs a weight of two dims")
        return matmul(input, weight)
    check_dtypes(input, weight)
    if left[-1] != right[1]:
        rows = math.prod(left[:-1])
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{left[-1]} and {right[1]}x{right[0]}): the input's last dim "
            f"is {left[-1]} but the weight has {right[1]} input features"
        )
    if bias is None:  # of one dtype now
        return apply(PROJECT, (input, weight))  # type: ignore[no-any-return]
    check_tensors("linear", bias=bias)
    same_dtype_as_input(bias, weight)
    return add_scaled(bias, apply(PROJECT, (input, weight)), 1, 1)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), A(2, 4), A(5, 3, 4), A(5)),
        sample(A(2, 2, 3), A(2, 2, 4), A(5, 3, 4)),
        sample(A(3), A(4), A(5, 3, 4)),
    ],
)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input1 @ weight[k] @ input2 + bias[k] for every k."""
    check_tensors("bilinear", input1=input1, input2=input2, weight=weight)
    if weight.tj_array.ndim != 3:
        raise RuntimeError(f"bilinear(): expected a weight of 3 dimensions (out, in1, in2), got shape {list(weight.shape)}")
    first, second, (outputs, m, n) = input1.tj_array.shape, input2.tj_array.shape, weight.tj_array.shape
    if len(first) != len(second):
        raise RuntimeError(f"bilinear(): input dimensions do not match: got {len(first)} and {len(second)}")
    for i, (a, b) in enumerate(zip(first[:-1], second[:-1], strict=True)):
        if a != b:
            raise RuntimeError(f"bilinear(): input batch dimensions do not match at dim {i}: got {a} and {b}")
    for name, have, want in (("input1", first[-1], m), ("input2", second[-1], n)):
        if have != want:
            raise RuntimeError(f"bilinear(): {name} size does not match weight size: got {have} but expected {want}")
    if bias is not None and bias.tj_array.shape != (outputs,):
        raise RuntimeError(f"bilinear(): bias size does not match weight size: got {list(bias.shape)} but expected {outputs}")
    rows = math.prod(first[:-1])
    partial = matmul(input1.reshape(rows, m), weight.permute(1, 0, 2).reshape(m, outputs * n))
    value = matmul(partial.reshape(rows, outputs, n), input2.reshape(rows, n, 1)).reshape(*first[:-1], outputs)
    return value if bias is None else value + bias  # type: ignore[no-any-return]


# ---- chains


@public(
    "linalg",
    samples=[sample([A(2, 3), A(3, 4), A(4, 2)]), sample([A(3), A(3, 2), A(2)]), sample([A(2, 3), A(3)])],
)
def multi_dot(tensors: Any) -> Tensor:
    """The product of several matrices in the order that multiplies least; the first and last may be vectors."""
    parts = list(tensors)
    check_chain(parts)
    first, last = parts[0].tj_array.ndim == 1, parts[-1].tj_array.ndim == 1
    if first:
        parts[0] = parts[0].unsqueeze(0)
    if last:
        parts[-1] = parts[-1].unsqueeze(-1)
    value = matmul_chain(parts)
    shape = value.tj_array.shape
    return value.reshape(shape[first : 2 - last]) if first or last else value  # type: ignore[no-any-return]


def check_chain(parts: list[Any]) -> None:
    if len(parts) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(parts)}")
    check_tensors("multi_dot", **{f"tensor {i}": p for i, p in enumerate(parts)})
    for i, p in enumerate(parts):
        n, end = p.tj_array.ndim, i in (0, len(parts) - 1)
        if end and n not in (1, 2):
            raise RuntimeError(f"multi_dot(): the {'last' if i else 'first'} tensor must be 1D or 2D but got {n}D")
        if not end and n != 2:
            raise RuntimeError(f"multi_dot(): tensor {i} must be 2D but got {n}D")
        if p.tj_array.dtype != parts[0].tj_array.dtype:
            raise RuntimeError(
                f"multi_dot(): all tensors must have be the same dtype but tensor 0 is {parts[0].dtype.name} and "
                f"tensor {i} {p.dtype.name}"
            )
    for i, (a, b) in enumerate(itertools.pairwise(parts)):
        if a.tj_array.shape[-1] != b.tj_array.shape[0]:
            raise RuntimeError(
                f"multi_dot(): tensors {i} and {i + 1} with shapes {list(a.shape)} and {list(b.shape)} cannot be multiplied"
            )


def matmul_chain(parts: list[Tensor]) -> Tensor:
    """A product of matrices, cut where that costs least (the textbook's dynamic programme)."""
    sizes = [p.tj_array.shape[0] for p in parts] + [parts[-1].tj_array.shape[1]]
    count = len(parts)
    cost: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j] = min(
                (cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def between(i: int, j: int) -> Tensor:
        if i == j:
            return parts[i]
        cut = cost[i, j][1]
        return matmul(between(i, cut), between(cut + 1, j))

    return between(0, count - 1)


@public(samples=[sample(A(2, 3), A(3, 4), A(4, 2)), sample(A(2, 3))], method=False)
def chain_matmul(*matrices: Any) -> Tensor:
    """The product of several matrices in the order that multiplies least; `linalg.multi_dot` is its newer name."""
    check_tensors("chain_matmul", **{f"tensor {i}": m for i, m in enumerate(matrices)})
    for m in matrices:
        if m.tj_array.ndim != 2:
            raise RuntimeError(f"chain_matmul(): expected matrices, but got a tensor of shape {list(m.shape)}")
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


# ---- diagonals and products of elements


@public(samples=[sample(A(3, 3)), sample(A(2, 4)), sample(I(3, 2))])
def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    check_tensors("trace", input=input)
    if input.tj_array.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.tj_array.ndim}")
    if input.dtype is dtypes.bool_:
        raise NotImplementedError("\"trace\" not implemented for 'Bool'; convert to an integer or float dtype first")
    return input.diagonal().sum()  # type: ignore[no-any-return]


# PyTorch does not notice when an operand is overwritten before its gradient is computed from it.
@public(
    samples=[
        sample(A(2, 3), A(2, 2), peer=False),
        sample(A(2, 3), A(2), peer=False),
        sample(A(), A(3), peer=False),
        sample(A(2), A(2, 1, 3), peer=False),
    ]
)
def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: a copy of `other` for every element of `input`, multiplied by it."""
    check_tensors("kron", input=input, other=other)
    ndim = max(input.tj_array.ndim, other.tj_array.ndim)
    a = (1,) * (ndim - input.tj_array.ndim) + input.tj_array.shape
    b = (1,) * (ndim - other.tj_array.ndim) + other.tj_array.shape
    left = input.reshape([n for size in a for n in (size, 1)])
    right = other.reshape([n for size in b for n in (1, size)])
    return (left * right).reshape([n * m for n, m in zip(a, b, strict=True)])  # type: ignore[no-any-return]


def cross_gradient(a: Tensor, b: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    return sum_to(apply(CROSS, (a, b), {"dim": dim}), shape)


def expand_cross(a: Tensor, b: Tensor, *, dim: int) -> Tensor:
    (a0, a1, a2), (b0, b1, b2) = a.unbind(dim), b.unbind(dim)
    return stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dim)


def run_cross(xp: Any, a: Any, b: Any, *, dim: int) -> Any:
    places = [(slice(None),) * dim + (i,) for i in range(3)]
    (a0, a1, a2), (b0, b1, b2) = ([x[place] for place in places] for x in (a, b))
    return xp.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=dim)


CROSS = primitive(
    "cross",
    "composite",
    run_cross,
    grad={
        "a": lambda g, b, a_shape, dim: cross_gradient(b, g, a_shape, dim),
        "b": lambda g, a, b_shape, dim: cross_gradient(g, a, b_shape, dim),
    },
    expand=expand_cross,
)


@public(samples=[sample(A(2, 3), A(2, 3), dim=1), sample(A(3, 2), A(3, 2), dim=-2), sample(A(2, 3), A(1, 3), dim=1)], op=CROSS)
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product along a dim of length 3: by default the first one."""
    check_tensors("cross", input=input, other=other)
    if dim is None:
        dim = next((i for i, n in enumerate(input.tj_array.shape) if n == 3), None)
        if dim is None:
            raise RuntimeError(f"no dimension of size 3 in input of shape {list(input.shape)}")
    return vector_product(input, other, dim=dim)


@public("linalg", name="cross", samples=[sample(A(2, 3), A(2, 3)), sample(A(3, 1), A(3, 2), dim=0)])
def vector_product(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector product along a dim of length 3."""
    check_tensors("linalg.cross", input=input, other=other)
    left, right = input.tj_array.shape, other.tj_array.shape
    if len(left) != len(right):
        raise RuntimeError(f"linalg.cross: inputs must have the same number of dimensions. Got {list(left)} and {list(right)}")
    place = wrap_dim(dim, len(left))
    if left[place] != 3 or right[place] != 3:
        raise RuntimeError(f"linalg.cross: inputs dimension {dim} must have length 3. Got {left[place]} and {right[place]}")
    if input.tj_array.dtype != other.tj_array.dtype:
        raise RuntimeError(f"expected scalar type {input.dtype.legacy} but found {other.dtype.legacy}")
    clash = broadcast_error([left, right])
    if clash is not None:
        raise RuntimeError(f"linalg.cross: {clash}")
    return apply(CROSS, (input, other), {"dim": place})  # type: ignore[no-any-return]
