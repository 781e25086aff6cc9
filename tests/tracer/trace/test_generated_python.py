"""Generated Python: debuggers and tracebacks show its lines, and it goes when the functions made of it go."""

from __future__ import annotations

import gc
import inspect
import linecache
import sys
import traceback
from typing import Any

import pytest
import tapejit as tj
from tapejit.eager.core import library
from tapejit.tracer.trace import generated_python
from tapejit.tracer.trace.generated_python import PythonWriter, compile_function


def entries() -> list[str]:
    gc.collect()
    return [name for name in linecache.cache if name.startswith(library.GENERATED)]


def test_a_traceback_shows_the_line_that_failed() -> None:
    f = compile_function("f", ["def f(x):", "    y = x + 1", "    return y / zero"], "test", {"zero": 0})
    with pytest.raises(ZeroDivisionError) as error:
        f(1)
    frame = traceback.extract_tb(error.tb)[-1]
    assert frame.filename.startswith("<tapejit test ") and frame.lineno == 3 and frame.line == "return y / zero"
    assert inspect.getsource(f) == "def f(x):\n    y = x + 1\n    return y / zero\n"
    assert library.is_library(f.__code__)


def test_a_traceback_through_a_reference_program_shows_its_ops() -> None:
    f = tj.compile(lambda x: (x.exp() * 2).sum(), backend="plain")
    for _ in range(4):
        f(tj.ones(3))
    (segment, *_) = f.traces[0].programs.values()
    run = getattr(segment.run, "program", None) or segment.run
    with pytest.raises(Exception, match="object") as error:
        run([object()] * 10, [2.0])
    shown = [x for x in traceback.extract_tb(error.tb) if x.filename.startswith("<tapejit program of 3 ops ")]
    assert len(shown) == 1 and "= f0(v" in str(shown[0].line)


def test_one_text_is_kept_until_its_last_function_is_gone() -> None:
    before = len(entries())
    a, b = (compile_function("f", ["def f():", "    return 'only here'"], "shared", {}) for _ in range(2))
    assert a.__code__.co_filename == b.__code__.co_filename and len(entries()) == before + 1
    del a
    assert len(entries()) == before + 1 and inspect.getsource(b)
    del b
    assert len(entries()) == before


def test_a_text_whose_cache_was_cleared_goes_quietly() -> None:
    f = compile_function("f", ["def f(): pass"], "cleared", {})
    linecache.clearcache()
    del f
    gc.collect()


def test_constants_have_one_name() -> None:
    writer, thing = PythonWriter("f", "x"), object()
    assert writer.constant(thing) == writer.constant(thing)
    writer.add(f"return x is {writer.constant(thing)}")
    f = writer.function("test")
    assert f(thing) and not f(object()) and "f" not in writer.space


def test_memory_does_not_grow_over_recompilations() -> None:
    x = tj.ones(3)

    def steps(n: int, x: Any) -> Any:
        for _ in range(n):
            x = x.exp() * 0.5
        return x

    f = tj.compile(steps, backend="plain")

    def recompile(times: int) -> None:
        for i in range(times):
            f.reset()
            for _ in range(3):
                f(1 + i % 7, x)
        f.reset()
        gc.collect()  # what other tests of the process have left in cycles is no growth

    recompile(50)
    found, kept, before = len(entries()), len(generated_python._entries), sys.getallocatedblocks()
    recompile(1000)
    assert len(entries()) <= found and len(generated_python._entries) <= kept
    assert sys.getallocatedblocks() - before < 2000
