"""`tapejit.utils`: data loading, activation checkpointing, a progress bar, looking inside a network, finding NaNs."""

from . import checkpoint, data
from .progress import progress
from .time_travel import NaNError, time_travel
from .watch import watch

__all__ = ["NaNError", "checkpoint", "data", "progress", "time_travel", "watch"]
