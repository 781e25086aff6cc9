"""`tapejit.utils`: data loading, a progress bar."""

from . import data
from .progress import progress

__all__ = ["data", "progress"]
