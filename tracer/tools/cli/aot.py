"""`tapejit aot script.py --target sm_90`: what a script's compiled functions would be on a GPU that need not be here.

The script runs on this machine until its functions have been recorded, and is stopped then. Their programs are compiled for the
target: files with the kernels go to a folder, and a table says what each kernel takes and how long it would take at least.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import RefusalError, module_of
from ...api.compile import Compiled, switched_off
from ...graph.functionalize import graph_of
from ...execute.backends import AHEAD_OF_TIME, GENERATORS
from ...graph.ir import Graph, GraphError
from ...graph.passes import optimised
from ...execute.reference_program import Program
from ...trace.trace import Trace

CALLS = 8  # in which nothing new turned up, before the script is stopped


class EnoughError(BaseException):
    """Everything has been recorded; no script's business, so it passes through `except Exception`."""


@dataclass
class Seen:
    """What was recorded of a script."""

    limit: int
    graphs: list[tuple[str, Graph]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # why some segments have no graph
    calls: dict[str, int] = field(default_factory=dict)
    quiet: int = 0  # calls since something new turned up
    current: str = ""

    def called(self, name: str) -> None:
        self.quiet = self.quiet + 1 if name in self.calls else 0
        self.calls[name] = self.calls.get(name, 0) + 1
        self.current = name
        if self.quiet > self.limit:
            raise EnoughError

    def note(self, trace: Trace, start: int, stop: int, keep: frozenset[int], _: Program) -> Any:
        """In the place of a generator of code."""
        self.quiet = 0
        try:
            graph = optimised(graph_of(trace, start, stop, keep))
        except GraphError as reason:
            self.left.append(f"{self.current}: {reason}")
            raise
        self.graphs.append((self.unique(self.current), graph))
        raise GraphError("it is only recorded")

    def unique(self, name: str) -> str:
        """A name for files that no other program has."""
        base = re.sub(r"\W+", "_", name.rpartition("<locals>.")[2]).strip("_") or "function"
        names = {n for n, _ in self.graphs}
        return next(n for n in [base, *[f"{base}_{k}" for k in range(2, len(names) + 2)]] if n not in names)


@contextlib.contextmanager
def recording(limit: int) -> Iterator[Seen]:
    """In this block compiled functions are recorded, and run by plain programs."""
    found = Seen(limit)
    call, before, backend = Compiled.__call__, dict(GENERATORS), os.environ.get("TAPEJIT_BACKEND")

    def counted(self: Compiled, /, *args: Any, **kwargs: Any) -> Any:
        found.called(self.name)
        return call(self, *args, **kwargs)

    Compiled.__call__ = counted  # type: ignore[method-assign, assignment]
    GENERATORS.update(dict.fromkeys(before, found.note))
    os.environ["TAPEJIT_BACKEND"] = "auto"
    try:
        yield found
    finally:
        os.environ.pop("TAPEJIT_BACKEND")
        os.environ.update({} if backend is None else {"TAPEJIT_BACKEND": backend})
        Compiled.__call__ = call  # type: ignore[method-assign]
        GENERATORS.update(before)


def aot(rest: list[str]) -> int:
    """The exit code: 1 if some kernel did not compile."""
    options = parsed(rest)
    if importlib.util.find_spec("triton") is None:
        raise RefusalError("Triton, which compiles the kernels, is not installed: pip install 'tapejit[gpu]', on Linux")
    if switched_off():
        raise RefusalError("TAPEJIT=eager switches compiling off: run this without it")
    ahead = AHEAD_OF_TIME["triton"]()
    device = device_of(options, ahead.DEVICES)
    check_folder(options.output)
    folder = options.output.absolute()  # the script may change the folder
    found = recorded(options)
    try:
        programs = ahead.ahead_of_time(found.graphs, device, folder, say, options.precision)
    except OSError as reason:
        raise RefusalError(f"{options.output} cannot be written: {reason}") from None
    print("\n\n".join(["", *map(str, programs)]).lstrip("\n"))
    left = [f"no kernels for {words}" for words in found.left]
    print("\n".join(["", ahead.legend(programs), "", *left, f"files are in {options.output}"]))
    return int(any(row.error for p in programs for row in p.rows))


def parsed(rest: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("tapejit aot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", help="and after -- its own arguments")
    parser.add_argument("--target", help="sm_80, sm_90, sm_100 or gfx942 (default: the device's)")
    parser.add_argument("--device", help="A100, H100, B200 or MI300X (default: the target's, or H100)")
    parser.add_argument("-o", "--output", type=Path, help="the folder to write to (default: kernels_TARGET)")
    parser.add_argument(
        "--calls", type=int, default=CALLS, help="the script stops after so many calls in which nothing was new"
    )
    parser.add_argument("--precision", choices=("ieee", "tf32"), default="ieee", help="of products of float32")
    end = rest.index("--") if "--" in rest else len(rest)
    options = parser.parse_args(rest[:end])
    options.arguments = rest[end + 1 :]
    if options.calls < 3:
        raise RefusalError("--calls must be at least 3: two calls are compared before anything is compiled")
    return options


def device_of(options: argparse.Namespace, devices: dict[str, Any]) -> Any:
    """The device that was asked for by name, by target or by both; the folder is named after its target if it has no name."""
    targets = {d.target: d for d in devices.values()}
    if options.target is not None and options.target not in targets:
        raise RefusalError(f"there is no target {options.target!r}; there are: {', '.join(targets)}")
    if options.device is not None and options.device not in devices:
        raise RefusalError(f"no device is called {options.device!r}; there are: {', '.join(devices)}")
    found = devices[options.device] if options.device else targets[options.target or "sm_90"]
    if options.target not in (None, found.target):
        raise RefusalError(f"{found.name} is {found.target}, not {options.target}: leave one of them out")
    if options.output is None:
        options.output = Path(f"kernels_{found.target}")
    return found


def check_folder(path: Path) -> None:
    """Whether files can be written into a folder, which need not be there yet."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise RefusalError(f"{path} cannot be written: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RefusalError(f"{path} cannot be written: no permission")


def recorded(options: argparse.Namespace) -> Seen:
    """Run the script until nothing new turns up."""
    with module_of(options.script, "__main__", options.arguments) as (module, code), recording(options.calls) as found:
        try:
            exec(code, module.__dict__)
        except EnoughError:
            pass
        except SystemExit as end:
            if end.code not in (None, 0) and not found.graphs:
                raise RefusalError(f"{options.script} ended with {end.code!r} before anything was recorded") from None
        except Exception as error:
            stack = error.__traceback__  # without the frame of this function
            traceback.print_exception(type(error), error, stack.tb_next if stack else None)
            raise RefusalError(f"{options.script} failed, with the error above") from None
        sys.stdout.flush()
    if not found.calls:
        what = "decorate one with @tj.compile, and call it; a script's own options go after --, as in: -- --compile"
        raise RefusalError(f"no compiled function was called in {options.script}: {what}")
    if not found.graphs:
        reasons = "; ".join(found.left) or "its functions were not called as often as they want to be"
        raise RefusalError(f"nothing was compiled in {options.script}: {reasons}")
    return found


def say(done: int, count: int) -> None:
    """Progress, where somebody sees it."""
    if sys.stderr.isatty():
        print(f"\rcompiling: {done} of {count} kernels", end="\n" if done == count else "", file=sys.stderr, flush=True)
