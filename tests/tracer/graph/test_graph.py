"""The graph of a segment: what it says, that it is well formed, and that it gives the bits of the reference program: as it is,
after the passes, and as the Python that it prints as."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import random_programs
from support.traced import Program, agree, tensors
from tapejit import nn
from tapejit.eager.core.dispatch import apply
from tapejit.eager.core.op import PRIMITIVES
from tapejit.eager.optim.sgd import SGD_UPDATE
from tapejit.tracer.execute import reference_program as program
from tapejit.tracer.graph.functionalize import contiguous, graph_of
from tapejit.tracer.graph.interpreter import has_aliased_inputs, namespace, run_graph
from tapejit.tracer.graph.ir import Graph, GraphError, Input, Node, Output, WriteBack, verify
from tapejit.tracer.graph.passes import optimize
from tapejit.tracer.graph.simplify import (
    fold_constants,
    merge_common_subexpressions,
    remove_copies,
    remove_dead_code,
    simplify_algebra,
)
from tapejit.tracer.trace.trace import Constant, Number

# ---- running programs by their graphs


def by_text(graph: Graph, arrays: Any, scalars: Any) -> None:
    space = namespace(graph)
    exec(str(graph), space)
    given = [arrays[x.slot] for x in graph.inputs] + [scalars[n.place] for n in graph.numbers]
    for output, array in zip(graph.outputs, space["segment"](*given), strict=True):
        arrays[output.slot] = array


EXECUTORS: dict[str, tuple[Callable[[Graph], Graph], Callable[..., None]]] = {
    "as recorded": (lambda graph: graph, run_graph),
    "optimised": (optimize, run_graph),
    "as text": (optimize, by_text),
}


def owner(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def compared(seen: Any, executor: str) -> Callable[..., Any]:
    """Makes programs that run twice from the same memory, plainly and by their graph, and must do the same."""
    make = program.make_program
    transform, run = EXECUTORS[executor]

    def make_both(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        plain = make(trace, start, stop, keep)
        graph = transform(graph_of(trace, start, stop, keep))
        seen.graphs.append(graph)

        def both(arrays: Any, scalars: Any) -> None:
            if has_aliased_inputs(graph, arrays):
                seen.aliased += 1
                plain(arrays, scalars)
                return
            before = list(arrays)
            memory = {id(owner(a)): (owner(a), owner(a).copy(order="K")) for a in arrays if type(a) is np.ndarray}
            plain(arrays, scalars)
            wanted = [o.slot for o in graph.outputs] + [x.slot for x in graph.inputs]
            expected = {s: (arrays[s].strides, arrays[s].tobytes()) for s in wanted}
            arrays[:] = before
            for array, saved in memory.values():
                if array.flags.writeable:
                    array[...] = saved
            run(graph, arrays, scalars)
            seen.runs += 1
            for slot in wanted:
                assert arrays[slot].tobytes() == expected[slot][1], f"slot {slot} differs\n{graph}"
                if run is run_graph and arrays[slot].size > 1:
                    assert arrays[slot].strides == expected[slot][0], f"slot {slot} has other strides\n{graph}"

        return both

    return make_both


@pytest.fixture(params=list(EXECUTORS))
def graphs(request: Any, monkeypatch: Any) -> Any:
    """Everything that is replayed is also run by its graph; what was run is noted here."""
    seen = SimpleNamespace(executor=request.param, graphs=[], runs=0, aliased=0)
    monkeypatch.setattr(program, "make_program", compared(seen, request.param))
    yield seen
    assert seen.runs != 0


def batches(*shapes: tuple[int, ...], count: int = 6) -> list[Any]:
    return [tensors(*shapes, seed=i) for i in range(count)]


def training(model: Callable[[], Any], optimizer: Callable[[Any], Any], set_to_none: bool = True) -> Callable[[], Program]:
    def make() -> Program:
        net = model()
        opt = optimizer(net.parameters())

        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(net(x), y)
            opt.zero_grad(set_to_none=set_to_none)
            loss.backward()
            opt.step()
            return loss

        return Program(step, lambda: [*net.parameters(), *net.buffers()])

    return make


def mlp() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))


def noisy() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd with momentum": lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: tj.optim.Adam(p, lr=0.1),
    "adamw with amsgrad": lambda p: tj.optim.AdamW(p, lr=0.1, amsgrad=True),
    "rmsprop": lambda p: tj.optim.RMSprop(p, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_steps(graphs: Any, optimizer: str) -> None:
    agree(training(mlp, OPTIMIZERS[optimizer]), batches((5, 4), (5, 1)))
    assert max(len(g.write_backs) for g in graphs.graphs) >= 6


@pytest.mark.parametrize("set_to_none", [True, False])
def test_batch_norm_and_dropout(graphs: Any, set_to_none: bool) -> None:
    agree(training(noisy, OPTIMIZERS["adam"], set_to_none), batches((5, 4), (5, 1)))


def test_accumulation(graphs: Any) -> None:
    def make() -> Program:
        net = mlp()
        opt = tj.optim.SGD(net.parameters(), lr=0.1)

        def step(x: Any, y: Any) -> Any:
            opt.zero_grad()
            for part, wanted in zip(x.split(2), y.split(2), strict=True):
                (F.mse_loss(net(part), wanted) / 3).backward()
            opt.step()

        return Program(step, lambda: [[p, p.grad] for p in net.parameters()])

    agree(make, batches((6, 4), (6, 1)))


def test_a_convolution_and_attention(graphs: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 4, 3, padding=1)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.out = nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            h = F.relu(self.conv(x)).transpose(1, 2)
            return self.out(self.attention(h, h, h, need_weights=False)[0] + h).mean(1)

    agree(training(Net, OPTIMIZERS["adam"]), batches((3, 2, 5), (3, 1)))


# ---- memory


def both_ways(x: Any, y: Any) -> Any:
    z = x * y
    z[0].add_(y[1])
    z.t()[1].mul_(3.0)
    flat = z.view(-1)
    flat[2:4] = x[0, :2]
    return z, flat, z.t().sum(0), flat.sum()


def parts(x: Any, y: Any) -> Any:
    z = x + y
    top, bottom = z.unbind(0)
    left, right = z.split([1, 2], 1)
    top.mul_(bottom)
    right.sub_(left)
    bottom.copy_(top.clone())
    return top, z, right.sum(1), z.diagonal().exp()


def conversions(x: Any, y: Any) -> Any:
    z = x.double()
    z.copy_(y)
    x32 = x * 1
    x32.add_(tj.arange(3))
    x32[1] = 2
    w = tj.empty(2, 3)
    w.t().copy_(y.t())
    w[:, 1].fill_(0.5)
    n = tj.zeros(3, dtype=tj.int64)
    n[1:] += 2
    return z, x32, w, n, w.sum(0)


def into_inputs(x: Any, y: Any) -> Any:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)
    x[1].neg_()
    y.t()[0].zero_()
    return x.view(-1), y[1], x.sum()


def across_segments(x: Any, y: Any) -> Any:
    z = x * y
    row, column = z[0], z[:, 1]
    if row.sum().item() > 1e9:
        return None
    row.add_(1.0)
    total = column.sum()
    column.mul_(total)
    return z, row, column, total


def scattered(x: Any, y: Any) -> Any:
    z = x * 2
    at = tj.tensor([1, 0, 1])
    z.index_add_(1, at, y)
    z.scatter_(0, tj.tensor([[1, 0, 1]]), y)
    return z, z.flip(0).cumsum(1)


def transposed(x: Any, y: Any) -> Any:
    z = x.t() + y.t()
    z.copy_(x.view(3, 2))
    z.view(3, 2)[1:].add_(z[:2])
    return z, z.sum(), z.mean(0), z.contiguous().view(-1)


def halves(x: Any, y: Any) -> Any:
    a, b = x.half(), y.bfloat16()
    a.mul_(2.0).add_(b.half())
    b[0] = a[1].bfloat16()
    return a, b, (a * 1).sum(), b.float() + a


def expanded(x: Any, y: Any) -> Any:
    wide = x.expand(2, 2, 3)
    x.add_(1.0)
    return wide, wide.sum(), wide * y


def expanded_across_segments(x: Any, y: Any) -> Any:
    wide = (x * y).expand(2, 2, 3)
    if wide.sum().item() < 1e9:
        wide[0].mul_(2.0)
    return wide, wide.sum()


@pytest.mark.parametrize(
    "function",
    [
        both_ways,
        parts,
        conversions,
        into_inputs,
        across_segments,
        scattered,
        transposed,
        halves,
        expanded,
        expanded_across_segments,
    ],
    ids=lambda f: f.__name__,
)
def test_views_and_writes(graphs: Any, function: Any) -> None:
    if function is transposed and graphs.executor == "as text":
        graphs.runs = None
        pytest.skip("the text leaves strides to the kernels, and sums over other strides are rounded otherwise")
    agree(lambda: Program(function), batches((2, 3), (2, 3)))


def test_random_programs(graphs: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(25):
            random_programs.compare(random_programs.write(Random(seed)))


def test_inputs_that_share_memory_are_noticed() -> None:
    memory = np.zeros(6, np.float32)
    form = contiguous((4,), np.dtype(np.float32), tj.device("cpu"))
    x, y = Input("x0", 0), Input("x1", 1)
    node = Node(PRIMITIVES["exp"], ("x1",), {}, ("v0",), False, "demo.py:1")
    graph = Graph((x, y), (), (node,), (), (WriteBack(x, "v0"),), {"x0": form, "x1": form, "v0": form})
    assert has_aliased_inputs(graph, [memory[:4], memory[2:]])
    assert not has_aliased_inputs(graph, [memory[:2], memory[2:]])


def test_an_update_of_two_views_of_one_memory_has_no_graph(monkeypatch: Any) -> None:
    def f(x: Any) -> Any:
        z = x * 2
        apply(SGD_UPDATE, (z[:2], z[1:], None, 0.1, 0.0, 0.0, 0.0), {"nesterov": False, "maximize": False})
        return z

    found = kept(monkeypatch)
    agree(lambda: Program(f), batches((3,)))
    with pytest.raises(GraphError, match=r"sgd_update at .*test_graph.py:\d+ writes memory that another of its inputs shares"):
        for segment in found:
            graph_of(*segment)


# ---- what graphs look like


def kept(monkeypatch: Any) -> list[Any]:
    """The segments that programs are made for, from here on."""
    found: list[Any] = []
    make = program.make_program

    def noted(*segment: Any) -> Any:
        found.append(segment)
        return make(*segment)

    monkeypatch.setattr(program, "make_program", noted)
    return found


@pytest.fixture
def graph_in(monkeypatch: Any) -> Callable[..., Graph]:
    """The graph of a function given as text, whose first line is line 1 of demo.py; a gradient may be wanted of its last
    argument."""

    def make(source: str, *shapes: tuple[int, ...], grad: bool = False) -> Graph:
        space: dict[str, Any] = {"tj": tj, "apply": apply, "SGD_UPDATE": SGD_UPDATE}
        exec(compile(source.lstrip("\n"), "demo.py", "exec"), space)
        f = tj.compile(space["f"])
        found = kept(monkeypatch)
        for i in range(4):
            given = tensors(*shapes, seed=i)()
            given[-1].requires_grad_(grad)
            f(*given)
        assert len(found) == 1, f.explain()
        return graph_of(*found[0])

    return make


def test_writes_become_values(graph_in: Any) -> None:
    source = """
