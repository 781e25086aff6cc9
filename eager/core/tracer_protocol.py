"""The protocol by which the eager engine calls whoever records or replays a compiled function.

`State.handler` sees every op. `State.tracer` is asked where more than one op is at stake: calls of modules and optimizers,
whole backward passes, and places where memory or the tape is read. Both are None while nothing is compiled, and each call site
tests for that first, so that eager execution pays one attribute read. `eager` imports nothing of `tracer/`: this file is all
that it knows of it. Modules and optimizers are typed `Any` here, as their classes belong to later stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .op import Op
    from .tensor import Tensor


class Handler(Protocol):
    """Stands in for `dispatch.execute`: `apply` hands it every op of its thread, and returns what it returns."""

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None, /) -> Any: ...


@runtime_checkable
class Tracer(Protocol):
    """Records or replays one call of a compiled function; it is its thread's handler too, below autocast if that is on."""

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None, /) -> Any:
        """Record or replay an op: see `Handler`."""

    def call_module(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `module.forward(*args, **kwargs)`, or replay all of its ops at once. Called by `Module.__call__`."""

    def call_functional(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of `nn.functional`, or replay all of its ops at once. Called by the function's public version."""

    def optimizer_step(self, optimizer: Any, step: Callable[..., Any]) -> Any:
        """Run `step(optimizer)` without a closure, and note which ops belong to it. Called by `Optimizer.step`."""

    def replay_optimizer_step(self, optimizer: Any) -> bool:
        """Replay the updates of a recorded step without running them; False if they must run. Called before the updates."""

    def backward(
        self,
        roots: tuple[Tensor, ...],
        seeds: tuple[Tensor, ...] | None,
        retain_graph: bool,
        create_graph: bool,
        wanted: Sequence[Tensor] | None,
        accumulate: bool,
    ) -> list[Tensor | None]:
        """Do what `engine.backward` does, with the same arguments. `seeds` is None for 1 as the gradient of one scalar root."""

    def graph_break(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any:
        """End the segment, then run `function(*args, **kwargs)` untraced on tensors that all have their arrays.

        `reason` is what `explain()` shows for the break.
        """

    def run_untraced(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function whose ops are not part of the recording, without a graph break (an optimizer making its state)."""

    def flush(self, reason: str) -> None:
        """Run now whatever has been deferred: memory is about to be shared with code that runs no ops (NumPy, DLPack)."""

    def tape_read(self, t: Tensor) -> None:
        """Make the tape of a tensor real, as Python is about to read it (`grad_fn`, hooks)."""
