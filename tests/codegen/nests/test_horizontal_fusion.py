"""Nests that differ in buffers, numbers and sizes alone are one kernel: an optimizer's updates of all parameters, above all.

Names of values in between are replaced by t0, t1, ... in the order in which they appear.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support import shadow
from support.codegen.loop_text import built, text
from tapejit import nn
from tapejit.codegen.llvm import build as native_build
from tapejit.codegen.llvm.build import NativeBuild
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.loops.table_kernel import MAX_LANES, count_pieces, table_entries
from tapejit.codegen.llvm.step_function import RoundScheduler
from tapejit.codegen.nests.horizontal_fusion import fusable_groups, fused_order, is_size_independent
from tapejit.tracer.execute import tiering

SHAPES = [(3, 5), (1, 1), (20_001,), (7, 1, 3), (1,), (16,), (130, 128)]  # one element, more than a piece, whole vectors


@pytest.fixture(autouse=True)
def _native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))  # whatever a busy machine measures
    monkeypatch.setenv("TAPEJIT_BACKEND", "llvm")


def parameters(shapes: Any = SHAPES, dtype: Any = tj.float32) -> list[Any]:
    """With gradients, the same each time."""
    tj.manual_seed(0)
    found = []
    for shape in shapes:
        found.append(tj.randn(shape).to(dtype).requires_grad_())
        found[-1].grad = tj.randn(shape).to(dtype)
    return found


def bits(given: list[Any]) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in given]


def step_of(optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.step()

    return step


# ---- loops


def test_adamw_of_a_whole_model_is_one_kernel() -> None:
    opt = tj.optim.AdamW(parameters(), lr=0.01)
    build = built(step_of(opt))
    assert len(build.steps) == len(build.made) == 1
    assert len(build.steps[0].writes) == 3 * len(SHAPES), "each parameter and its two averages"
    assert text(build.steps) == (
        """\
for n, x2, x1, x3, x0, s1, s2, s5, s0, s3, s4 in (
    (15, x2, x1, x3, x0, s1, s2, s5, s0, s3, s4),
    (20001, x10, x9, x11, x8, s13, s14, s17, s12, s15, s16),
    (21, x14, x13, x15, x12, s19, s20, s23, s18, s21, s22),
    (16, x22, x21, x23, x20, s31, s32, s35, s30, s33, s34),
    (16640, x26, x25, x27, x24, s37, s38, s41, s36, s39, s40),
    (1, x6, x5, x7, x4, s7, s8, s11, s6, s9, s10),
    (1, x18, x17, x19, x16, s25, s26, s29, s24, s27, s28),
):
    for c in range(n):  # vectorised
        x2[c] = add(x2[c], mul(sub(x1[c], x2[c]), float32(sub(1.0, s1))))
        x3[c] = add(mul(x3[c], float32(s2)), mul(mul(x1[c], x1[c]), float32(sub(1.0, s2))))
        x0[c] = sub(mul(x0[c], float32(sub(1.0, mul(s0, s4)))), mul(true_divide(add(x2[c], mul(sub(x1[c], x2[c]), float32(sub(1.0, s1)))), add(true_divide(sqrt(add(mul(x3[c], float32(s2)), mul(mul(x1[c], x1[c]), float32(sub(1.0, s2))))), float32(sqrt(sub(1.0, pow(s2, float64(s5)))))), float32(s3))), float32(true_divide(s0, sub(1.0, pow(s1, float64(s5)))))))
"""  # noqa: E501
    )


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"])
def test_it_is_no_matter_which_optimizer(name: str) -> None:
    build = built(step_of(getattr(tj.optim, name)(parameters(), lr=0.01)))
    assert len(build.steps) == 1


def test_so_is_what_many_tensors_are_multiplied_by() -> None:
    """Clipped gradients: the factor is read from memory, and is no element of what has a single one."""
    given, factor = parameters([(3, 5), (1,), (40,), (15,), (8, 5)]), tj.tensor(0.5)

    def shorten() -> None:
        for p in given:
            assert p.grad is not None
            p.grad.mul_(factor)

    (step,) = built(shorten).steps
    assert text([step]) == (
        """\
