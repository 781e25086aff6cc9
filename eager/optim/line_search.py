"""A line search for LBFGS: a step along a direction after which the strong Wolfe conditions hold.

First steps are lengthened until a good point lies between two of them, then that bracket is narrowed by cubic
interpolation (Nocedal and Wright, algorithms 3.5 and 3.6; the details are minFunc's and PyTorch's).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

ARMIJO, CURVATURE = 1e-4, 0.9


class Point(NamedTuple):
    """A step of length t: the loss there, the gradient, and the slope along the direction."""

    t: float
    loss: float
    gradient: Any
    slope: float


Evaluate = Callable[[float], Point]


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points with their slopes is least, within bounds."""
    if a.t > b.t:
        a, b = b, a
    low, high = bounds or (a.t, b.t)
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    divisor = b.slope - a.slope + 2 * d2
    if divisor == 0 or math.isnan(divisor):
        return (low + high) / 2
    return min(max(b.t - (b.t - a.t) * ((b.slope + d2 - d1) / divisor), low), high)


class Search:
    """One search, from `start` (t = 0) with a first step `t`; `result()` gives the point found and the number of trials."""

    def __init__(self, evaluate: Evaluate, start: Point, t: float, limit: int) -> None:
        self.evaluate, self.start, self.limit = evaluate, start, limit
        self.trials = 1
        self.rounds = 0
        self.point = evaluate(t)

    def too_high(self, point: Point) -> bool:
        """The loss fell less than the slope at the start promises."""
        return point.loss > self.start.loss + ARMIJO * point.t * self.start.slope

    def flat_enough(self, point: Point) -> bool:
        return abs(point.slope) <= -CURVATURE * self.start.slope

    def next(self, t: float) -> Point:
        self.trials += 1
        self.rounds += 1
        return self.evaluate(t)

    def bracket(self) -> list[Point]:
        """One point that will do, or two with one between them."""
        before, point = self.start, self.point
        while self.rounds < self.limit:
            if self.too_high(point) or (self.rounds > 1 and point.loss >= before.loss):
                return [before, point]
            if self.flat_enough(point):
                return [point]
            if point.slope >= 0:
                return [before, point]
            bounds = (point.t + 0.01 * (point.t - before.t), point.t * 10)
            before, point = point, self.next(cubic_minimum(before, point, bounds))
        return [self.start, point]

    def trial(self, ends: list[Point], stuck: bool) -> tuple[float, bool]:
        """The next step to try inside a bracket, kept from its ends if it came too close to one twice or is one."""
        low, high = sorted(p.t for p in ends)
        t, margin = cubic_minimum(ends[0], ends[1]), 0.1 * (high - low)
        if min(high - t, t - low) >= margin:
            return t, False
        if not (stuck or t >= high or t <= low):
            return t, True
        return (high - margin if abs(t - high) < abs(t - low) else low + margin), False

    def result(self, longest: float, tolerance: float) -> tuple[Point, int]:
        """`longest` is the direction's largest element: a bracket of less than `tolerance` along it is a point."""
        ends = self.bracket()
        if len(ends) == 1:
            return ends[0], self.trials
        low, high = (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)
        stuck = False
        while self.rounds < self.limit and abs(ends[1].t - ends[0].t) * longest >= tolerance:
            t, stuck = self.trial(ends, stuck)
            point = self.next(t)
            if self.too_high(point) or point.loss >= ends[low].loss:
                ends[high] = point
                low, high = (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)
                continue
            if self.flat_enough(point):
                return point, self.trials
            if point.slope * (ends[high].t - ends[low].t) >= 0:
                ends[high] = ends[low]
            ends[low] = point
        return ends[low], self.trials
