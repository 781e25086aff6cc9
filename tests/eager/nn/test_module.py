"""nn.Module: attributes, the tree, hooks, state, conversions, the version number, and errors that say the module's path."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import tapejit as tj
from tapejit import nn


class Net(nn.Module):
    """A model with every kind of member, deep enough for paths."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.scale = nn.Parameter(tj.ones(1))
        self.register_buffer("steps", tj.zeros(1))

    def forward(self, x: tj.Tensor) -> tj.Tensor:
        x = self.encoder(x)
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: tj.Tensor) -> tj.Tensor:
        return x + self.linear(self.norm(x))


# ---- parameters


def test_parameter_is_a_leaf_on_the_same_memory() -> None:
    data = tj.ones(3)
    p = nn.Parameter(data)
    assert p.requires_grad and p.is_leaf and isinstance(p, tj.Tensor)
    data[0] = 5
    assert p.tolist() == [5, 1, 1] and p._version == data._version == 1
    assert type(p * 2) is tj.Tensor and type(p.data) is tj.Tensor and type(p.detach()) is tj.Tensor
    assert repr(nn.Parameter(tj.ones(1))) == "Parameter containing:\ntensor([1.], requires_grad=True)"
    assert not nn.Parameter(tj.ones(1), requires_grad=False).requires_grad
    assert nn.Parameter(nn.Parameter(tj.ones(2)) * 3).is_leaf
    assert nn.Parameter().shape == (0,)


def test_parameter_of_what_is_no_float_tensor() -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        nn.Parameter(tj.ones(2, dtype=tj.int64))
    assert nn.Parameter(tj.ones(2, dtype=tj.int64), requires_grad=False).dtype is tj.int64
    with pytest.raises(TypeError, match="expected a Tensor, got list"):
        nn.Parameter([1.0, 2.0])


def test_parameter_copies_and_pickles() -> None:
    p = nn.Parameter(tj.tensor([1.0, 2.0]))
    (p * 3).sum().backward()
    twin = copy.deepcopy(p)
    assert type(twin) is nn.Parameter and twin.requires_grad and twin.grad is None and twin.tolist() == [1, 2]
    twin.data.fill_(0)
    assert p.tolist() == [1, 2]
    again = pickle.loads(pickle.dumps(p))
    assert type(again) is nn.Parameter and again.requires_grad and again.tolist() == [1, 2]


# ---- members


def test_members_are_found_by_name_and_in_order() -> None:
    net = Net()
    assert [n for n, _ in net.named_children()] == ["encoder", "layers"]
    names = [n for n, _ in net.named_parameters()]
    assert names[:3] == ["scale", "encoder.0.weight", "encoder.0.bias"] and names[-1] == "layers.2.linear.bias"
    assert list(net.state_dict())[:2] == ["scale", "steps"]
    assert net.get_submodule("layers.2.linear") is net.layers[2].linear
    assert net.get_parameter("layers.0.norm.weight") is net.layers[0].norm.weight
    assert net.get_buffer("steps") is net.steps
    with pytest.raises(AttributeError, match="Block has no attribute `wrong`"):
        net.get_submodule("layers.1.wrong.x")
    assert {"encoder", "scale", "steps", "forward"} <= set(dir(net))
    assert not any(n[:1].isdigit() for n in dir(net.layers))


def test_tied_weights_are_listed_once_and_saved_twice() -> None:
    net = nn.Module()
    net.embedding, net.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    net.head.weight = net.embedding.weight
    assert [n for n, _ in net.named_parameters()] == ["embedding.weight"]
    assert list(net.state_dict()) == ["embedding.weight", "head.weight"]
    net.double()
    assert net.head.weight is net.embedding.weight and net.head.weight.dtype is tj.float64
    twin = copy.deepcopy(net)
    assert twin.head.weight is twin.embedding.weight


def test_buffers_by_assignment() -> None:
    m = nn.Module()
    m.register_buffer("kept", tj.zeros(2))
    m.register_buffer("loose", tj.zeros(2), persistent=False)
    m.kept, m.loose = tj.ones(2), tj.ones(2)
    m.wrapped = nn.Buffer(tj.ones(1), persistent=False)
    assert [n for n, _ in m.named_buffers()] == ["kept", "loose", "wrapped"] and list(m.state_dict()) == ["kept"]
    assert m.kept.tolist() == [1, 1]
    with pytest.raises(TypeError, match=r"cannot assign 'int' as buffer 'kept' \(tapejit.nn.Buffer, tapejit.Tensor or None"):
        m.kept = 5
    m.kept = None
    assert list(m.state_dict()) == []


