"""CUDA graphs: launches that follow one another are captured once and then launched as one.

A graph holds the parameters of its kernels, so there is one for each set of addresses and numbers. A set that comes for the
second time is captured; memory of outputs tends to be at two or three places in turn. Where sets keep being new, launching one
by one is all there is.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

MIN_GRAPH_LAUNCHES = 4  # fewer launches are not worth a graph
MAX_GRAPHS = 8  # that are kept
MAX_NEW_KEYS = 24  # sets that were never seen before, since the last one that was


class Captured:
    """CUDA graphs of some launches. `launch(stream)` launches them one by one; `words` are those of the table that they read,
    and that differ from call to call."""

    def __init__(self, xp: Any, launch: Callable[[int], None], words: Any) -> None:
        self.xp = xp
        self.launch = launch
        self.words = words
        self.graphs: OrderedDict[bytes, Any] = OrderedDict()
        self.seen: OrderedDict[bytes, None] = OrderedDict()
        self.new = 0
        self.replays = 0
        self.given_up = False
        self.stream: Any = None

    def __call__(self, table: Any, stream: Any) -> None:
        if self.given_up:
            self.launch(stream.ptr)
            return
        key = table[self.words].tobytes()
        graph = self.graphs.get(key)
        if graph is None and key in self.seen:
            graph = self.captured(key)
        if graph is None:
            self.remember(key)
            self.launch(stream.ptr)
            return
        self.graphs.move_to_end(key)
        self.new = 0
        self.replays += 1
        graph.launch(stream)

    def remember(self, key: bytes) -> None:
        self.new += 1
        self.seen[key] = None
        if len(self.seen) > 2 * MAX_GRAPHS:
            self.seen.popitem(last=False)
        if self.new > MAX_NEW_KEYS:
            self.stop()

    def captured(self, key: bytes) -> Any:
        """Capture the launches with the table's current contents; None if they cannot be captured."""
        if self.stream is None:
            self.stream = self.xp.cuda.Stream(non_blocking=True)
        try:
            self.stream.begin_capture()
            try:
                self.launch(self.stream.ptr)
            finally:
                graph = self.stream.end_capture()
        except Exception as reason:  # launching one by one is always there
            self.stop()
            warnings.warn(f"[compile] launches are not replayed as a CUDA graph: {reason}", RuntimeWarning, stacklevel=2)
            return None
        self.graphs[key] = graph
        if len(self.graphs) > MAX_GRAPHS:
            self.graphs.popitem(last=False)
        return graph

    def forget(self) -> None:
        """Drop all graphs, as the parameters they hold are stale."""
        self.graphs.clear()
        self.seen.clear()

    def stop(self) -> None:
        self.given_up = True
        self.forget()


def words_of(rows: list[list[int]], dynamic: int) -> Any:
    """Words of the table that the launches read, among the `dynamic` first ones, which differ from call to call."""
    return np.array(sorted({w for words in rows for w in words if w < dynamic}), np.int64)
