"""`compile` on a GPU: the same programs run eagerly and compiled, on the stand-in with interpreted kernels, and on a real
device where there is one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support import fake_gpu
from tapejit.eager.arrays import devices
from tapejit.eager.core import index_range as extent
from tapejit.tracer.record import index_checks as checks

pytest.importorskip("triton", reason="Triton has no wheel for this platform", exc_type=ImportError)
F = tj.nn.functional
BACKENDS = ["stand-in", "cupy"] if devices._driver_device_count() else ["stand-in"]


@pytest.fixture(params=BACKENDS, autouse=True)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TAPEJIT_BACKEND", "auto")
    monkeypatch.setenv("TAPEJIT_STRICT_BACKEND", "1")
    monkeypatch.setenv("TAPEJIT_TUNE", "0")
    with fake_gpu.gpu(request.param == "stand-in") as xp:
        yield xp


def numbers(*shape: int, seed: int = 0) -> Any:
    found = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return tj.from_numpy(found).to("cuda")


def same(
    script: Callable[[Any], list[Any]],
    rtol: float = 1e-5,
    atol: float = 1e-6,
    judge: Callable[[list[Any], list[Any]], None] | None = None,
    **settings: Any,
) -> Any:
    """A script eagerly and compiled: what it returns has to agree. `script(compile)` makes all that it needs anew.

    `judge` compares in the place of tolerances, which say little about sums whose terms cancel out.
    """
    compiled: list[Any] = []

    def compile(function: Any) -> Any:
        compiled.append(tj.compile(function, **settings))
        return compiled[-1]

    tj.manual_seed(5)
    expected = script(lambda f: f)
    tj.manual_seed(5)
    found = script(compile)
    found, expected = ([x.detach().cpu().numpy() for x in y] for y in (found, expected))
    if judge is not None:
        judge(found, expected)
    else:
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol, atol)
    assert all(compiled_of(f).hits for f in compiled)
    made = [p for f in compiled for p in programs(f)]
    assert made and not any(getattr(p, "stopped", False) for p in made)  # native code for a CPU is never stopped
    return compiled[0] if len(compiled) == 1 else compiled


def programs(compiled: Any) -> list[Any]:
    """The generated programs of a compiled function."""
    found = [s for trace in compiled_of(compiled).traces for s in trace.programs.values()]
    found += [p for s in found if s.joint is not None for p in s.joint.passes.values()]
    return [s.native for s in found if s.native is not None]


def compiled_of(function: Any) -> Any:
    return function.forward if isinstance(function, tj.nn.Module) else function


# ---- training steps


def test_elements() -> None:
    def script(compile: Any) -> list[Any]:
        w = numbers(3, 4).requires_grad_()

        @compile
        def step(x: Any) -> Any:
            loss = (x * w).tanh().sum()
            w.grad = None
            loss.backward()
            with tj.no_grad():
                w.sub_(w.grad * 0.1)
            return loss

        return [*[step(numbers(3, 4, seed=i)) for i in range(6)], w]

    (program,) = programs(same(script))
    assert type(program).__name__ == "GpuProgram"


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_training_of_a_small_network(kind: str) -> None:
    def script(compile: Any) -> list[Any]:
        model = tj.nn.Sequential(tj.nn.Linear(5, 8), tj.nn.GELU(), tj.nn.LayerNorm(8), tj.nn.Linear(8, 3)).to("cuda")
        settings = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(tj.optim, kind)(model.parameters(), lr=0.05, **settings)

        @compile
        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        losses = [step(numbers(4, 5, seed=i), numbers(4, 3, seed=10 + i)) for i in range(6)]
        return [*losses, *model.parameters()]

    assert len(programs(same(script, rtol=1e-4))) == 1


def test_embedding_norm_dropout_and_cross_entropy() -> None:
    def script(compile: Any) -> list[Any]:
        table, norm, head = tj.nn.Embedding(11, 6), tj.nn.LayerNorm(6), tj.nn.Linear(6, 11)
        model = tj.nn.ModuleList([table, norm, head]).to("cuda")
        optimizer = tj.optim.Adam(model.parameters(), lr=0.01)

        @compile
        def step(x: Any, y: Any) -> Any:
            logits = head(F.dropout(norm(table(x)), 0.3))
            loss = F.cross_entropy(logits.reshape(-1, 11), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        tokens = [tj.from_numpy(np.random.default_rng(i).integers(0, 11, (2, 5))).to("cuda") for i in range(7)]
        losses = [step(x, y) for x, y in itertools.pairwise(tokens)]
        return [*losses, *model.parameters()]

    same(script, rtol=1e-4)


class Block(tj.nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = tj.nn.ModuleList([tj.nn.LayerNorm(width), tj.nn.LayerNorm(width)])
        self.into, self.out = tj.nn.Linear(width, 3 * width, bias=False), tj.nn.Linear(width, width)
        self.wide, self.back = tj.nn.Linear(width, 4 * width), tj.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.into(self.norms[0](x)).split(width, 2)
        q, k, v = (p.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(seen), 0.1)
        return x + self.back(F.gelu(self.wide(self.norms[1](x))))


class Gpt(tj.nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.places = tj.nn.Embedding(words, width), tj.nn.Embedding(8, width)
        self.block, self.norm, self.head = Block(width, 2), tj.nn.LayerNorm(width), tj.nn.Linear(width, words, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.words(x) + self.places(tj.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.block(y)))


def test_training_of_a_gpt() -> None:
    def script(compile: Any) -> list[Any]:
        model = Gpt(13, 8).to("cuda")
        optimizer = tj.optim.AdamW(model.parameters(), lr=1e-2)

        @compile
        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x).reshape(-1, 13), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        tokens = tj.from_numpy(np.random.default_rng(0).integers(0, 13, (2, 9))).to("cuda")
        losses = [step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for _ in range(4)]
        return [*losses, *model.parameters()]

    (program,) = programs(same(script, rtol=1e-3, atol=1e-4))
    assert [kind for kind, _ in program.executable.plan.order].count("op") == 0
    assert len(program.executable.plan.rows) <= 26 and not program.executable.danger


class Last(tj.nn.Module):
    """A recurrent network that returns its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = tj.nn.GRU(4, 6, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.cells(x)[0][:, -1]


def pictures() -> Any:
    conv, norm, head = tj.nn.Conv2d(1, 4, 3, padding=1), tj.nn.BatchNorm2d(4), tj.nn.Linear(36, 3)
    return tj.nn.Sequential(conv, norm, tj.nn.ReLU(), tj.nn.MaxPool2d(2), tj.nn.Flatten(), head)


def dense() -> Any:
    return tj.nn.Sequential(tj.nn.Linear(4, 8), tj.nn.GELU(), tj.nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("make", "shape", "halves"), [(Last, (2, 3, 4), False), (pictures, (2, 1, 6, 6), False), (dense, (5, 4), True)]
)
def test_other_networks_with_clipping_and_scaling(make: Any, shape: tuple[int, ...], halves: bool) -> None:
    def script(compile: Any) -> list[Any]:
        model = make().to("cuda")
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = tj.amp.GradScaler("cuda", enabled=halves, init_scale=128.0)

        @compile
        def step(x: Any) -> Any:
            with tj.autocast("cuda", dtype=tj.float16, enabled=halves):
                loss = model(x).float().pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            tj.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return [*[step(numbers(*shape, seed=i)) for i in range(4)], *model.parameters()]

    same(script, **({"rtol": 1e-2, "atol": 1e-3} if halves else {"rtol": 1e-4, "atol": 1e-5}))


# ---- ways to compile


def test_a_function_without_its_backward_pass() -> None:
    def script(compile: Any) -> list[Any]:
        model = tj.nn.Sequential(tj.nn.Linear(5, 8), tj.nn.Tanh(), tj.nn.Linear(8, 2)).to("cuda")
        forward = compile(model)
        found = []
        for i in range(6):
            model.zero_grad()
            x = numbers(4, 5, seed=i).requires_grad_()
            loss = (forward(x) ** 2).sum()
            loss.backward()
            found += [loss, x.grad, *[p.grad for p in model.parameters()]]
        return found

    compiled = same(script, rtol=1e-4)
    assert len(programs(compiled)) == 2  # and that of the backward pass


def test_modules_and_optimizers_are_regions() -> None:
    def script(compile: Any) -> list[Any]:
        model = tj.nn.Linear(4, 3).to("cuda")
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @compile
        def step(x: Any) -> Any:
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return [*[step(numbers(2, 4, seed=i)) for i in range(8)], *model.parameters()]

    explained = str(same(script).explain())
    assert "regions replayed as a whole" in explained and "SGD.step" in explained and "Triton kernels for" in explained


def test_without_python() -> None:
    def script(compile: Any) -> list[Any]:
        model = tj.nn.Linear(4, 3).to("cuda")
        optimizer = tj.optim.Adam(model.parameters(), lr=0.1)

        @compile
        def step(x: Any) -> Any:
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return [*[step(numbers(2, 4, seed=i)) for i in range(6)], *model.parameters()]

    assert "of them without Python" in str(same(script, pure=True, rtol=1e-4).explain())


def test_breaks() -> None:
    def script(compile: Any) -> list[Any]:
        w = numbers(6)

        @compile
        def f(x: Any) -> Any:
            y = (x * w).exp()
            if y.sum().item() > 6:
                y = y / y.sum()
            return y.cumsum(0) + 1

        return [f(numbers(6, seed=i)) for i in range(8)]

    same(script)


def test_gradients_that_are_added_up() -> None:
    def script(compile: Any) -> list[Any]:
        w = numbers(3, 4).requires_grad_()

        @compile
        def add(x: Any) -> Any:
            loss = (x * w).sin().sum()
            loss.backward()
            return loss

        found = [add(numbers(3, 4, seed=i)) for i in range(6)]
        return [*found, w.grad]

    same(script)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str) -> None:
    def script(compile: Any) -> list[Any]:
        w = numbers(8, 16).to(getattr(tj, dtype)).requires_grad_()

        @compile
        def step(x: Any) -> Any:
            loss = F.softmax(x @ w, 1).pow(2).sum()
            w.grad = None
            loss.backward()
            return loss

        found = [step(numbers(4, 8, seed=i).to(getattr(tj, dtype))) for i in range(4)]
        return [x.float() for x in (*found, w.grad)]

    same(script, rtol=2e-2, atol=2e-2)


