"""What the two ways to the gradient of a convolution's weights have in common: of what it is, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.builder import HALVES
from ..gemm.problem import Epilogue
from ..ir.register_tile import Join
from .input_layout import Array, Ints, Windows


@dataclass(frozen=True)
class WeightGradient:
    """The gradient of the weights, from windows on the input and the gradient of the output."""

    windows: Windows
    gradient: Array  # of the output: [sample, channel, ...]
    groups: int
    kernel: Ints
    dilation: Ints
    room: int  # registers
    pointers: int
    epilogue: Epilogue
    join: Join

    @property
    def scalar(self) -> str:
        """Of the sums."""
        return "float" if self.gradient.scalar in HALVES else self.gradient.scalar

    @property
    def lanes(self) -> int:
        return self.windows.lanes

    @property
    def out(self) -> Ints:
        return self.gradient.shape[2:]

    @property
    def m(self) -> int:
        """Output channels of a group."""
        return self.gradient.shape[1] // self.groups

    @property
    def c(self) -> int:
        return self.windows.source.shape[1] // self.groups
