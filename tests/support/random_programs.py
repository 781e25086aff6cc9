"""Random programs for `compile` to be tried on: written line by line, each line tried eagerly as it is written so that most
programs run, kept as a tree of lines so that a failing one can be cut down, and printed as source that runs.

A program has state `S` (leaves, plain tensors, views, an optimizer, counters, lists), arguments that may change their form from
call to call, a function `step(x, y, k)`, and something that happens between calls.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import tapejit as tj

from support.traced import Program, history

PRELUDE = """\
from types import SimpleNamespace
import numpy as np
import tapejit as tj
import tapejit.nn.functional as F

WIDE = {}

def data(seed, *shape):
    shape = [WIDE.get(n, n) for n in shape]
    return tj.tensor((np.random.default_rng(seed).standard_normal(shape) * 2).round(2).astype("float32"))

"""
MAIN = """
if __name__ == "__main__":
    import sys
    f = tj.compile(step, **SETTINGS) if sys.argv[1:] else step  # any argument: compiled
    tj.manual_seed(0)
    for i in range(CALLS):
        given, out = args(i), None
        try:
            out = f(*given)
            print(i, "returned", out)
        except Exception as error:
            print(i, "raised", repr(error))
        try:
            between(i, out)
        except Exception as error:
            print(i, "between", repr(error))
        print(S, given)
        print({name: t.grad for name, t in vars(S).items() if isinstance(t, tj.Tensor) and t.is_leaf})
"""

Node = Any  # a line, or a block: [header, nodes]


def render(nodes: list[Node], indent: str = "    ") -> str:
    lines = []
    for node in nodes:
        if isinstance(node, str):
            lines.append(indent + node + "\n")
        else:
            lines.append(indent + node[0] + "\n" + render(node[1], indent + "    "))
    return "".join(lines) or indent + "pass\n"


class Source:
    """A program as a tree of lines."""

    def __init__(self) -> None:
        self.setup: list[Node] = []
        self.args: list[Node] = []
        self.step: list[Node] = []
        self.between: list[Node] = []
        self.calls = 7
        self.settings: dict[str, Any] = {}
        self.wide: dict[int, int] = {}  # in the place of some sizes, others

    def text(self) -> str:
        return (
            render(self.setup, "")
            + "\n\ndef args(i):\n"
            + render(self.args)
            + "\n\ndef step(x, y, k):\n"
            + render(self.step)
            + "\n\ndef between(i, out):\n"
            + render(self.between)
        )

    def runnable(self) -> str:
        return f"{PRELUDE}WIDE.update({self.wide})\nCALLS, SETTINGS = {self.calls}, {self.settings}\n{self.text()}{MAIN}"

    def make(self) -> Program:
        space: dict[str, Any] = {}
        exec(_prelude, space)
        space["WIDE"].update(self.wide)
        text = self.text()
        linecache.cache["<program>"] = (len(text), None, text.splitlines(keepends=True), "<program>")  # what proofs read
        exec(compile(text, "<program>", "exec"), space)
        state = space["S"]

        def watch() -> Any:
            seen = {name: inside(value) for name, value in vars(state).items()}
            return [seen, tj.get_rng_state()]

        def args(i: int) -> Any:
            try:
                return space["args"](i)
            except (RuntimeError, IndexError):  # they are made of the state, which no longer allows it
                return space["data"](i, 3), space["data"](i, 3), 1

        return Program(space["step"], watch, space["between"] if self.between else None, args)


def inside(value: Any) -> Any:
    """Return what can be looked at of an object of the program's state."""
    if isinstance(value, tj.nn.Module):
        return [value.state_dict(), [p.grad for p in value.parameters()], value.training]
    return value.state_dict() if hasattr(value, "state_dict") else value


_prelude = compile(PRELUDE, "<prelude>", "exec")


# ---- comparing


class DifferenceError(Exception):
    """A program does something else when it is compiled."""


