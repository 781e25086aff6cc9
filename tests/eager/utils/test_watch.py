"""Watching a network train: numbers against NumPy, which steps are looked at, that training stays the same, pictures."""

from __future__ import annotations

import gc
import json
import math
import re
import sys
import weakref
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.tolerances import assert_within, spread
from tapejit import nn
from tapejit.eager.nn.modules import activation
from tapejit.eager.optim.optimizer import POST_HOOKS, PRE_HOOKS
from tapejit.eager.utils import watch_report
from tapejit.utils import watch


def network() -> nn.Module:
    tj.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: Any, steps: int = 3, seed: int = 1) -> list[tj.Tensor]:
    generator = tj.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = tj.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def std(x: Any) -> float:
    return float(np.std(x, ddof=1))


# ---- numbers


def test_numbers_of_a_step() -> None:
    """Every number of one step, worked out by hand."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    seen = watch(model)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.5)
    x = tj.randn(6, 3) * 3
    hidden = model[1](model[0](x))
    seen.remove()

    seen = watch(model)
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    loss = (model(x) ** 2).sum()
    loss.backward()
    gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    optimizer.step()
    found = json.loads(json.dumps(seen.to_dict()))

    assert found["steps"] == [0]
    assert list(found["layers"]) == ["0", "1", "2"]
    h, out = hidden.detach().numpy(), model[2]
    tanh = found["layers"]["1"]
    assert (tanh["type"], tanh["shape"]) == ("Tanh", [6, 4])
    assert tanh["mean"][0] == pytest.approx(h.mean(), abs=1e-6)
    assert tanh["std"][0] == pytest.approx(std(h), rel=1e-5)
    assert tanh["saturated"][0] == pytest.approx((np.abs(h) > 0.97).mean())
    assert tanh["dead"][0] == pytest.approx((np.abs(h) > 0.97).all(0).mean())
    y = h @ before["2.weight"].T + before["2.bias"]
    back = 2 * y @ before["2.weight"]
    sizes = np.abs(h) @ np.abs(before["2.weight"]).T + np.abs(before["2.bias"])  # of what was added up to y
    sizes = (2 * sizes @ np.abs(before["2.weight"])).mean(dtype=np.float64)
    assert_within(tanh["grad_mean"][0], back.mean(dtype=np.float64), spread(sizes, back.size + 4 + 1 + 2))
    assert tanh["grad_std"][0] == pytest.approx(std(back), rel=1e-5)
    assert found["layers"]["0"]["saturated"] == [None]
    assert out.weight.shape == (2, 4)
    for name, p in found["parameters"].items():
        assert p["mean"][0] == pytest.approx(before[name].mean(), abs=1e-6)
        assert p["std"][0] == pytest.approx(std(before[name]), rel=1e-5)
        assert p["grad_std"][0] == pytest.approx(std(gradients[name]), rel=1e-5)
        assert p["grad_to_data"][0] == pytest.approx(std(gradients[name]) / std(before[name]), rel=1e-5)
        ratio = math.log10(std(0.5 * gradients[name]) / std(before[name]))
        assert p["update_to_data"][0] == pytest.approx(ratio, abs=1e-4)


def test_dead_units_of_relu() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    with tj.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(tj.tensor([1.0, -1.0, -1.0, -1.0]))
    seen = watch(model)
    model(tj.randn(5, 2)).sum().backward()
    relu = seen.to_dict()["layers"]["1"]
    assert relu["saturated"] == [0.75] and relu["dead"] == [0.75]
    assert "1 (ReLU): 75% of its units are dead for the whole batch" in seen.remarks()


@pytest.mark.parametrize(
    ("module", "values", "expected"),
    [
        (nn.Sigmoid(), [-9.0, 0.0, 9.0, 0.1], 0.5),
        (nn.ReLU6(), [-1.0, 3.0, 7.0, 8.0], 0.75),
        (nn.Hardtanh(-2, 2), [-1.0, 3.0, 1.5, -2.5], 0.5),
        (nn.Hardsigmoid(), [-4.0, 0.0, 4.0, 1.0], 0.5),
    ],
)
def test_flat_parts(module: nn.Module, values: list[float], expected: float) -> None:
    seen = watch(module)
    module(tj.tensor([values], requires_grad=True))
    assert seen.to_dict()["layers"][type(module).__name__]["saturated"] == [expected]


def test_channels_of_images_are_units() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU())
    with tj.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(tj.tensor([1.0, -1.0, 1.0]))
    seen = watch(model)
    model(tj.randn(2, 1, 5, 5))
    assert seen.to_dict()["layers"]["1"]["dead"] == [pytest.approx(1 / 3)]


def test_functional_activations_are_recognised_and_noted() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 4)

        def forward(self, x: tj.Tensor) -> tj.Tensor:
            return seen.note("squashed", tj.tanh(seen.note("inside", self.inner(x) * 100, kind="tanh")))

    model = Net()
    seen = watch(model)
    model(tj.randn(7, 3)).sum().backward()
    layers = seen.to_dict()["layers"]
    assert list(layers) == ["inner", "inside", "squashed"]
    assert layers["squashed"]["saturated"][0] > 0.5  # by the op that made it
    assert layers["inside"]["type"] == "tanh" and layers["inner"]["saturated"] == [None]
    assert layers["squashed"]["grad_mean"] == [1.0]
    assert any("squashed (Tensor): " in remark and "saturated" in remark for remark in seen.remarks())
    with pytest.raises(ValueError, match="kind 'gelu' is none of tanh"):
        seen.note("x", tj.ones(2), kind="gelu")

    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
    model[1].forward = lambda x: F.relu(x - 5)  # type: ignore[method-assign]
    seen = watch(model)
    model(tj.ones(2, 2, requires_grad=True))
    assert seen.to_dict()["layers"]["1"]["dead"] == [1.0]


def test_several_calls_in_a_step_count_together() -> None:
    layer = nn.Linear(2, 3)
    seen = watch(layer)
    x, y = tj.randn(4, 2), tj.randn(6, 2) + 5
    a, b = layer(x), layer(y)
    (a.sum() + 3 * b.sum()).backward()
    both = np.concatenate([a.detach().numpy(), b.detach().numpy()])
    found = seen.to_dict()["layers"]["Linear"]
    assert_within(found["mean"][0], both.mean(dtype=np.float64), spread(np.abs(both).mean(dtype=np.float64), both.size))
    assert found["std"][0] == pytest.approx(std(both), rel=1e-5)
    assert found["grad_mean"][0] == pytest.approx((4 * 1 + 6 * 3) / 10)


def test_a_layer_that_returns_several() -> None:
    class Pair(nn.Module):
        def forward(self, x: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
            return x * 2, x

    seen = watch(Pair())
    seen.model(tj.ones(2, 3))
    assert seen.to_dict()["layers"]["Pair"]["mean"] == [2.0]


def test_large_tensors_are_sampled_for_pictures_only() -> None:
    seen = watch(nn.Identity(), layers=nn.Identity)
    x = tj.randn(100, 1000)
    seen.model(x)
    step = seen.steps[-1]
    assert step.activations["Identity"].resolve()["mean"] == pytest.approx(float(x.mean()), abs=1e-6)
    sample = step.activations["Identity"].sample
    assert sample.shape == (4096,) and abs(sample.std() - 1) < 0.05


def test_half_precision() -> None:
    layer = nn.Linear(3, 4).bfloat16()
    seen = watch(layer)
    layer(tj.ones(2, 3, dtype=tj.bfloat16)).sum().backward()
    assert seen.to_dict()["layers"]["Linear"]["grad_mean"] == [1.0]
    assert "Linear" in seen.table()


def test_a_weight_without_spread_has_no_ratio() -> None:
    model = nn.LayerNorm(3)
    seen = watch(model)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
    (model(tj.randn(2, 3)) * tj.randn(2, 3)).sum().backward()
    optimizer.step()
    weight = seen.to_dict()["parameters"]["weight"]
    assert weight["std"] == [0.0] and weight["grad_to_data"] == [None] and weight["update_to_data"] == [None]


def test_what_is_not_finite_is_said() -> None:
    model = nn.Linear(2, 2)
    seen = watch(model)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
    (model(tj.tensor([[math.inf, 1.0]])) ** 2).sum().backward()
    optimizer.step()
    said = " ".join(seen.remarks())
    assert "Linear (Linear): its values are not finite" in said and "weight: its gradient is not finite" in said
    assert "nan" in seen.table() or "inf" in seen.table()


# ---- steps


def test_every() -> None:
    model = network()
    seen = watch(model, every=3)
    train(model, tj.optim.SGD(model.parameters(), lr=0.1), steps=8)
    assert seen.to_dict()["steps"] == [0, 3, 6]
    assert len(seen.to_dict()["parameters"]["0.weight"]["update_to_data"]) == 3
    assert len(seen.steps[0].activations["0"].sample) == 0  # only the newest keep values
    assert len(seen.steps[-1].activations["0"].sample) > 0


def test_evaluation_is_not_a_step() -> None:
    model = network()
    seen = watch(model)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        train(model, optimizer, steps=1)
        with tj.no_grad():
            model(tj.randn(100, 4))
    assert seen.to_dict()["steps"] == [0, 1]
    assert seen.to_dict()["layers"]["0"]["shape"] == [8, 6]


def test_one_of_two_optimizers() -> None:
    model, other = network(), nn.Linear(4, 4)
    seen = watch(model)
    train(other, tj.optim.SGD(other.parameters(), lr=0.1))
    assert seen.to_dict()["steps"] == []
    train(model, tj.optim.SGD(model.parameters(), lr=0.1), steps=2)
    assert seen.to_dict()["steps"] == [0, 1]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("every", [1, 2])
def test_two_optimizers_of_one_model_make_one_step(given: bool, every: int) -> None:
    model = network()
    first = tj.optim.SGD([model[0].weight], lr=0.1)
    second = tj.optim.Adam([p for p in model.parameters() if p is not model[0].weight])
    seen = watch(model, [first, second] if given else None, every=every)
    for _ in range(4):
        (model(tj.randn(3, 4)) ** 2).mean().backward()
        first.step()
        second.step()
    found = seen.to_dict()
    assert found["steps"] == list(range(0, 4, every))
    assert all(v is not None for p in found["parameters"].values() for v in p["grad_to_data"])


def test_updates_by_hand() -> None:
    model = network()
    seen = watch(model, optimizer=[])
    for _ in range(2):
        (model(tj.randn(3, 4)) ** 2).mean().backward()
        seen.before_step()
        with tj.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
                p.grad = None
        seen.after_step()
    found = seen.to_dict()
    assert found["steps"] == [0, 1]
    p = found["parameters"]["0.weight"]
    assert p["update_to_data"][1] == pytest.approx(math.log10(0.1 * p["grad_to_data"][1]), abs=1e-4)


def test_a_closure_computes_the_gradient_inside_the_step() -> None:
    model = network()
    seen = watch(model)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
    x = tj.randn(3, 4)

    def closure() -> tj.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    found = seen.to_dict()
    assert found["steps"] == [0, 1, 2]
    for p in found["parameters"].values():
        for ratio, update in zip(p["grad_to_data"], p["update_to_data"], strict=True):
            assert update == pytest.approx(math.log10(0.1 * ratio), abs=1e-3)


def test_accumulated_gradients_are_one_step() -> None:
    model = network()
    seen = watch(model)
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            (model(tj.randn(4, 4)) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen.to_dict()["steps"] == [0, 1]


# ---- a guest


def test_training_is_the_same() -> None:
    tracks = []
    for watched in (False, True):
        model = nn.Sequential(network(), nn.Dropout(0.3), nn.ReLU(inplace=True))
        seen = watch(model) if watched else None
        losses = train(model, tj.optim.AdamW(model.parameters(), lr=0.01), steps=5)
        tracks.append([float(loss) for loss in losses] + [float(p.sum()) for p in model.parameters()])
        assert (seen is not None) == watched
    assert tracks[0] == tracks[1]


def test_remove() -> None:
    model = network()
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as seen:
        train(model, optimizer, steps=2)
    train(model, optimizer, steps=2)
    seen.note("later", tj.ones(2))
    assert seen.to_dict()["steps"] == [0, 1]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_watch_lives_as_long_as_its_model() -> None:
    gc.collect()
    before = len(PRE_HOOKS), len(POST_HOOKS)
    model = network()
    watch(model)
    assert (len(PRE_HOOKS), len(POST_HOOKS)) == (before[0] + 1, before[1] + 1)
    train(model, tj.optim.SGD(model.parameters(), lr=0.1), steps=1)
    del model
    gc.collect()
    assert (len(PRE_HOOKS), len(POST_HOOKS)) == before


def test_no_graph_is_kept_alive() -> None:
    gc.disable()
    try:
        model = network()
        with watch(model):
            loss = (model(tj.randn(3, 4)) ** 2).mean()
            graph = weakref.ref(loss.grad_fn)
            loss.backward()
            del loss
            assert graph() is None
    finally:
        gc.enable()


def test_choosing_layers() -> None:
    assert list(watch(network(), layers=nn.Tanh).kinds) == ["1"]
    assert list(watch(network(), layers=(nn.Tanh, nn.ReLU)).kinds) == ["1", "3"]
    assert list(watch(network(), layers=lambda name, module: name == "4").kinds) == ["4"]
    assert list(watch(nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Dropout())).kinds) == ["1"]
    with pytest.raises(ValueError, match="no such layers"):
        watch(network(), layers=nn.Conv2d)


def test_refusals() -> None:
    with pytest.raises(TypeError, match="expected a Module, got function"):
        watch(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be a whole number"):
        watch(network(), every=0)
    with pytest.raises(TypeError, match="expected an Optimizer, got int"):
        watch(network(), [3])  # type: ignore[list-item]


# ---- showing


@pytest.fixture(scope="module")
def seen() -> Any:
    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 3))
    found = watch(model)
    train(model, tj.optim.SGD(model.parameters(), lr=0.1), steps=6)
    found.remove()
    return found


def test_table(seen: Any) -> None:
    lines = seen.table().splitlines()
    assert lines[0] == "step 5 (6 observed)"
    assert lines[2].split() == ["layer", "type", "shape", "mean", "std", "saturated", "dead", "grad", "mean", "grad", "std"]
    assert re.match(r"1      Tanh +8x30 .*%  ", lines[5])
    assert any(line.startswith("0.weight") and "30x4" in line for line in lines)
    assert str(seen) == seen.table()
    assert "5 layers, 6 parameters, 6 steps observed" in repr(seen)


def test_nothing_to_show_yet(tmp_path: Path) -> None:
    seen = watch(network())
    assert "nothing was seen yet" in seen.table() and seen.remarks() == []
    with pytest.raises(RuntimeError, match="nothing was seen yet"):
        seen.html(tmp_path / "x.html")


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.names.append(tag)
        for name, value in attributes:
            assert name not in ("src", "href"), f"the page refers to {value}"


def test_page(seen: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    seen.html(path)
    text = path.read_text(encoding="utf-8")
    page = Elements()
    page.feed(text)
    assert page.names.count("svg") >= 5 and page.names.count("table") == 2
    assert "prefers-color-scheme: dark" in text and "{{" not in text
    for title in ("Activations", "Gradients of activations", "Gradients of weights", "Update : data", "Saturation"):
        assert title in text


def test_every_activation_layer_is_listed() -> None:
    """In the file's own list, and by its public name: the report looks nowhere else."""
    own = [c for c in vars(activation).values() if isinstance(c, type) and c.__module__ == activation.__name__]
    layers = {c for c in own if issubclass(c, nn.Module) and c.__name__[0] != "_"}
    assert set(activation.ACTIVATIONS) == layers and {nn.ReLU, nn.Softmax2d} <= layers
    assert all(getattr(nn, c.__name__) is c for c in activation.ACTIVATIONS)


