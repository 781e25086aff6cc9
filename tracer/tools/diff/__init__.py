"""`diff`. In: a step and its arguments. Out: the first difference between eager and compiled, op by op from the same state.

The step runs once, eagerly, while it is recorded and each op's result is copied. Then the programs that a replay of this
recording would use run on copies of the step's inputs: reference programs one statement at a time, each result compared
with eager's; native programs as `bisect.py` describes. After a graph break Python went on with eager's values, so each segment
starts from those.
"""

from __future__ import annotations

from typing import Any

from ....eager.core.op import OPS
from ....eager.core.tape.node import local
from ....eager.core.tensor import Tensor
from ...skip.skipped_call import materialise_all
from .comparison import Observer, compare, wanted_backend
from .state_snapshot import Before


def diff(fn: Any = None, /, *args: Any, ulps: float = 4, rtol: float = 0.0, **kwargs: Any) -> Any:
    """Run a step eagerly and compiled from the same state, and name the first op whose result differs.

    `diff(step, x, y)` calls `step(x, y)` once and returns a `Comparison`: print it, or read `.agrees`, `.op`, `.line`,
    `.eager`, `.compiled`, `.ulps`, `.index`. Floating-point results differ if they are more than `ulps` units in the last
    place and more than `rtol` of eager's value apart; others if they are not equal. `step` may be compiled or not; if it
    is, its backend is the one compared. Native code has its own math functions and sums in another order: there an op
    may be off by `ulps` for each rounding, in units of the numbers that it sums.

    Afterwards everything that the step can reach by name (arguments, closures, globals, attributes) is restored: tensors,
    their gradients and flags, modules, optimizers, schedulers, lists, dicts, and the default random generator. Some state
    cannot be restored (files, printed text, iterators, NumPy arrays): there the effects of the one run remain.

    Given a tensor, this is PyTorch's `diff`: differences of neighbouring elements.
    """
    if fn is None or isinstance(fn, Tensor) or not callable(fn):
        differences: Any = OPS["diff"].public_function
        return differences(*(() if fn is None else (fn,)), *args, **kwargs)
    state = local.state
    if state.tracer is not None:
        raise RuntimeError("diff: cannot be called inside a compiled function")
    materialise_all()
    before = Before(fn, args, kwargs)
    observer = Observer(state, before)
    try:
        observer.observe(fn, args, kwargs)
        return compare(observer, wanted_backend(fn), ulps, rtol)
    finally:
        observer.close()
        before.restore()


# ---- the eager run


# ---- the compiled run


# ---- native code
