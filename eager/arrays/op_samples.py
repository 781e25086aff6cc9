"""Inputs that generate an op's tests: light descriptions of arrays, turned into values by the tests.

samples=[sample(A(3, 4), dim=1), sample(A(2, 3), A(3)), sample(A(5, lo=0.1), grad=False)]
"""

from __future__ import annotations

from typing import Any


class A:
    """A float array argument with values in [lo, hi); `distinct` values are well apart, for max and sort."""

    def __init__(self, *shape: int, lo: float = -2.0, hi: float = 2.0, distinct: bool = False, grad: bool = True) -> None:
        self.shape, self.lo, self.hi, self.distinct, self.grad = shape, lo, hi, distinct, grad

    kind = "float"

    def __repr__(self) -> str:
        return f"{self.kind}{list(self.shape)}"


class I(A):  # noqa: E742 -- A for arrays, I for integers, B for booleans
    """An int64 array argument with values in [lo, hi)."""

    kind = "int"

    def __init__(self, *shape: int, lo: int = 0, hi: int = 4, distinct: bool = False) -> None:
        super().__init__(*shape, lo=lo, hi=hi, distinct=distinct, grad=False)


class B(A):
    """A boolean array argument."""

    kind = "bool"

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape, grad=False)


class Sample:
    """One call: positional and keyword arguments, where `A`, `I` and `B` stand for arrays (also inside lists)."""

    __slots__ = ("args", "grad", "gradgrad", "kwargs", "peer")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool, gradgrad: bool, peer: bool) -> None:
        self.args, self.kwargs = args, kwargs
        self.grad, self.gradgrad, self.peer = grad, gradgrad, peer

    def __repr__(self) -> str:
        parts = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return ", ".join(parts)


def sample(*args: Any, grad: bool = True, gradgrad: bool = True, peer: bool = True, **kwargs: Any) -> Sample:
    """A call to test. `grad=False`: not differentiable here; `peer=False`: PyTorch has no such call to compare with."""
    return Sample(args, kwargs, grad, grad and gradgrad, peer)