def test_assignment_errors() -> None:
    m = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"cannot assign 'tapejit.FloatTensor' as parameter 'weight' \(tapejit.nn.Parameter or"):
        m.weight = tj.ones(2, 2)
    with pytest.raises(KeyError, match="attribute 'forward' already exists"):
        m.register_buffer("forward", tj.ones(1))
    with pytest.raises(ValueError, match="Cannot assign non-leaf Tensor to parameter 'made'"):
        m.register_parameter("made", _non_leaf())
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'wight'"):
        m.wight  # noqa: B018
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        nn.Linear(1, 2, colour=3)


def _non_leaf() -> nn.Parameter:
    p = nn.Parameter(tj.ones(1), requires_grad=False)
    p.mul_(tj.ones(1, requires_grad=True))
    return p


def test_other_base_classes() -> None:
    class Mixin:
        def __init__(self, colour: str) -> None:
            self.colour = colour

    class Both(nn.Module, Mixin):
        call_super_init = True

    assert Both("red").colour == "red"


# ---- errors say where


def test_error_says_the_path() -> None:
    net = Net()
    net.layers[2].linear = nn.Linear(5, 4)
    with pytest.raises(RuntimeError) as info:
        net(tj.ones(2, 4))
    assert str(info.value).endswith(" (in layers.2.linear: Linear(in_features=5, out_features=4, bias=True))")
    assert str(info.value).count("(in ") == 1


def test_error_in_a_module_of_its_own() -> None:
    with pytest.raises(RuntimeError, match=r" \(in Linear\(in_features=3, out_features=2, bias=True\)\)$"):
        nn.Linear(3, 2)(tj.ones(2, 4))
    with pytest.raises(ValueError, match=r"expected 4D input \(got 2D input\) \(in 1: BatchNorm2d\(3, .*\)\)$"):
        nn.Sequential(nn.Identity(), nn.BatchNorm2d(3))(tj.ones(2, 3))


def test_error_in_an_expression_of_a_forward_names_the_class_only() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, x: tj.Tensor) -> tj.Tensor:
            return self.a(x) + tj.ones(3)

    with pytest.raises(RuntimeError, match=r" \(in 0: Sum\)$"):
        nn.Sequential(Sum())(tj.ones(1, 2))


def test_errors_of_users_are_left_alone() -> None:
    class Own(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("mine")

    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return {}["key"]

    for module, kind, message in ((Own(), ValueError, "mine"), (Odd(), KeyError, "'key'")):
        with pytest.raises(kind) as info:
            nn.Sequential(module)(1)
        assert str(info.value) == message


def test_path_through_modules_that_are_not_registered() -> None:
    inner = nn.Sequential(nn.Linear(3, 3))

    class Calls(nn.Module):
        def forward(self, x: Any) -> Any:
            return inner(x)

    with pytest.raises(RuntimeError, match=r"\(in 0: Linear\("):
        Calls()(tj.ones(1, 2))


def test_missing_arguments_and_forward() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'input' \(in Linear"):
        nn.Linear(1, 1)()
    with pytest.raises(NotImplementedError, match=r'Module \[ModuleList\] is missing the required "forward" function'):
        nn.ModuleList()(1)


# ---- the version number


def test_every_change_bumps_the_version_number() -> None:
    m = nn.Sequential(nn.Linear(2, 2))
    m.register_buffer("buffer", tj.ones(1))

    def add_hook() -> None:
        m.handle_ = m.register_forward_hook(lambda *a: None)

    changes = [
        lambda: setattr(m, "plain", 1), lambda: setattr(m, "plain", 1), lambda: setattr(m, "p", nn.Parameter(tj.ones(1))),
        lambda: setattr(m, "buffer", tj.ones(1)), lambda: setattr(m, "child", nn.ReLU()), lambda: delattr(m, "child"),
        m.train, m.eval, add_hook, lambda: m.handle_.remove(), lambda: m.append(nn.ReLU()), lambda: m.pop(-1), m.double,
        lambda: m.register_parameter("q", None), lambda: m.register_buffer("b2", None), lambda: m.add_module("x", None),
        lambda: m.load_state_dict(m.state_dict(), assign=True),
    ]  # fmt: skip
    for i, change in enumerate(changes):
        before = m._version_number
        change()
        assert m._version_number > before, f"change {i}"
    d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.ReLU(), "c": nn.ReLU()})
    for change in (lambda: d.pop("a"), lambda: d.__delitem__("b"), d.clear):
        before = d._version_number
        change()
        assert d._version_number > before


