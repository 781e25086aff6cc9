"""The native runtime when processes fork, exit, get signals or compete for cores: each test is a script of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.paths import TESTS

PRELUDE = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
import numpy as np
import tapejit as tj
from support.codegen.native_steps import relay, steps
from tapejit.codegen.llvm.runtime import thread_pool as threads
from tapejit.codegen.llvm.runtime.entry import ArgumentBinding, bind

tj.set_num_threads(3)
library = steps()
program = bind(library["relay"], ArgumentBinding((0, 1), ((0, "i64"), (1, "i64"))), keep=library)
direct = threads.process_pool()

def works(cells=9, rounds=20):
    for _ in range(5):
        first = np.arange(cells)
        rows = [first.copy(), np.zeros(cells, np.int64)]
        if not program(rows, [cells, rounds]):
            return False
        if not np.array_equal(rows[rounds % 2], relay(first, rounds)):
            return False
        table = np.array([first.ctypes.data, rows[1].ctypes.data, cells, rounds], np.int64)
        expected = relay(first, rounds)
        direct.run(library["relay"], table.ctypes.data)
        if not np.array_equal([first, rows[1]][rounds % 2], expected):
            return False
    return True

def child(function):
    pid = os.fork()
    if pid == 0:
        ok = False
        try:
            ok = function()
        finally:
            os._exit(0 if ok else 1)
    for _ in range(3000):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, 9)
    return False

def forever():
    rows = [np.zeros(1000, np.int64), np.zeros(1000, np.int64)]
    table = np.array([r.ctypes.data for r in rows] + [1000, 100])
    while True:
        program(rows, [1000, 100])
        direct.run(library["relay"], table.ctypes.data)

assert works()
"""


def script(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE.format(tests=str(TESTS)) + body],
        capture_output=True,
        text=True,
        timeout=120,
    )


SCRIPTS = {
    "exit with parked workers": "time.sleep(0.1); print('fine')",
    "exit with spinning workers": "print('fine')",
    "exit while another thread runs programs": """
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
print('fine')
""",
    "sys.exit in a thread's wake": """
import atexit
atexit.register(works)
sys.exit(print('fine'))
""",
    "children have workers of their own, and their children": """
assert child(works) and direct.threads == 3
assert works()
assert child(lambda: works() and child(lambda: works() and direct.threads == 3) and works())
print('fine')
""",
    "fork while another thread runs the same program": """
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.02)
for _ in range(5):
    assert child(works)
print('fine')
""",
    "fork while another thread compiles": """
def compiling():
    while True:
        steps()
threading.Thread(target=compiling, daemon=True).start()
time.sleep(0.02)
for _ in range(3):
    assert child(lambda: steps() is not None and works())
print('fine')
""",
    "KeyboardInterrupt comes when a program is done": """
caught = 0
for _ in range(5):
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        forever()
    except KeyboardInterrupt:
        caught += 1
    timer.join()
    assert works()
assert caught == 5
print('fine')
""",
    "more threads than cores, with others at work": """
hogs = [os.fork() for _ in range(3)]
if 0 in hogs:
    end = time.time() + 20
    while time.time() < end and os.getppid() > 1: pass
    os._exit(0)
try:
    tj.set_num_threads(8)
    for _ in range(3):
        assert works()
finally:
    for hog in hogs:
        os.kill(hog, 9)
        os.waitpid(hog, 0)
print('fine')
""",
}


@pytest.mark.skipif(os.name != "posix", reason="forks and signals")
@pytest.mark.parametrize("name", SCRIPTS)
def test_processes(name: str) -> None:
    done = script(SCRIPTS[name])
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
