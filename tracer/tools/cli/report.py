"""`tapejit report script.py [ARGUMENT ...] [-o report.html]`: run a script and write a page about its compiled functions.

The script runs as with `tapejit run`; whatever ends it, the page is written with what was seen up to there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import run as cli_run
from ..files import RefusalError, check_writable, module_of
from ..report import in_order, write
from ..report.data import gather
from ..profiler.timeline import noted

OUTPUT = ("-o", "--output")
DEFAULT = "report.html"


def report(rest: list[str]) -> int:
    """The script's exit code; 1 if it is 0 and there was nothing to report."""
    if rest[:1] in (["-h"], ["--help"]):
        print(__doc__.strip() if __doc__ else "")
        return 0
    script, arguments, path = parsed(rest)
    check_writable(path)
    there = path.absolute()  # the script may change the folder
    with module_of(script, "__main__", arguments) as (module, code), cli_run.watched() as found, noted() as timelines:
        status, failure = cli_run.executed(code, module)
        sys.stdout.flush()
        if not found:
            print(f"tapejit: no compiled function was called in {script}, so there is nothing to report", file=sys.stderr)
            return status or 1
        write(there, gather(in_order(found), Path(script).name, timelines, found, failure))
    print("\n".join([*cli_run.summary(script, found), "", f"tapejit: {path} shows all of it"]))
    return status


def parsed(rest: list[str]) -> tuple[str, list[str], Path]:
    """The script, its own arguments, and the file to write. What follows `--` belongs to the script in any case."""
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
            raise RefusalError(f"report has no option {word}; there is -o FILE, and what follows the script is the script's")
        else:
            script = word
    if script is None and arguments:
        script, *arguments = arguments
    if script is None:
        raise RefusalError("report needs a script: `tapejit report train.py -o report.html`")
    return script, arguments, path
