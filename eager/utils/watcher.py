"""`watch`: looking inside a network while it trains, to see why it does or does not learn.

Hooks note, for every layer, how its outputs are distributed and how many of them lie where the activation function is flat,
and what gradients come back; around each step of an optimizer, how large the weights, their gradients and their
updates are. The numbers are tensors until they are asked for, so that watching does not wait for a GPU, and they are
computed with the library's own ops, so that a compiled step is watched like any other. Nothing here draws random numbers
or changes a value: training with a watch is the same training.

This file collects; `eager/utils/watch_report.py` makes text and a page of it, `eager/viz/charts.py` draws.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..core.tape.grad_mode import is_grad_enabled, no_grad
from ..core.tensor import Tensor
from ..nn.module import Module
from ..ops.convert import from_numpy
from ..ops.reduce import var_mean
from ..optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from . import watch_report as report

Flat = Callable[[Tensor], Tensor]

SAMPLE = 4096  # values kept of a tensor, for its histogram
MAX_CALLS = 64  # of one layer in one step; what comes later is not looked at
SATURATED = 0.97  # tanh beyond this has next to no slope

# Where an activation function is flat, by the class of the module or the name of the op that made the output.
FLAT: dict[str, Flat] = {
    "tanh": lambda x: x.abs() > SATURATED,
    "softsign": lambda x: x.abs() > SATURATED,
    "sigmoid": lambda x: (2 * x - 1).abs() > SATURATED,
    "relu": lambda x: x <= 0,
    "relu6": lambda x: (x <= 0) | (x >= 6),
    "hardsigmoid": lambda x: (x <= 0) | (x >= 1),
}
PLAIN = ("Identity", "Flatten", "Unflatten", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")


def watch(
    model: Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    every: int = 1,
    *,
    layers: Any = None,
) -> Watch:
    """Collect statistics of a model's activations, gradients, weights and updates, at every `every`-th step.

        seen = watch(model)
        ... train ...
        print(seen.table())
        seen.html("watch.html")

    Without `optimizer` (one or several) the steps of all optimizers that update this model count. `layers` chooses which
    modules to look at: classes, as in `layers=nn.Tanh`, or a function of name and module; else all without submodules.
    """
    return Watch(model, optimizer, every, layers)


class Watch:
    """Made by `watch`. `table()`, `to_dict()`, `plot(path)` and `html(path)` show what was seen; `remove()` ends it."""

    def __init__(self, model: Module, optimizer: Any, every: int, layers: Any) -> None:
        if not isinstance(model, Module):
            raise TypeError(f"watch: expected a Module, got {type(model).__name__}")
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"watch: every must be a whole number of steps, at least 1, got {every!r}")
        self.model, self.every = model, every
        self.kinds: dict[str, str] = {}  # a layer's name and what it is
        self.parameters = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
        self.step = 0
        self.history: list[Step] = []  # the steps that were observed and are over
        self._current: Step | None = Step(0)
        self._updated: set[str] = set()  # the parameters updated in this step; the next forward begins a new one
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._picks: dict[tuple[int, Any], Tensor] = {}
        self._handles: list[Any] = []
        self._watch_layers(layers)
        self._watch_optimizers(optimizer)

    # ---- hooks

    def _watch_layers(self, layers: Any) -> None:
        chosen = _choice(layers)
        for name, module in self.model.named_modules():
            if chosen(name, module):
                name = name or type(module).__name__
                self.kinds[name] = type(module).__name__
                self._handles.append(module.register_forward_hook(self._forward_hook(name, _flat_part(module))))
        if not self.kinds:
            raise ValueError("watch: the model has no such layers: look at layers=")

    def _forward_hook(self, name: str, flat: Flat | None) -> Callable[..., None]:
        def hook(module: Module, args: Any, output: Any) -> None:
            if not is_grad_enabled():  # evaluation and sampling are not training
                return
            if self._updated:
                self._advance()
            if self._current is not None:
                output = output[0] if isinstance(output, (tuple, list)) and output else output  # GRU and its like
                if isinstance(output, Tensor) and output.is_floating_point():
                    self._see(name, output, flat, self._current)

        return hook

    def _see(self, name: str, output: Tensor, flat: Flat | None, step: Step) -> None:
        flat = flat or _flat_by_op(output)
        with no_grad():
            step.of(step.activations, name).add(output.detach(), self._pick, flat)
        if output.requires_grad:

            def on_gradient(g: Tensor) -> None:
                if step.closed:
                    return
                with no_grad():
                    step.of(step.gradients, name).add(g.detach(), self._pick)

            output.register_hook(on_gradient)

    def note(self, name: str, tensor: Tensor, kind: str | None = None) -> Tensor:
        """Look at any tensor in a forward as if it were a layer's output, and hand it back.

        For what is no module: `h = seen.note("hidden", torch.tanh(x))`. `kind` ("tanh", "relu", ...) says where it is flat, if
        the op that made it does not.
        """
        if kind is not None and kind not in FLAT:
            raise ValueError(f"watch: kind {kind!r} is none of {', '.join(FLAT)}")
        if is_grad_enabled() and self._handles:
            if self._updated:
                self._advance()
            if self._current is not None:
                self.kinds.setdefault(name, kind or "Tensor")
                self._see(name, tensor, FLAT[kind] if kind else None, self._current)
        return tensor

    def _watch_optimizers(self, given: Any) -> None:
        optimizers = [given] if isinstance(given, Optimizer) else given
        if optimizers is None:
            self._handles.append(register_optimizer_step_pre_hook(_weakly(self._optimizer_begins)))
            self._handles.append(register_optimizer_step_post_hook(_weakly(self._optimizer_ends)))
            for handle in self._handles[-2:]:
                weakref.finalize(self, handle.remove).atexit = False
            return
        for one in optimizers:
            if not isinstance(one, Optimizer):
                raise TypeError(f"watch: expected an Optimizer, got {type(one).__name__}")
            self._handles.append(one.register_step_pre_hook(self._optimizer_begins))
            self._handles.append(one.register_step_post_hook(self._optimizer_ends))

    def _updated_by(self, optimizer: Optimizer) -> list[str]:
        return [self._names[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in self._names]

    def _optimizer_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = self._updated_by(optimizer)
        if names:
            self._before(names, closure=len(args) > 1 or kwargs.get("closure") is not None)

    def _optimizer_ends(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = self._updated_by(optimizer)
        if names:
            self._after(names)

    def before_step(self) -> None:
        """Call before changing the parameters by hand, when their gradients are there; optimizers need no such call."""
        self._before(list(self.parameters), closure=False)

    def after_step(self) -> None:
        """Call after having changed the parameters by hand."""
        self._after(list(self.parameters))

    def _before(self, names: list[str], closure: bool) -> None:
        """Note the weights and their gradients; those that a closure will compute are noted afterwards."""
        if not self._updated.isdisjoint(names):
            self._advance()  # a second update of the same weights without a forward between is another step
        if self._current is None:
            return
        with no_grad():
            for name in names:
                parameter, step = self.parameters[name], self._current
                if closure or parameter.tj_grad is not None:
                    step.before[name] = parameter.detach().clone()
                    step.of(step.data, name).add(parameter.detach(), self._pick)
                if not closure:
                    self._see_gradient(name, step)

    def _after(self, names: list[str]) -> None:
        self._updated.update(names)
        step = self._current
        if step is None:
            return
        with no_grad():
            for name in names:
                before = step.before.pop(name, None)
                if before is not None:
                    if name not in step.weight_gradients:
                        self._see_gradient(name, step)
                    step.of(step.updates, name).add(self.parameters[name].detach() - before, self._pick)

    def _see_gradient(self, name: str, step: Step) -> None:
        gradient = self.parameters[name].tj_grad
        if gradient is not None:
            step.of(step.weight_gradients, name).add(gradient.detach(), self._pick)

    def _advance(self) -> None:
        """The next step begins; turn what was seen in the last one into numbers."""
        self._updated.clear()
        self.step += 1
        if self._current is not None:
            self._current.close()
            if self.history:
                self.history[-1].forget_samples()
            self.history.append(self._current)
        self._current = Step(self.step) if self.step % self.every == 0 else None

    def _pick(self, flat: Tensor) -> Tensor:
        """Some of a tensor's values: the same places each time, chosen without the library's random numbers."""
        count = flat.numel()
        if count <= SAMPLE:
            return flat.clone()  # type: ignore[no-any-return]
        key = count, flat.device
        if key not in self._picks:
            places = np.random.default_rng(count).integers(count, size=SAMPLE)
            self._picks[key] = from_numpy(places).to(flat.device)
        return flat[self._picks[key]]

    def remove(self) -> None:
        """Take all hooks away. What was seen stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()

    # ---- what was seen

    @property
    def steps(self) -> list[Step]:
        """The steps that were observed, the one under way too, if anything was seen of it."""
        under_way = [self._current] if self._current is not None and self._current.any() else []
        return [*self.history, *under_way]

    def to_dict(self) -> dict[str, Any]:
        """All numbers as lists over the observed steps, None where there is none:

        `{"steps": [...], "layers": {name: {"type", "shape", "mean", "std", "saturated", "dead", "grad_mean", "grad_std"}},
        "parameters": {name: {"shape", "mean", "std", "grad_mean", "grad_std", "grad_to_data", "update_to_data"}}}`
        """
        steps = self.steps
        layers = {}
        for name, kind in self.kinds.items():
            own = [step.layer(name) for step in steps]
            if all(row["shape"] is None for row in own):
                continue  # never called
            layers[name] = {"type": kind, "shape": _last([row.pop("shape") for row in own]), **_columns(own, LAYER)}
        parameters = {}
        for name, p in self.parameters.items():
            parameters[name] = {"shape": list(p.shape), **_columns([step.parameter(name) for step in steps], PARAMETER)}
        return {"steps": [step.number for step in steps], "layers": layers, "parameters": parameters}

    def remarks(self) -> list[str]:
        """Return, in sentences, what looks wrong in the last observed step."""
        return report.remarks(self.to_dict())

    def table(self) -> str:
        """The last observed step as text: a line for each layer and each parameter, then the remarks."""
        return report.table(self.to_dict())

    def __str__(self) -> str:
        return self.table()

    def plot(self, path: str | Path, dark: bool = False) -> None:
        """Draw the distributions and the curves into an SVG file, or any other kind of picture that matplotlib can write."""
        report.plot(self, Path(path), dark)

    def html(self, path: str | Path) -> None:
        """Write one page with pictures and tables; it needs nothing else and follows the reader's light or dark setting."""
        Path(path).write_text(report.page(self), encoding="utf-8")

    def __repr__(self) -> str:
        return (
            f"<watch on {type(self.model).__name__}: {len(self.kinds)} layers, {len(self.parameters)} parameters, "
            f"{len(self.steps)} steps observed; .table(), .to_dict(), .plot(path), .html(path), .remove()>"
        )


