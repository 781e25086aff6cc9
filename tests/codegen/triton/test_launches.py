"""Fewer launches: kernels that are merged, and nests that are the same for many buffers, do what reference programs do; and the
launches of whole steps are counted.

Programs run twice from the same memory, plainly and by interpreted kernels in their new order. What nobody needs any more is
filled with rubbish at once, as if something else were there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from support.codegen.programs import run, train, values
from tapejit.codegen.ir.expr import ExprBuilder
from tapejit.codegen.nests.kernels import Launch, in_place_pairs
from tapejit.codegen.nests.loop_nest import Nest, Stage, Store
from tapejit.codegen.program.call_wrapper import view_function
from tapejit.codegen.schedule.step import Domain, Step
from tapejit.tracer.execute import reference_program as program
from tapejit.tracer.graph.functionalize import graph_of
from tapejit.tracer.graph.interpreter import copied
from tapejit.tracer.graph.ir import Graph, GraphError
from tapejit.tracer.graph.passes import optimize

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

from support.codegen import interpreted
from tapejit.codegen.triton.build import GpuBuild
from tapejit.codegen.triton.device import compile as aot
from tapejit.codegen.triton.device.interpreter import run_kernels as run_kernels
from tapejit.codegen.triton.launches import merge_kernels as merge
from tapejit.codegen.triton.launches import table_kernel as family
from tapejit.codegen.triton.launches.group_launches import MAX_WAIT_ROUNDS, group_launches
from tapejit.codegen.triton.launches.launch_unit import Unit, UnitBuilder


class Grouped(interpreted.Interpreted):
    """A graph as merged kernels, in their new order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        build = GpuBuild(graph, 0, "sm_90", "ieee", deterministic=False, library=True)
        self.work, self.layout, self.launches, self.prints = build.work, build.layout, build.steps, build.prints
        self.units = group_launches(self.launches, self.prints)
        last = {b: i for i, x in enumerate(self.units) for b in (*x.reads, *x.writes)}
        self.done = [{b for b in last if last[b] == i} for i in range(len(self.units))]

    def one_by_one(self) -> list[Unit]:
        """The kernels as they would be launched otherwise."""
        writer = UnitBuilder(self.prints)
        return [x for launch in self.launches for x in writer.of(launch)]

    def run(self, arrays: list[Any], scalars: list[Any]) -> None:
        work, forms = self.work, self.work.forms
        memory: dict[str, Any] = {x.name: arrays[x.slot] for x in work.inputs}
        memory.update({n.results[0]: np.ascontiguousarray(n.attrs["array"]) for n in work.nodes if n.op.name == "constant"})
        for o, value in work.outputs:
            if value not in memory:
                form = self.graph.forms[o.value]
                memory[value] = copied(np.zeros(form.shape, form.dtype), form)
        visible = set(memory)
        for x, done in zip(self.units, self.done, strict=True):
            for name in x.writes - memory.keys():
                form = forms.get(name)
                memory[name] = rubbish(form.shape, form.dtype) if form is not None else rubbish(*x.printed.scratch[name][::-1])
            if x.printed is None:
                self.called(x.launches[0], memory, scalars)
            else:
                run_kernels(replace(x.printed, scratch={}), memory, dict(enumerate(scalars)))
            for name in done - visible:
                memory[name] = None  # whoever wants it in spite of that fails
        for o, value in work.outputs:
            view = memory[value]
            for op, attrs, index in o.chain:
                view = view_function(op, attrs)(view)
                view = view if index is None else view[index]
            arrays[o.slot] = view


