"""Programs are compiled before they run, in one place: `ready` compiles once, and asks again while a thread is at it."""

from __future__ import annotations

from typing import Any

import tapejit as tj
from tapejit.tracer.execute.segment import TieredProgram


class Tier:
    """Stands in for `Tiering`: the native program is there at the second time of asking."""

    def __init__(self, program: TieredProgram) -> None:
        self.program, self.asked = program, 0
        program.tiering, program.compiled = self, False  # type: ignore[assignment]

    def compile(self) -> None:
        self.asked += 1
        if self.asked == 2:
            self.program.run, self.program.compiled = "native", True


def test_ready_asks_until_it_is_compiled() -> None:
    program: Any = TieredProgram("reference")
    tier = Tier(program)
    assert [program.ready() for _ in range(4)] == ["reference", "native", "native", "native"]
    assert tier.asked == 2


def test_programs_are_compiled_before_their_first_run(monkeypatch: Any) -> None:
    """Forward and backward programs alike, none of them more than once."""
    order: list[Any] = []
    compile_program, ready = TieredProgram.compile, TieredProgram.ready

    def noted(self: TieredProgram) -> None:
        order.append((id(self), self.compiled))
        compile_program(self)

    def asked(self: TieredProgram) -> Any:
        run = ready(self)
        assert self.compiled
        return run

    monkeypatch.setattr(TieredProgram, "compile", noted)
    monkeypatch.setattr(TieredProgram, "ready", asked)
    f = tj.compile(lambda x: (x.exp() * x).sum(), warmup=1)
    for _ in range(6):
        x = tj.ones(3, requires_grad=True)
        f(x).backward()
    assert order and len({key for key, _ in order}) == len(order) and not any(done for _, done in order)
