"""`time_travel`: go back to the step that made the first NaN, or failed, and find the op and the line.

    step = tj.utils.time_travel(step, model, optimizer, scheduler, every=20)
    for x, y in loader:
        loss = step(x, y)

Every so many steps a snapshot is kept of what is given here (modules, optimizers, schedulers, tensors, generators), and the
arguments of the steps since. When a step returns a NaN or raises an exception, all is put back and the steps are run again,
eagerly and under the watch of anomaly detection, until the one that goes wrong. A `NaNError`, or a note of the exception, names
the op and the line. All is left as it was before that step, to be looked at. `training_snapshot.py` says what a snapshot holds.
"""

from __future__ import annotations

import functools
import math
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ..autograd.anomaly import Anomaly, user_stack
from ..core.dispatch import execute
from ..core.library import is_library
from ..core.op import Op
from ..core.structure.pytree import leaves
from ..core.tape.grad_mode import no_grad
from ..core.tape.node import Node, State, local
from ..core.tensor import Tensor
from .training_snapshot import Snapshot, copied, is_known, reachable_tensors

LEFT = "All is as it was before this step."
PLACE = re.compile(r'File "(.+)", line (\d+)')


class NaNError(RuntimeError):
    """A step made a NaN: by which op (`op`), at which of the user's lines (`line`, file:number), in which step (`step`)."""

    def __init__(self, message: str, step: int, op: str | None = None, line: str | None = None) -> None:
        super().__init__(message)
        self.step, self.op, self.line = step, op, line


class time_travel:  # noqa: N801
    """See the module's text. `every` is how many steps there are from one snapshot to the next."""

    def __init__(self, step: Callable[..., Any], *objects: Any, every: int = 20) -> None:
        if every < 1:
            raise ValueError(f"[time_travel] every must be at least 1, not {every}")
        if not objects:
            raise ValueError("[time_travel] give it what the step changes: time_travel(step, model, optimizer)")
        for x in objects:
            if not is_known(x):
                raise TypeError(f"[time_travel] a {type(x).__name__} has no state_dict, and is no tensor or generator")
        functools.update_wrapper(self, step, updated=())
        self.function, self.objects, self.every = step, objects, every
        self.count = 0  # steps that were done
        self.log: list[tuple[Any, Any]] = []  # arguments of the steps since the snapshot
        self.snapshot: Snapshot | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if local.state.tracer is not None:
            raise RuntimeError("[time_travel] put it around the compiled function, not into one")
        if self.snapshot is None or len(self.log) >= self.every:
            self.check()
            self.snapshot, self.log = Snapshot(self.objects), []
        self.log.append(copied((args, kwargs)))
        try:
            result = self.function(*args, **kwargs)
        except Exception as error:
            self.investigate(error)
            raise
        self.count += 1
        if has_nan(result):
            self.investigate(None)
        return result

    def check(self) -> None:
        """Look for NaNs in what the step changes, as is done before each snapshot."""
        if self.snapshot is not None and any(map(is_nan, reachable_tensors(self.objects))):
            self.investigate(None)

    # ---- going back

    def investigate(self, error: Exception | None) -> None:
        """Run the steps since the snapshot again. Raises what it finds, or else the error has a note."""
        assert self.snapshot is not None
        before, log = self.snapshot, self.log
        first = self.count - len(log) + (error is not None)
        self.snapshot, self.log = None, []  # the next step begins anew
        before.restore()
        known: set[tuple[str, str]] = set()  # what also good steps do
        for number, given in enumerate(log, first):
            before, self.count = Snapshot(self.objects), number
            tracker = NaNTracker()
            try:
                result = tracker.watch(self.function, *copied(given))
            except Exception as again:
                before.restore()
                again.add_note(tracker.about_error(again, number, first))
                raise again from error
            if has_nan(result) or any(map(is_nan, reachable_tensors(self.objects))):
                before.restore()
                raise tracker.about_nan(number, first, known, given) from error
            known.update(seen.key for seen in tracker.made)
        before.restore()
        if error is not None:
            error.add_note(f"[time_travel] step {self.count}, run again eagerly from step {first}: it did not happen. {LEFT}")
            return
        raise NaNError(
            f"[time_travel] step {self.count} made a NaN, but not when it was run again eagerly from step {first}. If the step "
            "changes something that time_travel was not given, give it that; otherwise `tj.diff(step, ...)` shows where eager "
            f"and compiled differ. {LEFT}",
            self.count,
        )