def f(x, y):
    z = x * y
    row = z[0]
    row.add_(y[1])
    x.sub_(z)
    return row.sum(), x[1]
"""
    expected = """
def segment(
    x0,  # float32[2, 3]
    x1,  # float32[2, 3]
):
    v0 = ops.mul(x0, x1)  # float32[2, 3]  demo.py:2
    v1 = ops.slice(v0, index=(0, ...))  # float32[3]  demo.py:3
    v2 = ops.slice(x1, index=(1, ...))  # float32[3]  demo.py:4
    v3 = ops.add(v1, v2)  # float32[3]  demo.py:4
    v4 = ops.view_scatter(v0, v3, chain=((ops.slice, {'index': (0, ...)}, None),))  # float32[2, 3]  demo.py:4
    v5 = ops.sub(x0, v4)  # float32[2, 3]  demo.py:5
    v6 = ops.slice(v4, index=(0, ...))  # float32[3]  demo.py:3
    v7 = ops.sum(v6, dims=(0,), keepdim=False)  # float32[]  demo.py:6
    v8 = ops.slice(v5, index=(1, ...))  # float32[3]  demo.py:6
    x0[...] = v5
    return (v7, ops.slice(x0, index=(1, ...)))
"""
    assert str(graph_in(source, (2, 3), (2, 3))) == expected.lstrip()


def test_an_update_has_a_result_for_each_thing_it_writes(graph_in: Any) -> None:
    source = """
