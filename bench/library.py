"""The library against PyTorch on the CPU: training steps of the examples' models, and batches from a DataLoader.

    python bench/library.py [NAME ...] [--rounds 20] [--json FILE]

The models, optimizers and steps are those of `examples/`, built with either library and begun from the same weights. The
data of a step is made beforehand. Where sequences vary in length, eight batches make one step; in `reinforce` it is one
walk of actions drawn beforehand, so that both libraries always do the same work. `loader` is one pass over 10000 rows in
memory, in random order. How times are taken is said in `bench/eager.py`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import sys
from pathlib import Path
from typing import Any

from compare import Step, Workloads, run, values

EXAMPLES = ("moons", "makemore", "sequences", "chargpt", "digits", "custom_function", "gan", "reinforce")
TOGETHER = {"sequences": 8}  # batches to a step
FLOORS = {**dict.fromkeys(EXAMPLES, 2.0), "loader 64": 1.0, "loader 512": 1.0}

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))


def same_weights(torch: Any, model: Any) -> None:
    """Initial weights that do not depend on a library's random numbers."""
    with torch.no_grad():
        for i, (name, p) in enumerate(model.named_parameters()):
            if "bias" in name:
                p.zero_()
            elif p.dim() > 1:  # the weights of norms are ones in both
                p.copy_(values(torch, *p.shape, scale=1 / math.sqrt(math.prod(p.shape[1:])), shift=17 * i))


def example(name: str, torch: Any) -> Step:
    setup = importlib.import_module(name).setup
    if name == "reinforce":
        return walks(torch, setup)
    training = setup(torch, 10**6)  # so many that no schedule ends
    same_weights(torch, training.model)
    count = TOGETHER.get(name, 1)
    prepared = itertools.cycle([next(training.batches) for _ in range(8)])

    def step() -> Any:
        for _ in range(count):
            loss = training.step(*next(prepared))
        return loss

    return step


def walks(torch: Any, setup: Any) -> Step:
    """Always the same walks: what is learned must not make them shorter for the quicker library."""
    actions: Any = None
    training = setup(torch, 10**6, choose=lambda distribution: torch.tensor(next(actions)))
    same_weights(torch, training.model)
    starts = next(training.batches)[0][:1]

    def step() -> Any:
        nonlocal actions
        actions = ((7 * i + i // 3) % 4 for i in itertools.count())
        return training.step(starts)

    return step


def loader(batch: int, torch: Any) -> Step:
    data = torch.utils.data
    dataset = data.TensorDataset(torch.ones(10000, 32), torch.arange(10000))
    batches = data.DataLoader(dataset, batch_size=batch, shuffle=True)

    def step() -> Any:
        rows = sum(len(x) + len(y) for x, y in batches)
        return torch.tensor(float(rows))

    return step


WORKLOADS: Workloads = {
    **{name: functools.partial(example, name) for name in EXAMPLES},
    **{f"loader {batch}": functools.partial(loader, batch) for batch in (64, 512)},
}

if __name__ == "__main__":
    run(__file__, __doc__, FLOORS, WORKLOADS, {})
