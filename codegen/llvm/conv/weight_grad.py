"""Weight gradient of a convolution: the problem that both kernels share."""

from __future__ import annotations

from dataclasses import dataclass

from ..gemm.problem import Epilogue
from ..ir.builder import HALF_SCALARS
from ..ir.register_tile import MultiplyAdd
from .input_layout import ConvArray, Ints, PaddedInput


@dataclass(frozen=True)
class WeightGradient:
    """The weight gradient, from windows on the input and the output gradient."""

    windows: PaddedInput
    gradient: ConvArray  # of the output: [sample, channel, ...]
    groups: int
    kernel: Ints
    dilation: Ints
    room: int  # vector registers
    pointers: int
    epilogue: Epilogue
    multiply_add: MultiplyAdd

    @property
    def scalar(self) -> str:
        """Type of the sums."""
        return "float" if self.gradient.scalar in HALF_SCALARS else self.gradient.scalar

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
