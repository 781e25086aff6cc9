"""What docs/soundness.md lists as not noticed, one test each: it shows what happens. A hole that is closed fails here, and is
taken off the page."""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any

import pytest
import tapejit as tj
from support.paths import ROOT
from support.scripts import batch
from tapejit import nn

WARM = 12
HOLES: dict[str, Any] = {}


def hole(function: Any) -> Any:
    HOLES[function.__name__] = function
    return function


def warm(function: Any, pure: bool = False) -> Any:
    f = tj.compile(function, pure=pure)
    for i in range(WARM):
        f(batch(i))
    assert sum(t.skipped for t in f.traces) > 0, f.explain()
    return f


@hole
def a_table_of_a_module_that_is_replaced() -> None:
    net = nn.Module()
    net.register_buffer("scale", tj.ones(3))
    f = warm(lambda x: x * net.scale)
    net.__dict__["_buffers"] = {"scale": tj.zeros(3)}
    assert f(tj.ones(3)).tolist() == [1.0] * 3  # the old buffer


@hole
def an_item_of_a_table_that_is_set_past_it() -> None:
    layer = nn.LayerNorm(3).requires_grad_(False)
    f = warm(lambda x: layer(x))
    found = f(batch(0)).tolist()
    dict.__setitem__(layer._parameters, "weight", nn.Parameter(tj.zeros(3), requires_grad=False))
    assert f(batch(0)).tolist() == found  # the old weight


class Doubled(tj.Tensor):
    def __mul__(self, other: Any) -> Any:
        return tj.Tensor.__mul__(self, other) + 1


@hole
def the_class_of_a_captured_tensor() -> None:
    w = tj.ones(3)
    f = warm(lambda x: w * x)
    w.__class__ = Doubled
    assert f(tj.ones(3)).tolist() == [1.0] * 3  # not 2: the old class


@hole
def the_code_of_a_function_of_the_library() -> None:
    f = warm(lambda x: nn.functional.celu(x))
    function = nn.functional.celu.__wrapped__
    before = function.__code__
    try:
        function.__code__ = (lambda *args, **kwargs: 1 / 0).__code__
        f(tj.ones(3))  # the old code: no error
    finally:
        function.__code__ = before


@hole
def a_name_of_a_library_module_that_is_set_past_it() -> None:
    code, space = nn.functional.huber_loss.__wrapped__.__code__, nn.functional.huber_loss.__wrapped__.__globals__
    name = next(n for n in code.co_names if isinstance(space.get(n), FunctionType))
    f = warm(lambda x: nn.functional.huber_loss(x, x * 2))
    found, before = f(batch(0)).tolist(), space[name]
    try:
        space[name] = lambda *args, **kwargs: 1 / 0
        assert f(batch(0)).tolist() == found  # the old function: no error
    finally:
        space[name] = before


@hole
def a_builtin_under_a_promise() -> None:
    import builtins

    f = warm(lambda x: x * abs(-2.0), pure=True)
    before = builtins.abs
    try:
        builtins.abs = lambda n: 5.0  # type: ignore[assignment]
        assert f(tj.ones(3)).tolist() == [2.0] * 3
    finally:
        builtins.abs = before


@hole
def a_long_list_under_a_promise() -> None:
    numbers = [1.0] * 2000
    f = warm(lambda x: x * numbers[1500], pure=True)
    numbers[1500] = 5.0
    assert f(tj.ones(3)).tolist() == [1.0] * 3


class Slots:
    __slots__ = ("scale",)


@hole
def an_attribute_in_slots_under_a_promise() -> None:
    config = Slots()
    config.scale = 1.0
    f = warm(lambda x: x * config.scale, pure=True)
    config.scale = 5.0
    assert f(tj.ones(3)).tolist() == [1.0] * 3


@hole
def python_that_does_more_under_a_promise() -> None:
    seen: list[int] = []
    f = warm(lambda x: seen.append(1) or x * 2, pure=True)
    before = len(seen)
    f(tj.ones(3))
    assert len(seen) == before


@pytest.mark.parametrize("name", HOLES)
def test_what_happens(name: str) -> None:
    HOLES[name]()


def test_the_page_lists_these_holes_and_no_others() -> None:
    page = (ROOT / "docs" / "soundness.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\| `(\w+)` \|$", page, flags=re.MULTILINE)) == sorted(HOLES)
