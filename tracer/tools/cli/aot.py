"""`tapejit aot script.py --target sm_90`: compile a script's functions for a GPU that this machine need not have.

The script runs on this machine until its functions have been recorded, and is then stopped. Their programs are compiled for the
target: the kernels are written to a folder, and a table lists each kernel's resources and a lower bound on its time.
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

from ...api.compiled_function import CompiledFunction
from ...api.eager_switch import switched_off
from ...execute.backends import BACKENDS, Backend
from ...execute.reference_program import Program
from ...graph.functionalize import graph_of
from ...graph.ir import Graph, GraphError
from ...graph.passes import Pipeline, run_passes
from ...trace.trace import Trace
from ..files import RefusalError, module_of

CALLS = 8  # without anything new to record, before the script is stopped


class AllRecordedError(BaseException):
    """Stops the script once everything has been recorded. A BaseException, so `except Exception` does not catch it."""


@dataclass
class RecordedGraphs:
    """Graphs recorded from a script."""

    limit: int
    graphs: list[tuple[str, Graph]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # reasons why segments have no graph
    calls: dict[str, int] = field(default_factory=dict)
    quiet: int = 0  # calls since something new turned up
    current: str = ""
    passes: Pipeline = field(default_factory=lambda: BACKENDS["triton"].passes)  # those that its kernels are compiled after

    def called(self, name: str) -> None:
        self.quiet = self.quiet + 1 if name in self.calls else 0
        self.calls[name] = self.calls.get(name, 0) + 1
        self.current = name
        if self.quiet > self.limit:
            raise AllRecordedError

    def note(self, trace: Trace, start: int, stop: int, keep: frozenset[int], _: Program) -> Any:
        """Record a segment's graph; stands in for `Backend.compile_entries`."""
        self.quiet = 0
        try:
            *_, graph = run_passes(self.passes, graph_of(trace, start, stop, keep))  # without the part on the CPU
        except GraphError as reason:
            self.left.append(f"{self.current}: {reason}")
            raise
        self.graphs.append((self.unique(self.current), graph))
        raise GraphError("it is only recorded")

    def unique(self, name: str) -> str:
        """Return a file name that no other program has."""
        base = re.sub(r"\W+", "_", name.rpartition("<locals>.")[2]).strip("_") or "function"
        names = {n for n, _ in self.graphs}
        return next(n for n in [base, *[f"{base}_{k}" for k in range(2, len(names) + 2)]] if n not in names)


class RecordingBackend(Backend):
    """Backend that only notes graphs, installed while a script is recorded."""

    def __init__(self, seen: RecordedGraphs, before: Backend) -> None:
        super().__init__(before.name, before.compile)
        self.seen = seen

    def compile_entries(self, *entries: Any) -> Any:
        return self.seen.note(*entries)


@contextlib.contextmanager
def recording(limit: int) -> Iterator[RecordedGraphs]:
    """Record compiled functions within this block, and run them by their reference programs."""
    found = RecordedGraphs(limit)
    call, before, backend = CompiledFunction.__call__, dict(BACKENDS), os.environ.get("TAPEJIT_BACKEND")

    def counted(self: CompiledFunction, /, *args: Any, **kwargs: Any) -> Any:
        found.called(self.name)
        return call(self, *args, **kwargs)

    CompiledFunction.__call__ = counted  # type: ignore[method-assign, assignment]
    BACKENDS.update({name: RecordingBackend(found, one) for name, one in before.items()})
    os.environ["TAPEJIT_BACKEND"] = "auto"
    try:
        yield found
    finally:
        os.environ.pop("TAPEJIT_BACKEND")
        os.environ.update({} if backend is None else {"TAPEJIT_BACKEND": backend})
        CompiledFunction.__call__ = call  # type: ignore[method-assign]
        BACKENDS.update(before)


def aot(rest: list[str]) -> int:
    """Run the command and return its exit code: 1 if a kernel did not compile."""
    options = parsed(rest)
    if importlib.util.find_spec("triton") is None:
        raise RefusalError("Triton, which compiles the kernels, is not installed: pip install 'tapejit[gpu]', on Linux")
    if switched_off():
        raise RefusalError("TAPEJIT=eager disables compilation: unset it and run this again")
    export = BACKENDS["triton"].export
    assert export is not None
    ahead = export()
    device = device_of(options, ahead.DEVICES)
    check_folder(options.output)
    folder = options.output.absolute()  # the script may change the working directory
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
    parser.add_argument("script", help="script to run; its own arguments go after --")
    parser.add_argument("--target", help="sm_80, sm_90, sm_100 or gfx942 (default: the device's)")
    parser.add_argument("--device", help="A100, H100, B200 or MI300X (default: the target's, or H100)")
    parser.add_argument("-o", "--output", type=Path, help="the folder to write to (default: kernels_TARGET)")
    parser.add_argument(
        "--calls", type=int, default=CALLS, help="stop the script after this many calls that record nothing new"
    )
    parser.add_argument("--precision", choices=("ieee", "tf32"), default="ieee", help="of float32 matmuls (default: ieee)")
    end = rest.index("--") if "--" in rest else len(rest)
    options = parser.parse_args(rest[:end])
    options.arguments = rest[end + 1 :]
    if options.calls < 3:
        raise RefusalError("--calls must be at least 3: two calls are compared before anything is compiled")
    return options


def device_of(options: argparse.Namespace, devices: dict[str, Any]) -> Any:
    """Find the device asked for by name, target or both. Without an output folder, one is named after the target."""
    targets = {d.target: d for d in devices.values()}
    if options.target is not None and options.target not in targets:
        raise RefusalError(f"there is no target {options.target!r}; there are: {', '.join(targets)}")
    if options.device is not None and options.device not in devices:
        raise RefusalError(f"no device is called {options.device!r}; there are: {', '.join(devices)}")
    found = devices[options.device] if options.device else targets[options.target or "sm_90"]
    if options.target not in (None, found.target):
        raise RefusalError(f"{found.name} is {found.target}, not {options.target}: pass only one of --device and --target")
    if options.output is None:
        options.output = Path(f"kernels_{found.target}")
    return found


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be written to; it need not exist yet."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise RefusalError(f"{path} cannot be written: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RefusalError(f"{path} cannot be written: no permission")


def recorded(options: argparse.Namespace) -> RecordedGraphs:
    """Run the script until there is nothing new to record."""
    with module_of(options.script, "__main__", options.arguments) as (module, code), recording(options.calls) as found:
        try:
            exec(code, module.__dict__)
        except AllRecordedError:
            pass
        except SystemExit as end:
            if end.code not in (None, 0) and not found.graphs:
                raise RefusalError(f"{options.script} ended with {end.code!r} before anything was recorded") from None
        except Exception as error:
            stack = error.__traceback__  # without the frame of this function
            traceback.print_exception(type(error), error, stack.tb_next if stack else None)
            raise RefusalError(f"{options.script} failed with the error above") from None
        sys.stdout.flush()
    if not found.calls:
        what = "decorate one with @tj.compile, and call it; a script's own options go after --, as in: -- --compile"
        raise RefusalError(f"no compiled function was called in {options.script}: {what}")
    if not found.graphs:
        reasons = "; ".join(found.left) or "its functions were not called often enough"
        raise RefusalError(f"nothing was compiled in {options.script}: {reasons}")
    return found


def say(done: int, count: int) -> None:
    """Print progress, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"\rcompiling: {done} of {count} kernels", end="\n" if done == count else "", file=sys.stderr, flush=True)
