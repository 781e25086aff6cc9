"""The command `tapejit`: run a script and report what was compiled, compare eager with compiled speed, show a demo.

    tapejit run script.py [ARGUMENT ...]
    tapejit report script.py [ARGUMENT ...] [-o report.html]
    tapejit aot script.py [--target sm_90] [--device H100] [-o FOLDER]
    tapejit bench script.py:step [--rounds 10] [--json FILE]
    tapejit bench [NAME ...] [--peers torch,jax,tinygrad,mlx] [--json FILE] [--plot FILE.png]
    tapejit demo [--steps 600] [-o report.html]
    tapejit ops

In: a command line. Out: text, files and an exit code. If a command cannot be carried out, one sentence on standard error says
why, and the exit code is not zero.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....eager.core import library
from ..files import RefusalError, check_surroundings, check_writable
from . import aot as cli_aot
from . import bench as cli_bench
from . import demo as cli_demo
from . import ops_table as cli_ops
from . import report as cli_report
from . import run as cli_run

PACKAGE = Path(library.ROOT).resolve()
OWN = re.compile(r"\.py(:|$)")  # matches a script, not the name of a workload
COMMANDS = ("run", "report", "aot", "bench", "demo", "ops")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(__doc__.strip() if __doc__ else "")
        return 0 if given else 2
    try:
        return command(given[0], given[1:])
    except RefusalError as reason:
        print(f"tapejit: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tapejit: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe: `tapejit run train.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def command(name: str, rest: list[str]) -> int:
    if name == "ops":
        print(cli_ops.page(), end="")
        return 0
    check_surroundings()
    if name == "run":
        if not rest:
            raise RefusalError("run needs a script: `tapejit run train.py`")
        return cli_run.run(rest[0], rest[1:])
    if name == "report":
        return cli_report.report(rest)
    if name == "aot":
        return cli_aot.aot(rest)
    if name == "demo":
        return demo_command(rest)
    if name == "bench":
        return bench_command(rest) if any(OWN.search(x) for x in rest if not x.startswith("-")) else bench_workloads(rest)
    raise RefusalError(f"there is no command {name!r}; there are: {', '.join(COMMANDS)}")


def demo_command(rest: list[str]) -> int:
    parser = argparse.ArgumentParser("tapejit demo", description="Train a character GPT eagerly, then compiled.")
    parser.add_argument("--steps", type=int, help=f"steps per training ({cli_demo.STEPS}, or fewer if eager steps are slow)")
    parser.add_argument("-o", "--output", type=Path, default=Path(cli_report.DEFAULT), help="file for the report")
    options = parser.parse_args(rest)
    if options.steps is not None and options.steps < 1:
        raise RefusalError("--steps must be at least 1")
    return cli_demo.demo(options.steps, options.output)


def bench_command(rest: list[str]) -> int:
    """Compare eager with compiled speed of a user's own function."""
    parser = argparse.ArgumentParser("tapejit bench", description=cli_bench.__doc__, formatter_class=Plainly)
    parser.add_argument("target", metavar="SCRIPT.py:FUNCTION")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds to measure in each round")
    parser.add_argument("--steps", type=int, default=8, help="number of calls whose results are compared")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(rest)
    if options.rounds < 1 or options.steps < 1:
        raise RefusalError("at least one round and one step are needed")
    script, _, name = options.target.rpartition(":")
    if not script:
        raise RefusalError(f"name the function of {name} to measure: `tapejit bench {name}:step`")
    check_writable(options.json)
    return cli_bench.bench(script, name, options)


class Plainly(argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps the description's line breaks."""


def bench_workloads(rest: list[str]) -> int:
    """Run the workloads in `bench/`, which only a clone of the repository has."""
    folder = PACKAGE / "bench"
    if not (folder / "steps.py").exists():
        raise RefusalError(
            "the benchmark workloads are only in a clone of the repository; to measure your own step: "
            "`tapejit bench my_script.py:step`"
        )
    sys.path.insert(0, str(folder))
    try:
        steps: Any = importlib.import_module("steps")
        options = steps.parse(rest)
        check_writable(options.json)
        check_writable(options.plot)
        steps.main(rest)
    except SystemExit as end:  # its message goes to standard error
        if isinstance(end.code, str):
            raise RefusalError(end.code) from None
        return int(end.code or 0)
    finally:
        sys.path.remove(str(folder))
    asked = any(x.startswith("--peers") for x in rest)
    missing = [p for p in options.peers if steps.reason_to_skip(p, options)] if asked else []
    for peer in missing:
        reason = steps.reason_to_skip(peer, options)
        print(f"tapejit: the peer {peer} was requested but not measured: {reason}", file=sys.stderr)
    return 1 if missing else 0
