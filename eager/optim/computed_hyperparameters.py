"""Optimizers whose ops are given numbers that follow from the settings of a group and from a few numbers in the state.

A rate that decays with the count of steps, say. How they follow is a function of its own, `foretell`, which looks at nothing
else: a compiled step that does without Python calls it to know what the optimizer would have done.
"""

from __future__ import annotations

from typing import Any

from .optimizer import Optimizer


class Foretold(Optimizer):
    """Subclasses give `settings` and `foretell`, and their `update` calls `foretold` for each parameter."""

    changeable: tuple[str, ...] = ()  # settings that are numbers, and may be others at the next step
    remembers: tuple[str, ...] = ()  # state that is numbers, which each step changes

    def settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """What `foretell` wants to know of a group."""
        raise NotImplementedError

    @staticmethod
    def foretell(settings: tuple[Any, ...], *remembered: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        """The numbers that a parameter's op is given, what is remembered then, and how else its op depends on the step."""
        raise NotImplementedError

    def foretold(self, settings: tuple[Any, ...], state: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """One more step of a parameter: its numbers, and how else its op depends on the step."""
        numbers, after, variant = self.foretell(settings, *[state[name] for name in self.remembers])
        state.update(zip(self.remembers, after, strict=True))
        return numbers, variant
