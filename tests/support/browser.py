"""A real browser for tests of pages: Chromium, without a window. `make test` installs it where that can be done."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FOUND = [path for path in map(shutil.which, NAMES) if path is not None]
BROWSER = next((path for path in FOUND if "/snap/" not in os.path.realpath(path)), None)  # a snap sees no temporary files
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine" + ", but for a snap" * bool(FOUND))
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --hide-scrollbars"
LIGHT, DARK = (f"--blink-settings=preferredColorScheme={n}" for n in (1, 0))


def browse(folder: Path, *options: str) -> tuple[str, str]:
    """Return what the browser prints, and the console of the page's script."""
    command = [str(BROWSER), *QUIET.split(), "--disable-component-update", "--disable-sync", "--enable-logging=stderr"]
    command.append(f"--user-data-dir={folder / 'profile'}")
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    if done.returncode and subprocess.run([*command, "--dump-dom", "about:blank"], capture_output=True, timeout=120).returncode:
        pytest.skip(f"Chromium does not run here, not even with an empty page: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def asked(page: Path, folder: Path, script: str, *options: str) -> Any:
    """Return the value of a script on a page, as JSON. The script is the body of a function."""
    ask = f"<script>document.title = 'found ' + JSON.stringify((() => {{ {script} }})());</script>"
    changed = folder / "asked.html"
    changed.write_text(page.read_text(encoding="utf-8").replace("</body>", ask + "</body>"), encoding="utf-8")
    out, console = browse(folder, "--dump-dom", *options, changed.as_uri())
    found = re.search(r"<title>found (.*?)</title>", out, re.S)
    assert found is not None and not console, console or out[:2000]
    return json.loads(unescape(found[1]))
