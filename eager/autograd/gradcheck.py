"""`gradcheck` and `gradgradcheck`: what the tape says a gradient is, compared with finite differences.

Both Jacobians have one row for each element of the input and one column for each element of the output.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import devices
from ..core.tensor import Tensor, wrap

Matrix = np.ndarray[Any, np.dtype[np.float64]]


class GradcheckError(RuntimeError):
    """A gradient is not what finite differences say it is."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Compare the gradients of `func(*inputs)` with finite differences, for each input that requires grad (use float64).

    `fast_mode` compares both Jacobians along one random direction instead of element by element.
    """
    if check_forward_ad or check_batched_grad or check_batched_forward_grad:
        raise NotImplementedError("gradcheck: there is no forward mode and no batched gradient to check here")
    check = _Check(func, _tuple(inputs), eps, atol, rtol)
    try:
        if not check.outputs:
            check.has_no_slope()
        elif check_backward_ad:
            (check.along_one_direction if fast_mode else check.element_by_element)(nondet_tol, check_grad_dtypes)
            if check_undefined_grad:
                check.takes_missing_gradients()
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Compare second gradients with finite differences of first ones, weighted by `grad_outputs` (random if not given)."""
    if check_fwd_over_rev:
        raise NotImplementedError("gradgradcheck: there is no forward mode to check here")
    given = _tuple(inputs)
    weights = _weights(func, given, gen_non_contig_grad_outputs) if grad_outputs is None else _tuple(grad_outputs)
    count = len(weights)

    def first_gradients(*args: Any) -> tuple[Tensor, ...]:
        from . import grad

        values, ws = args[: len(args) - count], args[len(args) - count :]
        outputs = [t for t in _tuple(func(*values)) if _wants_grad(t)]
        wanted = [t for t in values if _wants_grad(t)]
        found = grad(outputs, wanted, ws, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradcheck(
        first_gradients,
        (*given, *weights),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
    )


class _Check:
    """One function at one point."""

    def __init__(self, func: Callable[..., Any], inputs: tuple[Any, ...], eps: float, atol: float, rtol: float) -> None:
        self.func, self.inputs, self.eps, self.atol, self.rtol = func, inputs, eps, atol, rtol
        self.positions = [i for i, t in enumerate(inputs) if _wants_grad(t)]  # of the inputs to differentiate by
        self.wanted: list[Tensor] = [inputs[i] for i in self.positions]
        self._check_inputs()
        found = _tuple(func(*inputs))
        self.places = [j for j, t in enumerate(found) if _wants_grad(t)]  # of the outputs to differentiate
        self.outputs: list[Tensor] = [found[j] for j in self.places]

    def _check_inputs(self) -> None:
        if not self.wanted:
            raise ValueError(
                "gradcheck expects at least one input tensor to require gradient, but none of them have requires_grad=True."
            )
        for i, t in zip(self.positions, self.wanted, strict=True):
            if t.tj_array.dtype != np.float64:
                warnings.warn(
                    f"Input #{i} requires gradient and is not a double precision floating point. This check will likely fail "
                    "if all the inputs are not of double precision floating point.",
                    UserWarning,
                    stacklevel=4,
                )
            if any(s == 0 and n > 1 for s, n in zip(t.tj_array.strides, t.tj_array.shape, strict=True)):
                raise RuntimeError(
                    f"The {i}th input has a dimension with stride 0. gradcheck only supports inputs that are non-overlapping "
                    "to be able to compute the numerical gradients correctly. You should call .contiguous on the input before "
                    "passing it to gradcheck."
                )

    # ---- the two Jacobians

    def values(self) -> list[Matrix]:
        """The outputs at the inputs' present values, flat."""
        found = _tuple(self.func(*self.inputs))
        if self.places:
            return [_flat(found[j]) for j in self.places]
        return [_flat(t) for t in found if isinstance(t, Tensor) and t.is_floating_point()]

    def numerical(self, t: Tensor) -> list[Matrix]:
        """For each output, the slope by finite differences in the direction of each element of `t`."""
        array = t.tj_array
        rows = [self.slopes(array, index, 1.0) for index in np.ndindex(array.shape)]
        if not rows:
            return [np.zeros((0, v.size)) for v in self.values()]
        return [np.stack([row[j] for row in rows]) for j in range(len(rows[0]))]

    def slopes(self, array: Any, index: Any, direction: Any) -> list[Matrix]:
        """Central differences of all outputs. Written into the array itself: `func` may know the tensor from elsewhere too,
        and a tensor's version is not to change by being measured."""
        before = array[index].copy()
        array[index] = before + self.eps * direction
        above = self.values()
        array[index] = before - self.eps * direction
        below = self.values()
        array[index] = before
        return [(a - b) / (2 * self.eps) for a, b in zip(above, below, strict=True)]

    def analytical(self, output: Tensor, check_dtypes: bool) -> list[Matrix]:
        """For each input, the gradients of each element of `output`, by the tape."""
        columns = [self.gradients(output, weight, check_dtypes) for weight in np.eye(output.numel())]
        if not columns:
            return [np.zeros((t.numel(), 0)) for t in self.wanted]
        return [np.stack([column[i] for column in columns], axis=1) for i in range(len(self.wanted))]

    def gradients(self, output: Tensor, weight: Matrix, check_dtypes: bool = False) -> list[Matrix]:
        from . import grad

        found = grad(output, self.wanted, _like(output, weight), retain_graph=True, allow_unused=True)
        if check_dtypes:
            for g, t in zip(found, self.wanted, strict=True):
                if g is not None and g.dtype is not t.dtype:
                    raise GradcheckError(f"Gradient has dtype {g.dtype}, but its input has {t.dtype}")
        return [np.zeros(t.numel()) if g is None else _flat(g) for g, t in zip(found, self.wanted, strict=True)]

    # ---- what is checked

    def element_by_element(self, nondet_tol: float, check_dtypes: bool) -> None:
        numerical = [self.numerical(t) for t in self.wanted]
        for j, output in enumerate(self.outputs):
            analytical = self.analytical(output, check_dtypes)
            again = self.analytical(output, False)
            for i, found in enumerate(analytical):
                if not self.close(found, numerical[i][j]):
                    raise self.mismatch(i, j, numerical[i][j], found)
                if found.size and np.abs(found - again[i]).max() > nondet_tol:
                    raise GradcheckError(
                        "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                        "gives different values, although analytical gradient matches numerical gradient. The tolerance for "
                        f"nondeterminism was {nondet_tol}. Output {self.places[j]}, input {self.positions[i]}:\n"
                        f"{_show(found)}\nand then\n{_show(again[i])}"
                    )

    def along_one_direction(self, nondet_tol: float, check_dtypes: bool) -> None:
        random = np.random.default_rng(0)
        for i, t in enumerate(self.wanted):
            direction = _unit(random, t.numel())
            shaped = devices.move(direction.astype(t.tj_array.dtype).reshape(t.tj_array.shape), t.device)
            slopes = self.slopes(t.tj_array, ..., shaped)
            for j, output in enumerate(self.outputs):
                weight = _unit(random, output.numel())
                found = self.gradients(output, weight, check_dtypes)[i] @ direction
                if not self.close(found, slopes[j] @ weight):
                    raise self.mismatch(i, j, self.numerical(t)[j], self.analytical(output, False)[i])

    def close(self, found: Any, expected: Any) -> bool:
        return bool(np.allclose(found, expected, rtol=self.rtol, atol=self.atol))

    def mismatch(self, i: int, j: int, numerical: Matrix, analytical: Matrix) -> GradcheckError:
        worst = np.unravel_index(np.argmax(np.nan_to_num(np.abs(numerical - analytical), nan=np.inf)), numerical.shape)
        return GradcheckError(
            f"Jacobian mismatch for output {self.places[j]} with respect to input {self.positions[i]},\n"
            f"numerical:\n{_show(numerical)}\nanalytical:\n{_show(analytical)}\n"
            f"The largest difference is at element {int(worst[0])} of the input and element {int(worst[1])} of the output: "
            f"numerical {numerical[worst]:.8g}, analytical {analytical[worst]:.8g}"
        )

    def has_no_slope(self) -> None:
        """Nothing requires grad, so nothing may change with the inputs."""
        for i, t in zip(self.positions, self.wanted, strict=True):
            for slope in self.numerical(t):
                if not self.close(slope, np.zeros_like(slope)):
                    raise GradcheckError(
                        f"Numerical gradient for function expected to be zero: no output requires grad, yet they change with "
                        f"input {i}:\n{_show(slope)}"
                    )

    def takes_missing_gradients(self) -> None:
        """Without a gradient for one of the outputs, and zeros for the others, the inputs' gradients are zero."""
        from . import grad

        for j in range(len(self.outputs)) if len(self.outputs) > 1 else ():
            others = [t for k, t in enumerate(self.outputs) if k != j]
            zeros = [_like(t, np.zeros(t.numel())) for t in others]
            try:
                found = grad(others, self.wanted, zeros, retain_graph=True, allow_unused=True)
            except Exception as error:
                raise GradcheckError(
                    f"Expected backward function to handle undefined output grads: with none for output {self.places[j]} it "
                    f"raised {type(error).__name__}: {error}"
                ) from error
            for i, g in enumerate(found):
                if g is not None and np.any(_flat(g) != 0):
                    raise GradcheckError(
                        "Expected all input grads to be undefined or zero when all output grads are undefined or zero, but "
                        f"that of input {self.positions[i]} is not, with no gradient for output {self.places[j]}"
                    )


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _wants_grad(t: Any) -> bool:
    return isinstance(t, Tensor) and t.requires_grad


def _flat(t: Tensor) -> Matrix:
    return devices.to_numpy(t.tj_array).astype(np.float64).reshape(-1)


def _like(t: Tensor, values: Matrix) -> Tensor:
    """A tensor with the shape, dtype and device of another."""
    return wrap(devices.move(values.astype(t.tj_array.dtype).reshape(t.tj_array.shape), t.device))


def _unit(random: np.random.Generator, count: int) -> Matrix:
    values = random.standard_normal(count)
    return values / (np.linalg.norm(values) or 1.0)


def _weights(func: Callable[..., Any], inputs: tuple[Any, ...], strided: bool) -> tuple[Tensor, ...]:
    """A random gradient for each differentiable output; `strided` ones are not contiguous."""
    random = np.random.default_rng(0)
    found = []
    for t in _tuple(func(*inputs)):
        if _wants_grad(t):
            weight = _like(t, random.standard_normal(t.numel()))
            if strided:
                weight = wrap(weight.tj_array.repeat(2).reshape(*t.tj_array.shape, 2)[..., 0])
            found.append(weight.requires_grad_())
    return tuple(found)


def _show(matrix: Matrix) -> str:
    return np.array2string(matrix, precision=6, suppress_small=True, threshold=400)
