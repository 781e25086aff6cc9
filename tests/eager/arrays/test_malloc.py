"""Freed memory stays with the process, unless asked otherwise."""

import os
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource
import numpy as np
import tapejit as tj

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    a = [np.ones(1 << 18, np.float32) for _ in range(8)]

work()
before = faults()
for _ in range(20):
    work()
print(faults() - before)
"""


def faults(setting: str) -> int:
    environment = {**os.environ, "TAPEJIT_MALLOC": setting}
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux's C library")
def test_freed_memory_is_used_again():
    assert faults("") * 4 < faults("default")