def rubbish(shape: Any, dtype: Any) -> Any:
    """Memory in which something else was."""
    kind = np.dtype("bool" if str(dtype) == "bool" else dtype)
    return np.frombuffer(bytearray(b"\x01" * int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by merged kernels."""
    found = shadow.Seen()
    found.tolerance = 0.5  # float32 to 1e-5
    make = program.make_program

    def make_both(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        plain = make(trace, start, stop, keep)
        try:
            fast = Grouped(optimize(graph_of(trace, start, stop, keep)))
        except GraphError as reason:
            found.left.append(str(reason))
            return plain
        found.programs.append(fast)
        return lambda arrays, scalars: shadow.both(found, fast, plain, arrays, scalars)

    monkeypatch.setattr(program, "make_program", make_both)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about infinities
        yield found
    assert found.runs


def tensor(*shape: int) -> Any:
    """Its memory is nobody else's, so that a step that writes to it is one segment."""
    return tj.tensor(values(shape))


def largest(seen: shadow.Seen) -> Grouped:
    return max(seen.programs, key=lambda p: len(p.launches))


def grouping(function: Callable[..., Any], *args: Any) -> list[Unit]:
    """The launches of a function with one segment."""
    (graph,) = shadow.recorded(function, *args)
    return Grouped(graph).units


# ---- merged kernels


def test_what_does_not_depend_on_each_other_is_one_launch(seen: Any) -> None:
    x, y, z = tensor(40, 30), tensor(17), tensor(9, 200)
    run(lambda: [F.softmax(x, 1), F.gelu(y) * y.sum(), z.sum(0), z.amax(1), x.exp() + 1])
    assert len(largest(seen).units) < len(largest(seen).one_by_one())
    assert any("program - " in u.printed.source for u in largest(seen).units)


def test_one_after_the_other_where_they_depend_on_each_other(seen: Any) -> None:
    x, y = tensor(300, 129), tensor(129)
    seen.tolerance = 5  # how far sums of 300 numbers are apart is what their exponentials are apart in relation to their size

    def function() -> Any:
        total = x.sum(0)
        y.add_(total.exp().mean())
        return (x * y).sum(0), total, (y * 2).cumsum(0)

    run(function)


def test_memory_is_not_written_before_others_have_read_it(seen: Any) -> None:
    x, y, z = tensor(64, 33), tensor(64, 33), tensor(33, 20)

    def function() -> Any:
        a = x @ z
        b = y.t().sum(1)
        x.mul_(0.5)
        y.copy_(x + 1)
        return a, b, x @ z, y.amax(0)

    run(function)


@pytest.mark.parametrize("name", ["mlp", "letters", "transformer"])
def test_training_steps(seen: Any, name: str) -> None:
    train(name, seen, 4)
    step = largest(seen)
    assert step.graph.write_backs and len(step.units) < 0.6 * len(step.one_by_one())


def test_matmuls_go_along_with_matmuls(seen: Any) -> None:
    x, w, v = tensor(24, 16), tensor(16, 40).requires_grad_(), tensor(40, 16).requires_grad_()

    def function() -> Any:
        loss = (F.gelu(x @ w) @ v).pow(2).mean()
        return loss, tj.autograd.grad(loss, [w, v])

    run(function)
    matmuls = [u for u in largest(seen).units if u.kind == "matmul"]
    assert [len(u.launches) for u in matmuls] == [1, 1, 2, 1]


def test_deep_matmuls_that_go_along_are_computed_in_parts(seen: Any) -> None:
    """Four programs would go through thousands of elements one after the other, and most of a device would be idle."""
    x, y, z = tensor(16, 4000), tensor(4000, 20), tensor(4000, 16)
    seen.tolerance, seen.zero = 5, 3  # what tanh is given is a sum of thousands of numbers up to 4
    run(lambda: [x @ y, (x @ z).tanh()])
    first, second = largest(seen).units
    assert len(first.launches) == len(second.launches) == 2 and first.kernel.grid > 32 and second.kind == "nest"


def test_nobody_waits_for_long() -> None:
    """Inputs of a kernel have to be kept until it is launched: it does not wait for others for ever."""
    x, y = tensor(40, 40), tensor(40, 40)

    def function() -> Any:
        early, h = x @ x, y
        for _ in range(12):
            h = F.softmax(h, 1).t() * 2
        return early, h

    kinds = [u.kind for u in grouping(function)]
    assert len(kinds) > 2 * MAX_WAIT_ROUNDS and kinds.index("matmul") == MAX_WAIT_ROUNDS


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16])
def test_matmuls_of_halves_go_along_whatever_becomes_of_them(seen: Any, dtype: Any) -> None:
    x, w, v = tensor(24, 16), tensor(16, 40).requires_grad_(), tensor(40, 16).requires_grad_()

    def function() -> Any:
        with tj.autocast("cpu", dtype=dtype):
            loss = (F.gelu(x @ w) @ v).float().pow(2).mean()
        return loss, tj.autograd.grad(loss, [w, v])

    run(function)
    assert [len(u.launches) for u in largest(seen).units if u.kind == "matmul"] == [1, 1, 2, 1]


