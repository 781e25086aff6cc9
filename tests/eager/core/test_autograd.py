"""The tape's interface: leaves and nodes, backward and grad, higher orders, hooks, grad modes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import tapejit as tj
from tapejit import autograd


def leaf(*values: float) -> tj.Tensor:
    return tj.tensor(values, dtype=tj.float64, requires_grad=True)


def same(t: tj.Tensor | None, values: object) -> bool:
    assert t is not None
    return np.allclose(t.detach().numpy(), np.asarray(values), rtol=1e-12, atol=1e-12)


# ---- leaves and nodes


def test_requires_grad_belongs_to_leaves() -> None:
    x = leaf(1, 2)
    y = x * 2
    assert x.is_leaf and not y.is_leaf
    assert x.grad_fn is None and y.grad_fn is not None
    assert y.requires_grad and not y.detach().requires_grad
    y.requires_grad_()
    y.requires_grad = True
    for change in (lambda: y.requires_grad_(False), lambda: setattr(y, "requires_grad", False)):
        with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf variables"):
            change()
    x.requires_grad_(False)
    assert not (x * 2).requires_grad and (x * 2).is_leaf
    with pytest.raises(RuntimeError, match="floating point"):
        tj.tensor([1, 2], requires_grad=True)
    with pytest.raises(RuntimeError, match="floating point"):
        tj.tensor([1, 2]).requires_grad_()


def test_grad_fn_names_and_next_functions() -> None:
    x, c = leaf(1, 2), tj.ones(2, dtype=tj.float64)
    y = (x * c).exp()
    node = y.grad_fn
    assert node.name() == "ExpBackward0"
    assert "ExpBackward0" in repr(node)
    ((mul, index),) = node.next_functions
    assert mul.name() == "MulBackward0" and index == 0
    (first, second) = mul.next_functions
    assert first[0].name() == "AccumulateGrad" and first[0].variable is x
    assert second == (None, 0)
    assert y.grad_fn is node


def test_outputs_of_one_op_share_a_next_function() -> None:
    x = leaf(1, 2, 3, 4)
    a, b = x.split(2)
    assert (a.output_nr, b.output_nr) == (0, 1)
    assert a.grad_fn.name() == "SplitBackward0"
    ((first, i), (second, j)) = (a * b).grad_fn.next_functions
    assert first is second and (i, j) == (0, 1)
    assert first.next_functions[0][0].variable is x
    assert a.grad_fn.next_functions == first.next_functions


def test_integer_and_comparison_results_are_off_the_tape() -> None:
    x = leaf(1, 2)
    for y in (x > 1, x == x, x.long(), x.detach(), x.data):
        assert not y.requires_grad and y.is_leaf


# ---- backward


def test_backward_of_a_scalar_and_with_a_gradient() -> None:
    x = leaf(1, 2, 3)
    (x * x).sum().backward()
    assert same(x.grad, [2, 4, 6])
    y = leaf(1, 2)
    (y * 3).backward(gradient=tj.tensor([1.0, 10.0], dtype=tj.float64))
    assert same(y.grad, [3, 30])
    z = leaf(2)
    (z * z).backward()  # one element is enough
    assert same(z.grad, [4])


def test_backward_refuses_what_it_cannot_do() -> None:
    x = leaf(1, 2)
    with pytest.raises(RuntimeError, match=r"grad can be implicitly created only for scalar outputs.*\[2\]"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad and does not have a grad_fn"):
        x.detach().sum().backward()
    with pytest.raises(RuntimeError, match="element 1 of tensors does not require grad"):
        autograd.backward([x.sum(), x.detach().sum()])
    with pytest.raises(RuntimeError, match=r"Mismatch in shape: grad_output\[0\] has a shape of \[3\]"):
        (x * 2).backward(tj.ones(3, dtype=tj.float64))
    with pytest.raises(TypeError, match="gradients can be either Tensors or None, but got int"):
        (x * 2).backward(3)
    with pytest.raises(RuntimeError, match="`inputs` argument to `backward\\(\\)` cannot be empty"):
        x.sum().backward(inputs=[])
    with pytest.raises(RuntimeError, match="does not require grad"):
        x.sum().backward(inputs=[x.detach()])
    assert x.grad is None


def test_gradients_accumulate_in_one_buffer() -> None:
    x = leaf(1, 2)
    (x * 3).sum().backward()
    buffer, memory = x.grad, x.grad.data_ptr()
    for _ in range(3):
        (x * 3).sum().backward()
    assert x.grad is buffer and x.grad.data_ptr() == memory
    assert same(x.grad, [12, 12])
    x.grad.zero_()
    (x * x).sum().backward()
    assert x.grad is buffer and same(buffer, [2, 4])
    x.grad = None
    (x * x).sum().backward()
    assert x.grad is not buffer and same(x.grad, [2, 4])


def test_gradients_of_leaves_are_nobody_elses_memory() -> None:
    a, b = leaf(1, 2), leaf(3, 4)
    seed = tj.ones(2, dtype=tj.float64)
    for make in (
        lambda: a + b,
        lambda: a * 1 + b * 1,
        lambda: tj.cat([a, b])[:2] + tj.cat([a, b])[2:],
        lambda: (a + b).reshape(2, 1).reshape(2),
        lambda: a + a + b + b,
    ):
        for create_graph in (False, True):
            a.grad = b.grad = None
            autograd.backward(make(), seed, create_graph=create_graph)
            arrays = [a.grad.detach().numpy(), b.grad.detach().numpy(), seed.numpy(), a.detach().numpy(), b.detach().numpy()]
            for i, one in enumerate(arrays):
                for other in arrays[i + 1 :]:
                    assert not np.shares_memory(one, other)
    a.grad = b.grad = None
    a.backward(seed)  # a leaf itself
    a.grad.add_(1)
    assert same(seed, [1, 1])


def test_a_saved_value_never_becomes_a_gradient_buffer() -> None:
    x, w = leaf(1, 2), leaf(3, 4)
    y = x * w
    y.backward(tj.ones(2, dtype=tj.float64), retain_graph=True)
    x.grad.add_(100)
    w.grad.add_(100)
    assert same(x, [1, 2]) and same(w, [3, 4])
    x.grad = w.grad = None
    y.backward(tj.ones(2, dtype=tj.float64))
    assert same(x.grad, [3, 4]) and same(w.grad, [1, 2])


def test_gradient_dtype_follows_the_leaf() -> None:
    x = tj.ones(2, requires_grad=True)
    y = tj.ones(2, dtype=tj.float64, requires_grad=True)
    (x * y).sum().backward()
    assert x.grad.dtype is tj.float32 and y.grad.dtype is tj.float64


def test_backward_into_chosen_inputs_only() -> None:
    x, w = leaf(1, 2), leaf(3, 4)
    h = x * w
    loss = (h * h).sum()
    loss.backward(inputs=[w], retain_graph=True)
    assert x.grad is None and same(w.grad, 2 * np.array([1, 4]) * [3, 4])
    loss.backward(inputs=[h], retain_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(h.grad, [6, 16])
    assert x.grad is None
    loss.backward(inputs=x)
    assert same(x.grad, 2 * np.array([1, 2]) * [9, 16])


def test_several_roots_at_once() -> None:
    x = leaf(1, 2)
    a, b = x * 2, x * x
    autograd.backward([a, b.sum()], [tj.tensor([1.0, 10.0], dtype=tj.float64), None])
    assert same(x.grad, [2 + 2, 20 + 4])
    x.grad = None
    y = x * 2
    autograd.backward([y, y * 3], [tj.ones(2, dtype=tj.float64)] * 2)  # one root below another
    assert same(x.grad, [8, 8])


def test_a_second_backward_needs_retain_graph() -> None:
    x = leaf(1, 2)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert same(x.grad, [4, 8])
    with pytest.raises(RuntimeError, match=r"Trying to backward through the graph a second time.*retain_graph=True"):
        loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        autograd.grad(loss, x)
    assert same(x.grad, [4, 8])


def test_a_second_backward_where_nothing_was_saved() -> None:
    x = leaf(1, 2)
    loss = (x + x).sum()
    loss.backward()
    loss.backward()
    assert same(x.grad, [4, 4])


def test_shared_parts_are_freed_for_both() -> None:
    x = leaf(1, 2)
    h = x.exp()
    a, b = h.sum(), (h * 2).sum()
    a.backward()
    with pytest.raises(RuntimeError, match="second time"):
        b.backward()


def test_unused_leaves_and_constants() -> None:
    x, y = leaf(1), leaf(2)
    (x * 2 + y.detach()).sum().backward()
    assert y.grad is None


def test_diamonds_sum_all_paths() -> None:
    x = leaf(0.5)
    y = x
    for _ in range(20):
        y = y + y
    y.backward()
    assert same(x.grad, [2.0**20])


# ---- grad


def test_grad_leaves_dot_grad_alone() -> None:
    x, w = leaf(1, 2), leaf(3, 4)
    loss = (x * w).sum()
    gx, gw = autograd.grad(loss, [x, w])
    assert same(gx, [3, 4]) and same(gw, [1, 2])
    assert x.grad is None and w.grad is None
    (single,) = autograd.grad((x * x).sum(), x)
    assert same(single, [2, 4])


def test_grad_by_intermediate_values_stops_there() -> None:
    x = leaf(1, 2)
    h = x.exp()
    loss = (h * h).sum()
    (g,) = autograd.grad(loss, h)
    assert same(g, 2 * np.exp([1, 2]))
    h.backward(g)  # what lies below h was not used up
    assert same(x.grad, 2 * np.exp([2, 4]))


def test_grad_by_a_value_and_what_it_is_made_of() -> None:
    x = leaf(1, 2)
    h = x * 3
    gh, gx = autograd.grad((h * h).sum(), [h, x])
    assert same(gh, [6, 12]) and same(gx, [18, 36])
    gx, gx_again = autograd.grad((x * 2).sum(), [x, x])
    assert same(gx, [2, 2]) and same(gx_again, [2, 2])
    (own,) = autograd.grad(h, h, tj.tensor([5.0, 6.0], dtype=tj.float64))
    assert same(own, [5, 6])


def test_grad_of_unused_inputs() -> None:
    x, y = leaf(1), leaf(2, 3)
    with pytest.raises(RuntimeError, match=r"index 1 appears to not have been used in the graph. Set allow_unused=True"):
        autograd.grad((x * 2).sum(), [x, y])
    assert autograd.grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None
    assert same(autograd.grad((x * 2).sum(), [x, y], materialize_grads=True)[1], [0, 0])
    with pytest.raises(ValueError, match="allow_unused"):
        autograd.grad((x * 2).sum(), [x, y], allow_unused=False, materialize_grads=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        autograd.grad((x * 2).sum(), [x.detach()])


def test_grad_takes_tuples_and_generators() -> None:
    x, y = leaf(1), leaf(2)
    found = autograd.grad(((x * y), (x + y)), (t for t in (x, y)), (tj.ones(1, dtype=tj.float64), None))
    assert same(found[0], [3]) and same(found[1], [2])


def test_grad_of_several_seeds_at_once() -> None:
    x, y = leaf(1, 2), leaf(3)
    out = x * x * y
    seeds = tj.eye(2, dtype=tj.float64)
    gx, gy = autograd.grad(out, [x, y], seeds, is_grads_batched=True)
    assert same(gx, [[6, 0], [0, 12]]) and same(gy, [[1], [4]])
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


# ---- higher orders


def test_create_graph_to_fourth_order() -> None:
    x = leaf(0.3, 0.7)
    y = x.sin()
    expected = [np.cos, lambda v: -np.sin(v), lambda v: -np.cos(v), np.sin]
    for derivative in expected:
        (y,) = autograd.grad(y.sum(), x, create_graph=True)
        assert same(y, derivative(np.array([0.3, 0.7])))


def test_backward_with_create_graph_makes_differentiable_grads() -> None:
    x = leaf(1, 2)
    (x**3).sum().backward(create_graph=True)
    assert x.grad.requires_grad and same(x.grad, [3, 12])
    (second,) = autograd.grad(x.grad.sum(), x)
    assert same(second, [6, 12])
    x.grad = None


def test_gradient_penalty() -> None:
    w, x = leaf(0.5, -0.3), leaf(1.0, 2.0)
    (g,) = autograd.grad((w * x).tanh().sum(), x, create_graph=True)
    ((g * g).sum() - 1).square().backward()

    def loss(values: np.ndarray) -> float:
        slope = values * (1 - np.tanh(values * [1.0, 2.0]) ** 2)
        return float(((slope**2).sum() - 1) ** 2)

    at, step = np.array([0.5, -0.3]), np.eye(2) * 1e-6
    assert same(w.grad, w.grad.numpy())
    assert np.allclose(w.grad.numpy(), [(loss(at + s) - loss(at - s)) / 2e-6 for s in step], rtol=1e-6)


def test_saved_outputs_of_several_have_their_history() -> None:
    class Both(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            a, b = x.exp(), x * x
            ctx.save_for_backward(x, a)
            return a, b

        @staticmethod
        def backward(ctx, ga, gb):
            x, a = ctx.saved_tensors
            return ga * a + gb * 2 * x

    x = leaf(0.5, 1.5)
    a, b = Both.apply(x)
    (g,) = autograd.grad((a * a * b).sum(), x, create_graph=True)
    (gg,) = autograd.grad(g.sum(), x)
    v = np.array([0.5, 1.5])
    assert same(g, np.exp(2 * v) * (2 * v**2 + 2 * v))
    assert same(gg, np.exp(2 * v) * (4 * v**2 + 8 * v + 2))


# ---- retain_grad


def test_retain_grad() -> None:
    x = leaf(1, 2)
    y = x * 2
    assert not y.retains_grad and not x.retains_grad
    y.retain_grad()
    y.retain_grad()
    x.retain_grad()
    assert y.retains_grad and not x.retains_grad
    z = y + 0
    z.retain_grad()
    z.sum().backward(retain_graph=True)
    assert same(y.grad, [1, 1]) and same(z.grad, [1, 1])
    assert not np.shares_memory(y.grad.numpy(), z.grad.numpy())
    z.sum().backward()
    assert same(y.grad, [2, 2])
    with pytest.raises(RuntimeError, match="can't retain_grad on Tensor that has requires_grad=False"):
        x.detach().retain_grad()


def test_retain_grad_follows_an_in_place_change() -> None:
    x = leaf(1, 2)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    assert y.retains_grad
    y.sum().backward()
    assert same(y.grad, [1, 1]) and same(x.grad, [6, 6])


def test_grad_of_a_value_that_does_not_retain_it_warns() -> None:
    y = leaf(1) * 2
    with pytest.warns(UserWarning, match="not a leaf Tensor is being accessed"):
        assert y.grad is None


def test_assigning_grad() -> None:
    x = leaf(1, 2)
    x.grad = tj.tensor([5.0, 6.0], dtype=tj.float64)
    x.sum().backward()
    assert same(x.grad, [6, 7])
    with pytest.raises(RuntimeError, match="different size"):
        x.grad = tj.ones(3, dtype=tj.float64)
    with pytest.raises(RuntimeError, match="different type"):
        x.grad = tj.ones(2)
    with pytest.raises(TypeError, match="Tensor or None"):
        x.grad = 3
    with pytest.raises(RuntimeError, match="its own grad"):
        x.grad = x
    assert same(x.grad, [6, 7])
    del x.grad
    assert x.grad is None


# ---- hooks


def test_hooks_see_the_whole_gradient_once() -> None:
    x = leaf(1, 2)
    seen: list[tj.Tensor] = []
    handle = x.register_hook(lambda g: seen.append(g.clone()))
    (x * x + x).sum().backward()
    assert len(seen) == 1 and same(seen[0], [3, 5])
    handle.remove()
    (x * x).sum().backward()
    assert len(seen) == 1
    y = x * 2
    y.register_hook(lambda g: seen.append(g.clone()))
    (y * y + y).sum().backward()
    assert len(seen) == 2 and same(seen[1], [5, 9])


def test_hooks_replace_gradients_in_order() -> None:
    x = leaf(1, 2)
    x.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: None)
    y = x * 1
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    y.register_hook(lambda g: g + 5)
    y.sum().backward()
    assert same(y.grad, [7, 7])  # retained after all hooks
    assert same(x.grad, [71, 71])
    assert same(autograd.grad((x * 1).sum(), x)[0], [11, 11])


def test_hooks_during_create_graph_are_differentiated() -> None:
    x = leaf(1, 2)
    y = x * x
    y.register_hook(lambda g: g * x.detach())
    (g,) = autograd.grad(y.sum(), x, create_graph=True)
    (gg,) = autograd.grad(g.sum(), x)
    assert same(g, [2, 8]) and same(gg, [2, 4])


def test_a_saved_output_of_several_is_the_tensor_the_user_has() -> None:
    x = tj.tensor([1.0, 2.0, 4.0], dtype=tj.float64, requires_grad=True)
    s = x.std()  # one of two outputs, and saved for the gradient
    (g,) = autograd.grad(s, x, create_graph=True)
    loss = (g * g).sum()
    (before,) = autograd.grad(loss, s, retain_graph=True)
    assert before.item() == pytest.approx(-2 * (g * g).sum().item() / s.item())  # g is (x - mean) / (2 s)
    s.register_hook(lambda g: g * 0)
    (whole,) = autograd.grad(loss, x, retain_graph=True)
    assert not whole.isnan().any()
    assert autograd.grad(loss, s)[0].item() == 0


def test_a_hook_must_return_a_tensor() -> None:
    x = leaf(1)
    with x.register_hook(lambda g: 3), pytest.raises(TypeError, match="int"):
        x.sum().backward()
    x.sum().backward()
    assert same(x.grad, [1])
    with pytest.raises(RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"):
        x.detach().register_hook(print)


def test_a_hook_s_gradient_has_the_shape_and_type_of_the_one_it_replaces() -> None:
    for wrong, words in ((lambda g: tj.ones(5), "changed the size of value"), (lambda g: g.int(), "changed the type of value")):
        for on_leaf in (True, False):
            x = tj.ones(2, requires_grad=True)
            y = x * 2
            (x if on_leaf else y).register_hook(wrong)
            with pytest.raises(RuntimeError, match=words):
                y.sum().backward()
            assert x.grad is None


def test_a_backward_pass_that_fails_leaves_no_part_of_a_gradient() -> None:
    def fails(g: tj.Tensor) -> None:
        raise KeyError("stop")

    x, before = tj.ones(2, requires_grad=True), tj.ones(2, requires_grad=True)
    (before * 2).sum().backward()
    y = x * 2
    y.register_hook(fails)
    with pytest.raises(KeyError):
        ((y * before).sum() + (x * 3).sum()).backward()
    assert x.grad is None
    assert tj.is_grad_enabled()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_hooks_stay_with_the_value_they_were_set_on() -> None:
    x = leaf(1, 2)
    y = x * 2
    seen: list[tj.Tensor] = []
    y.register_hook(lambda g: seen.append(g.clone()))
    y.mul_(3)
    y.sum().backward()
    assert same(seen[0], [3, 3])


def test_hooks_on_one_of_several_outputs() -> None:
    x = leaf(1, 2, 3, 4)
    a, b = x.split(2)
    a.register_hook(lambda g: g * 7)
    b.retain_grad()
    (a * b).sum().backward()
    assert same(x.grad, [21, 28, 1, 2]) and same(b.grad, [1, 2])


def test_post_accumulate_hooks() -> None:
    x = leaf(1, 2)
    seen: list[tj.Tensor] = []

    def step(p: tj.Tensor) -> None:
        seen.append(p.grad.clone())
        p.grad = None

    handle = x.register_post_accumulate_grad_hook(step)
    (x * x + x).sum().backward()
    assert len(seen) == 1 and same(seen[0], [3, 5]) and x.grad is None
    autograd.grad((x * x).sum(), x)
    assert len(seen) == 1
    handle.remove()
    (x * x).sum().backward()
    assert same(x.grad, [2, 4])
    with pytest.raises(RuntimeError, match="non-leaf"):
        (x * 2).register_post_accumulate_grad_hook(print)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        x.detach().register_post_accumulate_grad_hook(print)


def test_a_gradient_hook_does_not_alias_what_it_returns() -> None:
    x, mine = leaf(1, 2), tj.tensor([5.0, 6.0], dtype=tj.float64)
    x.register_hook(lambda g: mine)
    x.sum().backward()
    x.sum().backward()
    assert same(x.grad, [10, 12]) and same(mine, [5, 6])


# ---- grad modes


def test_no_grad_and_enable_grad() -> None:
    x = leaf(1)
    with tj.no_grad():
        assert not tj.is_grad_enabled() and not (x * 2).requires_grad
        with tj.enable_grad():
            assert (x * 2).requires_grad
        assert not tj.is_grad_enabled()
        assert tj.ones(1, requires_grad=True).requires_grad
    assert tj.is_grad_enabled()


MODES = {
    "no_grad": lambda: tj.no_grad,
    "no_grad()": lambda: tj.no_grad(),
    "inference_mode": lambda: tj.inference_mode,
    "inference_mode()": lambda: tj.inference_mode(),
    "set_grad_enabled(False)": lambda: tj.set_grad_enabled(False),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_decorate_functions(name: str) -> None:
    @MODES[name]()
    def f(x: tj.Tensor, k: int = 2) -> tuple[tj.Tensor, bool]:
        """doc"""
        return x * k, tj.is_grad_enabled()

    assert f.__name__ == "f" and f.__doc__ == "doc"
    y, enabled = f(leaf(1), k=3)
    assert not y.requires_grad and not enabled and same(y, [3])
    assert tj.is_grad_enabled()


def test_enable_grad_decorates_with_and_without_parentheses() -> None:
    @tj.enable_grad
    def f() -> bool:
        return tj.is_grad_enabled()

    @tj.enable_grad()
    def g() -> bool:
        return tj.is_grad_enabled()

    @tj.set_grad_enabled(True)
    def h() -> bool:
        return tj.is_grad_enabled()

    with tj.no_grad():
        assert f() and g() and h() and not tj.is_grad_enabled()


def test_modes_end_with_an_exception() -> None:
    @tj.no_grad()
    def f() -> None:
        raise KeyError

    for mode in (tj.no_grad, tj.inference_mode, lambda: tj.set_grad_enabled(False)):
        with pytest.raises(KeyError), mode():
            raise KeyError
        assert tj.is_grad_enabled() and not tj.is_inference_mode_enabled()
    with pytest.raises(KeyError):
        f()
    assert tj.is_grad_enabled()


def test_a_decorated_function_may_call_itself() -> None:
    @tj.no_grad()
    def f(n: int) -> int:
        assert not tj.is_grad_enabled()
        return 0 if n == 0 else 1 + f(n - 1)

    assert f(5) == 5 and tj.is_grad_enabled()


def test_one_mode_object_used_again_and_nested() -> None:
    mode = tj.no_grad()
    with mode:
        with mode:
            pass
        assert not tj.is_grad_enabled()
    with mode:
        assert not tj.is_grad_enabled()
    assert tj.is_grad_enabled()
    switch = tj.set_grad_enabled(False)
    for _ in range(2):
        with switch:
            assert not tj.is_grad_enabled()
        assert tj.is_grad_enabled()


def test_set_grad_enabled_as_a_statement() -> None:
    tj.set_grad_enabled(False)
    try:
        assert not tj.is_grad_enabled()
        with tj.set_grad_enabled(True):
            assert tj.is_grad_enabled()
        assert not tj.is_grad_enabled()
    finally:
        tj.set_grad_enabled(True)
    assert tj.is_grad_enabled()


def test_modes_decorate_generators() -> None:
    log: list[object] = []

    @tj.no_grad()
    def numbers():
        try:
            got = yield tj.is_grad_enabled()
            log.append(got)
            try:
                yield tj.is_grad_enabled()
            except KeyError:
                log.append("caught")
                yield tj.is_grad_enabled()
            return "end"
        finally:
            log.append(tj.is_grad_enabled())

    g = numbers()
    assert next(g) is False and tj.is_grad_enabled()
    assert g.send("sent") is False and tj.is_grad_enabled()
    assert g.throw(KeyError()) is False and tj.is_grad_enabled()
    with pytest.raises(StopIteration, match="end"):
        next(g)
    assert log == ["sent", "caught", False] and tj.is_grad_enabled()
    g = numbers()
    next(g)
    g.close()
    assert log[-1] is False and tj.is_grad_enabled()
    with tj.no_grad():
        assert list(iter(tj.enable_grad()(lambda: (yield tj.is_grad_enabled()))())) == [True]


def test_grad_mode_belongs_to_the_thread() -> None:
    seen: list[bool] = []
    with tj.no_grad():
        thread = threading.Thread(target=lambda: seen.append(tj.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_inference_mode() -> None:
    x = leaf(1, 2)
    assert not tj.is_inference_mode_enabled()
    with tj.inference_mode():
        assert tj.is_inference_mode_enabled() and not tj.is_grad_enabled()
        y = x * 2
        assert y.is_inference() and not y.requires_grad
        assert not x.is_inference() and not x[0].is_inference() and y[0].is_inference()
        with tj.inference_mode(False):
            assert not tj.is_inference_mode_enabled() and (x * 2).requires_grad
    assert tj.is_grad_enabled() and not tj.is_inference_mode_enabled()
    assert not (x * 2).is_inference() and not y.clone().is_inference()


def made_in_inference_mode() -> tj.Tensor:
    with tj.inference_mode():
        return tj.ones(3, dtype=tj.float64)


SAVED = "Inference tensors cannot be saved for backward"


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x: w * x,
        lambda w, x: w / x,
        lambda w, x: w @ x,
        lambda w, x: w * x.view(3),
        lambda w, x: w * x[0],
        lambda w, x: w * x.detach(),
        lambda w, x: (w * 1).mul_(x),
        lambda w, x: w[x.long()] if x.long().is_inference() else w * x,
        lambda w, x: tj.autograd.grad((w * w).sum() * x[0], w),
        lambda w, x: (w * w).backward(x, create_graph=True),
        lambda w, x: tj.utils.checkpoint.checkpoint(lambda x: w * x, x),
    ],
)
def test_inference_tensors_are_not_saved(use: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError, match=SAVED):
        use(leaf(1, 2, 3), made_in_inference_mode())


def test_inference_tensors_where_nothing_is_saved() -> None:
    w, x = leaf(1, 2, 3), made_in_inference_mode()
    (w + x - x).sum().backward()
    assert same(w.grad, np.ones(3))
    assert (w * x.clone()).requires_grad
    with tj.no_grad():
        assert not (w * x).requires_grad
    assert not (x * x).requires_grad
    (w * 2).backward(x)
    assert same(w.grad, np.full(3, 3.0))


def test_inference_tensors_stay_what_they_are() -> None:
    x = made_in_inference_mode()
    for write in (lambda: x.add_(1), lambda: x.copy_(tj.ones(3)), lambda: x[:1].zero_(), lambda: x.add_(leaf(1, 2, 3))):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode is not allowed"):
            write()
    for ask in (x.requires_grad_, lambda: tj.nn.Parameter(x)):
        with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor outside InferenceMode"):
            ask()
    w = leaf(1, 2, 3)
    w.grad = made_in_inference_mode()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        (w * 2).sum().backward()
    with tj.inference_mode():
        assert same(x.add_(1), np.full(3, 2.0)) and x.requires_grad_().requires_grad
        assert tj.tensor([1.0]).is_inference() and tj.from_numpy(np.ones(2)).is_inference()
        assert not w.is_inference() and x.detach().is_inference()


def test_modules_made_in_inference_mode_can_be_trained() -> None:
    with tj.inference_mode():
        layer = tj.nn.Linear(3, 1)
    layer(tj.ones(2, 3)).sum().backward()
    assert layer.weight.grad is not None


# ---- the rest


def test_detach_shares_memory_and_history_ends() -> None:
    x = leaf(1, 2)
    y = x * 2
    d = y.detach()
    assert np.shares_memory(d.numpy(), y.detach().numpy()) and d.is_leaf and not d.requires_grad
    y.detach_()
    assert y.is_leaf and not y.requires_grad
    with pytest.raises(RuntimeError, match="detach views in-place"):
        (x * 2)[0].detach_()


def test_variable_is_a_tensor() -> None:
    x = tj.ones(2)
    v = autograd.Variable(x, requires_grad=True)
    assert isinstance(v, tj.Tensor) and isinstance(x, autograd.Variable) and v.requires_grad and not x.requires_grad
    assert np.shares_memory(v.detach().numpy(), x.numpy())
    assert not isinstance(3, autograd.Variable)
    with pytest.raises(TypeError, match="has to be a tensor"):
        autograd.Variable([1.0])


def test_broadcast_gradients_are_summed_back() -> None:
    a = tj.ones(3, 1, dtype=tj.float64, requires_grad=True)
    b = tj.ones(4, dtype=tj.float64, requires_grad=True)
    c = tj.ones((), dtype=tj.float64, requires_grad=True)
    (a * 2 + b * 3 + c).sum().backward()
    assert same(a.grad, np.full((3, 1), 8)) and same(b.grad, np.full(4, 9)) and same(c.grad, 12)


def test_backward_inside_a_hook_and_inside_no_grad() -> None:
    x, w = leaf(1, 2), leaf(3, 4)

    def hook(g: tj.Tensor) -> None:
        with tj.enable_grad():
            (w * w).sum().backward()

    y = x * 2
    y.register_hook(hook)
    total = y.sum()
    with tj.no_grad():
        total.backward()
        assert not tj.is_grad_enabled()
    assert same(x.grad, [2, 2]) and same(w.grad, [6, 8])


def test_an_error_in_backward_leaves_the_mode_and_other_leaves_usable() -> None:
    x = leaf(1, 2)
    y = x * 2

    def fail(g: tj.Tensor) -> None:
        raise KeyError("hook")

    handle = y.register_hook(fail)
    with pytest.raises(KeyError):
        y.sum().backward()
    assert tj.is_grad_enabled() and x.grad is None
    handle.remove()
    y.sum().backward()
    assert same(x.grad, [2, 2])


def test_hooks_on_nodes() -> None:
    x, b = leaf(1, 2), leaf(3)
    y = x * b
    seen: list[object] = []
    before = y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
    after = y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    y.sum().backward(retain_graph=True)
    (((gx, gb), (g,)),) = seen
    assert same(g, [2, 2]) and same(gx, [6, 6]) and same(gb, [6])
    assert same(x.grad, [6, 6]) and same(b.grad, [6])
    before.remove()
    after.remove()
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10, None))
    x.grad = b.grad = None
    y.sum().backward()
    assert same(x.grad, [30, 30]) and b.grad is None
    a, _ = leaf(1, 2).split(1)
    a.grad_fn.register_prehook(lambda gs: seen.append(gs))
    a.sum().backward()
    assert seen[-1][1] is None and same(seen[-1][0], [1])
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: ())
    with pytest.raises(RuntimeError, match="incorrect number of values"):
        y.sum().backward()


def test_grad_takes_only_inputs_where_pytorch_does() -> None:
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    (found,) = tj.autograd.grad(x.square().sum(), x, only_inputs=True)
    assert found.tolist() == [2, 4]
    y = tj.ones(1, requires_grad=True)
    assert tj.autograd.grad(x.sum(), (x, y), None, None, False, True, True)[1] is None
    with pytest.warns(FutureWarning, match="only_inputs argument is deprecated"):
        tj.autograd.grad(x.sum(), x, only_inputs=False)


def test_adding_to_a_gradient_is_a_write() -> None:
    w = tj.ones(2, requires_grad=True)
    for i in range(3):
        (w * 3).sum().backward()
        assert w.grad._version == i
