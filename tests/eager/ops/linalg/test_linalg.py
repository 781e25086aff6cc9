"""Linear algebra beyond its samples: matrices with structure, matrices without an answer, gradients at corners, errors.

Samples are random matrices, so what needs positive-definite or symmetric ones is tested here, through functions that make
them. Singular and eigenvectors are tested through what does not depend on their signs.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import linalg
from tapejit.autograd import gradcheck, gradgradcheck
from tapejit.eager.core.dispatch import execute
from tapejit.eager.core.shape_inference import Spec, infer
from tapejit.eager.core.tape.node import local
from tapejit.nn import functional as F

random = np.random.default_rng(1)


def draw(*shape: int, grad: bool = True) -> tj.Tensor:
    return tj.tensor(random.uniform(-1, 1, shape), requires_grad=grad)


def positive(x: tj.Tensor) -> tj.Tensor:
    return x @ x.mT + tj.eye(x.shape[-1], dtype=x.dtype)


def symmetric(x: tj.Tensor) -> tj.Tensor:
    return x + x.mT


def check(function: Any, *inputs: Any) -> None:
    """First and second gradients against finite differences."""
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


# ---- factorisations give back the matrix, and have gradients


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (0, 0), (0, 3, 3)])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(shape: tuple[int, ...], upper: bool) -> None:
    x = draw(*shape)
    a = positive(x)
    factor = linalg.cholesky(a, upper=upper)
    assert tj.allclose(factor.mT @ factor if upper else factor @ factor.mT, a)
    assert tj.equal(factor, factor.triu() if upper else factor.tril())
    assert tj.equal(factor, tj.cholesky(a, upper))
    if x.numel():
        check(lambda x: linalg.cholesky(positive(x), upper=upper), x)


def test_cholesky_solves() -> None:
    x, b = draw(3, 3), draw(3, 2)
    a = positive(x).detach()
    factor = linalg.cholesky(a)
    assert tj.allclose(a @ tj.cholesky_solve(b, factor), b)
    assert tj.allclose(a @ tj.cholesky_inverse(factor), tj.eye(3, dtype=a.dtype))
    check(lambda x, b: tj.cholesky_solve(b, linalg.cholesky(positive(x))), x, b)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3), (3, 0), (0, 3)])
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr(shape: tuple[int, ...], mode: str) -> None:
    a = draw(*shape)
    q, r = linalg.qr(a, mode)
    assert tj.allclose(q @ r, a)
    assert tj.allclose(q.mT @ q, tj.eye(q.shape[-1], dtype=a.dtype).expand(*shape[:-2], -1, -1))
    if a.numel() and (mode == "reduced" or shape[-2] <= shape[-1]):
        check(lambda a: linalg.qr(a, mode)[0], a)
        check(lambda a: linalg.qr(a, mode)[1], a)


def test_qr_without_q() -> None:
    a = draw(4, 3)
    q, r = linalg.qr(a, mode="r")
    assert q.shape == (0,)
    assert tj.allclose(r, linalg.qr(a).R)
    with pytest.raises(RuntimeError, match="not differentiable when mode='complete' and nrows > ncols"):
        linalg.qr(a, mode="complete").R.sum().backward()


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3)])
def test_svd_gradients_that_do_not_depend_on_signs(shape: tuple[int, ...]) -> None:
    a = draw(*shape)
    u, s, vh = linalg.svd(a, full_matrices=False)
    assert tj.allclose(u * s.unsqueeze(-2) @ vh, a)

    def rebuilt(a: tj.Tensor) -> tj.Tensor:  # the best approximation by two vectors
        u, s, vh = linalg.svd(a)
        return u[..., :2] * s[..., None, :2] @ vh[..., :2, :]

    check(rebuilt, a)
    check(lambda a: linalg.svd(a, full_matrices=False)[0].square(), a)
    check(lambda a: linalg.svd(a, full_matrices=False)[2].square(), a)
    check(linalg.svdvals, a)


@pytest.mark.parametrize("uplo", ["L", "U"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4)])
def test_eigh(shape: tuple[int, ...], uplo: str) -> None:
    x = draw(*shape)
    a = symmetric(x)
    values, vectors = linalg.eigh(a, uplo)
    assert tj.allclose(vectors * values.unsqueeze(-2) @ vectors.mT, a)
    assert tj.allclose(linalg.eigvalsh(a, uplo), values)

    def exponential(x: tj.Tensor) -> tj.Tensor:
        values, vectors = linalg.eigh(symmetric(x), uplo)
        return vectors * values.exp().unsqueeze(-2) @ vectors.mT

    assert tj.allclose(exponential(x), linalg.matrix_exp(a))
    check(exponential, x)
    check(lambda x: linalg.eigh(symmetric(x), uplo)[1].square(), x)
    check(lambda x: linalg.eigvalsh(symmetric(x), uplo), x)


def test_only_one_triangle_is_read() -> None:
    a = draw(3, 3, grad=False)
    lower, upper = a.tril() + a.tril(-1).mT, a.triu() + a.triu(1).mT
    assert tj.allclose(linalg.eigvalsh(a), linalg.eigvalsh(lower))
    assert tj.allclose(linalg.eigvalsh(a, "U"), linalg.eigvalsh(upper))
    b = draw(3, 2, grad=False)
    assert tj.allclose(linalg.solve_triangular(a, b, upper=True), linalg.solve(a.triu(), b))
    assert tj.allclose(linalg.solve_triangular(a, b, upper=False), linalg.solve(a.tril(), b))


@pytest.mark.parametrize("n", [1, 2, 5, 33])
def test_triangular_systems_of_any_size(n: int) -> None:
    a = (draw(2, n, n, grad=False) + 3 * tj.eye(n, dtype=tj.float64)).tril()
    b = draw(n, 3, grad=False)
    assert tj.allclose(a @ linalg.solve_triangular(a, b, upper=False), b.expand(2, n, 3))
    assert tj.allclose(linalg.solve_triangular(a, b.mT, upper=False, left=False) @ a, b.mT.expand(2, 3, n))


def test_a_zero_on_a_triangle_s_diagonal_is_not_an_error() -> None:
    found = linalg.solve_triangular(tj.tensor([[1.0, 0.0], [1.0, 0.0]]), tj.ones(2, 1), upper=False)
    assert not found.isfinite().all()
    assert linalg.solve_triangular(tj.zeros(2, 2), tj.ones(2, 1), upper=True, unitriangular=True).tolist() == [[1], [1]]


def test_solve_knows_vectors_from_matrices() -> None:
    a = draw(4, 2, 2, grad=False)
    assert linalg.solve(a, draw(2)).shape == (4, 2)
    assert linalg.solve(a, draw(4, 2)).shape == (4, 2)
    assert linalg.solve(a, draw(2, 3)).shape == (4, 2, 3)
    assert linalg.solve(a[0], draw(4, 2, 3)).shape == (4, 2, 3)
    check(lambda a, b: linalg.solve(a, b), draw(3, 2, 2), draw(2, 1))


# ---- matrices without an answer


def test_singular_matrices() -> None:
    singular = tj.tensor([[1.0, 2.0], [2.0, 4.0]])
    with pytest.raises(
        linalg.LinAlgError, match=r"linalg.inv: The diagonal element 2 is zero, .* the input matrix is singular"
    ):
        linalg.inv(singular)
    with pytest.raises(linalg.LinAlgError, match=r"linalg.inv: \(Batch element 1\): The diagonal element 1 is zero"):
        tj.inverse(tj.stack([tj.eye(2), tj.zeros(2, 2)]))
    with pytest.raises(linalg.LinAlgError, match=r"linalg.solve: The solver failed because the input matrix is singular"):
        linalg.solve(singular, tj.ones(2))
    with pytest.raises(linalg.LinAlgError, match=r"linalg.solve: \(Batch element 1\): The solver failed"):
        linalg.solve(tj.stack([tj.eye(2), singular]), tj.ones(2, 2, 1))
    assert issubclass(linalg.LinAlgError, RuntimeError)


def test_matrices_that_are_not_positive_definite() -> None:
    with pytest.raises(
        linalg.LinAlgError, match=r"linalg.cholesky: .* \(the leading minor of order 2 is not positive-definite\)"
    ):
        linalg.cholesky(tj.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(linalg.LinAlgError, match=r"cholesky: \(Batch element 1\): The factorization could not be completed"):
        tj.cholesky(tj.stack([tj.eye(2), -tj.eye(2)]))


def test_the_ex_functions_say_it_in_info() -> None:
    batch = tj.stack([tj.eye(2), tj.zeros(2, 2)])
    found = linalg.inv_ex(batch)
    assert found.info.tolist() == [0, 1] and found.info.dtype is tj.int32
    assert tj.equal(found.inverse[0], tj.eye(2)) and found.inverse[1].isnan().all()
    factors = linalg.cholesky_ex(batch)
    assert factors.info.tolist() == [0, 1] and tj.equal(factors.L[0], tj.eye(2))
    with pytest.raises(linalg.LinAlgError, match=r"linalg.inv_ex"):
        linalg.inv_ex(batch, check_errors=True)
    with pytest.raises(linalg.LinAlgError, match=r"linalg.cholesky_ex"):
        linalg.cholesky_ex(batch, check_errors=True)


def test_values_that_are_not_finite() -> None:
    for call in (linalg.svd, linalg.svdvals, linalg.pinv):  # of infinite ones, LAPACK's iteration may never end
        for value in (tj.nan, tj.inf):
            with pytest.raises(linalg.LinAlgError, match="the input matrix contained non-finite values"):
                call(tj.full((2, 2), value))


def test_the_gradient_of_an_infinite_determinant_is_nan() -> None:
    a = tj.tensor([[[tj.inf, 1.0], [tj.inf, 1.0]], [[1.0, 2.0], [2.0, 4.0]]], requires_grad=True)
    linalg.det(a).sum().backward()
    assert a.grad[0].isnan().all()
    np.testing.assert_allclose(a.grad[1].numpy(), [[4, -2], [-2, 1]], rtol=1e-6)


# ---- determinants


def test_a_determinant_has_a_gradient_at_a_singular_matrix() -> None:
    for values in ([[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]):
        a = tj.tensor(values, dtype=tj.float64, requires_grad=True)
        linalg.det(a).backward()
        (p, q), (r, s) = values
        np.testing.assert_allclose(a.grad.numpy(), [[s, -r], [-q, p]], atol=1e-12)
    rank_one = tj.ones(3, 3, requires_grad=True)
    tj.det(rank_one).backward()
    np.testing.assert_allclose(rank_one.grad.numpy(), np.zeros((3, 3)), atol=1e-6)


def test_logarithms_of_determinants() -> None:
    assert [t.item() for t in tj.slogdet(tj.zeros(2, 2))] == [0, -math.inf]
    assert [t.item() for t in linalg.slogdet(-tj.eye(3))] == [-1, 0]
    assert math.isnan(tj.logdet(-tj.eye(3)).item())
    assert tj.logdet(tj.zeros(2, 2)).item() == -math.inf
    big = 1e30 * tj.eye(4)
    assert linalg.slogdet(big).logabsdet.item() == pytest.approx(4 * math.log(1e30))
    a = tj.zeros(2, 2, requires_grad=True)
    linalg.slogdet(a).logabsdet.backward()  # no gradient exists, but no error either
    assert not a.grad.isfinite().all()


def test_determinants_of_nothing() -> None:
    assert linalg.det(tj.zeros(0, 0)).item() == 1
    assert linalg.det(tj.zeros(0, 3, 3)).shape == (0,)


# ---- by tolerance


def test_pseudo_inverse_of_a_matrix_without_full_rank() -> None:
    x, y = draw(4, 2), draw(2, 3)
    a = (x @ y).detach()
    p = linalg.pinv(a)
    for left, right in ((a @ p @ a, a), (p @ a @ p, p), ((a @ p).mT, a @ p), ((p @ a).mT, p @ a)):  # Penrose's conditions
        assert tj.allclose(left, right)
    assert tj.allclose(p, tj.pinverse(a))
    check(lambda x, y: linalg.pinv(x @ y, rtol=1e-6), x, y)
    assert linalg.matrix_rank(a).item() == 2


def test_tolerances() -> None:
    a = tj.diag(tj.tensor([3.0, 1.0, 0.1]))
    assert linalg.matrix_rank(a, atol=0.5).item() == 2
    assert linalg.matrix_rank(a, rtol=0.4).item() == 1
    assert linalg.matrix_rank(a, tol=2.0).item() == 1
    batch = tj.stack([a, a])
    assert linalg.matrix_rank(batch, atol=tj.tensor([0.5, 2.0])).tolist() == [2, 1]
    assert linalg.pinv(batch, atol=tj.tensor([0.5, 2.0]))[1].diagonal().tolist() == pytest.approx([1 / 3, 0, 0])
    assert tj.allclose(linalg.pinv(a, hermitian=True), linalg.inv(a))
    assert linalg.pinv(tj.zeros(0, 3)).shape == (3, 0)
    assert linalg.matrix_rank(tj.zeros(4, 0, 3)).tolist() == [0] * 4


def test_least_squares() -> None:
    a, b = draw(5, 3), draw(5, 2)
    found = linalg.lstsq(a, b, driver="gelsd")
    expected, residuals, rank, values = np.linalg.lstsq(a.detach().numpy(), b.detach().numpy(), rcond=None)
    np.testing.assert_allclose(found.solution.detach().numpy(), expected)
    np.testing.assert_allclose(found.residuals.detach().numpy(), residuals)
    np.testing.assert_allclose(found.singular_values.numpy(), values)
    assert found.rank.item() == rank
    check(lambda a, b: linalg.lstsq(a, b).solution, a, b)
    shortest = linalg.lstsq(tj.ones(2, 2), tj.tensor([2.0, 2.0])).solution
    assert shortest.tolist() == pytest.approx([1, 1])


# ---- powers and the exponential


def test_powers() -> None:
    a = draw(3, 3)
    assert tj.allclose(tj.matrix_power(a, 5), a @ a @ a @ a @ a)
    assert tj.allclose(a.matrix_power(-3) @ a @ a @ a, tj.eye(3, dtype=a.dtype))
    one = tj.matrix_power(a, 1)
    assert tj.equal(one, a) and one is not a


def test_exponential_of_large_matrices() -> None:
    turn = tj.tensor([[0.0, -100.0], [100.0, 0.0]], dtype=tj.float64)
    expected = [[math.cos(100), -math.sin(100)], [math.sin(100), math.cos(100)]]
    np.testing.assert_allclose(tj.matrix_exp(turn).numpy(), expected, atol=1e-11)
    assert tj.matrix_exp(turn.float()).dtype is tj.float32
    assert linalg.matrix_exp(tj.zeros(0, 0)).shape == (0, 0)
    check(lambda x: tj.matrix_exp(5 * x), draw(3, 3))


# ---- norms and distances


@pytest.mark.parametrize("ord", [0, 0.5, 1, 1.5, 2, 3, math.inf])
def test_norms_have_no_gradient_at_zero(ord: float) -> None:
    x = tj.zeros(3, requires_grad=True)
    linalg.vector_norm(x, ord).backward()
    assert x.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_distances_have_no_gradient_at_zero(p: float) -> None:
    x = tj.ones(3, 2, requires_grad=True)
    tj.cdist(x, x.detach(), p=p).sum().backward()
    assert x.grad.tolist() == [[0, 0]] * 3
    y = tj.ones(3, 2, requires_grad=True)
    (g,) = tj.autograd.grad(tj.cdist(y, y.detach(), p=p).sum(), y, create_graph=True)
    assert g.isfinite().all()


def test_many_distances_by_a_matmul() -> None:
    x, y = draw(2, 40, 5), draw(30, 5)
    expected = np.sqrt(((x.detach().numpy()[:, :, None] - y.detach().numpy()) ** 2).sum(-1))
    for mode in ("use_mm_for_euclid_dist_if_necessary", "donot_use_mm_for_euclid_dist"):
        found = tj.cdist(x, y, compute_mode=mode)
        np.testing.assert_allclose(found.detach().numpy(), expected)
        g = tj.autograd.grad(found.sum(), y)[0]
        direct = (y.unsqueeze(-3) - x.unsqueeze(-2)) / found.unsqueeze(-1)
        assert tj.allclose(g, direct.sum((0, 1)))


def test_matrix_norms_of_nothing() -> None:
    for ord in ("fro", "nuc", 1, 2, math.inf):
        assert linalg.matrix_norm(tj.zeros(0, 3), ord).item() == 0
    with pytest.raises(RuntimeError, match="cannot compute the inf norm on an empty tensor"):
        linalg.vector_norm(tj.zeros(0), math.inf)
    with pytest.raises(RuntimeError, match="cannot compute the -1 norm on the dimension 0"):
        linalg.vector_norm(tj.zeros(0, 3), -1, dim=0)


def test_norm_chooses_by_its_arguments() -> None:
    a = tj.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert linalg.norm(a).item() == 5
    assert linalg.norm(a, 2).item() == pytest.approx(4)
    assert linalg.norm(a, 2, dim=1).tolist() == [3, 4]
    assert linalg.norm(a, 1, dim=(0, 1)).item() == 4
    assert linalg.norm(a, dtype=tj.float64).dtype is tj.float64
    assert tj.norm(a, "nuc").item() == pytest.approx(7)


def test_cosine_of_a_zero_vector() -> None:
    x = tj.zeros(2, 3, requires_grad=True)
    found = F.cosine_similarity(x, tj.ones(2, 3))
    found.sum().backward()
    assert found.tolist() == [0, 0] and x.grad.isfinite().all()


def test_condition_numbers() -> None:
    a = tj.tensor([[2.0, 0.0], [0.0, 0.5]])
    assert [linalg.cond(a, p).item() for p in (None, -2, 1)] == pytest.approx([4, 0.25, 4])
    assert linalg.cond(tj.zeros(2, 2), 1).item() == math.inf


# ---- manners


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: linalg.inv(z(2, 3)), "linalg.inv: A must be batches of square matrices, but they are 2 by 3 matrices"),
        (lambda z: linalg.inv(z(3)), "linalg.inv: The input tensor A must have at least 2 dimensions"),
        (lambda z: linalg.inv(z(2, 2).long()), "Expected a floating point or complex tensor as input. Got Long"),
        (lambda z: linalg.inv(z(2, 2).half()), "linalg.inv: Low precision dtypes not supported. Got Half"),
        (lambda z: linalg.svd(z(2, 2).bfloat16()), "linalg.svd: Low precision dtypes not supported. Got BFloat16"),
        (lambda z: linalg.solve(z(2, 2), z(3)), r"Incompatible shapes of A and B for the equation AX = B \(2x2 and 3x1\)"),
        (lambda z: linalg.solve(z(2, 2), z(3, 1), left=False), r"the equation XA = B \(2x2 and 3x1\)"),
        (lambda z: linalg.solve(z(2, 2), z(2).double()), "the same dtype, but found A of type Float and B of type Double"),
        (lambda z: linalg.solve(z(4, 2, 2), z(5, 2, 3)), r"The size of tensor a \(5\) must match the size of tensor b \(4\)"),
        (lambda z: linalg.solve_triangular(z(2, 2), z(2), upper=True), "B must have at least 2 dimensions"),
        (lambda z: linalg.det(z(2, 3)), "linalg.det: A must be batches of square matrices"),
        (lambda z: tj.logdet(z(2, 3)), "logdet: "),
        (lambda z: linalg.cholesky(z(3)), "linalg.cholesky: The input tensor A must have at least 2 dimensions"),
        (lambda z: linalg.qr(z(3, 2), mode="x"), "qr received unrecognized mode 'x'"),
        (lambda z: linalg.eigh(z(2, 2), UPLO="x"), "Expected UPLO argument to be 'L' or 'U', but got x"),
        (lambda z: linalg.lstsq(z(3, 2), z(4, 1)), r"input.size\(-2\) should match other.size\(-2\)"),
        (lambda z: linalg.lstsq(z(3, 2), z(3, 1), driver="x"), "parameter `driver` should be one of"),
        (lambda z: linalg.lstsq(z(3, 2), z(5, 3, 1)), r"input.dim\(\) must be greater or equal to other.dim\(\)"),
        (lambda z: linalg.matrix_norm(z(3)), "linalg.matrix_norm: The input tensor A must have at least 2 dimensions"),
        (lambda z: linalg.matrix_norm(z(2, 3), 3), "linalg.matrix_norm: Order 3 not supported"),
        (lambda z: linalg.matrix_norm(z(2, 3), dim=(0, 0)), r"dims must be different. Got \(0, 0\)"),
        (lambda z: linalg.matrix_norm(z(2, 3), dim=0), "dim must be a 2-tuple. Got 0"),
        (lambda z: linalg.norm(z(2, 3, 4), 2), "If dim is not specified but ord is, the input must be 1D or 2D. Got 3D"),
        (lambda z: linalg.norm(z(2, 3), dim=(0, 1, 0)), "If dim is specified, it must be of length 1 or 2"),
        (lambda z: linalg.vector_norm(z(2).long()), "Expected a floating point or complex tensor as input. Got Long"),
        (lambda z: linalg.vector_norm(z(2).double(), dtype=tj.float32), "should be convertible without narrowing"),
        (lambda z: linalg.cond(z(2, 3), 1), r"linalg.cond\(ord=1\): A must be batches of square matrices"),
        (lambda z: linalg.cond(z(2, 2), "x"), "linalg.cond got an invalid norm type: x"),
        (lambda z: linalg.vecdot(z(2), z(2).double()), "x of type Float and y of type Double"),
        (lambda z: tj.matrix_power(z(2, 3), 2), "linalg.matrix_power: A must be batches of square matrices"),
        (lambda z: tj.cdist(z(3), z(4, 4)), "cdist only supports at least 2D tensors, X1 got: 1D"),
        (lambda z: tj.cdist(z(2, 3), z(4, 4)), "must have the same number of columns. X1: 3 X2: 4"),
        (lambda z: tj.cdist(z(2, 3), z(4, 3), p=-1), "cdist only supports non-negative p values"),
        (lambda z: F.cosine_similarity(z(2, 3).long(), z(3).long()), "expected common dtype to be floating point"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(lambda *shape: tj.zeros(shape))


def test_results_have_pytorch_s_names() -> None:
    a = positive(draw(2, 2)).detach()
    for result, fields in (
        (linalg.svd(a), ("U", "S", "Vh")),
        (tj.svd(a), ("U", "S", "V")),
        (linalg.eigh(a), ("eigenvalues", "eigenvectors")),
        (linalg.qr(a), ("Q", "R")),
        (tj.qr(a), ("Q", "R")),
        (tj.slogdet(a), ("sign", "logabsdet")),
        (linalg.lstsq(a, a), ("solution", "residuals", "rank", "singular_values")),
        (linalg.inv_ex(a), ("inverse", "info")),
        (linalg.cholesky_ex(a), ("L", "info")),
    ):
        assert result._fields == fields


def test_the_namespace() -> None:
    assert importlib.import_module("tapejit.linalg") is tj.linalg
    a = positive(draw(2, 2)).detach()
    assert tj.allclose(a.inverse(), linalg.inv(a)) and tj.allclose(a.det(), linalg.det(a))
    assert tj.allclose(a.pinverse(), linalg.inv(a)) and tj.allclose(a.cholesky(), linalg.cholesky(a))
    assert not hasattr(tj.Tensor, "solve_triangular") and not hasattr(tj.Tensor, "einsum")


def test_shapes_are_known_without_the_values() -> None:
    """The compiler asks for them, and zeros have no inverse to ask."""
    seen = []

    def handler(op: Any, inputs: Any, attrs: Any, out: Any = None) -> Any:
        result = execute(op, inputs, attrs, out, local.state)
        if op.kind == "opaque" or op.kind == "contraction":
            seen.append((op, inputs, attrs, result))
        return result

    local.state.handler = handler
    try:
        a = positive(draw(2, 3, 3, grad=False))
        for call in (linalg.inv, linalg.det, linalg.slogdet, linalg.cholesky, linalg.qr, linalg.svd, linalg.svdvals):
            call(a)
        for call in (linalg.eigh, linalg.eigvalsh, linalg.pinv, linalg.matrix_exp, lambda a: linalg.qr(a[..., :2], "complete")):
            call(a)
        linalg.solve(a[0], a[..., :2])
        linalg.solve_triangular(a, a[0], upper=True)
        linalg.svd(a[..., :2], full_matrices=False)
        a.requires_grad_()
        linalg.det(a).sum().backward()
    finally:
        local.state.handler = None
    assert len({op.name for op, *_ in seen}) >= 14
    for op, inputs, attrs, result in seen:
        specs = tuple(Spec(tuple(x.shape), x.dtype) if isinstance(x, tj.Tensor) else x for x in inputs)
        results = result if isinstance(result, tuple) else (result,)
        assert infer(op, specs, attrs) == tuple(Spec(tuple(t.shape), t.dtype) for t in results), op


def test_tensors_as_matrices():
    a, b = tj.eye(6).reshape(2, 3, 6) * 2, tj.arange(6.0).reshape(2, 3)
    assert tj.linalg.tensorsolve(a, b).tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert tj.linalg.tensorsolve(a.movedim(2, 0), b, dims=(0,)).tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert tj.equal(tj.tensordot(tj.linalg.tensorinv(a), b, 2), tj.linalg.tensorsolve(a, b))
    with pytest.raises(RuntimeError, match=r"prod\(self.shape\[:ind\]\), but got 12 != 2"):
        tj.linalg.tensorinv(tj.ones(2, 3, 4), ind=1)
    with pytest.raises(RuntimeError, match="strictly positive integer for 'ind', but got 0"):
        tj.linalg.tensorinv(tj.ones(2, 2), ind=0)
    with pytest.raises(RuntimeError, match=r"other.ndim\]\), but got 4 != 6"):
        tj.linalg.tensorsolve(tj.ones(2, 3, 4), tj.ones(2, 3))
