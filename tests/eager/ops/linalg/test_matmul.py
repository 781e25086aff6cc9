"""Matmuls beyond their samples: errors, dtypes, memory, `linear`'s gradients, and einsum's many spellings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.tolerances import assert_matmul
from tapejit.nn import functional as F

random = np.random.default_rng(0)


def draw(*shape: int, grad: bool = False, dtype: Any = tj.float64) -> tj.Tensor:
    return tj.tensor(random.uniform(-1, 1, shape), dtype=dtype, requires_grad=grad)


# ---- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: tj.matmul(z(2, 3), z(4, 5)), r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 4x5\)"),
        (lambda z: z(2, 2, 3) @ z(4, 5), r"mat1 and mat2 shapes cannot be multiplied \(4x3 and 4x5\)"),
        (lambda z: z(3) @ z(4, 5), r"mat1 and mat2 shapes cannot be multiplied \(1x3 and 4x5\)"),
        (lambda z: z(2, 3) @ z(4), r"size mismatch, got input \(2\), mat \(2x3\), vec \(4\)"),
        (lambda z: z(3) @ z(4), r"inconsistent tensor size, expected tensor \[3\] and src \[4\]"),
        (lambda z: z(2, 2, 3) @ z(3, 3, 5), r"The size of tensor a \(2\) must match the size of tensor b \(3\)"),
        (lambda z: z(2, 2, 3) @ z(2, 4, 5), r"dimensions of batch2 tensor to be: \[2, 3\] but got: \[2, 4\]"),
        (lambda z: z() @ z(4), "both arguments to matmul need to be at least 1D, but they are 0D and 1D"),
        (lambda z: z(2, 3) @ z(3, 2).double(), "expected m1 and m2 to have the same dtype"),
        (lambda z: tj.mm(z(2, 3, 3), z(3, 3)), "self must be a matrix"),
        (lambda z: tj.mm(z(3, 3), z(3)), "mat2 must be a matrix"),
        (lambda z: tj.bmm(z(2, 3), z(3, 3)), "batch1 must be a 3D tensor"),
        (lambda z: tj.bmm(z(2, 3, 4), z(3, 4, 3)), r"\[2, 4\] but got: \[3, 4\]"),
        (lambda z: tj.mv(z(2, 3), z(3, 1)), "vector . matrix @ vector expected"),
        (lambda z: tj.dot(z(2, 3), z(4)), "1D tensors expected, but got 2D and 1D tensors"),
        (lambda z: tj.dot(z(2), z(2).double()), "same dtype, but found Float and Double"),
        (lambda z: tj.outer(z(2, 3), z(3)), "outer: Expected 1-D argument self, but got 2-D"),
        (lambda z: tj.addmm(z(2), z(2, 3), z(3, 5)), r"expanded size of the tensor \(5\) must match the existing size \(2\)"),
        (lambda z: tj.addmm(z(5).long(), z(2, 3), z(3, 5)), "self and mat2 must have the same dtype, but got Long and Float"),
        (lambda z: tj.addmv(z(3), z(2, 3), z(3)), r"size mismatch, got input \(3\), mat \(2x3\), vec \(3\)"),
        (lambda z: tj.addr(z(2, 3), z(2, 1), z(3)), "addr: Expected 1-D argument vec1, but got 2-D"),
        (lambda z: tj.addr(z(2, 3).long(), z(2).long(), z(3).long(), beta=0.5), "argument beta must not be a floating"),
        (lambda z: tj.baddbmm(z(4).double(), z(2, 3, 5), z(2, 5, 4)), "Input dtypes must be the same"),
        (lambda z: F.linear(z(2, 3), z(5, 4)), r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 4x5\)"),
        (lambda z: F.linear(z(2, 3), z(5, 3), z(4)), r"expanded size of the tensor \(5\) must match the existing size \(4\)"),
        (lambda z: F.linear(z(2, 3), z(2, 4, 3)), r"t\(\) expects a tensor with <= 2 dimensions, but self is 3D"),
        (lambda z: F.linear(z(), z(4, 3)), "both arguments to linear need to be at least 1D"),
        (lambda z: F.linear(z(2, 3), z(5, 3), z(5).double()), "must have the same dtype, but got Double and Float"),
        (lambda z: F.linear(z(2, 3), z(3), z(1)), "mat2 must be a matrix, got 1-D tensor"),
        (lambda z: F.bilinear(z(2, 3), z(2, 4), z(5, 4, 4)), "input1 size does not match weight size: got 3 but expected 4"),
        (lambda z: F.bilinear(z(2, 3), z(3, 4), z(5, 3, 4)), "batch dimensions do not match at dim 0: got 2 and 3"),
        (lambda z: tj.linalg.multi_dot([z(2, 3)]), "expected at least 2 tensors but got 1"),
        (lambda z: tj.linalg.multi_dot([z(2, 3), z(4, 4)]), r"tensors 0 and 1 with shapes \[2, 3\] and \[4, 4\] cannot be"),
        (lambda z: tj.linalg.multi_dot([z(2, 3), z(3), z(3, 3)]), "tensor 1 must be 2D but got 1D"),
        (lambda z: tj.trace(z(2, 2, 2)), "trace: expected a matrix, but got tensor with dim 3"),
        (lambda z: tj.cross(z(2, 4), z(2, 4)), "no dimension of size 3 in input"),
        (lambda z: tj.linalg.cross(z(2, 3), z(3)), "inputs must have the same number of dimensions"),
        (lambda z: tj.linalg.cross(z(2, 4), z(2, 4)), "inputs dimension -1 must have length 3. Got 4 and 4"),
        (lambda z: tj.tensordot(z(2, 3), z(4, 2), 1), "contracted dimensions need to match"),
        (lambda z: tj.tensordot(z(2, 3), z(3, 2), ([1], [0, 1])), "both dimension lists should have same length"),
        (lambda z: tj.tensordot(z(2, 3), z(3, 2), -1), "tensordot expects dims >= 0, but got dims=-1"),
        (lambda z: tj.tensordot(z(2, 2), z(2, 2), ([0, 0], [0, 1])), "dim 0 appears multiple times"),
        (lambda z: tj.inner(z(2, 3), z(4, 5)), r"the last dimension must match .* \[2, 3\] and \[4, 5\]"),
        (lambda z: tj.einsum("ij,jk", z(2, 3), z(4, 4)), "subscript j has size 4 for operand 1 which does not broadcast"),
        (lambda z: tj.einsum("ij,jk", z(2, 3)), "fewer operands were provided than specified"),
        (lambda z: tj.einsum("ij", z(2, 3), z(2, 3)), "more operands were provided than specified"),
        (lambda z: tj.einsum("ijk", z(2, 3)), r"subscripts in the equation \(3\) does not match .* dimensions \(2\)"),
        (lambda z: tj.einsum("ij->k", z(2, 3)), "output subscript k does not appear in the equation"),
        (lambda z: tj.einsum("ij->ii", z(2, 3)), "output subscript i appears more than once in the output"),
        (lambda z: tj.einsum("ii->i", z(2, 3)), "subscript i is repeated for operand 0 but the sizes don't match, 3 != 2"),
        (lambda z: tj.einsum("i.j", z(2, 3)), "found '.' for operand 0 that is not part of any ellipsis"),
        (lambda z: tj.einsum("i......", z(2, 3)), "for which an ellipsis was already found"),
        (lambda z: tj.einsum("i1", z(2, 3)), "invalid subscript given at index 1"),
        (lambda z: tj.einsum("i->i->i", z(2)), "invalid subscript given at index 4"),
        (lambda z: tj.einsum("...j,...j", z(2, 3), z(4, 3)), "dimension 0 covered by ellipsis in operand 1 has size 4"),
    ],
)
def test_shapes_and_dtypes_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(lambda *shape: tj.zeros(shape))


def test_bools_have_no_matmuls() -> None:
    b = tj.ones(2, 2, dtype=tj.bool)
    for call in (lambda: b @ b, lambda: b[0] @ b[0], lambda: tj.trace(b)):
        with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
            call()


def test_operands_must_be_tensors() -> None:
    with pytest.raises(TypeError, match=r"matmul\(\): argument 'other' must be Tensor, not list"):
        tj.matmul(tj.ones(2, 2), [1, 2])
    with pytest.raises(TypeError, match=r"linear\(\): argument 'weight' must be Tensor"):
        F.linear(tj.ones(2, 2), None)
    with pytest.raises(ValueError, match="must specify the equation string"):
        tj.einsum("ij")
    with pytest.raises(ValueError, match=r"not within the valid range \[0, 52\)"):
        tj.einsum(tj.ones(2), [60])


# ---- dtypes and special values


@pytest.mark.parametrize("dtype", [tj.uint8, tj.int8, tj.int16, tj.int32, tj.int64])
def test_integers_stay_what_they_are(dtype: Any) -> None:
    a, b = tj.tensor([[1, 2], [3, 4]], dtype=dtype), tj.tensor([1, 2], dtype=dtype)
    assert (a @ a).dtype is dtype and (a @ a).tolist() == [[7, 10], [15, 22]]
    assert (b @ b).dtype is dtype and tj.mv(a, b).tolist() == [5, 11]
    assert tj.addmm(b, a, a, beta=2, alpha=3).tolist() == [[23, 34], [47, 70]]
    assert tj.einsum("ij,jk->ik", a, a).dtype is dtype
    assert tj.einsum("ij->", a).dtype is tj.trace(a).dtype is tj.int64
    assert tj.einsum("ijk,kl->il", tj.stack([a, a]), a).tolist() == [[22, 32], [22, 32]]


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16])
def test_half_precision_rounds_once(dtype: Any) -> None:
    a, b = draw(20, 300, dtype=dtype), draw(300, 20, dtype=dtype)
    assert (a @ b).dtype is F.linear(a, b.T.contiguous()).dtype is dtype
    assert_matmul(a @ b, a, b)
    assert_matmul(F.linear(a, b.T.contiguous()), a, b)


def test_beta_zero_ignores_the_input() -> None:
    bad = tj.full((2, 2), tj.nan)
    assert tj.addmm(bad, tj.ones(2, 3), tj.ones(3, 2), beta=0).tolist() == [[3, 3], [3, 3]]
    assert tj.addmv(bad[0], tj.ones(2, 3), tj.ones(3), beta=0).tolist() == [3, 3]
    assert tj.addr(bad, tj.ones(2), tj.ones(2), beta=0).tolist() == [[1, 1], [1, 1]]


def test_empty_sums_are_zero() -> None:
    assert (tj.ones(2, 0) @ tj.ones(0, 3)).tolist() == [[0] * 3] * 2
    assert (tj.ones(2, 3, 0) @ tj.ones(0, 4)).shape == (2, 3, 4)
    assert F.linear(tj.ones(2, 0), tj.ones(3, 0), tj.ones(3)).tolist() == [[1] * 3] * 2
    assert tj.einsum("ij,jk->ik", tj.ones(2, 0), tj.ones(0, 3)).tolist() == [[0] * 3] * 2
    x, w = tj.ones(0, 3, requires_grad=True), tj.ones(2, 3, requires_grad=True)
    F.linear(x, w).sum().backward()
    assert w.grad.tolist() == [[0] * 3] * 2 and x.grad.shape == (0, 3)


def test_out() -> None:
    a, out = draw(3, 3), tj.zeros(3, 3, dtype=tj.float64)
    assert tj.mm(a, a, out=out) is out
    assert tj.equal(out, a @ a)
    vector = tj.zeros(3, dtype=tj.float64)
    tj.matmul(a, a[0], out=vector)
    assert tj.equal(vector, a @ a[0])


# ---- linear and its gradients


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3), (2, 1, 5, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_a_matmul_and_a_sum(shape: tuple[int, ...], bias: bool) -> None:
    x, w, b = draw(*shape, grad=True), draw(4, 3, grad=True), draw(4, grad=True)
    inputs = (x, w, b) if bias else (x, w)
    weights = draw(*shape[:-1], 4)
    found = tj.autograd.grad((F.linear(*inputs) * weights).sum(), inputs)
    plain = x @ w.T + b if bias else x @ w.T
    for a, expected in zip(found, tj.autograd.grad((plain * weights).sum(), inputs), strict=True):
        assert tj.allclose(a, expected)
    assert tj.autograd.gradgradcheck(F.linear, inputs)


def test_weight_gradients_are_new_memory_in_order() -> None:
    x, w, b = draw(2, 5, 3), draw(4, 3, grad=True), draw(4, grad=True)
    F.linear(x, w, b).sum().backward()
    first = w.grad
    for t in (w, b):
        assert t.grad.is_contiguous() and t.grad.tj_array.flags.owndata and not t.grad._is_view()
    F.linear(x, w, b).sum().backward()
    assert w.grad is first
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.broadcast_to(x.numpy().sum((0, 1)), (4, 3)))


def test_only_what_a_gradient_needs_is_kept() -> None:
    x, w = draw(5, 3), draw(4, 3, grad=True)
    y = F.linear(x, w)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    x, w = draw(5, 3, grad=True), draw(4, 3)
    y = F.linear(x, w)
    x.detach().mul_(2)  # the gradient of x needs w alone
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(w.numpy().sum(0), (5, 3)))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 2)),
        ((2, 3, 4), (4, 2)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 3, 4), (6, 4, 2)),
        ((4,), (2, 4, 3)),
    ],
)
def test_matmuls_of_views(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Transposed, stepped and expanded operands give what copies of them give, gradients included."""
    ways = (
        lambda s: draw(*s),
        lambda s: draw(*s[::-1]).permute(*reversed(range(len(s)))),
        lambda s: draw(*s[:-1], 2 * s[-1])[..., ::2],
        lambda s: draw(*s[:-1], 1).expand(s),
    )
    for left, right in itertools.product(ways, ways):
        x, y = left(a), right(b)
        copies = [t.clone().requires_grad_() for t in (x, y)]
        views = [t.detach().requires_grad_() for t in (x, y)]
        found, expected = tj.matmul(*views), tj.matmul(*copies)
        np.testing.assert_allclose(found.detach().numpy(), np.matmul(x.numpy(), y.numpy()), atol=1e-12)
        for g, e in zip(tj.autograd.grad(found.sum(), views), tj.autograd.grad(expected.sum(), copies), strict=True):
            assert tj.allclose(g, e)


