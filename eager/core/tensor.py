"""The tensor: an array, its place on the tape and its memory's version. Ops are attached from `eager/ops`.

An instance stores only what differs from the class-level defaults below, which keeps the making of one cheap. What a
view is a view of (`tj_base`) and how it was made (`tj_view_chain`) is kept so that an in-place write through a view, or under
one, can be put on the tape: see `tape/inplace.py`.
"""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import devices, dtypes
from ..arrays.deferred import resolve_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tape.node import Node


# Which change of a tensor was the last that is not an op's: of its array, flags, gradient or hooks. A compiled function that
# skips Python compares this with what it was, and looks at its tensors one by one if it is another.
CHANGES = [0]
_change_numbers = itertools.count(1)


def tensor_changed() -> int:
    """Count a change of a tensor that no op records (requires_grad, a hook, .grad). Return the number of the change."""
    CHANGES[0] = number = next(_change_numbers)
    return number


class Size(tuple[int, ...]):
    """A shape: a tuple of ints that also knows `numel()`."""

    __slots__ = ()

    def numel(self) -> int:
        count = 1
        for n in self:
            count *= n
        return count

    def __repr__(self) -> str:
        return f"tapejit.Size({list(self)})"

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Size:  # type: ignore[override]  # a Size plus a tuple stays a Size, as in PyTorch
        return Size(tuple.__add__(self, tuple(other)))


