"""CuPy's functions with CuPy's parameters, computed by NumPy.

`SIGNATURES` is what `inspect` says of the real ones. A call is bound to it first, so that what CuPy does not take is
refused; arrays must be of this package. Functions that do more or less than NumPy's are written out below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .array import BFLOAT16, element_numbers, garbage, ndarray, quiet, unwrap, wrap, wrapped
from .ufuncs import INTEGERS, ufunc

SIGNATURES = """
all(a, axis=None, out=None, keepdims=False)
allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
amax(a, axis=None, out=None, keepdims=False)
amin(a, axis=None, out=None, keepdims=False)
any(a, axis=None, out=None, keepdims=False)
arange(start, stop=None, step=1, dtype=None)
argmax(a, axis=None, dtype=None, out=None, keepdims=False)
argmin(a, axis=None, dtype=None, out=None, keepdims=False)
argpartition(a, kth, axis=-1)
argsort(a, axis=-1, kind=None)
argwhere(a)
around(a, decimals=0, out=None)
array(obj, dtype=None, copy=True, order='K', subok=False, ndmin=0, *, blocking=False)
array_equal(a1, a2, equal_nan=False)
asarray(a, dtype=None, order=None, *, copy=None, blocking=False)
ascontiguousarray(a, dtype=None)
atleast_1d(*arys)
atleast_2d(*arys)
bincount(x, weights=None, minlength=None)
broadcast_arrays(*args)
broadcast_shapes(*args)
broadcast_to(array, shape)
can_cast(from_, to, casting='safe')
clip(a, a_min, a_max, out=None)
concatenate(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
copy(a, order='K')
copyto(dst, src, casting='same_kind', where=None)
count_nonzero(a, axis=None)
cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None)
cumprod(a, axis=None, dtype=None, out=None)
cumsum(a, axis=None, dtype=None, out=None)
diag(v, k=0)
diagonal(a, offset=0, axis1=0, axis2=1)
diff(a, n=1, axis=-1, prepend=None, append=None)
digitize(x, bins, right=False)
dot(a, b, out=None)
einsum(*operands, **kwargs)
empty(shape, dtype=float, order='C')
empty_like(prototype, dtype=None, order='K', subok=None, shape=None)
expand_dims(a, axis)
eye(N, M=None, k=0, dtype=float, order='C')
flatnonzero(a)
flip(a, axis=None)
full(shape, fill_value, dtype=None, order='C')
full_like(a, fill_value, dtype=None, order='K', subok=None, shape=None)
histogram(x, bins=10, range=None, density=False, weights=None)
hstack(tup, *, dtype=None, casting='same_kind')
identity(n, dtype=float)
indices(dimensions, dtype=int)
inner(a, b)
isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
isin(element, test_elements, assume_unique=False, invert=False)
kron(a, b)
linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0)
matmul(*args, axes=None, axis=None, keepdims=False, casting='same_kind', dtype=None, signature=None, order='K', out=None)
max(a, axis=None, out=None, keepdims=False)
may_share_memory(a, b, max_work=None)
mean(a, axis=None, dtype=None, out=None, keepdims=False)
median(a, axis=None, out=None, overwrite_input=False, keepdims=False)
min(a, axis=None, out=None, keepdims=False)
moveaxis(a, source, destination)
nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None)
ndim(a)
nonzero(a)
ones(shape, dtype=float, order='C')
ones_like(a, dtype=None, order='K', subok=None, shape=None)
outer(a, b, out=None)
pad(array, pad_width, mode='constant', **kwargs)
partition(a, kth, axis=-1)
percentile(a, q, axis=None, out=None, overwrite_input=False, method='linear', keepdims=False, *, interpolation=None)
prod(a, axis=None, dtype=None, out=None, keepdims=False)
promote_types(type1, type2, /)
ptp(a, axis=None, out=None, keepdims=False)
put(a, ind, v, mode='wrap')
put_along_axis(arr, indices, values, axis)
putmask(a, mask, values)
quantile(a, q, axis=None, out=None, overwrite_input=False, method='linear', keepdims=False, *, interpolation=None)
ravel(a, order='C')
ravel_multi_index(multi_index, dims, mode='wrap', order='C')
repeat(a, repeats, axis=None)
reshape(a, newshape, order='C', *, copy=None)
result_type(*arrays_and_dtypes)
roll(a, shift, axis=None)
rot90(a, k=1, axes=(0, 1))
round(a, decimals=0, out=None)
searchsorted(a, v, side='left', sorter=None)
shares_memory(a, b, max_work=None)
sort(a, axis=-1, kind=None)
split(ary, indices_or_sections, axis=0)
squeeze(a, axis=None)
stack(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
sum(a, axis=None, dtype=None, out=None, keepdims=False)
swapaxes(a, axis1, axis2)
take(a, indices, axis=None, out=None)
take_along_axis(a, indices, axis)
tensordot(a, b, axes=2)
tile(A, reps)
trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None)
transpose(a, axes=None)
tri(N, M=None, k=0, dtype=float)
tril(m, k=0)
tril_indices(n, k=0, m=None)
triu(m, k=0)
triu_indices(n, k=0, m=None)
unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True)
unravel_index(indices, dims, order='C')
var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
vdot(a, b)
vstack(tup, *, dtype=None, casting='same_kind')
where(condition, x=None, y=None)
zeros(shape, dtype=float, order='C')
zeros_like(a, dtype=None, order='K', subok=None, shape=None)
"""

# Parameters that must be arrays of the GPU: lists, numbers and NumPy arrays are refused there.
ARRAYS = {"a", "x", "m", "v", "ar", "ary", "arr", "array", "b", "prototype", "bins", "element", "dst", "weights", "A"}
NUMBERS_TOO = {"allclose", "isclose", "searchsorted", "histogram", "put", "where"}  # functions that also take numbers there
FROM_OUTSIDE = {"array", "asarray", "ascontiguousarray"}  # functions that take anything
PLAIN = {"broadcast_shapes", "can_cast", "may_share_memory", "ndim", "promote_types", "result_type", "shares_memory"}
NO_BFLOAT16 = {
    "argpartition", "argsort", "bincount", "cumprod", "cumsum", "digitize", "histogram", "median", "partition", "percentile",
    "quantile", "searchsorted", "sort", "unique",
}  # fmt: skip
REDUCTIONS = {"all", "amax", "amin", "any", "argmax", "argmin", "max", "mean", "min", "prod", "ptp", "std", "sum", "var"}
PRODUCTS = {"dot", "einsum", "inner", "kron", "matmul", "outer", "tensordot", "vdot"}
TO_FLOAT32 = {"nan_to_num", "tril", "triu"}  # made of `where`, which has no loop for bfloat16


def parse(line: str) -> inspect.Signature:
    """A line of the table as a signature; `def` accepts `/` and `*`, which is why it is done by Python itself."""
    scope: dict[str, Any] = {}
    name, _, parameters = line.partition("(")
    exec(f"def {name}({parameters}: ...", scope)
    return inspect.signature(scope[name])


def check_arrays(name: str, bound: inspect.BoundArguments) -> None:
    for parameter, value in bound.arguments.items():
        if parameter not in ARRAYS or value is None or isinstance(value, ndarray):
            continue
        if name in NUMBERS_TOO and isinstance(value, (int, float, np.generic)):
            continue
        raise TypeError(f"cupy.{name}: {parameter} must be cupy.ndarray, not {type(value).__name__}")


def arrays_in(values: Any) -> list[ndarray]:
    found = []
    for v in values:
        if isinstance(v, ndarray):
            found.append(v)
        elif isinstance(v, (tuple, list)):
            found += arrays_in(v)
    return found


def is_bfloat16(array: ndarray) -> bool:
    return array.dtype.name == BFLOAT16


def generic(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    """NumPy's function behind CuPy's parameters."""
    inner = WRITTEN_OUT.get(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if name not in FROM_OUTSIDE:
            check_arrays(name, bound)
        if inner is not None:
            return inner(*args, **kwargs)
        given = arrays_in([*args, *kwargs.values()])
        brain = [a for a in given if is_bfloat16(a)]
        if brain and name in NO_BFLOAT16:
            raise TypeError(f"cupy.{name} does not support dtype bfloat16")
        if brain and name in PRODUCTS and max(a.ndim for a in given) > 2:
            raise TypeError(f"cupy.{name} does not support bfloat16 with more than two dimensions")
        with quiet():
            if brain and (name in REDUCTIONS or name in PRODUCTS or name in TO_FLOAT32):
                return in_float32(name, args, kwargs)
            result = getattr(np, name)(*unwrap(args), **{k: unwrap(v) for k, v in kwargs.items()})
        if name in PLAIN:
            return result
        return kwargs["out"] if kwargs.get("out") is not None else wrapped(result, tuple(given))

    function.__name__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def in_float32(name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """bfloat16 computed in float32."""

    def widened(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(widened(x) for x in v)
        return v.astype(np.float32) if isinstance(v, ndarray) and is_bfloat16(v) else v

    brain = next(a.dtype for a in arrays_in(args) if is_bfloat16(a))
    if kwargs.get("dtype") == brain:
        kwargs = {**kwargs, "dtype": None}
    found = FUNCTIONS[name](*(widened(a) for a in args), **kwargs)
    return found.astype(brain) if found.dtype == np.float32 and name not in TO_FLOAT32 else found


# ---- written out


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> np.ndarray:
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


def array(
    obj: Any,
    dtype: Any = None,
    copy: Any = True,
    order: Any = "K",
    subok: Any = False,
    ndmin: int = 0,
    *,
    blocking: Any = False,
) -> ndarray:
    if isinstance(obj, ndarray):
        moved = obj if obj._device == wrap(0)._device else obj.copy()
        same = dtype is None or moved.dtype == np.dtype(dtype)
        kept = order in ("K", None) or (order == "C" and moved.flags.c_contiguous)
        if not copy and same and kept and not ndmin > moved.ndim:
            return moved
        return wrap(np.array(unwrap(moved), dtype, order=order or "K", ndmin=ndmin, copy=True))
    if isinstance(obj, (list, tuple)) and arrays_in(obj):
        obj = [unwrap(o) for o in obj]
    found = np.array(obj, dtype, order=order or "K", ndmin=ndmin, copy=True)
    if found.dtype.kind not in "biufV" and found.dtype.name != BFLOAT16:
        raise ValueError(f"Unsupported dtype {found.dtype}")
    return wrap(found)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    return array(a, dtype, bool(copy), order)


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    return array(a, dtype, False, "C")


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
    if arrays_in((start, stop, step)):
        raise TypeError("cupy.arange takes numbers")
    return wrap(np.arange(start, dtype=dtype) if stop is None else np.arange(start, stop, step, dtype=dtype))


def empty(shape: Any, dtype: Any = float, order: Any = "C") -> ndarray:
    return wrap(garbage(np.empty(shape, dtype, order)))


def empty_like(prototype: ndarray, dtype: Any = None, order: Any = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return wrap(garbage(np.empty_like(unwrap(prototype), dtype, order, shape=shape)))


def full(shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C") -> ndarray:
    with quiet():
        return wrap(np.full(shape, unwrap(fill_value), dtype, order))


WHERE = ufunc("where", tuple(f"?{k}{k}->{k}" for k in "?" + INTEGERS + "efd"), np.where)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return FUNCTIONS["nonzero"](condition)
    if x is None or y is None:
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    return WHERE(condition.astype("?", copy=False), x, y)


CLIP = ufunc("clip", tuple(f"{k * 3}->{k}" for k in "?" + INTEGERS + "efd"), np.clip)


def clip(a: ndarray, a_min: Any, a_max: Any, out: Any = None) -> Any:
    from .ufuncs import UFUNCS

    if a_min is None and a_max is None:
        raise ValueError("array_clip: must set either max or min")
    if a_min is None:
        return UFUNCS["minimum"](a, a_max, out=out)
    return UFUNCS["maximum"](a, a_min, out=out) if a_max is None else CLIP(a, a_min, a_max, out=out)


def nonzero(a: ndarray) -> tuple[ndarray, ...]:
    if a.ndim == 0:
        raise ValueError("Calling nonzero on 0d arrays is not allowed. Use cp.atleast_1d(scalar).nonzero() instead.")
    return wrapped(np.nonzero(unwrap(a)))


def take(a: ndarray, indices: Any, axis: Any = None, out: Any = None) -> Any:
    """Indices out of range wrap around."""
    length = a.size if axis is None else a.shape[axis]
    places = np.asarray(unwrap(indices))
    if places.dtype.kind not in "iu" and places.size:
        raise TypeError("cupy.take: the indices must be integers")
    found = np.take(unwrap(a), places.astype(np.int64) % (length or 1), axis)
    if out is not None:
        out[...] = wrap(found)
        return out
    return wrap(found)


def take_along_axis(a: ndarray, indices: ndarray, axis: Any) -> Any:
    if indices.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if a.ndim != indices.ndim:
        raise ValueError("`indices` and `a` must have the same number of dimensions")
    return wrap(np.take_along_axis(unwrap(a), unwrap(indices) % max(a.shape[axis], 1), axis))


def put_along_axis(arr: ndarray, indices: ndarray, values: Any, axis: Any) -> None:
    places = unwrap(indices) % max(arr.shape[axis], 1)
    spots = np.take_along_axis(element_numbers(arr._np, ...), places, axis)
    arr[tuple(wrap(s) for s in np.unravel_index(spots, arr.shape))] = values


def diagonal(a: ndarray, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    found = np.diagonal(a._np, offset, axis1, axis2)
    found.flags.writeable = True
    return a._view(found)


def searchsorted(a: ndarray, v: Any, side: str = "left", sorter: Any = None) -> ndarray:
    if is_bfloat16(a):
        raise TypeError("cupy.searchsorted does not support dtype bfloat16")
    if a.ndim != 1:
        raise ValueError("object too deep for desired array" if a.ndim else "object of too small depth for desired array")
    return wrap(np.searchsorted(unwrap(a), unwrap(v), side, unwrap(sorter)))


def repeat(a: ndarray, repeats: Any, axis: Any = None) -> ndarray:
    if isinstance(repeats, ndarray):
        raise ValueError("cupy.ndarray cannot be specified as `repeats` argument.")
    return wrap(np.repeat(unwrap(a), repeats, axis))


def concatenate(tup: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> ndarray:
    if not all(isinstance(t, ndarray) for t in tup):
        raise TypeError("Only cupy arrays can be concatenated")
    return wrap(np.concatenate([unwrap(t) for t in tup], axis, dtype=dtype, casting=casting))


def sort(a: ndarray, axis: Any = -1, kind: Any = None) -> ndarray:
    check_sort(a, kind)
    return wrap(np.sort(unwrap(a), axis, kind="stable"))


def argsort(a: ndarray, axis: Any = -1, kind: Any = None) -> ndarray:
    check_sort(a, kind)
    return wrap(np.argsort(unwrap(a), axis, kind="stable"))


def check_sort(a: ndarray, kind: Any) -> None:
    if kind not in (None, "stable"):
        raise ValueError("kind can only be None or 'stable'")
    if is_bfloat16(a):
        raise TypeError("Sorting arrays with dtype 'bfloat16' is not supported")


def as_strided(x: ndarray, shape: Any = None, strides: Any = None) -> ndarray:
    """It shows the memory of another array, and is not noted as a view of that."""
    found = wrap(np.lib.stride_tricks.as_strided(x._np, shape, strides), x._device)
    found.data = x.data
    return found


WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        arange, argsort, array, asarray, ascontiguousarray, clip, concatenate, diagonal, empty, empty_like, full, nonzero,
        put_along_axis, repeat, searchsorted, sort, take, take_along_axis, where,
    )
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {}
for _line in SIGNATURES.strip().splitlines():
    _name = _line.partition("(")[0]
    FUNCTIONS[_name] = generic(_name, parse(_line))
FUNCTIONS["as_strided"] = as_strided
FUNCTIONS["asnumpy"] = asnumpy