def test_ops_without_kernels_are_called_on_arrays() -> None:
    def script(compile: Any) -> list[Any]:
        @compile
        def f(x: Any) -> Any:
            y = (x * 2).sort(1)[0]
            return y + 1, (y @ y.transpose(0, 1)).relu()

        return [y for i in range(4) for y in f(numbers(4, 6, seed=i))]

    (program,) = programs(same(script))
    assert "op" in dict(program.executable.plan.order)


# ---- tensors on their way to the device


def on_cpu(*shape: int, seed: int = 0) -> Any:
    return numbers(*shape, seed=seed).cpu()


@pytest.mark.parametrize("pure", [None, True])
def test_batches_may_be_brought_to_the_device_in_the_step(pure: bool | None) -> None:
    """Wherever it is done, the step is one program, and each call has its own batch."""

    def script(compile: Any) -> list[Any]:
        model = tj.nn.Sequential(tj.nn.Linear(5, 8), tj.nn.GELU(), tj.nn.Linear(8, 3)).to("cuda")
        optimizer = tj.optim.AdamW(model.parameters(), lr=0.05)

        @compile
        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x.to("cuda")), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        targets = [tj.from_numpy(np.random.default_rng(i).integers(0, 3, 4)) for i in range(9)]
        losses = [step(on_cpu(4, 5, seed=i), y) for i, y in enumerate(targets)]
        return [*losses, *model.parameters()]

    step = same(script, 1e-4, pure=pure)
    (program,) = programs(step)
    assert "1 path, 1 segment in total" in str(step.explain()) and program.graph.write_backs