class Tensor:
    """A multi-dimensional array that records what is done to it. `Tensor([1, 2])` is float32; `Tensor(2, 3)` is empty."""

    # The internal protocol: fields that the engine, the tracer and generated code read and write. They are not for users, who
    # have the properties below; the prefix keeps them apart from attributes that users set on tensors. An instance stores only
    # what differs from these defaults. Who writes `tj_array`, `tj_grad`, a flag or a hook other than through an op says so by
    # `tensor_changed()`, as calls that skip Python rely on it.
    tj_array: Any  # NumPy's, CuPy's, or a deferred array
    tj_requires_grad: bool = False
    tj_grad: Tensor | None = None
    tj_node: Node | None = None  # what made it, when that is on the tape
    tj_base: Tensor | None = None  # the tensor whose memory this one views
    tj_view_chain: tuple[Any, ...] = ()  # the view ops that lead from tj_base to here
    tj_undo_chain: tuple[Any, ...] = ()  # on a base: the view ops that undo changes of its shape in place, by `t_` and the like
    tj_rebased: int = 0  # on a base: how often in-place writes changed its history; on a view: the count it has seen
    tj_versions: list[int] | None = None  # [number of in-place writes], shared by all tensors on the same memory
    tj_hooks: dict[int, Any] | None = None
    tj_accumulate_hooks: dict[int, Any] | None = None
    tj_made_without_grad: bool = False  # a view made under no_grad
    tj_by_function: bool = False  # a view that a custom Function returned: writes through it cannot be recorded
    tj_inference: bool = False  # made under inference_mode, or a view of what was
    tj_owner: Any = None  # of a gradient: the compiled function that fills it in when somebody looks

    __array_priority__ = 1000  # numpy_array * tensor is ours

    if TYPE_CHECKING:  # methods are attached from the op table

        def __getattr__(self, name: str) -> Any: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __rmod__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __rxor__(self, other: Any) -> Tensor: ...
        def __lshift__(self, other: Any) -> Tensor: ...
        def __rshift__(self, other: Any) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __neg__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __bool__(self) -> bool: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...
        def __index__(self) -> int: ...

    def __new__(cls, *args: Any, **kwargs: Any) -> Tensor:
        return object.__new__(cls)

    def __init__(self, *data: Any, device: Any = None) -> None:
        where = devices.as_device(device)
        with devices.on(where):
            self.tj_array = devices.module_for(where).asarray(legacy_array(data, np.dtype(np.float32)))

    @property
    def _base(self) -> Tensor | None:
        """PyTorch's name for the tensor that this one is a view of."""
        return self.tj_base

    # ---- metadata

    @property
    def shape(self) -> Size:
        return Size(self.tj_array.shape)

    @property
    def dtype(self) -> dtypes.dtype:
        return dtypes._FROM_NUMPY[self.tj_array.dtype]

    @property
    def device(self) -> devices.device:
        return devices.device_of(self.tj_array)

    @property
    def ndim(self) -> int:
        return int(self.tj_array.ndim)

    @property
    def itemsize(self) -> int:
        return int(self.tj_array.itemsize)

    @property
    def nbytes(self) -> int:
        return int(self.tj_array.nbytes)

    @property
    def is_cuda(self) -> bool:
        return type(self.tj_array) is not np.ndarray and self.device.type == "cuda"

    is_sparse = is_quantized = is_xpu = is_mps = is_meta = False
    layout = "strided"

    def size(self, dim: int | None = None) -> Any:
        """The shape, or its length along `dim`."""
        if dim is None:
            return self.shape
        return self.tj_array.shape[wrap_dim(dim, self.tj_array.ndim)]

    def dim(self) -> int:
        """The number of dimensions."""
        return int(self.tj_array.ndim)

    ndimension = dim

    def numel(self) -> int:
        """The number of elements."""
        return int(self.tj_array.size)

    nelement = numel

    def element_size(self) -> int:
        """The bytes of one element."""
        return int(self.tj_array.itemsize)

    def stride(self, dim: int | None = None) -> Any:
        """The strides, in elements and not in bytes."""
        strides = tuple(s // self.tj_array.itemsize for s in self.tj_array.strides)
        return strides if dim is None else strides[wrap_dim(dim, self.tj_array.ndim)]

    def storage_offset(self) -> int:
        """Return the offset of the first element from that of the base, in elements."""
        resolve_array(self.tj_array)
        if self.tj_base is None:
            return 0
        return int(data_pointer(self.tj_array) - data_pointer(self.tj_base.tj_array)) // self.tj_array.itemsize

    def data_ptr(self) -> int:
        """The address of the first element."""
        return data_pointer(self.tj_array)

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """True if the elements are in memory in order, without gaps."""
        return bool(self.tj_array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """True if the elements are floats."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """True if the elements are complex numbers: never."""
        return False

    def is_signed(self) -> bool:
        """True if the dtype has negative numbers."""
        return self.dtype.is_signed

    def __len__(self) -> int:
        if self.tj_array.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return int(self.tj_array.shape[0])

    def __hash__(self) -> int:
        return id(self)

    # ---- the tape

    @property
    def grad_fn(self) -> Node | None:
        from .tape.inplace import current_node

        notify_tape_read(self)
        node = current_node(self)
        return None if node is None else node.owner()

    @property
    def is_leaf(self) -> bool:
        return self.grad_fn is None

    @property
    def requires_grad(self) -> bool:
        if self.tj_base is not None and self.tj_rebased != self.tj_base.tj_rebased:
            from .tape.inplace import current_node

            current_node(self)  # updates a view whose base was rewritten
        return self.tj_requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for gradients of this leaf (or stop asking)."""
        if self.tj_node is not None:
            if requires_grad:
                return self
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
                "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        if requires_grad and not self.dtype.is_floating_point:
            raise RuntimeError(f"only Tensors of floating point dtype can require gradients, this one is {self.dtype}")
        if requires_grad and self.tj_inference:
            from .tape.node import local

            if not local.state.inference:
                raise RuntimeError(
                    "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed. clone() it first."
                )
        self.tj_requires_grad = bool(requires_grad)
        tensor_changed()
        return self

    @property
    def grad(self) -> Tensor | None:
        if self.tj_grad is None and self.tj_node is not None and self.tj_node.retained is None:
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be "
                "populated during autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf "
                "Tensor, use .retain_grad() on the non-leaf Tensor.",
                UserWarning,
                stacklevel=2,
            )
        if self.tj_grad is not None and self.tj_grad.tj_owner is not None:
            self.tj_grad.tj_owner.look()
        return self.tj_grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"assigned grad expected to be a Tensor or None but got {type(value).__name__}")
            if value is self:
                raise RuntimeError("can't assign Variable as its own grad")
            if value.tj_array.shape != self.tj_array.shape:
                raise RuntimeError(
                    f"assigned grad has data of a different size: expected {list(self.shape)}, got {list(value.shape)}"
                )
            if value.tj_array.dtype != self.tj_array.dtype or value.device != self.device:
                raise RuntimeError(
                    f"assigned grad has data of a different type: expected {self.dtype} on {self.device}, "
                    f"got {value.dtype} on {value.device}"
                )
        self.tj_grad = value
        tensor_changed()

    @grad.deleter
    def grad(self) -> None:
        self.tj_grad = None
        tensor_changed()

    @property
    def output_nr(self) -> int:
        notify_tape_read(self)
        return self.tj_node.output_nr if self.tj_node is not None else 0

    @property
    def _version(self) -> int:
        resolve_array(self.tj_array)  # deferred writes count
        return 0 if self.tj_versions is None else self.tj_versions[0]

    def is_inference(self) -> bool:
        """True if this tensor was made under `inference_mode`."""
        return self.tj_inference

    def _is_view(self) -> bool:
        resolve_array(self.tj_array)
        return self.tj_base is not None