def test_a_call_does_not_bump_it() -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(), nn.utils.weight_norm(nn.Linear(2, 2)))
    before = [x._version_number for x in m.modules()]
    m(tj.ones(3, 2)).sum().backward()
    m.zero_grad()
    assert [x._version_number for x in m.modules()] == before


# ---- hooks


def test_hooks_of_all_modules() -> None:
    seen: list[Any] = []
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    register = nn.modules.module
    handles = [
        register.register_module_forward_pre_hook(lambda m, a: seen.append(("before", type(m).__name__))),
        register.register_module_forward_hook(lambda m, a, out: seen.append(("after", type(m).__name__))),
    ]
    model(tj.ones(1, 2))
    for handle in handles:
        handle.remove()
    model(tj.ones(1, 2))
    assert [name for what, name in seen if what == "before"] == ["Sequential", "Linear", "ReLU"]
    assert [name for what, name in seen if what == "after"] == ["Linear", "ReLU", "Sequential"]


def test_backward_hooks_of_all_modules() -> None:
    seen: list[str] = []
    handle = nn.modules.module.register_module_full_backward_hook(lambda m, gi, go: seen.append(type(m).__name__))
    with handle:
        x = tj.ones(1, 2, requires_grad=True)
        nn.Sequential(nn.Linear(2, 2), nn.Tanh())(x).sum().backward()
    assert seen == ["Tanh", "Linear", "Sequential"]


