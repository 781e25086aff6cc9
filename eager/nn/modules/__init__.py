"""`nn.modules`: the layers, in files that are named as PyTorch's, which programs import for base classes and `isinstance`.

In: settings of a layer, then tensors. Out: a module, then op calls.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .. import module
from .. import sizes as utils
from . import (
    activation,
    adaptive,
    attention,
    batchnorm,
    channelshuffle,
    container,
    conv,
    distance,
    dropout,
    flatten,
    fold,
    instancenorm,
    lazy,
    linear,
    loss,
    normalization,
    padding,
    pixelshuffle,
    pooling,
    rnn,
    sparse,
    transformer,
    upsampling,
)

if TYPE_CHECKING:  # the classes of these files

    def __getattr__(name: str) -> Any: ...


activation.MultiheadAttention = attention.MultiheadAttention  # type: ignore[attr-defined]  # where PyTorch has it
sys.modules[f"{__name__}.module"], sys.modules[f"{__name__}.utils"] = module, utils  # PyTorch has these two in this folder

for _file in [x for x in vars().values() if isinstance(x, ModuleType) and (x is module or x.__name__.startswith(__name__))]:
    globals().update(
        {n: c for n, c in vars(_file).items() if isinstance(c, type) and issubclass(c, module.Module) and n[0] != "_"}
    )
