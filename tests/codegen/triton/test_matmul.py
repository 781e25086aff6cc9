"""Matmuls as Triton kernels, with what follows them: interpreted, they do what reference programs do; and they compile
for devices that are not here, to instructions of the matrix units.

Programs run under `shadow`: twice from the same memory, plainly and by kernels. Nothing here has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from support.codegen.programs import run, values

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

from support.codegen import interpreted
from tapejit.codegen.triton.device import compile as aot
from tapejit.codegen.triton.device import cubin
from tapejit.codegen.triton.matmul import from_graph as matmul
from tapejit.codegen.triton.matmul.tile_configs import Config
from tapejit.codegen.triton.printing import expr_printer as body
from tapejit.codegen.triton.runtime import kernel_cache as binaries

SIZES = [(1, 1, 1), (1, 40, 70), (33, 1, 17), (17, 65, 1), (16, 16, 16), (31, 33, 64), (64, 65, 129), (129, 63, 31)]


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels."""
    with interpreted.watched(monkeypatch, tolerance=0.5) as found:  # float32 to 1e-5
        yield found
    assert any(x.kind == "matmul" for p in found.programs for x in p.launches)


def tensor(*shape: int) -> Any:
    return tj.from_numpy(values(shape))


def matmuls(function: Any) -> list[Any]:
    """The launches of matmuls of a function, what is printed of them, and the forms of values."""
    found = [interpreted.Interpreted(g) for g in shadow.recorded(function)]
    return [(x, k, p.work.forms) for p in found for x, k in zip(p.launches, p.kernels, strict=True) if x.kind == "matmul"]


# ---- values


def test_shapes(seen: Any) -> None:
    given = [(tensor(m, k), tensor(k, n)) for m, n, k in SIZES]
    run(lambda: [a @ b for a, b in given])


@pytest.mark.parametrize("dtype", [tj.float64, tj.float16, tj.bfloat16], ids=str)
def test_dtypes(seen: Any, dtype: Any) -> None:
    given = [(tensor(m, k).to(dtype), tensor(n, k).to(dtype), tensor(n).to(dtype)) for m, n, k in SIZES[1::2]]
    run(lambda: [(a @ b.t(), F.gelu(F.linear(a, b, bias))) for a, b, bias in given])


def test_transposed_and_strided(seen: Any) -> None:
    a, b, c = tensor(40, 33), tensor(33, 70), tensor(80, 66)

    def function() -> Any:
        found = [a @ b, b.t() @ a.t(), (b.t() @ a.t()).t() @ b.t(), c[::2, ::2] @ b, a.flip(1) @ b, a[:1].expand(5, 33) @ b]
        return [*found, c[1:41, 5:38] @ b[:, ::3], a[:, :1] @ b[:1], b.t().contiguous().t() @ a.t()[:1].expand(70, 40)]

    run(function)


def test_batches(seen: Any) -> None:
    """Rows of a batch are rows of one matrix where all are multiplied by the same; operands may be broadcast."""
    a, b, w = tensor(2, 3, 17, 20), tensor(2, 3, 20, 33), tensor(20, 33)
    heads = tensor(2, 9, 4, 8)

    def function() -> Any:
        found = [a @ b, a @ w, a.transpose(1, 2) @ w, a[:, :1] @ b, a @ b[:1], a[0, 0] @ b, a @ b[0, 0], a[:0] @ b[:0]]
        q = heads.transpose(1, 2)
        return [*found, q @ q.transpose(-1, -2), b.transpose(-1, -2) @ a.transpose(-1, -2), a @ w[None, None]]

    run(function)


def test_what_follows_is_part_of_the_kernel(seen: Any) -> None:
    x, w, bias, rest = tensor(33, 40), tensor(70, 40), tensor(70), tensor(33, 70)
    run(lambda: F.dropout(F.gelu(F.linear(x, w, bias)), 0.3) + rest)


def test_what_a_matmul_reads_is_not_overwritten_by_what_follows(seen: Any) -> None:
    """Not even if it is read as a view of something else."""
    a, w = tensor(70, 70), tensor(70, 70)
    run(lambda: w.mul_(0.5).add_(0.01 * (a @ w.t())))


