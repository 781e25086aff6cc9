"""In-place writes under autograd: through views and under them, what is an error, and version counters."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import autograd

WEIGHTS = np.random.default_rng(3).uniform(0.5, 1.5, (3, 4))


def leaf(shape: tuple[int, ...] = (3, 4), seed: int = 0) -> tj.Tensor:
    values = np.random.default_rng(seed).uniform(0.5, 1.5, shape)
    return tj.tensor(values, dtype=tj.float64, requires_grad=True)


def constant(array: Any) -> tj.Tensor:
    return tj.tensor(array, dtype=tj.float64)


def same(t: tj.Tensor | None, values: Any) -> bool:
    assert t is not None
    return np.allclose(t.detach().numpy(), values.detach().numpy() if isinstance(values, tj.Tensor) else values, rtol=1e-10)


def agree(in_place: Callable[..., tj.Tensor], without: Callable[..., tj.Tensor], *shapes: tuple[int, ...]) -> None:
    """Two ways to write a function agree in value, first and second gradients, and with finite differences."""
    xs = [leaf(shape, seed) for seed, shape in enumerate(shapes or ((3, 4),))]
    a, b = in_place(*xs), without(*xs)
    assert same(a, b)
    first = [autograd.grad((t * t).sum(), xs, create_graph=True, materialize_grads=True) for t in (a, b)]
    for ga, gb in zip(*first, strict=True):
        assert same(ga, gb)
    second = [autograd.grad(sum((g * g).sum() for g in gs), xs, materialize_grads=True) for gs in first]
    for ga, gb in zip(*second, strict=True):
        assert same(ga, gb)
    assert autograd.gradcheck(in_place, xs)


# ---- views written through: (the write, the view's place in NumPy's terms)

VIEWS: dict[str, Callable[[tj.Tensor], tj.Tensor]] = {
    "row": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "column": lambda x: x[:, 1],
    "slice": lambda x: x[1:, :2],
    "steps": lambda x: x[::2, 1::2],
    "whole": lambda x: x[...],
    "new axis": lambda x: x[:, None],
    "transposed": lambda x: x.T,
    "permuted": lambda x: x.permute(1, 0),
    "flat": lambda x: x.view(-1),
    "reshaped": lambda x: x.reshape(2, 6),
    "unsqueezed": lambda x: x.unsqueeze(0),
    "squeezed": lambda x: x[:1].squeeze(0),
    "narrowed": lambda x: x.narrow(1, 1, 2),
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(3)[2],
    "unbound": lambda x: x.unbind(1)[2],
    "view of a view": lambda x: x[1:].T[1:3][:, 0],
    "row of the transposed flat": lambda x: x.T[2][1:],
    "split of a split": lambda x: x.split(2, 1)[0].unbind(0)[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_a_view_reach_the_base(name: str) -> None:
    view = VIEWS[name]
    places = view(tj.arange(12).reshape(3, 4)).numpy().reshape(-1)
    mask = np.zeros(12)
    mask[places] = 1
    inside = constant(mask.reshape(3, 4))

    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        view(y).mul_(3).add_(1)
        return y

    agree(in_place, lambda x: x * (1 - inside) + (x * 3 + 1) * inside)


@pytest.mark.parametrize("name", VIEWS)
def test_writes_to_the_base_reach_a_view(name: str) -> None:
    view = VIEWS[name]

    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        v = view(y)
        y.mul_(y).add_(x)
        return v

    agree(in_place, lambda x: view(x * x + x))


@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_one_view_reach_another(name: str) -> None:
    view = VIEWS[name]

    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        v, rows = view(y), y[:2]
        rows.exp_()
        v.mul_(2)
        return rows + 0

    def without(x: tj.Tensor) -> tj.Tensor:
        y = tj.cat([x[:2].exp(), x[2:]])
        places = view(tj.arange(12).reshape(3, 4)).numpy().reshape(-1)
        factor = np.ones(12)
        factor[places] = 2
        return (y * constant(factor.reshape(3, 4)))[:2]

    agree(in_place, without)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_constant_takes_a_value_with_history(name: str) -> None:
    view = VIEWS[name]

    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = constant(WEIGHTS)
        view(y).copy_(view(x) * 2)
        assert y.requires_grad and not y.is_leaf
        return y

    def without(x: tj.Tensor) -> tj.Tensor:
        places = view(tj.arange(12).reshape(3, 4)).numpy().reshape(-1)
        mask = np.zeros(12)
        mask[places] = 1
        inside = constant(mask.reshape(3, 4))
        return constant(WEIGHTS) * (1 - inside) + x * 2 * inside

    agree(in_place, without)


def test_a_view_made_before_its_base_had_a_history() -> None:
    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = constant(WEIGHTS)
        v = y[1:]
        assert not v.requires_grad
        y.mul_(x)
        assert v.requires_grad and not v.is_leaf
        return v

    agree(in_place, lambda x: (constant(WEIGHTS) * x)[1:])


def test_every_piece_written_in_turn() -> None:
    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        for i, piece in enumerate(y.chunk(2, 1)):
            piece.mul_(i + 2)
        for i, row in enumerate(y.unbind(0)):
            row.add_(row.sum() * i)
        return y

    def without(x: tj.Tensor) -> tj.Tensor:
        y = tj.cat([x[:, :2] * 2, x[:, 2:] * 3], 1)
        return tj.stack([y[i] + y[i].sum() * i for i in range(3)])

    agree(in_place, without)


def test_a_running_state() -> None:
    def in_place(x: tj.Tensor) -> tj.Tensor:
        state = tj.zeros(4, dtype=tj.float64)
        out = tj.zeros(3, 4, dtype=tj.float64)
        for t in range(3):
            state.mul_(0.5).add_(x[t].tanh())
            out[t] = state
        return out

    def without(x: tj.Tensor) -> tj.Tensor:
        state, rows = tj.zeros(4, dtype=tj.float64), []
        for t in range(3):
            state = state * 0.5 + x[t].tanh()
            rows.append(state)
        return tj.stack(rows)

    agree(in_place, without)


def test_augmented_assignment_and_setitem() -> None:
    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        y += x
        y[1] *= 2
        y[:, 0] = x[:, 1]
        y[0, 0] = 7.0
        y -= 0.5
        y /= 2
        return y

    def without(x: tj.Tensor) -> tj.Tensor:
        rows = (x * 2) * constant([[1.0], [2.0], [1.0]])
        first = x[:, 1:2] * constant([[0.0], [1.0], [1.0]]) + constant([[7.0], [0.0], [0.0]])
        return (tj.cat([first, rows[:, 1:]], 1) - 0.5) / 2

    agree(in_place, without)


def test_setitem_by_mask_and_integers() -> None:
    hit = constant(WEIGHTS) > 1

    def by_mask(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        y[hit] = 0.25
        return y

    agree(by_mask, lambda x: x * (1 - hit.double()) + 0.25 * hit.double())

    def by_integers(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        y[tj.tensor([0, 2])] = x[1] * 3
        return y

    agree(by_integers, lambda x: tj.stack([x[1] * 3, x[1], x[1] * 3]))


IN_PLACE: dict[str, tuple[Callable[[tj.Tensor, tj.Tensor], Any], Callable[[tj.Tensor, tj.Tensor], tj.Tensor]]] = {
    "add_": (lambda y, w: y.add_(w), lambda y, w: y + w),
    "sub_": (lambda y, w: y.sub_(w, alpha=2), lambda y, w: y - 2 * w),
    "mul_": (lambda y, w: y.mul_(w), lambda y, w: y * w),
    "div_": (lambda y, w: y.div_(w), lambda y, w: y / w),
    "pow_": (lambda y, w: y.pow_(w), lambda y, w: y**w),
    "mul_ by itself": (lambda y, w: y.mul_(y), lambda y, w: y * y),
    "mul_ by its transpose": (
        lambda y, w: y[:, :3].mul_(y[:, :3].T),
        lambda y, w: tj.cat([y[:, :3] * y[:, :3].T, y[:, 3:]], 1),
    ),
    "add_ a broadcast row of itself": (lambda y, w: y.add_(y[0]), lambda y, w: y + y[0]),
    "exp_": (lambda y, w: y.exp_(), lambda y, w: y.exp()),
    "log_": (lambda y, w: y.log_(), lambda y, w: y.log()),
    "sqrt_": (lambda y, w: y.sqrt_(), lambda y, w: y.sqrt()),
    "tanh_": (lambda y, w: y.tanh_(), lambda y, w: y.tanh()),
    "sigmoid_": (lambda y, w: y.sigmoid_(), lambda y, w: y.sigmoid()),
    "reciprocal_": (lambda y, w: y.reciprocal_(), lambda y, w: y.reciprocal()),
    "neg_": (lambda y, w: y.neg_(), lambda y, w: -y),
    "clamp_": (lambda y, w: y.clamp_(0.8, 1.2), lambda y, w: y.clamp(0.8, 1.2)),
    "copy_": (lambda y, w: y.copy_(w), lambda y, w: w * 1 + 0 * y),
    "copy_ broadcast": (lambda y, w: y.copy_(w[0]), lambda y, w: w[0].expand(3, 4) + 0 * y),
    "zero_": (lambda y, w: y.zero_(), lambda y, w: 0 * y),
    "fill_": (lambda y, w: y.fill_(w[0, 0]), lambda y, w: 0 * y + w[0, 0]),
    "masked_fill_": (
        lambda y, w: y.masked_fill_(constant(WEIGHTS) > 1, 0.1),
        lambda y, w: tj.where(constant(WEIGHTS) > 1, tj.full((), 0.1, dtype=tj.float64), y),
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("view", ["whole tensor", "permuted", "slice of rows"])
def test_in_place_ops_equal_the_others(name: str, view: str) -> None:
    change, value = IN_PLACE[name]

    def in_place(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
        if view == "whole tensor":
            y = x * 1
            change(y, w)
            return y
        if view == "permuted":
            y = (x * 1).T.contiguous()
            change(y.T, w)
            return y.T
        y = tj.cat([x, x])
        change(y[:3], w)
        return y

    def without(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
        return tj.cat([value(x * 1, w), x]) if view == "slice of rows" else value(x * 1, w)

    agree(in_place, without, (3, 4), (3, 4))


# ---- random programs against finite differences


class Program:
    """A random sequence of views, in-place writes and ordinary ops, the same one each time it runs."""

    VIEWS = (
        lambda t: t[: max(1, t.shape[0] // 2)],
        lambda t: t[-1:],
        lambda t: t.transpose(0, -1),
        lambda t: t.reshape(-1),
        lambda t: t.unsqueeze(0),
        lambda t: t[..., ::2],
        lambda t: t.split(2, -1)[-1],
        lambda t: t.unbind(0)[-1] if t.ndim > 1 else t[...],
        lambda t: t.diagonal() if t.ndim == 2 else t[...],
    )
    WRITES = (
        lambda t, s: t.mul_(1.1),
        lambda t, s: t.add_(s),
        lambda t, s: t.mul_(s * 0.5),
        lambda t, s: t.tanh_(),
        lambda t, s: t.mul_(0.3).exp_(),
        lambda t, s: t.copy_(s * 0.9),
        lambda t, s: t.add_(t.sum(0)),
        lambda t, s: t.zero_(),
        lambda t, s: t.__setitem__(0, 0.5),
    )
    VALUES = (lambda t, s: t * s, lambda t, s: (t * 0.3).exp(), lambda t, s: t.sin() + s)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
        choose = random.Random(self.seed)
        values = [x * 1.0, x + w, constant(WEIGHTS), (w * 1.0).expand(2, 4) * 1.0]
        for _ in range(9):
            t = choose.choice(values)
            kind = choose.choice("vvwwwo")
            if kind == "v":
                values.append(choose.choice(self.VIEWS)(t))
                continue
            other = choose.choice([s for s in values if s.shape == t.shape])
            if kind == "w":
                choose.choice(self.WRITES)(t, other)
            else:
                values.append(choose.choice(self.VALUES)(t, other))
        return sum(((t * t).sum() * (i + 1) for i, t in enumerate(values)), constant(0.0))


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    """Right to second order, or, where a value that is needed was overwritten, an error; never a wrong gradient."""
    inputs = (leaf((3, 4), seed), leaf((4,), seed + 1000))
    try:
        assert autograd.gradcheck(Program(seed), inputs, rtol=1e-4)
        assert autograd.gradgradcheck(Program(seed), inputs, fast_mode=True)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise


def test_most_random_programs_have_gradients() -> None:
    inputs = (leaf((3, 4)), leaf((4,), 1))
    fine = 0
    for seed in range(60):
        try:
            autograd.grad(Program(seed)(*inputs), inputs, allow_unused=True)
            fine += 1
        except RuntimeError:
            pass
    assert fine > 20


# ---- errors


def test_leaves_that_require_grad_refuse_in_place_writes() -> None:
    x = leaf()
    before = x.detach().clone()
    for write in (
        lambda: x.add_(1),
        lambda: x.zero_(),
        lambda: x.__iadd__(1),
        lambda: x.__setitem__(0, 1.0),
        lambda: x.copy_(before),
        lambda: x.exp_(),
        lambda: x.mul_(x),
    ):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
            write()
    for write in (lambda: x[0].add_(1), lambda: x.view(-1).zero_(), lambda: x.T[1:].mul_(2), lambda: x.unbind(0)[0].exp_()):
        with pytest.raises(RuntimeError, match="view of a leaf Variable that requires grad is being used in an in-place"):
            write()
    assert same(x, before) and x._version == 0 and x.is_leaf
    with tj.no_grad():
        x.add_(1)
        x[0] = 5.0
        x.T[1:].mul_(2)
    assert x.is_leaf and x.requires_grad and x._version == 3


def test_a_constant_that_takes_history_is_no_leaf() -> None:
    c, x = tj.zeros(3, 4, dtype=tj.float64), leaf()
    c.add_(x)
    assert c.requires_grad and not c.is_leaf
    c.sum().backward()
    assert same(x.grad, np.ones((3, 4)))


def test_expanded_tensors_can_be_filled() -> None:
    """As in PyTorch: whatever the order of writes, each element gets the same number."""
    base = tj.arange(4.0).reshape(1, 4)
    wide = base.expand(3, 4)
    assert wide.fill_(2) is wide and wide.tolist() == [[2.0] * 4] * 3 and base.tolist() == [[2.0] * 4]
    assert wide._version == base._version == 1
    wide[1:].zero_()
    assert wide.tolist() == [[0.0] * 4] * 3
    assert tj.tensor(1.0).expand(2, 3).fill_(tj.tensor(5.0)).tolist() == [[5.0] * 3] * 2
    assert tj.tensor(1.0).expand(0).zero_().shape == (0,)


def test_filling_an_expanded_tensor_is_on_the_tape() -> None:
    x = leaf((1, 4))
    base = x * 2
    wide = base.expand(3, 4)
    wide.zero_()
    (wide.sum() + base.sum()).backward()
    assert same(x.grad, np.zeros((1, 4))) and same(wide, np.zeros((3, 4)))


def test_filling_expanded_tensors_in_compiled_functions() -> None:
    def step(x: tj.Tensor) -> tj.Tensor:
        base = x * 2
        base.expand(3, 4).fill_(7)
        return base + 1

    compiled = tj.compile(step, warmup=1)
    for _ in range(4):
        assert same(compiled(tj.ones(1, 4)), np.full((1, 4), 8.0))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_not_added_to_expanded_ones(compiled: bool) -> None:
    """Each of their elements would be added several times, or once: PyTorch refuses it."""
    w = tj.ones(3, requires_grad=True)

    def step() -> None:
        (w * 2).sum().backward()

    run = tj.compile(step, warmup=1) if compiled else step
    for _ in range(4):
        w.grad = None
        run()
        assert same(w.grad, np.full(3, 2.0))
    for _ in range(2):
        w.grad = tj.ones(()).expand(3)
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
            run()
    w.grad = tj.ones(1).expand(1, 1).reshape(1).expand(3)
    (w * 2).sum().backward(create_graph=True)  # makes a new one
    assert same(w.grad, np.full(3, 3.0))


def test_expanded_tensors_refuse_in_place_writes() -> None:
    for base in (tj.zeros(1, 4, dtype=tj.float64), leaf((1, 4)) * 1):
        wide = base.expand(3, 4)
        before = base.detach().clone()
        for write in (lambda w=wide: w.add_(1), lambda w=wide: w.__setitem__(0, 1.0) if w.stride(0) else w.mul_(0)):
            with pytest.raises(RuntimeError, match=r"single memory location|expanded"):
                write()
        assert same(base, before)
        wide[0].add_(1)  # one row of it is memory like any other
        assert same(wide, np.broadcast_to(before.numpy() + 1, (3, 4)))


def test_views_made_without_grad() -> None:
    x = leaf() * 1
    with tj.no_grad():
        v = x[0]
    with pytest.raises(RuntimeError, match="no_grad mode and is being modified inplace with grad mode enabled"):
        v.mul_(2)
    with tj.no_grad():
        v.mul_(2)
    c = tj.zeros(2, 2)
    with tj.no_grad():
        r = c[0]
    r.add_(1)  # nothing here wants a gradient
    assert same(c, [[1, 1], [0, 0]])


def test_shapes_and_dtypes_that_do_not_fit_leave_the_target_as_it_was() -> None:
    x = tj.arange(3)
    with pytest.raises(RuntimeError, match="Float can't be cast to the desired output type Long"):
        x.add_(0.5)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.add_(tj.ones(2, 3, dtype=tj.int64))
    with pytest.raises(RuntimeError, match=r"must match|broadcast"):
        x.add_(tj.ones(4, dtype=tj.int64))
    assert x.tolist() == [0, 1, 2] and x._version == 0


# ---- versions


def test_versions_count_writes_and_are_shared_by_views() -> None:
    x = tj.zeros(3, 4)
    v, d, data = x[0], x.detach(), x.data
    assert x._version == 0
    x.add_(1)
    v.mul_(2)
    d.zero_()
    x[0, 0] = 1.0
    assert x._version == v._version == d._version == x.T._version == 4
    assert data._version == 0
    data.add_(1)  # nobody knows
    assert x._version == 4 and x[1, 1].item() == 1
    y = x.clone()
    y.add_(1)
    assert x._version == 4 and y._version == 1


OVERWRITTEN: dict[str, Callable[[tj.Tensor], tj.Tensor]] = {
    "an input": lambda y: (y * y, y.add_(1))[0],
    "an output": lambda y: (lambda e: (e, e.add_(1))[0])(y.exp()),
    "through a view": lambda y: (y * y, y[0].add_(1))[0],
    "under a view": lambda y: (lambda v: (v * v, y.zero_())[0])(y[1:]),
    "through another view": lambda y: (lambda v: (v * v, y.T.add_(1))[0])(y[1:]),
    "through detach": lambda y: (y * y, y.detach().add_(1))[0],
    "without grad": lambda y: (y * y, in_no_grad(lambda: y.add_(1)))[0],
    "by setitem": lambda y: (y * y, y.__setitem__(0, 1.0))[0],
    "of matmul": lambda y: (y @ y.T, y.mul_(2))[0],
    "twice": lambda y: (y.sqrt(), y.add_(1), y.add_(1))[0] * (y.exp_() * y.mul_(2)),
}


def in_no_grad(f: Callable[[], Any]) -> Any:
    with tj.no_grad():
        return f()


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_overwritten_saved_values_are_an_error(name: str) -> None:
    x = leaf()
    out = OVERWRITTEN[name](x * 1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*is at version [1-9].*expected version"):
        out.sum().backward()
    assert x.grad is None


def test_overwriting_what_nobody_needs_is_fine() -> None:
    x = leaf()
    y = x * 2
    z = y + 1
    y.add_(5)
    w = z.sum()
    z.mul_(3)
    w.backward()
    assert same(x.grad, np.full((3, 4), 2))


def test_dot_data_is_not_watched() -> None:
    x = leaf()
    y = x * 1
    z = y * y
    before = y.detach().clone()
    y.data.add_(1)
    z.sum().backward()
    assert same(x.grad, 2 * (before.numpy() + 1))  # as in PyTorch: the price of .data


def test_writes_after_backward_are_fine() -> None:
    x = leaf()
    y = x.exp()
    y.sum().backward()
    y.add_(1)
    assert not y.is_leaf


def test_optimizer_steps_between_forward_and_backward_are_noticed() -> None:
    w, x = leaf((4,)), leaf((3, 4))
    loss = (x * w).sum()
    with tj.no_grad():
        w.sub_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_saved_by_name_in_the_message() -> None:
    y = leaf() * 1
    z = y.exp()
    z.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \[3, 4\].*ExpBackward0"):
        z.sum().backward()


# ---- history moves with the tensor


def test_grad_fn_after_in_place() -> None:
    x = leaf()
    y = x * 1
    v = y[0]
    y.exp_()
    assert y.grad_fn.name() == "ExpBackward0"
    assert v.grad_fn.name() == "SliceBackward0"
    assert v.grad_fn.next_functions[0][0] is y.grad_fn
    assert v.grad_fn is v.grad_fn


def test_the_value_before_keeps_its_gradient() -> None:
    def in_place(x: tj.Tensor) -> tj.Tensor:
        y = x * 2
        before = y + 1
        y.mul_(x)
        return before * 3 + y

    agree(in_place, lambda x: (x * 2 + 1) * 3 + x * 2 * x)


def test_detach_in_place_cuts_the_history() -> None:
    x = leaf()
    y = x * 2
    z = y * 3
    y.detach_()
    assert y.is_leaf and not y.requires_grad
    z.sum().backward()
    assert same(x.grad, np.full((3, 4), 6))


def test_swapping_data_under_a_leaf() -> None:
    x = leaf((2,))
    x.data = tj.tensor([5.0, 6.0], dtype=tj.float64)
    (x * x).sum().backward()
    assert same(x.grad, [10, 12]) and x.is_leaf


def test_requires_grad_set_on_a_constant_after_views_of_it() -> None:
    c = tj.ones(4, dtype=tj.float64)
    v = c[:2]
    c.requires_grad_()
    assert not v.requires_grad
    (c * v.sum()).sum().backward()
    assert same(c.grad, [2, 2, 2, 2])


@pytest.mark.parametrize("dtype", [tj.float32, tj.float64, tj.int32, tj.int64])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 8])
def test_negation_of_strided_memory(dtype: tj.dtype, stride: int) -> None:
    """NumPy's own negative goes wrong here when it writes into its input."""
    x = tj.arange(6 * stride, dtype=dtype)
    x.view(6, stride)[:, 0].neg_()
    expected = np.arange(6 * stride)
    expected[::stride] *= -1
    assert same(x, expected)


