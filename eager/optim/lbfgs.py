"""L-BFGS: a quasi-Newton method over all parameters as one vector, with the curvature of the last steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.tape.grad_mode import enable_grad, no_grad
from ..core.tensor import Tensor
from ..ops.shape.reshape import cat
from .optimizer import Optimizer, as_number, check_non_negative


class LBFGS(Optimizer):
    """Needs a closure that evaluates the loss anew. One group only; `line_search_fn` is None or "strong_wolfe"."""

    numbers: dict[str, type] = {}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_non_negative(lr=lr)
        super().__init__(
            params,
            {
                "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change, "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )  # fmt: skip
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    # ---- all parameters as one vector

    @property
    def _params(self) -> list[Any]:
        return self.param_groups[0]["params"]  # type: ignore[no-any-return]

    def _gradient(self) -> Tensor:
        return cat([p.new_zeros(p.numel()) if p.tj_grad is None else p.tj_grad.reshape(-1) for p in self._params])

    def _move(self, direction: Tensor, t: float) -> None:
        place = 0
        for p in self._params:
            count = p.numel()
            p.add_(direction[place : place + count].view(p.shape), alpha=t)
            place += count

    def _line_search(
        self, evaluate: Callable[[], float], direction: Tensor, start: Point, t: float, limit: int, tolerance: float
    ) -> tuple[Point, int]:
        origin = [p.clone() for p in self._params]

        def at(t: float) -> Point:
            self._move(direction, t)
            loss, gradient = evaluate(), self._gradient()
            for p, value in zip(self._params, origin, strict=True):
                p.copy_(value)
            return Point(t, loss, gradient, gradient.dot(direction).item())

        return WolfeSearch(at, start, t, limit).result(direction.abs().max().item(), tolerance)

    # ---- the step

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Run up to `max_iter` iterations; return the loss at the start."""
        group = self.param_groups[0]
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        with no_grad():
            return self._step(enable_grad()(closure), group)

    def _step(self, closure: Callable[[], Any], group: dict[str, Any]) -> Any:
        lr, smallest, tolerance = as_number(group["lr"]), group["tolerance_grad"], group["tolerance_change"]
        max_iterations, limit = group["max_iter"], group["max_eval"]
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = closure()
        loss, gradient = float(first), self._gradient()
        state["func_evals"] += 1
        if gradient.abs().max().item() <= smallest:
            return first
        evaluations, iteration = 1, 0
        while iteration < max_iterations:
            iteration += 1
            state["n_iter"] += 1
            direction = self._direction(state, gradient, group["history_size"])
            before = loss
            state["prev_flat_grad"], state["prev_loss"] = gradient, loss
            t = lr if state["n_iter"] > 1 else min(1.0, 1.0 / gradient.abs().sum().item()) * lr
            state["d"], state["t"] = direction, t
            slope = gradient.dot(direction).item()
            if slope > -tolerance:
                break
            if group["line_search_fn"] is not None:
                start = Point(0.0, loss, gradient, slope)
                found, trials = self._line_search(lambda: float(closure()), direction, start, t, limit - evaluations, tolerance)
                t, loss, gradient = found.t, found.loss, found.gradient
                self._move(direction, t)
            else:
                self._move(direction, t)
                trials = 0
                if iteration != max_iterations:  # no evaluation after the last move: nothing would read it
                    loss, gradient, trials = float(closure()), self._gradient(), 1
            state["t"] = t
            evaluations += trials
            state["func_evals"] += trials
            if (
                iteration == max_iterations
                or evaluations >= limit
                or gradient.abs().max().item() <= smallest
                or (direction * t).abs().max().item() <= tolerance
                or abs(loss - before) < tolerance
            ):
                break
        return first

    def _direction(self, state: dict[str, Any], gradient: Tensor, history: int) -> Tensor:
        """The gradient times the approximate inverse Hessian, negated: Nocedal's two loops."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            return -gradient
        changes, steps, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        y, s = gradient - state["prev_flat_grad"], state["d"] * state["t"]
        ys = y.dot(s)
        if ys.item() > 1e-10:
            if len(changes) == history:
                for queue in (changes, steps, inverses):
                    queue.pop(0)
            changes.append(y)
            steps.append(s)
            inverses.append(1.0 / ys)
            state["H_diag"] = ys / y.dot(y)
        q = -gradient
        weights = []
        for y, s, inverse in reversed(list(zip(changes, steps, inverses, strict=True))):
            weights.append(s.dot(q) * inverse)
            q = q - y * weights[-1]
        q = q * state["H_diag"]
        for y, s, inverse in zip(changes, steps, inverses, strict=True):
            q = q + s * (weights.pop() - y.dot(q) * inverse)
        return q


ARMIJO, CURVATURE = 1e-4, 0.9  # constants of the strong Wolfe conditions


class Point(NamedTuple):
    """A step of length t: the loss there, the gradient, and the slope along the direction."""

    t: float
    loss: float
    gradient: Any
    slope: float


Evaluate = Callable[[float], Point]


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Return the minimum, within bounds, of the cubic through two points with their slopes."""
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


class WolfeSearch:
    """Line search for a step along a direction after which the strong Wolfe conditions hold.

    It begins at `start` (t = 0) with a first step `t`. Steps are lengthened until a good point lies between two of them, then
    that bracket is narrowed by cubic interpolation (Nocedal and Wright, algorithms 3.5 and 3.6; the details are minFunc's and
    PyTorch's). `result()` returns the point and the number of trials.
    """

    def __init__(self, evaluate: Evaluate, start: Point, t: float, limit: int) -> None:
        self.evaluate, self.start, self.limit = evaluate, start, limit
        self.trials = 1
        self.rounds = 0
        self.point = evaluate(t)

    def violates_armijo(self, point: Point) -> bool:
        """True if the loss fell less than the slope at the start promises (sufficient decrease)."""
        return point.loss > self.start.loss + ARMIJO * point.t * self.start.slope

    def is_flat_enough(self, point: Point) -> bool:
        return abs(point.slope) <= -CURVATURE * self.start.slope

    def next(self, t: float) -> Point:
        self.trials += 1
        self.rounds += 1
        return self.evaluate(t)

    def bracket(self) -> list[Point]:
        """Return one acceptable point, or two with an acceptable one between them."""
        before, point = self.start, self.point
        while self.rounds < self.limit:
            if self.violates_armijo(point) or (self.rounds > 1 and point.loss >= before.loss):
                return [before, point]
            if self.is_flat_enough(point):
                return [point]
            if point.slope >= 0:
                return [before, point]
            bounds = (point.t + 0.01 * (point.t - before.t), point.t * 10)
            before, point = point, self.next(cubic_minimum(before, point, bounds))
        return [self.start, point]

    def trial(self, ends: list[Point], stuck: bool) -> tuple[float, bool]:
        """Choose the next step inside a bracket, away from its ends if two in a row came too close to one."""
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
            if self.violates_armijo(point) or point.loss >= ends[low].loss:
                ends[high] = point
                low, high = (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)
                continue
            if self.is_flat_enough(point):
                return point, self.trials
            if point.slope * (ends[high].t - ends[low].t) >= 0:
                ends[high] = ends[low]
            ends[low] = point
        return ends[low], self.trials