def notify_tape_read(t: Tensor) -> None:
    """Tell the tracer that the user is about to read a tensor's place on the tape, which may be deferred."""
    from .tape.node import local

    if local.state.tracer is not None:
        local.state.tracer.tape_read(t)


def wrap(array: Any) -> Tensor:
    """Make a tensor over an array, without history."""
    t = object.__new__(Tensor)
    t.tj_array = array
    return t


def versions_of(t: Tensor) -> list[int]:
    """Return the version counter of a tensor's memory, made when first needed."""
    box = t.tj_versions
    if box is None:
        box = t.tj_versions = [0]
    return box


def data_pointer(array: Any) -> int:
    array = resolve_array(array)
    if type(array) is np.ndarray:
        return int(array.ctypes.data)
    return int(array.data.ptr)


def wrap_dim(dim: int, ndim: int) -> int:
    """Convert a dim, perhaps negative, to one counted from the front. A 0-dim tensor accepts 0 and -1."""
    n = ndim or 1
    if dim.__class__ is not int:
        dim = as_index(dim, "a dimension")
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return dim + n if dim < 0 else dim


def wrap_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """Convert several dims, each given once; None or () means all of them."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, int):
        return (wrap_dim(dim, ndim),) if ndim else (wrap_dim(dim, 0),)[:0]
    dims = tuple(wrap_dim(d, ndim) for d in dim)
    if len(set(dims)) != len(dims):
        repeated = next(d for d in dims if dims.count(d) > 1)
        raise RuntimeError(f"dim {repeated} appears multiple times in the list of dims")
    return dims if dims and ndim else tuple(range(ndim))


def as_index(value: Any, what: str) -> int:
    """Convert an int, a NumPy integer or a 0-dim integer tensor to an int."""
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}") from None


def legacy_array(data: tuple[Any, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the array for `FloatTensor(...)` and the like: sizes make an uninitialised array, a sequence gives the values."""
    if not data:
        return np.empty(0, dtype)
    if isinstance(data[0], Size) and len(data) == 1:
        return np.empty(data[0], dtype)
    if all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in data):
        return np.empty(tuple(int(n) for n in data), dtype)
    if len(data) > 1:
        raise TypeError(f"new(): expected sizes or one sequence of values, got {len(data)} arguments")
    value = data[0]
    if isinstance(value, Tensor):
        return np.array(devices.to_numpy(value.tj_array), dtype)
    if isinstance(value, (float, bool)):
        raise TypeError(f"new(): data must be a sequence (got {type(value).__name__})")
    from .python_data import values_of

    return values_of(value, dtypes.from_numpy(dtype))