CONVOLUTIONS = [
    ((2, 3, 11), (4, 3, 3), {}),
    ((2, 4, 9, 10), (6, 4, 3, 2), {"stride": 2, "padding": 1}),
    ((1, 4, 8, 9), (6, 2, 3, 3), {"groups": 2, "dilation": 2, "padding": (3, 2)}),
    ((3, 5, 7, 7), (20, 5, 1, 1), {}),
    ((2, 4, 8, 9), (6, 2, 3, 3), {"stride": (2, 3), "padding": 1, "dilation": (3, 2), "groups": 2}),
    ((2, 3, 8, 8), (3, 1, 3, 3), {"groups": 3, "stride": (3, 1)}),
    ((1, 2, 5, 6, 4), (3, 2, 2, 3, 1), {"stride": (1, 2, 1), "padding": (0, 1, 0)}),
]


def convolved(dtype: Any) -> Any:
    functions = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
    given = [
        (tensor(*x).to(dtype).requires_grad_(), tensor(*w).to(dtype).requires_grad_(), tensor(w[0]).to(dtype), settings)
        for x, w, settings in CONVOLUTIONS
    ]

    def function() -> Any:
        found = []
        for x, w, bias, settings in given:
            y = F.relu(functions[x.ndim](x, w, bias, **settings))
            found += [y, tj.autograd.grad((y * y.detach()).float().sum(), [x, w])]
        return found

    return function


@pytest.mark.parametrize("dtype", [tj.float32, tj.float64, tj.float16, tj.bfloat16], ids=str)
def test_convolutions_and_their_gradients(seen: Any, dtype: Any) -> None:
    run(convolved(dtype))


# ---- parts of the depth


def in_parts(monkeypatch: Any, parts: int) -> None:
    """From now on the depth of matmuls is added up in so many parts."""
    chosen = matmul.configs
    split = lambda *args: [replace(chosen(*args)[0], split_k=parts)]
    monkeypatch.setattr(matmul, "configs", split)


def test_a_long_depth_is_added_up_in_parts(seen: Any, monkeypatch: Any) -> None:
    a, b, bias = tensor(3, 700), tensor(700, 70), tensor(70)
    seen.tolerance = 2  # sums of so many terms
    wide = (tensor(2, 20, 300), tensor(2, 300, 33))

    def function() -> Any:
        return [F.gelu(a @ b + bias), wide[0] @ wide[1], a.half() @ b.half()]

    run(function)
    (first, *_) = [k for p in seen.programs for k in p.kernels]
    assert [k.name for k in first.kernels] == ["matmul_mul_parts", "matmul_mul"] and first.scratch
    in_parts(monkeypatch, 3)
    run(function)
    run(convolved(tj.float32))


