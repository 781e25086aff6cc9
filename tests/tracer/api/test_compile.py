"""`compile` records, replays and bails out: programs that agree with eager mode, and how they got there."""

from __future__ import annotations

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.traced import Program, agree, tensors
from tapejit import nn


def batches(n: int, *shapes: tuple[int, ...]) -> list:
    return [tensors(*shapes, seed=i) for i in range(n)]


def test_a_function_of_tensors() -> None:
    f = agree(lambda: Program(lambda x, y: (x * y + x).tanh().sum(0)), batches(5, (3, 4), (3, 4)))
    assert f.hits == 3 and not f.divergences


def training(make_optimizer, hidden=16):
    def make() -> Program:
        model = nn.Sequential(nn.Linear(4, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, 1))
        optimizer = make_optimizer(model.parameters())

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Program(step, lambda: list(model.parameters()))

    return make


def test_a_training_step_is_one_segment() -> None:
    f = agree(training(lambda p: tj.optim.AdamW(p, lr=0.01)), batches(6, (5, 4), (5, 1)))
    assert f.hits >= 3
    assert f.explain().to_dict()["paths"][0]["segments"] == 1


def test_sgd_with_momentum() -> None:
    agree(training(lambda p: tj.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1)), batches(6, (5, 4), (5, 1)))