def f(p, g, m):
    apply(SGD_UPDATE, (p, g, m, 0.1, 0.0, 0.9, 0.0), {"nesterov": False, "maximize": False})
    p.mul_(2.0)
"""
    graph = graph_in(source, (3,), (3,), (3,))
    update, double = graph.nodes
    assert update.op.name == "sgd_update" and update.results == ("v0", "v1") and double.values() == ["v0"]
    assert [(w.input.name, w.value) for w in graph.write_backs] == [("x0", "v2"), ("x2", "v1")]


def test_dead_code(graph_in: Any) -> None:
    source = """
def f(x, y):
    x.mul_(x)
    unused = y.exp() * 5.0
    return x + x
"""
    expected = """
def segment(
    x0,  # float32[3]
):
    v0 = ops.mul(x0, x0)  # float32[3]  demo.py:2
    v3 = ops.add(v0, v0)  # float32[3]  demo.py:4
    x0[...] = v0
    return (v3,)
"""
    graph = remove_dead_code(graph_in(source, (3,), (3,)))
    assert str(graph) == expected.lstrip()
    assert remove_dead_code(graph) is graph


def test_common_subexpressions(graph_in: Any) -> None:
    source = """
def f(x, y):
    a = (x + y).exp()
    b = (x + y).exp()
    x.add_(1.0)
    c = (x + y).exp()
    return a * b, c
