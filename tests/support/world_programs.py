"""Random programs that skip Python, in a world that changes between their calls.

A program is made of lines that a purity proof accepts: closures, helpers, containers, identity tests, `isinstance`, in-place
ops, training steps, detached results. Between calls, things happen outside of it: `.data` is pointed elsewhere, views and
aliases are taken and passed, parameters are frozen and exchanged, attributes, lists, classes, hooks, wrappers, gradients and
the random state change. Everything is compared with eager execution: results, errors, text, identities, versions, state.
"""

from __future__ import annotations

import contextlib
import io
import linecache
from random import Random
from typing import Any

import tapejit as tj

from support.random_programs import where
from support.traced import seen

PRELUDE = """\
import functools
from types import SimpleNamespace
import numpy as np
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn

def data(seed, *shape):
    return tj.tensor((np.random.default_rng(seed).standard_normal(shape) * 2).round(2).astype("float32"))

class Small:
    factor = 1.0
    def __init__(self):
        self.scale = 2.0
        self.flag = False
    def apply(self, h):
        return h * self.scale

class Large(Small):
    factor = 3.0

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.gain = 1.5
        self.register_buffer("shift", tj.ones(3))
    def forward(self, h):
        h = self.inner(h) * self.gain
        if self.training:
            h = h + self.shift
        return h

def counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        S.notes.append(function.__name__)
        return function(*args, **kwargs)
    return wrapper

def attempt(lines):
    try:
        exec(lines, globals())
    except Exception as error:
        print("refused:", type(error).__name__)

"""