def test_a_learning_rate_is_a_runtime_scalar() -> None:
    def make() -> Program:
        w = tj.ones(3, requires_grad=True)
        optimizer = tj.optim.SGD([w], lr=1.0)
        scheduler = tj.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step(x):
            loss = (w * x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss

        return Program(step, lambda: [w])

    f = agree(make, batches(8, (3,)))
    assert f.hits == 6 and not f.divergences


def test_item_breaks_and_goes_on() -> None:
    def call(x):
        y = (x * 2).sum()
        print(f"y is {y.item():.4f}")
        return y + 1 if y.item() > 0 else y - 1

    f = agree(lambda: Program(call), batches(12, (4,)))
    assert f.hits >= 6


def test_printing_a_tensor_that_has_a_history() -> None:
    def make() -> Program:
        w = tj.ones(3, requires_grad=True)

        def call(x):
            loss = (w * x).sum()
            print(loss)
            loss.backward()
            print(w.grad)
            return loss

        return Program(call, lambda: [w])

    f = agree(make, batches(6, (3,)))
    assert f.hits >= 2


def test_gradients_accumulate_over_calls() -> None:
    def make() -> Program:
        w = tj.ones(3, requires_grad=True)

        def call(x):
            loss = (w * x).exp().sum()
            loss.backward()
            return loss.detach()

        return Program(call, lambda: [w])

    f = agree(make, batches(7, (3,)))
    assert f.hits >= 3


def test_forward_only() -> None:
    def make() -> Program:
        w = tj.ones(3, requires_grad=True)
        return Program(lambda x: (w * x).exp().sum(), lambda: [w])

    tj.manual_seed(0)
    results = []
    for compiled in (False, True):
        program = make()
        f = tj.compile(program.call) if compiled else program.call
        w = program.watch()[0]
        for args in batches(6, (3,)):
            loss = f(*args())
            (loss * 2).backward()
        results.append(w.grad.tolist())
    assert results[0] == results[1]
    assert f.hits == 4


def test_shapes_are_specialisations() -> None:
    calls = [tensors((n, 3), seed=n) for n in (2, 5, 2, 5, 2, 5, 2, 5, 2, 5)]
    f = agree(lambda: Program(lambda x: (x @ x.mT).sum()), calls)
    assert f.hits >= 5 and len(f.traces) == 2


def test_in_place_on_an_argument() -> None:
    def call(x, y):
        x += y
        x.mul_(2)
        return x.sum()

    agree(lambda: Program(call), batches(6, (3,), (3,)))


def test_views_and_in_place_inside() -> None:
    def call(x):
        y = x * 1
        v = y[1:]
        v.add_(10)
        y[0] = 5
        return y, v

    agree(lambda: Program(call), batches(6, (4,)))


def test_in_place_under_grad() -> None:
    def make() -> Program:
        w = tj.ones(4, requires_grad=True)

        def call(x):
            y = w * x
            y[1:].mul_(3)
            y += 1
            loss = (y * y).sum()
            loss.backward()
            return loss

        return Program(call, lambda: [w])

    agree(make, batches(6, (4,)))


def test_dropout_gives_the_same_bits() -> None:
    def make() -> Program:
        w = tj.ones(100, requires_grad=True)

        def call(x):
            loss = F.dropout(w * x, 0.3).sum()
            loss.backward()
            return loss

        return Program(call, lambda: [w])

    f = agree(make, batches(6, (100,)))
    assert f.hits >= 3


def test_batch_norm_in_training() -> None:
    def make() -> Program:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Program(step, lambda: [model.state_dict(), [p.grad for p in model.parameters()]])

    f = agree(make, batches(6, (5, 3)))
    assert f.hits >= 3


def test_an_exception_leaves_what_was_done() -> None:
    def make() -> Program:
        total = tj.zeros(3)

        def call(x):
            total.add_(x)
            y = x * 2
            if x.sum() > 0:
                raise ValueError("positive")
            total.add_(y)
            return y

        return Program(call, lambda: [total])

    agree(make, batches(12, (3,)))


def language_model(shift: int = 0):
    def make() -> Program:
        model = nn.ModuleDict({"token": nn.Embedding(7, 4), "place": nn.Embedding(5, 4), "head": nn.Linear(4, 7)})
        optimizer = tj.optim.AdamW(model.parameters(), lr=0.01)

        def step(batch):
            x, y = batch[:, :-1], batch[:, 1:]
            places = tj.arange(x.shape[1])
            if shift:
                places.add_(shift)
            logits = model["head"](model["token"](x) + model["place"](places))
            loss = F.cross_entropy(logits.reshape(-1, 7), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Program(step, lambda: list(model.parameters()))

    return make


def tokens(seed: int, worst: int = 6):
    def make() -> list[tj.Tensor]:
        values = (tj.arange(12) * (seed + 3)) % 7
        values[5] = worst
        return [values.reshape(3, 4)]

    return make


def test_indices_that_can_be_checked_before_are_no_break() -> None:
    f = agree(language_model(), [tokens(i) for i in range(6)])
    assert f.hits >= 3 and f.explain().to_dict()["paths"][0]["segments"] == 1


def test_indices_out_of_range_are_errors_at_their_line() -> None:
    calls = [tokens(i, worst=7 if i in (1, 5) else 6) for i in range(8)]
    agree(language_model(), calls)  # an IndexError of the embedding, and parameters as they were
    agree(language_model(shift=2), [tokens(i) for i in range(6)])
    agree(language_model(shift=3), [tokens(i) for i in range(6)])  # the last place does not exist


def test_nodes_made_at_a_break_are_used_up_by_the_pass() -> None:
    def make() -> Program:
        model = nn.Linear(4, 3)
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            loss = model(x).square().mean()
            print(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Program(step, lambda: list(model.parameters()))

    f = agree(make, batches(7, (5, 4)))
    assert f.hits >= 4 and f.explain().to_dict()["paths"][0]["segments"] == 2


def test_a_divergence_after_a_pass_over_nodes_from_before_a_break() -> None:
    def make() -> Program:
        w = tj.ones(3, requires_grad=True)
        count = [0]

        def step(x):
            loss = (w * x).exp().sum()
            print(loss.item())
            loss.backward()
            count[0] += 1
            return x + 1 if count[0] % 4 else (x - 1, loss)

        return Program(step, lambda: [w])

    f = agree(make, batches(12, (3,)))
    assert f.hits >= 5


def test_a_pass_that_cannot_be_a_region_after_an_in_place_op() -> None:
    def make() -> Program:
        w = tj.ones(3, requires_grad=True)

        def step(x):
            y = w * x
            y.div_(y + 3)  # keeps a copy of what it writes over
            loss = y.square().mean()
            loss.backward()
            return loss

        return Program(step, lambda: [w])

    agree(make, batches(7, (3,)))


def test_an_error_beside_memory_that_numpy_shows() -> None:
    def make() -> Program:
        t = tj.ones(2, 3)
        array = t.numpy()
        w = tj.ones(3, requires_grad=True)

        def step(x):
            y = t * x
            (w * t).sum().backward()
            return y + array[0, 0].item()

        return Program(step, lambda: [w, t])

    agree(make, [tensors((0 if i in (3, 4) else 2, 3), seed=i) for i in range(8)])


def test_a_view_from_before_a_shape_was_changed_in_place() -> None:
    def step(x, y):
        v = y.t()
        y.unsqueeze_(0)
        v += v
        return x * y

    agree(lambda: Program(step), batches(6, (2, 3), (2, 3)))


def test_an_in_place_op_before_a_divergence_has_its_place_on_the_tape_of_the_new_path() -> None:
    weight, other = tj.randn(2, 2, requires_grad=True), tj.randn(2, requires_grad=True)

    def step(x: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        total = (weight * 2).sum()
        total.mean().backward(inputs=[other])  # a segment ends here
        total.clamp_(-2, 2)
        return total, x @ x.mT  # another shape is another path

    compiled = tj.compile(step)
    for i in range(8):
        x = tj.randn(3, 2) if i < 3 else tj.randn(4, 3)
        assert compiled(x)[0].grad_fn.name() == "ClampBackward0"


def test_the_version_of_a_tensor_that_a_later_segment_writes_through_a_view() -> None:
    versions: list[int] = []

    def step(x: tj.Tensor) -> None:
        y = tj.maximum(x, x)
        y[-1] = y[0]  # reads and writes one memory: a segment ends here
        versions.append(y._version)

    compiled = tj.compile(step)
    for _ in range(5):
        compiled(tj.randn(3, 3))
    assert versions == [1] * 5


def test_a_hook_on_what_is_differentiated_by() -> None:
    w, seen = tj.ones(3, requires_grad=True), []

    def function(x):
        (g,) = tj.autograd.grad((w * x).sum(), [w])
        return g

    f = tj.compile(function)
    for i in range(8):
        if i == 5:
            w.register_hook(lambda g: seen.append(g.tolist()))
        assert f(tj.full((3,), float(i))).tolist() == [float(i)] * 3
    assert seen == [[float(i)] * 3 for i in (5, 6, 7)]


@pytest.mark.parametrize("flags", [[True, True, True, False, True, False], [False, False, False, True, False, True]], ids=str)
def test_whether_a_leaf_wants_a_gradient_by_then(flags) -> None:
    def trained(compile):
        w, b, found = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True), []

        def step(x, flag):
            loss = (w * x + b).square().sum()
            w.requires_grad_(flag)
            w.grad = b.grad = None
            loss.backward()

        f = compile(step)
        for i, flag in enumerate(flags):
            f(tj.full((3,), float(i)), flag)
            found.append([None if t.grad is None else t.grad.tolist() for t in (w, b)])
            w.requires_grad_(True)
        return found

    assert trained(tj.compile) == trained(lambda f: f)


def test_memory_that_numpy_writes_between_an_op_and_its_gradient() -> None:
    """What an op keeps for its gradient is the memory, whatever is written there without an op."""

    def trained(compile):
        b, t, found = tj.ones(3, requires_grad=True), tj.ones(2, 3), []
        array = t.numpy()

        def step():
            loss = (t * b).sum()
            array[0] += 1
            b.grad = None
            loss.backward()
            return loss.detach()

        f = compile(step)
        for _ in range(6):
            found.append([f().item(), b.grad.tolist()])
        return found

    assert trained(tj.compile) == trained(lambda f: f)


def test_two_tensors_on_memory_of_numpys() -> None:
    """One is written by an op that runs at once; the other, which is seen after it, shows what was written."""

    def trained(compile):
        found = []

        def step(x, y):
            y.scatter_(-1, y.argmax(-1, keepdim=True), 0.5)
            z = x * x
            return z, y.abs()

        f = compile(step)
        for i in range(6):
            x = tj.arange(6.0).reshape(2, 3) + i
            found.append([t.tolist() for t in f(x, tj.from_numpy(x.numpy()))])
        return found

    assert trained(tj.compile) == trained(lambda f: f)


def test_a_hook_that_comes_after_the_pass() -> None:
    """The pass is run again where what was matched is: a hook on a node of an earlier segment was not there the first time."""
    w, seen = tj.ones(3, 3, requires_grad=True), []

    def function(x, y):
        h = w.logsumexp(-1)
        y *= h  # what gets a history by that: the segment ends
        w.grad = None
        h.mean().backward()
        found = tj.stack([x, y], -1)
        h.register_hook(lambda g: seen.append(g.tolist()))
        return found

    f = tj.compile(function)
    for i in range(6):
        f(tj.full((2, 3), float(i)), tj.ones(2, 3))
    assert seen == []


def test_version_of_what_an_earlier_segment_has_made() -> None:
    def function(x):
        y = x.round()
        if y.sum().item() > 1e9:
            return y
        y.zero_()
        y.add_(1)
        return y

    f = tj.compile(function)
    assert [f(tj.full((3,), float(i)))._version for i in range(6)] == [2] * 6
    assert f.hits >= 3


def test_options_of_pytorchs_scripts() -> None:
    model, x = nn.Linear(3, 2), tj.ones(4, 3)
    expected = model(x)
    for options in (
        {"mode": "max-autotune"},
        {"fullgraph": True, "dynamic": False},
        {"backend": "inductor", "options": {"a": 1}},
    ):
        compiled = tj.compile(model, **options)
        for _ in range(4):
            assert tj.equal(compiled(x), expected)
        assert type(compiled).forward.hits > 0  # type: ignore[attr-defined]
    assert tj.compile(model, disable=True) is model
    assert tj.compile(disable=True)(model) is model
    with pytest.raises(TypeError, match="compile: there is no option 'fullgraf'"):
        tj.compile(model, fullgraf=True)
    with pytest.raises(ValueError, match="backend must be one of"):
        tj.compile(model, backend="tvm")


def test_modules_compile_in_place() -> None:
    model, x = nn.Linear(3, 2), tj.ones(4, 3)
    expected = model(x)
    assert model.compile(mode="default") is None
    for _ in range(4):
        assert tj.equal(model(x), expected)
    assert isinstance(model, nn.Linear) and type(model).forward.hits > 0  # type: ignore[attr-defined]
    assert list(model.state_dict()) == ["weight", "bias"]


def test_names_of_torch_compiler() -> None:
    seen = []

    @tj.compiler.disable
    def helper(x: tj.Tensor) -> tj.Tensor:
        seen.append(tj.compiler.is_compiling())
        return x * 2

    f = tj.compile(lambda x: helper(x) + 1, name="outer")
    for i in range(5):
        assert f(tj.full((2,), float(i))).tolist() == [2 * i + 1] * 2
    assert seen == [False] * 5 and f.hits > 0
    tj.compiler.reset()
    assert f.calls == 0 and not f.traces
    assert f(tj.ones(2)).tolist() == [3, 3]
