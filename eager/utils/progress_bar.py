"""`progress`: a bar for training loops, with the loss, the speed and the time left; nothing at all where nobody looks.

The names of the methods are tqdm's. Values are shown, and tensors read, only when the line is redrawn, ten times a second
at most: a loss that is handed over costs nothing in between and keeps no graph alive.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TextIO, TypeVar

from ..core.tensor import Tensor

T = TypeVar("T")

_BLOCKS = " ▏▎▍▌▋▊▉█"
_WIDEST = 30  # characters of the bar


def progress(
    iterable: Iterable[T] | int | None = None,
    desc: str = "",
    total: int | None = None,
    *,
    leave: bool = True,
    file: TextIO | None = None,
    disable: bool | None = None,
    mininterval: float = 0.1,
) -> Progress[T]:
    """Iterate over `iterable` (a loader, a range, a number of steps) and draw how far it is.

        bar = progress(loader, desc="epoch 1")
        for x, y in bar:
            ...
            bar.set_postfix(loss=loss)

    `total` is needed only where `len(iterable)` does not tell. The line goes to `file` (standard error), if that is a terminal;
    `disable=False` draws anyway, `disable=True` never. Without `leave` the line is wiped at the end.
    """
    return Progress(iterable, desc, total, leave, file, disable, mininterval)


class Progress(Generic[T]):
    """Made by `progress`. Without an iterable: `with progress(total=100) as bar: ... bar.update()`."""

    def __init__(
        self,
        iterable: Iterable[T] | int | None,
        desc: str,
        total: int | None,
        leave: bool,
        file: TextIO | None,
        disable: bool | None,
        mininterval: float,
    ) -> None:
        self.iterable: Any = range(iterable) if isinstance(iterable, int) else iterable
        self.total = _length(self.iterable) if total is None else total
        self.n = 0
        self.desc, self.leave, self.mininterval = desc, leave, mininterval
        self.file = sys.stderr if file is None else file
        self.disable = not self.file.isatty() if disable is None else disable
        self.values: dict[str, Any] = {}
        self._open = False
        self._next = 0.0  # when to draw again
        self._first = (0.0, 0)  # when it began, and at which step
        self._recent: deque[tuple[float, int]] = deque(maxlen=50)  # when the line was drawn, and at which step

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError(f"progress: nobody knows how long {type(self.iterable).__name__} is; give total=")
        return self.total

    def __iter__(self) -> Iterator[T]:
        if self.iterable is None:
            raise TypeError("progress: there is nothing to iterate over; call update() for each step, or give an iterable")
        self._begin()
        try:
            for item in self.iterable:
                yield item
                self.update()
        finally:
            self.close()

    def __enter__(self) -> Progress[T]:
        self._begin()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def update(self, n: int = 1) -> None:
        """Note that `n` more steps are done."""
        self.n += n
        if not self.disable:
            if not self._open:
                self._begin(self.n - n)
            now = time.perf_counter()
            if now >= self._next:
                self._draw(now)

    def set_postfix(self, **values: Any) -> None:
        """Show these values behind the bar: numbers, strings, or 0-dim tensors such as the loss."""
        if not self.disable:
            self.values = {name: v.detach() if isinstance(v, Tensor) else v for name, v in values.items()}

    def set_description(self, desc: str) -> None:
        """Show this text in front of the bar."""
        self.desc = desc

    def write(self, text: str) -> None:
        """Print a line above the bar."""
        if self._open:
            self._put("")
        print(text, flush=True)
        if self._open:
            self._draw(time.perf_counter())

    def close(self) -> None:
        """Draw the line a last time, and leave it."""
        if self._open:
            self._draw(time.perf_counter(), last=True)
            if self.leave:
                print(file=self.file, flush=True)
            else:
                self._put("")
            self._open = False

    # ---- the line

    def _begin(self, n: int = 0) -> None:
        self.n = n
        if not self.disable:
            self._open = True
            self._first = time.perf_counter(), n
            self._recent.clear()
            self._recent.append(self._first)
            self._draw(self._first[0])

    def _draw(self, now: float, last: bool = False) -> None:
        if self._recent[-1][1] != self.n:
            self._recent.append((now, self.n))
        self._next = now + self.mininterval
        self._put(self.line(now, last))

    def _put(self, text: str) -> None:
        print(f"\r\033[K{text}", end="", file=self.file, flush=True)

    def line(self, now: float, last: bool = False) -> str:
        """The line as it is drawn, cut to the terminal's width."""
        parts = [f"{self.n}/{self.total}" if self.total is not None else f"{self.n}"]
        parts += [f"{name} {_shown(value)}" for name, value in self.values.items()]
        since, done = self._first if last else self._recent[0]
        speed = (self.n - done) / (now - since) if now > since else 0.0
        if speed:
            parts.append(_speed(speed))
        if last or not speed or self.total is None:
            parts.append(_duration(now - self._first[0]))
        else:
            parts.append(f"{_duration(max(self.total - self.n, 0) / speed)} left")
        columns = shutil.get_terminal_size().columns - 1
        text = "  ".join(parts)
        lead = f"{self.desc} " if self.desc else ""
        if self.total:
            width = min(_WIDEST, columns - len(lead) - len(text) - 7)
            fraction = min(self.n / self.total, 1.0)
            lead += (f"{self._bar(fraction, width)} " if width >= 5 else "") + f"{math.floor(100 * fraction):3d}%  "
        return (lead + text)[:columns]

    def _bar(self, fraction: float, width: int) -> str:
        if "utf" not in (getattr(self.file, "encoding", None) or "").lower():
            return "[" + ("#" * int(fraction * (width - 2))).ljust(width - 2, ".") + "]"
        eighths = int(fraction * width * 8)
        full, rest = divmod(eighths, 8)
        return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width, "░")


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except (TypeError, NotImplementedError):
        return None


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else f"[{'x'.join(str(n) for n in value.shape)}]"
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"
    return str(value)


def _speed(speed: float) -> str:
    if speed < 1:
        return f"{1 / speed:.1f} s/step"
    return f"{speed:,.0f} steps/s" if speed >= 10 else f"{speed:.1f} steps/s"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
