"""A multi-layer perceptron on two moons, as in micrograd's demo.

    python examples/moons.py [--steps 300] [--device cuda]

Prints the final accuracy; a correct run reaches more than 97 %.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import tapejit as tj
import tapejit.nn.functional as F


def moons(count: int, device: str) -> tuple[tj.Tensor, tj.Tensor]:
    """Two interleaved half circles with noise, and which one each point is from."""
    angle = tj.rand(count, device=device) * math.pi
    which = (tj.arange(count, device=device) % 2).float()
    sign = 1 - 2 * which
    points = tj.stack([angle.cos() * sign + which, angle.sin() * sign + which * 0.5], dim=1)
    return points + 0.1 * tj.randn(count, 2, device=device), which


def layer(inputs: int, outputs: int, device: str) -> list[tj.Tensor]:
    weight = tj.randn(outputs, inputs, device=device) / math.sqrt(inputs)
    return [weight.requires_grad_(), tj.zeros(outputs, device=device, requires_grad=True)]


def main() -> float:
    parser = argparse.ArgumentParser(description="Train a small network on two moons.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    tj.manual_seed(1337)
    x, y = moons(200, options.device)
    parameters = [p for sizes in ((2, 16), (16, 16), (16, 1)) for p in layer(*sizes, options.device)]
    w1, b1, w2, b2, w3, b3 = parameters

    def scores() -> tj.Tensor:
        hidden = F.relu(F.linear(x, w1, b1))
        hidden = F.relu(F.linear(hidden, w2, b2))
        return F.linear(hidden, w3, b3).squeeze(1)

    start = time.perf_counter()
    for step in range(options.steps):
        loss = F.binary_cross_entropy_with_logits(scores(), y)
        for p in parameters:
            p.grad = None
        loss.backward()
        rate = 1.0 - 0.9 * step / options.steps
        with tj.no_grad():
            for p in parameters:
                p.sub_(p.grad, alpha=rate)
        if sys.stderr.isatty():
            done = (step + 1) / options.steps
            speed = (step + 1) / (time.perf_counter() - start)
            print(
                f"\r{'#' * int(30 * done):30} {step + 1}/{options.steps} loss {loss.item():.4f} {speed:.0f} steps/s",
                end="",
                file=sys.stderr,
            )
    with tj.no_grad():
        accuracy = ((scores() > 0) == (y > 0.5)).float().mean().item()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"loss {loss.item():.4f}, accuracy {accuracy:.1%} after {options.steps} steps")
    return accuracy


if __name__ == "__main__":
    main()
