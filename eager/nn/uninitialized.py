"""Parameters and buffers without a shape: a place in a module that knows only where it will be and of which dtype."""

from __future__ import annotations

from typing import Any, NoReturn

from ..arrays.devices import as_device
from ..arrays.dtypes import as_dtype, get_default_dtype
from ..core.tensor import Tensor
from ..ops.convert import parse_to_arguments
from ..ops.create import empty
from .parameter import Buffer, Parameter


class Uninitialized(Tensor):
    """A tensor that has no shape yet."""

    cls_to_become: type[Tensor] = Tensor

    def _place(self, device: Any, dtype: Any) -> None:
        self._where, self._kind = as_device(device), get_default_dtype() if dtype is None else as_dtype(dtype)

    @property
    def tj_array(self) -> NoReturn:  # type: ignore[override]
        raise ValueError(
            "Attempted to use an uninitialized parameter. This error happens when you are using a `LazyModule` or explicitly "
            "manipulating `nn.parameter.UninitializedParameter` objects. When using LazyModules, call `forward` with a dummy "
            "batch to initialize the parameters before using them."
        )

    @property
    def shape(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in `load_state_dict` "
            "when trying to load an uninitialized parameter into an initialized one. Call `forward` to initialize the "
            "parameters before accessing their attributes."
        )

    @property
    def ndim(self) -> NoReturn:  # type: ignore[override]
        return self.shape  # type: ignore[misc]

    @property
    def device(self) -> Any:  # type: ignore[override]
        return self._where

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        return self._kind

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return bool(self._where.type == "cuda")

    def is_floating_point(self) -> bool:
        """True if the dtype is one."""
        return bool(self._kind.is_floating_point)

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become a tensor of a shape, with memory that holds nothing in particular."""
        memory = empty(tuple(shape), device=device or self._where, dtype=dtype or self._kind)
        self.__class__ = self.cls_to_become  # type: ignore[assignment]
        del self._where, self._kind
        self.tj_array = memory.tj_array  # type: ignore[misc]

    # What a module does to its members before it is called.

    def detach(self) -> Tensor:
        """There is no history to leave behind."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """Be on another device or of another dtype later."""
        where, dtype, _ = parse_to_arguments(args, kwargs)
        self._place(self._where if where is None else where, self._kind if dtype is None else dtype)
        return self

    def cuda(self, device: Any = None) -> Tensor:
        """Be on a GPU later."""
        return self.to("cuda" if device is None else device)

    def cpu(self) -> Tensor:
        """Be on the CPU later."""
        return self.to("cpu")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(Uninitialized, Parameter):
    """A parameter that has no shape yet; `materialize` gives it one."""

    cls_to_become = Parameter

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> UninitializedParameter:  # type: ignore[misc]
        return object.__new__(cls)

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        self._place(device, dtype)
        self.requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.requires_grad, self._where, self._kind)
        return memo[id(self)]  # type: ignore[no-any-return]


class UninitializedBuffer(Uninitialized, Buffer):
    """A buffer that has no shape yet; `materialize` gives it one."""

    def __new__(  # type: ignore[misc]
        cls, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> UninitializedBuffer:
        return object.__new__(cls)

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True) -> None:
        self._place(device, dtype)
        self.persistent = persistent
        self.requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.requires_grad, self._where, self._kind, self.persistent)
        return memo[id(self)]  # type: ignore[no-any-return]


def is_lazy(param: Any) -> bool:
    """True if a parameter or buffer has no shape yet."""
    return isinstance(param, Uninitialized)
