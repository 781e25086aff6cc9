"""The world changes between calls whose Python is skipped: memory, aliases, classes, wrappers. All of it is noticed.

Each script runs eagerly and compiled; everything that it notes is the same. A function is warmed up until its Python is
skipped, then something outside of it changes.
"""

from __future__ import annotations

import abc
import functools
import math
import types
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.scripts import Script, batch
from support.soundness_harness import both
from tapejit import nn

WARM = 12
PURE = pytest.mark.parametrize("pure", [False, True], ids=["proof", "promise"])
SCRIPTS: dict[str, Script] = {}  # those whose Python must have been skipped before the world changed
# Scripts in which the Python of the function does something that a promise leaves out.
ONLY_PYTHON_DOES_IT = {
    "a_cached_function_over_math", "a_module_getattr", "a_wrapper_around_a_function_of_the_library",
    "a_wrapper_around_the_users_function", "a_wrapped_function_is_compiled", "hooks_of_all_modules",
}  # fmt: skip
PLAIN: dict[str, Script] = {}  # those whose Python may run at each call, as long as all is right


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def plain(function: Script) -> Script:
    PLAIN[function.__name__] = function
    return function


def skipped(f: Any) -> int:
    return sum(trace.skipped for trace in f.traces)


# ---- memory that arguments share


@plain
def an_argument_that_is_a_view_of_written_memory(compile: Any, note: Any) -> None:
    c = tj.arange(5.0)

    @compile
    def f(x):
        l = c.sum() + x.sum()
        c.add_(1)
        return l

    for _ in range(4):
        note(f(c[1:]), c)


@plain
def a_view_that_is_read_before_and_after_a_write(compile: Any, note: Any) -> None:
    c = tj.arange(5.0)

    @compile
    def f(x):
        before = x.sum()
        c.add_(1)
        return before, x.sum(), c.sum()

    for _ in range(14):
        note(*f(c[1:]), c)


@plain
def a_captured_view_read_before_its_base(compile: Any, note: Any) -> None:
    c = tj.arange(5.0)
    x = c[1:]

    @compile
    def f():
        a = x.sum()
        c.add_(1)
        x.mul_(2)
        return a + c.sum()

    for _ in range(14):
        note(f(), c, x)


@script
def arguments_that_shared_memory_while_warm(compile: Any, note: Any) -> None:
    @compile
    def g(a, b):
        return (a * b).sum()

    for i in range(WARM):
        t = batch(i)
        note(g(t, t.detach()))
    for i in range(4):
        note(g(batch(i), batch(i + 50)))


@script
def an_autoencoder_given_other_targets(compile: Any, note: Any) -> None:
    net = nn.Linear(3, 3)
    opt = tj.optim.SGD(net.parameters(), lr=0.1)

    @compile
    def step(x, y):
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for i in range(WARM):
        x = batch(i, 4, 3)
        note(step(x, x))
    for i in range(4):
        note(step(batch(i, 4, 3), batch(i + 9, 4, 3)))
    note(net.state_dict())


@script
def captured_pairs_that_part(compile: Any, note: Any) -> None:
    a = tj.ones(3)
    b = a.detach()

    @compile
    def f(x):
        return (a * x + b).sum()

    for i in range(WARM):
        note(f(batch(i)))
    b.data = tj.full((3,), 5.0)
    for i in range(4):
        note(f(batch(i)))
    a.add_(1)
    note(f(batch(0)))


@script
def captured_pairs_that_join(compile: Any, note: Any) -> None:
    a, b = tj.ones(3), tj.ones(3)

    @compile
    def f(x):
        a.add_(x)
        return (a * b).sum()

    for i in range(WARM):
        note(f(batch(i)))
    b.data = a.data
    for i in range(4):
        note(f(batch(i)), a, b)
    b.data = a.data[:]
    for i in range(4):
        note(f(batch(i)), a, b)