SETUP = """\
S = SimpleNamespace(notes=[])
S.w = data(100, 3, 3).requires_grad_()
S.b = data(101, 3).requires_grad_()
S.t = data(102, 3)
S.u = {u}
S.flat = tj.zeros(12)
S.cfg = Small()
S.opts = {{"shift": 0.5, "on": True}}
S.nums = [1.0, 0.5]
S.net = {net}
S.opt = tj.optim.{opt}
helper_scale = 1.25

def make_helper(scale):
    def helper(h, *, more=0.0):
        return h * scale + more
    return helper

helper = make_helper(0.75)
"""
ALIASES = ("data(103, 3)", "data(103, 3)", "S.t", "S.t.detach()", "S.t[:]", "S.b.detach()", "tj.from_numpy(S.t.numpy())")
NETS = ("Net()", "nn.Linear(3, 3)", "nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))", "nn.LayerNorm(3)")
OPTIMIZERS = (
    "SGD([S.w, S.b], lr=0.1)", "SGD([S.w, S.b, *S.net.parameters()], lr=0.1, momentum=0.9)", "Adam([S.w, S.b], lr=0.05)",
    "AdamW([S.w, *S.net.parameters()], lr=0.05)", "RMSprop([S.w, S.b], lr=0.02)",
)  # fmt: skip
# Lines of the function. `h` is a float tensor of shape [n, 3] or [3].
LINES = (
    "h = h @ S.w", "h = h + S.b", "h = h * S.t", "h = h - S.u", "h = S.net(h)", "h = helper(h)", "h = helper(h, more=0.1)",
    "h = S.cfg.apply(h)", "h = h * S.cfg.scale", "h = h * S.cfg.factor", "h = h * helper_scale", "h = h + S.opts['shift']",
    "h = h * (2 if isinstance(S.cfg, Large) else 1)", "h = h * (3 if x is S.t else 1)", "h = h * (3 if x is y else 1)",
    "h = h * S.t.shape[0]", "h = h + tj.ones_like(S.t).sum()", "h = h.to(S.t.dtype)", "h = h + S.t.numel()",
    "for v in S.nums: h = h * v", "h = sum([h * v for v in S.nums])", "if S.cfg.flag: h = h * 2",
    "if S.opts['on']: h = h + 1", "S.t.add_(0.5)", "S.t.mul_(0.9).add_(h.detach().mean())", "S.u.mul_(0.75)", "S.u.add_(S.t)",
    "y.add_(1)", "y.mul_(x.mean())", "h = h + y", "h = h * x.mean()", "h = F.relu(h)", "h = tj.tanh(h)",
    "h = F.dropout(h, 0.25)", "h = h + tj.rand(3)", "h = h.detach()", "h = h[:1] + h", "h = (h > 0) * h", "h = 1 - h",
    "h = h / 2", "with tj.no_grad(): S.flat[:3].add_(h.detach().mean())", "h, g = h * 2, h + 1",
    "h = h + (S.net.training * 1.0)",
)  # fmt: skip
TRAIN = (
    ["loss = h.square().mean()", "S.opt.zero_grad()", "loss.backward()", "S.opt.step()"],
    ["S.opt.zero_grad()", "loss = h.square().mean()", "loss.backward()", "S.opt.step()"],
    ["loss = h.square().mean()", "loss.backward()", "S.opt.step()", "S.opt.zero_grad()"],
    ["loss = h.square().mean()", "loss.backward()", "S.opt.step()"],
    ["loss = h.square().mean()", "loss.backward()"],
    ["loss = h.square().mean()", "S.w.grad = None", "loss.backward()", "nn.utils.clip_grad_norm_([S.w], 1.0)", "S.opt.step()"],
)  # fmt: skip
RETURNS = (
    "h", "h", "[h, h]", "{'h': h, 'd': h.detach()}", "h.detach(), h.detach()", "h, S.t", "x, h", "h, (S.cfg.scale, None)",
    "h.sum(), h.detach()", "h.mean()", "(h * 2)[0]", "None",
)  # fmt: skip
TRAINED = ("loss", "loss", "loss.detach()", "loss, h.detach()", "{'loss': loss, 'n': 1}", "None")
ARGUMENTS = (
    "x, y = data(i, 2, 3), data(i + 50, 3)", "x, y = data(i, 2, 3), data(i + 50, 3)", "x, y = data(i, 3), data(i + 50, 3)",
    "x = data(i, 3); y = x", "x = data(i, 3); y = x.detach()", "x = data(i, 3); y = x[:]",
    "b = data(i, 4); x, y = b[:3], b[1:]", "x, y = X, Y", "x, y = data(i, 3), S.t", "x, y = S.t, data(i, 3)",
    "x, y = S.t.detach(), data(i, 3)", "x, y = S.t[:], data(i, 3)", "x, y = S.w.detach(), data(i, 3)",
    "x, y = data(i, 2, 3), S.u",
)  # fmt: skip
# What happens between calls.
WORLD = (
    "S.t.data = data({n}, 3)", "S.t.data = S.t.data.clone()", "S.u.data = S.t.data", "S.u.data = S.t.data[:]",
    "S.u.data = data({n}, 3)", "S.u.data = S.w.data[0]", "S.t.data = S.u.data.detach()", "S.u = S.t", "S.u = S.t.detach()",
    "S.u = data({n}, 3)", "S.u = S.t[:]", "S.t = data({n}, 3)", "S.t.data = data({n}, 3).double()", "S.t.data = data({n}, 1)",
    "S.t.data = data({n}, 6)[::2]", "S.w.data = data({n}, 3, 3)", "S.w.data = S.w.data.t()", "S.b.data = S.t.data",
    "S.w.requires_grad_(False)", "S.w.requires_grad_(True)", "S.b.requires_grad_(not S.b.requires_grad)",
    "S.t.requires_grad_(False)", "S.w.grad = None", "S.w.grad = tj.ones(3, 3)",
    "S.w.grad = S.flat[:9].view(3, 3); S.b.grad = S.flat[9:]", "S.b.grad = S.flat[:3]",
    "S.w.grad = tj.zeros(1).expand(3, 3).clone()", "S.w.grad = S.w.detach()", "S.w.add_(1)",
    "with tj.no_grad(): S.w.mul_(0.5)", "S.t.add_(1)", "S.t.numpy()[0] += 1", "S.u.zero_()", "S.cfg.scale = 0.5",
    "S.cfg.flag = not S.cfg.flag", "S.cfg.__class__ = Large", "S.cfg.__class__ = Small", "S.cfg = Large()",
    "S.cfg.__dict__ = {{'scale': 3.0, 'flag': False}}", "Small.factor = 0.5", "S.cfg.factor = 7.0", "del S.cfg.flag",
    "Small.apply = lambda self, h: h * 5", "Small.scale = property(lambda self: 4.0)", "S.cfg.apply = lambda h: h + 9",
    "S.opts['shift'] = 2.0", "S.opts['on'] = not S.opts['on']", "S.opts = dict(S.opts)", "S.nums[0] = 3.0",
    "S.nums.append(0.5)", "S.nums = [2.0]", "globals()['helper_scale'] = 2.5", "globals()['helper'] = make_helper(2.0)",
    "globals()['helper'] = counted(helper)", "helper.__kwdefaults__['more'] = 1.0", "helper.__defaults__ = None",
    "S.net.train()", "S.net.eval()", "S.net.gain = 0.5", "S.net.__dict__['gain'] = 2.5", "S.net.shift = tj.zeros(3)",
    "S.net._buffers['shift'] = data({n}, 3)", "S.net.requires_grad_(False)", "S.net.requires_grad_(True)", "S.net = Net()",
    "S.net.inner = nn.Linear(3, 3)", "S.net.weight = nn.Parameter(data({n}, 3, 3))", "S.net.bias = None",
    "S.hook = S.net.register_forward_hook(lambda m, a, out: out * 2)", "S.hook.remove()",
    "S.hook = S.w.register_hook(lambda g: g * 2)", "S.opt.register_step_post_hook(lambda *a: S.notes.append('step'))",
    "S.opt.param_groups[0]['lr'] = 0.5", "S.opt.param_groups[0]['lr'] *= 0.5", "S.opt.state.clear()", "S.opt.zero_grad()",
    "S.opt.zero_grad(set_to_none=False)", "vars(S.opt)['state']", "S.opt.step()", "S.opt.load_state_dict(S.opt.state_dict())",
    "tj.manual_seed({n})", "tj.rand(2)", "tj.set_default_dtype(tj.float64)", "tj.set_default_dtype(tj.float32)",
    "S.kept = out", "out.add_(1)", "out[0].add_(1)", "out.sum().backward()", "out[0].sum().backward()", "print(S.w.grad)",
    "print(S.t._version, S.w._version)", "S.w.grad.add_(1)", "F.relu = counted(F.relu)",
    "tj.Tensor.tanh = counted(tj.Tensor.tanh)", "nn.Linear.forward = counted(nn.Linear.forward)", "X.add_(1)",
    "Y.data = X.data", "Y.data = X.data[:]", "Y.data = data({n}, 3)", "S.w = S.w.detach().clone().requires_grad_()",
    "other(x)", "S.t.t_()", "S.t.squeeze_()", "S.t.unsqueeze_(0)",
)  # fmt: skip
# Wrapping that leaves the computation as it is.
WRAPPED = (
    ("if True:", "{}"), ("for _ in range(1):", "{}"), ("if not S.opts:", "h = h * 99\n    else:\n        {}"),
    ("for _unused in [None]:", "{}"), ("with tj.enable_grad():", "{}"),
)  # fmt: skip
PATCHED = (("F", "relu"), ("tj.Tensor", "tanh"), ("nn.Linear", "forward"))


