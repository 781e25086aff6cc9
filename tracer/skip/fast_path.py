"""The fast path of a skipped call: one generated function for calls where nothing was read, changed or exchanged in between.

Most of what a small step costs beside its program is Python that asks whether anything is out of the ordinary. Here these tests
are one function without loops, with the facts of the recording as constants. It changes nothing before all tests have passed;
if one fails it returns `MISS`, and the general path (`SkippedCall.run`) asks again and knows what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...eager.arrays import devices, dtypes
from ...eager.core.tape.node import _numbers
from ...eager.core.tensor import CHANGES, Tensor
from ...eager.nn.mutation_counter import MUTATION_COUNT
from ..replay.run_segment import run_uninterrupted
from ..trace.tape_plan import DeferredNode

MISS = object()  # result of a call whose guards fail
REENTERED = object()  # result of a call made while the same call runs in this thread, as a signal handler may
LEAVE_FAST_PATH = "return MISS"  # statement for calls that need the general path


def compile_fast_path(skipped: Any) -> Callable[..., Any] | None:
    """Compile `call(skipped, state, args, kwargs)` for a recording with a ready program; None if calls have more to do."""
    arguments = skipped.arguments
    if not skipped.simple or skipped.once or arguments.counts:
        return None
    arguments.space.update({
        "MISS": MISS, "REENTERED": REENTERED,
        "CHANGES": CHANGES, "MUTATION_COUNT": MUTATION_COUNT, "dtypes": dtypes, "devices": devices,
        "new": object.__new__, "Tensor": Tensor, "DeferredNode": DeferredNode, "following": _numbers.__next__,
        "SEGMENT": skipped.segment, "RUN": skipped.segment.run, "SCALARS": skipped.scalars, "arrays": skipped.arrays,
        "GRAD": skipped.grad_mode, "DTYPE": skipped.dtype, "DEVICE": skipped.device, "LOCK": skipped.lock,
        "run_uninterrupted": run_uninterrupted, "HOLDS": skipped.names.holds,
    })  # fmt: skip
    lines = ["with LOCK:", *_indented(_unchanged_tests())]
    guards = skipped.names.guards
    names = [f"if not HOLDS(): {LEAVE_FAST_PATH}"]
    if guards is not None:  # without a call
        names = guards.lines(arguments.space, arguments._constant, LEAVE_FAST_PATH)
    lines += ["    try:", *_indented(_indented([*names, *arguments.text(LEAVE_FAST_PATH)]))]
    lines += ["    except (KeyError, ValueError, AttributeError):", f"        {LEAVE_FAST_PATH}"]
    lines += _indented([*_remaining_tests(skipped), *_run_lines(skipped), *_result_lines(skipped)])
    return arguments.function("call(skipped, state, args, kwargs)", lines)  # type: ignore[no-any-return]


def can_be_interrupted(segment: Any, run: Any) -> bool:
    """True if Ctrl-C could leave half of an update."""
    return bool(segment.writes) and not getattr(run, "whole", False)


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _unchanged_tests() -> list[str]:
    """Tests that process-wide settings are the same, and that captured state is bound, deferred and unchanged."""
    return [
        f"if state.grad is not GRAD or state.autocast is not None or dtypes._default is not DTYPE: {LEAVE_FAST_PATH}",
        f"if devices._default_device is not DEVICE or SEGMENT.run is not RUN: {LEAVE_FAST_PATH}",
        "if skipped.running: return REENTERED",
        "turn = skipped.turn = skipped.turn + 1",
        f"if skipped.seen or skipped.borrowing is not None or not skipped.is_bound: {LEAVE_FAST_PATH}",
        f"if skipped.tensor_mark != CHANGES[0] or skipped.module_mark != MUTATION_COUNT[0]: {LEAVE_FAST_PATH}",
        "memory = skipped.memory",
    ]


def _remaining_tests(skipped: Any) -> list[str]:
    """The other tests: code, hyperparameters, indices. Then the numbers that change at each call: random draws, step counts."""
    lines = []
    for i, optimizer in enumerate(skipped.optimizers):
        skipped.arguments.space[f"O{i}"] = optimizer
        lines.append(f"if not O{i}.is_deferred() or not O{i}.refresh(state, SCALARS, O{i}): {LEAVE_FAST_PATH}")
    lines += [f"if not skipped._indices_are_valid(): {LEAVE_FAST_PATH}"] if skipped.checks else []
    lines += ["skipped._draw()"] if skipped.draws else []
    return lines + [f"O{i}.advance(SCALARS)" for i in range(len(skipped.optimizers))]


def _run_lines(skipped: Any) -> list[str]:
    guarded = can_be_interrupted(skipped.segment, skipped.segment.run)
    undo = "".join(f"O{i}.undo_advance(); " for i in range(len(skipped.optimizers)))
    return [
        "skipped.written = None",
        # Python runs signal handlers after calls and jumps only: from this line on the program runs before any of them
        f"if skipped.turn != turn: {undo}{LEAVE_FAST_PATH}",
        "skipped.count += 1",
        "skipped.running = True",
        "try: run_uninterrupted(RUN, arrays, SCALARS)" if guarded else "try: RUN(arrays, SCALARS)",
        f"except BaseException as error: return skipped.stopped(error, state, {skipped.arguments.found}, False)",
    ]


def _result_lines(skipped: Any) -> list[str]:
    """Make the result, and drop the references to arrays that are handed out."""
    lines = [f"result = skipped._make_results({skipped.arguments.found})"]
    if skipped.result is None and len(skipped.made) == 1 and not skipped.inside:
        ((_, slot, wants),) = skipped.made
        lines = ["result = new(Tensor)", f"result.tj_array = arrays[{slot}]"]
        lines += ["result.tj_requires_grad = True"] if wants else []
        for i, (_, later) in enumerate(skipped.late):
            skipped.arguments.space[f"later{i}"] = later
            lines += ["result.tj_node = node = new(DeferredNode)", "node.number = following()", f"node._later = later{i}"]
    lines += [f"arrays[{slot}] = None" for slot in skipped.handed]
    return [*lines, "skipped.running = False", "if skipped.stale: skipped.materialise()", "return result"]
