"""Small programs that are easy to get wrong for a compiler, for `test_footguns.py`, which calls each of them several times.

`x` is another tensor at each call, `w` a leaf that wants a gradient and stays, `i` counts the calls.
"""

from __future__ import annotations

import copy
import io
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn


class StopError(Exception):
    """Raised by programs."""


SNIPPETS: dict[str, Callable[[tj.Tensor, tj.Tensor, int], Any]] = {}


def snippet(function: Callable[[tj.Tensor, tj.Tensor, int], Any]) -> Any:
    SNIPPETS[function.__name__] = function
    return function


@snippet
def written_after_it_was_read(x, w, i):
    y = x * 2
    total = y.sum().item()
    y.add_(1)
    return total, y.tolist(), y


@snippet
def a_view_of_what_is_written_after_it_was_read(x, w, i):
    y = x * 2
    v = y[1:]
    print(v)
    y.add_(1)
    print(v)
    v.mul_(3)
    return y.tolist(), v.tolist()


@snippet
def a_detached_tensor_sees_writes(x, w, i):
    y = x * 2
    d = y.detach()
    print(d.sum())
    y.mul_(2)
    print(d)
    d.zero_()
    return y.tolist(), d


@snippet
def written_with_a_history_after_it_was_read(x, w, i):
    y = x * w
    print(y)
    y.mul_(2)
    y[0] = 3.0
    (y * y).sum().backward()
    return y


@snippet
def a_gradient_is_written(x, w, i):
    (w * x).sum().backward()
    w.grad.mul_(2)
    w.grad[0] = 1.0
    w.grad.data.clamp_(-3, 3)
    if i % 3 == 2:
        w.grad = w.grad * 0.5
    return w.grad + 1


@snippet
def a_gradient_is_zeroed(x, w, i):
    (w * x).exp().sum().backward()
    g = w.grad.clone()
    w.grad.zero_()
    (w * x).sum().backward()
    with tj.no_grad():
        w[0] = 0.5
        w.sub_(w.grad * 0.1)
        w.data[1] += 0.25
    w.grad = None
    return g


@snippet
def versions_are_looked_at(x, w, i):
    y = x * 2
    y.add_(1)
    before = y._version, x._version
    x.mul_(2)
    y[0] = 2
    return before, y._version, x._version, y


@snippet
def metadata_is_looked_at(x, w, i):
    y = (x * w)[1:]
    z = y.detach()
    u = x.t()
    return (
        y.shape, y.dtype == tj.float32, str(y.device), y.ndim, y.stride(), y.numel(), y.requires_grad, z.requires_grad,
        y.is_contiguous(), y.element_size(), y.nbytes, len(y), y.size(0), y.dim(), y.is_floating_point(), u.shape, y.output_nr,
        tj.is_tensor(y), y.is_inference(), isinstance(y, tj.Tensor), y.storage_offset(), y.is_cuda, y.layout,
    )  # fmt: skip


@snippet
def what_a_view_is_a_view_of(x, w, i):
    y = x * 2
    v = y[1:]
    return v._is_view(), v._base is y, y._base is None, v.storage_offset(), v


@snippet
def shares_memory(x, w, i):
    y = x * 2
    v = y[:]
    return y.data_ptr() == v.data_ptr(), x.data_ptr() == y.data_ptr(), v + 1


@snippet
def a_number_in_the_gradient_changes(x, w, i):
    scale = 0.5 + i
    y = (w * x) * scale / (scale + 1) - scale
    (y * scale).sum().backward()
    return y


@snippet
def a_counter_in_the_gradient_changes(x, w, i):
    ((w * x) * (i % 3) + (w * w) * (2 if i % 4 else 3)).sum().backward()
    return w * (i % 2)


@snippet
def other_kinds_of_numbers(x, w, i):
    n = (2, 2.0, True, np.float32(2), np.float64(2), np.int64(2), tj.tensor(2), np.array(2.0))[i % 8]
    return x * n, x + n, tj.arange(3) * n


@snippet
def numbers_that_are_equal_but_not_the_same(x, w, i):
    lo = (0, 0.0, False, -0.0)[i % 4]
    whole = tj.arange(3)
    return whole.clamp(min=lo), x.clamp(min=lo), tj.full((2,), lo), whole + lo, whole.add(1, alpha=1), tj.zeros(2) * lo


