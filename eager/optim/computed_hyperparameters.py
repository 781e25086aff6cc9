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
    changing_state: tuple[str, ...] = ()  # numbers in the state that each step changes

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return the group's settings that `compute_hyperparameters` reads."""
        raise NotImplementedError

    @staticmethod
    def compute_hyperparameters(settings: tuple[Any, ...], *state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        """Return a parameter's op scalars, the new values of `changing_state`, and how else the op depends on the step."""
        raise NotImplementedError

    def next_hyperparameters(self, settings: tuple[Any, ...], state: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Advance a parameter by one step: return its op's scalars, and how else the op depends on the step."""
        numbers, after, variant = self.compute_hyperparameters(settings, *[state[name] for name in self.changing_state])
        state.update(zip(self.changing_state, after, strict=True))
        return numbers, variant
