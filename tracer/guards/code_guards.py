"""Which of the library's code ran while a part of a function was recorded, and whether the same code would run now.

A region skips the library's Python, and anybody may replace that: a function in a module, a method of a class, a constant.
While a region is recorded, Python tells of each function that begins (`sys.setprofile`). What these find under the names that
they use, if it is the library's, stands in a module or a class; and as long as all of it is what it was, they do what they did.

Modules tell when a name in them is set (`Namespace`), which is one comparison for all of them; names in classes are looked at
each time, 15 ns for each. It is a Python function without loops, and regions that ran the same code share one. Kernels are no
part of it, as a replay never runs them; nor are builtins, other people's modules, and names that are set behind a module's back
(`vars(module)[name] = ...`).
"""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import sys
from _lsprof import Profiler  # what cProfile is made of
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from ...eager.arrays.devices import _cuda
from ...eager.nn.parameter import Buffer, Parameter
from ...eager.core.op import Op
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ..trace.call_frame import expanded, run_parts
from .reachable_state import LIBRARY, of_others

EAGER, TRACER = f"{LIBRARY}eager", f"{LIBRARY}tracer"
THROUGH = ("module", "functional", "optimizer_step", "backward", "backward_pass", "walk")  # run what is looked at
TENSORS = (Tensor, Parameter, Buffer)
OPERATORS = tuple(name for name in vars(Tensor) if name.startswith("__") and callable(vars(Tensor)[name]))
REBOUND = ("_default", "_default_device", "_cache")  # names that the library itself sets anew
FOLDER = os.path.join(os.path.dirname(Tensor.__init__.__code__.co_filename), "")  # where the library is
MOST = 1000  # functions that are kept to be shared

Place = tuple[dict[str, Any], str, Any]  # the names of a module or a class, one of them, and what it stands for
Places = dict[tuple[int, str], Place]

SET = [0]  # changes with each name that is set in a module
_numbers = itertools.count(1)


class Namespace(ModuleType):
    """A module of the library that tells when somebody replaces what is in it."""

    def __setattr__(self, name: str, value: Any) -> None:
        SET[0] = next(_numbers)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        SET[0] = next(_numbers)
        super().__delattr__(name)


class Ran(dict[int, tuple[CodeType, dict[str, Any]]]):
    """Functions of the library that ran, by the ids of their code, with their modules' names."""

    foreign = False  # whether they have called the user's


