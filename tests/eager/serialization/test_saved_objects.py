"""Whole objects in checkpoints: modules, optimizers, schedulers; what is refused, on both sides."""

import collections
import dataclasses
import enum
import functools
import io
import json
import pickle
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import tapejit as tj
from tapejit import nn
from tapejit.eager.serialization import safetensors, saved_objects
from tapejit.eager.serialization.safetensors import FileError
from tapejit.nn import functional as F


class Mode(enum.Enum):
    TIED = 1


@dataclasses.dataclass
class Config:
    width: int = 4
    mode: Mode = Mode.TIED
    rates: tuple = (0.1, float("inf"))


Span = collections.namedtuple("Span", "start stop")


class Bag(dict):
    """A dict whose keys are attributes."""

    __getattr__ = dict.__getitem__


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(5, config.width)
        self.body = nn.Sequential(nn.Linear(config.width, config.width), nn.BatchNorm1d(config.width), nn.GELU())
        self.again = self.body
        self.cell = nn.LSTM(config.width, config.width, num_layers=2)
        self.head = nn.Linear(config.width, 5, bias=False)
        self.head.weight = self.embed.weight
        self.activation = F.relu
        self.scaled = functools.partial(F.leaky_relu, negative_slope=0.3)
        self.own = self.double
        self.register_buffer("mask", tj.tril(tj.ones(3, 3)), persistent=False)
        self.plain = {"list": [1, (2, "x")], "span": Span(1, 2), "seen": collections.deque([1, 2], maxlen=3)}
        self.table = np.arange(3)

    def double(self, x):
        return 2 * x

    def forward(self, tokens):
        x = self.scaled(self.activation(self.body(self.embed(tokens))))
        return self.own(self.head(self.cell(x)[0])) + self.mask.sum()


def saved(value, **options):
    file = io.BytesIO()
    tj.save(value, file)
    file.seek(0)
    return tj.load(file, **options)


def net():
    tj.manual_seed(0)
    model = Net(Config())
    for parameter in model.cell.parameters():
        parameter.requires_grad_(False)
    return model


def test_a_module_comes_back_as_it_was():
    before = net()
    after = saved(before, weights_only=False)
    assert type(after) is Net and after is not before and repr(after) == repr(before)
    tokens = tj.tensor([0, 3, 4])
    before.eval(), after.eval()
    assert tj.equal(before(tokens), after(tokens))
    assert after.head.weight is after.embed.weight and after.again is after.body
    assert [p.requires_grad for p in after.parameters()] == [p.requires_grad for p in before.parameters()]
    assert list(after.state_dict()) == list(before.state_dict()) and "mask" not in after.state_dict()
    assert after.config == before.config and after.config.mode is Mode.TIED
    assert after.plain == before.plain and type(after.plain["span"]) is Span and after.plain["seen"].maxlen == 3
    assert after.activation is F.relu and after.own.__self__ is after and after.table.tolist() == [0, 1, 2]
    assert isinstance(after.body[0].weight, nn.Parameter) and not after.training


def test_a_module_trains_on():
    before = net()
    after = saved(before, weights_only=False).train()
    optimizer = tj.optim.SGD(after.parameters(), lr=0.1)
    first = F.cross_entropy(after(tj.tensor([0, 3, 4])), tj.tensor([1, 2, 3]))
    first.backward()
    optimizer.step()
    assert F.cross_entropy(after(tj.tensor([0, 3, 4])), tj.tensor([1, 2, 3])) < first
    assert tj.equal(before.embed.weight, net().embed.weight)


