"""What it takes to run a program: compiled code, what is bound to it, how large its memory is, where its outputs are.

A program is put together from its recipe, whether that was just made or comes from the disk cache, where it is found by the
graph: then there is nothing to lower, to fuse, or to emit. Recipes are JSON, and name the objects of their kernels by these'
keys in the cache.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..eager.op import Op
from ..tracer.graph import Form, Graph, GraphError, Operand
from ..tracer.trace import Constant, Number
from . import cache
from .llvm import jit, threads
from .llvm.assemble import aligned
from .llvm.entry import Binding, bind
from .llvm.pool import MOST_THREADS
from .llvm.target import host

Program = Callable[[list[Any], list[Any]], None]


@dataclass
class Recipe:
    """See the module's text."""

    objects: list[str]  # keys
    steps: list[str]  # names of the functions that are called, "" for an op that is called as it is
    slots: int  # how many arrays there are
    bound: list[int]  # slots, those after all arrays are new memories
    numbers: list[tuple[int, str]]
    arena: int  # bytes
    constants: list[tuple[str, list[int], str]]  # dtype, shape, bytes
    memories: list[int]  # of each new memory: the output whose form it has
    shown: list[int]  # of each output: the slot of the memory that it shows
    checked: bool  # a flag, which is the last new memory, says that indices were out of bounds
    danger: list[int]  # slots of inputs that are written before something may fail
    parallel: bool
    releases: bool
    most_threads: int  # that there is memory for; 0 for any number

    def text(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def from_text(data: bytes) -> Recipe:
    return Recipe(**json.loads(data))


# ---- by graph


def key(graph: Graph, slots: int) -> str | None:
    """The name of a graph's recipe in the cache; None if the graph holds something that has no name."""
    try:
        rows: list[str] = [str(slots), source(), *jit.versions(), str(host()), host().features]
        rows += [f"{x.name} {x.slot} {form_text(graph.forms[x.name])}" for x in graph.inputs]
        for node in graph.nodes:
            given = [operand_text(x) for x in node.operands]
            made = [f"{name} {form_text(graph.forms[name])}" for name in node.results]
            rows.append(f"{made} = {node.op.name}({given}, {setting_text(node.attrs)}, {node.several})")
        for o in graph.outputs:
            rows.append(f"{o.slot} {o.value} {setting_text([(op, attrs, i) for op, attrs, i in o.chain])}")
        rows += [f"{w.input.name} {w.value}" for w in graph.write_backs]
    except TypeError:
        return None
    return cache.key("program", *rows)


@once
def source() -> str:
    """The text of the generator itself: what it makes may be another thing tomorrow."""
    found = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("llvm/*.py")]):
        found.update(path.read_bytes())
    return found.hexdigest()


def form_text(form: Form) -> str:
    return f"{form.dtype} {form.shape} {form.strides} {form.where}"


def operand_text(x: Operand) -> str:
    if isinstance(x, str):
        return x
    return f"s{x.place}:{x.type.__name__}" if isinstance(x, Number) else setting_text(x.value if isinstance(x, Constant) else x)


def setting_text(x: Any) -> str:
    """A setting as text that says all of it; TypeError for what has none."""
    if isinstance(x, np.ndarray):
        return f"array {x.dtype} {x.shape} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()}"
    if isinstance(x, Op):
        return f"op {x.name}"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k}: {setting_text(v)}" for k, v in x.items()) + "}"
    if isinstance(x, (tuple, list)):
        return f"{type(x).__name__}(" + ", ".join(map(setting_text, x)) + ")"
    if x is None or x is ... or isinstance(x, (bool, int, float, str, slice)) or type(x).__name__ in ("dtype", "device"):
        return repr(x)
    raise TypeError(type(x).__name__)


def kept_on_disk(name: str | None) -> tuple[Recipe, list[bytes]] | None:
    """A recipe and its objects, if all of them are there."""
    data = None if name is None else cache.get(name)
    if data is None:
        return None
    try:
        recipe = from_text(data)
    except (ValueError, TypeError):
        return None
    found = [cache.get(k) for k in recipe.objects]
    return None if any(x is None for x in found) else (recipe, [x for x in found if x is not None])


# ---- programs