"""
    expected = """
def segment(
    x0,  # float32[3]
    x1,  # float32[3]
    s0,  # float
):
    v0 = ops.add(x0, x1)  # float32[3]  demo.py:2
    v1 = ops.exp(v0)  # float32[3]  demo.py:2
    v4 = ops.add(x0, s0)  # float32[3]  demo.py:4
    v5 = ops.add(v4, x1)  # float32[3]  demo.py:5
    v6 = ops.exp(v5)  # float32[3]  demo.py:5
    v7 = ops.mul(v1, v1)  # float32[3]  demo.py:6
    x0[...] = v4
    return (v6, v7)
"""
    graph = merge_common_subexpressions(graph_in(source, (3,), (3,)))
    assert str(graph) == expected.lstrip()
    assert merge_common_subexpressions(graph) is graph


def test_what_is_handed_out_twice_is_copied(graph_in: Any) -> None:
    graph = merge_common_subexpressions(graph_in("def f(x):\n    return x.exp(), x.exp()\n", (3,)))
    assert [(n.op.name, n.operands) for n in graph.nodes] == [("exp", ("x0",)), ("clone", ("v0",))]
    assert [o.value for o in graph.outputs] == ["v0", "v1"]


def test_random_numbers_of_two_calls_are_two(graph_in: Any) -> None:
    graph = optimize(graph_in("def f(x):\n    return tj.rand(3) + tj.rand(3) * x\n", (3,)))
    assert [n.op.name for n in graph.nodes] == ["random_uniform", "random_uniform", "mul", "add"]


MEAN = """
def f(x, w):
    y = x * w
    y.mean().backward()
"""


def test_constants(graph_in: Any) -> None:
    kind = "dtype=tapejit.float32, device=tapejit.device('cpu')"
    expected = f"""