@script
def a_view_of_an_argument_that_is_written(compile: Any, note: Any) -> None:
    @compile
    def f(x, y):
        x.add_(1)
        return (x * y).sum()

    for i in range(WARM):
        note(f(batch(i), batch(i + 1)))
    for i in range(3):
        big = batch(i, 4)
        note(f(big[:3], big[1:]), big)
    for i in range(3):
        big = batch(i, 3)
        note(f(big, big[:]), big)
    for i in range(3):
        big = batch(i, 3)
        note(f(big, big.detach()), big)


@script
def an_argument_that_is_a_view_of_a_parameter(compile: Any, note: Any) -> None:
    w = batch(0, 3, requires_grad=True)
    opt = tj.optim.SGD([w], lr=0.1)

    @compile
    def step(x):
        loss = (w * x).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss, (x * 2).sum()

    for i in range(WARM):
        note(step(batch(i)))
    for _ in range(4):
        note(step(w.detach()[:]), w)
    for _ in range(4):
        note(step(w.detach()), w)


@script
def gradients_in_one_flat_buffer(compile: Any, note: Any) -> None:
    net = nn.Linear(3, 2)
    opt = tj.optim.SGD(net.parameters(), lr=0.1)

    @compile
    def step(x):
        loss = net(x).square().sum()
        loss.backward()
        opt.step()
        return loss

    for p in net.parameters():
        p.grad = tj.zeros_like(p)
    for i in range(WARM):
        note(step(batch(i, 4, 3)))
    flat = tj.zeros(8)
    net.weight.grad = flat[:6].view(2, 3)
    net.bias.grad = flat[6:]
    for i in range(4):
        note(step(batch(i, 4, 3)), flat)
    flat = tj.zeros(6)
    net.weight.grad = flat.view(2, 3)
    net.bias.grad = flat[:2]
    for i in range(4):
        note(step(batch(i, 4, 3)), flat)


