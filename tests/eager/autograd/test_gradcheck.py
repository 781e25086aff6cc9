"""`gradcheck` and `gradgradcheck` find what they should; `autograd.functional` says what it should."""

from __future__ import annotations

import numpy as np
import pytest
import tapejit as tj
from tapejit import autograd
from tapejit.autograd import functional, gradcheck, gradgradcheck


def leaf(*values: float) -> tj.Tensor:
    return tj.tensor(values, dtype=tj.float64, requires_grad=True)


def vector(*values: float) -> tj.Tensor:
    return tj.tensor(values, dtype=tj.float64)


def same(t: tj.Tensor, values: object) -> bool:
    return np.allclose(t.detach().numpy(), np.asarray(values), rtol=1e-10, atol=1e-12)


class Wrong(autograd.Function):
    """x², with half its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x * g


class WrongTwice(autograd.Function):
    """x², right to first order only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x.detach() * g


@pytest.mark.parametrize("fast_mode", [False, True])
def test_right_gradients_pass(fast_mode: bool) -> None:
    a = tj.tensor(np.arange(1.0, 7).reshape(2, 3), requires_grad=True)
    b = leaf(0.5, -1, 2)
    for f in (
        lambda a, b: a * b,
        lambda a, b: (a.exp() / 100, (a * b).sum(), b.sin()),
        lambda a, b: a.T @ a + b,
        lambda a, b: [a.log(), a.argmax(), a > 2],
        lambda a, b: a[1:, ::2],
        lambda a, b: a.new_zeros(0) * b.sum(),
    ):
        assert gradcheck(f, (a, b), fast_mode=fast_mode)
        assert gradgradcheck(f, (a, b), fast_mode=fast_mode)
    assert gradcheck(lambda a, n, b: a * n, (a, 3, "text"))
    assert gradcheck(tj.exp, b)
    assert gradcheck(lambda t: t.mT * 2, (a.T,))


@pytest.mark.parametrize("fast_mode", [False, True])
def test_wrong_gradients_are_shown_with_both_matrices(fast_mode: bool) -> None:
    x = leaf(1, 2)
    with pytest.raises(autograd.GradcheckError) as error:
        gradcheck(lambda c, x: (x * 3, Wrong.apply(x)), (vector(1), x), fast_mode=fast_mode)
    text = str(error.value)
    assert "Jacobian mismatch for output 1 with respect to input 1" in text
    assert "numerical:\n[[2. 0.]\n [0. 4.]]" in text and "analytical:\n[[1. 0.]\n [0. 2.]]" in text
    assert "element 1 of the input and element 1 of the output: numerical 4, analytical 2" in text
    assert gradcheck(Wrong.apply, (x,), raise_exception=False, fast_mode=fast_mode) is False
    assert gradcheck(Wrong.apply, (x,), atol=10, fast_mode=fast_mode)


def test_wrong_second_gradients() -> None:
    x = leaf(1, 2)
    assert gradcheck(WrongTwice.apply, (x,))
    with pytest.raises(RuntimeError, match="Jacobian mismatch for output 0 with respect to input 0"):
        gradgradcheck(WrongTwice.apply, (x,))
    assert gradgradcheck(WrongTwice.apply, (x,), raise_exception=False) is False
    assert gradgradcheck(lambda x: x**3, (x,), grad_outputs=leaf(1, 1))
    assert gradgradcheck(lambda x: (x**3, x.exp()), (x,), gen_non_contig_grad_outputs=True)


def test_inputs_are_left_as_they_were() -> None:
    x = leaf(1, 2)
    gradcheck(tj.exp, (x,))
    assert same(x, [1, 2]) and x.grad is None and x._version == 0


def test_inputs_it_cannot_judge() -> None:
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(tj.exp, (vector(1),))
    with pytest.warns(UserWarning, match="Input #0 requires gradient and is not a double precision"):
        gradcheck(lambda x: x * 2, (tj.ones(2, requires_grad=True),), eps=1e-2)
    with pytest.raises(RuntimeError, match="The 0th input has a dimension with stride 0"):
        gradcheck(tj.exp, (vector(1).expand(3).requires_grad_(),))
    with pytest.raises(NotImplementedError):
        gradcheck(tj.exp, (leaf(1),), check_forward_ad=True)


def test_functions_off_the_tape_must_be_constant() -> None:
    assert gradcheck(lambda x: x.detach().round(), (leaf(1.2, 2.3),))
    with pytest.raises(RuntimeError, match="Numerical gradient for function expected to be zero"):
        gradcheck(lambda x: x.detach() * 2, (leaf(1, 2),))