def test_pictures_show_activations_wherever_their_file_is(seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [[row[0] for row in picture.rows] for picture in watch_report.drawn(seen)]
    assert before[0] == ["1 Tanh", "3 ReLU"]  # and no linear layer
    for name in ("Tanh", "ReLU"):
        monkeypatch.setattr(getattr(nn, name), "__module__", "tapejit.eager.nn.modules.moved_away")
    monkeypatch.setattr(nn.Linear, "__module__", "tapejit.eager.nn.modules.linear.activation")
    assert [[row[0] for row in picture.rows] for picture in watch_report.drawn(seen)] == before


def test_names_are_escaped(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    seen = watch(model)
    seen.note("<script>", model(tj.ones(3, 2)))
    seen.html(tmp_path / "page.html")
    assert "<script>" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("dark", [False, True])
def test_svg(seen: Any, tmp_path: Path, dark: bool) -> None:
    path = tmp_path / "picture.svg"
    seen.plot(path, dark=dark)
    root = ElementTree.parse(path).getroot()
    curves = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(curves) == 3 + 2 + 2  # update ratios of three weights; saturation and dead units of two layers
    numbers = [float(v) for e in root.iter() for v in re.findall(r"-?\d+\.\d+", e.get("points", ""))]
    assert numbers and all(0 <= v < 2000 for v in numbers)
    assert ("#0f172a" in path.read_text()) == dark


def test_many_layers_fit(tmp_path: Path) -> None:
    model = nn.Sequential(*[module for _ in range(40) for module in (nn.Linear(3, 3), nn.Tanh())])
    seen = watch(model)
    model(tj.randn(4, 3)).sum().backward()
    seen.plot(tmp_path / "x.svg")
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    labels = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "1 Tanh" in labels and "79 Tanh" in labels and sum("Tanh" in (label or "") for label in labels) <= 16 * 4


def test_one_value_and_one_step_can_be_drawn(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    seen = watch(model)
    model(tj.zeros(1, 1)).sum().backward()
    seen.plot(tmp_path / "x.svg")
    seen.html(tmp_path / "x.html")
    assert "nan" not in (tmp_path / "x.svg").read_text()


def test_without_matplotlib(seen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        seen.plot(tmp_path / "x.png")


def test_with_matplotlib(seen: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        path = tmp_path / "x.png"
        seen.plot(path, dark=dark)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_compiled_training_is_watched_alike() -> None:
    def observed(compiled: bool) -> str:
        tj.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
        seen = tj.utils.watch(model)

        def step(x: tj.Tensor) -> tj.Tensor:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        function = tj.compile(step) if compiled else step
        for i in range(8):
            function(tj.full((3, 4), i * 0.1))
        assert not compiled or function.hits >= 4
        seen.remove()
        return str(seen)

    assert observed(True) == observed(False)