def segment(
    x0,  # float32[4]
    x1,  # float32[4]
):
    v0 = ops.mul(x0, x1)  # float32[4]  demo.py:2
    v1 = ops.mean(v0, dims=(0,), keepdim=False)  # float32[]  demo.py:3
    v2 = ops.full(1, shape=(), {kind})  # float32[]  demo.py:3
    v3 = ops.full(0.25, shape=(), {kind})  # float32[]  demo.py:3
    v4 = ops.full(0.25, shape=(4,), {kind})  # float32[4] strides (0,)  demo.py:3
    v5 = ops.mul(v4, x0)  # float32[4]  demo.py:3
    v6 = ops.clone(v5)  # float32[4]  demo.py:3
    return (v6,)
"""
    graph = fold_constants(graph_in(MEAN, (4,), (4,), grad=True))
    assert str(graph) == expected.lstrip()
    assert fold_constants(graph) is graph


def test_all_passes(graph_in: Any) -> None:
    expected = """
def segment(
    x0,  # float32[4]
):
    v4 = ops.full(0.25, shape=(4,), dtype=tapejit.float32, device=tapejit.device('cpu'))  # float32[4] strides (0,)  demo.py:3
    v5 = ops.mul(v4, x0)  # float32[4]  demo.py:3
    return (v5,)
"""
    assert str(optimize(graph_in(MEAN, (4,), (4,), grad=True))) == expected.lstrip()


def test_algebra(graph_in: Any) -> None:
    source = """
def f(x, w):
    (x * w).sum().backward()
    return w.grad * x
"""
    expected = """
def segment(
    x0,  # float32[4]
):
    v5 = ops.clone(x0)  # float32[4]  demo.py:2
    v6 = ops.mul(x0, x0)  # float32[4]  demo.py:3
    return (v5, v6)
"""
    assert str(remove_dead_code(simplify_algebra(graph_in(source, (4,), (4,), grad=True)))) == expected.lstrip()


def test_a_gradient_needs_no_copy(graph_in: Any) -> None:
    source = """
def f(x, w):
    w.grad = None
    (x * w).exp().sum().backward()