for n, x1, x0 in (
    (15, x1, x0),
    (40, x1, x3),
    (15, x1, x4),
    (40, x1, x5),
    (1, x1, x2),
):
    for c in range(n):  # vectorised
        x0[c] = mul(x0[c], x1[0])
"""
    )
    compiled = tj.compile(shorten, strict=True)
    for _ in range(4):
        expected = [p.grad.numpy() * np.float32(0.5) for p in given]
        compiled()
        assert all(np.array_equal(p.grad.numpy(), x) for p, x in zip(given, expected, strict=True))


def test_updates_that_wait_for_the_norm_of_all_gradients_are_one_kernel() -> None:
    """Parameters of the same size, too: the factor that they have in common is no reason for a loop over all of them."""
    given = parameters([(30, 40), *[(40,)] * 12, *[(30, 20)] * 12])
    opt = tj.optim.AdamW(given, lr=0.01)

    def step() -> None:
        nn.utils.clip_grad_norm_(given, 1.0)
        opt.step()

    build = built(step)
    written = [s for s in build.steps if any(name in build.inputs for name in s.writes)]
    assert len(written) == 1 and len(written[0].writes) == 4 * len(given), "with the clipped gradients"


def test_what_does_something_else_stays_for_itself() -> None:
    a, b, c, d = (tj.randn(n) for n in (30, 40, 50, 60))

    def function() -> Any:
        return a.exp(), b.exp(), c * 2 + 1, d.flip(0).exp()

    found = built(function).steps
    assert [len(x.nest.all) for x in found if x.nest is not None] == [2, 1, 1]


def test_random_numbers_and_conditions_on_places_are_not_of_any_size() -> None:
    x, y = tj.randn(30), tj.randn(40)
    for function in (
        lambda: (tj.rand_like(x), tj.rand_like(y)),
        lambda: (nn.functional.pad(x, (1, 2)).exp(), nn.functional.pad(y, (1, 2)).exp()),
        lambda: (x.reshape(5, 6).t().exp().contiguous(), y.reshape(5, 8).t().exp().contiguous()),
    ):
        nests = [s.nest for s in built(function).steps]
        assert len(nests) == 2 and not any(is_size_independent(n) for n in nests if n is not None)


def test_rows_that_begin_elsewhere_are_of_another_family() -> None:
    given = [tj.randn(n) for n in (30, 40, 50, 60)]

    def function() -> Any:
        return [x[1:].exp() for x in given[:2]] + [x[2:].exp() for x in given[2:]]

    found = [s.nest for s in built(function).steps]
    assert [len(n.all) for n in found if n is not None] == [2, 2]


# ---- rounds


def rounds(build: NativeBuild) -> list[Any]:
    """The kernels of a step, between barriers."""
    return RoundScheduler(build.arena).schedule([m for m in build.made if m is not None])


def model_and_step(optimizer: Any = tj.optim.AdamW) -> tuple[Any, tuple[Any, ...]]:
    tj.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(13, 12),
        nn.LayerNorm(12),
        nn.Linear(12, 20),
        nn.GELU(),
        nn.Linear(20, 12),
        nn.LayerNorm(12),
        nn.Linear(12, 9),
    )
    opt = optimizer(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(model(x).reshape(-1, 9), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    x = tj.arange(40).reshape(4, 10) % 13
    return step, (x, (x + 1) % 9)


def test_in_a_whole_step_nothing_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds and memory are those without it, and each buffer is written in the round that it would be written in."""
    step, args = model_and_step()
    build = built(step, *args)
    monkeypatch.setattr(native_build, "fusable_groups", lambda steps: {})
    apart = NativeBuild(build.graph, build.slots)
    assert build.arena.size == apart.arena.size and build.arena.offsets == apart.arena.offsets
    assert len(build.steps) < len(apart.steps)

    def written(build: NativeBuild) -> list[set[str]]:
        return [{b for made, _ in items for b in made.launch.writes} for items in rounds(build)]

    assert written(build) == written(apart)
    assert all(first <= last < len(build.steps) for first, last in build.arena.lives.values())


