"""Run one workload with one library, in one of its modes, in a process of its own: what `steps.py` measures.

Answers lines of JSON on standard input: {"do": "start" | "time" | "memory", ...}. JAX, MLX and tinygrad are only imported in
processes of their own, whose interpreters may be others and need neither tapejit nor PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from compare import peak_bytes, torch_peak
from workloads.data import LENGTHS

FIRST = 4  # steps on the first batch, in which everybody must have compiled
BLOCK = 0.005  # seconds: shorter steps are timed several together


class Side:
    """A step to be measured. What a library does differently is in the subclasses."""

    step: Any
    batches: list[tuple[Any, ...]]

    def finish(self, loss: Any) -> None:
        """Wait until the step that gave this loss is done."""

    def is_compiled(self) -> bool:
        return True

    def kept(self, loss: Any) -> Any:
        """The part of a loss that is kept while steps go on."""
        return loss

    def number(self, loss: Any) -> float:
        return float(loss.detach().item())

    def gradient_size(self) -> float:
        """The size of the gradients, for a step that ends with them; 0 where an optimizer used them, as the losses depend on
        them then."""
        raise NotImplementedError

    def peak(self) -> int | None:
        """Bytes that a step needs beyond those alive before it; None where the library does not tell."""
        raise NotImplementedError

    def last_step(self) -> Any:
        """A step on the largest batch."""
        return self.step(*self.batches[-1])


class TorchLike(Side):
    def __init__(self, library: str, workload: str) -> None:
        from workloads.torchlike import training

        self.torch = importlib.import_module(library)
        self.training = training(self.torch, workload)
        self.step, self.batches = self.training.step, self.training.batches

    def gradient_size(self) -> float:
        if self.training.optimizer is not None:
            return 0.0
        return float(sum((p.grad.detach() ** 2).sum().item() for p in self.training.parameters)) ** 0.5


class Tapejit(TorchLike):
    def __init__(self, way: str, workload: str) -> None:
        super().__init__("tapejit", workload)
        self.compiled = None if way == "eager" else self.torch.compile(self.training.step, pure=way == "pure")
        self.step = self.compiled or self.step

    def programs(self) -> list[Any]:
        """Native ones. A replay alone is no sign of them: it calls eager kernels until a segment is worth compiling."""
        traces = [*self.compiled.traces, self.compiled.candidate] if self.compiled else []
        segments = [s for trace in traces if trace is not None for s in trace.programs.values()]
        return [s.native for s in segments if getattr(s, "native", None) is not None]

    def is_compiled(self) -> bool:
        return self.compiled is None or bool(self.programs())

    def peak(self) -> int:
        """NumPy's arrays, and the memory that native programs keep from step to step, which was there before it."""
        from tapejit.tracer.tools.compare_speed import arena_bytes, segments

        kept = arena_bytes(segments(self.compiled)) if self.compiled else 0
        return int(peak_bytes("tapejit", self.last_step) + kept)


class Torch(TorchLike):
    def __init__(self, workload: str, threads: int) -> None:
        super().__init__("torch", workload)
        self.torch.set_num_threads(threads)

    def peak(self) -> int:
        self.last_step()
        return torch_peak(self.last_step)


class TorchCompileLoss(Torch):
    """The usual way: a compiled loss function, which has a compiled backward, and PyTorch's fused optimizer."""

    def __init__(self, workload: str, threads: int) -> None:
        super().__init__(workload, threads)
        importlib.import_module("torch._inductor.compile_fx")
        self.training.loss = self.torch.compile(self.training.loss, dynamic=False)


