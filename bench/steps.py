"""Whole training steps: tapejit eager and compiled against PyTorch eager, torch.compile, JAX, tinygrad and MLX on the CPU.

    python bench/steps.py [NAME ...] [--peers torch,compile,jax,tinygrad,mlx] [--rounds 10] [--json FILE] [--plot FILE.png]

Each library runs in processes of its own, from the same weights and batches, and rounds take turns. Losses are compared before
any time is printed. `bench/README.md` says how to read the tables and how each figure is taken.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from compare import THREADS, Worker
from floors import FLOORS, PEERS, verdicts
from workloads.data import DATA

OURS = ("eager", "compiled", "pure")
NAMES = {
    "eager": "tapejit eager",
    "compiled": "tapejit compiled",
    "pure": "tapejit compiled, pure",
    "torch": "PyTorch eager",
    "compile": "torch.compile",
    "jax": "JAX jit",
    "tinygrad": "tinygrad TinyJit",
    "mlx": "MLX compile",
}
COLOURS = {  # tapejit's stand out
    "eager": "#f3b26b",
    "compiled": "#d9480f",
    "pure": "#7f1d1d",
    "torch": "#8fb8de",
    "compile": "#4a7fb5",
    "jax": "#5f9e6e",
    "tinygrad": "#9a9a9a",
    "mlx": "#c3a6d6",
}
PACKAGES = {"torch": "torch", "compile": "torch", "jax": "jax", "tinygrad": "tinygrad", "mlx": "mlx"}
COMPILERS = {"compile": ("CXX", "g++"), "tinygrad": ("CC", "clang"), "mlx": ("CXX", "g++")}  # programs that a peer runs
ELSEWHERE = ("jax", "tinygrad", "mlx")  # may have interpreters of their own
COLD = ("compiled", "pure", "compile", *ELSEWHERE)  # what compiles, and has a first step that is cold or warm
TOLERANCE = 3e-4  # relative, of each loss: float32 sums in another order, and Adam's division by small numbers

# glibc gives large blocks back to the system at once; a step then spends its time on page faults. This is how a user of the
# peers can avoid it; tapejit does so by itself.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_TOP_PAD_": str(2**28)}


class UselessError(Exception):
    """A workload whose times are not worth printing."""


def variables(folder: Path) -> dict[str, str]:
    """Each library's compiled code is kept in a folder of this run, so that cold is cold. PyTorch's profiler is hushed.

    MLX keeps its in the folder for temporary files.
    """
    (folder / "temporary").mkdir(exist_ok=True)
    return {
        "TMPDIR": str(folder / "temporary"),
        "CACHEDB": str(folder / "tinygrad.db"),
        "DEV": "CPU",
        "TAPEJIT_CACHE_DIR": str(folder / "tapejit"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


class Entrant:
    """A variant in one of its ways, with a number of threads (0: its own choice), its process, and what was measured of it."""

    def __init__(self, variant: str, way: str, threads: int, workload: str, options: Any, folder: Path) -> None:
        self.variant, self.threads = variant, threads
        self.label = ", ".join(
            [NAMES[variant], *([way] if way != variant else []), *([f"{threads} threads"] if threads else [])]
        )
        environment = variables(folder) | (MALLOC if variant in PEERS else {})
        python = interpreter(variant, options)
        self.launch = lambda: Worker(__file__, way, workload, str(threads), python=python, variables=environment)
        self.steps = options.steps
        self.worker: Worker | None = None
        self.figures: dict[str, Any] = {"way": way, "threads": threads}
        self.times: list[float] = []

    def ask(self, **request: Any) -> Any:
        assert self.worker is not None
        answer = self.worker.ask(**request)
        if isinstance(answer, dict) and "error" in answer:
            raise UselessError(f"{NAMES[self.variant]}: {answer['error']}")
        return answer

    def start(self, twice: bool) -> list[float]:
        """The first losses. Started twice, a second process finds what the first has left in the cache."""
        for quantity in ("cold", "warm") if twice else ("cold",):
            self.close()
            self.worker = self.launch()
            answer = self.ask(do="start", steps=self.steps)
            if self.variant in COLD:
                self.figures |= {quantity: answer["first"], "compiled": answer["compiled"]}
        return [*answer["losses"], answer["gradient"]]

    def take_turn(self, seconds: float) -> None:
        self.times += self.ask(do="time", seconds=seconds)

    def finish(self) -> dict[str, Any]:
        first, middle, last = statistics.quantiles(self.times, n=4) if len(self.times) > 1 else self.times * 3
        figures = {"best": min(self.times), "median": middle, "quartiles": [first, last], "blocks": len(self.times)}
        return self.figures | figures | {"peak": self.ask(do="memory")}

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


def interpreter(variant: str, options: Any) -> str:
    return str(getattr(options, f"{variant}_python")) if variant in ELSEWHERE else sys.executable


def copy_seconds(size: int) -> float:
    """The time to read and write `size` bytes in all, by plain copies on all cores: a best of several."""
    count, repeats = max(1, size // 2 // 4 // THREADS), 8  # so that starting the threads does not count

    def copy(source: np.ndarray, target: np.ndarray) -> None:
        for _ in range(repeats):
            np.copyto(target, source)

    pairs = [(np.ones(count, np.float32), np.ones(count, np.float32)) for _ in range(THREADS)]
    best = math.inf
    for _ in range(3):
        workers = [threading.Thread(target=copy, args=pair) for pair in pairs[1:]]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        copy(*pairs[0])
        for worker in workers:
            worker.join()
        best = min(best, (time.perf_counter() - began) / repeats)
    return best


def largest_difference(first: list[float], other: list[float]) -> float:
    """Relative; infinite where something is no number."""
    if len(first) != len(other) or not all(map(math.isfinite, [*first, *other])):
        return math.inf
    return max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(first, other, strict=True))


def agree(losses: dict[str, list[float]]) -> float:
    """The largest difference of all libraries from the first. Too large a difference is a failure."""
    (name, first), *others = losses.items()
    differences = {other: largest_difference(first, found) for other, found in others}
    for other, difference in differences.items():
        if not difference <= TOLERANCE:
            raise UselessError(
                f"the losses of {other} differ from those of {name} by {difference:.1e}: no time is worth printing"
            )
    return max(differences.values(), default=0.0)


def entrants(workload: str, variants: list[str], options: Any, folder: Path) -> list[Entrant]:
    """PyTorch takes part with each number of threads, as more may be slower, and compiled in two ways: its best counts."""
    made = []
    for variant in variants:
        counts = range(THREADS, 0, -1) if variant in ("torch", "compile") else [0]
        ways = ("compile-step", "compile-loss") if variant == "compile" else (variant,)
        made += [Entrant(variant, way, n, workload, options, folder) for way in ways for n in counts]
    return made


def measure(workload: str, variants: list[str], options: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        racing = entrants(workload, variants, options, Path(folder))
        try:
            return race(workload, racing, options)
        finally:
            for entrant in racing:
                entrant.close()


def say(text: str) -> None:
    print(f"\r{text:70}", end="\r" if not text else "", file=sys.stderr, flush=True)


def race(workload: str, racing: list[Entrant], options: Any) -> dict[str, Any]:
    losses: dict[str, list[float]] = {}
    for e in list(racing):
        say(f"{workload}: starting {e.label}")
        try:
            losses[e.label] = e.start(twice=e.variant in COLD and e.threads in (0, THREADS) and not options.no_warm)
        except UselessError as failure:
            if e.variant in OURS:
                raise
            racing.remove(e)
            e.close()
            print(f"\n{workload} without {e.label}: {failure}")
    row: dict[str, Any] = {"workload": workload, "steps": len(next(iter(losses.values()))) - 1, "difference": agree(losses)}
    needed = DATA[workload]().bytes_needed
    copies = []
    for i in range(options.rounds):
        say(f"{workload}: round {i + 1}/{options.rounds}")
        for e in racing[i % len(racing) :] + racing[: i % len(racing)]:
            e.take_turn(options.seconds)
        if needed:
            copies.append(copy_seconds(needed))
    if needed:
        row |= {"bytes": needed, "bytes_seconds": min(copies)}
    row["variants"] = quickest(racing)
    say("")
    return row


def quickest(racing: list[Entrant]) -> dict[str, Any]:
    """By variant: the mode and the number of threads that were fastest; first steps are that way's on all threads."""
    found: dict[str, Any] = {}
    for e in racing:
        figures = e.finish()
        if e.variant in found:
            slower = figures["best"] >= found[e.variant]["best"]
            same = found[e.variant]["way"] == figures["way"]
            starts = {k: v for k, v in found[e.variant].items() if same and k in ("cold", "warm")}
            figures = found[e.variant] if slower else figures | starts
        found[e.variant] = figures
    return found


