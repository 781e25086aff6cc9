"""The states of a path, as `docs/lifecycle.md` draws them. A state follows from what the function knows about the path."""

from __future__ import annotations

from enum import Enum
from typing import Any

from ..trace.trace import Trace


class PathState(Enum):
    """What becomes of the next call that takes this path."""

    RECORDED = "recorded"  # a candidate: the next call is compared with it
    CONFIRMED = "confirmed"  # seen often enough, and not replayed since
    REPLAYING = "replaying"
    OBSERVED = "observed"  # replayed, and noted beside it what Python does
    SKIPPING = "skipping"
    NEEDS_PYTHON = "needs Python"


def path_state(function: Any, trace: Trace) -> PathState:
    """Return the state of one of a compiled function's paths."""
    if trace is function.candidate:
        return PathState.RECORDED
    if any(skipped.trace is trace for skipped in function.skipped_calls):
        return PathState.SKIPPING
    if trace.impure is not None:
        return PathState.NEEDS_PYTHON
    if function.is_observed(trace):
        return PathState.OBSERVED
    return PathState.REPLAYING if trace.replays else PathState.CONFIRMED
