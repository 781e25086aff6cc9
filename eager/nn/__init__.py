"""Neural networks: `functional` holds the functions."""

from . import functional

__all__ = ["functional"]