# ---- printing


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e6:.1f} us" if value < 1e-3 else f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def against_peers(variants: dict[str, Any]) -> list[str]:
    """The time of a compiled step, as a multiple of each peer's."""
    peers = {NAMES[p]: variants[p]["best"] for p in PEERS if p in variants}
    lines = []
    for way in ("compiled", "pure") if peers else ():
        ratios = ", ".join(f"{variants[way]['best'] / best:.2f} x {name}" for name, best in peers.items())
        lines.append(f"  {way + ':':9} {ratios}")
    return lines


def mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.2f} MiB"


def table(row: dict[str, Any]) -> list[str]:
    eager = row["variants"]["eager"]["best"]
    lines = [
        f"\n{row['workload']}: {row['steps']} losses agree to {row['difference']:.0e} (tolerance {TOLERANCE:.0e})",
        f"  {'':24} {'median':>10} {'+-':>5} {'best':>10} {'/ eager':>8} {'cold':>10} {'warm':>10} {'peak':>11}  threads",
    ]
    for name, found in row["variants"].items():
        low, high = found["quartiles"]
        spread = f"{(high - low) / 2 / found['median']:.0%}"
        start = "".join(f"{seconds(found.get(k)):>11}" for k in ("cold", "warm"))
        ratio = f"{found['best'] / eager:8.2f}"
        times = f"{seconds(found['median']):>10} {spread:>5} {seconds(found['best']):>10} {ratio}"
        label = NAMES[name] if found.get("compiled", True) else f"{NAMES[name]} *"
        lines.append(f"  {label:24} {times}{start} {mebibytes(found['peak']):>11}  {found['threads'] or '-'}")
    lines += against_peers(row["variants"])
    if "bytes" in row:
        rate = row["bytes"] / row["bytes_seconds"] / 1e9
        lines.append(f"  copying its {row['bytes'] / 2**20:.0f} MiB takes {seconds(row['bytes_seconds'])} ({rate:.1f} GB/s)")
    if not all(found.get("compiled", True) for found in row["variants"].values()):
        lines.append("  * no native code: the eager kernels were replayed")
    return lines + verdicts(row)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """A bar for each variant: the best time against tapejit eager's, the shorter the better."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(max(7.0, 1.5 + 1.2 * len(rows)), 4.5), layout="constrained")
    present = [v for v in NAMES if any(v in row["variants"] for row in rows)]
    width = 0.8 / len(present)
    for k, variant in enumerate(present):
        places = [i + (k - (len(present) - 1) / 2) * width for i, row in enumerate(rows) if variant in row["variants"]]
        heights = [r["variants"][variant]["best"] / r["variants"]["eager"]["best"] for r in rows if variant in r["variants"]]
        axes.bar(places, heights, width, label=NAMES[variant], color=COLOURS[variant])
    axes.set_yscale("log")
    axes.set_ylabel("step time / tapejit eager's: shorter is faster")
    axes.set_xticks(range(len(rows)), [row["workload"] for row in rows])
    axes.axhline(1, color="gray", linewidth=0.8)
    figure.legend(fontsize="small", ncols=3, loc="outside upper center")
    figure.savefig(path, dpi=150)
    plt.close(figure)


# ---- the command line


def reason_to_skip(peer: str, options: Any) -> str | None:
    python = interpreter(peer, options)
    question = f"import importlib.util as u, sys; sys.exit(u.find_spec({PACKAGES[peer]!r}) is None)"
    try:
        found = subprocess.run([python, "-c", question], check=False).returncode == 0
    except OSError:
        return f"there is no interpreter {python}"
    if not found:
        return f"{PACKAGES[peer]} is not installed"
    variable, compiler = COMPILERS.get(peer, ("", ""))
    if compiler and shutil.which(os.environ.get(variable, compiler)) is None:
        return f"it runs {compiler}, which is not installed; {variable} may name another compiler"
    return None


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(FLOORS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}; or none")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each turn")
    parser.add_argument("--steps", type=int, default=8, help="of each shape whose losses are compared")
    parser.add_argument("--no-warm", action="store_true", help="start each library once: no time of a warm start")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    for peer in ELSEWHERE:
        default = os.environ.get(f"{peer.upper()}_PYTHON", sys.executable)
        parser.add_argument(f"--{peer}-python", default=default, help=f"an interpreter with {peer}")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [n for n in options.names if n not in FLOORS]
    if unknown:
        raise SystemExit(f"no workload is called {unknown[0]!r}; there are: {', '.join(FLOORS)}")
    options.peers = [] if options.peers in ("", "none") else options.peers.split(",")
    strange = [p for p in options.peers if p not in PEERS]
    if strange:
        raise SystemExit(f"no peer is called {strange[0]!r}; there are: {', '.join(PEERS)}")
    if options.rounds < 1 or options.steps < 1:
        raise SystemExit("at least one round and one step are needed")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("a picture needs matplotlib, which is not installed")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.serve:
        from sides import serve

        variant, workload, threads = options.serve
        serve(variant, workload, int(threads))
        return
    reasons = {p: reason_to_skip(p, options) for p in options.peers}
    for peer, reason in reasons.items():
        if reason:
            print(f"{NAMES[peer]} is skipped: {reason}")
    variants = [*OURS, *(p for p in PEERS if p in reasons and reasons[p] is None)]
    for folder in ("eager", "tracer", "codegen"):  # as when a package is installed, which all peers are
        compileall.compile_dir(Path(__file__).parents[1] / folder, quiet=1)
    rows, failed = [], False
    for name in options.names or [n for n in FLOORS if n != "tiny"]:
        try:
            rows.append(measure(name, variants, options))
            print("\n".join(table(rows[-1])), flush=True)
        except UselessError as failure:
            failed = True
            say("")
            print(f"\n{name}: {failure}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    if options.plot and rows:
        plot(rows, options.plot)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
