"""Advice for graph breaks, divergences and bailouts: one table of patterns over the reasons that the tracer gives.

`advice_for` looks a single reason up. `advise` sums up a whole function, at the end of `explain()` and `tapejit run`: what is
harmless once (another shape, another number) is only worth a sentence when it keeps happening.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...api.path_cache import list_some

READS = ("a value is read", "memory is shared with NumPy")
SHAPES = re.compile(r"^(\w+) gets a tensor of shape (\[.*?\]), recorded with (\[.*?\])$")
MANY_SHAPES = re.compile(r"(\w+) gets tensors of (\d+) shapes \((.*)\)$")
NUMBERS = re.compile(r"^(\w+) gets the number (.+), recorded with (.+)$")
SETTINGS = re.compile(r"^(\w+) gets (\{.*\}), recorded with (\{.*\})$")
MANY_SETTINGS = re.compile(r"takes a new path: (\w+) gets (\{.*)$")
READING = re.compile(r"[\w.\[\]]+\.(?:item|tolist|numpy|cpu)\(\)")

READ_LESS = "read it every 50 steps, or return the tensor and read it outside"
FEWER_SHAPES = "keep batches of one size (`DataLoader(drop_last=True)`), pad to a few sizes"
AS_A_TENSOR = "make it a tensor, `tensor(number)`"
TENSOR_BOUNDS = (
    "use a tensor where the function accepts one (`x[i + arange(n)]` instead of `x[i : i + n]`, with a tensor i), or keep them "
    "the same"
)
NO_UNDERSCORE = "use the op without the underscore, `x = x.add(y)` instead of `x.add_(y)`"


@dataclass(frozen=True)
class Rule:
    """A pattern of reasons and the advice for them. `{0}` in the advice is the first group of the pattern."""

    pattern: str
    advice: str

    def applied(self, reason: str) -> str | None:
        match = re.search(self.pattern, reason)
        return None if match is None else self.advice.format(*match.groups())


RULES = [
    # ---- values that Python reads
    Rule("^a value is read$", f"a value has to be computed before it can be read, so the segment ends here: {READ_LESS}"),
    Rule("^memory is shared with NumPy$", "keep it a tensor, or convert the result outside of the function"),
    Rule("^the tape is read$", "inspect `grad_fn` and the like outside of the function"),
    Rule(r"^(\w+) checks its indices$", "{0} checks indices that were computed inside: compute them outside and pass them"),
    Rule(
        r"^(\w+) depends on values$",
        "the result shape of {0} depends on values: `where`, or multiplying by a mask, keeps the shape and needs no break",
    ),
    Rule(
        "^a value moves to another device$",
        "a computed tensor has to be finished before it is copied: create it on the device that needs it "
        '(`arange(n, device="cuda")`), or move the result outside of the function',
    ),
    Rule("^a slice starts elsewhere in each call$", "index by a tensor: `x[i + arange(n)]`, with a tensor i"),
    Rule("^inference mode begins or ends$", "`no_grad()` instead of `inference_mode()` needs no break"),
    # ---- writing
    Rule("^writes memory that another tensor shares$", f"clone() the tensor first, or {NO_UNDERSCORE}"),
    Rule(r"^\w+ writes a (?:view|tensor) that has a history$", NO_UNDERSCORE),
    Rule("shape is changed in place", "use the op without the underscore, such as `x.unsqueeze(0)`"),
    Rule("^`data` is assigned$", "write to the tensor instead: `with no_grad(): p.copy_(value)`"),
    Rule("^out= is resized$", "give `out=` a tensor of the right shape"),
    Rule(r"^(?:writes|views) memory that a NumPy array shares", "clone() the tensor that was made from a NumPy array"),
    # ---- backward passes and Functions
    Rule(r"^(\w+)\.apply$", "{0} runs eagerly, between two segments: if it consists of tensor ops, write a plain function"),
    Rule("^backward: create_graph$", "gradients of gradients run eagerly: keep them in a function that is not compiled"),
    Rule("^backward: inputs=$", "call `backward()` without `inputs=`, or `autograd.grad` for those tensors"),
    Rule(
        "^backward: (?:the history begins outside of the function|a tensor from outside appears in it)$",
        "the history begins outside of the function: compute the whole loss inside, or `detach()` the arguments",
    ),
    Rule(r"^backward: (\w+) runs user code$", "{0} has a hook, or is a custom Function: without it the pass is compiled"),
    Rule("^backward: a part of the graph was freed$", "one backward pass for the sum of the losses, or `retain_graph=True`"),
    Rule("^backward", "a backward pass that cannot be planned runs eagerly: compute the loss inside the function"),
    Rule("^another backward pass than in the recording$", "call `backward` on the same tensors, with the same arguments"),
    # ---- differences between calls
    Rule(SHAPES.pattern, f"each shape is recorded separately: {FEWER_SHAPES}"),
    Rule(NUMBERS.pattern, AS_A_TENSOR),
    Rule(SETTINGS.pattern, f"each setting is recorded separately: {TENSOR_BOUNDS}"),
    Rule(MANY_SHAPES.pattern, f"each shape is recorded separately: {FEWER_SHAPES}"),
    Rule(r"(\w+) gets \d+ numbers", AS_A_TENSOR),
    Rule(MANY_SETTINGS.pattern, f"each setting is recorded separately: {TENSOR_BOUNDS}"),
    Rule(r"^\w+ gets (\w+\d+|bool), recorded with (\w+)$", "pass one dtype: `x.to({1})` outside"),
    Rule(r"with requires_grad=", "pass tensors that always require a gradient, or never: `detach()` outside"),
    Rule("runs (?:with|without) gradients", "each mode is recorded separately: two functions, to train and to evaluate"),
    Rule("gets other tensors than in the recording$", "pass the tensor as an argument instead of replacing an attribute"),
    Rule("runs where the recording has", "another branch is recorded separately: `where` instead of `if` has one path"),
    Rule("^the function returns earlier$", "an early return is a separate path; `where` instead of `if` has one path"),
    Rule("every call takes a new path", "something differs at each call: pass it as a tensor, or compile a smaller part"),
    # ---- calls that are not compiled
    Rule(r"^TAPEJIT=eager$", "unset the environment variable TAPEJIT"),
    Rule(r"^within `with eager\(\):`$", "call it outside of the block"),
    Rule("^anomaly detection$", "switch `detect_anomaly` off once the error is found"),
    Rule("^inference mode$", "use `no_grad()` instead of `inference_mode()`"),
    Rule("keeps diverging from its recordings", "`TAPEJIT_LOG=recompiles` prints each divergence and its reason"),
    Rule(r"reads values \d+ times or more in one call", "read values outside, or compile the part between two reads"),
    Rule(r"^pure=True, but (.*): replayed with Python$", "remove `pure=True`, or change the function so that it does not: {0}"),
    # ---- segments without native code
    Rule(r"the backend is (\w+)", "`backend=\"auto\"` generates native code, unless TAPEJIT_BACKEND says otherwise"),
    Rule("its arrays may share memory", "clone() the tensors that are written, so that nothing else shares their memory"),
    Rule("so it is not used", "too little work for native code to pay off: try a larger batch, or more of the step at once"),
    Rule("as compiling failed", "this is a bug in tapejit, please report it; results are right, without native code"),
    Rule(r"^reference program: \[compile\]", "clone() the tensor that is named, or leave it: results are right, but slower"),
]  # fmt: skip


def advice_for(reason: str) -> str | None:
    """Return the advice for a reason, or None if there is none."""
    return next((found for rule in RULES if (found := rule.applied(reason)) is not None), None)


# ---- a whole function


def advise(facts: dict[str, Any], budget: int) -> list[str]:
    """Return sentences about what keeps a function from being faster, from the facts that `explain` collected."""
    return [*about_reads(facts), *about_shapes(facts, budget), *about_numbers(facts), *about_settings(facts)]


def about_reads(facts: dict[str, Any]) -> Iterator[str]:
    """Advise on values that are read inside: each read ends a segment."""
    times: Counter[str] = Counter()
    for path in facts["paths"]:
        for line in {b["line"] for b in path["breaks"] if b["reason"] in READS}:
            times[line] += path["replays"]
    for line, n in times.items():
        when = "each step" if n == facts["replays"] else f"in {n} of {facts['replays']} steps"
        yield f"{source(line)} at {line} ends the segment {when}: {READ_LESS}"


def source(line: str) -> str:
    """Return the text of a line, or only the expression in it that reads a tensor."""
    file, _, number = line.rpartition(":")
    linecache.checkcache(file)  # the file may have changed
    text = linecache.getline(file, int(number)).strip()
    found = READING.search(text)
    return f"`{found.group() if found else text}`" if text else "a value read"


def about_shapes(facts: dict[str, Any], budget: int) -> Iterator[str]:
    """Advise on shapes that keep changing, during warm-up or after it."""
    changes: dict[tuple[str, str], dict[str, None]] = {}
    for d in facts["divergences"]:
        match = SHAPES.match(d["reason"])
        if match is not None:
            op, now, then = match.groups()
            changes.setdefault((op, f" at {d['line']}"), {}).update({then: None, now: None})
    found = [(op + where, len(shapes), list_some(shapes)) for (op, where), shapes in changes.items()]
    match = MANY_SHAPES.search(facts["gave_up"] or facts["disagreement"] or "")
    if match is not None and not found:
        found = [(match[1], int(match[2]), match[3])]
    for where, number, shapes in found:
        if number > 2:
            yield (
                f"{where} gets tensors of {number} shapes ({shapes}), and each is recorded separately: {FEWER_SHAPES}, or "
                f"allow more recordings than budget={budget}"
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
            yield f"{op} at {line} gets other numbers each time ({list_some(numbers)}): {AS_A_TENSOR}"


def about_settings(facts: dict[str, Any]) -> Iterator[str]:
    """Advise on settings of ops (slice bounds, limits), which are constants of a recording."""
    changes: dict[str, dict[str, None]] = {}
    for d in facts["divergences"]:
        match = SETTINGS.match(d["reason"])
        if match is not None:
            op, now, then = match.groups()
            changes.setdefault(f"{op} at {d['line']}", {}).update({then: None, now: None})
    found = [(where, list_some(settings)) for where, settings in changes.items() if len(settings) > 2]
    match = MANY_SETTINGS.search(facts["gave_up"] or facts["disagreement"] or "")
    if match is not None and not found:
        found = [(match[1], match[2])]
    for where, settings in found:
        yield f"{where} gets other settings each time ({settings}), and each is recorded separately: {TENSOR_BOUNDS}"
