"""Call frame: the state of one call of a traced function (tensors, their arrays, runtime scalars). `Recorder` and `Replayer`
are subclasses, and a frame can change from one to the other in the middle of a call."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, TypeVar

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.core.dispatch import execute, write
from ...eager.core.op import Op
from ...eager.core.tape.node import Node, State, _numbers
from ...eager.core.tensor import Tensor
from ...eager.ops.convert import TRANSFER
from .refcounts import LONE_ARRAY, LONE_BASE, array_count, base_count, lone_on_device
from .tape_plan import UnplannableError
from .trace import Trace

# ops whose gradient passes a number on unchanged, so the number may differ from call to call
SCALAR_GRADIENT_OPS = {"mul", "true_divide", "clamp", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "masked_scale"}
# kinds of ops whose result shapes and dtypes do not depend on their numeric arguments
SCALAR_KINDS = {"pointwise", "random", "composite", "reduce", "movement", "contraction"}
# ops whose kernels reject some values: they run at their own line in Python, so that errors are raised there
VALUE_CHECKING_OPS = {
    "bernoulli", "multinomial", "matrix_inverse", "solve", "solve_triangular", "matrix_cholesky", "matrix_svd", "svdvals",
    "matrix_eigh", "eigvalsh", "pseudo_inverse", "matrix_exp", "cofactors", "det", "slogdet", "matrix_qr", "binary_entropy",
    "histc", "bincount", "labels", "class_index", "embedding", "embedding_renormalise", "bags", "bag_winners", "index",
    "index_put", "index_add", "index_put_into", "index_add_into", "gather", "scatter", "scatter_add", "scatter_reduce",
    "scatter_into", "scatter_add_into", "scatter_sum", "index_sum", "row_sum", "class_cross_entropy", "cross_entropy_backward",
    "transfer",
}  # fmt: skip
INTEGER_CHECKING_OPS = {
    "floor_divide", "remainder", "fmod", "trunc_divide", "pow", "bitwise_left_shift", "bitwise_right_shift",
}  # fmt: skip

CALLS_LIBRARY: set[CodeType] = set()  # functions of the tracer that call library code on behalf of the user
F = TypeVar("F", bound=Callable[..., Any])


def calls_library(function: F) -> F:
    """Decorator for functions of the tracer: the code observer treats what they call as if the user had called it."""
    CALLS_LIBRARY.add(function.__code__)
    return function


def is_decomposed(op: Op, inputs: tuple[Any, ...], state: State) -> bool:
    """True if eager execution would decompose an op into its parts in order to tape them."""
    if op.grad is not None or op.expand is None or not state.grad:
        return False
    return any(isinstance(x, Tensor) and x.tj_requires_grad for x in inputs)


def run_decomposed(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
    value = op.expand(*inputs, **attrs)  # type: ignore[misc]
    return value if out is None else write(out, value, op.name)


def can_reject_values(op: Op, inputs: tuple[Any, ...]) -> bool:
    if op.data_dependent or op.name in VALUE_CHECKING_OPS:
        return True
    return op.name in INTEGER_CHECKING_OPS and all(not isinstance(x, Tensor) or x.tj_array.dtype.kind in "biu" for x in inputs)


def is_input_transfer(op: Op, inputs: tuple[Any, ...], state: State) -> bool:
    """True if an op copies a computed tensor to another device and no gradient flows through it. Such a transfer runs
    immediately, whatever is still pending, and its result enters the trace as a tensor from outside: moving a batch to a GPU is
    no reason to end a segment."""
    if op is not TRANSFER:
        return False
    x = inputs[0]
    return not isinstance(x.tj_array, DeferredArray) and not (x.tj_requires_grad and state.grad)


class CallFrame:
    """State of one call: see the module docstring."""

    def __init__(self, state: State, trace: Trace) -> None:
        self.state = state
        self.trace = trace
        self.tensors: list[Any] = []  # tensor of each value; None for values that only a backward pass has seen
        self.number: dict[int, int] = {}  # id of a tensor -> index of its value
        self.arrays: list[Any] = []  # array of each slot, once computed
        self.scalars: list[Any] = []
        self.outer_nodes: dict[int, Node] = {}  # for values from outside that have a history: their node
        self.made: dict[Any, Node] = {}  # nodes built from tape plans
        self.boxes: dict[int, list[int]] = {}  # version counters by slot
        self.moved: dict[int, int] = {}  # values whose tensor now shows another array: the value that replaced them
        self.begin = next(_numbers)
        self.foreign: list[tuple[int, int]] = []  # ranges of node numbers created during this call by untraced code
        self.brought = 0  # tensors transferred from another device

    def is_outer(self, node: Node) -> bool:
        """True if a node was not created by the traced code."""
        n = node.number
        if n < self.begin:
            return True
        place = bisect(self.foreign, (n, 0))
        return place > 0 and n < self.foreign[place - 1][1]

    def outer_node(self, node: Node) -> int | None:
        """Return the value from outside whose node this is; None if this call created the node."""
        if not self.is_outer(node):
            return None
        found = next((v for v, n in self.outer_nodes.items() if n is node), None)
        if found is None:
            raise UnplannableError("a history from before this call")
        return found

    def versions(self, slot: int) -> list[int]:
        """Return the version counter of a slot's memory."""
        root = self.trace.roots[slot]
        if root not in self.boxes:
            self.boxes[root] = [0]
        return self.boxes[root]

    def sole(self, slot: int) -> bool:
        """True if only one tensor and this frame refer to an array from outside, so no other code can observe when it is
        written. Views, NumPy arrays and detached tensors on the same memory count as references."""
        if isinstance(self.arrays[slot], DeferredArray):
            return False
        others = array_count(self.arrays, slot) - LONE_ARRAY
        if others > 0 and others > self.hidden_views(self.arrays[slot]):
            return False
        if type(self.arrays[slot]) is not np.ndarray:
            return lone_on_device(self.arrays, slot, self.views_made(self.arrays[slot]))
        base = self.arrays[slot].base
        if base is None:
            return True
        if type(base) is not np.ndarray or base.base is not None:
            return False
        del base
        return base_count(self.arrays, slot) <= LONE_BASE

    def owner(self, slot: int) -> int | None:
        """Return the value through which an array from outside entered the call."""
        raise NotImplementedError

    def seen_through(self, pending: DeferredArray) -> Any:
        """Return a computed array that contains every element of a pending one; None if there is none."""
        root = self.trace.roots[pending.slot]
        while root in self.trace.sources:
            root = self.trace.roots[self.trace.sources[root]]
        if root in self.trace.constants:
            return self.trace.constants[root]
        n = self.owner(root) if root in self.trace.outside else None
        t = None if n is None else self.tensors[n]
        return None if t is None or isinstance(t.tj_array, DeferredArray) else self.arrays[root]

    def hidden_views(self, array: Any) -> int:
        """Count the hidden arrays that refer to an array."""
        return 0

    def views_made(self, array: Any) -> int:
        """Count those hidden arrays that are views of it."""
        return 0

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Context manager in which ops run as if nothing were traced."""
        state = self.state
        before = state.handler, state.tracer, state.autocast
        state.handler = state.tracer = state.autocast = None
        try:
            yield
        finally:
            state.handler, state.tracer, state.autocast = before

    def run_untraced(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run an untraced function, and record the range of node numbers it created."""
        first = next(_numbers)
        try:
            with self.eagerly():
                return function(*args, **kwargs)
        finally:
            self.foreign.append((first, next(_numbers)))

    def bring(self, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Transfer a computed tensor to another device."""
        self.brought += 1
        return self.run_untraced(execute, TRANSFER, inputs, attrs, None, self.state)

    def close(self) -> None:
        """Drop all references: pending tensors and the frame refer to each other."""
        self.__dict__.clear()
