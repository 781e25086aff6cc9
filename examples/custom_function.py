"""A gradient of one's own: an autoencoder whose code is bits, which have none.

    python examples/custom_function.py [--steps 500] [--device cuda] [--compile] [--watch page.html]

32 symbols have to pass through 8 bits. Rounding to a bit is flat everywhere, so its gradient is 0 and nothing would be
learned; the custom `Function` lets the gradient through where the input is not far from the edge (the straight-through
estimator). Prints how many symbols come out as they went in; a correct run reaches 100 %, one bit pattern for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tapejit as tj
from common import Run, parse, train

SYMBOLS, BITS, WIDTH = 32, 8, 64


def build(torch: Any) -> Any:
    nn = torch.nn

    class ToBits(torch.autograd.Function):
        """-1 or 1 by the sign; backwards as if it had been the identity between -1 and 1."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return torch.where(x > 0, 1.0, -1.0)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            return gradient * (x.abs() <= 1).to(gradient.dtype)

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Embedding(SYMBOLS, WIDTH), nn.Linear(WIDTH, BITS))
            self.decoder = nn.Sequential(nn.Linear(BITS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, SYMBOLS))

        def code(self, symbols: Any) -> Any:
            return ToBits.apply(self.encoder(symbols))

        def forward(self, symbols: Any) -> Any:
            return self.decoder(self.code(symbols))

    return Autoencoder()


def setup(torch: Any, steps: int, device: str = "cpu") -> Run:
    model = build(torch).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    symbols = torch.arange(SYMBOLS, device=device)

    def step(symbols: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(model(symbols), symbols)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Run(model, step, itertools.repeat((symbols,)))


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 500, arguments)
    run = setup(tj, options.steps, options.device)
    loss = train(run, options)
    (symbols,) = next(run.batches)
    with tj.no_grad():
        accuracy = (run.model(symbols).argmax(1) == symbols).float().mean().item()
        patterns = len(run.model.code(symbols).unique(dim=0))
    print(f"loss {loss:.4f}, {accuracy:.1%} of the symbols come through, {patterns} bit patterns, after {options.steps} steps")
    return accuracy


if __name__ == "__main__":
    main()