def test_whole_steps_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_BACKEND", "plain")
    with shadow.watching(monkeypatch) as seen:
        shadow.guard(seen, monkeypatch)
        step, args = model_and_step()
        compiled = tj.compile(step)
        for _ in range(6):
            compiled(*args)
    nests = [x.nest for p in seen.programs for x in p.launches if x.nest is not None]
    assert any(n.fused_with for n in nests)


def test_the_order_is_one_in_which_everything_can_be_done() -> None:
    """Synthetic steps: one kernel is where its last part was, behind nothing of a later round."""
    known, rounds = {1: "a", 4: "a", 2: "b", 6: "b", 7: "a"}, {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 3, 6: 2, 7: 2}
    assert fused_order(8, known, rounds) == [(0,), (3,), (1, 4), (2, 6), (5,), (7,)]
    assert fused_order(3, {}, {}) == [(0,), (1,), (2,)]


@pytest.mark.parametrize("seed", range(30))
def test_no_order_puts_what_waits_before_what_it_waits_for(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(2, 20)
    waits = {i: {k for k in range(i) if chance.random() < 0.15} for i in range(count)}
    rounds: dict[int, int] = {}
    for i in range(count):
        rounds[i] = max((rounds[k] + 1 for k in waits[i]), default=0)
    known = {i: chance.choice("ab") for i in range(count) if chance.random() < 0.7}
    found = fused_order(count, known, rounds)
    assert sorted(i for group in found for i in group) == list(range(count))
    place = {i: k for k, group in enumerate(found) for i in group}
    assert all(place[k] < place[i] for i in range(count) for k in waits[i])
    assert len(found) == len({(known.get(i, i), rounds[i]) for i in range(count)})


# ---- results


def trained(optimizer: Callable[[list[Any]], Any], compiled: bool, dtype: Any = tj.float32) -> list[bytes]:
    """Parameters after a few steps."""
    given = parameters(dtype=dtype)
    opt = optimizer(given)
    step = tj.compile(step_of(opt), strict=True) if compiled else step_of(opt)
    for _ in range(5):
        step()
    if compiled:
        assert len(program_of(step).made) == 1
    return bits(given)


def program_of(compiled: Any) -> Any:
    """The native program with an update in it."""
    return next(s.native for s in compiled.traces[0].programs.values() if s.native is not None)


UPDATES: dict[str, Callable[[list[Any]], Any]] = {
    "SGD": lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "AdamW": lambda p: tj.optim.AdamW(p, lr=0.01),
    "two groups": lambda p: tj.optim.AdamW(
        [{"params": p[:3]}, {"params": p[3:], "lr": 0.03, "weight_decay": 0.0, "betas": (0.8, 0.9)}], lr=0.01
    ),
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", [tj.float32, tj.float64], ids=str)
def test_results_are_those_of_eager_execution(name: str, dtype: Any) -> None:
    """To the bit for what has no roots and powers, whose eager kernels compute in another order."""
    found, expected = trained(UPDATES[name], True, dtype), trained(UPDATES[name], False, dtype)
    assert found == expected or name != "SGD"
    kind = np.float32 if dtype is tj.float32 else np.float64
    for a, b in zip(found, expected, strict=True):
        assert np.allclose(np.frombuffer(a, kind), np.frombuffer(b, kind), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("width", [64, 128, 256, 512])
@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16, tj.float32, tj.float64], ids=str)
def test_widths_of_vectors(monkeypatch: pytest.MonkeyPatch, width: int, dtype: Any) -> None:
    expected = trained(UPDATES["SGD"], False, dtype)
    monkeypatch.setenv("TAPEJIT_CACHE", "0")
    monkeypatch.setattr(native_build, "host", lambda: replace(host(), bits=min(width, host().bits)))
    assert trained(UPDATES["SGD"], True, dtype) == expected


class InMargins:
    """A program whose arrays are in the middle of larger memory each time that it runs; what is around them must not change."""

    def __init__(self, fast: Any) -> None:
        self.fast = fast
        self.graph = fast.graph
        self.launches = fast.launches

    def run(self, arrays: list[Any], scalars: list[Any]) -> None:
        inner, margins = list(arrays), []
        for x in self.graph.inputs:
            given = arrays[x.slot]
            whole = np.full(given.nbytes + 2 * shadow.GAP, shadow.FILL, np.uint8)
            inner[x.slot] = whole[shadow.GAP : -shadow.GAP].view(given.dtype).reshape(given.shape)
            inner[x.slot][...] = given
            margins += [whole[: shadow.GAP], whole[-shadow.GAP :]]
        self.fast.run(inner, scalars)
        assert all((m == shadow.FILL).all() for m in margins), "something beside the arrays is written"
        for x in self.graph.inputs:
            if arrays[x.slot].flags.writeable:
                arrays[x.slot][...] = inner[x.slot]
        for o in self.graph.outputs:
            arrays[o.slot] = inner[o.slot]


@pytest.mark.parametrize("dtype", [tj.bfloat16, tj.float32, tj.float64], ids=str)
def test_nothing_beside_the_arrays_is_written(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    make = shadow.compile_graph
    monkeypatch.setattr(shadow, "compile_graph", lambda *args: InMargins(make(*args)))
    monkeypatch.setenv("TAPEJIT_BACKEND", "plain")
    with shadow.watching(monkeypatch) as seen:
        shadow.guard(seen, monkeypatch)
        step = tj.compile(step_of(tj.optim.AdamW(parameters(dtype=dtype), lr=0.01)))
        for _ in range(4):
            step()
    assert all(len(p.launches) == 1 for p in seen.programs)


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sizes such that each thread's share ends within a parameter."""
    shapes = [(n,) for n in (20_001, 1, 9000, 3, 64, 50_000, 17)]

    def function() -> list[Any]:
        given = parameters(shapes)
        opt = tj.optim.AdamW(given, lr=0.01)
        for _ in range(2):
            opt.step()
        return [p.detach() for p in given]

    assert len(shadow.bits_by_threads(monkeypatch, function)) == 1
    given = parameters(shapes)
    opt = tj.optim.AdamW(given, lr=0.01)

    def step() -> list[Any]:
        with tj.no_grad():
            for p in given:
                p.fill_(0.5)
        opt.zero_grad()
        for p in given:
            p.grad = p.detach() * 3
        opt.state.clear()
        opt.step()
        return [p.detach() for p in given]

    assert len(shadow.bits_by_threads(monkeypatch, step)) == 1


def test_each_alone_has_the_same_bits() -> None:
    """As loops of their own, with their sizes as constants."""
    together = trained(UPDATES["AdamW"], True)
    for i, expected in enumerate(together):
        p = parameters()[i]
        step = tj.compile(step_of(tj.optim.AdamW([p], lr=0.01)), strict=True)
        for _ in range(5):
            step()
        assert p.detach().numpy().tobytes() == expected


def test_numbers_may_change_without_another_program() -> None:
    results = []
    for compiled in (False, True):
        opt = tj.optim.SGD(parameters(), lr=0.01, momentum=0.9)
        schedule = tj.optim.lr_scheduler.ExponentialLR(opt, 0.7)
        step = tj.compile(step_of(opt), strict=True) if compiled else step_of(opt)
        for _ in range(8):
            step()
            schedule.step()
        results.append(bits(opt.param_groups[0]["params"]))
    assert results[0] == results[1]
    assert len(step.traces) == 1 and sum(s.native is not None for s in step.traces[0].programs.values()) == 1


def test_it_comes_from_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path))
    results = []
    for from_disk in (False, True):
        given = parameters()
        step = tj.compile(step_of(tj.optim.AdamW(given, lr=0.01)), strict=True)
        for _ in range(4):
            step()
        assert program_of(step).from_disk is from_disk
        assert len(program_of(step).made) == 1, "and it is described as it is"
        results.append(bits(given))
    assert results[0] == results[1]


