"""Measured plans of matmuls, kept in the tuning store (`store.py`).

A shape is tuned once per CPU, when `tj.compile(fn, tune=True)` asks for it, and used from then on by every compilation of a
matmul of that shape. "The model's plan is best" is stored, too. The disk is not trusted: a stored plan that is invalid for
its shape, or whose results could have other bits than the model's, is ignored.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ....tracer.trace.logging import log_event
from ..gemm.problem import GemmProblem
from ..ir.blocking import GemmPlan, GemmShape, choose_plan
from ..ir.target import Target
from ..runtime.fork_safety import no_fork
from .candidates import is_valid_plan, search
from .measure import MAX_TRIAL_BYTES, PlanRace, trial_bytes
from .store import MODEL_PLAN, Outcome, tuning_store

MIN_TUNED_MULTIPLIES = 1 << 15  # below, a matmul takes less than a microsecond
_measuring = threading.Lock()  # one measurement at a time; only ever held inside `no_fork`


class TunedPlans:
    """Chooses the plans of a program's matmuls, and records which were chosen."""

    def __init__(self, target: Target, tune: bool = False, recorded: Mapping[str, str] | None = None) -> None:
        self.target = target
        self.tune = tune  # measure shapes that the store does not have
        self.recorded = recorded  # plans that an existing executable was built with
        self.used: dict[str, str] = {}

    def __call__(self, gemm: GemmProblem, shape: GemmShape) -> GemmPlan:
        model = choose_plan(shape)
        if not is_worth_tuning(shape):
            return model
        name = encode_fields(shape)
        wanted = self.stored_plan(name, gemm, shape)
        plan = None if wanted == MODEL_PLAN else decode_plan(wanted)
        if plan is None or not is_valid_plan(shape, plan):
            plan, wanted = model, MODEL_PLAN
        self.used[name] = wanted
        return plan

    def stored_plan(self, name: str, gemm: GemmProblem, shape: GemmShape) -> str:
        if self.recorded is not None:
            return self.recorded.get(name, MODEL_PLAN)
        known = tuning_store(self.target)
        if self.tune and name not in known.outcomes:
            with no_fork, _measuring:
                known.read()
                if name not in known.outcomes:
                    known.add(name, tune_shape(gemm, shape, self.target))
        return known.plan(name)

    def describe(self, shape: GemmShape) -> str:
        """Describe a matmul's blocking in words, for `explain(kernels=True)`."""
        name = encode_fields(shape)
        plan, found = self.used.get(name, MODEL_PLAN), tuning_store(self.target).outcomes.get(name)
        measured = decode_plan(plan) or choose_plan(shape)
        if found is None or found.plan != plan:
            return f"blocking by the model: {measured}"
        if plan == MODEL_PLAN:
            return f"blocking by the model, and no measured plan is faster: {measured}"
        return f"blocking as measured, {found.gain:.2f} times as fast as the model's: {measured}"


def is_worth_tuning(shape: GemmShape) -> bool:
    return shape.batch * shape.m * shape.n * shape.k >= MIN_TUNED_MULTIPLIES


def tune_shape(gemm: GemmProblem, shape: GemmShape, target: Target) -> Outcome:
    """Measure some plans of a matmul now, and return the best."""
    if trial_bytes(gemm) > MAX_TRIAL_BYTES:
        return Outcome(MODEL_PLAN, 1.0)
    began = time.perf_counter()
    trials = PlanRace(gemm, target)
    plan, gain = search(shape, trials)
    title = f"{math.prod(gemm.batch)} x " * bool(gemm.batch) + f"m {gemm.m} n {gemm.n} k {gemm.k}"
    words = f"{gain:.2f} times as fast as the model's: {plan}" if gain > 1 else "the model's plan is the best"
    log_event("tune", f"{title}: {words} ({len(trials.runs)} plans in {time.perf_counter() - began:.1f} s)")
    return Outcome(encode_fields(plan) if gain > 1 else MODEL_PLAN, gain)


# ---- as text


def encode_fields(x: GemmShape | GemmPlan) -> str:
    """The field values as text, in order."""
    return " ".join([str(int(v)) for v in x.__dict__.values()])


def decode_plan(text: str) -> GemmPlan | None:
    """A plan from its text; None if the text is not a plan."""
    words, kinds = text.split(), [f.type for f in fields(GemmPlan)]
    if len(words) != len(kinds) or not all(w.isascii() and w.isdigit() and len(w) < 12 for w in words):
        return None
    given: list[Any] = [bool(int(w)) if kind == "bool" else int(w) for w, kind in zip(words, kinds, strict=True)]
    return GemmPlan(*given)