def test_gradients_that_differ_between_runs() -> None:
    count = iter(range(1000))

    class Drifting(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * (1 + next(count) * 1e-9)

    x = leaf(1, 2)
    with pytest.raises(RuntimeError, match="Backward is not reentrant"):
        gradcheck(Drifting.apply, (x,))
    assert gradcheck(Drifting.apply, (x,), nondet_tol=1e-6)


def test_missing_output_gradients() -> None:
    class Fragile(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, a, b):
            return a + 2 * b

    class Sturdy(Fragile):
        @staticmethod
        def backward(ctx, a, b):
            return (0 if a is None else a) + (0 if b is None else 2 * b)

    x = leaf(1, 2)
    assert gradcheck(Sturdy.apply, (x,))
    with pytest.raises(Exception, match="NoneType"):
        gradcheck(Fragile.apply, (x,))


# ---- functional


def test_jacobian() -> None:
    x, y = vector(1, 2), vector(3, 4, 5)
    assert same(functional.jacobian(lambda x: x**2, x), [[2, 0], [0, 4]])
    assert same(functional.jacobian(lambda x: x.sum(), x), [1, 1])
    (by_x, by_y) = functional.jacobian(lambda x, y: x.unsqueeze(1) * y, (x, y))
    assert by_x.shape == (2, 3, 2) and by_y.shape == (2, 3, 3)
    assert same(by_y[1], np.diag([2, 2, 2]))
    ((a, b), (c, d)) = functional.jacobian(lambda x, y: (x.sum(), y * 2), (x, y))
    assert same(a, [1, 1]) and same(b, [0, 0, 0]) and same(c, np.zeros((3, 2))) and same(d, 2 * np.eye(3))
    assert not d.requires_grad
    with pytest.raises(RuntimeError, match="Output 0 of the user-provided function does not require gradients"):
        functional.jacobian(lambda x: vector(1), x, strict=True)
    with pytest.raises(RuntimeError, match="Output 0 of the user-provided function is independent of input 1"):
        functional.jacobian(lambda x, y: x * 2, (x, y), strict=True)
    with pytest.raises(TypeError, match="must be either a Tensor or a tuple of Tensors"):
        functional.jacobian(lambda x: x, 3)
    with pytest.raises(TypeError, match="outputs of the user-provided function"):
        functional.jacobian(lambda x: 3, x)
    with pytest.raises(NotImplementedError, match="reverse mode"):
        functional.jacobian(lambda x: x, x, strategy="forward-mode")


def test_jacobian_that_is_differentiated_again() -> None:
    x = leaf(1, 2)
    functional.jacobian(lambda x: x**3, x, create_graph=True).sum().backward()
    assert same(x.grad, [6, 12])


def test_hessian() -> None:
    x, y = vector(1, 2), vector(3, 4)
    assert same(functional.hessian(lambda x: (x**3).sum(), x), [[6, 0], [0, 12]])
    ((xx, xy), (yx, yy)) = functional.hessian(lambda x, y: (x * y * y).sum(), (x, y))
    assert same(xx, np.zeros((2, 2))) and same(xy, [[6, 0], [0, 8]]) and same(yx, xy) and same(yy, [[2, 0], [0, 4]])
    assert same(functional.hessian(lambda x: (3 * x).sum(), x), np.zeros((2, 2)))
    with pytest.raises(RuntimeError, match="should contain a single element"):
        functional.hessian(lambda x: x * 3, x)
    with pytest.raises(RuntimeError, match="independent of the input"):
        functional.hessian(lambda x: (3 * x).sum(), x, strict=True)


def test_products() -> None:
    x, v = vector(1, 2, 3), vector(1, 10, 100)
    matrix = tj.tensor(np.arange(6.0).reshape(2, 3))

    def f(x: tj.Tensor) -> tj.Tensor:
        return matrix @ (x * x)

    jac = matrix.numpy() * 2 * np.array([1, 2, 3])
    value, product = functional.vjp(f, x, vector(1, 10))
    assert same(value, f(x)) and same(product, np.array([1, 10]) @ jac) and not value.requires_grad
    value, product = functional.jvp(f, x, v)
    assert same(value, f(x)) and same(product, jac @ v.numpy()) and not product.requires_grad

    def g(x: tj.Tensor) -> tj.Tensor:
        return (x**3).sum() * x[0]

    hess = functional.hessian(g, x).numpy()
    for product_of in (functional.hvp, functional.vhp):
        value, product = product_of(g, x, v)
        assert same(value, g(x)) and same(product, hess @ v.numpy())
        assert same(product_of(lambda x: (3 * x).sum(), x, v)[1], [0, 0, 0])
    (value, (px, py)) = functional.hvp(lambda x, y: (x * y).sum(), (x, v), (v, x))
    assert same(px, x) and same(py, v)


def test_products_check_their_vector() -> None:
    x = vector(1, 2)
    with pytest.raises(RuntimeError, match="can only be None if the user-provided function returns a single Tensor"):
        functional.vjp(lambda x: x * 2, x)
    with pytest.raises(RuntimeError, match="can only be None if the input"):
        functional.jvp(lambda x: x * 2, x)
    with pytest.raises(RuntimeError, match="v has invalid size"):
        functional.vjp(lambda x: x * 2, x, vector(1, 2, 3))
    with pytest.raises(RuntimeError, match="v is a tuple of invalid length: should be 1 but got 2"):
        functional.vjp(lambda x: x * 2, x, (x, x))
    assert same(functional.vjp(lambda x: x.sum(), x)[1], [1, 1])
    assert same(functional.jvp(lambda x: x * x, vector(3))[1], [6])
    with pytest.raises(RuntimeError, match="independent of input 0"):
        functional.vjp(lambda x: vector(1).requires_grad_() * 2, x, vector(1), strict=True)


def test_products_with_create_graph() -> None:
    x = leaf(1, 2)
    _, product = functional.jvp(lambda x: x**3, x, vector(1, 1), create_graph=True)
    product.sum().backward()
    assert same(x.grad, [6, 12])
    x.grad = None
    _, product = functional.vhp(lambda x: (x**4).sum(), x, vector(1, 1), create_graph=True)
    product.sum().backward()
    assert same(x.grad, [24, 48])


def test_functional_works_inside_no_grad() -> None:
    with tj.no_grad():
        assert same(functional.jacobian(lambda x: x * x, vector(1, 2)), [[2, 0], [0, 4]])
        assert not tj.is_grad_enabled()