def test_in_place_matmuls() -> None:
    x, a, b = draw(2, 2), draw(2, 3), draw(3, 2)
    expected = tj.addmm(x, a, b, beta=2)
    assert x.addmm_(a, b, beta=2) is x
    assert tj.equal(x, expected)
    with pytest.raises(RuntimeError):
        tj.zeros(2, dtype=tj.float64).addmm_(a, b)


def test_multi_dot_takes_the_cheap_order() -> None:
    parts = [draw(2, 50), draw(50, 3), draw(3, 40), draw(40, 1)]
    sizes = []
    from tapejit.eager.core.dispatch import execute
    from tapejit.eager.core.tape.node import local

    def handler(op: Any, inputs: Any, attrs: Any, out: Any = None) -> Any:
        if op.name == "matmul":
            sizes.append(inputs[0].shape[0] * inputs[0].shape[1] * inputs[1].shape[1])
        return execute(op, inputs, attrs, out, local.state)

    local.state.handler = handler
    try:
        found = tj.linalg.multi_dot(parts)
    finally:
        local.state.handler = None
    assert sum(sizes) == 3 * 40 + 50 * 3 + 2 * 50
    np.testing.assert_allclose(found.numpy(), np.linalg.multi_dot([p.numpy() for p in parts]))


# ---- einsum


