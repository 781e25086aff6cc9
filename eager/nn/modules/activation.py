"""Activations as layers: each is a call of its function in `nn.functional`."""

from __future__ import annotations

import warnings
from typing import Any

from ...core.tensor import Tensor
from ...ops.create import empty
from ...ops.pointwise import sigmoid, tanh
from .. import functional as F
from .. import init as initialise
from ..module import Module
from ..parameter import Parameter


class _Inplace(Module):
    """An activation with the option to overwrite its input. Subclasses say which other settings a repr shows."""

    _shown: tuple[str, ...] = ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        shown = [f"{name}={getattr(self, name)}" for name in self._shown]
        return ", ".join([*shown, "inplace=True"] if self.inplace else shown)


class _AlongDim(Module):
    """An activation along a dim."""

    dim: int | None

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


# ---- without settings


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor) -> Tensor:
        return sigmoid(input)  # type: ignore[no-any-return]


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        return tanh(input)  # type: ignore[no-any-return]


class LogSigmoid(Module):
    """log(1 / (1 + exp(-x))), without overflow."""

    def forward(self, input: Tensor) -> Tensor:
        return F.logsigmoid(input)  # type: ignore[no-any-return]


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softsign(input)  # type: ignore[no-any-return]


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.tanhshrink(input)  # type: ignore[no-any-return]


# ---- in place if wanted


class ReLU(_Inplace):
    """max(0, x)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input, self.inplace)  # type: ignore[no-any-return]


class SiLU(_Inplace):
    """x * sigmoid(x), also known as swish."""

    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input, self.inplace)  # type: ignore[no-any-return]


class Mish(_Inplace):
    """x * tanh(softplus(x))."""

    def forward(self, input: Tensor) -> Tensor:
        return F.mish(input, self.inplace)  # type: ignore[no-any-return]


class SELU(_Inplace):
    """The scaled ELU that keeps mean 0 and variance 1."""

    def forward(self, input: Tensor) -> Tensor:
        return F.selu(input, self.inplace)  # type: ignore[no-any-return]


class Hardsigmoid(_Inplace):
    """A sigmoid of straight lines."""

    def forward(self, input: Tensor) -> Tensor:
        return F.hardsigmoid(input, self.inplace)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return ""


class Hardswish(_Inplace):
    """x * hardsigmoid(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.hardswish(input, self.inplace)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return ""


class Threshold(_Inplace):
    """x where it is above a threshold, a constant elsewhere."""

    _shown = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input: Tensor) -> Tensor:
        return F.threshold(input, self.threshold, self.value, self.inplace)  # type: ignore[no-any-return]


class RReLU(_Inplace):
    """A leaky ReLU whose slope is drawn at random in training."""

    _shown = ("lower", "upper")

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)  # type: ignore[no-any-return]


class Hardtanh(_Inplace):
    """x, kept between two values."""

    _shown: tuple[str, ...] = ("min_val", "max_val")

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(inplace)
        for old, new, given in (("min_value", "min_val", min_value), ("max_value", "max_val", max_value)):
            if given is not None:
                warnings.warn(f"keyword argument `{old}` is deprecated and renamed to `{new}`", FutureWarning, stacklevel=2)
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        if self.max_val <= self.min_val:
            raise AssertionError(f"max_val ({self.max_val}) must be greater than min_val ({self.min_val})")

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)  # type: ignore[no-any-return]


class ReLU6(Hardtanh):
    """x, kept between 0 and 6."""

    _shown = ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)


class ELU(_Inplace):
    """x above 0, alpha * (exp(x) - 1) below."""

    _shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return F.elu(input, self.alpha, self.inplace)  # type: ignore[no-any-return]


class CELU(_Inplace):
    """x above 0, alpha * (exp(x / alpha) - 1) below."""

    _shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return F.celu(input, self.alpha, self.inplace)  # type: ignore[no-any-return]


class LeakyReLU(_Inplace):
    """x above 0, negative_slope * x below."""

    _shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        return F.leaky_relu(input, self.negative_slope, self.inplace)  # type: ignore[no-any-return]


# ---- others


class GELU(Module):
    """x times the normal distribution function of x; `approximate="tanh"` for the formula with a tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, approximate=self.approximate)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        return F.softplus(input, self.beta, self.threshold)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardshrink(Module):
    """x, but 0 within lambd of 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return F.hardshrink(input, self.lambd)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Softshrink(Module):
    """x moved towards 0 by lambd, at most to 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return F.softshrink(input, self.lambd)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class PReLU(Module):
    """A leaky ReLU whose slope is learned, one for all channels or one for each."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All slopes become `init`."""
        initialise.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class GLU(_AlongDim):
    """One half of the input times the sigmoid of the other half."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)  # type: ignore[no-any-return]


class Softmax(_AlongDim):
    """exp(x) divided by its sum along a dim."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, self.dim)  # type: ignore[no-any-return]


class Softmin(_AlongDim):
    """softmax(-x) along a dim."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmin(input, self.dim)  # type: ignore[no-any-return]


class LogSoftmax(_AlongDim):
    """The logarithm of the softmax along a dim."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim)  # type: ignore[no-any-return]


class Softmax2d(Module):
    """Softmax over the channels at each place of an image."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, -3)  # type: ignore[no-any-return]


# The layers of this file, for tools that treat what is nonlinear apart. A layer is one because it is listed here.
ACTIVATIONS: tuple[type[Module], ...] = (
    Sigmoid, Tanh, LogSigmoid, Softsign, Tanhshrink, ReLU, SiLU, Mish, SELU, Hardsigmoid, Hardswish, Threshold, RReLU, Hardtanh,
    ReLU6, ELU, CELU, LeakyReLU, GELU, Softplus, Hardshrink, Softshrink, PReLU, GLU, Softmax, Softmin, LogSoftmax, Softmax2d,
)  # fmt: skip