@snippet
def numbers_that_are_not_numbers(x, w, i):
    return (
        x.masked_fill(x > 0, float("nan")),
        x.nan_to_num(nan=float("inf")),
        F.pad(x, (1, 1), value=float("nan")),
        x * float("nan"),
    )


@snippet
def a_number_out_of_range(x, w, i):
    small = tj.ones(3, dtype=tj.uint8)
    try:
        return small * 2 + (300 if i in (4, 7) else 3)
    except Exception as error:
        return type(error).__name__, small + 1


@snippet
def dims_in_a_list_that_changes(x, w, i):
    DIMS.reverse() if i % 3 == 2 else None
    y = (x * 2).expand(2, 3)
    return y.permute(DIMS), y.sum(DIMS[:1]), y.flip(DIMS), y.reshape([3, 2] if i % 2 else [6]), y.roll(SHIFTS, DIMS)


DIMS = [0, 1]
SHIFTS = [1, 2]


@snippet
def indices_of_all_kinds(x, w, i):
    y = (x * w).expand(2, 3)
    k = i % 3
    rows = [[0, 1], [1, 1], [1, 0]][k]
    return (
        y[k % 2], y[:, k], y[..., None, k:], y[rows], y[np.array(rows)], y[tj.tensor(rows), rows], y[-1, ::2], y[None],
        y[:, [k]], y[tj.tensor([True, k == 0])], y[slice(k % 2, None)], y[True],
    )  # fmt: skip


@snippet
def which_of_two_tensors(x, w, i):
    a, b = x + 1, x - 1
    first, second = (a, b) if i % 3 else (b, a)
    return first * 2 + second, first - w, (w if i % 4 else w.detach()) * first


@snippet
def random_numbers_and_other_paths(x, w, i):
    y = F.dropout(x * w, 0.5) + tj.randn(3)
    if i % 3 == 2:
        y = y * tj.rand(3)
    y = y + tj.randn(3) * tj.rand(1).item()
    return F.dropout(y, 0.5)


@snippet
def random_numbers_and_errors(x, w, i):
    y = F.dropout(x * w, 0.5)
    try:
        y = y + tj.randn(3 + (i % 4 == 3))
    except RuntimeError:
        y = y + tj.rand(3)
    return y * tj.randn(3)


@snippet
def random_numbers_in_place(x, w, i):
    y = tj.empty(3).normal_() + tj.zeros(3).uniform_(0, i + 1.0)
    x.bernoulli_(0.5)
    with tj.no_grad():
        nn.init.normal_(w, std=0.5)
    return y * x + tj.normal(x, 1.0)


@snippet
def seeds_are_set_inside(x, w, i):
    y = tj.randn(3)
    tj.manual_seed(i % 3)
    z = tj.randn(3)
    state = tj.get_rng_state()
    u = tj.rand(2)
    tj.set_rng_state(state)
    return x * y, z, u, tj.rand(2), tj.initial_seed()


@snippet
def a_module_is_made_inside(x, w, i):
    layer = nn.Linear(3, 2)
    optimizer = tj.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(x * w).pow(2).sum().backward()
        optimizer.step()
    return layer.weight, layer.bias.grad, nn.Parameter(x * 2) * 3


@snippet
def a_model_is_copied_inside(x, w, i):
    (w * x).sum().backward()
    with tj.no_grad():
        w -= 0.1 * w.grad
    other = copy.deepcopy(w)
    stored = io.BytesIO()
    tj.save({"w": w, "y": w * x}, stored)
    stored.seek(0)
    return other, tj.load(stored)["y"]


@snippet
def fast_weights(x, w, i):
    fast = w
    for _ in range(2):
        (g,) = tj.autograd.grad((fast * x).pow(2).sum(), fast, create_graph=True)
        fast = fast - 0.1 * g
    (fast - x).pow(2).sum().backward()
    return fast


@snippet
def jacobians(x, w, i):
    return tj.autograd.functional.jacobian(lambda t: (t * w).exp(), x), w * 2


@snippet
def anomaly_detection_inside(x, w, i):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tj.autograd.detect_anomaly():
            y = (x * w).exp().sum()
            y.backward()
    return y * 2


@snippet
def bad_values(x, w, i):
    y = x - x
    return (
        y / y,
        1 / y,
        (y - 1).log(),
        (y - 1).sqrt(),
        (x * 1e30).exp(),
        (x * 1e30).to(tj.int32) * 0,
        y.log(),
        0.0 // y,
        y % 0.0,
    )


