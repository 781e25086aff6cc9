"""Running a program eagerly and compiled, and comparing all that can be seen: results, prints, errors, tensors, gradients."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import tapejit as tj


def seen(x: Any, names: dict[int, int] | None = None) -> Any:
    """Reduce a value to what can be compared: tensors as dtype, shape, flags and bytes; containers by their parts."""
    if isinstance(x, tj.Tensor):
        array = x.tj_array if type(x.tj_array) is np.ndarray else x.detach().numpy()  # looking at it is to leave no trace
        grad = None if not x.is_leaf or x.grad is None else seen(x.grad)
        name = None if x.grad_fn is None else x.grad_fn.name()
        return ("tensor", str(x.dtype), array.shape, x.stride(), x.requires_grad, name, array.tobytes(), grad)
    if isinstance(x, np.ndarray):
        return ("array", str(x.dtype), x.shape, x.tobytes())
    if isinstance(x, dict):
        return {k: seen(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x).__name__, [seen(v) for v in x]
    if isinstance(x, float) and x != x:
        return "nan"
    return x


class Program:
    """A fresh copy of a program: `call` is what is compiled, `watch` the tensors and objects to look at after each call.

    `between` is told the number of the call and what it returned (None if it raised) and may do anything; `args` makes the
    arguments of the call of a number, which is for those that belong to the program's state.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        watch: Callable[[], Any] = lambda: None,
        between: Callable[[int, Any], None] | None = None,
        args: Callable[[int], Any] | None = None,
    ) -> None:
        self.call = call
        self.watch = watch
        self.between = between
        self.args = args


def history(make: Callable[[], Program], calls: list[Any], compiled: bool, **settings: Any) -> tuple[list[Any], Any]:
    """Make some calls, and return what each did."""
    tj.manual_seed(0)
    program = make()
    function = tj.compile(program.call, **settings) if compiled else program.call
    found = []
    for i, call in enumerate(calls):
        args = program.args(i) if program.args is not None else call() if callable(call) else call
        out = io.StringIO()
        result = None
        with contextlib.redirect_stdout(out):
            try:
                result = function(*args)
                done = ("returned", seen(result))
            except Exception as error:
                done = ("raised", type(error).__name__, str(error))
            looked = [seen(program.watch()), seen(list(args))]
            if program.between is not None:
                try:
                    program.between(i, result)
                except Exception as error:
                    print(f"between calls: {type(error).__name__}: {error}")
                looked.append(seen(program.watch()))
        found.append((done, out.getvalue(), *looked))
    return found, function


def agree(make: Callable[[], Program], calls: list[Any], **settings: Any) -> Any:
    """Compare the calls of a program, eager and compiled; returns the compiled function."""
    expected, _ = history(make, calls, compiled=False)
    found, function = history(make, calls, compiled=True, **settings)
    for i, (e, f) in enumerate(zip(expected, found, strict=True)):
        assert f == e, f"call {i} differs:\neager    {e}\ncompiled {f}\n{function.explain()}"
    return function


def tensors(*shapes: tuple[int, ...], seed: int = 0, **kwargs: Any) -> Callable[[], list[tj.Tensor]]:
    """Makes the same new tensors each time it is called."""

    def make() -> list[tj.Tensor]:
        rng = np.random.default_rng(seed)
        return [tj.tensor(rng.standard_normal(s).astype(np.float32), **kwargs) for s in shapes]

    return make
