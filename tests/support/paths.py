"""The clone, whose other files tests read and run, and the folder with the tests."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