LAYER = ("mean", "std", "saturated", "dead", "grad_mean", "grad_std")
PARAMETER = ("mean", "std", "grad_mean", "grad_std", "grad_to_data", "update_to_data")


class Moments:
    """Statistics of a tensor, or of the tensors of several calls together: mean, standard deviation, flat parts, samples."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Tensor, Tensor]] = []  # how many values, their variance and mean
        self.flat: list[Tensor] = []  # the fraction of values in the flat part
        self.units: list[Tensor] = []  # for each unit whether it was there in the whole batch
        self.samples: list[Tensor] = []
        self.shape: list[int] = []
        self.numbers: dict[str, Any] | None = None
        self.sample = np.empty(0, np.float32)

    def add(self, values: Tensor, pick: Callable[[Tensor], Tensor], flat: Flat | None = None) -> None:
        if len(self.parts) == MAX_CALLS or not values.numel():
            return
        self.numbers = None
        self.shape = list(values.shape)
        wide = values.reshape(-1)
        wide = wide.float() if wide.itemsize == 2 else wide
        self.parts.append((wide.numel(), *var_mean(wide, correction=0)))
        if len(self.samples) < 8:
            self.samples.append(pick(wide))
        if flat is not None:
            inside = flat(values)
            self.flat.append(inside.float().mean())
            if values.ndim > 1:
                self.units.append(_whole_batch(inside))

    def resolve(self) -> dict[str, Any]:
        """The numbers, read from the tensors once."""
        if self.numbers is None:
            counts = np.array([count for count, _, _ in self.parts], float)
            variances, means = (np.array([float(p[i]) for p in self.parts]) for i in (1, 2))
            total = counts.sum()
            mean = (counts * means).sum() / total
            with np.errstate(all="ignore"):
                variance = (counts * (variances + (means - mean) ** 2)).sum() / max(total - 1, 1)
            self.numbers = {"mean": float(mean), "std": math.sqrt(variance) if variance >= 0 else math.nan}
            if self.flat:
                self.numbers["saturated"] = float((counts * [float(f) for f in self.flat]).sum() / total)
            if self.units and len({u.shape for u in self.units}) == 1:
                dead = np.all([u.numpy(force=True) for u in self.units], axis=0)
                self.numbers["dead"] = float(dead.mean())
            found = np.concatenate([s.numpy(force=True).astype(np.float32) for s in self.samples])
            self.sample = found[np.isfinite(found)]
        return self.numbers

    def release(self) -> None:
        self.parts, self.flat, self.units, self.samples = [], [], [], []


class Step:
    """Statistics of one step: moments by the names of layers and of parameters."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.activations: dict[str, Moments] = {}
        self.gradients: dict[str, Moments] = {}
        self.data: dict[str, Moments] = {}
        self.weight_gradients: dict[str, Moments] = {}
        self.updates: dict[str, Moments] = {}
        self.before: dict[str, Tensor] = {}  # parameters before the optimizer's step under way
        self.closed = False

    @staticmethod
    def of(group: dict[str, Moments], name: str) -> Moments:
        if name not in group:
            group[name] = Moments()
        return group[name]

    def any(self) -> bool:
        return bool(self.activations or self.updates)

    def moments(self) -> Iterator[Moments]:
        for group in (self.activations, self.gradients, self.data, self.weight_gradients, self.updates):
            yield from group.values()

    def close(self) -> None:
        """Turn everything into numbers and let the tensors go."""
        self.closed = True
        self.before.clear()
        for moments in self.moments():
            moments.resolve()
            moments.release()

    def forget_samples(self) -> None:
        for moments in self.moments():
            moments.sample = moments.sample[:0]

    def layer(self, name: str) -> dict[str, Any]:
        out, back = self.activations.get(name), self.gradients.get(name)
        gradient = {f"grad_{key}": value for key, value in back.resolve().items()} if back else {}
        return {"shape": out.shape if out else None, **(out.resolve() if out else {}), **gradient}

    def parameter(self, name: str) -> dict[str, Any]:
        data, gradient, update = (g.get(name) for g in (self.data, self.weight_gradients, self.updates))
        if data is None or gradient is None:
            return {}
        own, back = data.resolve(), gradient.resolve()
        ratio = _ratio(update.resolve()["std"], own["std"]) if update else None
        return {
            **own,
            **{f"grad_{key}": value for key, value in back.items()},
            "grad_to_data": _ratio(back["std"], own["std"]),
            "update_to_data": math.log10(ratio) if ratio else None,
        }


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that does not keep the watch alive: hooks of all optimizers live for ever, a watch as long as its model."""
    found = weakref.WeakMethod(method)

    def hook(*args: Any) -> None:
        alive = found()
        if alive is not None:
            alive(*args)

    return hook


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 and math.isfinite(a) else None


def _columns(rows: list[dict[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in names}


def _last(values: list[Any]) -> Any:
    return next((v for v in reversed(values) if v is not None), None)


def _choice(layers: Any) -> Callable[[str, Module], bool]:
    """Select the modules to watch."""
    if layers is None:
        return lambda name, module: not module._modules and type(module).__name__ not in PLAIN
    if isinstance(layers, type):
        return lambda name, module: isinstance(module, layers)
    if callable(layers):
        return layers  # type: ignore[no-any-return]
    classes = tuple(layers)
    return lambda name, module: isinstance(module, classes)


def _flat_part(module: Any) -> Flat | None:
    """Return the region where a module's output is flat, if it is an activation function that has one."""
    kind = type(module).__name__.lower()
    if kind == "hardtanh":
        low, high = module.min_val, module.max_val
        return lambda x: (x <= low) | (x >= high)
    return FLAT.get(kind)


def _flat_by_op(output: Tensor) -> Flat | None:
    """The same by the op that made the output, for modules that end in `torch.tanh(...)`."""
    made_by = output.grad_fn
    return None if made_by is None or made_by.op is None else FLAT.get(made_by.op.name)


def _whole_batch(inside: Tensor) -> Tensor:
    """For each unit whether all its values are inside. Units are channels of images and volumes, else the last dim."""
    unit = 1 if inside.ndim >= 4 else inside.ndim - 1
    return inside.all(dim=tuple(d for d in range(inside.ndim) if d != unit))  # type: ignore[no-any-return]