class World:
    """A program as text: how it is set up, its lines, its arguments, and what happens before which call."""

    def __init__(self, random: Random) -> None:
        def pick(options: Any) -> Any:
            return options[random.randrange(len(options))]

        self.setup = SETUP.format(u=pick(ALIASES), net=pick(NETS), opt=pick(OPTIMIZERS))
        self.lines = [pick(LINES) for _ in range(1 + random.randrange(5))]
        self.lines = [self._wrapped(pick, line) if random.randrange(8) == 0 else line for line in self.lines]
        self.train = pick(TRAIN) if random.randrange(100) < 55 else []
        if self.train:
            self.lines = ["h = h @ S.w", *[line for line in self.lines if "detach()" not in line or "S." in line]]
        self.returned = pick(TRAINED) if self.train else pick(RETURNS)
        self.arguments = pick(ARGUMENTS)
        self.other = pick(ARGUMENTS) if random.randrange(3) == 0 else self.arguments  # from a call on
        self.pure = random.randrange(2) == 0
        self.warm = 4 if self.pure else 10
        self.calls = self.warm + 10
        # what a promise leaves out is the work of Python itself
        world = [line for line in WORLD if not (self.pure and ("notes" in line or "counted" in line))]
        self.happens = {
            i: [pick(world).format(n=200 + i) for _ in range(random.randrange(3))] for i in range(self.warm, self.calls)
        }
        self.looks = [random.randrange(3) == 0 for _ in range(self.calls)]

    def _wrapped(self, pick: Any, line: str) -> str:
        if " : " in line or line.startswith(("for ", "if ", "with ")):
            return line
        head, body = pick(WRAPPED)
        return head + "\n        " + body.format(line)

    def text(self) -> str:
        body = "".join(f"    {line}\n" for line in ["h = x", *self.lines, *self.train, f"return {self.returned}"])
        lines = [self.setup, "X, Y = data(1, 3), data(2, 3)\n\n", "def step(x, y):\n", body]
        lines += ["\ndef other(x):\n    return S.w.sum() + S.t.sum()\n"]
        lines += [f"\ndef args(i):\n    if i < {self.warm + 4}:\n        {self.arguments}\n    else:\n        {self.other}\n"]
        return "".join([*lines, "    return x, y\n"])

    def script(self) -> str:
        """The program as a script that prints what differs, for a report."""
        happens = {i: lines for i, lines in self.happens.items() if lines}
        return (
            f"{PRELUDE}{self.text()}\nimport sys\nf = tj.compile(step, pure={self.pure}) if sys.argv[1:] else step\n"
            f"HAPPENS = {happens}\nfor i in range({self.calls}):\n"
            "    for line in HAPPENS.get(i, ()): attempt(line)\n"
            "    x, y = args(i)\n    try: out = f(x, y)\n    except Exception as error: out = error\n"
            "    print(i, out, S.t, S.u, S.w, S.w.grad, S.b, S.b.grad)\n"
        )

    def run(self, compiled: bool) -> tuple[list[Any], Any]:
        """What each call did, and the compiled function."""
        tj.manual_seed(0)
        tj.set_default_dtype(tj.float32)
        space: dict[str, Any] = {"__name__": "world"}
        text = PRELUDE + self.text()
        linecache.cache["<world>"] = (len(text), None, text.splitlines(keepends=True), "<world>")  # what proofs read
        exec(compile(text, "<world>", "exec"), space)
        step = tj.compile(space["step"], pure=self.pure, backend="plain") if compiled else space["step"]
        space["out"], found = None, []
        kept = {place: getattr(eval(place[0], space), place[1]) for place in PATCHED}
        try:
            for i in range(self.calls):
                found.append(self._call(space, step, i))
        finally:
            for (owner, name), value in kept.items():
                setattr(eval(owner, space), name, value)
            tj.set_default_dtype(tj.float32)
        return found, step

    def _call(self, space: dict[str, Any], step: Any, i: int) -> Any:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for line in self.happens.get(i, ()):
                space["attempt"](line)
            try:
                x, y = space["args"](i)
            except Exception as error:
                return ("arguments", type(error).__name__)
            try:
                out = space["out"] = step(x, y)
                done = [seen(out), identities(out, x, y, space["S"])]
            except Exception as error:
                done = [type(error).__name__, str(error)]
            if self.looks[i]:
                done += [state_of(space["S"]), seen([x, y]), x._version, y._version, tj.get_rng_state().tolist()]
        return done, printed.getvalue()


