"""Sharp bits, pitfalls and silent errors from the documents and issue lists of other JITs: see `soundness_harness.py`.

JAX: impure functions, iterators, global state, objects that are static arguments, indices out of bounds, types of numbers.
torch.compile: hooks that come after the first call, patched forwards, guards that miss a change of a class, an environment
variable, a context variable, a handler or a type.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import io
import itertools
import logging
import os
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.scripts import batch, state_of
from support.soundness_harness import both, mlp
from tapejit import nn
from tapejit.eager.nn.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)

LEVEL: contextvars.ContextVar[float] = contextvars.ContextVar("LEVEL", default=1.0)


# ---- state that Python has


def test_an_iterator_goes_on() -> None:
    def script(compile: Any, note: Any) -> None:
        numbers = itertools.cycle([1.0, 2.0, 3.0])
        names = iter(["relu", "tanh"] * 20)

        @compile
        def f(x: Any) -> Any:
            return getattr(x * next(numbers), next(names))()

        for i in range(14):
            note(f(batch(i)))

    both(script, replayed=6)


def test_the_environment_and_context_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x: Any) -> Any:
            y = x * LEVEL.get()
            return y.relu() if os.environ.get("TAPEJIT_TEST_RELU") else y.tanh()

        for i in range(16):
            monkeypatch.setenv("TAPEJIT_TEST_RELU", "1") if i % 5 == 2 else monkeypatch.delenv("TAPEJIT_TEST_RELU", False)
            context = contextvars.copy_context()
            context.run(LEVEL.set, float(i // 3))
            note(context.run(f, batch(i)), f(batch(i)))

    both(script, replayed=16)


def test_functions_that_look_at_their_frame_or_write_code() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x: Any, i: int) -> Any:
            names: dict[str, Any] = {"x": x, "F": F, "scale": 2.0 + i}
            spelled = eval("x * scale", names)
            exec("y = F.relu(x)" if i % 4 else "y = F.gelu(x)", names)
            frame = sys._getframe()
            return spelled, names["y"] * frame.f_locals["i"], frame.f_code.co_name

        for i in range(14):
            note(*f(batch(i), i))

    both(script, replayed=6)


def test_logging_and_warnings() -> None:
    """Handlers and filters are the user's, and change."""

    def script(compile: Any, note: Any) -> None:
        out = io.StringIO()
        logger = logging.getLogger("tapejit-test")
        handler = logging.StreamHandler(out)
        logger.addHandler(handler)

        @compile
        def f(x: Any, i: int) -> Any:
            y = (x * 2).sum()
            logger.warning("sum %s", y.item())
            logger.debug("%r", y)
            if i % 3 == 0:
                warnings.warn("three", UserWarning, stacklevel=1)
            return y.exp()

        for i in range(12):
            logger.setLevel(logging.DEBUG if i % 4 == 3 else logging.WARNING)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("error" if i == 9 else "always")
                try:
                    note(f(batch(i), i), out.getvalue(), len(caught))
                except UserWarning as warning:
                    note(str(warning))
        logger.removeHandler(handler)

    both(script, replayed=4)


# ---- what is given


class Kind(enum.Enum):
    RELU = 1
    TANH = 2