class TorchCompileStep(Torch):
    """The whole step as one graph, which must be asked for. Updates are written by hand: with one of PyTorch's optimizers
    inside of the graph, the weights stayed as they were."""

    def __init__(self, workload: str, threads: int) -> None:
        super().__init__(workload, threads)
        importlib.import_module("torch._dynamo.config").trace_autograd_ops = True
        importlib.import_module("torch._inductor.compile_fx")
        self.step = self.torch.compile(self.whole_step(), dynamic=False, fullgraph=True)

    def whole_step(self) -> Any:
        torch, training = self.torch, self.training
        update = self.update()

        def step(*batch: Any) -> Any:
            loss = training.loss(*batch)
            for p in training.parameters:
                p.grad = None
            loss.backward()
            with torch.no_grad():
                update()
            return loss.detach()

        return step

    def update(self) -> Any:
        optimizer, parameters = self.training.optimizer, self.training.parameters
        if optimizer is None:
            return lambda: None
        settings = optimizer.param_groups[0]
        if "betas" in settings:
            return self.adam(settings, decay=settings["weight_decay"])

        def sgd() -> None:
            for p in parameters:
                p.sub_(p.grad, alpha=settings["lr"])

        return sgd

    def adam(self, settings: dict[str, Any], decay: float) -> Any:
        torch, parameters = self.torch, self.training.parameters
        (b1, b2), lr, eps = settings["betas"], settings["lr"], settings["eps"]
        first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        count = torch.zeros(())

        def update() -> None:
            count.add_(1)
            size, correction = lr / (1 - b1**count), (1 - b2**count).sqrt()
            for p, m, v in zip(parameters, first, second, strict=True):
                m.lerp_(p.grad, 1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                p.mul_(1 - lr * decay)
                p.sub_(size * m / (v.sqrt() / correction + eps))

        return update


class Functional(Side):
    """A library whose workloads are functions: see `workloads/functional.py`."""

    module: str

    def __init__(self, workload: str) -> None:
        self.stepper = importlib.import_module(f"workloads.{self.module}").Stepper(workload)
        self.step, self.batches = self.stepper.step, self.stepper.batches

    def finish(self, loss: Any) -> None:
        self.stepper.finish()

    def number(self, loss: Any) -> float:
        return float(loss)

    def gradient_size(self) -> float:
        return float(self.stepper.gradient_size())

    def peak(self) -> int | None:
        return int(self.stepper.peak_bytes())


class Jax(Functional):
    module = "jaxed"

    def finish(self, loss: Any) -> None:
        loss.block_until_ready()


class Mlx(Functional):
    module = "mlxed"

    def number(self, loss: Any) -> float:
        return float(loss.item())


class Tinygrad(Functional):
    module = "tinied"

    def kept(self, loss: Any) -> Any:
        return loss.item()  # the next step writes into the same memory

    def is_compiled(self) -> bool:
        return bool(self.stepper.captured())

    def peak(self) -> int | None:
        return None


FUNCTIONAL: dict[str, type[Functional]] = {"jax": Jax, "tinygrad": Tinygrad, "mlx": Mlx}


def make(variant: str, workload: str, threads: int) -> Side:
    if variant in FUNCTIONAL:
        return FUNCTIONAL[variant](workload)
    if variant == "torch":
        return Torch(workload, threads)
    if variant == "compile-loss":
        return TorchCompileLoss(workload, threads)
    if variant == "compile-step":
        return TorchCompileStep(workload, threads)
    return Tapejit(variant, workload)


def cycle(workload: str) -> int:
    """The number of batches of different shapes."""
    return len(LENGTHS) if workload == "gru" else 1


def start(side: Side, steps: int) -> dict[str, Any]:
    """Seconds from the first call to the end of the first compiled step, if there was one; and the first losses."""
    losses: list[Any] = []
    first: float | None = None
    began = time.perf_counter()
    for i in range(FIRST + steps):
        loss = side.step(*side.batches[0 if i < FIRST else i % len(side.batches)])
        if first is None and side.is_compiled():
            side.finish(loss)
            first = time.perf_counter() - began
        losses.append(side.kept(loss))
    numbers = [side.number(loss) for loss in losses]
    return {"losses": numbers, "gradient": side.gradient_size(), "first": first, "compiled": side.is_compiled()}


def blocks(side: Side, workload: str, seconds: float) -> list[float]:
    """Seconds per step, of blocks of steps that go through all of the batches where these differ in shape."""

    def block(count: int) -> float:
        began = time.perf_counter()
        for i in range(count):
            loss = side.step(*side.batches[i % len(side.batches)])
        side.finish(loss)
        return (time.perf_counter() - began) / count

    shapes = cycle(workload)
    count = shapes * max(1, math.ceil(BLOCK / block(shapes) / shapes))
    found, end = [], time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        found.append(block(count))
    return found


@contextlib.contextmanager
def output_elsewhere() -> Iterator[Any]:
    """A file for the answers, which nothing that a library prints gets between."""
    with os.fdopen(os.dup(1), "w") as answers, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        yield answers


def serve(variant: str, workload: str, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    with output_elsewhere() as answers:
        side = None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request["do"] == "start":
                    side = make(variant, workload, threads)
                    answer: Any = start(side, request["steps"] * cycle(workload))
                elif request["do"] == "time":
                    assert side is not None
                    answer = blocks(side, workload, request["seconds"])
                else:
                    assert side is not None
                    answer = side.peak()
            except Exception as error:  # a peer that fails is a row of the table, not the end of it
                answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            print(json.dumps(answer), file=answers, flush=True)
