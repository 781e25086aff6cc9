"""A call of a pure function as it usually is, written out: nothing was looked at, changed or exchanged since the call before.

Most of what a small step costs beside its program is Python that asks whether anything is unusual. Here the questions stand in
one function without loops, with what is known of the recording as constants. It does nothing before all of them are answered;
where one is not as usual, it says so, and the call goes the general way (`Pure.run`), which asks again and knows what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...eager.arrays import devices
from ...eager.arrays import dtypes
from ...eager.nn.mutation_counter import COUNT
from ...eager.core.tape.node import _numbers
from ...eager.core.tensor import CHANGES, Tensor
from ..trace.tape_plan import LateNode
from ..replay.run_segment import undisturbed

MISS = object()  # what a call gives whose guards do not hold
UNUSUAL = "return MISS"


def usual(pure: Any) -> Callable[..., Any] | None:
    """`call(pure, state, args, kwargs)` for a recording whose program is ready; None if its calls have more to do."""
    arguments = pure.arguments
    if not pure.simple or pure.once or arguments.counts:
        return None
    arguments.space.update({
        "MISS": MISS, "CHANGES": CHANGES, "COUNT": COUNT, "dtypes": dtypes, "devices": devices,
        "new": object.__new__, "Tensor": Tensor, "LateNode": LateNode, "following": _numbers.__next__, "SEGMENT": pure.segment,
        "RUN": pure.segment.run, "SCALARS": pure.scalars, "arrays": pure.arrays, "GRAD": pure.grad_mode, "DTYPE": pure.dtype,
        "DEVICE": pure.device, "LOCK": pure.lock, "undisturbed": undisturbed, "HOLDS": pure.proof and pure.proof.holds,
    })  # fmt: skip
    lines = ["with LOCK:", *_within(_still())]
    lines += ["    try:", *_within(_within(arguments.text(UNUSUAL)))]
    lines += ["    except (KeyError, ValueError, AttributeError):", f"        {UNUSUAL}"]
    lines += _within([*_asked(pure), *_run(pure), *_results(pure)])
    return arguments.function("call(pure, state, args, kwargs)", lines)  # type: ignore[no-any-return]


def can_be_cut(segment: Any, run: Any) -> bool:
    """Whether Ctrl-C could leave half of an update."""
    return bool(segment.writes) and not getattr(run, "whole", False)


def _within(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _still() -> list[str]:
    """Whether the process is set as it was, and what is captured is bound, lent, and as it was."""
    return [
        f"if state.grad is not GRAD or state.autocast is not None or dtypes._default is not DTYPE: {UNUSUAL}",
        f"if devices._default_device is not DEVICE or SEGMENT.run is not RUN: {UNUSUAL}",
        f"if pure.seen or pure.stay is not None or not pure.armed: {UNUSUAL}",
        f"if pure.tensor_mark != CHANGES[0] or pure.module_mark != COUNT[0]: {UNUSUAL}",
        "ids = pure.ids",
    ]


def _asked(pure: Any) -> list[str]:
    """The rest of the questions: code, the settings of optimizers, indices. Then numbers that are others at each call."""
    lines = [f"if not HOLDS(): {UNUSUAL}"] if pure.proof is not None else []
    for i, optimizer in enumerate(pure.optimizers):
        pure.arguments.space[f"O{i}"] = optimizer
        lines.append(f"if not O{i}.is_away() or not O{i}.refresh(state, SCALARS, O{i}): {UNUSUAL}")
    lines += [f"if not pure._indices_are_good(): {UNUSUAL}"] if pure.checks else []
    lines += ["pure._draw()"] if pure.draws else []
    return lines + [f"O{i}.advance(SCALARS)" for i in range(len(pure.optimizers))]


def _run(pure: Any) -> list[str]:
    return [
        "pure.written = None",
        f"try: {'undisturbed(RUN, arrays, SCALARS)' if can_be_cut(pure.segment, pure.segment.run) else 'RUN(arrays, SCALARS)'}",
        f"except BaseException as error: return pure.stopped(error, state, {pure.arguments.found}, False)",
    ]


def _results(pure: Any) -> list[str]:
    """What is returned, and that the list lets go of what is handed out."""
    lines = [f"result = pure._quickly({pure.arguments.found})"]
    if pure.result is None and len(pure.made) == 1 and not pure.inside:
        ((_, slot, wants),) = pure.made
        lines = ["result = new(Tensor)", f"result._array = arrays[{slot}]"]
        lines += ["result._requires_grad = True"] if wants else []
        for i, (_, later) in enumerate(pure.late):
            pure.arguments.space[f"later{i}"] = later
            lines += ["result._node = node = new(LateNode)", "node.number = following()", f"node._later = later{i}"]
    lines += [f"arrays[{slot}] = None" for slot in pure.handed]
    return [*lines, "pure.count += 1", "return result"]
