"""Containers: modules and parameters in sequences and dictionaries."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..tensor import Tensor
from .module import Module
from .parameter import Parameter

S = TypeVar("S", bound="_ModuleSequence")


class _ModuleSequence(Module):
    """What Sequential and ModuleList share: submodules named by their position."""

    def _position(self, index: Any) -> int:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"index {position} is out of range")
        return position % len(self)

    def _renumber(self, modules: Iterable[Any]) -> None:
        self._modules.clear()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[self._position(index)], module)

    def __delitem__(self, index: Any) -> None:
        kept = list(self)
        del kept[index if isinstance(index, slice) else self._position(index)]
        self._renumber(kept)

    def __contains__(self, module: object) -> bool:
        return any(m is module for m in self)

    def append(self: S, module: Module) -> S:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Add a module before a position."""
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def extend(self: S, modules: Iterable[Module]) -> S:
        """Add several modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, index: int = -1) -> Any:
        """Take a module out and return it."""
        module = list(self)[index]
        del self[index]
        return module


class Sequential(_ModuleSequence):
    """Modules called one after the other; from positional arguments or an OrderedDict of names."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._modules.items())[index]))
        return list(self)[self._position(index)]

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)


class ModuleList(_ModuleSequence):
    """A list of modules that are parameters' owners; it has no forward of its own."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, index: Any) -> Any:
        return type(self)(list(self)[index]) if isinstance(index, slice) else list(self)[self._position(index)]

    def __iadd__(self, modules: Iterable[Module]) -> ModuleList:
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """Runs of equal modules are counted, as in PyTorch: `(0-3): 4 x Linear(...)`."""
        texts = [repr(m) for m in self]
        if not texts:
            return f"{self._get_name()}()"
        lines, start = [], 0
        for i in range(1, len(texts) + 1):
            if i == len(texts) or texts[i] != texts[start]:
                body = texts[start].replace("\n", "\n  ")
                lines.append(f"({start}): {body}" if i - start == 1 else f"({start}-{i - 1}): {i - start} x {body}")
                start = i
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(Module):
    """Modules by name; it has no forward of its own."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Take all modules out."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Take a module out and return it."""
        return self._modules.pop(key)

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def items(self) -> Any:
        """Names and modules."""
        return self._modules.items()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add modules from a mapping or an iterable of pairs."""
        for key, module in modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules:
            self[key] = module


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    size = "x".join(str(n) for n in value.shape)
    where = "" if not value.is_cuda else f" (GPU {value.device.index})"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [{value.dtype!r} of size {size}{where}]"


class ParameterList(Module):
    """A list whose tensors become parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ParameterList([self[i] for i in range(*index.indices(len(self)))])
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"index {position} is out of range")
        return getattr(self, str(position % len(self)))

    def __setitem__(self, index: int, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        setattr(self, str(operator.index(index) % max(len(self), 1)), value)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def append(self, value: Any) -> ParameterList:
        """Add a tensor at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add several tensors at the end."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(f"  ({i}): {_shown(v)}" for i, v in enumerate(self))


class ParameterDict(Module):
    """A dictionary whose tensors become parameters."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, key, Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value)

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def keys(self) -> Any:
        """The names."""
        return self._keys.keys()

    def values(self) -> Any:
        """The parameters."""
        return [self[k] for k in self._keys]

    def items(self) -> Any:
        """Names and parameters."""
        return [(k, self[k]) for k in self._keys]

    def pop(self, key: str) -> Any:
        """Take a parameter out and return it."""
        value = self[key]
        del self[key]
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """A parameter, or the default."""
        return self[key] if key in self._keys else default

    def clear(self) -> None:
        """Take all parameters out."""
        for key in list(self._keys):
            del self[key]

    def update(self, parameters: Any) -> None:
        """Add parameters from a mapping or an iterable of pairs."""
        for key, value in parameters.items() if isinstance(parameters, (Mapping, ParameterDict)) else parameters:
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(f"  ({k}): {_shown(v)}" for k, v in self.items())