def where(a: Any, b: Any, place: str = "") -> tuple[str, Any, Any]:
    """The first place in which two nested things differ, and what is there."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        pairs = [(key, a[key], b[key]) for key in a]
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        pairs = [(i, one, other) for i, (one, other) in enumerate(zip(a, b, strict=True))]
    else:
        return place, a, b
    return next(where(one, other, f"{place}[{key!r}]") for key, one, other in pairs if one != other)


def compare(source: Source) -> Any:
    """Run a program eagerly and compiled; returns the compiled function."""
    calls: list[Any] = list(range(source.calls))
    expected, _ = history(source.make, calls, compiled=False)
    try:
        found, function = history(source.make, calls, compiled=True, **source.settings)
    except Exception as error:
        raise DifferenceError("".join(traceback.format_exception(error))) from None
    for i, (e, f) in enumerate(zip(expected, found, strict=True)):
        if e != f:
            place, one, other = where(e, f)
            raise DifferenceError(f"call {i} differs at {place}:\neager    {one}\ncompiled {other}\n{function.explain()}")
    return function


def differs(source: Source) -> str | None:
    try:
        compare(source)
    except DifferenceError as error:
        return str(error)
    except Exception:  # it does not run: a line that others need was left out
        return None
    return None


def reduce(source: Source, patience: int = 600) -> Source:
    """Leave out whatever is not needed for the difference."""
    budget = [patience]

    def still() -> bool:
        budget[0] -= 1
        return budget[0] > 0 and differs(source) is not None

    def shrink(nodes: list[Node]) -> bool:
        any_gone = False
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            others = [[]] if isinstance(node, str) else [[], node[1]]
            for other in others:
                nodes[i : i + 1] = other
                if still():
                    any_gone = True
                    break
                nodes[i : i + len(other)] = [node]
            else:
                if not isinstance(node, str):
                    any_gone |= shrink(node[1])
        return any_gone

    for calls in range(2, source.calls):
        before, source.calls = source.calls, calls
        if still():
            break
        source.calls = before
    parts = (source.step, source.between, source.setup, source.args)
    while sum(shrink(part) for part in parts) and budget[0] > 0:  # all of them, until none gets shorter
        pass
    return source


# ---- writing


class Writer:
    """Writes a program, and knows what each name stands for by running each line as it is written."""

    def __init__(self, random: Random, wide: dict[int, int]) -> None:
        self.random = random
        self.space: dict[str, Any] = {}
        exec(_prelude, self.space)
        self.space["WIDE"].update(wide)
        self.locals: list[str] = ["x", "y"]
        self.state = ["S.w", "S.b", "S.t", "S.u", "S.kept[-1]", "S.w.grad", "S.b.grad"]
        self.count = 0
        self.grad = True
        self.depth = 0

    # ---- choices

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def pick(self, options: Any) -> Any:
        return options[self.random.randrange(len(options))] if options else None

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    # ---- what there is

    def value(self, name: str) -> Any:
        found = self.space.get(name)
        if found is None:
            with contextlib.suppress(Exception):
                found = eval(name, self.space)
        return found

    def tensor(self, fits: Callable[[Any], bool] = lambda t: t.dtype.is_floating_point) -> str | None:
        """A name of a tensor; one that was made lately, more often than not."""
        names = self.locals[-4:] if self.chance(60) else self.locals + self.state
        found = [n for n in names if isinstance(t := self.value(n), tj.Tensor) and fits(t)]
        if not found:
            found = [n for n in self.locals + self.state if isinstance(t := self.value(n), tj.Tensor) and fits(t)]
        return self.pick(found)

    def with_dims(self, least: int) -> str | None:
        return self.tensor(lambda t: t.dtype.is_floating_point and t.ndim >= least and 0 not in t.shape)

    def with_history(self) -> str | None:
        return self.tensor(lambda t: t.requires_grad and not t.is_leaf and t.dtype.is_floating_point)

    def partner(self, a: str) -> str:
        """A tensor that can be combined with another one, or a number."""
        shape = self.value(a).shape
        if self.chance(25):
            return str(self.pick(["0.5", "2", "k", "S.count", "-1.5", "S.rate"]))
        found = self.tensor(lambda t: t.dtype.is_floating_point and broadcasts(t.shape, shape))
        return found or "2"

    def into(self, a: str) -> str:
        """Return something that can be written into a tensor."""
        shape = self.value(a).shape
        if self.chance(30):
            return str(self.pick(["0.5", "2", "k", "S.count"]))
        found = self.tensor(lambda t: t.dtype.is_floating_point and broadcasts(t.shape, shape, shape))
        return found or "2"

    # ---- lines

    def runs(self, line: str) -> bool:
        """True if a line runs; what it does is done."""
        try:
            code = compile(line, "<line>", "exec")
            with tj.set_grad_enabled(self.grad), contextlib.redirect_stdout(io.StringIO()):
                exec(code, self.space)
        except Exception:
            return False
        return True

    def block(self, size: int) -> list[Node]:
        nodes: list[Node] = []
        tries = 0
        while len(nodes) < size and tries < 3 * size:
            tries += 1
            made = self.pick(STEPS)(self)
            if made is None:
                continue
            lines = made if isinstance(made, list) else [made]
            if all(self.runs(line) if isinstance(line, str) else True for line in lines):
                nodes.extend(lines)
                self.learn(lines)
        return nodes

    def learn(self, lines: list[Node]) -> None:
        for line in lines:
            if isinstance(line, str) and " = " in line:
                for name in line.split(" = ")[0].split(", "):
                    if re.fullmatch(r"v\d+", name) and name not in self.locals:
                        self.locals.append(name)

    @contextlib.contextmanager
    def scope(self, grad: bool | None = None) -> Iterator[None]:
        """Names made inside are not known after it."""
        names, before = list(self.locals), self.grad
        self.grad = before if grad is None else grad
        self.depth += 1
        yield
        self.depth -= 1
        self.locals, self.grad = names, before


def broadcasts(a: Any, b: Any, to: Any = None) -> bool:
    try:
        shape = tj.broadcast_shapes(tuple(a), tuple(b))
    except RuntimeError:
        return False
    return to is None or tuple(shape) == tuple(to)


# ---- kinds of lines: each takes the writer and gives a line, some lines and blocks, or None

STEPS: list[Callable[[Writer], Any]] = []


def weight(times: int) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        STEPS.extend([function] * times)
        return function

    return add


UNARY = (
    "{}.tanh()", "{}.sigmoid()", "{}.relu()", "{}.abs()", "-{}", "{}.square()", "{}.clamp(-1, 1)", "{}.sin()", "{}.exp()",
    "{}.abs().sqrt()", "F.gelu({})", "F.silu({})", "{}.pow(3)", "{}.softmax(-1)", "{}.log_softmax(-1)", "{}.cumsum(0)",
    "F.layer_norm({0}, {0}.shape[-1:])", "1 / ({} + 3)", "{}.double().float()", "{}.masked_fill({} > 0, -1.0)",
    "{}.sort(-1)[0]", "{}.triu()", "{}.flip(0)", "{}.roll(1, 0)", "F.pad({}, (1, 0))", "{}.nan_to_num()", "{}.round()",
    "{}.sign()",
)  # fmt: skip
REDUCE = (
    "{}.sum()", "{}.mean()", "{}.sum(0)", "{}.mean(-1)", "{}.sum(-1, keepdim=True)", "{}.amax(-1)", "{}.max(0)[0]",
    "{}.min(-1)[0]", "{}.max()", "{}.var(-1)", "{}.norm()", "{}.logsumexp(-1)", "{}.prod(0)", "{}.std()", "{}.norm(dim=-1)",
    "{}.median()",
)  # fmt: skip
VIEWS = (
    "{}.view(-1)", "{}.reshape(-1)", "{}.t()", "{}.mT", "{}.unsqueeze(0)", "{}.unsqueeze(-1)", "{}.squeeze()",
    "{}.squeeze(0)", "{}.flatten()", "{}.transpose(0, -1)", "{}[0]", "{}[-1]", "{}[1:]", "{}[:-1]", "{}[::2]", "{}[:, 0]",
    "{}[:, 1:]", "{}[..., -1]", "{}[None]", "{}[..., None]", "{}.narrow(0, 0, 1)", "{}.diagonal()",
    "{0}.expand(2, *{0}.shape)", "{0}.expand_as({0})", "{}.permute(1, 0)", "{}.select(-1, 0)", "{}.movedim(0, -1)",
    "{}.swapaxes(0, 1)", "{0}.view({0}.shape)", "{}.unflatten(-1, (-1, 1))", "{0}.as_strided((2,), (1,))", "{}[:]", "{}[...]",
    "{}.detach()", "{}.data", "{}.split(1)[0]", "{}.chunk(2, -1)[-1]", "{}.unbind(0)[0]", "{}.contiguous()",
)  # fmt: skip


@weight(6)
def unary(w: Writer) -> Any:
    a = w.tensor()
    return a and f"{w.fresh()} = {w.pick(UNARY).format(a, a)}"


@weight(8)
def binary(w: Writer) -> Any:
    a = w.tensor()
    if a is None:
        return None
    form = w.pick(
        ("{} + {}", "{} * {}", "{} - {}", "{} * {}", "tj.maximum({}, tj.as_tensor({}))", "{} / ({} + 0.5)", "{} + 0.5 * {}",
         "tj.where({0} > 0, {0}, {1})", "{1} - {0}", "{}.lerp(tj.as_tensor({}).float(), 0.3)", "F.mse_loss({0}, {0} * {1})",
         "({} > {}).float()", "tj.addcmul({0}, {0}, tj.as_tensor({1}), value=k)")
    )  # fmt: skip
    return f"{w.fresh()} = {form.format(a, w.partner(a))}"


@weight(4)
def reduction(w: Writer) -> Any:
    a = w.with_dims(1)
    return a and f"{w.fresh()} = {w.pick(REDUCE).format(a)}"


@weight(7)
def view(w: Writer) -> Any:
    a = w.with_dims(1)
    return a and f"{w.fresh()} = {w.pick(VIEWS).format(a)}"


@weight(3)
def moving(w: Writer) -> Any:
    """Places and numbers that are others at each call."""
    a = w.with_dims(1)
    if a is None:
        return None
    form = w.pick(
        ("{0}[k % {0}.shape[0]]", "{0}[-1 - S.count % {0}.shape[0]]", "{0}[..., k % {0}.shape[-1]]", "tj.arange(k, k + 3) * 2",
         "{0}.narrow(0, k % {0}.shape[0], 1)", "{0}[S.count % {0}.shape[0] :][:1]", "{0}.select(-1, S.count % {0}.shape[-1])",
         "{0}.clamp(-S.rate - k, k + S.rate)", "{0}.clamp(max=k)", "{0}.clamp(min=S.rate)", "F.hardtanh({0}, -k - 1, k + 1.5)",
         "F.leaky_relu({0}, 0.1 * k)", "F.dropout({0}, 0.1 + 0.2 * k)", "tj.full((3,), S.rate * k)")
    )  # fmt: skip
    return f"{w.fresh()} = {form.format(a)}"


@weight(3)
def matmul(w: Writer) -> Any:
    a = w.with_dims(1)
    if a is None:
        return None
    n = w.value(a).shape[-1]
    b = w.tensor(lambda t: t.dtype.is_floating_point and t.ndim >= 1 and t.shape[-min(2, t.ndim)] == n)
    if b is not None and w.chance(60):
        return f"{w.fresh()} = {a} @ {b}"
    b = w.tensor(lambda t: t.dtype.is_floating_point and t.ndim == 2 and t.shape[-1] == n)
    return b and f"{w.fresh()} = {w.pick(('F.linear({}, {})', '{} @ {}.mT', '{} @ {}.t()')).format(a, b)}"


@weight(3)
def several(w: Writer) -> Any:
    a = w.with_dims(1)
    if a is None:
        return None
    shape = w.value(a).shape
    b = w.tensor(lambda t: t.dtype.is_floating_point and t.shape == shape)
    if w.chance(60):
        form = w.pick(("tj.cat([{}, {}])", "tj.cat([{}, {}], -1)", "tj.stack([{}, {}])", "tj.stack([{}, {}], -1)"))
        return f"{w.fresh()} = {form.format(a, b)}"
    form = w.pick(("{}.split(1, -1)[:2]", "{}.chunk(2, -1)", "{}.unbind(-1)[:2]", "{0}.max(-1)", "{}.sort(-1)", "{}.topk(1)"))
    return f"{w.fresh()}, {w.fresh()} = {form.format(a)}"


@weight(3)
def index(w: Writer) -> Any:
    a = w.with_dims(1)
    if a is None:
        return None
    form = w.pick(
        ("{0}[{0} > 0]", "{}[[0, -1]]", "{0}[{0}.argmax(0)]", "{0}[tj.tensor([0, 0])]", "{0}.gather(-1, {0}.argsort(-1))",
         "{0}.index_select(0, tj.tensor([k % {0}.shape[0]]))", "{0}.masked_select({0} < 0)",
         "{0}[tj.tensor([S.count % {0}.shape[0]])]", "{0}.take_along_dim({0}.argmin(-1, keepdim=True), -1)", "{0}.argmax(-1)",
         "{0}[k % {0}.shape[0]]", "{0}[..., S.idx[:1]]", "{0}[S.count % 2:]", "{0}[S.idx % {0}.shape[0]]",
         "F.one_hot({0}.argmax(-1), {0}.shape[-1]).float()", "F.cross_entropy({0}, {0}.argmin(-1))",
         "F.cross_entropy({0}, S.idx[:{0}.shape[0]] % {0}.shape[-1])", "F.embedding(S.idx % {0}.shape[0], {0})")
    )  # fmt: skip
    return f"{w.fresh()} = {form.format(a)}"


@weight(3)
def make(w: Writer) -> Any:
    form = w.pick(
        ("tj.ones(3)", "tj.zeros_like({})", "tj.tensor([1.0, S.count, k])", "tj.full((2, 3), k * 0.5)", "tj.ones_like({})",
         "{}.clone()", "{}.detach().clone()", "tj.arange(3) * 0.5", "tj.tensor(2.0 * k)",
         "tj.from_numpy(np.full(3, S.count, 'float32'))", "tj.ones(3, requires_grad=True)", "{}.detach().requires_grad_()",
         "{}.detach().clone().requires_grad_()", "tj.tensor(S.numbers)", "{}.new_zeros(3)", "tj.eye(3)", "{}.clone()",
         "{}.clone()", "{} * 1", "tj.full((3,), float(S.count))", "tj.as_tensor(S.array)")
    )  # fmt: skip
    a = w.tensor()
    return a and f"{w.fresh()} = {form.format(a)}"


@weight(2)
def chance(w: Writer) -> Any:
    a = w.tensor()
    if w.chance(6):
        return w.pick(("tj.manual_seed(S.count)", "tj.manual_seed(k)"))
    form = w.pick(
        ("F.dropout({}, 0.5)", "tj.rand(3)", "tj.randn_like({0})", "{0} * tj.rand_like({0})", "tj.bernoulli({}.sigmoid())",
         "F.dropout({}, 0.3, training=S.flag)", "tj.randint(0, 5, (3,)).float()", "tj.randperm(3).float()",
         "{}.clone().normal_()", "{}.clone().uniform_(-1, 1)")
    )  # fmt: skip
    return a and f"{w.fresh()} = {form.format(a)}"


@weight(9)
def in_place(w: Writer) -> Any:
    a = w.tensor()
    if a is None:
        return None
    form = w.pick(
        ("{}.add_({})", "{}.mul_({})", "{} += {}", "{} *= {}", "{0}.zero_()", "{0}.fill_(k)", "{}.copy_(tj.as_tensor({}))",
         "{0}[0] = 5", "{0}[1:] = {0}[:-1]", "{0}[-1] = {0}[0]", "{0}.clamp_(-2, 2)", "{0}.relu_()",
         "{0}.masked_fill_({0} > 1, 0.5)", "{}[...] = {}", "{0}[{0} < 0] = 0", "{0}[:, 0] = k", "{0}.mul_(0.5)",
         "{0}[0].mul_(2)", "{}.sub_({}, alpha=0.5)", "{}.div_(tj.as_tensor({}) + 3)", "{0}.tanh_()", "{0}[[0]] = {0}[-1:]",
         "{0}.index_add_(0, tj.tensor([0]), {0}[-1:])", "{0}.t()[0] += k", "{0}.view(-1)[0] = S.count", "{0}.data.mul_(0.5)",
         "{0}.detach().add_({1})", "{0}.neg_()", "{0}.transpose(0, -1).add_(1)", "{0}.addcmul_({0}, {0}, value=0.1)",
         "{0}.unsqueeze_(0)", "{0}.t_()", "{0}.exp_()", "{0}.scatter_(-1, {0}.argmax(-1, keepdim=True), 0.5)",
         "{0}.normal_()", "{0}.data.copy_(tj.as_tensor({1}))", "{0}.numpy()[...] += 1", "{0}.diagonal().fill_(k)",
         "{0}.squeeze_()")
    )  # fmt: skip
    line = form.format(a, w.into(a))
    if line.startswith("S.") and (" += " in line or " *= " in line) and "[" not in a:
        line = line.replace(" += ", ".add_(", 1).replace(" *= ", ".mul_(", 1) + ")" if w.chance(50) else line
    if w.value(a).is_leaf and w.value(a).requires_grad and w.grad:
        if not w.chance(90):
            return line  # refused, as it should be
        with w.scope(grad=False):
            return [["with tj.no_grad():", [line]]] if w.runs(line) else None
    return line


@weight(3)
def flags(w: Writer) -> Any:
    a = w.tensor()
    b = w.pick(("S.w", "S.b"))
    form = w.pick(
        ("{1}.grad = None", "{1}.requires_grad_(k > 0)", "{0}.requires_grad_()", "{1}.data = {1}.data * 0.5",
         "{0} = {0}.detach()", "{1}.grad.zero_()", "{1}.grad = {1}.grad * 0.5", "{0}.requires_grad_(False)", "{0}.detach_()",
         "S.opt.zero_grad()", "{1}.grad = tj.ones_like({1})", "{1} = {1}.detach().clone().requires_grad_()",
         "S.opt.zero_grad(set_to_none=False)", "{0}.retain_grad()")
    )  # fmt: skip
    line = form.format(a, b)
    return a and (line if not line.startswith("S.kept") else None)


def scalar(w: Writer, a: str) -> str:
    return str(w.pick(("{}.sum()", "{}.mean()", "({0} * {0}).sum()", "{}.square().mean()"))).format(a)


@weight(5)
def backward(w: Writer) -> Any:
    a = w.with_history()
    if a is None or not w.grad:
        return None
    leaf = w.pick(("S.w", "S.b"))
    form = w.pick(
        ("{0}.backward()", "{0}.backward()", "{0}.backward(retain_graph=True)", "{1}.backward(tj.ones_like({1}))",
         "{3}, = tj.autograd.grad({0}, [{2}])", "{3}, = tj.autograd.grad({0}, [{2}], retain_graph=True, allow_unused=True)",
         "{3}, = tj.autograd.grad({0}, {2}, create_graph=True)", "tj.autograd.backward([{0}, {0}])", "({0} * k).backward()",
         "{0}.backward(create_graph=True)", "{3}, = tj.autograd.grad({1}, [{2}], tj.ones_like({1}), allow_unused=True)",
         "{0}.backward(inputs=[{2}])")
    )  # fmt: skip
    return form.format(scalar(w, a), a, leaf, w.fresh())


@weight(4)
def train(w: Writer) -> Any:
    """A whole training step of its own."""
    if not w.grad:
        return None
    a = w.with_history() or "(S.w * 2)"
    lines = [f"{w.fresh()} = {scalar(w, a)}", "S.opt.zero_grad()", f"v{w.count}.backward()", "S.opt.step()"]
    if w.chance(30):
        lines.insert(2, lines.pop(1))
    if w.chance(30):
        lines.remove("S.opt.zero_grad()")
    if w.chance(20):
        lines.append("S.opt.param_groups[0]['lr'] *= 0.5")
    if w.chance(20):
        lines.insert(2, lines[2].replace("()", "(retain_graph=True)"))
    return lines


@weight(3)
def module(w: Writer) -> Any:
    a = w.tensor(lambda t: t.dtype == tj.float32 and t.ndim == 2)
    lines = [f"{w.fresh()} = S.net({a})"]
    if w.grad and w.chance(50):
        lines += [f"v{w.count}.square().mean().backward()", "S.opt.step()", "S.opt.zero_grad()"]
    if w.chance(20):
        lines.append(w.pick(("S.net.train(k > 0)", "S.net.eval()", "S.net.train()", "S.net.zero_grad()", "S.sched.step()")))
    return a and lines


@weight(1)
def hook(w: Writer) -> Any:
    a = w.tensor(lambda t: t.requires_grad and t.dtype.is_floating_point)
    form = w.pick(
        ("{}.register_hook(lambda g: S.notes.append(g.sum().item()))", "{}.register_hook(lambda g: g * 2)",
         "handle = {}.register_hook(lambda g: g * 0.5)\nhandle.remove()", "{}.register_hook(S.kept.append)")
    )  # fmt: skip
    return a and form.format(a).split("\n")


@weight(4)
def python(w: Writer) -> Any:
    a = w.tensor()
    form = w.pick(
        ("S.count += 1", "S.count += k", "S.flag = not S.flag", "S.kept.append({})", "S.kept.append({}.detach())",
         "del S.kept[:-2]", "S.t = {}", "S.t = {}.detach()", "S.u = {}", "S.u = S.t[1:]", "S.rate *= 0.5",
         "S.total += {}.sum().item()", "if S.kept[1:]: S.kept.pop(0)", "S.numbers[0] += 1.0", "S.array[0] += 1", "S.last = {}",
         "S.notes.append(tuple({}.shape))", "S.notes.append({}.requires_grad)", "S.kept.append({}.tolist())",
         "S.kept.append({}.sum())", "S.notes.append({0}.grad_fn is None)", "S.notes.append({0}._version)",
         "S.notes.append({0}.is_leaf)", "S.notes.append({0}.stride())", "S.array = {}.detach().numpy()", "del {}",
         "S.notes.append(len({}))", "S.notes.append({0}.data_ptr() == S.t.data_ptr())", "S.notes.append({0} is S.t)")
    )  # fmt: skip
    line = form.format(a)
    if line.startswith("del ") and (a in ("x", "y") or a is None or "." in a or w.depth):
        return None
    if line.startswith("del v"):
        w.locals.remove(a)
    return a and line


@weight(3)
def printing(w: Writer) -> Any:
    a = w.tensor()
    form = w.pick(
        ("print({}.sum().item())", "print({})", "print({}.shape, S.count)", "print({0}.tolist())",
         "print(f'{{{0}.mean().item():.3f}}')", "print(k)", "print(float({}.sum()))",
         "print({0}.requires_grad, {0}.is_leaf, {0}.dtype)", "print(S.w.grad)", "print({}.numpy())", "print({}.max())",
         "print(S.kept[-1])")
    )  # fmt: skip
    return a and form.format(a)


def condition(w: Writer) -> str:
    a = w.tensor(lambda t: t.dtype.is_floating_point and 0 not in t.shape) or "x"
    form = w.pick(
        ("{}.sum() > 0", "{}.sum().item() > 0", "bool({}.mean() < 0.5)", "k > 1", "k", "S.count % 3 == 1", "S.flag",
         "len(S.kept) > 2", "({} > 0).any()", "float({}.max()) > 1", "tj.equal({0}, {0})", "S.w.grad is None",
         "{}.shape[-1:] == (3,)", "S.count > 3", "{}.requires_grad", "int({}.argmax()) % 2")
    )  # fmt: skip
    return str(form).format(a)


@weight(4)
def branch(w: Writer) -> Any:
    if w.depth > 1:
        return None
    test = condition(w)
    if not w.runs(test):
        return None
    made = []
    for header in [f"if {test}:"] + ["else:"] * w.chance(50):
        with w.scope():
            body = w.block(1 + w.random.randrange(3))
            if w.chance(25):
                body.append(leave(w))
            elif w.chance(50) and (a := w.pick([n for n in w.locals if n[0] == "v"])):
                body.append(f"{a} = {a} * 2")
        made.append([header, body])
    return made


def leave(w: Writer) -> str:
    a = w.tensor()
    return str(
        w.pick(("return [{0}]", "return [{0}, x]", "raise ValueError('no')", "return []", "raise KeyError({0}.sum().item())"))
    ).format(a)


@weight(2)
def ungraded(w: Writer) -> Any:
    if w.depth > 1:
        return None
    header, grad = w.pick((("with tj.no_grad():", False), ("with tj.no_grad():", False), ("with tj.enable_grad():", True)))
    names = len(w.locals)
    with w.scope(grad=grad):
        body = w.block(1 + w.random.randrange(3))
        inside = w.locals[names:]
    w.locals.extend(inside)
    return [[header, body]]


@weight(1)
def loop(w: Writer) -> Any:
    if w.depth > 1:
        return None
    with w.scope():
        body = w.block(1 + w.random.randrange(2))
        a = w.tensor()
        if w.chance(30):
            return [[f"while S.count < 3 and {a}.sum() < 100:", [*body, "S.count += 1"]]]
    return [[w.pick(("for _ in range(2):", "for _ in range(k):", "for _ in S.kept[-2:]:")), body]]


@weight(1)
def attempt(w: Writer) -> Any:
    if w.depth > 1:
        return None
    with w.scope():
        body = w.block(1 + w.random.randrange(2))
        a = w.tensor()
    bad = w.pick(
        (
            f"{a}[99]",
            f"{a}.view(17)",
            f"{a} @ tj.ones(91)",
            "raise ValueError('x')",
            f"assert {a}.sum() > 0",
            "S.w.add_(1)",
            f"{a}.backward()",
        )
    )
    if w.chance(20):
        return [["try:", [*body, bad]], ["finally:", ["S.count += 1"]]]
    return [["try:", [*body, bad]], ["except Exception as e:", ["S.notes.append(type(e).__name__)"]]]


@weight(1)
def refused(w: Writer) -> Any:
    """A line that raises at some calls."""
    a = w.tensor()
    return a and w.pick((f"{a}[k % 3 - 3]", f"if S.count == 4: raise ValueError({a}.sum().item())", f"if k == 2: {a}[99]"))


# ---- whole programs

VIEWED = ("data(103, 3)", "data(103, 3)", "S.t[0]", "S.t[0]", "S.t", "S.t.detach()", "S.w.detach()", "S.t.view(-1)", "S.w[0]")
NETS = (
    "tj.nn.Linear({0}, {0})", "tj.nn.Sequential(tj.nn.Linear({0}, 4), tj.nn.GELU(), tj.nn.Linear(4, {0}))",
    "tj.nn.Sequential(tj.nn.Linear({0}, {0}), tj.nn.BatchNorm1d({0}), tj.nn.Dropout(0.3))", "tj.nn.LayerNorm({0})",
)  # fmt: skip
OPTIMIZERS = (
    "SGD([S.w, *S.net.parameters()], lr=0.1, momentum=0.9)", "Adam([S.w, *S.net.parameters()], lr=0.01)",
    "SGD([S.w, S.b], lr=0.1, momentum=0.9)", "Adam([S.w, S.b], lr=0.01)", "SGD([S.w], lr=0.1)", "AdamW([S.w], lr=0.1)",
    "RMSprop([S.b], lr=0.1)",
)  # fmt: skip


WIDER = {2: 17, 3: 37, 4: 38}  # more than a vector: what is in one is read before anything is written


def write(random: Random, wide: bool = False) -> Source:
    source = Source()
    source.wide = WIDER if wide else {}
    w = Writer(random, source.wide)
    source.settings = {"warmup": w.pick((2, 2, 1, 3)), "budget": w.pick((16, 16, 2))}
    source.calls = 6 + random.randrange(3)
    size = w.pick((3, 3, 2))
    shape = f"{w.pick((2, 3, 3, 1))}, {size}"
    source.setup = [
        "S = SimpleNamespace(count=0, rate=0.5, flag=False, total=0.0, notes=[], last=None, numbers=[1.0, 2.0, 3.0])",
        f"S.w = data(100, {size}, {size}).requires_grad_()",
        f"S.b = data(101, {size}){w.pick(('.requires_grad_()', '.requires_grad_()', ''))}",
        f"S.t = data(102, {shape})",
        f"S.u = {w.pick(VIEWED)}",
        "S.idx = tj.tensor([0, 2, 1, 0])",
        "S.array = " + ("S.t.numpy()" if w.chance(15) else "np.ones(3, dtype=np.float32)"),
        f"S.kept = [{w.pick(('S.t * 2', 'data(105, 1, 3)', 'S.w * 1', 'data(104, 3)', 'S.w'))}]",
        f"S.net = {w.pick(NETS).format(source.wide.get(size, size))}",
        f"S.opt = tj.optim.{w.pick(OPTIMIZERS)}",
        "S.sched = tj.optim.lr_scheduler.StepLR(S.opt, 2, gamma=0.5)",
    ]
    source.args = arguments(w, shape)
    for line in source.setup:
        assert w.runs(line), line
    assert w.runs("def args(i):\n" + render(source.args) + "x, y, k = args(0)"), source.args
    source.step = w.block(4 + random.randrange(10))
    outs = [n for n in w.locals if n[0] == "v" or w.chance(20)]
    picked = [w.pick(outs) for _ in range(1 + random.randrange(3))] if outs else ["x"]
    source.step.append(f"return [{', '.join(picked)}]")
    if w.runs(f"out = [{', '.join(picked)}]") and w.chance(60):
        w.locals = [f"out[{i}]" for i in range(len(picked))]
        w.depth = 1
        source.between = w.block(1 + random.randrange(3))
    return source


def arguments(w: Writer, shape: str) -> list[Node]:
    """The lines of a function that makes the arguments of a call."""
    lines = [f"x = data(i, {shape})", f"y = data(i + 50, {w.pick((shape, '3', '3, 3'))})"]
    change = w.pick(
        ("", "", "", "", "", "y = x", "y = x[0]", "x = data(i, 4, 3)[:2]\ny = x[1:]", "y = x.detach()", "y = x.t()",
         "y = S.t", "x = S.w", "x = S.t\ny = x[0]", "if i % 3 == 2: x = data(i, 4, 3)", "if i > 3: x = x.double()",
         "x.requires_grad_(i % 4 != 2)", "x.requires_grad_()", "x = x.t().contiguous().t()",
         "if i % 4 == 3: x = x.t().contiguous().t()", "if i == 4: y = x", "x = (S.w * 2)[0]", "y = x.view(-1)",
         "if i > 2: x = data(i, 0, 3)", "x = data(1, 3, 3)", "y = tj.from_numpy(x.numpy())", "if i == 5: y = x.detach()",
         "y.requires_grad_()\nx = y * 2")
    )  # fmt: skip
    lines += [part for part in change.split("\n") if part]
    lines.append("return x, y, " + w.pick(("i % 3", "1", "2", "i", "i // 3", "0.5", "i * 0.5", "1 if i < 4 else 2")))
    return lines
