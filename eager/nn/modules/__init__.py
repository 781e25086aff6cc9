"""`nn.modules`: PyTorch's folder of layers. Programs import its files by name, `nn.modules.batchnorm` and so on, for base
classes and `isinstance`; here they are other names of the files that hold the same classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import activation
from . import adaptive
from . import attention
from . import container as containers
from . import conv
from . import distance
from . import dropout
from . import sparse as embedding
from . import lazy
from . import linear
from . import loss
from . import normalization
from . import pooling
from . import rnn
from . import transformer
from . import vision
from .. import module, sizes

if TYPE_CHECKING:  # the files and classes below

    def __getattr__(name: str) -> Any: ...


FILES: dict[str, Any] = {
    "activation": activation, "adaptive": adaptive, "batchnorm": normalization, "channelshuffle": vision,
    "container": containers, "conv": conv, "distance": distance, "dropout": dropout, "flatten": linear, "fold": vision,
    "instancenorm": normalization, "lazy": lazy, "linear": linear, "loss": loss, "module": module,
    "normalization": normalization, "padding": vision, "pixelshuffle": vision, "pooling": pooling, "rnn": rnn,
    "sparse": embedding, "transformer": transformer, "upsampling": vision, "utils": sizes,
}  # fmt: skip

# Classes that PyTorch keeps in other files than here.
activation.MultiheadAttention = attention.MultiheadAttention  # type: ignore[attr-defined]
linear.NonDynamicallyQuantizableLinear = attention.NonDynamicallyQuantizableLinear  # type: ignore[attr-defined]

for _file in FILES.values():
    globals().update(
        {n: c for n, c in vars(_file).items() if isinstance(c, type) and issubclass(c, module.Module) and n[0] != "_"}
    )
globals().update(FILES)
