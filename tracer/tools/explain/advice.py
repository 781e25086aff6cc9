"""What to do about a break, a divergence or a fallback: one table, by the reason in words.

`advice_for` looks a single reason up. `advise` sums a function's facts up, as `explain()` and `tapejit run` end with it: what
is harmless once (another shape, another number) is only worth a sentence when it keeps happening.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

READS = ("a value is read", "memory is shown to NumPy")
SHAPES = re.compile(r"^(\w+) is given a tensor of shape (\[.*?\]), and was given (\[.*?\])$")
MANY_SHAPES = re.compile(r"(\w+) is given tensors of (\d+) shapes \((.*)\)$")
NUMBERS = re.compile(r"^(\w+) is given the number (.+), and was given (.+)$")
SETTINGS = re.compile(r"^(\w+) is given (\{.*\}), and was given (\{.*\})$")
MANY_SETTINGS = re.compile(r"never agree: (\w+) is given (\{.*)$")
READING = re.compile(r"[\w.\[\]]+\.(?:item|tolist|numpy|cpu)\(\)")
MOST = 6  # of a kind are listed

READ_LESS = "read it every 50 steps, or return the tensor and read it outside"
FEWER_SHAPES = "keep batches of one size (`DataLoader(drop_last=True)`), pad to a few sizes"
AS_A_TENSOR = "make it a tensor, `tensor(number)`"
TENSOR_BOUNDS = (
    "give a tensor where the function takes one (`x[i + arange(n)]` instead of `x[i : i + n]`, with a tensor i), or keep them "
    "the same"
)
NO_UNDERSCORE = "use the function without the underscore, `x = x.add(y)` instead of `x.add_(y)`"


@dataclass(frozen=True)
class Rule:
    """Reasons of a kind, and the advice for them. In the advice `{0}` is what the pattern's first group found."""

    pattern: str
    advice: str

    def applied(self, reason: str) -> str | None:
        match = re.search(self.pattern, reason)
        return None if match is None else self.advice.format(*match.groups())


RULES = [
    # ---- what Python does with values
    Rule("^a value is read$", f"a value can only be read when it is there, so the program ends here: {READ_LESS}"),
    Rule("^memory is shown to NumPy$", "keep it a tensor, or convert what the function returns"),
    Rule("^the tape is looked at$", "look at `grad_fn` and the like outside of the function"),
    Rule(r"^(\w+) looks at its indices$", "{0} checks indices that were computed inside: compute them outside and pass them"),
    Rule(
        r"^(\w+) depends on values$",
        "how much {0} gives depends on values: `where`, or a product with a mask, keeps the shape and needs no break",
    ),
    Rule(
        "^a value goes to another device$",
        'what is computed here has to be there first: make it where it is wanted (`arange(n, device="cuda")`), or move what '
        "the function returns",
    ),
    Rule("^a slice begins elsewhere at each call$", "take what is computed inside by a tensor: `x[i + arange(n)]`, tensor i"),
    Rule("^inference mode begins or ends$", "`no_grad()` instead of `inference_mode()` needs no break"),
    # ---- writing
    Rule("^memory that others can see is written$", f"something else shows this memory: clone() it first, or {NO_UNDERSCORE}"),
    Rule(r"^\w+ writes into (?:a view that|what) has a history$", NO_UNDERSCORE),
    Rule("shape is changed in place", "use the function without the underscore, such as `x.unsqueeze(0)`"),
    Rule("^data is assigned$", "write into the tensor: `with no_grad(): p.copy_(value)`"),
    Rule("^out= is resized$", "give `out=` a tensor of the right shape"),
    Rule(r"^memory that a NumPy array shows is (?:written|viewed)", "clone() the tensor that was made of a NumPy array"),
    # ---- backward passes and Functions
    Rule(r"^(\w+)\.apply$", "{0} runs as it is, between two programs: if it is made of tensor ops, write a plain function"),
    Rule("^backward: create_graph$", "gradients of gradients run eagerly: keep them in a function of their own, not compiled"),
    Rule("^backward: inputs=$", "call `backward()` without `inputs=`, or `autograd.grad` for those tensors"),
    Rule(
        "^backward: (?:the history goes back to what is not traced|a tensor from outside appears in it)$",
        "what is differentiated begins outside of the function: compute the loss inside too, or `detach()` what comes in",
    ),
    Rule(r"^backward: (\w+) runs code of its own$", "{0} has a hook, or is a custom Function: without it the pass is compiled"),
    Rule("^backward: a part of the graph was used up$", "one backward pass for the sum of the losses, or `retain_graph=True`"),
    Rule("^backward", "a backward pass that cannot be foreseen runs eagerly: compute the loss inside of the function"),
    Rule("^another backward pass than in the recording$", "call `backward` on the same tensors, with the same arguments"),
    # ---- what differs from call to call
    Rule(SHAPES.pattern, f"each shape is recorded by itself: {FEWER_SHAPES}"),
    Rule(NUMBERS.pattern, AS_A_TENSOR),
    Rule(SETTINGS.pattern, f"each setting is recorded by itself: {TENSOR_BOUNDS}"),
    Rule(MANY_SHAPES.pattern, f"each shape is recorded by itself: {FEWER_SHAPES}"),
    Rule(r"(\w+) is given \d+ numbers", AS_A_TENSOR),
    Rule(MANY_SETTINGS.pattern, f"each setting is recorded by itself: {TENSOR_BOUNDS}"),
    Rule(r"^\w+ is given (\w+\d+|bool), and was given (\w+)$", "give it one dtype: `x.to({1})` outside"),
    Rule(r"with requires_grad=", "give it tensors that always require a gradient, or never: `detach()` outside"),
    Rule("runs (?:with|without) gradients", "each way is recorded by itself: two functions, for training and for evaluation"),
    Rule("is given other tensors than in the recording$", "pass the tensor as an argument instead of replacing an attribute"),
    Rule("comes where the recording has", "Python went another way, which is recorded too: `where` instead of `if` has one"),
    Rule("^the function returns earlier$", "an early return is a path of its own; `where` instead of `if` has one path"),
    Rule("its recordings never agree", "something differs at each call: pass it as a tensor, or compile a smaller part"),
    # ---- calls that are not compiled
    Rule(r"^TAPEJIT=eager$", "unset the environment variable TAPEJIT"),
    Rule(r"^within `with eager\(\):`$", "call it outside of the block"),
    Rule("^anomaly detection$", "switch `detect_anomaly` off when the error is found"),
    Rule("^inference mode$", "use `no_grad()` instead of `inference_mode()`"),
    Rule("keeps diverging from its recordings", "see why it gave up, and what it diverged by (`TAPEJIT_LOG=recompiles`)"),
    Rule(r"reads values \d+ times or more in one call", "read values outside, or compile the part between two reads"),
    Rule(r"^pure=True, but (.*): replayed with Python$", "leave `pure=True` away, or see to it that this is not so: {0}"),
    # ---- segments without native code
    Rule(r"the backend is (\w+)", "`backend=\"auto\"` makes native code, if TAPEJIT_BACKEND does not say otherwise"),
    Rule("its arrays may share memory", "clone() what is written, so that nothing else shows its memory"),
    Rule("so it is not used", "it is too short for native code to pay; a larger batch, or more of the step in one function"),
    Rule("generating code failed", "a bug of tapejit's: please report it; it runs right, without native code"),
    Rule(r"^a plain program: \[compile\]", "clone() the tensor that is named, or leave it: it runs right, but slower"),
]  # fmt: skip