def test_indices_of_64_bits(seen: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(body, "LARGE", 1)
    a, b, image, weights = tensor(2, 40, 33), tensor(2, 33, 20), tensor(2, 3, 7, 7), tensor(4, 3, 3, 3)
    run(lambda: [F.dropout(a @ b, 0.5), a @ b[0], F.conv2d(image, weights, stride=2)])
    in_parts(monkeypatch, 2)
    run(lambda: [F.gelu(a @ b), a @ b[0]])
    assert all("tl.cast(" in k.source for p in seen.programs for k in p.kernels if k)


# ---- what is one kernel


def test_a_layer_is_one_kernel_and_so_is_the_matmul_of_its_gradient() -> None:
    x, rest = tensor(40, 24).requires_grad_(), tensor(40, 32)
    layers = [(tensor(n, m).requires_grad_(), tensor(n).requires_grad_()) for n, m in ((64, 24), (32, 64))]

    def forward() -> Any:
        return F.dropout(F.gelu(F.linear(x.detach(), layers[0][0].detach(), layers[0][1].detach())), 0.1)

    def both() -> Any:
        h = F.dropout(F.gelu(F.linear(x, *layers[0])), 0.1)
        y = F.dropout(F.linear(h, *layers[1]), 0.1) + rest
        return [y, tj.autograd.grad(y, [x, layers[0][0]], tj.ones_like(y))]

    (graph,) = shadow.recorded(forward)
    (kernel,) = [k for k in interpreted.Interpreted(graph).kernels if k is not None]
    assert len(kernel.kernels) == 1 and all(x in kernel.source for x in ("tl.dot", "libdevice.erf", "maths.random_mask"))
    sources = [k.source for _, k, _ in matmuls(both)]
    assert ["random_mask" in s for s in sources].count(True) == 3
    (backward,) = [s for s in sources if "libdevice.exp" in s]  # the slope of gelu
    assert "maths.random_mask" in backward and backward.count("tl.store") == 1


def test_powers_of_numbers_are_computed_before_elements_are_read() -> None:
    """They are calls of a function: what was in registers would be spilled."""
    weight, x = tensor(48, 32).requires_grad_(), tensor(40, 32)
    optimizer = tj.optim.AdamW([weight])

    def step() -> None:
        optimizer.zero_grad()
        F.linear(x, weight).sum().backward()
        optimizer.step()

    (source,) = [k.source for _, k, _ in matmuls(step) if "libdevice.pow" in k.source]
    after = source.split("matmul = total")[1]
    assert "tl.load(" in after and "libdevice.pow" not in after
    assert source.rindex("tl.dot") < source.index("libdevice.pow")  # and no register holds them meanwhile


def test_a_mask_that_is_handed_out_is_written_where_it_is_drawn(seen: Any) -> None:
    """The tape of what is compiled without its backward pass wants it."""
    x, w = tensor(40, 24).requires_grad_(), tensor(33, 24)
    run(lambda: F.dropout(F.linear(x, w), 0.4))
    assert all([k.kind for k in p.launches] == ["matmul"] for p in seen.programs)


def test_operands_are_computed_while_they_are_read(seen: Any) -> None:
    a, b, mask, scale = tensor(33, 40), tensor(40, 50), tensor(33, 40) > 0, tensor(33, 1)

    def function() -> Any:
        cast = a.half() @ b.half()
        return [cast, (a * 2 + 1) @ b, tj.where(mask, a, 0.0) @ b, a @ (b * 3).t().contiguous().t(), (a * scale) @ b]

    run(function)
    (program_,) = seen.programs
    assert [x.kind for x in program_.launches].count("nest") <= 1  # the masked one reads two arrays
    x, w = tensor(2, 3, 9, 9), tensor(4, 3, 3, 3)
    run(lambda: F.conv2d(x + 1, w * 2, padding=1))


def test_what_is_read_many_times_is_narrowed_before() -> None:
    weights = tensor(16, 8)
    for rows, there in ((64, True), (1025, False)):
        x = tensor(rows, 8).half()
        ((launch, _, forms),) = matmuls(lambda x=x: F.linear(x, weights.half()))
        assert any(forms[buffer].itemsize == 4 for buffer in launch.reads) == there


def test_what_several_read_is_computed_once() -> None:
    a, b, c = tensor(33, 40), tensor(40, 50), tensor(40, 60)

    def function() -> Any:
        x = (a * 2 + 1).half()
        return [x @ b.half(), x @ c.half()]

    assert not any(name in launch.computed for launch, _, _ in matmuls(function) for name in launch.node.operands[:1])


# ---- compiled for devices that are not here

UNITS = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma", "gfx942": "v_mfma"}


@pytest.mark.parametrize("target", UNITS)
def test_matmuls_of_halves_use_matrix_units(target: str) -> None:
    """Epilogues and layouts of operands change nothing: they are read and written by 128 bits."""
    dtype = tj.float16 if target in ("sm_90", "gfx942") else tj.bfloat16
    x, w, rest = (tensor(512, 256).to(dtype), tensor(512, 256).to(dtype), tensor(512, 512).to(dtype))
    ((launch, _, forms),) = matmuls(lambda: F.relu(F.linear(x, w)) + rest)
    found = matmul.print_matmul(launch, forms, target, config=Config(64, 64, 64, 4, 2))
    (kernel,) = found.kernels
    made = aot.compile_kernel(found, kernel, target)
    used = aot.resources(made, target)
    assert UNITS[target] in made.asm["amdgcn" if target == "gfx942" else "ptx"]
    assert used.spills == 0 and set(used.loads) == {128} == set(used.stores), used


def test_other_matmuls_compile() -> None:
    """In float32, in parts, and a convolution of halves."""
    x, w = tensor(8, 2048), tensor(2048, 64)
    image, kernel = tensor(8, 32, 16, 16).half(), tensor(64, 32, 3, 3).half()
    for launch, found, _ in matmuls(lambda: [x @ w + 1, F.conv2d(image, kernel, padding=1)]):
        for k in found.kernels:
            made = aot.compile_kernel(found, k, "sm_90")
            used = aot.resources(made, "sm_90")
            assert used.spills == 0 and set(used.stores) == {128}, (k.name, used)
            if launch.node.op.name == "matmul":
                assert set(used.loads) == {128}, (k.name, used)
            elif k is found.kernels[0]:
                assert "mma" in made.asm["ptx"]


def test_what_wants_too_much_shared_memory_is_compiled_with_fewer_stages() -> None:
    """Otherwise the device would refuse the whole program."""
    x = tensor(256, 512).half()
    ((launch, _, forms),) = matmuls(lambda: F.linear(x, x))
    found = matmul.print_matmul(launch, forms, "sm_89", config=Config(64, 64, 64, 4, 8))
    used = aot.resources(aot.compile_kernel(found, found.kernels[0], "sm_89"), "sm_89")
    roomy = aot.resources(aot.compile_kernel(found, found.kernels[0], "sm_80"), "sm_80")
    assert used.shared <= 99 << 10 < roomy.shared <= 163 << 10


def test_what_the_assembler_spills_is_compiled_with_more_registers() -> None:
    """It would keep to 96 for a fifth program on each unit. What the code says of itself is what the assembler says."""
    x, w, pull = tensor(4, 64, 28, 28).requires_grad_(), tensor(64, 64, 3, 3), tensor(4, 64, 28, 28)
    ((launch, _, forms),) = matmuls(lambda: tj.autograd.grad(F.conv2d(x, w, padding=1), [x], pull))
    assert launch.node.op.name == "conv_input_grad"
    found = matmul.print_matmul(launch, forms, "sm_100", config=Config(64, 64, 16, 4, 3))
    made = aot.compile_kernel(found, found.kernels[0], "sm_100")
    used = aot.resources(made, "sm_100")
    assert used.spills == 0 and cubin.read_thread_use(made.asm["cubin"]) == cubin.ThreadUse(used.registers, 0), used


def test_room_for_more_registers() -> None:
    """As many programs on a unit as before, or as few less as make a difference, but two at least."""
    cases = {(96, 128): [128, 168], (97, 128): [128, 168], (128, 128): [168, 255], (168, 128): [255], (255, 128): []}
    cases |= {(80, 256): [128], (96, 256): [128], (128, 256): [], (64, 512): [], (56, 64): [64, 72]}
    assert {given: cubin.register_candidates(cubin.ThreadUse(given[0], 8), given[1]) for given in cases} == cases


def test_what_spills_in_spite_of_that_gets_more_threads() -> None:
    """A matmul of float32, which matrix units do not compute, by halves that are widened: two warps hold too much."""
    x, w = tensor(32, 64), tensor(192, 64).to(tj.bfloat16)
    ((launch, _, forms),) = matmuls(lambda: F.linear(x, w.float()))
    found = matmul.print_matmul(launch, forms, "sm_80", config=Config(32, 64, 32, 2, 3))
    made = aot.compile_kernel(found, found.kernels[0], "sm_80")
    assert aot.resources(made, "sm_80").spills == 0 and made.metadata.num_warps == 4
    binary = binaries.compile_binary(binaries.CompileRequest(found, found.kernels[0]), "sm_80")
    assert binary.threads == 4 * 32  # it is launched with as many
