"""L-BFGS: a quasi-Newton method over all parameters as one vector, with the curvature of the last steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.tape.grad_mode import enable_grad, no_grad
from ..ops.shape.reshape import cat
from ..core.tensor import Tensor
from .line_search import Point, Search
from .optimizer import Optimizer, non_negative, number


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
        non_negative(lr=lr)
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
        return cat([p.new_zeros(p.numel()) if p._grad is None else p._grad.reshape(-1) for p in self._params])

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

        return Search(at, start, t, limit).result(direction.abs().max().item(), tolerance)

    # ---- the step

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Up to `max_iter` iterations; returns the loss at the start."""
        group = self.param_groups[0]
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        with no_grad():
            return self._step(enable_grad()(closure), group)

    def _step(self, closure: Callable[[], Any], group: dict[str, Any]) -> Any:
        lr, smallest, tolerance = number(group["lr"]), group["tolerance_grad"], group["tolerance_change"]
        most, limit = group["max_iter"], group["max_eval"]
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = closure()
        loss, gradient = float(first), self._gradient()
        state["func_evals"] += 1
        if gradient.abs().max().item() <= smallest:
            return first
        evaluations, iteration = 1, 0
        while iteration < most:
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
                if iteration != most:  # where the loss is a sample of many, evaluating it after the last move is a waste
                    loss, gradient, trials = float(closure()), self._gradient(), 1
            state["t"] = t
            evaluations += trials
            state["func_evals"] += trials
            if (
                iteration == most
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
