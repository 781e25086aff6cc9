"""Do the brackets match? A GRU over sequences of varying length, as a plain loop over time.

    python examples/sequences.py [--steps 600] [--device cuda] [--compile] [--watch page.html]

Prints the accuracy on sequences it has not seen, up to twice as long as most it was trained on; a correct run reaches more
than 95 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tapejit as tj
from common import Run, parse, train

BATCH, WIDTH = 32, 32


def balanced(rng: Any, length: int) -> list[int]:
    """Random matching brackets: 0 opens, 1 closes."""
    found: list[int] = []
    depth = 0
    while len(found) < length:
        closes = depth > 0 and (depth == length - len(found) or rng.random() < 0.5)
        found.append(int(closes))
        depth += -1 if closes else 1
    return found


def matches(brackets: list[int]) -> bool:
    depth = 0
    for bracket in brackets:
        depth += 1 - 2 * bracket
        if depth < 0:
            return False
    return depth == 0


def draw(rng: Any, count: int, longest: int) -> tuple[Any, Any, Any]:
    """Padded sequences, their lengths, and whether they match: half of them do, half have two brackets changed."""
    tokens = np.zeros((count, longest), np.int64)
    lengths = 2 * rng.integers(1, longest // 2 + 1, size=count)
    labels = np.zeros(count, np.float32)
    for i, length in enumerate(lengths):
        found = balanced(rng, length)
        if i % 2:
            for place in rng.integers(length, size=2):
                found[place] = 1 - found[place]
        tokens[i, :length] = found
        labels[i] = matches(found)
    return tokens, lengths, labels


def build(torch: Any) -> Any:
    nn = torch.nn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(2, 8)
            self.cell = nn.GRUCell(8, WIDTH)
            self.head = nn.Linear(WIDTH, 1)

        def forward(self, tokens: Any, lengths: Any) -> Any:
            inputs = self.embedding(tokens)
            state = inputs.new_zeros(len(tokens), WIDTH)
            for t in range(int(lengths.max())):  # as many steps as the longest needs; the others stay where they ended
                state = torch.where((t < lengths).unsqueeze(1), self.cell(inputs[:, t], state), state)
            return self.head(state).squeeze(1)

    return Reader()


def setup(torch: Any, steps: int, device: str = "cpu") -> Run:
    model = build(torch).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def step(tokens: Any, lengths: Any, labels: Any) -> Any:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(tokens, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    def batches() -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng(0)
        while True:
            drawn = draw(rng, BATCH, 2 * int(rng.integers(2, 9)))
            yield tuple(torch.from_numpy(a).to(device) for a in drawn)

    return Run(model, step, batches())


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 600, arguments)
    run = setup(tj, options.steps, options.device)
    loss = train(run, options)
    tokens, lengths, labels = (tj.from_numpy(a).to(options.device) for a in draw(np.random.default_rng(99), 500, 20))
    with tj.no_grad():
        accuracy = ((run.model(tokens, lengths) > 0) == (labels > 0.5)).float().mean().item()
    print(f"loss {loss:.4f}, accuracy {accuracy:.1%} after {options.steps} steps")
    return accuracy


if __name__ == "__main__":
    main()
