"""The training steps that `bench/steps.py` measures: their numbers, and how each library writes them."""