@snippet
def whole_numbers(x, w, i):
    n = (x * 10).long()
    m = n.to(tj.uint8)
    return n // 3, n % 3, -n, n**2, n & 5, n << 1, m * 200, n > 0, ~n, n / 2, n.sum(), n.float().mean(), m.max(), n.bool().any()


@snippet
def half_precision(x, w, i):
    h, b = x.half(), x.bfloat16()
    y = h * 2 + b.half() - h.exp() * w.half()
    y.sum().backward()
    h += 1
    return y.float(), (b @ b).float(), h.float(), b.softmax(0).double()


@snippet
def double_precision(x, w, i):
    y = x.double() * w.double() + 0.1
    y.sum().backward()
    return y, y.float(), x * tj.tensor(0.1, dtype=tj.float64)


@snippet
def conversions_that_change_nothing(x, w, i):
    y = x * 2
    return y.float() is y, y.contiguous() is y, y.to("cpu") is y, x.to(tj.float32) is x, y.expand(3) is y, y.reshape(3) is y


@snippet
def outputs_of_several_ops(x, w, i):
    y = x * w
    values, order = y.sort()
    top, where = y.topk(2)
    biggest, place = y.max(0)
    a, *rest = y.split(1)
    (values.sum() + top[0] + biggest * 2 + rest[0].sum()).backward()
    return values, order, top, where, biggest, place, a, rest, y.unbind(), tj.meshgrid(x, x, indexing="ij")