@pytest.mark.parametrize("pure", [None, True])
def test_the_same_batch_many_times_and_then_another(pure: bool | None) -> None:
    """Data that is copied to the device is no constant, however often it was the same."""

    def script(compile: Any) -> list[Any]:
        w, same_one, other = numbers(4), on_cpu(4), on_cpu(4, seed=1)
        f = compile(lambda x: (x.cuda() * w).exp())
        return [f(x) for x in (*[same_one] * 9, other, same_one, other)]

    same(script, pure=pure)


def test_memory_that_is_brought_to_the_device_is_what_it_is_then() -> None:
    """Written before in the same call, which is pending, or by somebody between two calls."""

    def script(compile: Any) -> list[Any]:
        x, seen = on_cpu(6), numbers(6)

        @compile
        def f(y: Any) -> Any:
            a = (seen * 2).exp()
            x.add_(y)
            b = x.cuda() + a
            b.mul_(2)
            c = y.cuda()
            c.add_(1)
            return b, c

        found = []
        for i in range(6):
            found += f(on_cpu(6, seed=i))
            x.mul_(0.5)
        return [*found, x]

    same(script)


def test_gradients_go_through_what_is_brought_to_the_device() -> None:
    def script(compile: Any) -> list[Any]:
        w = on_cpu(3, 4).requires_grad_()

        @compile
        def step(x: Any) -> Any:
            loss = (x.cuda() * w.cuda()).tanh().sum()
            w.grad = None
            loss.backward()
            with tj.no_grad():
                w.sub_(w.grad * 0.1)
                kept = w.cuda() * 2
            return loss, kept

        return [y for i in range(6) for y in step(on_cpu(3, 4, seed=i))] + [w]

    same(script)


