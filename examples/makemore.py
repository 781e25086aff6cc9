"""Names, character by character: a multi-layer perceptron with batch norm that reads three letters and guesses the next.

    python examples/makemore.py [--steps 1000] [--device cuda] [--compile] [--watch page.html]

The names are put together from syllables. Prints some that the network makes up, and the loss on names it has not seen,
which a correct run brings below 2.2. `--watch` draws the pictures by which such networks are debugged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tapejit as tj
from common import Run, parse, train

ONSETS = ("b", "br", "c", "d", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w", "z", "")
VOWELS = ("a", "a", "e", "e", "i", "o", "u", "ia", "ei", "y")
CODAS = ("", "", "", "n", "l", "r", "s", "m", "th", "nd", "x")
LETTERS = ".abcdefghijklmnopqrstuvwxyz"  # the dot begins and ends a name
CONTEXT, BATCH = 3, 64


def names(count: int = 3000) -> list[str]:
    rng = np.random.default_rng(0)

    def syllable() -> str:
        return str(rng.choice(ONSETS)) + str(rng.choice(VOWELS)) + str(rng.choice(CODAS))

    return ["".join(syllable() for _ in range(rng.integers(1, 4))) for _ in range(count)]


def examples(torch: Any, words: list[str], device: str) -> tuple[Any, Any]:
    """Each three letters in a row, and the one after them."""
    contexts, targets = [], []
    for word in words:
        codes = [0] * CONTEXT + [LETTERS.index(letter) for letter in word] + [0]
        for i in range(CONTEXT, len(codes)):
            contexts.append(codes[i - CONTEXT : i])
            targets.append(codes[i])
    return torch.tensor(contexts, device=device), torch.tensor(targets, device=device)


def build(torch: Any, width: int = 100) -> Any:
    nn = torch.nn
    model = nn.Sequential(
        nn.Embedding(len(LETTERS), 10),
        nn.Flatten(),
        nn.Linear(10 * CONTEXT, width, bias=False), nn.BatchNorm1d(width), nn.Tanh(),
        nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.Tanh(),
        nn.Linear(width, len(LETTERS)),
    )  # fmt: skip
    with torch.no_grad():
        model[-1].weight.mul_(0.1)  # unsure at first, so that no steps go into unlearning
    return model


def setup(torch: Any, steps: int, device: str = "cpu") -> Run:
    x, y = examples(torch, names()[:2700], device)
    model = build(torch).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * 3 // 4], gamma=0.1)

    def step(x: Any, y: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    def batches() -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng(1)
        while True:
            index = torch.from_numpy(rng.integers(len(y), size=BATCH)).to(device)
            yield x[index], y[index]

    return Run(model, step, batches())


def make_up(model: Any, device: str) -> str:
    """A new name, a letter at a time."""
    codes = [0] * CONTEXT
    while len(codes) < 20:
        logits = model(tj.tensor([codes[-CONTEXT:]], device=device))
        letter = int(tj.multinomial(logits.softmax(1), 1))
        if letter == 0:
            break
        codes.append(letter)
    return "".join(LETTERS[code] for code in codes[CONTEXT:])


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 1000, arguments)
    run = setup(tj, options.steps, options.device)
    loss = train(run, options)
    run.model.eval()
    with tj.no_grad():
        x, y = examples(tj, names()[2700:], options.device)
        unseen = tj.nn.functional.cross_entropy(run.model(x), y).item()
        print(*[make_up(run.model, options.device) for _ in range(12)])
    print(f"loss {loss:.4f}, on unseen names {unseen:.4f} after {options.steps} steps")
    return unseen


if __name__ == "__main__":
    main()