@snippet
def out_arguments(x, w, i):
    y, z = tj.empty(3), tj.empty(0)
    tj.mul(x, 2, out=y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tj.add(y, x, out=z)
    return y, z, tj.exp(y, out=y) is y


@snippet
def shapes_change_in_place(x, w, i):
    y = x * 2
    y.unsqueeze_(0)
    z = y * w
    y.t_()
    return y, z, y.squeeze_(1)


@snippet
def what_is_left_of_a_base(x, w, i):
    v = (x * w)[1:]
    v.mul_(2)
    v.sum().backward()
    return v, (x * 2)[0], (x + 1).view(3, 1)[1:]


@snippet
def in_place_on_an_input_with_a_history(x, w, i):
    y = x * w
    z = y.view(3, 1)
    y.mul_(3)
    z.add_(w[0])
    (z * y[0]).sum().backward()
    return y, z


@snippet
def the_gradient_of_what_is_no_leaf(x, w, i):
    y = x * w
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        g = y.grad
    return g, len(caught), y


@snippet
def requires_grad_is_set(x, w, i):
    y = x * 2
    y.requires_grad = True
    z = y * w
    z.sum().backward()
    return y, y.grad, z, y.requires_grad_(False) * 2


@snippet
def a_leaf_refuses_a_write(x, w, i):
    y = x * w
    try:
        w.add_(1)
    except RuntimeError as error:
        return str(error), y
    return y


@snippet
def an_error_in_backward(x, w, i):
    y = (x * w).exp()
    y.sum().backward()
    try:
        y.sum().backward()
    except RuntimeError as error:
        return str(error), y
    return None


@snippet
def a_hook_that_raises(x, w, i):
    def hook(g):
        if i % 3 == 2:
            raise StopError("hook")

    y = x * w
    y.register_hook(hook)
    try:
        (y * w).sum().backward()
    except StopError as error:
        return str(error), y
    return y


@snippet
def accumulation_in_a_loop(x, w, i):
    total = 0
    for k in range(3):
        loss = (w * x * (k + 1)).exp().mean()
        loss.backward()
        total += loss.item()
    return total


@snippet
def detached_losses_in_a_list(x, w, i):
    losses = [(w * x).sum() for _ in range(3)]
    mean = tj.stack(losses).mean()
    mean.backward()
    return [one.detach() for one in losses], float(mean), sum(losses).item()


@snippet
def tensors_in_sets_and_as_keys(x, w, i):
    y, z = x * 2, x * 3
    named = {y: "y", z: "z"}
    return named[y], len({y, z, y}), [t is y for t in named], sum(named)


@snippet
def an_f_string_of_a_scalar(x, w, i):
    s = (x * w).sum()
    return f"{s:.3f} {s.item():>8.2f} {s!r}", round(float(s), 3), s * 2


@snippet
def comparisons_and_chains(x, w, i):
    s = x.sum()
    if 0 < s < 1.5 or s == 0:
        return s + 1
    return s - 1 if not (x > 1).any() else x.max()


@snippet
def numpy_functions(x, w, i):
    y = x * 2
    return (
        np.sum(y.numpy()),
        y.numpy() + np.ones(3),
        tj.from_numpy(np.cumsum(y.numpy())),
        np.float32(2) * y,
        np.ones(3, np.float32) * y,
    )


@snippet
def a_buffer_is_filled_by_numpy(x, w, i):
    buffer = np.empty((2, 3), np.float32)
    for k in range(2):
        buffer[k] = (x * (k + 1)).numpy()
    return tj.from_numpy(buffer) * w, tj.tensor(buffer).sum()


@snippet
def one_buffer_filled_several_times(x, w, i):
    buffer = np.zeros(3, np.float32)
    found = []
    for k in range(3):
        buffer[:] = k + i
        found.append(tj.tensor(buffer) * w)
    return found


@snippet
def weak_references(x, w, i):
    y = x * 2
    alive = weakref.ref(y)
    kept = alive() is y
    return kept, alive().sum()


@snippet
def a_nested_compiled_function_in_a_custom_function(x, w, i):
    class Wrapped(tj.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return compiled_double(t)

        @staticmethod
        def backward(ctx, g):
            return compiled_double(g)

    y = Wrapped.apply(x * w)
    y.sum().backward()
    return y, compiled_double(y)


@tj.compile
def compiled_double(x):
    return x * 2 + 0


@snippet
def a_compiled_function_in_a_hook(x, w, i):
    y = x * w
    y.register_hook(lambda g: compiled_double(g))
    y.exp().sum().backward()
    return compiled_double(y)


@snippet
def default_dtype_changes(x, w, i):
    before = tj.get_default_dtype()
    tj.set_default_dtype(tj.float64 if i % 4 == 3 else tj.float32)
    try:
        return tj.ones(3) + tj.tensor([0.1, 0.2, 0.3]) + tj.arange(3.0) + tj.rand(3), x * 0.1, tj.tensor(1.5)
    finally:
        tj.set_default_dtype(before)


@snippet
def parameters_as_a_vector(x, w, i):
    v = nn.utils.parameters_to_vector([w])
    (v * x).sum().backward()
    nn.utils.vector_to_parameters(v * 0.9, [w])
    return v


@snippet
def swapped_variables(x, w, i):
    a, b = x * 2, x * 3
    for _ in range(i % 3):
        a, b = b, a + b
    return a, b, [a, b][i % 2]


@snippet
def einsum_and_attention(x, w, i):
    q = tj.einsum("i,j->ij", x, w)
    y = F.scaled_dot_product_attention(q[None, None], q[None, None], q[None, None], is_causal=bool(i % 2))
    y.sum().backward()
    return y


@snippet
def losses_with_targets(x, w, i):
    logits = tj.outer(x, w)
    target = tj.tensor([0, 1, i % 3])
    loss = F.cross_entropy(logits, target) + F.nll_loss(logits.log_softmax(1), target, reduction="sum")
    (loss + F.one_hot(target, 3).float().mul(logits).sum()).backward()
    return loss, logits.gather(1, target[:, None]), logits.argmax(1).eq(target).float().mean()


@snippet
def a_target_out_of_range(x, w, i):
    logits = tj.outer(x, w)
    try:
        loss = F.cross_entropy(logits, tj.tensor([0, 1, 5 if i in (3, 6) else 2]))
    except IndexError as error:
        return str(error), logits * 2
    loss.backward()
    return loss


@snippet
def scatter_and_index_add(x, w, i):
    index = tj.tensor([0, 2, i % 3])
    y = tj.zeros(3).scatter_add(0, index, x * w)
    z = tj.zeros(3).index_add_(0, index, x)
    u = (x * w).index_put((index,), tj.tensor(2.0), accumulate=True)
    (y + u).sum().backward()
    return y, z, u


@snippet
def a_linear_system_that_may_be_singular(x, w, i):
    matrix = tj.diag(x * w) if i % 4 != 3 else tj.zeros(3, 3)
    try:
        return tj.linalg.inv(matrix), x * 2
    except RuntimeError as error:
        return type(error).__name__, str(error), x * 3


@snippet
def many_reads_in_a_row(x, w, i):
    y = x * w
    found = []
    for _ in range(4):
        y = y * 2 if y.sum() > 0 else y + 1
        found.append(float(y.mean()))
    y.sum().backward()
    return found, y


@snippet
def a_path_that_is_seldom_taken(x, w, i):
    y = (x * w).exp()
    if i % 5 == 4:
        print("rare", y.mean())
        y = y.log() + tj.rand(3)
    y.sum().backward()
    return y, w.grad


@snippet
def several_backward_passes(x, w, i):
    a, b = (x * w).sum(), (w * w).sum()
    a.backward()
    first = w.grad.clone()
    b.backward()
    second = w.grad
    w.grad = None
    ((w + x) ** 3).sum().backward()
    return first, second, w.grad


@snippet
def gradients_come_and_go(x, w, i):
    if i % 4 == 3:
        w.grad = None
    if i % 4 == 1:
        w.grad = tj.ones(3)
    before = w.grad
    (x * w).sum().backward()
    return before, w.grad, before is w.grad


@snippet
def a_gradient_used_as_an_input(x, w, i):
    (x * w).exp().sum().backward()
    y = w.grad * x
    z = (y * w).sum()
    w.grad = None
    z.backward()
    return y, z, w.grad


@snippet
def an_input_and_what_it_became(x, w, i):
    y = x
    y += 1
    y = y * 2
    x *= y
    x[1] = w.detach()[0]
    return y, x, x is y


@snippet
def a_tensor_that_is_returned_and_written_later(x, w, i):
    y = x * 2
    KEPT.append(y)
    if len(KEPT) > 2:
        KEPT[0].add_(1)
        KEPT[1].mul_(KEPT[0])
        KEPT.pop(0)
    return [t + 0 for t in KEPT]


KEPT: list[Any] = []


@snippet
def a_ring_of_states(x, w, i):
    KEPT.append((x * w).detach())
    if len(KEPT) > 3:
        KEPT.pop(0)
    return tj.stack(KEPT).mean(0) * w


@snippet
def exponential_averages(x, w, i):
    if not KEPT:
        KEPT.append(tj.zeros(3))
    average = KEPT[0]
    average.mul_(0.9).add_(x, alpha=0.1)
    KEPT[0] = average if i % 3 else average.clone()
    return average / (1 - 0.9 ** (i + 1)), w * average


@snippet
def an_expanded_tensor(x, w, i):
    y = x.expand(2, 3)
    z = (y * w).t()
    z.sum().backward()
    return y, z, z.contiguous(), z.is_contiguous(), y.stride(), z.reshape(-1), y.sum(0)


@snippet
def strides_of_results(x, w, i):
    m = (x * w).expand(4, 3)
    t = m.t() * 2
    return t, t.exp(), t + m.t(), m.permute(1, 0).clone(), t.view(12) if t.is_contiguous() else None, tj.empty_like(t).stride()


@snippet
def as_strided_and_windows(x, w, i):
    y = (x * w).repeat(2)
    windows = y.unfold(0, 3, 1)
    (windows * windows).sum().backward()
    return windows, y.as_strided((2, 2), (2, 1)), windows[1:, ::2]


@snippet
def chains_of_views_written(x, w, i):
    y = tj.zeros(2, 3)
    y[0] = x
    y[1, :2] = x[1:] * 2
    y.t()[2].fill_(7)
    v = y.view(-1)[::2]
    v += 1
    y[y.sum(0).argmax() % 2] -= 1
    return y, v


@snippet
def an_assignment_with_a_gradient(x, w, i):
    y = tj.zeros(2, 3)
    y[0] = x * w
    y[1] = (x * w) ** 2
    y[:, 0] *= w[1]
    y.sum().backward()
    return y


@snippet
def overlapping_assignment(x, w, i):
    y = x * 1
    y[1:] = y[:-1].clone()
    y[:2] = y[1:]
    y.copy_(y.flip(0))
    return y


@snippet
def cat_and_stack_of_lists(x, w, i):
    parts = [x * k for k in range(1 + i % 2)]
    y = tj.cat(parts) if i % 4 else tj.stack(parts).flatten()
    return y, y.chunk(3), tj.cat([x, w]) * 2


@snippet
def a_scalar_tensor_as_a_number(x, w, i):
    s = tj.tensor(float(i))
    n = tj.tensor(i)
    return x * s, x + n, x**s, x.clamp(max=s), tj.full((2,), float(i)), x.roll(int(n) % 2), x[n % 2], s.item() * x


@snippet
def a_number_from_another_tensor(x, w, i):
    scale = x.abs().max().item()
    return x / scale, x + scale, (x * w).sum() * scale


@snippet
def a_number_that_overflows(x, w, i):
    big = 10 ** (i * 4)
    try:
        return x * big, tj.arange(3) * big
    except (OverflowError, RuntimeError) as error:
        return type(error).__name__


@snippet
def text_of_tensors_with_a_history(x, w, i):
    y = x * w
    v = y[1:]
    return repr(y), str(v), repr(w), repr(y.detach()), repr(y.sum()), repr(x > 0), y


@snippet
def the_same_work_twice(x, w, i):
    a = (x * w).sin()
    b = (x * w).sin()
    a.add_(1)
    (a + b * 2).sum().backward()
    return a, b


@snippet
def unused_work(x, w, i):
    for k in range(3):
        x.exp() * k
        (x * w).sum()
    y = x * 2
    y = x * 3
    del y
    return None if i % 2 else x


@snippet
def all_kinds_of_results(x, w, i):
    y = x * w
    return {"t": y, ("k", 1): [y, {"deep": (y, None, "s", 1.5, y.shape, y.dtype)}]}, y[0], y.sum().item(), y > 0, slice(1)


@snippet
def a_loop_over_a_zip_of_tensors(x, w, i):
    total = 0
    for a, b in zip(x, w, strict=True):
        total = total + a * b
    total.backward()
    return total, [float(v) for v in x * 2], dict(enumerate((x * 3).unbind()))


@snippet
def conditions_as_numbers(x, w, i):
    mask = (x > 0).float()
    y = mask * x + (1 - mask) * w
    y.sum().backward()
    return y, mask.bool().tolist(), tj.where(x > 0, x, 0.0), (x > 0) & (x < 1), x.sign() * (i % 2 == 0)


@snippet
def a_frozen_leaf(x, w, i):
    w.requires_grad_(i % 4 < 2)
    y = (x * w).sum()
    if y.requires_grad:
        y.backward()
    w.requires_grad_(True)
    return y


@snippet
def a_swapped_array(x, w, i):
    old = w.data
    w.data = x.clone()
    y = (w * 2).sum()
    w.data = old
    z = (w * 3).sum()
    (z + w[0]).backward()
    return y, z


@snippet
def stop_in_a_context_manager(x, w, i):
    y = x * w
    try:
        with tj.no_grad():
            y = y * 2
            if i % 3 == 2:
                raise StopError
            y = y * 3
    except StopError:
        y = y + w
    return y, tj.is_grad_enabled()


@snippet
def functions_made_inside(x, w, i):
    def inner(t, k=i % 2):
        return t * w if k else t + w

    fs = [inner, lambda t: t.exp(), tj.tanh, F.relu, lambda t: inner(inner(t))]
    y = x
    for f in fs:
        y = f(y)
    return y


@snippet
def warnings_of_the_user(x, w, i):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(f"call {i}: {x.sum().item():.3f}", UserWarning, stacklevel=1)
        y = x * w
    return [str(c.message) for c in caught], y


@snippet
def a_batch_from_a_loader(x, w, i):
    data = tj.utils.data.TensorDataset(x.repeat(4).view(4, 3), tj.arange(4))
    total = 0
    for rows, labels in tj.utils.data.DataLoader(data, batch_size=2, shuffle=True):
        total = total + (rows * w).sum() * labels.float().mean()
    total.backward()
    return total


@snippet
def losses_that_explode(x, w, i):
    y = (x * w * (1e20 if i % 4 == 3 else 1.0)) ** 2
    loss = y.sum()
    if not tj.isfinite(loss):
        return "skipped", loss
    loss.backward()
    return loss


@snippet
def whole_numbers_as_indices_made_inside(x, w, i):
    order = x.argsort()
    y = (x * w)[order]
    table = tj.zeros(3, dtype=tj.long)
    table[order] = tj.arange(3)
    y.cumsum(0).sum().backward()
    return y, table, y[table], order.float() * 2


@snippet
def a_view_made_without_grad(x, w, i):
    with tj.no_grad():
        v = w[1:]
        v.mul_(0.9)
    y = w * x
    with tj.no_grad():
        u = y[:2]
    return v, u, y, v.requires_grad, u.requires_grad


@snippet
def sums_of_python_and_tensors(x, w, i):
    total = 0.0
    for k in range(4):
        total += (x[k % 3] * w[k % 3]) * k
    mean = total / 4
    mean.backward()
    return mean, sum([x, w, 1]), max(1, 2) * x, abs(-x), -x // 2, 2**x, 1 - x, 3 / (x + 10)