def equations(count: int) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Random equations with up to three operands, repeated subscripts among them."""
    choose, found = np.random.default_rng(5), []
    lengths = dict(zip("abcde", (2, 3, 1, 4, 2), strict=True))
    for _ in range(count):
        terms = ["".join(choose.choice(list(lengths), choose.integers(0, 4))) for _ in range(choose.integers(1, 4))]
        used = sorted(set("".join(terms)))
        output = "".join(choose.permutation([s for s in used if choose.random() < 0.5]))
        found.append((f"{','.join(terms)}->{output}", [tuple(lengths[s] for s in t) for t in terms]))
    return found


@pytest.mark.parametrize(("equation", "shapes"), equations(60))
def test_random_equations(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [draw(*s, grad=True) for s in shapes]
    found = tj.einsum(equation, *operands)
    np.testing.assert_allclose(
        found.detach().numpy(), np.einsum(equation, *[t.detach().numpy() for t in operands]), rtol=1e-10, atol=1e-12
    )
    grads = tj.autograd.grad(found.sum(), operands)
    terms = equation.split("->")[0].split(",")
    for i, g in enumerate(grads):  # linear in each operand: the sum of the gradient times the operand is the value
        assert g.shape == shapes[i], terms[i]
        np.testing.assert_allclose(float((g * operands[i]).sum()), float(found.sum()), rtol=1e-9, atol=1e-10)


def test_ways_to_write_an_equation() -> None:
    a, b = draw(2, 3), draw(3, 4)
    expected = a @ b
    for found in (
        tj.einsum(" i j , j k -> i k ", a, b),
        tj.einsum("ij,jk", [a, b]),
        tj.einsum("ij,jk", (a, b)),
        tj.einsum(a, [0, 1], b, [1, 2]),
        tj.einsum("...j,jk->...k", a, b),
    ):
        assert tj.allclose(found, expected)
    assert tj.equal(tj.einsum("aB", a), a.T)  # capitals come first
    assert tj.equal(tj.einsum("i...", a), a.T)  # an ellipsis comes first
    assert tj.allclose(tj.einsum("i...->i", a), a.sum(1))  # and may be summed
    assert tj.allclose(tj.einsum("i,->i", a[0], tj.tensor(2.0, dtype=tj.float64)), a[0] * 2)
    assert tj.equal(tj.einsum("->", tj.tensor(3)), tj.tensor(3))


def test_einsum_promotes_where_nothing_is_summed() -> None:
    assert tj.einsum("i,i->i", tj.ones(2), tj.ones(2, dtype=tj.float64)).dtype is tj.float64
    assert tj.einsum("i,i->i", tj.ones(2, dtype=tj.bool), tj.ones(2, dtype=tj.bool)).dtype is tj.bool


def test_attention_s_matmuls_copy_nothing() -> None:
    """Heads beside the positions they attend from: the operands go to matmul as views."""
    q, k = draw(2, 5, 3, 4, grad=True), draw(2, 6, 3, 4, grad=True)
    found = tj.einsum("bqhd,bkhd->bhqk", q, k)
    np.testing.assert_allclose(found.detach().numpy(), np.einsum("bqhd,bkhd->bhqk", q.detach().numpy(), k.detach().numpy()))
    assert found.grad_fn.name() == "MatmulBackward0"
    assert [f.name() for f, _ in found.grad_fn.next_functions] == ["PermuteBackward0"] * 2
    weights = draw(*found.shape)
    gq, gk = tj.autograd.grad((found * weights).sum(), (q, k))
    assert tj.allclose(gq, tj.einsum("bhqk,bkhd->bqhd", weights, k))
    assert tj.allclose(gk, tj.einsum("bhqk,bqhd->bkhd", weights, q))


def test_einsum_of_views_can_be_a_view() -> None:
    a = draw(3, 3)
    assert tj.einsum("ii->i", a)._is_view()
    tj.einsum("ij->ji", a).zero_()
    assert not a.any()


def test_operands_are_contracted_in_a_cheap_order() -> None:
    """Left to right the first matmul would have 10^8 elements."""
    a, b, c = tj.ones(10_000, 1), tj.ones(10_000, 1), tj.ones(10_000, 2)
    assert tj.einsum("ik,jk,jl->il", a, b, c).shape == (10_000, 2)
