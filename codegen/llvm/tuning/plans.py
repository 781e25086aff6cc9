"""Plans of products that were measured, and are remembered (`remembered.py`).

A shape is tuned once on a CPU, where `tj.compile(fn, tune=True)` asks for it, and used from then on by whoever compiles a
product of that shape. That the model's plan is the best is remembered, too. What is on disk is not trusted: a plan that is none
for its shape, or whose results could have other bits than the model's, counts as not there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ....tracer.tools.explain.explain import logged
from ..ir.blocking import Plan, Shape, choose
from .candidates import fits, search
from ..gemm.problem import Gemm
from .store import MODEL, Outcome, remembered
from ..ir.target import Target
from .measure import MOST_BYTES, Trials, bytes_of
from ..runtime.fork_safety import at_work

LEAST = 1 << 15  # multiplications of a product that is worth it: a microsecond
_one_at_a_time = threading.Lock()  # measurements; only ever held inside `at_work`


class Plans:
    """Chooses the plans of a program's products, and keeps which were chosen."""

    def __init__(self, target: Target, tune: bool = False, given: Mapping[str, str] | None = None) -> None:
        self.target = target
        self.tune = tune  # what has not been measured yet
        self.given = given  # those of a program that is there: by these it was made
        self.used: dict[str, str] = {}

    def __call__(self, gemm: Gemm, shape: Shape) -> Plan:
        model = choose(shape)
        if not worth(shape):
            return model
        name = spelled(shape)
        wanted = self.wanted(name, gemm, shape)
        plan = None if wanted == MODEL else plan_of(wanted)
        if plan is None or not fits(shape, plan):
            plan, wanted = model, MODEL
        self.used[name] = wanted
        return plan

    def wanted(self, name: str, gemm: Gemm, shape: Shape) -> str:
        if self.given is not None:
            return self.given.get(name, MODEL)
        known = remembered(self.target)
        if self.tune and name not in known.outcomes:
            with at_work, _one_at_a_time:
                known.read()
                if name not in known.outcomes:
                    known.add(name, tuned(gemm, shape, self.target))
        return known.plan(name)

    def told(self, shape: Shape) -> str:
        """How a product was cut up, in words."""
        name = spelled(shape)
        plan, found = self.used.get(name, MODEL), remembered(self.target).outcomes.get(name)
        measured = plan_of(plan) or choose(shape)
        if found is None or found.plan != plan:
            return f"cut up by the model: {measured}"
        if plan == MODEL:
            return f"cut up by the model, and nothing that was measured is quicker: {measured}"
        return f"cut up as measured, {found.gain:.2f} times as quick as by the model: {measured}"


def worth(shape: Shape) -> bool:
    return shape.batch * shape.m * shape.n * shape.k >= LEAST


def tuned(gemm: Gemm, shape: Shape, target: Target) -> Outcome:
    """The best of some plans for a product, measured now."""
    if bytes_of(gemm) > MOST_BYTES:
        return Outcome(MODEL, 1.0)
    began = time.perf_counter()
    trials = Trials(gemm, target)
    plan, gain = search(shape, trials)
    title = f"{math.prod(gemm.batch)} x " * bool(gemm.batch) + f"m {gemm.m} n {gemm.n} k {gemm.k}"
    words = f"{gain:.2f} times as quick as by the model: {plan}" if gain > 1 else "the model's plan is the best"
    logged("tune", f"{title}: {words} ({len(trials.runs)} plans in {time.perf_counter() - began:.1f} s)")
    return Outcome(spelled(plan) if gain > 1 else MODEL, gain)


# ---- as text


def spelled(x: Shape | Plan) -> str:
    """Its numbers, in order."""
    return " ".join([str(int(v)) for v in x.__dict__.values()])


def plan_of(text: str) -> Plan | None:
    """A plan that was spelled; None if the text is none."""
    words, kinds = text.split(), [f.type for f in fields(Plan)]
    if len(words) != len(kinds) or not all(w.isascii() and w.isdigit() and len(w) < 12 for w in words):
        return None
    given: list[Any] = [bool(int(w)) if kind == "bool" else int(w) for w, kind in zip(words, kinds, strict=True)]
    return Plan(*given)