# ---- the second time


class OpLocation:
    """An op and the user's stack."""

    def __init__(self, op: str, stack: str) -> None:
        self.op, self.stack = op, stack
        places = PLACE.findall(stack)
        self.line = ":".join(places[-1]) if places else "an unknown line"

    @property
    def key(self) -> tuple[str, str]:
        return self.op, self.line


class NaNTracker(Anomaly):
    """Runs a step eagerly, and notes each op that makes a NaN of none, forward, backward and in the optimizer."""

    def __init__(self) -> None:
        super().__init__(check_nan=False)
        self.made: list[OpLocation] = []
        self.met: OpLocation | None = None  # the first op that was given a NaN which none had made
        self.failed: OpLocation | None = None  # the op that raised an exception

    def watch(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        state = local.state
        before = state.anomaly, state.handler
        state.anomaly, state.handler = self, functools.partial(self.run, state)  # a compiled function runs eagerly then
        try:
            return function(*args, **kwargs)
        finally:
            state.anomaly, state.handler = before

    def run(self, state: State, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        below, state.handler = state.handler, None
        try:
            had_nan = has_nan(inputs)
            state.handler = below  # the parts of a composite are looked at one by one
            try:
                result = execute(op, inputs, attrs, out, state)
            except Exception:
                self.failed = self.failed or OpLocation(op.name, user_stack())
                raise
            state.handler = None
            if self.running is None:
                changed = [inputs[i] for i in op.mutates] if op.mutates else result
                self.note(op.name, had_nan, changed, user_stack)
            return result
        finally:
            state.handler = below

    def gradients(self, node: Node, g: Any) -> Sequence[Tensor | None]:
        found = super().gradients(node, g)
        self.note(node.name(), has_nan(g), found, lambda: node.where or user_stack())
        return found

    def note(self, name: str, had_nan: bool, result: Any, stack: Callable[[], str]) -> None:
        if had_nan:
            if not self.made and self.met is None:
                self.met = OpLocation(name, stack())
        elif has_nan(result):
            self.made.append(OpLocation(name, stack()))

    # ---- words

    def about_nan(self, step: int, first: int, known: set[tuple[str, str]], given: tuple[Any, Any]) -> NaNError:
        head = f"[time_travel] step {step}, run again eagerly from step {first}: "
        names = [f"argument {i}" for i, x in enumerate(given[0]) if has_nan(x)]
        names += [f"argument {name}" for name, x in given[1].items() if has_nan(x)]
        if names:
            return NaNError(f"{head}{names[0]} has a NaN in it. {LEFT}", step)
        new = [seen for seen in self.made if seen.key not in known]
        cause = new[0] if new else self.met
        if cause is None:
            return NaNError(f"{head}a NaN that no op made, so that it was written past them. {LEFT}", step)
        words = "made the first NaN" if new else "was given a NaN that no op made"
        return NaNError(f"{head}{cause.op} at {cause.line} {words}. {LEFT}\n{cause.stack}", step, cause.op, cause.line)

    def about_error(self, error: Exception, step: int, first: int) -> str:
        """A note for an exception that came again."""
        what = "it" if self.failed is None else self.failed.op
        line = raised_at(error) if self.failed is None else self.failed.line
        return f"[time_travel] step {step}, run again eagerly from step {first}: {what} failed at {line}. {LEFT}"


def raised_at(error: Exception) -> str:
    """The innermost of the user's lines that an exception came through."""
    lines = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    users = [f"{code.co_filename}:{number}" for code, number in lines if not is_library(code)]
    return users[-1] if users else "an unknown line"


def has_nan(x: Any) -> bool:
    """True if there is a NaN in a tensor, a number, or what holds some."""
    return any(map(is_nan, leaves(x)))


def is_nan(x: Any) -> bool:
    if isinstance(x, float):
        return math.isnan(x)
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
        return False
    with no_grad():
        return bool(x.detach().isnan().any().item())
