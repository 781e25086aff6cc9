"""Shared by all tests: every test begins with the same random state and default dtype, on the CPU."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest
import tapejit as tj
from tapejit.eager.optim.optimizer import POST_HOOKS, PRE_HOOKS

# What is compiled runs as reference programs, bit for bit as eager execution; tests of generated code say so themselves.
os.environ.setdefault("TAPEJIT_BACKEND", "plain")
_folder = tempfile.TemporaryDirectory(prefix="tapejit-tests-")  # what tests compile is kept nowhere
os.environ["TAPEJIT_CACHE_DIR"] = os.path.join(_folder.name, "cache")

# A shell that starts tests in the background has them ignore Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, and no verdict by the clock. `fresh_state` below runs once per test, which is meant.
hypothesis.settings.register_profile(
    "tests",
    derandomize=True,
    deadline=None,
    max_examples=100,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Settings that a test changes do not reach the next one, and each draws the same random numbers in whatever order."""
    dtype, device = tj.get_default_dtype(), tj.get_default_device()
    tj.manual_seed(0)
    yield
    tj.set_default_dtype(dtype)
    tj.set_default_device(device)


def without_new_step_hooks() -> Iterator[None]:
    """Global step hooks of a watch that outlives its test would end regions and proofs in later tests of the process.

    Hooks that were there before stay as they are: one whose watch was collected during the test must not come back.
    """
    before = set(PRE_HOOKS), set(POST_HOOKS)
    yield
    for hooks, known in zip((PRE_HOOKS, POST_HOOKS), before, strict=True):
        for key in hooks.keys() - known:
            del hooks[key]


step_hooks = pytest.fixture(autouse=True)(without_new_step_hooks)
step_hooks_of_module = pytest.fixture(autouse=True, scope="module")(without_new_step_hooks)  # of fixtures that live as long
