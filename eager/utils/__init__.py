"""`tapejit.utils`: data loading, activation checkpointing, a progress bar, looking inside a network."""

from . import checkpoint, data
from .progress import progress
from .watch import watch

__all__ = ["checkpoint", "data", "progress", "watch"]
