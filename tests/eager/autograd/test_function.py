"""`autograd.Function`: forward and backward written by the user."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tapejit as tj
from tapejit import autograd
from tapejit.autograd.function import once_differentiable

Function = autograd.Function


def leaf(*values: float) -> tj.Tensor:
    return tj.tensor(values, dtype=tj.float64, requires_grad=True)


def same(t: tj.Tensor | None, values: object) -> bool:
    assert t is not None
    return np.allclose(t.detach().numpy(), np.asarray(values), rtol=1e-12, atol=1e-12)


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Exp(Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Scale(Function):
    """An argument that is no tensor, an attribute on ctx, an input returned changed in place."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.mark_dirty(x)
        return x.mul_(factor)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


def test_forward_and_backward() -> None:
    x = leaf(1, 2)
    y = Square.apply(x)
    assert same(y, [1, 4]) and y.grad_fn.name() == "SquareBackward" and not y.is_leaf
    assert y.grad_fn.next_functions[0][0].variable is x
    (y * 3).sum().backward()
    assert same(x.grad, [6, 12])
    assert not Square.apply(x.detach()).requires_grad
    with tj.no_grad():
        assert not Square.apply(x).requires_grad


def test_gradients_agree_with_finite_differences_to_second_order() -> None:
    for f in (Square.apply, Exp.apply, lambda x: Scale.apply(x * 1.0, 3.0), lambda x: Exp.apply(Square.apply(x) * 0.1)):
        assert autograd.gradcheck(f, (leaf(0.3, 1.2, -0.7),))
        assert autograd.gradgradcheck(f, (leaf(0.3, 1.2, -0.7),))


def test_third_order() -> None:
    x = leaf(0.3, 1.1)
    y = Exp.apply(x) * Square.apply(x)
    for _ in range(3):
        (y,) = autograd.grad(y.sum(), x, create_graph=True)
    v = np.array([0.3, 1.1])
    assert same(y, np.exp(v) * (v * v + 6 * v + 6))


def test_setup_context() -> None:
    class Power(Function):
        @staticmethod
        def forward(x, n=3):
            return x**n

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, n = inputs
            assert isinstance(output, tj.Tensor)
            ctx.save_for_backward(x)
            ctx.n = n

        @staticmethod
        def backward(ctx, g):
            assert ctx.needs_input_grad == (True, False)
            (x,) = ctx.saved_tensors
            return g * ctx.n * x ** (ctx.n - 1), None

    x = leaf(1, 2)
    Power.apply(x).sum().backward()
    assert same(x.grad, [3, 12])
    x.grad = None
    Power.apply(x, 2).sum().backward()
    Power.apply(x, n=2).sum().backward()
    assert same(x.grad, [4, 8])


def test_several_inputs_and_outputs() -> None:
    class SumDifference(Function):
        @staticmethod
        def forward(ctx, a, b, c):
            ctx.needs = ctx.needs_input_grad
            return a + b, (a - b) * c

        @staticmethod
        def backward(ctx, g_sum, g_difference):
            return g_sum + 2 * g_difference, g_sum - 2 * g_difference, None

    a, b = leaf(1, 2), leaf(3, 4)
    s, d = SumDifference.apply(a, b, 2)
    assert s.grad_fn.needs == (True, True, False) and (s.output_nr, d.output_nr) == (0, 1)
    (s * 10 + d).sum().backward()
    assert same(a.grad, [12, 12]) and same(b.grad, [8, 8])
    a.grad = b.grad = None
    s, d = SumDifference.apply(a, b.detach(), 2)
    assert s.grad_fn.needs == (True, False, False)
    d.sum().backward()  # the unused output's gradient is zeros
    assert same(a.grad, [2, 2]) and b.grad is None