"""
    graph = graph_in(source, (4,), (4,), grad=True)
    assert any(n.op.name == "clone" for n in graph.nodes)
    assert not any(n.op.name == "clone" for n in optimize(graph).nodes)


def test_constants_that_are_arrays(graph_in: Any) -> None:
    graph = optimize(graph_in("def f(x):\n    return x * tj.arange(4).float()\n", (4,)))
    assert [n.op.name for n in graph.nodes] == ["constant", "mul"]
    space = namespace(graph)
    exec(str(graph), space)
    np.testing.assert_array_equal(space["segment"](np.ones(4, np.float32))[0], [0, 1, 2, 3])


# ---- algebra on all values


def one_op(name: str, *operands: Any, dtype: Any = np.float32) -> Graph:
    form = contiguous((8,), np.dtype(dtype), tj.device("cpu"))
    node = Node(PRIMITIVES[name], operands, {}, ("v0",), False, "demo.py:1")
    after = Node(PRIMITIVES["clone"], ("v0",), {}, ("v1",), False, "demo.py:2")
    forms = {"x0": form, "v0": form, "v1": form}
    return Graph((Input("x0", 0),), (), (node, after), (Output(1, "v1", ()),), (), forms)


ODD = np.array([-0.0, 0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -3.5])


@pytest.mark.parametrize(
    ("name", "operands", "spared"),
    [
        ("mul", ("x0", 1.0), True),
        ("mul", (1, "x0"), True),
        ("mul", ("x0", -1.0), False),
        ("mul", ("x0", 0.0), False),
        ("true_divide", ("x0", 1), True),
        ("true_divide", (1.0, "x0"), False),
        ("add", ("x0", 0.0), False),
        ("add", ("x0", 0), False),
        ("add", (-0.0, "x0"), True),
        ("sub", ("x0", 0.0), True),
        ("sub", ("x0", 0), True),
        ("sub", ("x0", -0.0), False),
        ("sub", (0.0, "x0"), False),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_algebra_keeps_every_bit(name: str, operands: Any, spared: bool, dtype: Any) -> None:
    check_algebra(one_op(name, *map(constant, operands), dtype=dtype), ODD.astype(dtype), spared)


@pytest.mark.parametrize("operands", [("add", "x0", 0), ("add", 0, "x0"), ("sub", "x0", 0), ("mul", 1, "x0")])
def test_algebra_of_integers(operands: Any) -> None:
    check_algebra(one_op(*map(constant, operands), dtype=np.int64), np.arange(-4, 4), True)


def test_integers_have_no_negative_zero() -> None:
    graph = one_op("add", "x0", "v2", dtype=np.float64)
    attrs = {"shape": (8,), "dtype": tj.int64, "device": tj.device("cpu")}
    zero = Node(PRIMITIVES["full"], (Constant(-0.0),), attrs, ("v2",), False, "demo.py:1")
    forms = {**graph.forms, "v2": contiguous((8,), np.dtype(np.int64), tj.device("cpu"))}
    graph = replace(graph, nodes=(zero, *graph.nodes), forms=forms)
    assert len(simplify_algebra(graph).nodes) == 3


def constant(x: Any) -> Any:
    return x if isinstance(x, str) else Constant(x)


def check_algebra(graph: Graph, given: Any, spared: bool) -> None:
    verify(graph)
    simpler = simplify_algebra(graph)
    assert (len(simpler.nodes) == 1) is spared
    found = []
    for g in (graph, simpler, optimize(graph)):
        arrays: list[Any] = [given.copy(), None]
        run_graph(g, arrays, [])
        found.append(arrays[1].tobytes())
    assert found[0] == found[1] == found[2]
    assert not spared or found[0] == given.tobytes()


# ---- graphs that are wrong


def test_wrong_graphs_are_refused() -> None:
    graph = one_op("exp", "x0")
    exp, clone = graph.nodes
    with pytest.raises(GraphError, match=r"v1 = ops.clone\(v0\) \(demo.py:2\) reads v0, which is not defined before it"):
        verify(replace(graph, nodes=(clone, exp)))
    with pytest.raises(GraphError, match=r"v0 = ops.exp\(x0\) \(demo.py:1\) defines v0, which is defined before it"):
        verify(replace(graph, nodes=(exp, exp, clone)))
    with pytest.raises(GraphError, match=r"reads s3, which is no parameter"):
        verify(replace(graph, nodes=(replace(exp, op=PRIMITIVES["mul"], operands=("x0", Number(3, float))), clone)))
    with pytest.raises(GraphError, match=r"output 1 is v7, which is not defined"):
        verify(replace(graph, outputs=(Output(1, "v7", ()),)))
    with pytest.raises(GraphError, match=r"what x0 holds at the end is x0, which has no memory of its own"):
        verify(replace(graph, write_backs=(WriteBack(graph.inputs[0], "x0"),)))
    with pytest.raises(GraphError, match=r"what x0 holds at the end and output 1 are both v1, and have to be two memories"):
        verify(replace(graph, write_backs=(WriteBack(graph.inputs[0], "v1"),)))
    double = contiguous((8,), np.dtype(np.float64), tj.device("cpu"))
    with pytest.raises(GraphError, match=r"v0 = ops.exp\(x0\) \(demo.py:1\) makes .*32.*, and is said to make .*64"):
        verify(replace(graph, nodes=(replace(exp), clone), forms={**graph.forms, "v0": double, "v1": double}))


def test_copies_do_not_take_what_is_taken() -> None:
    graph = one_op("exp", "x0")
    second = replace(graph.nodes[1], results=("v2",))
    outputs = (*graph.outputs, Output(2, "v2", ()))
    forms = {**graph.forms, "v2": graph.forms["v0"]}
    found = remove_copies(replace(graph, nodes=(*graph.nodes, second), outputs=outputs, forms=forms))
    assert [o.value for o in found.outputs] == ["v0", "v2"]


def test_the_log_shows_graphs(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("TAPEJIT_LOG", "graph")
    f = tj.compile(lambda x: (x * 2).sum())
    for _ in range(5):
        f(tj.ones(3))
    shown = capsys.readouterr().err
    assert shown.count("def segment(") == 1 and "v0 = ops.mul(x0, s0)  # float32[3]  test_graph.py:" in shown
