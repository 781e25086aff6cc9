"""A small convolutional network on digits that this script draws itself, shifted, faint and noisy.

    python examples/digits.py [--steps 400] [--device cuda] [--compile] [--watch page.html]

Prints the accuracy on digits it has not seen; a correct run reaches more than 96 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tapejit as tj
from common import Run, parse, train

# Five columns and seven rows, a hexadecimal pair a row.
FONT = (
    "0e11131519110e", "040c040404040e", "0e11010204081f", "1f02040201110e", "02060a121f0202",
    "1f101e0101110e", "0608101e11110e", "1f010204080808", "0e11110e11110e", "0e11110f01020c",
)  # fmt: skip
SIZE, BATCH = 14, 64


def draw(count: int, seed: int) -> tuple[Any, Any]:
    """Images of one channel, and the digits they show."""
    rng = np.random.default_rng(seed)
    glyphs = [
        np.array([[int(glyph[2 * r : 2 * r + 2], 16) >> (4 - c) & 1 for c in range(5)] for r in range(7)]) for glyph in FONT
    ]
    digits = rng.integers(10, size=count)
    images = rng.normal(0, 0.2, (count, 1, SIZE, SIZE)).astype(np.float32)
    for image, digit in zip(images, digits, strict=True):
        glyph = np.kron(glyphs[digit], np.ones((rng.integers(1, 3), rng.integers(1, 3))))[:SIZE]
        top, left = (rng.integers(SIZE - n + 1) for n in glyph.shape)
        image[0, top : top + glyph.shape[0], left : left + glyph.shape[1]] += rng.uniform(0.7, 1.3) * glyph
    return images, digits


def build(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(48, 10),
    )  # fmt: skip


def setup(torch: Any, steps: int, device: str = "cpu") -> Run:
    images, digits = draw(3000, seed=0)
    data = torch.utils.data
    dataset = data.TensorDataset(torch.from_numpy(images), torch.from_numpy(digits))
    model = build(torch).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    def batches() -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng(1)
        while True:
            order = rng.permutation(len(dataset)).tolist()
            for x, y in data.DataLoader(dataset, batch_size=BATCH, sampler=order, drop_last=True):
                yield x.to(device), y.to(device)

    return Run(model, step, batches())


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 400, arguments)
    run = setup(tj, options.steps, options.device)
    loss = train(run, options)
    images, digits = (tj.from_numpy(a).to(options.device) for a in draw(1000, seed=2))
    run.model.eval()
    with tj.no_grad():
        accuracy = (run.model(images).argmax(1) == digits).float().mean().item()
    print(f"loss {loss:.4f}, accuracy on unseen digits {accuracy:.1%} after {options.steps} steps")
    return accuracy


if __name__ == "__main__":
    main()
