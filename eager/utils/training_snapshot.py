"""Snapshots of what a training step changes, for `time_travel`: copies that can be put back in place.

Of a module: its parameters and buffers with their gradients, and whether it trains. Of an optimizer: its parameters too, and
its state. Of schedulers, scalers and other things: their `state_dict`. Random numbers: of the default generator, of Python and
of NumPy. What else a step changes, such as Python attributes, is not put back.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..core.generator import Generator, default_generator
from ..core.structure.object_graph import walk_objects
from ..core.tape.grad_mode import no_grad
from ..core.tensor import Tensor
from ..nn.module import Module
from ..optim.optimizer import Optimizer


def is_known(x: Any) -> bool:
    return isinstance(x, (Tensor, Generator)) or (hasattr(x, "state_dict") and hasattr(x, "load_state_dict"))


def copied(x: Any) -> Any:
    """A copy of arguments or of a state: tensors, arrays and plain containers are copied, all else is shared."""
    if isinstance(x, Tensor):
        with no_grad():
            twin = x.detach().clone()
        return twin.requires_grad_() if x.requires_grad and x.is_leaf else twin
    if isinstance(x, np.ndarray):
        return x.copy()
    if isinstance(x, dict):
        twin = copy.copy(x)
        twin.update({k: copied(v) for k, v in x.items()})
        return twin
    if type(x) in (tuple, list):
        return type(x)(copied(v) for v in x)
    return type(x)(*[copied(v) for v in x]) if isinstance(x, tuple) and hasattr(x, "_fields") else x


def reachable(objects: tuple[Any, ...]) -> Iterator[Any]:
    """Walk what a training step changes: the objects, the modules in them, and the tensors that these hold now."""
    return walk_objects(reversed(objects), lambda x: x is None, members)  # states are put back in the order of the objects


def reachable_tensors(objects: tuple[Any, ...]) -> Iterator[Tensor]:
    """Yield the tensors among what a training step changes."""
    return (x for x in reachable(objects) if isinstance(x, Tensor))


def members(x: Any) -> Iterable[Any]:
    if isinstance(x, Module):
        return (*x._parameters.values(), *x._buffers.values(), *x._modules.values())
    return [p for group in x.param_groups for p in group["params"]] if isinstance(x, Optimizer) else ()


class TensorCopy:
    """A tensor's values and its gradient."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.value = copied(tensor.detach())
        self.grad = tensor.grad
        self.grad_value = None if self.grad is None else copied(self.grad.detach())

    def restore(self) -> None:
        with no_grad():
            self.tensor.copy_(self.value)
            if self.grad is not None:
                self.grad.copy_(self.grad_value)
        self.tensor.grad = self.grad


class Snapshot:
    """Copies of some objects."""

    def __init__(self, objects: tuple[Any, ...]) -> None:
        self.copies: list[TensorCopy] = []
        self.buffers: list[tuple[Any, dict[str, Any]]] = []  # of each module: which tensors are its buffers
        self.training: list[tuple[Module, bool]] = []
        self.states: list[tuple[Any, Any]] = []
        for x in reachable(objects):
            self.keep(x)
        self.random_state = default_generator.get_state(), random.getstate(), np.random.get_state()

    def keep(self, x: Any) -> None:
        if isinstance(x, Tensor):
            self.copies.append(TensorCopy(x))
        elif isinstance(x, Module):
            self.buffers.append((x._buffers, dict(x._buffers)))
            self.training.append((x, x.training))
        elif isinstance(x, Generator):
            self.states.append((x.set_state, x.get_state()))
        else:
            self.states.append((x.load_state_dict, copied(x.state_dict())))

    def restore(self) -> None:
        for buffers, before in self.buffers:
            buffers.clear()
            buffers.update(before)
        for module, training in self.training:
            module.training = training
        for kept in self.copies:
            kept.restore()
        for load, state in self.states:
            load(copied(state))
        default_generator.set_state(self.random_state[0])
        random.setstate(self.random_state[1])
        np.random.set_state(self.random_state[2])
