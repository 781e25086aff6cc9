"""Optimizers whose op scalars are computed from the settings of a group and from a few numbers in the state.

A rate that decays with the count of steps, for example. The computation is a function of its own, `compute_hyperparameters`,
which reads nothing else: a compiled step that skips Python calls it to know what the optimizer would have done.
"""

from __future__ import annotations

from typing import Any

from .optimizer import Optimizer


class ComputedHyperparameters(Optimizer):
    """Subclasses define `settings` and `compute_hyperparameters`; `update` calls `next_hyperparameters` for each parameter."""

    changeable: tuple[str, ...] = ()  # settings that are numbers and may change between steps
    remembers: tuple[str, ...] = ()  # numbers in the state that each step changes

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return the group's settings that `compute_hyperparameters` reads."""
        raise NotImplementedError

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *remembered: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        """Return the scalars of a parameter's op, the new values of `remembers`, and how else the op depends on the step."""
        raise NotImplementedError

    def next_hyperparameters(self, settings: tuple[Any, ...], state: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Advance a parameter by one step: return its op's scalars, and how else the op depends on the step."""
        numbers, after, variant = self.compute_hyperparameters(settings, *[state[name] for name in self.remembers])
        state.update(zip(self.remembers, after, strict=True))
        return numbers, variant
