"""`tapejit.utils`: data loading, a progress bar, looking inside a network."""

from . import data
from .progress import progress
from .watch import watch

__all__ = ["data", "progress", "watch"]