def test_tensors_have_the_names_of_the_state_dict(tmp_path):
    tj.save(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert set(header) - {"__metadata__"} == set(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict())


def steps(model, optimizer, scheduler, count):
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = ((model(tj.ones(2, 3)) - 1) ** 2).sum()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def test_a_whole_run_goes_on():
    tj.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = tj.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = tj.optim.lr_scheduler.SequentialLR(
        optimizer,
        [tj.optim.lr_scheduler.LinearLR(optimizer), tj.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)],
        milestones=[2],
    )
    steps(model, optimizer, scheduler, 3)
    run = saved({"optimizer": optimizer, "model": model, "scheduler": scheduler, "epoch": 3}, weights_only=False)
    assert run["optimizer"].param_groups[0]["params"][0] is run["model"].weight
    assert run["scheduler"].optimizer is run["optimizer"]
    assert steps(run["model"], run["optimizer"], run["scheduler"], 4) == steps(model, optimizer, scheduler, 4)
    run["optimizer"].add_param_group({"params": [nn.Parameter(tj.zeros(1))]})
    run["optimizer"].param_groups[-1]["params"][0].grad = tj.ones(1)
    run["optimizer"].step()


def test_the_default_refuses_objects_and_says_what_to_do(tmp_path):
    tj.save({"model": nn.Linear(2, 2)}, tmp_path / "f")
    with pytest.raises(pickle.UnpicklingError, match=r"(?s)Weights only load failed.*tapejit\.nn\.Linear.*weights_only=False"):
        tj.load(tmp_path / "f")
    with pytest.raises(FileError, match="Weights only load failed"):
        tj.load(tmp_path / "f", weights_only=True)
    assert isinstance(tj.load(tmp_path / "f", weights_only=False)["model"], nn.Linear)


def test_the_default_imports_nothing(tmp_path):
    structure = json.dumps({"object": 0, "class": "tests_no_such_module:Thing", "state": None})
    for options, error in (({}, FileError), ({"weights_only": False}, ModuleNotFoundError)):
        with pytest.raises(error):
            tj.load(forged(structure), **options)
    assert "antigravity" not in sys.modules
    with pytest.raises(FileError):
        tj.load(forged(json.dumps({"name": "antigravity:fly"})))
    assert "antigravity" not in sys.modules


def forged(structure):
    """A file with a structure that `save` did not write."""
    file = io.BytesIO()
    safetensors.write(file, {}, {"tapejit.structure": structure})
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "entry",
    [
        {"object": 0},
        {"object": 0, "class": "math:sqrt", "state": None},
        {"object": 0, "class": "collections:OrderedDict", "state": {"dict": [["a", {"tensor": "none"}]]}},
        {"method": [{"dict": []}, "none"]},
        {"member": ["math:sqrt", "A"]},
        {"named": ["math:sqrt", []]},
        {"list": 3},
        {"deque": []},
    ],
    ids=str,
)
def test_forged_objects_are_clear_errors(entry):
    for trust in (True, False):
        with pytest.raises(FileError):
            tj.load(forged(json.dumps(entry)), weights_only=trust)


def test_a_forged_class_of_a_container():
    entry = json.dumps({"dict": [], "class": "collections:deque", "state": None})
    assert tj.load(forged(entry)) == {}
    with pytest.raises(FileError, match="deque is no dict"):
        tj.load(forged(entry), weights_only=False)


class Counted:
    made = 0

    def __init__(self):
        Counted.made += 1


def test_no_constructor_runs():
    thing = Counted()
    assert isinstance(saved(thing, weights_only=False), Counted) and Counted.made == 1


def test_safe_globals():
    model = nn.Sequential(nn.Linear(2, 2))
    with tj.serialization.safe_globals([nn.Sequential, nn.Linear]):
        assert isinstance(saved(model)[0], nn.Linear)
        assert tj.serialization.get_safe_globals() == [nn.Sequential, nn.Linear]
    with pytest.raises(FileError, match="Sequential"):
        saved(model)
    tj.serialization.add_safe_globals([nn.Linear])
    try:
        assert isinstance(saved(model[0]), nn.Linear)
    finally:
        tj.serialization.clear_safe_globals()


