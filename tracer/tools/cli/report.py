"""`tapejit report script.py [ARGUMENT ...] [-o report.html]`: run a script and write a page about its compiled functions.

The script runs as with `tapejit run`. However it ends, the page is written with what was seen until then.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..files import RefusalError, check_writable, module_of
from ..observe_run import executed, watched
from ..profiler.timeline import noted
from ..report import in_order, write
from ..report.data import gather
from . import run as cli_run

OUTPUT = ("-o", "--output")
DEFAULT = "report.html"


def report(rest: list[str]) -> int:
    """Run the command and return the script's exit code, or 1 if that is 0 and there was nothing to report."""
    if rest[:1] in (["-h"], ["--help"]):
        print(__doc__.strip() if __doc__ else "")
        return 0
    script, arguments, path = parsed(rest)
    check_writable(path)
    there = path.absolute()  # the script may change the working directory
    with module_of(script, "__main__", arguments) as (module, code), watched() as found, noted() as timelines:
        status, failure = executed(code, module)
        sys.stdout.flush()
        if not found:
            print(f"tapejit: no compiled function was called in {script}, so there is nothing to report", file=sys.stderr)
            return status or 1
        write(there, gather(in_order(found), Path(script).name, timelines, found, failure))
    print("\n".join([*cli_run.summary(script, found), "", f"tapejit: {path} shows all of it"]))
    return status


def parsed(rest: list[str]) -> tuple[str, list[str], Path]:
    """Parse the script, its own arguments and the output file. Everything after `--` goes to the script."""
    script: str | None = None
    arguments: list[str] = []
    path = Path(DEFAULT)
    words = iter(rest)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            arguments += words
        elif word in OUTPUT or (equals and name in OUTPUT):
            value = value if equals else next(words, "")
            if not value:
                raise RefusalError(f"{name} needs the name of a file: `{name} report.html`")
            path = Path(value)
        elif script is not None:
            arguments.append(word)
        elif word.startswith("-"):
            raise RefusalError(
                f"report has no option {word}; it takes -o FILE, and arguments after the script are the script's own"
            )
        else:
            script = word
    if script is None and arguments:
        script, *arguments = arguments
    if script is None:
        raise RefusalError("report needs a script: `tapejit report train.py -o report.html`")
    return script, arguments, path
