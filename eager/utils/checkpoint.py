"""`tapejit.utils.checkpoint`: activations that are computed again in the backward pass instead of being kept.

`checkpoint(function, *args)` runs the function as ever and then takes away from the nodes it has put on the tape the arrays
they saved. The first of these nodes that a backward pass comes to runs the function again, from the same arguments, random
state and autocast, and each node takes the saved values of its twin in that second run. The nodes themselves stay, so
hooks, `autograd.grad`, higher derivatives and checkpoints within checkpoints work as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..core.autocast import AutocastSetting, using_setting
from ..core.generator import default_generator
from ..core.structure.pytree import leaves
from ..core.tape.grad_mode import enable_grad
from ..core.tape.node import Node, _numbers, edge_of, local
from ..core.tensor import Tensor

__all__ = ["CheckpointError", "checkpoint", "checkpoint_sequential", "noop_context_fn"]


class CheckpointError(RuntimeError):
    """The function did not do the same when it was run again."""


def noop_context_fn() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of the first and the second run: none."""
    return nullcontext(), nullcontext()


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of a nested structure."""
    return [x for x in leaves(value) if isinstance(x, Tensor)]


def nodes_since(outputs: Any, start: int) -> list[Node]:
    """Return the nodes that led to the outputs and are not older than `start`, in order."""
    found: set[Node] = set()
    stack = [edge_of(t) for t in tensors_in(outputs)]
    while stack:
        node = stack.pop()
        if isinstance(node, Node) and node.number >= start and node not in found:
            found.add(node)
            stack.extend(node.edges)
    return sorted(found, key=lambda node: node.number)


def described(node: Node) -> tuple[Any, ...]:
    """Describe a node for comparison between two runs: the op, and the shapes and dtypes of what was saved."""
    kept = [(k, v[0].shape, v[0].dtype) for k, v in node.saved.items() if type(v) is tuple and v and hasattr(v[0], "shape")]
    return (node.name(), *kept)


class Evicted(dict[str, Any]):
    """Stands in for a node's saved values, and gets them by a second run when the first one is asked for."""

    def __init__(self, run: Run, place: int) -> None:
        super().__init__()
        self.run, self.place = run, place
        self.twin: dict[str, Any] | None = None

    def __missing__(self, name: str) -> Any:
        if self.twin is None:
            self.twin = self.run.saved_at(self.place)
        value = self[name] = self.twin[name]
        return value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


class Run:
    """One call of a checkpointed function, and what it takes to repeat it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], preserve: bool) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.random = default_generator.get_state() if preserve else None
        setting = local.state.autocast
        self.autocast = None if setting is None else (setting.low, setting.caching)
        self.given = [(t, t._version) for t in tensors_in([args, kwargs])]
        self.context: AbstractContextManager[Any] = nullcontext()
        self.check = True
        self.nodes: list[tuple[Any, ...]] = []
        self.recomputed: dict[int, dict[str, Any]] = {}

    def evict(self, nodes: list[Node]) -> None:
        """Let go of what the nodes saved. A function that wrote into its arguments cannot be repeated, and keeps it."""
        if any(t._version != version for t, version in self.given):
            return
        self.nodes = [described(node) for node in nodes]
        for i, node in enumerate(nodes):
            if isinstance(node.saved, Evicted) or (node.saved and node.keeps_tensors):
                node.saved = Evicted(self, i)

    def saved_at(self, place: int) -> dict[str, Any]:
        if place not in self.recomputed:
            self.repeat()
        return self.recomputed.pop(place)

    def repeat(self) -> None:
        for t, version in self.given:
            if t._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{t.dtype}, shape {list(t.shape)}], an argument of a checkpointed function, is at version {t._version}; "
                    f"expected version {version} instead. Hint: clone() the tensor before changing it."
                )
        after = default_generator.get_state()
        if self.random is not None:
            default_generator.set_state(self.random)
        start = next(_numbers)
        setting = None if self.autocast is None else AutocastSetting(*self.autocast, None)
        try:
            with enable_grad(), using_setting(setting), self.context:
                outputs = self.function(*self.args, **self.kwargs)
        finally:
            if self.random is not None:
                default_generator.set_state(after)
        nodes = nodes_since(outputs, start)
        if self.check:
            self.compare([described(node) for node in nodes])
        self.recomputed = {i: node.saved for i, node in enumerate(nodes)}

    def compare(self, nodes: list[tuple[Any, ...]]) -> None:
        for i, (first, second) in enumerate(zip(self.nodes, nodes, strict=False)):
            if first != second:
                raise CheckpointError(
                    "checkpoint: Recomputed values for the following tensors have different metadata than during the forward "
                    f"pass: op {i} was {shown(first)} and is now {shown(second)}. The function has to do the same each time."
                )
        if len(nodes) != len(self.nodes):
            raise CheckpointError(
                "checkpoint: A different number of tensors was saved during the original forward and recomputation: "
                f"{len(self.nodes)} ops then, {len(nodes)} now. The function has to do the same each time."
            )


def shown(node: tuple[Any, ...]) -> str:
    name, *kept = node
    return f"{name}({', '.join(f'{key}: {dtype}{list(shape)}' for key, shape, dtype in kept)})"


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), whose activations are computed again in the backward pass instead of being kept.

    There is one implementation, without reentrant backward passes; `use_reentrant=True` only has PyTorch's restrictions.
    """
    if not callable(function):
        raise TypeError(f"checkpoint(): expected a function to call, got {type(function).__name__}")
    if use_reentrant and kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if use_reentrant and (context_fn is not noop_context_fn or debug):
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check should be one of ['default', 'none'], but got {determinism_check}")
    first, second = context_fn()
    if not local.state.grad:
        with first:
            return function(*args, **kwargs)
    run = Run(function, args, kwargs, preserve_rng_state)
    run.context, run.check = second, determinism_check == "default"
    start = next(_numbers)
    with first:
        outputs = function(*args, **kwargs)
    run.evict(nodes_since(outputs, start))
    return outputs


def checkpoint_sequential(
    functions: Iterable[Callable[..., Any]], segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Run functions one after the other, in segments of which all but the last are checkpointed."""
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    steps = list(functions)
    size = len(steps) // segments

    def through(part: list[Callable[..., Any]]) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            for step in part:
                x = step(x)
            return x

        return forward

    end = size * (segments - 1)
    for start in range(0, end, size) if size else ():
        part = through(steps[start : start + size])
        input = checkpoint(part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return through(steps[end:])(input)
