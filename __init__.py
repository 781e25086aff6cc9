"""tapejit: a tracing JIT over an eager engine, with PyTorch's names and meanings.

    import tapejit as tj

This file is the public namespace and nothing else; the code lives in `eager/`, `tracer/` and `codegen/`.
"""

from __future__ import annotations

import math as _math
import sys as _sys
import warnings as _warnings
from typing import TYPE_CHECKING, Any

from . import codegen as _codegen  # makes programs for what is compiled
from .eager import (
    accelerator,
    amp,
    autograd,
    backends,
    cuda,
    distributed,
    distributions,
    linalg,
    nn,
    optim,
    random,
    serialization,
    utils,
)
from .eager.amp import GradScaler
from .eager.amp.autocast_mode import (
    autocast,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
)
from .eager.arrays import devices, dtypes
from .eager.arrays.devices import device, get_default_device, set_default_device
from .eager.arrays.dtypes import (
    bfloat16,
    can_cast,
    dtype,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    uint8,
)
from .eager.autograd import (
    enable_grad,
    inference_mode,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .eager.backends import (
    are_deterministic_algorithms_enabled,
    get_float32_matmul_precision,
    get_num_interop_threads,
    get_num_threads,
    set_float32_matmul_precision,
    set_num_interop_threads,
    set_num_threads,
    use_deterministic_algorithms,
)
from .eager.core import op as _op
from .eager.core.generator import Generator, default_generator
from .eager.core.printing import get_printoptions, printoptions, set_printoptions
from .eager.core.tensor import Size, Tensor
from .eager.legacy import set_default_tensor_type
from .eager.legacy import types as _legacy_types
from .eager.ops.convert import from_dlpack, from_numpy
from .eager.ops.create import (
    as_tensor,
    asarray,
    empty,
    empty_like,
    frombuffer,
    is_complex,
    is_floating_point,
    is_nonzero,
    is_tensor,
    scalar_tensor,
    tensor,
)
from .eager.ops.pointwise import ALIASES as _ALIASES
from .eager.ops.pointwise import result_type
from .eager.ops.random import (
    bernoulli,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
)
from .eager.random import get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from .eager.serialization import load, save
from .tracer import CompileError, compile, compile_stats
from .tracer import EagerPackage as _EagerPackage
from .tracer.api import torch_compiler as compiler
from .tracer.tools import profiler
from .tracer.tools.diff import diff as _diff
from .tracer.tools.explain import explain as _explain  # attaches itself to compiled functions
from .tracer.tools.report import report

__version__ = "0.1.0"

bool = dtypes.bool_
half, float, double, short, int, long = (dtypes.ALIASES[n] for n in ("half", "float", "double", "short", "int", "long"))
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
newaxis = None
strided, contiguous_format, preserve_format, channels_last = "strided", "contiguous", "preserve", "channels_last"

# NumPy warns about overflow and 0/0 where PyTorch is silent. Only warnings raised by this package's own code are hushed.
_warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"tapejit\.")

if TYPE_CHECKING:  # the op table's functions

    def __getattr__(name: str) -> Any: ...


globals().update(_op.exported(""))
globals().update(_ALIASES)
globals().update({f"{n}_": getattr(Tensor, f"{n}_") for n, op in _op.OPS.items() if op.inplace and "" in op.namespaces})
globals().update(_legacy_types(on_cuda=False))
diff = _diff  # of tensors, as PyTorch's, and of a function's eager and compiled run


# `import tapejit.nn.functional` finds what lives in `eager/nn/functional.py`.
_PUBLIC = (
    "accelerator",
    "amp",
    "autograd",
    "backends",
    "cuda",
    "distributed",
    "distributions",
    "linalg",
    "nn",
    "optim",
    "random",
    "serialization",
    "utils",
)
for _name, _module in list(_sys.modules.items()):
    if _name.startswith(f"{__name__}.eager.") and _name.split(".")[2] in _PUBLIC:
        _sys.modules[_name.replace(".eager.", ".", 1)] = _module
cuda.amp = _sys.modules[f"{__name__}.cuda.amp"] = amp.cuda  # type: ignore[attr-defined]
for _name in ("cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"):  # `import tapejit.backends.cudnn as cudnn`
    _sys.modules[f"{__name__}.backends.{_name}"] = getattr(backends, _name)
_sys.modules[f"{__name__}.profiler"] = profiler
_sys.modules[f"{__name__}.compiler"] = compiler
_sys.modules[f"{__name__}.eager"].__class__ = _EagerPackage  # `with tapejit.eager():`