def put_together(
    recipe: Recipe, graph: Graph, objects: list[bytes], opaque: Callable[[int, Any, int], Any] | None, plain: Program
) -> Program:
    """The function that runs a recipe. `opaque` gives what is called for a step without a name, on the arena's memory."""
    names = [n for n in recipe.steps if n]
    library = jit.link(objects, threads.pool().imports(), names) if names else None
    memory, start = aligned(recipe.arena)
    constants = [np.frombuffer(base64.b64decode(data), kind).reshape(shape).copy() for kind, shape, data in recipe.constants]
    words = [start, *[c.ctypes.data for c in constants]]
    binding = Binding(tuple(recipe.bound), tuple((n, kind) for n, kind in recipe.numbers))
    programs = []
    for i, name in enumerate(recipe.steps):
        if name:
            assert library is not None
            keep = (library, memory, constants)
            flags = {"parallel": recipe.parallel, "releases_gil": recipe.releases}
            most = recipe.most_threads or MOST_THREADS
            programs.append(bind(library[name], binding, words, **flags, most_threads=most, keep=keep))
        else:
            assert opaque is not None
            programs.append(opaque(i, memory, start - memory.ctypes.data))
    return runner(recipe, graph, programs, plain)


class Runs(Protocol):
    """What recipes for all targets say."""

    slots: int
    memories: list[int]
    shown: list[int]
    danger: list[int]
    checked: bool

    @property
    def steps(self) -> Sequence[str]: ...


def runner(recipe: Runs, graph: Graph, programs: list[Any], plain: Program, xp: Any = np) -> Program:
    """The function that makes room for outputs, runs, and hands out, as straight Python, for arrays of a module."""
    space: dict[str, Any] = {"empty": xp.empty, "zeros": xp.zeros, "plain": plain}
    lines = ["def run(a, s):"]
    lines += [f"    old{i} = a[{i}].copy(order='K')" for i in recipe.danger]
    failed = [f"del a[{recipe.slots}:]", *[f"a[{i}][...] = old{i}" for i in recipe.danger], "return plain(a, s)"]
    for i, output in enumerate(recipe.memories):
        lines.append(f"    a.append({made_like(graph.forms[graph.outputs[output].value], i, space)})")
    if recipe.checked:
        lines.append("    a.append(zeros((), '?'))")
    for i, program in enumerate(programs):
        space[f"p{i}"] = program
        if recipe.steps[i]:
            stopped = f" or a[{recipe.slots + len(recipe.memories)}]" if recipe.checked else ""
            lines.append(f"    if not p{i}(a, s){stopped}:")
        else:  # what it raises, the plain program raises in the right place
            lines += ["    try:", f"        p{i}(a, s)", "    except Exception:"]
        lines += [f"        {line}" for line in failed]
    for k, (o, slot) in enumerate(zip(graph.outputs, recipe.shown, strict=True)):
        view = f"a[{slot}]"
        for j, (op, attrs, index) in enumerate(o.chain):
            space[f"v{k}_{j}"] = shown(op, attrs, xp)
            view = f"v{k}_{j}({view})" + ("" if index is None else f"[{index}]")
        lines.append(f"    a[{o.slot}] = {view}")
    if recipe.memories or recipe.checked:
        lines.append(f"    del a[{recipe.slots}:]")
    if len(lines) == 1:
        lines.append("    pass")
    exec(compile("\n".join(lines), "<tapejit native>", "exec"), space)
    space["run"].whole = len(programs) == 1  # one call, which Ctrl-C cannot cut in two
    return space["run"] if len(programs) == 1 else one_at_a_time(space["run"], plain)


def one_at_a_time(run: Program, plain: Program) -> Program:
    """Of a program in several parts, which share their memory."""
    lock = threading.Lock()

    def locked(arrays: list[Any], scalars: list[Any]) -> None:
        if not lock.acquire(blocking=False):
            plain(arrays, scalars)
            return
        try:
            run(arrays, scalars)
        finally:
            lock.release()

    return locked


def made_like(form: Form, i: int, space: dict[str, Any]) -> str:
    """Python for a new array of a form."""
    space[f"shape{i}"], space[f"dtype{i}"] = form.shape, form.dtype
    if form.flags.c_contiguous:
        return f"empty(shape{i}, dtype{i})"
    order = sorted(range(form.ndim), key=lambda d: -form.strides[d])
    dense = tuple(form.shape[d] for d in order)
    back = tuple(order.index(d) for d in range(form.ndim))
    space[f"shape{i}"] = dense
    if np.empty(dense, form.dtype).transpose(back).strides != form.strides and form.size:
        raise GraphError(f"[compile] output {i} has gaps in its memory")
    return f"empty(shape{i}, dtype{i}).transpose({back})"


def shown(op: Any, attrs: dict[str, Any], xp: Any = np) -> Callable[[Any], Any]:
    run = op.run
    return lambda x: run(xp, x, **attrs)


def encoded(array: Any) -> tuple[str, list[int], str]:
    return array.dtype.str, list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