def test_kernels_that_are_the_same_have_one_text() -> None:
    x = tensor(20, 64)
    weights = [tensor(64).requires_grad_() for _ in range(3)]

    def function() -> Any:
        h = x
        for w in weights:
            h = F.layer_norm(h, (64,), w) @ x.t() @ x
        return h

    found = grouping(function)
    texts = {(u.printed.source, u.kernel.name) for u in found if u.printed and u.kernel and u.kind == "nest"}
    assert len(texts) < sum(u.kind == "nest" for u in found)


def test_names_do_not_count_but_settings_and_literals_do() -> None:
    first = 'def f(x0, e1):\n    """x0"""\n    mul = tl.load(x0, mask=e1) * 2\n    tl.store(x0, mul)'
    other = 'def g(x7, e9):\n    """other"""\n    add = tl.load(x7, mask=e9) * 2\n    tl.store(x7, add)'
    assert merge.anonymize(first) == merge.anonymize(other)
    assert merge.anonymize(first) != merge.anonymize(other.replace("* 2", "* 3"))
    assert merge.anonymize(first) != merge.anonymize(other.replace("mask=", "other="))
    assert merge.anonymize(first) != merge.anonymize(other.replace("store(x7", "store(e9"))


def test_kernels_that_have_the_name_of_a_function(seen: Any) -> None:
    """Sums of long rows are two kernels, called `sum` and `sum_whole`, that use `tl.sum`."""
    given = [tensor(1, 9000 + n) for n in range(3)]
    run(lambda: [x.sum() for x in given])
    assert any(len(u.launches) == 3 for u in largest(seen).units)


def test_memory_is_taken_over_only_by_what_is_computed_from_it() -> None:
    """Threads of a GPU do not wait for each other: one could write where another has not read yet."""
    exprs, domain = ExprBuilder(), Domain(1, 64)
    a, b = (exprs.load(x, domain.col, (), "float32") for x in "ab")
    stores = [Store("of a", domain.col, exprs.op("neg", "float32", a), "float32")]
    stores.append(Store("of both", domain.col, exprs.op("add", "float32", a, b), "float32"))
    launch = Launch(Step(0), "nest", None, Nest(domain, [Stage(stores=stores)], "c"), [], [])
    computed = {("a", "of a"), ("a", "of both"), ("b", "of both")}
    assert {*in_place_pairs(launch)} == {*computed, ("b", "of a")} and {*in_place_pairs(launch, unordered=True)} == computed


# ---- many buffers