class Holder(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.inner = nn.Sequential(nn.Identity())
        self.inner[0].value = value


def local_class():
    class Local:
        pass

    return Local()


@pytest.mark.parametrize(
    "make", [lambda: lambda x: x, lambda: sys.__stdout__, threading.Lock, local_class, lambda: (x for x in [])]
)
def test_what_cannot_be_stored_is_named_by_its_path(make):
    with pytest.raises(TypeError, match=r"cannot store a \w+ \(at 'net\.inner\.0\.value'\)"):
        saved({"net": Holder(make())})


def test_parametrized_modules_are_refused_as_in_pytorch():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"only supported through state_dict\(\)"):
        saved(layer)


def test_lists_that_hold_themselves():
    values = []
    values.append(values)
    with pytest.raises(ValueError, match="holds itself"):
        saved(values)


def test_objects_that_hold_each_other():
    first, second = nn.Identity(), nn.Identity()
    first.__dict__["friend"], second.__dict__["friend"] = second, first
    after = saved(first, weights_only=False)
    assert after.friend.friend is after and after.friend is not after


def test_containers_of_other_classes():
    values = {
        "count": collections.Counter("aab"),
        "lists": collections.defaultdict(list, a=[1]),
        "bag": Bag(x=1),
        "range": range(1, 9, 2),
        "complex": 1 + 2j,
    }
    plain = saved(values)
    assert plain == values and type(plain["bag"]) is dict and type(plain["count"]) is collections.Counter
    assert plain["lists"]["new"] == []
    trusted = saved(values, weights_only=False)
    assert type(trusted["bag"]) is Bag and trusted["bag"].x == 1


def hook(module, args, output):
    return output + 1


def test_hooks_come_along_and_keep_their_keys():
    model = nn.Identity()
    model.register_forward_hook(hook)
    after = saved(model, weights_only=False)
    other = after.register_forward_hook(hook)
    assert after(tj.zeros(1)).item() == 2 and len(after._forward_hooks) == 2
    other.remove()
    assert after(tj.zeros(1)).item() == 1


def test_map_location_reaches_into_objects():
    seen = []
    saved(nn.Linear(2, 2), weights_only=False, map_location=lambda tensor, where: seen.append(where))
    assert seen == ["cpu", "cpu"]


def test_classes_of_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        import tapejit as torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(2, 2)

        if sys.argv[1] == "save":
            torch.save(Net(), sys.argv[2])
        else:
            print(torch.load(sys.argv[2], weights_only=False))
        """)
    )
    for action in ("save", "load"):
        done = subprocess.run([sys.executable, str(script), action, str(tmp_path / "net.pt")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Net(\n  (fc): Linear(")
    with pytest.raises(AttributeError, match=r"Can't get attribute 'Net' on <module '(pytest\.)?__main__'"):
        tj.load(tmp_path / "net.pt", weights_only=False)


def test_files_from_before_the_packages_were_moved() -> None:
    """Written when the package was flat: classes and functions are stored under module paths that no longer exist."""
    saved = tj.load(Path(__file__).parent / "data" / "flat_layout.tj", weights_only=False)
    q = tj.ones(2, 1, 4)
    np.testing.assert_allclose(saved["model"].eval()(tj.ones(5, 3)).detach().numpy(), saved["out"].numpy(), atol=1e-5)
    np.testing.assert_allclose(saved["attention"](q, q, q)[0].detach().numpy(), saved["attended"].numpy(), atol=1e-5)
    assert type(saved["optimizer"]) is tj.optim.AdamW and type(saved["scaler"]) is tj.amp.GradScaler
    np.testing.assert_allclose(saved["scheduler"].get_last_lr(), 0.1 * (1 + np.cos(np.pi / 10)) / 2)
    assert saved["distribution"].sample().shape == (2,)


def test_moved_names_must_be_unique_and_the_librarys() -> None:
    assert saved_objects.find("tapejit.eager.long.gone:Linear") is tj.nn.Linear
    with pytest.raises(ModuleNotFoundError):
        saved_objects.find("somebody.elses:Linear")
    with pytest.raises(ModuleNotFoundError):
        saved_objects.find("tapejit.eager.long.gone:NoSuchThing")
