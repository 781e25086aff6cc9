"""Table of the library code that a purity proof believes. Whatever is not in it ends the proof.

What is here runs ops, and asks nothing else of its arguments but the form of tensors and the values of settings, both of which
are guarded: it writes no Python object, and its result does not depend on the identity, the address or the version of a tensor,
nor on data that may change unseen. All of the op table is like that; the rest is listed by name. Code is known by identity: a
function is the library's own only if it was in the op table or in the library's modules before anybody could replace it.
"""

from __future__ import annotations

import math
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ...eager.core.library import MODULES, OPTIMIZERS, is_library, is_trusted, without_library_decorators
from ...eager.core.op import OPS
from ...eager.core.registration import inplace_version
from ...eager.core.tensor import Tensor
from ...eager.nn import init
from ...eager.nn.utils import clip_grad, convert_parameters
from ...eager.ops import create, operators, pointwise, random

# Methods of tensors that are not in the op table. Those that end in "_" write the tensor.
METHODS = {
    "bfloat16", "bool", "byte", "char", "contiguous", "copy_", "cpu", "cuda", "detach", "double", "fill_", "fill_diagonal_",
    "float", "half", "int", "is_same_size", "long", "new_empty", "new_full", "new_ones", "new_zeros", "short", "to", "type_as",
    "where", "zero_", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_",
    "__getitem__", "__setitem__", "__iter__", "__reversed__", "__invert__", "__neg__", "__pos__", "__abs__", "backward", "grad",
}  # fmt: skip
# Attributes and methods that ask for the form of a tensor, and return numbers, dtypes or devices.
FORM = {
    "shape", "ndim", "dtype", "device", "is_cuda", "itemsize", "nbytes", "requires_grad", "is_leaf",
    "dim", "size", "stride", "numel", "nelement", "ndimension", "is_floating_point", "is_contiguous", "element_size",
}  # fmt: skip
TRANSPOSES = {"T", "mT", "H", "mH"}
# Functions of the op table that read Python data, which may change unseen.
FROM_MUTABLE_DATA = {"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "from_dlpack", "new_tensor"}
FUNCTIONS = (
    create.empty, create.empty_like, create.is_complex, create.is_floating_point, create.is_tensor, create.scalar_tensor,
    pointwise.result_type,
    random.bernoulli, random.multinomial, random.normal, random.rand, random.rand_like, random.randint, random.randint_like,
    random.randn, random.randn_like, random.randperm,
    clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_, clip_grad.clip_grads_with_norm_, clip_grad.get_total_norm,
    convert_parameters.parameters_to_vector,
    init.calculate_gain, init.constant_, init.normal_, init.ones_, init.uniform_, init.zeros_,
)  # fmt: skip


def innermost(function: Any) -> Any:
    return without_library_decorators(function) if isinstance(function, FunctionType) else function


def _of_the_table() -> dict[int, Any]:
    """Functions of the op table by id, with their decorators and without."""
    made = [f for record in OPS.values() for f in (record.function, record.public_function, record.expand)]
    found = [f for f in (*made, *FUNCTIONS, *vars(operators).values()) if isinstance(f, FunctionType)]
    return {id(f): f for given in found for f in (given, innermost(given)) if f.__name__ not in FROM_MUTABLE_DATA}


BELIEVED = _of_the_table()
INPLACE_CODE = {constant for constant in inplace_version.__code__.co_consts if hasattr(constant, "co_code")}


def believes(function: Any) -> bool:
    """True for a function that does nothing but run ops."""
    return id(function) in BELIEVED or id(innermost(function)) in BELIEVED


def believes_method(name: str) -> bool:
    """True for a method or an operator of tensors that does nothing but run ops, and is the library's own."""
    found = getattr_static(name)
    if not is_own(found):
        return False
    plain = innermost(found)
    return name in METHODS or believes(found) or getattr(plain, "__code__", None) in INPLACE_CODE


def getattr_static(name: str) -> Any:
    """Return an attribute of the class of tensors as it stands there."""
    return next((vars(cls)[name] for cls in Tensor.__mro__ if name in vars(cls)), None)


def is_own(found: Any) -> bool:
    """True if an attribute of a class is the library's own: nobody has replaced it."""
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    return not isinstance(found, FunctionType) or is_library(innermost(found).__globals__.get("__name__", ""))


def is_layer_code(what: Any) -> bool:
    """True for code of the library's modules and optimizers."""
    return is_trusted(innermost(what), MODULES, OPTIMIZERS)


def is_math_function(what: Any) -> bool:
    return isinstance(what, BuiltinFunctionType) and vars(math).get(what.__name__) is what