def parameters(sizes: tuple[int, ...]) -> list[Any]:
    random = np.random.default_rng(0)
    found = [tj.tensor(random.normal(size=n).astype(np.float32)).requires_grad_() for n in sizes]
    for p in found:
        p.grad = tj.tensor(random.normal(size=p.shape).astype(np.float32))
    return found


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adamw": partial(tj.optim.AdamW, lr=0.1),
    "sgd": partial(tj.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "rmsprop": partial(tj.optim.RMSprop, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_one_launch(seen: Any, name: str) -> None:
    """Whatever the sizes: whole tiles, several chunks, a few elements more or less."""
    given = parameters((1024, 5, 3000, 16, 2047, 1025))
    optimizer = OPTIMIZERS[name](given)
    seen.tolerance = 2
    run(lambda: optimizer.step(), calls=6)
    step = largest(seen)
    assert [len(u.launches) for u in step.units] == [6] and len(step.one_by_one()) == 6
    (table,) = step.units[0].printed.tables.values()
    assert {w.buffer for w in table if not isinstance(w, int)} >= {b for x in step.launches for b in x.buffers}


def test_chunks_of_several_tiles(seen: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(family, "MIN_PROGRAMS", 1)
    optimizer = OPTIMIZERS["adamw"](parameters((9000, 4096, 77)))
    seen.tolerance = 2
    run(lambda: optimizer.step(), calls=5)
    assert any("chunk * 8192" in u.printed.source for p in seen.programs for u in p.units)


def test_gradients_are_clipped_in_the_same_launch(seen: Any) -> None:
    given = parameters((640, 33, 2000))
    optimizer = OPTIMIZERS["adamw"](given)

    def step() -> None:
        tj.nn.utils.clip_grad_norm_(given, 0.1)
        optimizer.step()

    seen.tolerance = 5
    run(step, calls=5)
    assert len(largest(seen).units[-1].launches) >= 3


def test_halves_and_doubles_are_families_of_their_own(seen: Any) -> None:
    kinds = (tj.float32, tj.float16, tj.float64, tj.float32, tj.float16)
    given = [tensor(50 + i).to(kind) for i, kind in enumerate(kinds)]
    run(lambda: [x.mul_(1.5) for x in given])
    (unit,) = largest(seen).units
    assert len(unit.printed.tables) == 2 and unit.printed.source.count("multiple_of(tl.load(entry + 1)") == 2


def test_buffers_at_odd_addresses_are_in_no_table() -> None:
    optimizer = OPTIMIZERS["sgd"](parameters((64, 128, 256)))
    (graph,) = shadow.recorded(optimizer.step)
    step = Grouped(graph)
    odd = frozenset(step.launches[1].buffers)
    (unit,) = group_launches(step.launches, step.prints, odd)
    (table,) = unit.printed.tables.values()
    assert odd.isdisjoint(w.buffer for w in table if not isinstance(w, int))
    assert odd <= {a.buffer for a in unit.kernel.arguments}


def test_kernels_that_are_the_same_are_one_over_a_table(seen: Any) -> None:
    """Totals of many rows, and their second stages; and numbers that each call brings."""
    given = [tensor(300, 64) for _ in range(3)]
    times = iter(range(1, 100))

    def function() -> Any:
        scale = 0.5 * next(times)
        return [(F.softmax(x, 1) * scale).sum(0) for x in given]

    run(function, calls=6)
    texts = [u.printed.source for u in largest(seen).units]
    assert len(texts) == 2 and all("The same for 3 entries of a table" in text for text in texts)


# ---- compiled for devices that are not here


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_many_buffers_are_read_by_128_bits(target: str) -> None:
    optimizer = OPTIMIZERS["adamw"](parameters((1024, 384, 65 * 384)))
    (graph,) = shadow.recorded(optimizer.step)
    (unit,) = Grouped(graph).units
    used = aot.resources(aot.compile_kernel(unit.printed, unit.kernel, target), target)
    assert used.spills == 0 and used.registers <= 128 and set(used.stores) == {128}
    assert set(used.loads) - {128} <= {64}  # of the table


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_merged_kernels_compile(target: str) -> None:
    x, w, b = tensor(64, 256).requires_grad_(), tensor(256, 128).requires_grad_(), tensor(256).requires_grad_()

    def function() -> Any:
        loss = (F.layer_norm(x, (256,), b) @ w).pow(2).mean()
        return loss, tj.autograd.grad(loss, [x, w, b]), F.gelu(x.detach())

    found = [u for u in grouping(function) if len(u.launches) > 1]
    assert {u.kind for u in found} == {"nest", "matmul"}
    for u in found:
        used = aot.resources(aot.compile_kernel(u.printed, u.kernel, target), target)
        assert used.spills == 0, (u.kernel.name, used)
        assert 128 in used.loads or u.kind == "matmul"  # whose copies are not loads
