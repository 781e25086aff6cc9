"""`detect_anomaly`: name the line of the forward pass behind a NaN, or an error, in the backward pass.

While it is on, each node notes the user's stack when it is made, and the engine asks here for each node's gradients.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from typing import Any

from ..core.library import is_library
from ..core.tape.node import Node, local
from ..core.tensor import Tensor

FRAMES = 10  # of the user's stack are noted


class Anomaly:
    """The value of `local.state.anomaly` under `detect_anomaly`."""

    def __init__(self, check_nan: bool) -> None:
        self.check_nan = check_nan
        self.running: Node | None = None  # whose gradients are being computed

    def here(self) -> str:
        """The user's stack, innermost line last, and under `create_graph` also that of the node being differentiated."""
        text = user_stack()
        if self.running is not None and self.running.where:
            text += (
                f"\nPrevious calculation was induced by {self.running.name()}. "
                f"Traceback of forward call that induced the previous calculation:\n{self.running.where}"
            )
        return text

    def gradients(self, node: Node, g: Any) -> Sequence[Tensor | None]:
        """A node's gradients, with what goes wrong in them traced to the forward pass."""
        before, self.running = self.running, node
        try:
            found = node.gradients(g)
        except Exception as error:
            error.add_note(f"Error detected in {node.name()}. {caused_by(node)}")
            raise
        finally:
            self.running = before
        if self.check_nan:
            for i, t in enumerate(found):
                if t is not None and has_nan(t):
                    raise RuntimeError(f"Function '{node.name()}' returned nan values in its {i}th output. {caused_by(node)}")
        return found


def user_stack() -> str:
    """The lines that led here, outside this package: the innermost of them."""
    lines: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        if len(lines) == FRAMES:
            lines.append("  ...\n")
            break
        code = frame.f_code
        if not is_library(code):
            text = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
            place = f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n'
            lines.append(place + (f"    {text}\n" if text else ""))
        frame = frame.f_back  # type: ignore[assignment]
    return "".join(reversed(lines))


def caused_by(node: Node) -> str:
    if not node.where:
        return (
            "No forward pass information is available: enable anomaly detection during the forward pass too, to see the line."
        )
    return f"Traceback of forward call that caused the error:\n{node.where}"


def has_nan(t: Tensor) -> bool:
    array = t.tj_array
    return array.dtype.kind in "fV" and bool((array != array).any())


class set_detect_anomaly:  # noqa: N801
    """Switch anomaly detection on or off in this thread, at once and, as a context manager, until its end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = local.state.anomaly
        local.state.anomaly = Anomaly(check_nan) if mode else None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        local.state.anomaly = self._before


class detect_anomaly:  # noqa: N801
    """In this context, a NaN or an error in a backward pass names the line of the forward pass behind it."""

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan

    def __enter__(self) -> None:
        self._switch = set_detect_anomaly(True, self._check_nan)

    def __exit__(self, *_: object) -> None:
        self._switch.__exit__()


def is_anomaly_enabled() -> bool:
    """True if anomalies are being looked for in this thread."""
    return local.state.anomaly is not None


def is_anomaly_check_nan_enabled() -> bool:
    """True if NaNs count as anomalies in this thread."""
    return local.state.anomaly is not None and bool(local.state.anomaly.check_nan)
