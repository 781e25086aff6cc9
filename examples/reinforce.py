"""REINFORCE: a policy learns to walk to the goal in a small world with a wall, from nothing but the time it takes.

    python examples/reinforce.py [--steps 400] [--device cuda] [--compile] [--watch page.html]

A step is one update from 4 walks, each of which is as long as it happens to be: control flow that depends on data. Prints
the mean length of walks from all fields; a correct run finds the shortest paths, which take 5.27 steps on average.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tapejit as tj
from common import Run, parse, train

WORLD = (
    "......",
    ".####.",
    "....#.",
    ".##.#.",
    "......",
    "..#..G",
)  # fmt: skip
FREE = [(r, c) for r, row in enumerate(WORLD) for c, field in enumerate(row) if field == "."]
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
LIMIT, WALKS = 40, 4


def move(place: tuple[int, int], action: int) -> tuple[int, int]:
    """Return the place that an action leads to; walls and edges leave one where one is."""
    r, c = place[0] + MOVES[action][0], place[1] + MOVES[action][1]
    inside = 0 <= r < len(WORLD) and 0 <= c < len(WORLD[0]) and WORLD[r][c] != "#"
    return (r, c) if inside else place


def build(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(len(WORLD) * len(WORLD[0]), 32), nn.Tanh(), nn.Linear(32, len(MOVES)))


def setup(torch: Any, steps: int, device: str = "cpu", choose: Callable[[Any], Any] | None = None) -> Run:
    """`choose` draws an action from a distribution; comparisons of two libraries draw the same ones."""
    policy = build(torch).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    fields = torch.eye(len(WORLD) * len(WORLD[0]), device=device)
    choose = choose or (lambda distribution: distribution.sample())
    usual = {place: float(LIMIT) for place in FREE}  # the time a walk from here took of late

    def walk(place: tuple[int, int]) -> tuple[list[tuple[int, int]], list[Any], list[Any]]:
        """Walk until the goal, or until it has taken too long."""
        places, log_probs, entropies = [], [], []
        while WORLD[place[0]][place[1]] != "G" and len(places) < LIMIT:
            chances = torch.distributions.Categorical(logits=policy(fields[place[0] * len(WORLD[0]) + place[1]]))
            action = choose(chances)
            log_probs.append(chances.log_prob(action))
            entropies.append(chances.entropy())
            places.append(place)
            place = move(place, int(action))
        return places, log_probs, entropies

    def step(starts: list[tuple[int, int]]) -> Any:
        loss = 0.0
        for start in starts:
            places, log_probs, entropies = walk(start)
            delays = []
            for i, place in enumerate(places):
                delays.append(len(places) - i - usual[place])  # how much longer it took from here than it usually does
                usual[place] += 0.1 * delays[-1]
            weights = torch.tensor(delays, device=device) / LIMIT
            loss = loss + (weights * torch.stack(log_probs)).sum() - 0.01 * torch.stack(entropies).sum()
        loss = loss / len(starts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    rng = np.random.default_rng(0)
    return Run(policy, step, (([FREE[i] for i in rng.integers(len(FREE), size=WALKS)],) for _ in itertools.count()))


def length_of(policy: Any, place: tuple[int, int], device: str) -> int:
    """Count the steps of the walk that follows the likeliest actions."""
    fields = tj.eye(len(WORLD) * len(WORLD[0]), device=device)
    count = 0
    while WORLD[place[0]][place[1]] != "G" and count < LIMIT:
        place = move(place, int(policy(fields[place[0] * len(WORLD[0]) + place[1]]).argmax()))
        count += 1
    return count


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 400, arguments)
    run = setup(tj, options.steps, options.device)
    train(run, options)
    with tj.no_grad():
        length = sum(length_of(run.model, place, options.device) for place in FREE) / len(FREE)
    print(f"{length:.2f} steps to the goal on average, after {options.steps} updates")
    return length


if __name__ == "__main__":
    main()
