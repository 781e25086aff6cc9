"""What one call of a traced function knows: its tensors, their arrays, its numbers. Recorder and replayer are two ways to
go on from there, and one can turn into the other in the middle of a call."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...eager.core.op import Op, execute, write
from ...eager.ops.convert import TRANSFER
from ...eager.arrays.deferred import Pending
from ...eager.core.tape.node import Node, State, _numbers
from ...eager.core.tensor import Tensor
from .tape_plan import UnplannableError
from .refcounts import LONE_ARRAY, LONE_BASE, array_count, base_count, lone_on_device
from .trace import Trace

# ops whose gradient hands a number on as it is, so that the number may change from call to call
TRANSPARENT = {"mul", "true_divide", "clamp", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "masked_scale"}
# kinds of ops whose results' shapes and dtypes do not depend on the numbers they are given
CHANGEABLE = {"pointwise", "random", "composite", "reduce", "movement", "contraction"}
# ops whose kernels refuse some values: they run when Python comes to them, so that their errors come where they belong
REFUSING = {
    "bernoulli", "multinomial", "matrix_inverse", "solve", "solve_triangular", "matrix_cholesky", "matrix_svd", "svdvals",
    "matrix_eigh", "eigvalsh", "pseudo_inverse", "matrix_exp", "cofactors", "det", "slogdet", "matrix_qr", "binary_entropy",
    "histc", "bincount", "labels", "class_index", "embedding", "embedding_renormalise", "bags", "bag_winners", "index",
    "index_put", "index_add", "index_put_into", "index_add_into", "gather", "scatter", "scatter_add", "scatter_reduce",
    "scatter_into", "scatter_add_into", "scatter_sum", "index_sum", "row_sum", "class_cross_entropy", "cross_entropy_backward",
    "transfer",
}  # fmt: skip
REFUSING_INTEGERS = {
    "floor_divide", "remainder", "fmod", "trunc_divide", "pow", "bitwise_left_shift", "bitwise_right_shift",
}  # fmt: skip


def expanded(op: Op, inputs: tuple[Any, ...], state: State) -> bool:
    """Whether eager execution would run an op as its parts, for the sake of the tape."""
    if op.grad is not None or op.expand is None or not state.grad:
        return False
    return any(isinstance(x, Tensor) and x._requires_grad for x in inputs)


def run_parts(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
    value = op.expand(*inputs, **attrs)  # type: ignore[misc]
    return value if out is None else write(out, value, op.name)


def refuses(op: Op, inputs: tuple[Any, ...]) -> bool:
    if op.data_dependent or op.name in REFUSING:
        return True
    return op.name in REFUSING_INTEGERS and all(not isinstance(x, Tensor) or x._array.dtype.kind in "biu" for x in inputs)


def only_moves(op: Op, inputs: tuple[Any, ...], state: State) -> bool:
    """Whether an op brings what is there to another device, and no gradient goes through it. That is done when Python comes to
    it, whatever else is still pending, and for what is traced the result is a tensor from outside: a batch on its way to a
    GPU is no reason to end a segment."""
    if op is not TRANSFER:
        return False
    x = inputs[0]
    return not isinstance(x._array, Pending) and not (x._requires_grad and state.grad)


class Frame:
    """See the module's text."""

    def __init__(self, state: State, trace: Trace) -> None:
        self.state = state
        self.trace = trace
        self.tensors: list[Any] = []  # of each value; None for those that only a backward pass has seen
        self.number: dict[int, int] = {}  # id of a tensor -> its value
        self.arrays: list[Any] = []  # of each slot, if it is there
        self.scalars: list[Any] = []
        self.outer_nodes: dict[int, Node] = {}  # of values from outside that have a history: their node
        self.made: dict[Any, Node] = {}  # nodes made from plans
        self.boxes: dict[int, list[int]] = {}  # version counters of slots
        self.moved: dict[int, int] = {}  # values whose tensor shows another array now: the value that it is instead
        self.begin = next(_numbers)
        self.foreign: list[tuple[int, int]] = []  # numbers of nodes that were made during this call, but not by what is traced
        self.brought = 0  # tensors that came from another device

    def is_outer(self, node: Node) -> bool:
        """Whether a node is not of what is traced."""
        n = node.number
        if n < self.begin:
            return True
        place = bisect(self.foreign, (n, 0))
        return place > 0 and n < self.foreign[place - 1][1]

    def outer_node(self, node: Node) -> int | None:
        """The value from outside whose node this is; None if it is of this call."""
        if not self.is_outer(node):
            return None
        found = next((v for v, n in self.outer_nodes.items() if n is node), None)
        if found is None:
            raise UnplannableError("a history from before this call")
        return found

    def versions(self, slot: int) -> list[int]:
        """The version counter of a slot's memory."""
        root = self.trace.roots[slot]
        if root not in self.boxes:
            self.boxes[root] = [0]
        return self.boxes[root]

    def sole(self, slot: int) -> bool:
        """Whether nothing but one tensor and this frame refers to an array from outside, so that nobody can see when it is
        written. What else has it, a view, a NumPy array or a detached tensor, counts as a reference."""
        if isinstance(self.arrays[slot], Pending):
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
        """The value that brought an array from outside."""
        raise NotImplementedError

    def seen_through(self, pending: Pending) -> Any:
        """An array that is there and holds all the elements that a pending one will have; None if there is none."""
        root = self.trace.roots[pending.slot]
        while root in self.trace.sources:
            root = self.trace.roots[self.trace.sources[root]]
        if root in self.trace.constants:
            return self.trace.constants[root]
        n = self.owner(root) if root in self.trace.outside else None
        t = None if n is None else self.tensors[n]
        return None if t is None or isinstance(t._array, Pending) else self.arrays[root]

    def hidden_views(self, array: Any) -> int:
        """How many arrays that refer to an array are hidden themselves."""
        return 0

    def views_made(self, array: Any) -> int:
        """How many of these are views of it."""
        return 0

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """A block in which ops run as if nothing were traced."""
        state = self.state
        before = state.handler, state.tracer, state.autocast
        state.handler = state.tracer = state.autocast = None
        try:
            yield
        finally:
            state.handler, state.tracer, state.autocast = before

    def untraced(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run something that is not traced, and remember which nodes it made."""
        first = next(_numbers)
        try:
            with self.eagerly():
                return function(*args, **kwargs)
        finally:
            self.foreign.append((first, next(_numbers)))

    def bring(self, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """What is there, on another device."""
        self.brought += 1
        return self.untraced(execute, TRANSFER, inputs, attrs, None, self.state)

    def close(self) -> None:
        """Let go of everything: tensors that are pending refer to the frame, and it to them."""
        self.__dict__.clear()