# ---- subscripts with an operator


def test_an_augmented_subscript_writes_once() -> None:
    x = leaf((4,))
    y = x * 1
    y[0] *= 3
    y[1:3] += x[0]
    y[..., 3] -= 2.0
    assert y._version == 3
    (y * y).sum().backward()
    v = x.detach().numpy()
    out = [3 * v[0], v[1] + v[0], v[2] + v[0], v[3] - 2]
    assert same(y, out)
    assert same(x.grad, [2 * (3 * out[0] + out[1] + out[2]), 2 * out[1], 2 * out[2], 2 * out[3]])


def test_writing_a_view_made_without_grad_cuts_the_history() -> None:
    x = leaf((3,))
    y = x * 2
    with tj.no_grad():
        part = y[:1]
    y[:1] = part
    y.sum().backward()
    assert same(x.grad, [0, 2, 2])


# ---- leaves, their views, and what is refused


def test_a_view_made_before_its_base_became_a_leaf_that_requires_grad_is_not_written() -> None:
    c = tj.zeros(4)
    view = c[:2]
    c.requires_grad_()
    with pytest.raises(RuntimeError, match=r"add_: a view of a leaf Variable.*no_grad"):
        view.add_(1)
    assert c.tolist() == [0, 0, 0, 0]
    with tj.no_grad():
        view.add_(1)
    assert c.tolist() == [1, 1, 0, 0]