def test_unused_outputs_get_zeros_or_none() -> None:
    seen: list[object] = []

    class Two(Function):
        materialize = True

        @staticmethod
        def forward(ctx, x, materialize):
            ctx.set_materialize_grads(materialize)
            return x * 1, (x * 2).float(), x.argmax(), "text"

        @staticmethod
        def backward(ctx, *gs):
            seen.extend(gs)
            return gs[0], None

    x = leaf(1, 2)
    out = Two.apply(x, True)
    assert [getattr(t, "requires_grad", t) for t in out] == [True, True, False, "text"]
    out[0].sum().backward()
    assert len(seen) == 4 and same(seen[0], [1, 1]) and same(seen[1], [0, 0]) and seen[1].dtype is tj.float32
    assert seen[2].dtype is tj.int64 and seen[3] is None
    seen.clear()
    Two.apply(x, False)[0].sum().backward()
    assert same(seen[0], [1, 1]) and seen[1:] == [None, None, None]


def test_no_tensor_inputs_that_want_gradients_still_run_without_the_tape() -> None:
    class Check(Function):
        @staticmethod
        def forward(ctx, x):
            assert not tj.is_grad_enabled()
            return x * 2

    assert same(Check.apply(tj.ones(2)), [2, 2])
    assert tj.is_grad_enabled()


def test_wrong_numbers_and_kinds_of_gradients() -> None:
    class Returns(Function):
        @staticmethod
        def forward(ctx, x, k, what):
            ctx.what = what
            return x * k

        @staticmethod
        def backward(ctx, g):
            return ctx.what(g)

    x = leaf(1, 2, 3)

    def run(what: object) -> None:
        Returns.apply(x, 2.0, what).sum().backward()

    with pytest.raises(RuntimeError, match=r"ReturnsBackward returned an incorrect number of gradients \(expected 3, got 1\)"):
        run(lambda g: g)
    with pytest.raises(RuntimeError, match=r"expected 3, got 4"):
        run(lambda g: (g, None, None, g))
    with pytest.raises(RuntimeError, match="different than None at position 2, but the corresponding forward input was not a"):
        run(lambda g: (g, g, None))
    with pytest.raises(RuntimeError, match=r"expected Variable or None \(got int\)"):
        run(lambda g: (3, None, None))
    with pytest.raises(RuntimeError, match=r"invalid gradient at index 0 - got \[2\] but expected shape compatible with \[3\]"):
        run(lambda g: (g[:2], None, None))
    with pytest.raises(RuntimeError, match=r"got \[1\] but expected"):
        run(lambda g: (g[:1], None, None))
    assert x.grad is None
    run(lambda g: (g, None, None, None, None))  # more Nones than arguments do no harm
    assert same(x.grad, [1, 1, 1])
    run(lambda g: (tj.ones(4, 3), None, None))  # summed to the input's shape, in its dtype
    assert same(x.grad, [5, 5, 5])
    run(lambda g: (None, None, None))
    run(lambda g: [g, None, None])
    assert same(x.grad, [6, 6, 6])


