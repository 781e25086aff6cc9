"""Forms, memory and lifetimes of tensors that compiled functions get, keep, write and return: see `soundness_harness.py`."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
from support.scripts import SCRIPTS, batch, state_of
from support.snippets import SNIPPETS, StopError
from support.soundness_harness import both, history, mlp, snippet_script
from support.tolerances import assert_within, spread
from tapejit import nn
from tapejit.eager.arrays import devices

# ---- forms of tensors


FORMS: dict[str, Callable[[int], tj.Tensor]] = {
    "dtype": lambda i: batch(i, 2, 3).to((tj.float32, tj.float64, tj.int64, tj.float16, tj.bool, tj.bfloat16)[i % 6]),
    "shape": lambda i: batch(i, *((2, 3), (3, 2), (6,), (1, 2, 3))[i % 4]),
    "stride": lambda i: (batch(i, 2, 3), batch(i, 3, 2).t(), batch(i, 2, 6)[:, ::2], batch(i, 1, 3).expand(2, 3))[i % 4],
    "requires_grad": lambda i: batch(i, 2, 3, requires_grad=i % 3 == 0),
    "has a history": lambda i: batch(i, 2, 3, requires_grad=i % 3 == 0) * 1,
    "view": lambda i: (batch(i, 2, 3), batch(i, 4, 3)[1:3], batch(i, 6).view(2, 3))[i % 3],
    "no dims": lambda i: (batch(i, 1)[0], batch(i, 1), tj.tensor(2.0))[i % 3],
    "empty": lambda i: batch(i, *((0,), (2, 0), (0, 3), (2, 3))[i % 4]),
    "leaf of a module": lambda i: nn.Parameter(batch(i, 2, 3)) if i % 2 else batch(i, 2, 3),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_change(form: str) -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            y = x * 2 + 1
            return y, y.sum(), (x.reshape(-1) + 1).contiguous(), x.is_contiguous()

        for i in range(24):
            x = FORMS[form](i)
            y, total, *rest = f(x)
            if total.requires_grad:
                total.backward()
            note(x, y, total, *rest)

    both(script, replayed=11)


@pytest.fixture
def gpu() -> Iterator[None]:
    before = devices.use_cuda_module(fake_cupy)
    yield
    devices.use_cuda_module(before)


def test_devices_change(gpu: None) -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = x * w.to(x.device)
            y.sum().backward()
            return y + 1

        for i in range(16):
            y = f(batch(i).to("cuda" if i % 4 > 1 else "cpu"))
            note(str(y.device), y.cpu(), w)

    both(script, replayed=2)


def test_a_training_step_on_a_device(gpu: None) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Linear(3, 2).to("cuda")
        optimizer = tj.optim.AdamW(model.parameters(), lr=0.1)

        @compile
        def step(x):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        for i in range(8):
            note(step(batch(i, 4, 3).cuda()).cpu(), [p.detach().cpu() for p in model.parameters()])

    both(script, replayed=4)


def test_empty_tensors_and_tensors_without_dims() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.tensor(2.0, requires_grad=True)

        @compile
        def f(x):
            y = (x * w).sum() + tj.zeros(0).sum()
            y.backward()
            return y, tj.cat([x, tj.zeros(0)]), x[:0] * w, w * w, w.reshape(1) + 1, w[None], tj.zeros(2, 0).sum(0)

        for i in range(8):
            note(f(batch(i, 3)), w)

    both(script, replayed=4)


# ---- tensors that go out and come back


def test_outputs_that_are_inputs() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x, y):
            z = x * 2
            return x, y, z, z, [x]

        for i in range(8):
            x, y = batch(i), batch(i + 1, requires_grad=True)
            a, b, c, d, e = f(x, y)
            note(a is x, b is y, c is d, e[0] is x, a, b, c)

    both(script, replayed=6, divergences=0)


def test_a_function_without_ops() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            return x if x.shape[0] == 3 else None

        for i in range(8):
            x = batch(i, 3 + i % 2)
            note(f(x) is x)

    both(script, replayed=6)


def test_outputs_are_never_overwritten() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
        kept = []

        @compile
        def step(x):
            y = model(x)
            loss = y.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, y, model[0].weight.grad, y.detach()[0], x + 1

        for i in range(8):
            kept.append(step(batch(i, 4, 3)))
            note(kept)

    both(script, replayed=4)


def test_outputs_that_share_memory() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            y = x * 2
            return y, y[1:], y.view(3, 1), y.detach(), x[0], x.t()

        for i in range(8):
            x = batch(i)
            y, tail, column, plain, first, same = f(x)
            y.add_(1)
            tail.mul_(2)
            x.zero_()
            note(y, tail, column, plain, first, same, tail._base is y, tail.storage_offset())

    both(script, replayed=6, divergences=0)


def test_tensors_stored_on_objects_lists_and_globals() -> None:
    class Holder:
        last = None

    def script(compile: Any, note: Any) -> None:
        holder, log, table = Holder(), [], {}

        @compile
        def f(x):
            y = x * 2 + (0 if holder.last is None else holder.last)
            holder.last = y.tanh()
            log.append(y)
            table["mean"] = y.mean() if len(log) < 3 else table["mean"] * 0.9 + y.mean()
            if len(log) > 2:
                y = y + log[-2]
            return y

        for i in range(10):
            note(f(batch(i)), holder.last, list(log), table)

    both(script, replayed=3)


@pytest.mark.parametrize("detached", [True, False])
def test_the_hidden_state_of_a_recurrent_net(detached: bool) -> None:
    def script(compile: Any, note: Any) -> None:
        cell = nn.GRUCell(3, 3)
        optimizer = tj.optim.SGD(cell.parameters(), lr=0.1)
        hidden = tj.zeros(2, 3)

        @compile
        def step(x):
            nonlocal hidden
            hidden = cell(x, hidden)
            loss = hidden.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hidden = hidden.detach() if detached else hidden
            return loss

        for i in range(10):
            try:
                note(step(batch(i, 2, 3)))
            except RuntimeError as error:
                note(str(error))
                hidden = tj.zeros(2, 3)
            note(hidden, state_of(cell))

    both(script, replayed=6 if detached else 0)


def test_a_hidden_state_that_grows_over_calls() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        state = tj.zeros(3)

        @compile
        def f(x):
            nonlocal state
            state = (state + x * w).tanh()
            return state.sum()

        for i in range(12):
            loss = f(batch(i))
            if i % 4 == 3:
                loss.backward()
                state = state.detach()
            note(loss, state, w)

    both(script, replayed=6)


def test_tensors_made_inside() -> None:
    def script(compile: Any, note: Any) -> None:
        buffer = np.zeros(3, np.float32)

        @compile
        def f(x, i):
            buffer[:] = i
            a = tj.tensor([1.0, i, 2.0 * i])
            b = tj.from_numpy(buffer)
            c = tj.as_tensor(buffer) + tj.arange(3) + tj.full((3,), float(i))
            d = tj.tensor(buffer.tolist(), requires_grad=True)
            y = x * a + b + c + d + tj.eye(3)[0] + np.float32(i) + tj.zeros_like(x) + tj.tensor(i)
            y.sum().backward()
            return y, d.grad

        for i in range(8):
            note(f(batch(i), float(i)))

    both(script, replayed=6)


# ---- memory


def test_tensors_changed_through_numpy_between_calls() -> None:
    def script(compile: Any, note: Any) -> None:
        array = np.ones(3, np.float32)
        w = tj.from_numpy(array)
        v = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            y = (x * w * v).sum()
            y.backward()
            return y

        for i in range(8):
            array[i % 3] += i
            v.detach().numpy()[0] = i
            note(f(batch(i)), w, v)

    both(script, replayed=4)


def test_numpy_sees_a_write_at_once() -> None:
    def script(compile: Any, note: Any) -> None:
        array = np.ones(3, np.float32)
        w = tj.from_numpy(array)

        @compile
        def f(x):
            w.add_(x)
            first = array.sum()
            y = w * 2
            w.mul_(2)
            return y, float(first), float(array.sum())

        for i in range(8):
            note(f(batch(i)), array)

    both(script)  # memory that NumPy writes too is not replayed


def test_numpy_writes_what_a_pending_op_reads() -> None:
    def script(compile: Any, note: Any) -> None:
        array = np.ones(3, np.float32)
        w = tj.from_numpy(array)

        @compile
        def f(x):
            y = x * w
            array[0] += 7
            return y + 1

        for i in range(8):
            note(f(batch(i)), array)

    both(script, replayed=6)


def test_numpy_writes_between_two_reads() -> None:
    def script(compile: Any, note: Any) -> None:
        array = np.ones(3, np.float32)
        w = tj.from_numpy(array)

        @compile
        def f(x):
            y = x * w
            array[0] += 7
            z = w + 1
            array[1] = 0
            return y, z

        for i in range(8):
            note(f(batch(i)), array)

    both(script)


def test_an_array_taken_inside_sees_writes() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            y = x * 2
            array = y.numpy()
            y.add_(1)
            first = float(array[0])
            array[1] = 5
            z = y * 3
            y.zero_()
            return first, z, array, y

        for i in range(8):
            note(f(batch(i)))

    both(script, replayed=4)


def test_an_array_of_an_argument_sees_writes() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x, array):
            x.mul_(2)
            y = x + 1
            return y, float(array[0])

        for i in range(12):
            x = batch(i)
            note(f(x, x.numpy() if i % 3 else x.numpy().copy()), x)

    both(script)  # memory that NumPy writes too is not replayed


ARGUMENTS: dict[str, Callable[[tj.Tensor], tuple[tj.Tensor, tj.Tensor]]] = {
    "others": lambda x: (x[:3].clone(), x[1:4].clone()),
    "the same": lambda x: (x[:3], x[:3]),
    "one twice": lambda x: (x, x),
    "a view and its base": lambda x: (x, x[:]),
    "a base and its view": lambda x: (x[:], x),
    "overlapping": lambda x: (x[:3], x[1:4]),
    "apart": lambda x: (x[:2], x[2:4]),
    "detached": lambda x: (x, x.detach()),
    "data": lambda x: (x.data, x),
    "from NumPy": lambda x: (x, tj.from_numpy(x.detach().numpy())),
    "reversed": lambda x: (x, tj.from_numpy(np.flip(x.detach().numpy()).copy())),
}


@pytest.mark.parametrize("order", ["constant", "mixed"])
@pytest.mark.parametrize("how", ARGUMENTS)
def test_arguments_that_alias(how: str, order: str) -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x, y):
            before = y.sum()
            x += 1
            z = y * 2
            y.mul_(3)
            return before, z, x + y

        for i in range(12):
            base = batch(i, 4)
            x, y = ARGUMENTS[how if order == "constant" or i % 3 == 2 else "others"](base)
            note(f(x, y), x, y, base)

    both(script, replayed=4 if order == "mixed" else None)


def test_an_argument_that_is_also_captured() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3)

        @compile
        def f(x):
            x.add_(1)
            return w * 2 + x

        for i in range(12):
            note(f(w if i % 4 == 3 else w[:] if i % 4 == 2 else batch(i)), w)

    both(script, replayed=3)


def test_two_parameters_on_one_memory() -> None:
    def script(compile: Any, note: Any) -> None:
        flat = tj.ones(6)
        a, b = flat[:3].detach().requires_grad_(), flat[2:5].detach().requires_grad_()
        optimizer = tj.optim.SGD([a, b], lr=0.1)

        @compile
        def step(x):
            loss = (a * x + b).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        for i in range(8):
            note(step(batch(i)), flat, a, b)

    both(script, replayed=3)


def test_views_that_are_kept_see_writes() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.zeros(2, 3)
        row = w[1]
        kept = []

        @compile
        def f(x):
            w.add_(x)
            a = row * 2
            row.sub_(1)
            v = w[0]
            kept.append(v)
            v.mul_(2)
            return a, w.sum()

        for i in range(8):
            note(f(batch(i)), w, row, kept)

    both(script, replayed=3)


def test_writes_into_inputs_and_their_versions() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x, y):
            x.add_(1).mul_(2)
            y[0] = x.sum()
            y[1:] += x[1:]
            x.copy_(y.exp())
            tj.add(x, y, out=y)
            return x.sum()

        for i in range(8):
            x, y = batch(i), batch(i + 1)
            note(f(x, y), x, y, x._version, y._version)

    both(script, replayed=3)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float16", "bfloat16", "float32"])
def test_what_is_written_has_another_dtype(dtype: str) -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x, y):
            x.gt_(y)
            z = y * 2
            z.logical_not_()
            z[1:] = x[1:].long()
            y.copy_(z.bool())
            y[0].add_(True)
            return z

        for i in range(8):
            x, y = ((batch(i + k) * 3).to(getattr(tj, dtype)) for k in (0, 1))
            note(f(x, y), x, y)

    both(script, replayed=3)


def test_a_write_breaks_a_backward_pass() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)
        wrong = False

        @compile
        def f(x):
            y = (w * x).exp()
            z = y * 2
            if wrong:
                y.add_(1)
            z.sum().backward()
            return z

        for i in range(10):
            wrong = i in (2, 5, 6)
            try:
                note(f(batch(i)), w)
            except RuntimeError as error:
                note(str(error), w)

    both(script, replayed=4)


def test_an_input_written_between_forward_and_backward() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def f(x):
            return (w * x).sum()

        for i in range(8):
            x = batch(i)
            loss = f(x)
            if i % 3 == 2:
                x.add_(1)
            try:
                loss.backward()
            except RuntimeError as error:
                note(str(error))
            note(loss, w)

    both(script, replayed=6, divergences=0)


# ---- versions and flags


def test_what_a_result_has_saved_is_written_later_in_the_call() -> None:
    """The result of an earlier call is alive, so that the write ends the segment: the version is that of the end."""

    def script(compile: Any, note: Any) -> None:
        net, w = nn.Linear(3, 3), nn.Parameter(tj.ones(3, 3))
        opt = tj.optim.SGD([w], lr=0.1)

        @compile
        def step(x: Any) -> Any:
            out = net(w)
            net(x * w.sum()).square().mean().backward()
            opt.step()
            return out

        for i in range(7):
            out = step(tj.ones(2, 3) * i)
            try:
                out.square().sum().backward()
            except RuntimeError as error:
                note(str(error))
            note(out, w, w._version)

    both(script, replayed=3)


@pytest.mark.parametrize("part", [slice(None), slice(1, None)])
def test_a_tensor_made_of_another_ones_numpy_array_is_written(part: slice) -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def step(x: Any, y: Any) -> Any:
            product = x * w
            y.mul_(2)
            product.sum().backward()
            return product

        for i in range(6):
            x = tj.ones(3) * i
            note(step(x, tj.from_numpy(x.numpy()[part])), x, w.grad)
            w.grad = None

    both(script)


def test_data_has_a_version_of_its_own() -> None:
    def script(compile: Any, note: Any) -> None:
        w = tj.ones(3, requires_grad=True)

        @compile
        def step(x: Any) -> Any:
            y = x * 2
            kept = y * w
            y.data.copy_(x)
            other = y.data
            other.add_(1)
            x.data.mul_(2)
            return y, kept, other

        for i in range(6):
            x = tj.ones(3) * i
            y, kept, other = step(x)
            kept.sum().backward()
            note(y, y._version, other._version, x, x._version, w.grad)

    both(script, replayed=3)


def test_flags_that_change_after_an_op_that_is_run_eagerly() -> None:
    def script(compile: Any, note: Any) -> None:
        stop = [False]

        @compile
        def step(x: Any, leaf: Any) -> Any:
            view = x.permute(1, 0)
            product = leaf * 3
            x.detach_()
            leaf.requires_grad_(False)
            if stop[0]:
                return view + 1, product
            return view, product

        for i in range(10):
            stop[0] = i in (5, 8)
            source = tj.ones(2, 3, requires_grad=True)
            x, leaf = source * i, tj.ones(3, requires_grad=True)
            x[0].mul_(2)
            view, product = step(x, leaf)
            note(x, x.requires_grad, leaf.requires_grad, view.requires_grad, product.requires_grad)
            view.sum().backward()
            note(source.grad)

    both(script)


def test_inference_mode_inside() -> None:
    """Tensors made in it say so; where it begins and ends may change from call to call."""

    def script(compile: Any, note: Any) -> None:
        model, state = nn.Linear(4, 4), {"on": False}

        @compile
        def f(x: Any) -> Any:
            before = x * 2
            with tj.inference_mode(state["on"]):
                inside = model(before).exp() + before
            return before, inside, inside * 2

        for i in range(14):
            state["on"] = i % 6 > 3
            found = f(batch(i, 3, 4))
            note(*found, [(t.is_inference(), t.requires_grad) for t in found])

    both(script, replayed=6)


# ---- the same on another device


def on_cpu(thing: Any) -> Any:
    """Convert to what `seen` can look at."""
    if isinstance(thing, tj.Tensor):
        gradient = on_cpu(thing.grad) if thing.is_leaf and thing.grad is not None else None
        return [str(thing.device), thing.requires_grad, thing.detach().cpu(), gradient]
    if isinstance(thing, dict):
        return {k: on_cpu(v) for k, v in thing.items()}
    return [on_cpu(v) for v in thing] if isinstance(thing, (list, tuple)) else thing


ON_A_DEVICE = {name: SCRIPTS[name][0] for name in ["packed_sequences", *list(SCRIPTS)[::3]]}
ON_A_DEVICE |= {name: snippet_script(name) for name in ["anomaly_detection_inside", *list(SNIPPETS)[3:40:4]]}


@pytest.mark.parametrize("name", list(ON_A_DEVICE))
def test_on_a_device(name: str, gpu: None) -> None:
    tj.set_default_device("cuda")

    def script(compile: Any, note: Any) -> None:
        ON_A_DEVICE[name](compile, lambda *things: note(*map(on_cpu, things)))

    try:
        history(script, lambda function: function)
    except (TypeError, RuntimeError, ValueError):
        pytest.skip("looks at memory of the CPU")
    both(script)


# ---- lifetimes


def live_tensors() -> int:
    gc.collect()
    return sum(isinstance(o, tj.Tensor) for o in gc.get_objects())


@pytest.mark.parametrize("kind", ["training", "reading", "forward", "diverging", "raising"])
def test_replayed_steps_do_not_grow(kind: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    count = 0

    @tj.compile
    def step(x):
        nonlocal count
        count += 1
        loss = model(x).pow(2).mean()
        if kind == "forward":
            return loss
        if kind == "reading" and loss.item() < -1:
            return loss
        if kind == "diverging" and count % 3 == 0:
            return loss * 2
        if kind == "raising" and count % 5 == 0:
            raise StopError
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    x = batch(0, 4, 3)

    def run(n: int) -> None:
        for _ in range(n):
            with contextlib.suppress(StopError):
                step(x)

    run(200)
    tensors, before = live_tensors(), sys.getallocatedblocks()
    run(2000 if kind == "training" else 300)
    assert live_tensors() <= tensors + 2
    assert sys.getallocatedblocks() - before < 300
    assert step.hits > 250


def test_no_cycles_are_left() -> None:
    """Tensors that a call makes are freed by reference counting, at the latest when the next call begins."""
    w = tj.ones(3, requires_grad=True)

    @tj.compile
    def f(x):
        y = (w * x).exp()
        if y[0].item() > 1e9:
            return None
        y.sum().backward()
        return y

    for i in range(5):
        f(batch(i))
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(o, tj.Tensor) for o in gc.get_objects())
        for i in range(50):
            f(batch(i))
        assert sum(isinstance(o, tj.Tensor) for o in gc.get_objects()) <= before + 3
    finally:
        gc.enable()


def test_the_arguments_are_let_go() -> None:
    f = tj.compile(lambda x: (x * 2).sum())
    for i in range(6):
        x = batch(i)
        alive = weakref.ref(x)
        f(x)
        del x
        assert alive() is None, i
    assert f.hits == 4


def test_a_result_that_outlives_the_function() -> None:
    def results() -> list[Any]:
        w = tj.ones(3, requires_grad=True)
        f = tj.compile(lambda x: (w * x).exp())
        return [w, *[f(batch(i)) for i in range(6)]]

    w, *found = results()
    gc.collect()
    sum(y.sum() for y in found).backward()
    terms = [batch(i).double() * batch(i).double().exp() for i in range(6)]
    assert_within(w.grad, sum(terms), spread(sum(t.abs() for t in terms), 6 + 4))  # of each term: exp, and a product