def test_parameters_that_are_replaced_are_found() -> None:
    """Addresses are those of each call."""
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    opt = tj.optim.SGD(model.parameters(), lr=1.0)
    step = tj.compile(step_of(opt), strict=True)
    for k in range(6):
        for p in model.parameters():
            p.data = tj.full(p.shape, float(k))
            p.grad = tj.ones(*p.shape)
        step()
        assert all((p.detach().numpy() == k - 1).all() for p in model.parameters())


# ---- tables


def test_tables() -> None:
    build = built(step_of(tj.optim.SGD(parameters(), lr=0.1)))
    (made,) = build.made
    assert made is not None and made.launch.nest is not None
    assert made.entries == table_entries(made.launch.nest.all)
    assert [e.size for e in made.entries] == [15, 20_001, 21, 16, 16_640, 1, 1]
    assert all(e.begin % MAX_LANES == 0 for e in made.entries)
    assert all(a.begin + a.size <= b.begin for a, b in zip(made.entries, made.entries[1:], strict=False))
    assert [phase.pieces for phase in made.kernel.phases] == [count_pieces(made.entries)]


def test_families_are_of_two_at_least() -> None:
    given = [tj.randn(n) for n in (30, 40, 50)]
    build = built(lambda: (given[0].exp(), given[1].exp(), given[2].sin()))
    assert not fusable_groups(build.steps), "what is one kernel already, and one that is alone"
    assert sorted(len(x.nest.all) for x in build.steps if x.nest is not None) == [1, 2]


