"""`tapejit.utils`: data loading, activation checkpointing, a progress bar, looking inside a network, finding NaNs.

In: modules, functions and loaders. Out: the same ones wrapped or observed, and reports about them.
"""

from . import checkpoint, data
from .progress_bar import progress
from .rewind import NaNError, time_travel
from .watcher import watch

__all__ = ["NaNError", "checkpoint", "data", "progress", "time_travel", "watch"]