def test_a_view_of_a_leaf_keeps_its_shape() -> None:
    x = leaf((1, 3))
    view = x.mT
    with pytest.raises(RuntimeError, match="squeeze_: a view of a leaf Variable"):
        view.squeeze_()
    assert tuple(view.shape) == (3, 1)


def test_detaching_in_place_leaves_views_and_users_their_history() -> None:
    x = leaf((3,))
    y = x * 2
    view, used = y[:2], y * 5
    y.detach_()
    assert view.requires_grad and not view.is_leaf
    (view.sum() + used.sum()).backward()
    assert same(x.grad, [12, 12, 10])


def test_a_leaf_that_was_detached_gets_no_gradient() -> None:
    for stop in (lambda t: t.detach_(), lambda t: t.requires_grad_(False)):
        x, w = leaf((3,)), leaf((3,))
        y = (x * w).sum()
        stop(x)
        y.backward()
        assert x.grad is None and w.grad is not None


NAMES: dict[str, Callable[[tj.Tensor], Any]] = {
    "fill_": lambda w: w.zero_(),
    "copy_": lambda w: w.copy_(tj.ones(3)),
    "div_": lambda w: w.div_(2),
    "scatter_": lambda w: w.scatter_(0, tj.tensor([0]), 1.0),
    "__setitem__": lambda w: w.__setitem__(0, 1.0),
    "masked_fill_": lambda w: w.masked_fill_(w > 0, 1.0),
}


@pytest.mark.parametrize("name", NAMES)
def test_errors_name_what_was_called(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{name}: a .*leaf Variable that requires grad"):
        NAMES[name](tj.ones(3, requires_grad=True))
