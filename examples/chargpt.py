"""A character GPT that learns some of Shakespeare's sonnets, and then goes on by itself.

    python examples/chargpt.py [--steps 500] [--device cuda] [--compile] [--watch page.html]

Prints text that it makes up and the final loss, which a correct run brings below 1.7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tapejit as tj
from common import Run, parse, train

TEXT = (Path(__file__).parent / "data" / "sonnets.txt").read_text(encoding="utf-8")
CHARACTERS = sorted(set(TEXT))
CONTEXT, BATCH, WIDTH, HEADS, DEPTH = 32, 16, 64, 4, 2


def build(torch: Any) -> Any:
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, dim=2))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
            self.norm2 = nn.LayerNorm(WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(len(CHARACTERS), WIDTH)
            self.position = nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, len(CHARACTERS), bias=False)
            for module in (self.token, self.position, self.head):
                nn.init.normal_(module.weight, std=1 / math.sqrt(WIDTH))

        def forward(self, codes: Any) -> Any:
            places = torch.arange(codes.shape[1], device=codes.device)
            return self.head(self.norm(self.blocks(self.token(codes) + self.position(places))))

    return GPT()


def setup(torch: Any, steps: int, device: str = "cpu") -> Run:
    text = torch.tensor([CHARACTERS.index(c) for c in TEXT], device=device)
    model = build(torch).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1, pct_start=0.1, cycle_momentum=False)

    def step(codes: Any, following: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss

    def batches() -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng(0)
        window = torch.arange(CONTEXT, device=device)
        while True:
            starts = torch.from_numpy(rng.integers(len(TEXT) - CONTEXT - 1, size=(BATCH, 1))).to(device)
            yield text[starts + window], text[starts + window + 1]

    return Run(model, step, batches())


def make_up(model: Any, device: str, count: int = 300) -> str:
    """Go on after a first line break, a character at a time."""
    codes = tj.tensor([[CHARACTERS.index("\n")]], device=device)
    with tj.no_grad():
        for _ in range(count):
            chances = model(codes[:, -CONTEXT:])[:, -1].softmax(1)
            codes = tj.cat([codes, tj.multinomial(chances, 1)], dim=1)
    return "".join(CHARACTERS[code] for code in codes[0].tolist())


def main(arguments: Sequence[str] | None = None) -> float:
    options = parse(__doc__, 500, arguments)
    run = setup(tj, options.steps, options.device)
    loss = train(run, options)
    print(make_up(run.model, options.device))
    print(f"loss {loss:.4f} after {options.steps} steps, {len(CHARACTERS)} characters")
    return loss


if __name__ == "__main__":
    main()