@script
def a_buffer_that_becomes_a_view_of_a_parameter(compile: Any, note: Any) -> None:
    w = batch(0, 3, requires_grad=True)
    average = tj.zeros(3)
    opt = tj.optim.SGD([w], lr=0.1)

    @compile
    def step(x):
        loss = (w * x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with tj.no_grad():
            average.mul_(0.5).add_(w)
        return loss + average.sum()

    for i in range(WARM):
        note(step(batch(i)))
    average.data = w.data[:]
    for i in range(4):
        note(step(batch(i)), w, average)


@script
def memory_of_numpy_that_two_arguments_share(compile: Any, note: Any) -> None:
    @compile
    def f(x, y):
        x.mul_(2)
        return x + y

    for i in range(WARM):
        note(f(batch(i), batch(i + 1)))
    array = np.arange(4, dtype=np.float32)
    for _ in range(3):
        note(f(tj.from_numpy(array[:3]), tj.from_numpy(array[1:])), array)


# ---- identity and classes


@script
def an_argument_that_is_a_captured_tensor(compile: Any, note: Any) -> None:
    w = tj.ones(3)

    @compile
    def f(x):
        return x.sum() if x is w else x.sum() * 100

    for i in range(WARM):
        note(f(batch(i)))
    note(f(w))
    note(f(w))
    note(f(batch(0)))


@script
def a_tensor_of_another_class(compile: Any, note: Any) -> None:
    @compile
    def f(x):
        return x.sum() if isinstance(x, nn.Parameter) else x.sum() * 100

    for i in range(WARM):
        note(f(batch(i)))
    for i in range(3):
        note(f(nn.Parameter(batch(i))))


class Small:
    size = 1


class Large(Small):
    size = 2


@script
def a_class_that_is_exchanged(compile: Any, note: Any) -> None:
    config = Small()

    @compile
    def f(x):
        return x.sum() * (10 if isinstance(config, Large) else 1)

    for i in range(WARM):
        note(f(batch(i)))
    config.__class__ = Large
    for i in range(3):
        note(f(batch(i)))


@plain
def an_abstract_class_that_registers(compile: Any, note: Any) -> None:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Thing:
        pass

    thing = Thing()

    @compile
    def f(x):
        return x.sum() * (10 if isinstance(thing, Base) else 1)

    for i in range(WARM):
        note(f(batch(i)))
    Base.register(Thing)
    for i in range(3):
        note(f(batch(i)))


@plain
def a_protocol_that_begins_to_hold(compile: Any, note: Any) -> None:
    @runtime_checkable
    class HasSize(Protocol):
        size: int

    class Thing:
        pass

    thing = Thing()

    @compile
    def f(x):
        return x.sum() * (10 if isinstance(thing, HasSize) else 1)

    for i in range(WARM):
        note(f(batch(i)))
    thing.size = 3
    for i in range(3):
        note(f(batch(i)))


# ---- the form of captured tensors, asked for through functions

FORMS = {
    "numel": lambda w, x: tj.numel(w) * x.sum(),
    "numel of a tensor": lambda w, x: w.numel() * x.sum(),
    "ones_like": lambda w, x: tj.ones_like(w).sum() + x.sum(),
    "zeros_like": lambda w, x: tj.zeros_like(w) + x.sum(),
    "full_like": lambda w, x: tj.full_like(w, 2).sum() * x.sum(),
    "rand_like": lambda w, x: tj.rand_like(w) * x.sum(),
    "new_zeros": lambda w, x: w.new_zeros(3) + x,
    "new_ones": lambda w, x: w.new_ones(w.shape) + x.sum(),
    "result_type": lambda w, x: x.to(tj.result_type(w, x)),
    "promote_types": lambda w, x: x.to(tj.promote_types(w.dtype, x.dtype)),
    "type_as": lambda w, x: x.type_as(w),
    "to": lambda w, x: x.to(w),
    "to dtype": lambda w, x: x.to(w.dtype),
    "is_same_size": lambda w, x: x.sum() if x.is_same_size(w) else x.sum() * 100,
    "contiguous": lambda w, x: x.sum() if w.contiguous() is w else x.sum() * 100,
    "is_contiguous": lambda w, x: x.sum() if w.is_contiguous() else x.sum() * 100,
    "stride": lambda w, x: x.sum() * w.stride(0),
    "expand_as": lambda w, x: x.sum().expand_as(w),
    "view_as": lambda w, x: x.view_as(w),
    "reshape_as": lambda w, x: x.reshape_as(w),
    "size": lambda w, x: x.sum() * w.size(0),
    "shape": lambda w, x: x.sum() * w.shape[0],
    "ndim": lambda w, x: x.sum() * w.ndim,
    "dim": lambda w, x: x.sum() * w.dim(),
    "len": lambda w, x: x.sum() * len(w),
    "is_floating_point": lambda w, x: x.sum() * (1 if tj.is_floating_point(w) else 100),
    "is_tensor": lambda w, x: x.sum() * (1 if tj.is_tensor(w) else 100),
    "element_size": lambda w, x: x.sum() * w.element_size(),
    "itemsize": lambda w, x: x.sum() * w.itemsize,
    "nbytes": lambda w, x: x.sum() * w.nbytes,
    "requires_grad": lambda w, x: x.sum() * (1 if w.requires_grad else 100),
    "is_leaf": lambda w, x: x.sum() * (1 if w.is_leaf else 100),
    "grad": lambda w, x: x.sum() * (1 if w.grad is None else 100),
    "grad_fn": lambda w, x: x.sum() * (1 if w.grad_fn is None else 100),
    "device": lambda w, x: x.sum() * (1 if w.device.type == "cpu" else 100),
    "is_cuda": lambda w, x: x.sum() * (100 if w.is_cuda else 1),
    "data_ptr": lambda w, x: x.sum() * (100 if w.data_ptr() == x.data_ptr() else 1),
    "storage_offset": lambda w, x: x.sum() * w.storage_offset(),
    "_version": lambda w, x: x.sum() * w._version,
    "atleast_2d": lambda w, x: tj.atleast_2d(w).shape[0] * x.sum(),
    "broadcast_shapes": lambda w, x: tj.ones(tj.broadcast_shapes(w.shape, (1,))) * x.sum(),
    "broadcast_tensors": lambda w, x: tj.broadcast_tensors(x.sum(), w)[0],
    "float": lambda w, x: w.float().sum() * x.sum(),
    "clone": lambda w, x: w.clone().sum() * x.sum(),
    "empty_like": lambda w, x: tj.empty_like(w).zero_() + x.sum(),
    "unbind": lambda w, x: sum(w.unbind()) * x.sum(),
    "iteration": lambda w, x: sum(v for v in w) * x.sum(),
    "split": lambda w, x: len(w.split(2)) * x.sum(),
    "chunk": lambda w, x: sum(c.sum() for c in w.chunk(2)) * x.sum(),
}


def form_script(name: str, change: Any) -> Script:
    def script(compile: Any, note: Any) -> None:
        form = FORMS[name]
        w = tj.arange(1.0, 4.0)

        @compile
        def f(x):
            return form(w, x)

        for i in range(WARM):
            note(f(batch(i)))
        change(w)
        for i in range(4):
            try:
                note(f(batch(i)))
            except RuntimeError as error:
                note(type(error).__name__)

    return script


def longer(w: Any) -> None:
    w.data = tj.arange(1.0, 7.0)


def as_double(w: Any) -> None:
    w.data = tj.arange(1.0, 4.0, dtype=tj.float64)


def strided(w: Any) -> None:
    w.data = tj.arange(1.0, 7.0)[::2]


def two_dims(w: Any) -> None:
    w.data = tj.arange(1.0, 4.0).view(3, 1)


def needs_grad(w: Any) -> None:
    w.requires_grad_()


def has_grad(w: Any) -> None:
    w.grad = tj.ones(3)


@PURE
@pytest.mark.parametrize("change", [longer, as_double, strided, two_dims, needs_grad, has_grad], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", FORMS)
def test_forms_of_captured_tensors(name: str, change: Any, pure: bool) -> None:
    both(form_script(name, change), pure=pure)


# ---- containers and results


@plain
def containers_that_are_returned(compile: Any, note: Any) -> None:
    held = [1.0, 2.0]

    @compile
    def f(x, given):
        y = x * 2
        pair = (y, y)
        return {"list": held, "given": given, "pair": pair, "twice": [pair, pair]}

    for i in range(WARM + 2):
        given = [batch(i)]
        out = f(batch(i), given)
        note(out["list"] is held, out["given"] is given, out["twice"][0] is out["twice"][1], out["pair"][0] is out["pair"][1])
        note(out["pair"] is out["twice"][0])


@plain
def one_list_returned_twice(compile: Any, note: Any) -> None:
    @compile
    def f(x):
        found = [x * 2]
        return found, found, {"a": found}

    for i in range(WARM + 2):
        a, b, c = f(batch(i))
        note(a is b, c["a"] is a)
        a.append(1)
        note(len(b))


@plain
def a_given_container_is_returned(compile: Any, note: Any) -> None:
    @compile
    def f(given):
        return given, given[0] * 2

    for i in range(WARM + 2):
        given = [batch(i)]
        same, y = f(given)
        note(same is given, y)
    for i in range(WARM + 2):
        pair = (batch(i), batch(i + 1))
        same, y = f(pair)
        note(same is pair, y)


@plain
def versions_of_detached_results(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)

    @compile
    def f(x):
        y = (w * x).exp()
        return y, y.detach()

    for i in range(WARM + 2):
        y, d = f(batch(i))
        d.add_(1)
        note(y._version, d._version)
        try:
            y.sum().backward()
            note("no error")
        except RuntimeError as error:
            note(type(error).__name__)


@plain
def a_detached_result_alone(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)

    @compile
    def f(x):
        loss = (w * x).sum()
        loss.backward()
        return loss.detach(), w.grad

    for i in range(WARM + 2):
        loss, grad = f(batch(i))
        note(loss, loss._version, grad is w.grad, grad._version, w._version)


@plain
def a_detached_result_whose_memory_is_saved(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)

    @compile
    def f(x):
        y = (w * x).exp()
        return y.sum(), y.detach(), y.detach()

    for i in range(WARM + 2):
        loss, one, other = f(batch(i))
        if i % 2:
            one.add_(1)
        note(one, other, one._version, other._version)
        try:
            loss.backward()
            note(w.grad)
        except RuntimeError as error:
            note(type(error).__name__)


# ---- names and attributes


@script
def a_replaced_dict(compile: Any, note: Any) -> None:
    config = types.SimpleNamespace(scale=1.0)

    class Config:
        def __init__(self) -> None:
            self.scale = 2.0

    other = Config()

    @compile
    def f(x):
        return x.sum() * config.scale * other.scale

    for i in range(WARM):
        note(f(batch(i)))
    other.__dict__ = {"scale": 7.0}
    for i in range(3):
        note(f(batch(i)))
    config.scale = 3.0
    for i in range(3):
        note(f(batch(i)))


@script
def a_property_added_to_the_class(compile: Any, note: Any) -> None:
    class Config:
        def __init__(self) -> None:
            self.scale = 2.0

    config = Config()

    @compile
    def f(x):
        return x.sum() * config.scale

    for i in range(WARM):
        note(f(batch(i)))
    Config.scale = property(lambda self: 5.0)
    for i in range(3):
        note(f(batch(i)))


@script
def a_getattribute_added_to_the_class(compile: Any, note: Any) -> None:
    class Config:
        def __init__(self) -> None:
            self.scale = 2.0

    config = Config()

    @compile
    def f(x):
        return x.sum() * config.scale

    for i in range(WARM):
        note(f(batch(i)))
    Config.__getattribute__ = lambda self, name: 5.0
    for i in range(3):
        note(f(batch(i)))


@script
def defaults_changed_in_place(compile: Any, note: Any) -> None:
    def helper(x, *, scale=2.0):
        return x * scale

    @compile
    def f(x):
        return helper(x).sum()

    for i in range(WARM):
        note(f(batch(i)))
    helper.__kwdefaults__["scale"] = 5.0
    for i in range(3):
        note(f(batch(i)))
    helper.__kwdefaults__ = {"scale": 6.0}
    for i in range(3):
        note(f(batch(i)))


@script
def own_defaults_changed(compile: Any, note: Any) -> None:
    def f(x, y=2.0, *, scale=2.0):
        return (x * scale + y).sum()

    g = compile(f)
    for i in range(WARM):
        note(g(batch(i)))
    f.__kwdefaults__["scale"] = 5.0
    for i in range(3):
        note(g(batch(i)))
    f.__defaults__ = (1.0,)
    for i in range(3):
        note(g(batch(i)))


@script
def module_tables_changed_in_place(compile: Any, note: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    net.register_buffer("scale", tj.ones(3))

    @compile
    def f(x):
        with tj.no_grad():
            return (net(x) * net.scale).sum()

    for i in range(WARM):
        note(f(batch(i)))
    net._buffers["scale"] = tj.full((3,), 4.0)
    for i in range(3):
        note(f(batch(i)))
    net._modules["1"] = nn.ReLU()
    for i in range(3):
        note(f(batch(i)))
    net[0]._parameters["weight"] = nn.Parameter(tj.ones(3, 3))
    for i in range(3):
        note(f(batch(i)))


@script
def numbers_in_attributes(compile: Any, note: Any) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.scale = 2.0
            self.inner = types.SimpleNamespace(shift=1.0, many=[1.0, 2.0])

    trainer = Trainer()

    @compile
    def f(x):
        return (x * trainer.scale + trainer.inner.shift + trainer.inner.many[1]).sum()

    for i in range(WARM):
        note(f(batch(i)))
    trainer.scale = 3.0
    for i in range(3):
        note(f(batch(i)))
    trainer.inner.shift = 3.0
    for i in range(3):
        note(f(batch(i)))
    trainer.inner.many[1] = 5.0
    for i in range(3):
        note(f(batch(i)))


@script
def numbers_in_attributes_of_a_module(compile: Any, note: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0
            self.options = {"shift": 1.0}

        def forward(self, x):
            return (x * self.scale + self.options["shift"]).sum()

    net = Net()

    @compile
    def f(x):
        return net(x)

    for i in range(WARM):
        note(f(batch(i)))
    net.scale = 3.0
    for i in range(3):
        note(f(batch(i)))
    net.options["shift"] = 4.0
    for i in range(3):
        note(f(batch(i)))
    net.__dict__["scale"] = 9.0
    for i in range(3):
        note(f(batch(i)))


@plain
def a_cached_function_over_math(compile: Any, note: Any) -> None:
    calls = []

    @functools.lru_cache
    def root(n):
        calls.append(n)
        return math.sqrt(n)

    cached = functools.lru_cache(math.sqrt)

    @compile
    def f(x):
        return x.sum() * root(4) * cached(9)

    for i in range(WARM):
        note(f(batch(i)))
    root.cache_clear()
    note(cached.cache_info().hits)
    for i in range(3):
        note(f(batch(i)), calls, cached.cache_info().hits)


@plain
def a_signature_that_lies(compile: Any, note: Any) -> None:
    import inspect

    def helper(a, b=2.0, c=3.0):
        return a * b + c

    def other(a, c=5.0, b=7.0): ...

    helper.__signature__ = inspect.signature(other)

    @compile
    def f(x):
        return helper(x.sum(), 4.0)

    for i in range(WARM + 2):
        note(f(batch(i)))


@plain
def a_module_getattr(compile: Any, note: Any) -> None:
    count = [0]
    space = types.ModuleType("space")

    def get(name):
        count[0] += 1
        return float(count[0])

    space.__getattr__ = get

    @compile
    def f(x):
        return x.sum() * space.number

    for i in range(WARM + 2):
        note(f(batch(i)), count)


@script
def the_state_of_an_optimizer_through_vars(compile: Any, note: Any) -> None:
    w = batch(0, 3, requires_grad=True)
    opt = tj.optim.Adam([w], lr=0.1)

    @compile
    def step(x):
        loss = (w * x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for i in range(WARM):
        note(step(batch(i)))
    note("state" in vars(opt), sorted(k for k in vars(opt) if not k.startswith("_")), len(vars(opt)["state"]))
    note([s["step"] for s in vars(opt)["state"].values()])
    for i in range(3):
        note(step(batch(i)))
    note([s["step"] for s in opt.__dict__["state"].values()])
    note(sorted(k for k in opt.__dict__ if not k.startswith("_")))


@plain
def hooks_of_all_modules(compile: Any, note: Any) -> None:
    net = nn.Linear(3, 3)
    calls: list[Any] = []

    @compile
    def f(x):
        with tj.no_grad():
            return net(x).sum()

    for i in range(WARM):
        note(f(batch(i)))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        for i in range(3):
            note(f(batch(i)), len(calls))
    finally:
        handle.remove()
    for i in range(3):
        note(f(batch(i)), len(calls))


@plain
def one_float_that_is_two_numbers(compile: Any, note: Any) -> None:
    """A path that begins with a hook is planned from nodes that have saved the same object twice."""
    w = tj.ones(3, requires_grad=True)
    one = 1.0
    numbers = [one, one]

    @compile
    def f(x):
        loss = (x * w * numbers[0] * numbers[1]).square().mean()
        loss.backward()
        return {"loss": loss, "n": 1}

    for i in range(WARM):
        note(f(batch(i)))
    w.register_hook(lambda g: g * 2)
    for i in range(4):
        note(f(batch(i)), w.grad)
    numbers[0] = 3.0
    for i in range(4):
        note(f(batch(i)), w.grad)


@plain
def numbers_saved_before_a_break(compile: Any, note: Any) -> None:
    """A path that is recorded on from a break knows the numbers of what came before it."""
    w = tj.ones(3, requires_grad=True)
    shared = tj.zeros(6)
    kept = shared[:]
    numbers = [1.25, 1.25]

    @compile
    def f(x):
        h = x * w * numbers[0] * numbers[1]
        with tj.no_grad():
            shared[:3].add_(h.detach().mean())
        h.square().mean().backward()

    for i in range(WARM):
        note(f(batch(i)), w.grad, kept)
    w.grad = tj.ones(6)[::2]
    for i in range(4):
        note(f(batch(i)), w.grad)
    w.grad = None
    numbers[0] = 3.0
    for i in range(4):
        note(f(batch(i)), w.grad)


@plain
def an_inference_tensor_in_place_of_another(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)
    with tj.inference_mode():
        made = tj.ones(3)

    @compile
    def f(x):
        return (x * w).sum()

    @compile
    def g(x):
        return x * 2

    for i in range(WARM):
        note(f(batch(i)), g(batch(i)))
    for x in (made, batch(0), made):
        for h in (f, g):
            try:
                note(h(x), h(x).is_inference())
            except RuntimeError as error:
                note(str(error))


# ---- wrappers and patches


def counting(calls: list[Any]) -> Any:
    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return wrapper

    return wrap


@plain
def a_wrapper_around_a_function_of_the_library(compile: Any, note: Any) -> None:
    calls: list[Any] = []
    relu = counting(calls)(F.relu)

    @compile
    def f(x):
        return relu(x).sum()

    for i in range(WARM + 2):
        note(f(batch(i)), len(calls))


@plain
def a_wrapper_around_the_users_function(compile: Any, note: Any) -> None:
    calls: list[Any] = []

    @counting(calls)
    def helper(x):
        return x * 2

    @compile
    def f(x):
        return helper(x).sum()

    for i in range(WARM + 2):
        note(f(batch(i)), len(calls))


@plain
def a_wrapped_function_is_compiled(compile: Any, note: Any) -> None:
    calls: list[Any] = []

    @compile
    @counting(calls)
    def f(x):
        return (x * 2).sum()

    for i in range(WARM + 2):
        note(f(batch(i)), len(calls))


PATCHES = {
    "a function": (F, "relu", lambda x: F.relu(x)),
    "a function of the root": (tj, "exp", lambda x: tj.exp(x)),
    "a method": (tj.Tensor, "exp", lambda x: x.exp()),
    "an operator": (tj.Tensor, "__add__", lambda x: x + 1),
    "a reflected operator": (tj.Tensor, "__radd__", lambda x: 1 + x),
    "indexing": (tj.Tensor, "__getitem__", lambda x: x[1:]),
    "a comparison": (tj.Tensor, "__gt__", lambda x: x * (x > 0)),
    "negation": (tj.Tensor, "__neg__", lambda x: -x),
    "a property": None,
    "calls of modules": (nn.Module, "__call__", None),
    "forward of a layer": (nn.Linear, "forward", None),
    "step of an optimizer": (tj.optim.Optimizer, "step", None),
    "zero_grad": (tj.optim.Optimizer, "zero_grad", None),
    "backward": (tj.Tensor, "backward", None),
    "sum": (tj.Tensor, "sum", lambda x: x.sum()),
}


@pytest.fixture
def patched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield monkeypatch


@pytest.mark.parametrize("when", ["before", "warm"])
@pytest.mark.parametrize("name", [name for name, patch in PATCHES.items() if patch is not None])
def test_patches_are_called(name: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, use = PATCHES[name]  # type: ignore[misc]

    def script(compile: Any, note: Any) -> None:
        calls: list[Any] = []
        with monkeypatch.context() as patch:
            net = nn.Linear(3, 3)
            opt = tj.optim.SGD(net.parameters(), lr=0.1)
            apply = use or (lambda x: x)

            def put() -> None:
                patch.setattr(owner, attribute, counting(calls)(vars(owner)[attribute]))

            if when == "before":
                put()

            @compile
            def step(x):
                loss = apply(net(x)).square().sum()
                opt.zero_grad()
                loss.backward()
                opt.step()
                return loss

            for i in range(WARM):
                note(step(batch(i, 2, 3)))
            if when == "warm":
                put()
            del calls[:]
            for i in range(4):
                note(step(batch(i, 2, 3)), len(calls))

    both(script)


# ---- the tests


@PURE
@pytest.mark.parametrize("name", SCRIPTS)
def test_skipped(name: str, pure: bool) -> None:
    f = both(SCRIPTS[name], pure=pure)
    assert skipped(f) > 0, f.explain()


@pytest.mark.parametrize("name", PLAIN)
def test_same(name: str) -> None:
    both(PLAIN[name])


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in ONLY_PYTHON_DOES_IT])
def test_same_with_a_promise(name: str) -> None:
    both(PLAIN[name], pure=True)
