"""Shared by the examples: their arguments, and the training loop with its progress bar.

An example's `setup(torch, steps, device)` builds a model, its data and its training step with whatever library it is handed:
tapejit here, PyTorch where the two are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tapejit as tj


@dataclass
class Run:
    """A model in training: `step(*next(batches))` is one step and returns the loss."""

    model: Any
    step: Callable[..., Any]
    batches: Iterator[tuple[Any, ...]]


def parse(description: str | None, steps: int, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments that all examples take."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=steps, help=f"how many training steps (default {steps})")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--compile", action="store_true", help="compile the training step")
    parser.add_argument("--watch", metavar="FILE.html", help="write a page about activations, gradients and updates")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    tj.manual_seed(1337)
    return options


def train(run: Run, options: argparse.Namespace) -> float:
    """Train, with a bar, and give the mean loss of the last tenth of the steps."""
    step = tj.compile(run.step) if options.compile else run.step
    seen = tj.utils.watch(run.model, every=max(1, options.steps // 100)) if options.watch else None
    losses = []
    bar = tj.utils.progress(range(options.steps))
    for _ in bar:
        loss = step(*next(run.batches))
        losses.append(loss.detach())
        bar.set_postfix(loss=loss)
    if seen is not None:
        seen.html(options.watch)
        seen.remove()
        print(f"the page is in {options.watch}")
    return tj.stack(losses[-max(1, options.steps // 10) :]).mean().item()