class Config:
    """A static argument as JAX wants them, which is equal to others that are not the same, and changes."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def test_objects_that_are_equal_and_differ() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x: Any, config: Config, kind: Kind) -> Any:
            y = x * config.scale
            return y.relu() if kind is Kind.RELU else y.tanh()

        config = Config(1.0)
        for i in range(16):
            if i % 4 == 3:
                config = Config(float(i))
            config.scale += 1
            note(f(batch(i), config, Kind.RELU if i % 3 else Kind.TANH))

    both(script, replayed=8)


def test_types_of_numbers() -> None:
    """1, 1.0, True and NumPy's numbers are equal, and make different results."""

    def script(compile: Any, note: Any) -> None:
        numbers = [1, 1.0, True, np.float32(1), np.int64(1), -0.0, 0.0, float("nan"), 0]
        f = compile(lambda x, n: (x * n, x // 1 + n, n))
        integers = tj.arange(3)
        for i, n in enumerate(numbers * 3):
            note(*f(batch(i), n), *f(integers, n))

    both(script, replayed=8)


def test_indices_out_of_bounds_are_errors() -> None:
    """Not clamped, as compiled code without checks would have it; and the next call is right."""

    def script(compile: Any, note: Any) -> None:
        table = batch(0, 6, 3)

        @compile
        def f(index: Any, i: int) -> Any:
            return table[index] * 2 + table[i]

        for i in range(16):
            try:
                note(f(tj.tensor([i % 8, 1]), i % 7))
            except IndexError as error:
                note(str(error))

    both(script, replayed=4)


class Shouting(tj.Tensor):
    """A tensor of the user's."""

    def relu(self) -> Any:
        return tj.relu(self) * 10

    def __mul__(self, other: Any) -> Any:
        return tj.mul(self, other) + 1


def test_tensors_of_the_users_own_class() -> None:
    """Methods are looked up on what a call is given, not on what the first was given."""

    def script(compile: Any, note: Any) -> None:
        f = compile(lambda x: (x.relu(), x * 2, F.huber_loss(x, x.relu())))
        for i in range(14):
            x = batch(i, 3)
            note(*f(Shouting(x.tolist()) if i % 5 > 2 else x))

    both(script, replayed=4)


# ---- objects that change


def test_classes_that_change() -> None:
    """Class attributes, methods and bases of the user's own modules, after the first calls."""

    def script(compile: Any, note: Any) -> None:
        class Block(nn.Module):
            scale = 1.0

            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(3, 3)

            def act(self, x: Any) -> Any:
                return x.relu()

            def forward(self, x: Any) -> Any:
                return self.act(self.linear(x)) * self.scale

        class Soft(Block):
            def act(self, x: Any) -> Any:
                return F.softplus(x)

        model: Any = Block()
        f = compile(lambda x: model(x))
        act = Block.act
        for i in range(30):
            if i == 8:
                Block.scale = 3.0
            if i == 11:
                Block.act = lambda self, x: x.tanh()  # type: ignore[method-assign]
            if i == 14:
                Block.act = act  # type: ignore[method-assign]
            if i == 17:
                model.__class__ = Soft
            if i == 20:
                model.act = types.MethodType(lambda self, x: x * 5, model)
            if i == 23:
                del model.act
            if i == 26:
                Soft.scale = property(lambda self: 0.5)  # type: ignore[assignment]
            note(f(batch(i, 2, 3)), *state_of(model))

    both(script, replayed=12)


@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook])
def test_hooks_of_all_modules(register: Any) -> None:
    def script(compile: Any, note: Any) -> None:
        model, seen, handle = mlp(), [], None
        f = compile(lambda x: model(x))
        for i in range(18):
            if i == 8:
                handle = register(lambda module, *rest: seen.append(type(module).__name__))
            if i == 12 and handle is not None:
                handle.remove()
            note(f(batch(i, 4, 3)), list(seen))

    both(script, replayed=10)


def test_backward_hooks_that_come_after_the_first_call() -> None:
    def script(compile: Any, note: Any) -> None:
        model = mlp()
        f = compile(lambda x: model(x))
        handles: list[Any] = []
        for i in range(24):
            if i == 6:
                handles.append(model[0].register_full_backward_pre_hook(lambda m, g: tuple(x * 2 for x in g)))
            if i == 10:
                handles.append(model.register_full_backward_hook(lambda m, a, g: None if a[0] is None else (a[0] * 3,)))
            if i == 14:
                handles.append(register_module_full_backward_hook(lambda m, a, g: None))
            if i == 18:
                for handle in handles:
                    handle.remove()
            x = batch(i, 4, 3).requires_grad_()
            model.zero_grad()
            f(x).square().sum().backward()
            note(x.grad, *state_of(model))

    both(script, replayed=8)


def test_a_cache_around_and_inside() -> None:
    def script(compile: Any, note: Any) -> None:
        calls: list[int] = []

        @functools.lru_cache(maxsize=2)
        def table(n: int) -> Any:
            calls.append(n)
            return tj.arange(3) * float(n)

        @functools.cache
        @compile
        def cached(n: int) -> Any:
            return table(n) * 2

        @compile
        def f(x: Any, n: int) -> Any:
            return x + table(n) + cached(n)

        for i in range(16):
            note(f(batch(i), i % 3), list(calls))

    both(script, replayed=4)


def test_a_context_of_the_users_own() -> None:
    """Entered and left in the middle, by an exception too, and in another order."""

    def script(compile: Any, note: Any) -> None:
        stack: list[float] = [1.0]

        @contextlib.contextmanager
        def scaled(by: float) -> Any:
            stack.append(stack[-1] * by)
            try:
                yield stack[-1]
            finally:
                stack.pop()

        @compile
        def f(x: Any, i: int) -> Any:
            with contextlib.suppress(KeyError), scaled(2.0) as outer:
                x = x * outer
                with scaled(0.5 + i) as inner:
                    x = x + inner
                    if i % 4 == 3:
                        raise KeyError(i)
                    x = x.tanh()
                x = x * stack[-1]
            return x - len(stack)

        for i in range(16):
            note(f(batch(i), i), list(stack))

    both(script, replayed=8)


def test_modules_made_inside() -> None:
    """A new layer at each call has new parameters each time."""

    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x: Any) -> Any:
            layer = nn.Linear(3, 2)
            loss = layer(x).square().mean()
            loss.backward()
            return loss, *layer.parameters(), layer.weight.grad

        for i in range(10):
            note(*f(batch(i, 4, 3)))

    both(script)