class Witness:
    """Notes what a thread runs. One may begin inside of another: what the inner one sees, the outer has seen."""

    def __init__(self) -> None:
        self.open: list[Ran] = []
        self.turns: list[FrameType] = []  # by turns the tracer's own work, which is not looked at, and what it calls to be seen

    @contextmanager
    def seeing(self, state: State | None = None) -> Iterator[Ran]:
        """A block in which it looks; given a state, not while ops are handled."""
        ran = Ran()
        with quiet():
            before, self.turns = self.turns, []
            self.open.append(ran)
            tell = self.told()
            try:
                with blind(state, tell):
                    sys.setprofile(tell)
                    yield ran
            finally:
                sys.setprofile(None)
                self.open.pop()
                self.turns.clear()  # a frame keeps its variables, and those of its callers, for as long as anybody has it
                self.turns = before
                if self.open:
                    self.open[-1].update(ran)
                    self.open[-1].foreign |= ran.foreign

    def aside(self, function: Callable[[], Any]) -> Any:
        """Call a function without looking."""
        if not self.open:
            return function()
        tell = sys.getprofile()
        sys.setprofile(None)
        try:
            return function()
        finally:
            sys.setprofile(tell)

    def told(self) -> Callable[[FrameType, str, Any], None]:
        """What Python calls: it is called very often."""
        ran, turns, began, parts = self.open[-1], self.turns, self.began, id(run_parts.__code__)

        def tell(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                code = id(frame.f_code)
                if len(turns) % 2:
                    if code == parts:
                        turns.append(frame)
                elif code not in ran:
                    began(frame)
            elif event == "return" and turns and frame is turns[-1]:
                turns.pop()

        return tell

    def began(self, frame: FrameType) -> None:
        name = frame.f_globals.get("__name__")
        if name is None or name.startswith("namedtuple_"):  # code that code has written
            return
        if name.partition(".")[0] == getattr(_cuda.module, "__name__", None):  # what stands in for CuPy
            return
        if name.startswith(EAGER):
            self.open[-1][id(frame.f_code)] = frame.f_code, frame.f_globals
        elif name.startswith(TRACER):
            if frame.f_code.co_name not in THROUGH:
                self.turns.append(frame)
        elif not of_others(name):
            caller = frame.f_back.f_globals.get("__name__", "") if frame.f_back else ""
            self.open[-1].foreign |= of_others(caller) and not caller.startswith(TRACER)


@contextmanager
def quiet() -> Iterator[None]:
    """A block in which nobody else is told what runs, and no garbage is collected: what somebody has registered to run then
    would seem to be called by the library."""
    profiler, collecting = sys.getprofile(), gc.isenabled()
    try:
        gc.disable()
        if isinstance(profiler, Profiler):
            profiler.disable()
        yield
    finally:
        if isinstance(profiler, Profiler):
            profiler.enable()
        else:
            sys.setprofile(profiler)
        if collecting:
            gc.enable()


@contextmanager
def blind(state: State | None, tell: Callable[..., Any]) -> Iterator[None]:
    """A block in which handling an op is not looked at: recording one takes more Python than what has led to it."""
    before = None if state is None else state.handler
    if state is None or before is None:
        yield
        return
    handler = getattr(before, "handler", before)  # of the block around this one

    def handle(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        if expanded(op, inputs, state):
            return run_parts(op, inputs, attrs, out)
        sys.setprofile(None)
        try:
            return handler(op, inputs, attrs, out)
        finally:
            sys.setprofile(tell)

    handle.handler = handler  # type: ignore[attr-defined]
    state.handler = handle
    try:
        yield
    finally:
        if state.handler is handle:
            state.handler = before


# ---- what the code has found


_known: dict[Any, Callable[[], bool]] = {}


def same_code(ran: Iterable[Ran], classes: Iterable[type] = ()) -> Callable[[], bool]:
    """Whether what ran would be the same now. `classes` are those of objects whose attributes it has read."""
    codes = Ran()
    for part in ran:
        codes.update(part)
    kinds = frozenset(classes)
    key = frozenset(codes), kinds
    found = _known.get(key)
    if found is None or not found():
        if len(_known) >= MOST:
            _known.clear()
        found = _known[key] = Found(codes, kinds).function()
    return found


class Found:
    """What some functions find under the names that they use."""

    def __init__(self, codes: Ran, classes: Iterable[type]) -> None:
        self.codes = codes
        self.in_modules: Places = {}
        self.in_classes: Places = {}
        self.names = {name for code, _ in codes.values() for name in code.co_names}
        for code, space in codes.values():
            self.watch(space["__name__"])
            for name in code.co_names:
                if name in space:
                    self.look_up(code, space, name)
            found = class_of(code, space)
            if found is not None:
                hold(self.in_classes, names_of(found), code.co_name)
        kinds = {c for cls in (*TENSORS, *classes) for c in cls.__mro__ if c.__module__.startswith(EAGER)}
        self.classes = [names_of(cls) for cls in kinds]
        for cls in kinds:
            self.look_in(names_of(cls), cls not in TENSORS)

    def watch(self, name: str) -> None:
        module = sys.modules.get(name)
        if type(module) is ModuleType:
            module.__class__ = Namespace

    def look_up(self, code: CodeType, space: dict[str, Any], name: str) -> None:
        """A name that a function may have found in its module."""
        value = space[name]
        if name in REBOUND:
            hold(self.in_classes, space, name)
        elif isinstance(value, ModuleType):
            hold(self.in_modules, space, name)
            if value.__name__.startswith(EAGER):
                self.watch(value.__name__)
                for inner in code.co_names:
                    if inner in vars(value) and self.may_matter(vars(value)[inner]):
                        hold(self.in_classes if inner in REBOUND else self.in_modules, vars(value), inner)
        elif not name.startswith("__") and self.may_matter(value):
            hold(self.in_modules, space, name)

    def look_in(self, fields: dict[str, Any], constants: bool) -> None:
        """The names of a class; those of operators no code spells out."""
        for name in (*(fields.keys() & self.names), *(n for n in OPERATORS if n in fields)):
            value = fields[name]
            if self.may_matter(value) if code_of(value) is not None else constants and not name.startswith("__"):
                hold(self.in_classes, fields, name)

    def may_matter(self, value: Any) -> bool:
        """Whether it is anything but a function of the library that did not run."""
        code = code_of(value)
        return code is None or id(code) in self.codes or not code.co_filename.startswith(FOLDER)

    def used(self) -> list[set[str]]:
        """The names of classes that the code may have used."""
        return [{name for name in fields if name in self.names or name.startswith("__")} for fields in self.classes]

    def function(self) -> Callable[[], bool]:
        """Whether all is as it was."""
        places, classes, before = list(self.in_modules.values()), self.classes, self.used()
        seen, size = [SET[0]], [sum(map(len, classes))]

        def in_modules() -> bool:
            now = SET[0]
            if all(space.get(name) is held for space, name, held in places):
                seen[0] = now
                return True
            return False

        def no_others() -> bool:
            """Classes have got or lost names: whether they are none of these."""
            now = sum(map(len, classes))
            if self.used() == before:
                size[0] = now
                return True
            return False

        count = " + ".join(f"len(c{i})" for i in range(len(classes)))
        tests = ["(SET[0] == seen[0] or in_modules())", f"({count} == size[0] or no_others())"]
        space: dict[str, Any] = {"SET": SET, "seen": seen, "size": size, "in_modules": in_modules, "no_others": no_others}
        space.update({f"c{i}": fields for i, fields in enumerate(classes)})
        for i, (fields, name, held) in enumerate(self.in_classes.values()):
            space[f"d{i}"], space[f"h{i}"] = fields, held
            tests.append(f"d{i}[{name!r}] is h{i}")
        text = f"def same():\n    try: return {' and '.join(tests)}\n    except KeyError: return False\n"
        exec(compile(text, "<tapejit code>", "exec"), space)
        return space.pop("same")  # type: ignore[no-any-return]


def hold(places: Places, space: dict[str, Any], name: str) -> None:
    places[id(space), name] = (space, name, space[name])


def code_of(value: Any) -> CodeType | None:
    """The code of a function as it was written, of a method or a property."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if not isinstance(value, FunctionType):
        return None
    return (inspect.unwrap(value) if "__wrapped__" in value.__dict__ else value).__code__


def class_of(code: CodeType, space: dict[str, Any]) -> type | None:
    """The class whose method a function is, by the names of both."""
    *path, name = code.co_qualname.split(".")
    found: Any = space.get(path[0]) if path else None
    for part in path[1:]:
        found = vars(found).get(part) if isinstance(found, type) else None
    return found if isinstance(found, type) and code_of(vars(found).get(name)) is code else None


def names_of(cls: type) -> dict[str, Any]:
    """What stands in a class: the dict itself, which is quicker to look at than what Python shows of it."""
    (found,) = (x for x in gc.get_referents(vars(cls)) if type(x) is dict)
    return found