def test_indices_that_are_brought_to_the_device_by_an_op() -> None:
    def script(compile: Any) -> list[Any]:
        table, rows = numbers(7, 3), [[0, 2, 6], [1, 1, 5], [3, 4, 0]]

        @compile
        def f(n: int, i: Any) -> Any:
            return table[rows[n]] * 2 + table[i].exp()

        return [f(n % 3, tj.tensor([n % 7, 2, 0])) for n in range(9)]

    same(script)


# ---- where things are


def test_another_device(gpu: Any) -> None:
    if tj.cuda.device_count() < 2:
        pytest.skip("there is one GPU")

    def script(compile: Any) -> list[Any]:
        @compile
        def f(x: Any) -> Any:
            return F.softmax(x * 2, 1)

        found = [f(numbers(3, 5, seed=i).to("cuda:1")) for i in range(4)]
        assert all(x.device == tj.device("cuda:1") for x in found)
        return found

    same(script)


def test_the_cpu_and_a_device_have_a_program_each() -> None:
    """One of them may be wanted on the other side later."""

    def script(compile: Any) -> list[Any]:
        a, b, rows = numbers(4, 3), on_cpu(7), tj.tensor([[0, 6], [3, 3]])

        @compile
        def f(x: Any, n: int) -> Any:
            h = F.softmax(a * x, 1).cumsum(0)
            scale = (tj.arange(4) * n + b[rows].sum()).sin()
            a.mul_(0.9)
            return h * scale.to("cuda")[:, None], scale, tj.rand(3), F.dropout(h, 0.5), h[:0]

        return [y for i in range(6) for y in f(numbers(4, 3, seed=i), i)] + [a]

    explained = str(same(script).explain())
    assert (
        "and native code for what is on the CPU" in explained
        and "reference program:" not in explained
        and "reference program, as" not in explained
    )


def test_wrong_indices_on_the_cpu_beside_a_device() -> None:
    """Nothing is written on the device, and eager execution's error is raised."""
    table, x, w = on_cpu(5, 2), numbers(3), numbers(3)

    @tj.compile
    def f(i: Any) -> Any:
        x.add_(w)
        return (table * 2)[(i * 1).view(-1)], x * 2

    for _ in range(4):
        f(tj.tensor([1, 4]))
    before = x.cpu().numpy()
    with pytest.raises(IndexError):
        f(tj.tensor([1, 5]))
    np.testing.assert_allclose(x.cpu().numpy(), before + w.cpu().numpy())  # as eager execution leaves it
    found = f(tj.tensor([2, -5]))
    np.testing.assert_array_equal(found[0].numpy(), table.numpy()[[2, 0]] * 2)


def test_what_writes_on_the_cpu_and_on_a_device_is_a_reference_program() -> None:
    a, b = numbers(3), tj.ones(3)
    f = tj.compile(lambda: (a * 2 + 1, b.mul_(3)))
    for _ in range(4):
        x, y = f()
    assert x.is_cuda and not y.is_cuda and (y == 81).all()
    assert "its tensors are on several devices, and it writes to some on the CPU; move those to the GPU" in str(f.explain())


@pytest.mark.parametrize(("backend", "place"), [("llvm", "cuda"), ("triton", "cpu"), ("plain", "cuda")])
def test_a_backend_for_another_device_is_not_used(backend: str, place: str) -> None:
    x = numbers(3, 4).to(place)
    f = tj.compile(lambda: (x * 2).tanh(), backend=backend)
    for _ in range(4):
        f()
    assert not programs(f) and "reference program:" in str(f.explain())


