"""A generative adversarial network, two optimizers: the generator learns to put points on a circle by being judged.

    python examples/gan.py [--steps 2000] [--device cuda] [--compile] [--watch page.html]

Prints how far the generated points are from the circle of radius 1 on average, and how much of the circle they cover. A
correct run ends with a distance below 0.1; untrained, it is about 0.9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tapejit as tj
from common import Run, parse, train

NOISE, BATCH, WIDTH = 4, 64, 64


def build(torch: Any) -> Any:
    nn = torch.nn

    class Pair(nn.Module):
        """Both networks, so that they are saved, moved and watched together."""

        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(
                nn.Linear(NOISE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)
            )
            self.judge = nn.Sequential(
                nn.Linear(2, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1)
            )

    return Pair()


def setup(torch: Any, steps: int, device: str = "cpu") -> Run:
    F = torch.nn.functional
    model = build(torch).to(device)
    generator, judge = model.generator, model.judge
    by_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    by_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.99))
    ones, zeros = torch.ones(BATCH, 1, device=device), torch.zeros(BATCH, 1, device=device)

    def step(real: Any, noise: Any) -> Any:
        made = generator(noise)
        doubt = F.binary_cross_entropy_with_logits(judge(real), ones) + F.binary_cross_entropy_with_logits(
            judge(made.detach()), zeros
        )
        by_judge.zero_grad()
        doubt.backward()
        by_judge.step()

        loss = F.binary_cross_entropy_with_logits(judge(made), ones)
        by_generator.zero_grad()
        loss.backward()
        by_generator.step()
        return loss

    def batches() -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng(0)
        while True:
            angle = rng.uniform(0, 2 * math.pi, BATCH)
            real = np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(0, 0.02, (BATCH, 2))
            noise = rng.normal(size=(BATCH, NOISE))
            yield tuple(torch.tensor(a, dtype=torch.float32, device=device) for a in (real, noise))

    return Run(model, step, batches())


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 2000, arguments)
    run = setup(tj, options.steps, options.device)
    train(run, options)
    with tj.no_grad():
        x, y = run.model.generator(tj.randn(1000, NOISE, device=options.device)).unbind(1)
    distance = (tj.sqrt(x * x + y * y) - 1).abs().mean().item()
    sectors = (tj.atan2(y, x) / (2 * math.pi) * 36).floor().unique().numel() / 36
    print(f"distance from the circle {distance:.4f}, covered {sectors:.0%} of it, after {options.steps} steps")
    return distance


if __name__ == "__main__":
    main()
