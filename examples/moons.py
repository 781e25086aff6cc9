"""A multi-layer perceptron on two moons, as in micrograd's demo.

    python examples/moons.py [--steps 300] [--device cuda] [--compile] [--watch page.html]

Prints the final accuracy; a correct run reaches more than 97 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tapejit as tj
from common import Run, parse, train

COUNT = 200


def moons(torch: Any, device: str) -> tuple[Any, Any]:
    """Two interleaved half circles with noise, and which one each point is from."""
    rng = np.random.default_rng(1337)
    angle = rng.uniform(0, np.pi, COUNT)
    which = np.arange(COUNT) % 2
    sign = 1 - 2 * which
    points = np.stack([np.cos(angle) * sign + which, np.sin(angle) * sign + which * 0.5], 1) + rng.normal(0, 0.1, (COUNT, 2))
    return torch.tensor(points, dtype=torch.float32, device=device), torch.tensor(which, dtype=torch.float32, device=device)


def setup(torch: Any, steps: int, device: str = "cpu") -> Run:
    nn = torch.nn
    x, y = moons(torch, device)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    loss_of = nn.BCEWithLogitsLoss()

    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return Run(model, step, itertools.repeat((x, y)))


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 300, arguments)
    run = setup(tj, options.steps, options.device)
    loss = train(run, options)
    x, y = next(run.batches)
    with tj.no_grad():
        accuracy = ((run.model(x) > 0) == (y > 0.5)).float().mean().item()
    print(f"loss {loss:.4f}, accuracy {accuracy:.1%} after {options.steps} steps")
    return accuracy


if __name__ == "__main__":
    main()
