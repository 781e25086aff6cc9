"""Module's rules against PyTorch's: each scenario runs with both libraries, and what it observes is compared."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import torch


def scenario_names(t: Any) -> Any:
    """Names of shared and tied members."""
    shared, block = t.nn.Linear(2, 2), t.nn.Module()
    block.one, block.two, block.none = shared, shared, None
    block.register_module("late", t.nn.Sequential(shared, t.nn.BatchNorm1d(2)))
    block.weight = shared.weight
    block.register_parameter("nothing", None)
    block.register_buffer("steps", t.zeros(1))
    block.register_buffer("hidden", t.zeros(1), persistent=False)
    return [
        [n for n, _ in block.named_modules()],
        [n for n, _ in block.named_modules(remove_duplicate=False)],
        [n for n, _ in block.named_modules(prefix="model")],
        [n for n, _ in block.named_children()],
        [n for n, _ in block.named_parameters()],
        [n for n, _ in block.named_parameters(remove_duplicate=False)],
        [n for n, _ in block.named_parameters(recurse=False, prefix="p")],
        [n for n, _ in block.named_buffers()],
        list(block.state_dict()),
        list(block.state_dict(prefix="x.")),
        [n for n in dir(block) if n in ("one", "steps", "weight", "nothing", "none")],
        len(list(block.modules())),
        len(list(block.children())),
        len(list(block.parameters())),
        repr(block),
    ]


def scenario_assignment(t: Any) -> Any:
    """Assign values of each kind over those of each kind."""
    found = []

    def attempt(change: Callable[[Any], Any]) -> None:
        module = t.nn.Module()
        module.parameter, module.child, module.plain = t.nn.Parameter(t.ones(2)), t.nn.ReLU(), 5
        module.register_buffer("buffer", t.zeros(2))
        module.register_buffer("loose", t.zeros(2), persistent=False)
        try:
            change(module)
        except Exception as error:
            found.append(type(error))
        else:
            found.append("fine")
        tables = (module._parameters, module._buffers, module._modules)
        found.append([sorted(table) for table in tables] + [sorted(module._non_persistent_buffers_set)])
        found.append(list(module.state_dict()))

    values: dict[str, Any] = {
        "number": 3, "none": None, "tensor": t.ones(2), "parameter": t.nn.Parameter(t.ones(2)), "module": t.nn.Tanh(),
        "buffer": t.nn.Buffer(t.ones(2)), "loose": t.nn.Buffer(t.ones(2), persistent=False),
    }  # fmt: skip
    for name in ("parameter", "child", "plain", "buffer", "loose", "fresh"):
        for value in values.values():
            attempt(lambda m, name=name, value=value: setattr(m, name, value))
            attempt(lambda m, name=name, value=value: m.register_buffer(name, value))
            attempt(lambda m, name=name, value=value: m.register_parameter(name, value))
            attempt(lambda m, name=name, value=value: m.add_module(name, value))
        attempt(lambda m, name=name: delattr(m, name))
    for name in ("", "a.b", 5, "forward"):
        attempt(lambda m, name=name: m.register_buffer(name, t.ones(1)))
        attempt(lambda m, name=name: m.register_parameter(name, None))
        attempt(lambda m, name=name: m.add_module(name, t.nn.ReLU()))
    leaf = t.nn.Parameter(t.ones(2))
    attempt(lambda m: m.register_parameter("made", leaf * 2))
    return found


def scenario_before_init(t: Any) -> Any:
    """Assignments before super().__init__()."""
    found = []
    values = (t.nn.Parameter(t.ones(1)), t.nn.ReLU(), t.ones(1), 3)
    for value in values:

        class Late(t.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self, value: Any = value) -> None:
                self.x = value
                super().__init__()

        try:
            found.append(repr(Late()))
        except Exception as error:
            found.append(type(error))
    for call in (lambda: t.nn.Module(1), lambda: t.nn.Module(a=1), lambda: t.nn.ReLU()(), lambda: t.nn.Module()(1)):
        try:
            found.append(call())
        except Exception as error:
            found.append(type(error))
    return found


def scenario_load(t: Any) -> Any:
    """Loading: keys and messages of what does not fit."""

    def model() -> Any:
        return t.nn.Sequential(
            OrderedDict(a=t.nn.Linear(2, 3), b=t.nn.Sequential(t.nn.BatchNorm1d(3), t.nn.Linear(3, 1, bias=False)))
        )

    full = model().state_dict()
    changes: list[dict[str, Any]] = [
        {"a.weight": None}, {"a.more": t.ones(1), "c.x": t.ones(1)}, {"b.1.weight": t.ones(4)}, {"a.weight": [1.0]},
        {"a.weight": None, "b.extra": t.ones(1), "b.1.weight": t.ones(2, 2)}, {"b.0.num_batches_tracked": None},
        {"b.0.num_batches_tracked": t.tensor([7])}, {"b.1.bias": t.ones(1)}, {"_extra_state": 1},
    ]  # fmt: skip
    found: list[Any] = [list(full), {k: v["version"] for k, v in full._metadata.items()}]
    for change in changes:
        for plain in (True, False):
            for strict in (True, False):
                state = dict(full) if plain else copy.copy(full)
                for key, value in change.items():
                    if value is None:
                        del state[key]
                    else:
                        state[key] = value
                if not plain:
                    state._metadata = full._metadata
                try:
                    result = model().load_state_dict(state, strict=strict)
                    found.append([str(result), result.missing_keys, result.unexpected_keys])
                except RuntimeError as error:
                    found.append(str(error).replace("tapejit.", "torch.").replace(" Tensor or", " torch.Tensor or"))
    target = model()
    before = list(target.parameters())
    target.a.weight.requires_grad_(False)
    target.load_state_dict(full, assign=True)
    found.append([p.requires_grad for p in target.parameters()])
    found.append([any(p is q for q in before) for p in target.parameters()])
    found.append(target.a.weight.data_ptr() == full["a.weight"].data_ptr())
    found.append(target.state_dict(keep_vars=True)["a.bias"].grad_fn is None)
    return found


def scenario_hooks(t: Any) -> Any:
    """Hooks: order, replacement, kwargs, removal, failures."""
    log: list[Any] = []

    class Add(t.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, y: Any = None, fail: bool = False) -> Any:
            log.append("forward")
            if fail:
                raise KeyError("failed")
            return x if y is None else x + y

    m = Add()
    handles = [
        m.register_forward_pre_hook(lambda m, a: log.append(("pre", len(a)))),
        m.register_forward_pre_hook(lambda m, a: (a[0] + 1,), prepend=True),
        m.register_forward_pre_hook(lambda m, a, k: ((a[0] * 2,), {**k, "y": t.ones(1)}), with_kwargs=True),
        m.register_forward_hook(lambda m, a, out: log.append(("post", len(a), out.tolist()))),
        m.register_forward_hook(lambda m, a, k, out: out * 10, with_kwargs=True, prepend=True),
        m.register_forward_hook(lambda m, a, out: log.append(("always", out is None)), always_call=True),
    ]
    log.append(m(t.zeros(1)).tolist())
    try:
        m(t.zeros(1), fail=True)
    except KeyError as error:
        log.append(error.args)
    handles[4].remove()
    handles[0].remove()
    log.append(m(t.zeros(1), y=t.ones(1)).tolist())
    with m.register_forward_hook(lambda m, a, out: out - 100):
        log.append(m(t.zeros(1)).tolist())
    log.append(m(t.zeros(1)).tolist())
    m.register_forward_pre_hook(lambda m, a, k: 5, with_kwargs=True)
    try:
        m(t.zeros(1))
    except RuntimeError as error:
        log.append(type(error))
    return log


def scenario_backward_hooks(t: Any) -> Any:
    """Backward hooks: what they see and what they may change."""
    log: list[Any] = []

    def shown(gradients: Any) -> list[Any]:
        return [None if g is None else g.tolist() for g in gradients]

    class Two(t.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, flag: Any, y: Any) -> Any:
            return x * 2, "text", x * y, y.detach()

    m = Two()
    m.register_full_backward_pre_hook(lambda m, g: log.append(("pre", shown(g))))
    m.register_full_backward_hook(lambda m, gi, go: log.append(("hook", shown(gi), shown(go))))
    x, y = t.tensor([1.0, 2.0], requires_grad=True), t.tensor([3.0, 4.0])
    a, _, b, c = m(x, None, y)
    (a.sum() + b.sum()).backward()
    log.append((x.grad.tolist(), c.requires_grad))
    x.grad = None
    a, *_ = m(x, None, y)
    a.sum().backward()
    log.append(x.grad.tolist())
    line = t.nn.Linear(1, 1, bias=False)
    line.weight.data.fill_(3.0)
    line.register_full_backward_hook(lambda m, gi, go: (gi[0] * 100,))
    line.register_full_backward_pre_hook(lambda m, go: (go[0] * 10,))
    z = t.ones(1, 1, requires_grad=True)
    line(z).sum().backward()
    log.append((z.grad.tolist(), line.weight.grad.tolist()))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        line.register_full_backward_hook(lambda m, gi, go: log.append(("no input", gi)))
        line.weight.grad = None
        try:
            line(t.ones(1, 1)).sum().backward()
        except (TypeError, RuntimeError) as error:
            log.append(type(error))
        log.append(any("firing" in str(w.message) for w in seen))
    return log


def scenario_modes(t: Any) -> Any:
    """train, eval, apply, zero_grad, conversions."""
    found: list[Any] = []
    m = t.nn.Sequential(OrderedDict(a=t.nn.Linear(2, 2), b=t.nn.Sequential(t.nn.BatchNorm1d(2), t.nn.Dropout())))
    order: list[str] = []
    m.apply(lambda x: order.append(type(x).__name__))
    found.append(order)
    m.b.eval()
    found.append([x.training for x in m.modules()])
    m.train()
    found.append([x.training for x in m.modules()])
    before = list(m.parameters())
    m(t.ones(2, 2)).sum().backward()
    m.double()
    found.append([any(p is q for q in before) for p in m.parameters()])
    found.append([str(x.dtype).rpartition(".")[2] for x in (*m.parameters(), *m.buffers())])
    found.append([str(p.grad.dtype).rpartition(".")[2] for p in m.parameters()])
    for change in ("half", "bfloat16", "float"):
        getattr(m, change)()
        found.append([str(x.dtype).rpartition(".")[2] for x in (*m.parameters(), *m.buffers())])
    m.to(t.float64)
    m.to("cpu", t.float16)
    found.append([str(x.dtype).rpartition(".")[2] for x in (*m.parameters(), *m.buffers())])
    m.to(t.ones(1)).to(device="cpu")
    found.append([str(x.dtype).rpartition(".")[2] for x in (*m.parameters(), *m.buffers())])
    for bad in (t.int64, "nowhere"):
        try:
            m.to(bad)
        except Exception as error:
            found.append(type(error))
    m.zero_grad(set_to_none=False)
    found.append([p.grad.abs().sum().item() for p in m.parameters()])
    m.zero_grad()
    found.append([p.grad for p in m.parameters()])
    m.requires_grad_(False)
    found.append([p.requires_grad for p in m.parameters()])
    for path in ("b.0", "", "b.2", "a.weight", "b.0.weight"):
        for get in (m.get_submodule, m.get_parameter, m.get_buffer):
            try:
                found.append(type(get(path)).__name__)
            except Exception as error:
                found.append(type(error))
    m.set_submodule("b.1", t.nn.ReLU())
    found.append(repr(m))
    copied = copy.deepcopy(m)
    copied.a.weight.data.fill_(1)
    found.append([type(copied.a.weight).__name__, copied.a.weight is m.a.weight, (m.a.weight == 1).all().item()])
    return found


def scenario_containers(t: Any) -> Any:
    """Containers as sequences and dictionaries."""
    L, found = t.nn.Linear, []
    s = t.nn.Sequential(L(1, 2), t.nn.ReLU(), L(2, 3))
    found += [repr(s[0:2]), repr(s[-1]), len(s), [type(x).__name__ for x in s]]
    s[1] = t.nn.Tanh()
    del s[0]
    s.append(t.nn.ReLU()).insert(0, t.nn.GELU())
    s.extend([t.nn.Sigmoid()])
    found += [repr(s), repr(s + t.nn.Sequential(t.nn.ELU())), repr(s * 2), repr(s.pop(-1)), repr(s)]
    s += t.nn.Sequential(t.nn.SELU())
    s *= 2
    found.append(repr(s))
    ml = t.nn.ModuleList([L(1, 1)])
    ml.append(L(1, 2))
    ml.insert(1, t.nn.ReLU())
    ml += [t.nn.Tanh()]
    found += [repr(ml), repr(ml[1:3]), repr(ml.pop(0)), len(ml), ml[0] in ml, repr(ml + t.nn.ModuleList([t.nn.ELU()]))]
    ml[0] = t.nn.Identity()
    found.append(list(ml.state_dict()))
    md = t.nn.ModuleDict([("x", L(1, 1)), ("y", t.nn.ReLU())])
    md["z"] = t.nn.Tanh()
    md.update({"x": t.nn.ELU()})
    found += [list(md), list(md.keys()), "y" in md, repr(md.pop("y")), repr(md), len(md), [k for k, _ in md.items()]]
    pl = t.nn.ParameterList([t.ones(1), t.zeros(2)])
    pl.append(t.ones(3)).extend([5])
    pl[0] = t.zeros(4)
    found += [[n for n, _ in pl.named_parameters()], len(pl), list(pl[1:3][0].shape), pl[-1], list(pl.state_dict())]
    pd = t.nn.ParameterDict({"b": t.ones(1), "a": t.ones(2)})
    pd["c"] = t.ones(3)
    other = pd | t.nn.ParameterDict({"d": t.ones(1)})
    found += [list(pd), list(other), list(reversed(pd)), pd.get("q", 7), list(pd.pop("a").shape), list(pd.state_dict())]
    found += [[k for k, _ in pd.items()], pd.popitem()[0], pd.setdefault("e", 1), list(pd.fromkeys("xy").keys())]
    calls: list[Callable[[], Any]] = [
        lambda: s[10], lambda: ml[5], lambda: md["none"], lambda: pd["none"], lambda: pl[9], lambda: ml(1), lambda: pl(1),
        lambda: pd(1), lambda: s + 1, lambda: s * 0, lambda: s * "a", lambda: ml.extend(5), lambda: md.update(5),
        lambda: md.update([1]), lambda: md.update([(1, 2, 3)]), lambda: pl.extend(t.ones(2)), lambda: s.insert(0, 5),
        lambda: pd.__setitem__(1, t.ones(1)), lambda: s.insert(99, t.nn.ReLU()), lambda: t.nn.Sequential(5),
        lambda: t.nn.ModuleDict({"a.b": t.nn.ReLU()}), lambda: t.nn.ModuleDict({"keys": t.nn.ReLU()}),
    ]  # fmt: skip
    for call in calls:
        try:
            found.append(repr(call()))
        except Exception as error:
            found.append(type(error))
    return found


def scenario_state_hooks(t: Any) -> Any:
    """Hooks around state_dict and load_state_dict, extra state."""
    log: list[Any] = []

    class Counter(t.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w, self.count = t.nn.Parameter(t.ones(1)), 3

        def get_extra_state(self) -> Any:
            return {"count": self.count}

        def set_extra_state(self, state: Any) -> None:
            self.count = state["count"]

    m = t.nn.Sequential(Counter())
    m.register_state_dict_pre_hook(lambda m, prefix, keep: log.append(("before", prefix, keep)))
    m.register_state_dict_post_hook(lambda m, d, prefix, meta: log.append(("after", list(d), prefix, meta)))
    m[0]._register_state_dict_hook(lambda m, d, prefix, meta: d.update(added=t.ones(1)))
    state = m.state_dict()
    log.append(list(state))
    other = t.nn.Sequential(Counter())
    other[0].count = 9
    other.register_load_state_dict_pre_hook(lambda m, d, *rest: (d.pop("added"), log.append(rest[2])))
    other[0]._register_load_state_dict_pre_hook(lambda d, prefix, *rest: log.append((prefix, list(d))))
    other.register_load_state_dict_post_hook(lambda m, keys: log.append((type(m).__name__, keys.missing_keys)))
    log.append(str(other.load_state_dict(state)))
    log.append(other[0].count)
    del state["0.w"]
    other[0].register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    log.append(str(other.load_state_dict(state)))
    del state["0._extra_state"]
    fresh = t.nn.Sequential(Counter())
    try:
        fresh.load_state_dict(state)
    except RuntimeError as error:
        log.append(str(error))
    return log


SCENARIOS = [value for name, value in sorted(globals().items()) if name.startswith("scenario_")]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__[9:])
def test_module_rules(scenario: Callable[[Any], Any]) -> None:
    mine, theirs = scenario(tj), scenario(torch)
    assert len(mine) == len(theirs)
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert a == b, f"observation {i}"