def test_backward_hooks_leave_the_gradients_right() -> None:
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = tj.randn(5, 3)
    model(x).pow(2).sum().backward()
    expected = [p.grad.tolist() for p in model.parameters()]
    model.zero_grad()
    norms: dict[str, float] = {}
    for name, layer in model.named_modules():
        layer.register_full_backward_hook(lambda m, gi, go, name=name: norms.update({name: go[0].norm().item()}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first layer's input wants no gradient
        model(x).pow(2).sum().backward()
    assert [p.grad.tolist() for p in model.parameters()] == expected
    assert set(norms) == {"", "0", "1", "2"} and norms[""] == norms["2"]


def test_always_called_hook_that_fails_does_not_hide_the_error() -> None:
    m = nn.Linear(2, 2)

    def fail(*args: Any) -> None:
        raise KeyError("hook")

    m.register_forward_hook(fail, always_call=True)
    with pytest.warns(UserWarning, match="silenced"), pytest.raises(RuntimeError, match="in Linear"):
        m(tj.ones(1, 3))


# ---- state


def test_state_dict_shows_the_parameters_memory() -> None:
    m = nn.Linear(2, 2)
    state = m.state_dict()
    assert not state["weight"].requires_grad
    state["weight"].fill_(7)
    assert m.weight.tolist() == [[7, 7], [7, 7]]
    assert m.state_dict(keep_vars=True)["weight"] is m.weight
    assert state._metadata == {"": {"version": 1}}


def test_nothing_is_loaded_unless_everything_fits() -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = {k: v.tolist() for k, v in m.state_dict().items()}
    wrong = {**{k: tj.zeros(2, 2) for k in ("0.weight", "1.weight")}, "0.bias": tj.zeros(2), "1.bias": tj.zeros(3)}
    for state in (wrong, {**wrong, "1.bias": tj.zeros(2), "more": tj.zeros(1)}, {"0.weight": tj.zeros(2, 2)}):
        with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Sequential"):
            m.load_state_dict(state)
        assert {k: v.tolist() for k, v in m.state_dict().items()} == before
    with pytest.raises(RuntimeError, match=r"size mismatch for 1.bias: copying a param with shape tapejit.Size\(\[3\]\)"):
        m.load_state_dict(wrong, strict=False)
    with pytest.raises(TypeError, match="dict-like"):
        m.load_state_dict([1])


def test_loading_keeps_objects_and_assigning_takes_tensors() -> None:
    m = nn.Linear(2, 2)
    weight, given = m.weight, {"weight": tj.ones(2, 2, dtype=tj.float64), "bias": tj.zeros(2)}
    assert repr(m.load_state_dict(given)) == "<All keys matched successfully>"
    assert m.weight is weight and m.weight.dtype is tj.float32 and m.weight.tolist() == [[1, 1], [1, 1]]
    m.load_state_dict(given, assign=True)
    assert m.weight is not weight and m.weight.dtype is tj.float64 and m.weight.requires_grad
    assert m.weight.data_ptr() == given["weight"].data_ptr()
    found = m.load_state_dict({"bias": tj.ones(2), "x": tj.ones(1)}, strict=False)
    assert found.missing_keys == ["weight"] and found.unexpected_keys == ["x"]


def test_loading_under_a_subclass_that_renames_keys() -> None:
    class Renamed(nn.Linear):
        def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "kernel")
            super()._load_from_state_dict(state_dict, prefix, *rest)

    m = nn.Sequential(Renamed(1, 1))
    m.load_state_dict({"0.kernel": tj.full((1, 1), 5.0), "0.bias": tj.zeros(1)})
    assert m[0].weight.item() == 5


def test_post_hooks_see_what_was_loaded() -> None:
    m = nn.Linear(1, 1)
    seen: list[float] = []
    m.register_load_state_dict_post_hook(lambda m, keys: seen.append(m.weight.item()))
    m.load_state_dict({"weight": tj.full((1, 1), 5.0), "bias": tj.zeros(1)})
    assert seen == [5.0]


def test_pickle_and_deepcopy_of_models() -> None:
    net = Net()
    x = tj.randn(2, 4)
    net(x).sum().backward()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin(x).tolist() == net(x).tolist()
        assert [n for n, _ in twin.named_parameters()] == [n for n, _ in net.named_parameters()]
        assert all(type(p) is nn.Parameter and p.requires_grad for p in twin.parameters())
        twin.scale.data.fill_(5)
        assert net.scale.item() == 1


# ---- conversions


def test_conversions_keep_parameters_for_optimizers() -> None:
    net = Net()
    before = list(net.parameters())
    net.to(tj.float64)
    assert all(p is q for p, q in zip(net.parameters(), before, strict=True))
    assert net(tj.ones(1, 4, dtype=tj.float64)).dtype is tj.float64
    assert net.half().scale.dtype is tj.float16 and net.bfloat16().steps.dtype is tj.bfloat16 and net.float().scale.is_leaf
    assert net.type(tj.float64).steps.dtype is tj.float64
    with pytest.raises(TypeError, match="only accepts floating point dtypes"):
        net.to(tj.int64)


def test_a_conversion_that_changes_nothing_leaves_the_tape_alone() -> None:
    m = nn.Linear(2, 2)
    out = m(tj.ones(1, 2)).pow(2).sum()
    m.to("cpu").float()
    out.backward()
    assert m.weight.grad is not None


def test_zero_grad_of_gradients_with_history() -> None:
    m = nn.Linear(2, 1)
    m(tj.ones(1, 2)).pow(2).sum().backward(create_graph=True)
    m.zero_grad(set_to_none=False)
    assert m.weight.grad.tolist() == [[0, 0]] and not m.weight.grad.requires_grad
    m.zero_grad()
    assert m.weight.grad is None


def test_train_wants_a_bool() -> None:
    with pytest.raises(ValueError, match="boolean"):
        nn.ReLU().train(1)


def test_to_empty_and_set_submodule() -> None:
    net = Net()
    net.to_empty(device="cpu")
    net.set_submodule("layers.1.linear", nn.Identity())
    assert isinstance(net.layers[1].linear, nn.Identity)
    with pytest.raises(AttributeError, match="no attribute `new`"):
        net.set_submodule("layers.1.new", nn.Identity(), strict=True)


def test_aliases_of_files() -> None:
    from tapejit.nn.modules.batchnorm import _BatchNorm
    from tapejit.nn.modules.container import Sequential
    from tapejit.nn.modules.linear import Linear
    from tapejit.nn.modules.module import Module
    from tapejit.nn.modules.utils import _pair

    assert Linear is nn.Linear and Sequential is nn.Sequential and Module is nn.Module and _pair(3) == (3, 3)
    assert isinstance(nn.BatchNorm2d(1), _BatchNorm) and nn.modules.Linear is nn.Linear