def test_missing_methods() -> None:
    class NoForward(Function):
        pass

    class NoBackward(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    class Vjp(NoBackward):
        @staticmethod
        def vjp(ctx, g):
            return g * 2

    x = leaf(1)
    with pytest.raises(NotImplementedError, match="must implement the forward function"):
        NoForward.apply(x)
    with pytest.raises(NotImplementedError, match="either the backward or vjp method"):
        NoBackward.apply(x).sum().backward()
    Vjp.apply(x).sum().backward()
    assert same(x.grad, [2])


# ---- saved tensors


def test_saved_tensors_are_freed_after_backward() -> None:
    x = leaf(1, 2)
    y = Square.apply(x)
    assert same(y.grad_fn.saved_tensors[0], [1, 2])
    loss = y.sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert same(x.grad, [4, 8])
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        _ = y.grad_fn.saved_tensors


def test_a_function_that_saves_nothing_may_run_backward_twice() -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = leaf(1)
    y = Double.apply(x).sum()
    y.backward()
    y.backward()
    assert same(x.grad, [4])


def test_changing_a_saved_tensor_is_an_error() -> None:
    for f in (Square.apply, Exp.apply):
        x = leaf(1, 2) * 1
        y = f(x)
        (x if f == Square.apply else y).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_what_may_be_saved() -> None:
    class Saves(Function):
        @staticmethod
        def forward(ctx, x, what):
            middle = x + 1
            ctx.save_for_backward(*what(x, middle))
            return middle * 2

        @staticmethod
        def backward(ctx, g):
            saved = ctx.saved_tensors
            assert saved[0] is None and same(saved[1], [2, 3])
            return g, None

    x = leaf(1, 2)
    Saves.apply(x, lambda x, m: (None, m)).sum().backward()
    assert same(x.grad, [1, 1])
    with pytest.raises(TypeError, match="save_for_backward can only save variables, but argument 1 is of type int"):
        Saves.apply(x, lambda x, m: (x, 3))
    assert tj.is_grad_enabled()


def test_saved_inputs_have_the_history_of_their_time() -> None:
    w = leaf(2, 3)
    x = w * 2
    y = Square.apply(x)
    (g,) = autograd.grad(y.sum(), x, create_graph=True)
    (gg,) = autograd.grad(g.sum(), w)
    assert same(g, [8, 12]) and same(gg, [4, 4])


# ---- in place, views, inputs returned


def test_dirty_inputs_take_the_functions_history() -> None:
    w = leaf(1, 2)
    x = w * 1
    y = Scale.apply(x, 3.0)
    assert y is x and x.grad_fn.name() == "ScaleBackward" and same(x, [3, 6]) and x._version == 1
    (x * x).sum().backward()
    assert same(w.grad, [18, 36])


def test_dirty_views_rewrite_their_base() -> None:
    w = leaf(1, 2, 3)
    x = w * 1
    v = x[1:]
    other = x[:2]
    assert Scale.apply(v, 10.0) is v
    assert same(x, [1, 20, 30]) and same(other, [1, 20])
    (x * tj.tensor([1.0, 2.0, 3.0], dtype=tj.float64)).sum().backward(retain_graph=True)
    assert same(w.grad, [1, 20, 30])
    w.grad = None
    other.sum().backward(retain_graph=True)
    assert same(w.grad, [1, 10, 0])
    w.grad = None
    v.sum().backward()
    assert same(w.grad, [0, 10, 10])


def test_dirty_constants_join_the_tape() -> None:
    class AddInto(Function):
        @staticmethod
        def forward(ctx, total, x):
            ctx.mark_dirty(total)
            total.add_(x)
            return total

        @staticmethod
        def backward(ctx, g):
            return g, g

    total, x = tj.zeros(2, dtype=tj.float64), leaf(1, 2)
    AddInto.apply(total, x)
    AddInto.apply(total, x * x)
    assert total.requires_grad
    total.sum().backward()
    assert same(x.grad, [3, 5])


def test_dirty_and_saved() -> None:
    class ExpInPlace(Function):
        @staticmethod
        def forward(ctx, x):
            x.exp_()
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    assert autograd.gradcheck(lambda x: ExpInPlace.apply(x * 1), (leaf(0.1, 0.5),))
    assert autograd.gradgradcheck(lambda x: ExpInPlace.apply(x * 1), (leaf(0.1, 0.5),))
    y = ExpInPlace.apply(leaf(1) * 1)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_dirty_errors() -> None:
    class Forgets(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 1

    class NotInput(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            ctx.mark_dirty(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = leaf(1)
    with pytest.raises(RuntimeError, match="marked as dirty during the forward method were not returned as output"):
        Forgets.apply(x * 1)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad has been used in an in-place operation"):
        Scale.apply(x, 1.0)
    with pytest.warns(UserWarning, match="was not an input"):
        NotInput.apply(x).sum().backward()
    assert same(x.grad, [2])


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Flat(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, g):
        return (g * 5).reshape(2, 1)


def test_an_input_returned_as_it_is() -> None:
    x = leaf(1, 2)
    y = Same.apply(x)
    assert y is not x and x.is_leaf and y.grad_fn.name() == "SameBackward"
    assert np.shares_memory(y.detach().numpy(), x.detach().numpy())
    y.sum().backward()
    assert same(x.grad, [5, 5])


@pytest.mark.parametrize("f", [Same, Flat])
def test_views_that_leave_a_function_cannot_be_written_through(f: type[Function]) -> None:
    w = tj.ones(2, 1, dtype=tj.float64, requires_grad=True)
    x = w * 1
    y = f.apply(x)
    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        y.mul_(2)
    assert same(x, [[1], [1]])
    y.sum().backward()
    assert same(w.grad, [[5], [5]])
    y = f.apply(x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="its base or another view of its base has been modified inplace"):
        y.sum()


def test_a_view_of_memory_made_inside_is_an_ordinary_output() -> None:
    class Inner(Function):
        @staticmethod
        def forward(ctx, x):
            return (x * 2).view(2, 1)[:1]

        @staticmethod
        def backward(ctx, g):
            return (g * 2).reshape(1).expand(2) * tj.tensor([1.0, 0.0], dtype=tj.float64)

    x = leaf(1, 2)
    y = Inner.apply(x)
    y.mul_(3)
    y.sum().backward()
    assert same(x.grad, [6, 0])


def test_one_tensor_returned_twice() -> None:
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, a, b):
            return 2 * a + 20 * b

    x = leaf(1)
    a, b = Twice.apply(x)
    (a + b * 3).sum().backward()
    assert same(x.grad, [62])


def test_non_differentiable_outputs() -> None:
    class SortLike(Function):
        @staticmethod
        def forward(ctx, x):
            y, mask = x * 2, x * 0
            ctx.mark_non_differentiable(mask)
            return y, mask

        @staticmethod
        def backward(ctx, g, g_mask):
            assert same(g_mask, [0, 0])
            return g * 2

    x = leaf(1, 2)
    y, mask = SortLike.apply(x)
    assert y.requires_grad and not mask.requires_grad and mask.is_leaf
    (y + mask).sum().backward()
    assert same(x.grad, [2, 2])

    class Beside(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable(x)
            return x, x * 2

        @staticmethod
        def backward(ctx, g, g_twice):
            return g_twice * 2

    same_values, _ = Beside.apply(x)
    assert same_values is not x and x.requires_grad and not same_values.requires_grad


# ---- what is shared


def test_a_returned_gradient_stays_the_users() -> None:
    kept = tj.tensor([1.0, 2.0], dtype=tj.float64)

    class Constant(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return kept

    x = leaf(1, 2)
    for _ in range(3):
        Constant.apply(x).sum().backward()
    assert same(x.grad, [3, 6]) and same(kept, [1, 2])


def test_hooks_and_retained_gradients() -> None:
    x = leaf(1, 2)
    y = Square.apply(x)
    y.register_hook(lambda g: g * 10)
    y.retain_grad()
    y.sum().backward()
    assert same(y.grad, [10, 10]) and same(x.grad, [20, 40])


def test_once_differentiable() -> None:
    class Once(Square):
        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            assert not tj.is_grad_enabled()
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x, w = leaf(1, 2), leaf(3, 4)
    Once.apply(x).sum().backward()
    assert same(x.grad, [2, 4])
    (g,) = autograd.grad((Once.apply(x) * w).sum(), x, create_graph=True)
    assert same(g, [6, 16]) and g.requires_grad
    with pytest.raises(RuntimeError, match="differentiate twice a function that was marked with @once_differentiable"):
        g.sum().backward()


def test_a_function_inside_a_function() -> None:
    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            with tj.enable_grad():
                inner = x.detach().requires_grad_()
                out = Square.apply(inner).sum()
            (ctx.slope,) = autograd.grad(out, inner)
            return out.detach()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.slope

    x = leaf(1, 2)
    Outer.apply(x).backward()
    assert same(x.grad, [2, 4])


def test_errors_in_forward_leave_grad_mode_on() -> None:
    class Fails(Function):
        @staticmethod
        def forward(ctx, x):
            raise KeyError("forward")

    with pytest.raises(KeyError):
        Fails.apply(leaf(1))
    assert tj.is_grad_enabled()


@pytest.mark.parametrize("f", [Square.apply, Exp.apply, lambda x: Scale.apply(x * 1, 2.0), Same.apply])
def test_no_reference_cycles(f: object) -> None:
    gc.collect()
    gc.disable()
    try:
        x = leaf(1, 2)
        y = f(x)
        node, value = weakref.ref(y.grad_fn), weakref.ref(y)
        (g,) = autograd.grad((y * y).sum(), x, create_graph=True)
        autograd.grad(g.sum(), x, allow_unused=True)
        y = f(x)
        y.sum().backward()
        del y, g
        assert node() is None and value() is None
        assert gc.collect() == 0
    finally:
        gc.enable()