# ---- descriptions


def test_explain_tells_of_all_of_them() -> None:
    given = parameters()
    step = tj.compile(step_of(tj.optim.SGD(given, lr=0.1)), strict=True)
    for _ in range(4):
        step()
    found = step.explain(kernels=True, llvm=True)
    (kernel,) = found.to_dict()["paths"][0]["programs"][0]["native"]["kernels"]
    count = sum(p.numel() for p in given)
    assert kernel["what"] == f"loops over {len(given)} arrays of {count:,} elements in total"
    assert kernel["bytes"] == 3 * 4 * count and len(kernel["written"]) == len(given) and kernel["seconds"] > 0
    assert kernel["flops"] >= 2 * count and kernel["loops"] == 1 and kernel["ops"].count("sub") == len(given)
    assert "_of_many" in kernel["triton"]
    words = str(found)
    assert "1 kernel in 1 function, 0 barriers" in words
    assert "for c in range(n):  # vectorised" in words
    assert (
        "steps 0, 1, 2, 3, 4, 5, 6: horizontally fused into one kernel, step 0: they differ only in buffers, scalars and sizes"
        in words
    )


def test_the_profiler_the_page_and_diff_know_it(tmp_path: Any) -> None:
    given = parameters()
    opt = tj.optim.AdamW(given, lr=0.01)
    step = tj.compile(step_of(opt), strict=True)
    for _ in range(6):  # among these is a run of the reference program, for its time; later ones go without Python
        step()
    what = "loops over 7 arrays of 36,695 elements in total"
    with tj.profiler.profile() as profile:
        step()
    assert what in str(profile.key_averages().table())
    tj.report(tmp_path / "page.html", step)
    page = (tmp_path / "page.html").read_text()
    assert what in page and "for c in range(n)" in page
    assert "eager and compiled agree" in str(tj.diff(step_of(opt)))