def advice_for(reason: str) -> str | None:
    """What can be done about a reason, or None if nothing is known."""
    return next((found for rule in RULES if (found := rule.applied(reason)) is not None), None)


# ---- of a whole function


def advise(facts: dict[str, Any], budget: int) -> list[str]:
    """Sentences about what keeps a function from being faster, from what `explain` has found out."""
    return [*about_reads(facts), *about_shapes(facts, budget), *about_numbers(facts), *about_settings(facts)]


def about_reads(facts: dict[str, Any]) -> Iterator[str]:
    """Values that are read inside: each read ends a segment."""
    times: Counter[str] = Counter()
    for path in facts["paths"]:
        for line in {b["line"] for b in path["breaks"] if b["reason"] in READS}:
            times[line] += path["replays"]
    for line, n in times.items():
        when = "each step" if n == facts["replays"] else f"in {n} of {facts['replays']} steps"
        yield f"{source(line)} at {line} ends the segment {when}: {READ_LESS}"


def source(line: str) -> str:
    """What a line says: of one that reads a tensor, the part that does."""
    file, _, number = line.rpartition(":")
    linecache.checkcache(file)  # it may have changed, or be another one of this name
    text = linecache.getline(file, int(number)).strip()
    found = READING.search(text)
    return f"`{found.group() if found else text}`" if text else "what is read"


def about_shapes(facts: dict[str, Any], budget: int) -> Iterator[str]:
    """Shapes that keep changing, after the warm-up or in it."""
    changes: dict[tuple[str, str], dict[str, None]] = {}
    for d in facts["divergences"]:
        match = SHAPES.match(d["reason"])
        if match is not None:
            op, now, then = match.groups()
            changes.setdefault((op, f" at {d['line']}"), {}).update({then: None, now: None})
    found = [(op + where, len(shapes), listed(shapes)) for (op, where), shapes in changes.items()]
    match = MANY_SHAPES.search(facts["gave_up"] or facts["disagreement"] or "")
    if match is not None and not found:
        found = [(match[1], int(match[2]), match[3])]
    for where, number, shapes in found:
        if number > 2:
            yield (
                f"{where} is given tensors of {number} shapes ({shapes}), and each is recorded by itself: {FEWER_SHAPES}, or "
                f"allow for more recordings than budget={budget}"
            )


def about_numbers(facts: dict[str, Any]) -> Iterator[str]:
    changes: dict[tuple[str, str], dict[str, None]] = {}
    for d in facts["divergences"]:
        match = NUMBERS.match(d["reason"])
        if match is not None:
            op, now, then = match.groups()
            changes.setdefault((op, d["line"]), {}).update({then: None, now: None})
    for (op, line), numbers in changes.items():
        if len(numbers) > 2:
            yield f"{op} at {line} is given other numbers each time ({listed(numbers)}): {AS_A_TENSOR}"


def about_settings(facts: dict[str, Any]) -> Iterator[str]:
    """The bounds of slices, limits and the like, which are part of a recording."""
    changes: dict[str, dict[str, None]] = {}
    for d in facts["divergences"]:
        match = SETTINGS.match(d["reason"])
        if match is not None:
            op, now, then = match.groups()
            changes.setdefault(f"{op} at {d['line']}", {}).update({then: None, now: None})
    found = [(where, listed(settings)) for where, settings in changes.items() if len(settings) > 2]
    match = MANY_SETTINGS.search(facts["gave_up"] or facts["disagreement"] or "")
    if match is not None and not found:
        found = [(match[1], match[2])]
    for where, settings in found:
        yield f"{where} is given other settings each time ({settings}), and each is recorded by itself: {TENSOR_BOUNDS}"


def listed(things: Iterable[str]) -> str:
    things = list(things)
    return ", ".join(things[:MOST]) + ", ..." * (len(things) > MOST)