# ---- indices


def test_the_device_is_not_asked_about_indices_that_come_from_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have to be done with the last step before it is given another one. What was written since is looked at."""
    asked: list[int] = []
    usual = checks.waited_for
    monkeypatch.setattr(checks, "waited_for", lambda index: asked.append(1) or usual(index))
    model = tj.nn.Sequential(tj.nn.Embedding(9, 4), tj.nn.Flatten(), tj.nn.Linear(12, 3)).to("cuda")
    step = tj.compile(lambda x, y: F.cross_entropy(model(x), y.view(-1)))
    given = [np.random.default_rng(i).integers(0, n, (5, m)) for i, (n, m) in enumerate([(9, 3), (3, 1)] * 5)]
    tensors = [tj.from_numpy(a).to("cuda") for a in given]
    for x, y in zip(tensors[::2], tensors[1::2], strict=True):
        step(x, y)
    assert compiled_of(step).hits and not asked
    x, y = tensors[:2]
    x[2, 1] = 8
    step(x, y)
    assert asked
    x[2, 1] = 9
    with pytest.raises(IndexError):
        step(x, y)
    with pytest.raises(IndexError):
        step(tj.full((5, 3), 9).to("cuda"), y)
    with pytest.raises(IndexError):
        step(tensors[2], tj.full((5, 1), -1).to("cuda"))


def test_what_is_known_of_arrays_goes_with_them() -> None:
    x = tj.tensor([[3, -2], [7, 0]]).to("cuda")
    assert extent.known_range(x.tj_array) == (-2, 7) and extent.known_range(x.clone().tj_array) is None
    x.add_(1)
    assert extent.known_range(x.tj_array) is None
    assert extent.known_range(tj.tensor([1.0]).to("cuda").tj_array) is None
    before = len(extent._known)
    del x
    assert len(extent._known) < before


# ---- indices that are wrong


def given(program: Any, xp: Any) -> tuple[list[Any], list[Any]]:
    """Arrays and numbers to run a program on, without the tracer, which looks at most indices itself; integers are 0."""
    graph, rng = program.graph, np.random.default_rng(0)
    arrays: list[Any] = [None] * program.slots
    for x in graph.inputs:
        form = graph.forms[x.name]
        made = (
            rng.standard_normal(form.shape).astype(form.dtype) if form.dtype.kind == "f" else np.zeros(form.shape, form.dtype)
        )
        arrays[x.slot] = xp.asarray(made)
    scalars: list[Any] = [0] * (1 + max((n.place for n in graph.numbers), default=0))
    for n in graph.numbers:
        scalars[n.place] = n.type(1)
    return arrays, scalars


def test_nothing_is_written_when_an_index_is_wrong(gpu: Any) -> None:
    """And eager execution's error is raised. The flag is seen in time, though the device is not waited for before."""
    table, scale = tj.nn.Embedding(50, 4).to("cuda"), tj.ones(4, device="cuda").requires_grad_()
    optimizer = tj.optim.SGD([*table.parameters(), scale], lr=0.1)

    def step(i: Any, j: Any) -> Any:
        loss = ((table(i) + table(j)) * scale).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    made = tj.compile(step)
    for _ in range(2):
        made(*[tj.zeros(7, 1, dtype=tj.int64, device="cuda")] * 2)
    (program,) = programs(made)
    arrays, scalars = given(program, gpu)
    written = [arrays[w.input.slot] for w in program.graph.write_backs]
    graph = program.graph
    indices = [arrays[x.slot] for x in graph.inputs if graph.forms[x.name].dtype.kind == "i"]
    assert len(written) == 2 and program.executable.plan.flags
    for which in indices:
        for bad in (10_000_000, -51):
            old = [gpu.asnumpy(a) for a in written]
            which[3] = bad
            with pytest.raises((IndexError, RuntimeError)):
                program.run(list(arrays), scalars)
            assert all(np.array_equal(gpu.asnumpy(a), b) for a, b in zip(written, old, strict=True))
        which[3] = 49
        program.run(list(arrays), scalars)
        assert not any(np.array_equal(gpu.asnumpy(a), b) for a, b in zip(written, old, strict=True))
    assert not program.stopped