def identities(out: Any, x: Any, y: Any, state: Any) -> list[bool]:
    parts = list(out.values()) if isinstance(out, dict) else list(out) if isinstance(out, (list, tuple)) else [out]
    return [a is b for a in parts for b in (x, y, state.t, *parts)]


def state_of(state: Any) -> Any:
    tensors = {name: (seen(t), t._version) for name, t in vars(state).items() if isinstance(t, tj.Tensor)}
    net = [seen(state.net.state_dict()), [seen(p.grad) for p in state.net.parameters()], state.net.training]
    gradients = [None if t.grad is None else (seen(t.grad), t.grad._version) for t in (state.w, state.b)]
    fields = {name: value for name, value in vars(state.cfg).items() if not callable(value)}
    plain = [list(state.notes), fields, seen(state.opts), list(state.nums)]
    return tensors, net, gradients, seen(state.opt.state_dict()), plain


def write(seed: int) -> World:
    """Write a program whose first calls do not fail."""
    random = Random(seed)
    while True:
        world = World(random)
        world.calls, calls = 3, world.calls
        done, _ = world.run(False)
        world.calls = calls
        if all(isinstance(call, tuple) and not isinstance(call[0][0], str) for call in done):
            return world


class WorldError(Exception):
    """A program does something else when its Python is skipped."""


def difference(world: World) -> tuple[str | None, Any]:
    """The first call that differs, or None; and the compiled function."""
    expected, _ = world.run(False)
    found, function = world.run(True)
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a != b:
            place, one, other = where(a, b)
            return f"call {i} differs at {place}:\neager    {one}\ncompiled {other}\n{function.explain()}", function
    return None, function


def reduce(world: World) -> World:
    """Leave out whatever is not needed for the difference."""

    def still() -> bool:
        try:
            return difference(world)[0] is not None
        except Exception:
            return False

    changed = True
    while changed:
        changed = False
        for name in ("lines", "train"):
            for i in range(len(getattr(world, name)) - 1, -1, -1):
                before = getattr(world, name)
                setattr(world, name, before[:i] + before[i + 1 :])
                if still():
                    changed = True
                else:
                    setattr(world, name, before)
        for i, lines in world.happens.items():
            for k in range(len(lines) - 1, -1, -1):
                world.happens[i] = world.happens[i][:k] + world.happens[i][k + 1 :]
                if still():
                    changed = True
                else:
                    world.happens[i] = [*world.happens[i][:k], lines[k], *world.happens[i][k:]]
        for i, looks in enumerate(world.looks):
            if looks:
                world.looks[i] = False
                if not still():
                    world.looks[i] = True
    return world
