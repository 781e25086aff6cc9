"""Random tensors. A random op has the seed and its call number among its inputs: it is as repeatable as any other op,
and a trace can be replayed with the next call number. Shape, dtype and device are attributes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import devices, dtypes, philox
from ..core.dispatch import apply, write
from ..core.errors import broadcast_error
from ..core.generator import Generator, default_generator
from ..core.op import Op, primitive
from ..core.shape_inference import Spec, from_attrs
from ..core.tape.inplace import check_target
from ..core.tape.node import local
from ..core.tensor import Tensor, as_index
from .create import check_sizes, parse_shape, reject_keywords
from .pointwise import result_type
from .shape.reshape import sizes

# ---- kernels: the device is an attribute, as there need not be an input that has one


def run_uniform(xp: Any, seed: Any, call: Any, low: Any, high: Any, *, shape: Any, dtype: Any, device: Any) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        values = philox.uniform(xp, seed, call, math.prod(shape), dtype.numpy)
        if low != 0 or high != 1:
            values = values.astype(working(dtype), copy=False)
            values *= high - low
            values += low
        return values.reshape(shape).astype(dtype.numpy, copy=False)


def run_normal(xp: Any, seed: Any, call: Any, mean: Any, std: Any, *, shape: Any, dtype: Any, device: Any) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        values = philox.normal(xp, seed, call, math.prod(shape), working(dtype))
        if mean != 0 or std != 1:
            values *= std
            values += mean
        return values.reshape(shape).astype(dtype.numpy, copy=False)


def run_integers(xp: Any, seed: Any, call: Any, low: Any, high: Any, *, shape: Any, dtype: Any, device: Any) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        values = philox.integers(xp, seed, call, math.prod(shape), low, high)
        return values.reshape(shape).astype(dtype.numpy, copy=False)


def run_mask(xp: Any, seed: Any, call: Any, p: Any, *, shape: Any, device: Any) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        return philox.bernoulli(xp, seed, call, math.prod(shape), p).reshape(shape)


def run_permutation(xp: Any, seed: Any, call: Any, *, n: int, dtype: Any, device: Any) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        return philox.permutation(xp, seed, call, n).astype(dtype.numpy, copy=False)


def run_bernoulli(xp: Any, p: Any, seed: Any, call: Any) -> Any:
    chances = p.astype(np.float32) if p.dtype in dtypes.HALF else p
    if not bool(((chances >= 0) & (chances <= 1)).all()):
        raise RuntimeError("bernoulli: Expected p_in >= 0 && p_in <= 1 to be true, but a probability is outside of [0, 1]")
    drawn = philox.uniform(xp, seed, call, p.size, chances.dtype).reshape(p.shape)
    return (drawn < chances).astype(p.dtype)


def run_multinomial(xp: Any, weights: Any, seed: Any, call: Any, *, count: int, replacement: bool) -> Any:
    check_weights(xp, weights)
    rows = weights.reshape(-1, weights.shape[-1]).astype(np.float64)
    found = with_replacement(xp, rows, seed, call, count) if replacement else race(xp, rows, seed, call, count)
    return found.reshape(*weights.shape[:-1], count)


def check_weights(xp: Any, weights: Any) -> None:
    if not bool((xp.isfinite(weights) & (weights >= 0)).all()):
        raise RuntimeError("multinomial: probability tensor contains either `inf`, `nan` or element < 0")
    if not bool((weights.astype(np.float64).sum(-1) > 0).all()):
        raise RuntimeError("multinomial: invalid multinomial distribution (sum of probabilities <= 0)")


def with_replacement(xp: Any, rows: Any, seed: Any, call: Any, count: int) -> Any:
    """Return the positions of uniform numbers in the cumulated weights. Row r is moved to [r, r + 1]: one search does all."""
    m, k = rows.shape
    ends = xp.cumsum(rows, axis=1)
    ends /= ends[:, -1:]
    ends[:, -1] = 1
    first = xp.arange(m, dtype=np.float64)[:, None]
    drawn = philox.uniform(xp, seed, call, m * count, np.dtype(np.float32)).astype(np.float64).reshape(m, count)
    found = xp.searchsorted((ends + first).reshape(-1), (drawn + first).reshape(-1), side="right").reshape(m, count)
    return found - xp.arange(m)[:, None] * k


def race(xp: Any, rows: Any, seed: Any, call: Any, count: int) -> Any:
    """Without replacement: exponential clocks, one a category, run at the rates `rows`; the first to ring are drawn."""
    drawn = philox.uniform(xp, seed, call, rows.size, np.dtype(np.float64)).reshape(rows.shape)
    rates = xp.where(rows > 0, rows, 1)
    times = xp.where(rows > 0, -xp.log1p(-drawn) / rates, np.inf)
    return xp.argsort(times, axis=1)[:, :count].astype(np.int64)


def working(dtype: dtypes.dtype) -> np.dtype[Any]:
    """The dtype to compute in: half precision is rounded once, at the end."""
    return dtypes.float32.numpy if dtype.numpy in dtypes.HALF else dtype.numpy


UNIFORM = primitive("random_uniform", "random", run_uniform, infer=from_attrs)
NORMAL = primitive("random_normal", "random", run_normal, infer=from_attrs)
INTEGERS = primitive("random_integers", "random", run_integers, infer=from_attrs)
MASK = primitive("random_mask", "random", run_mask, infer=lambda *numbers, shape, device: (Spec(tuple(shape), dtypes.bool_),))
PERMUTATION = primitive(
    "random_permutation", "random", run_permutation, infer=lambda *numbers, n, dtype, device: (Spec((n,), dtype),)
)
BERNOULLI = primitive("bernoulli", "random", run_bernoulli)
MULTINOMIAL = primitive("multinomial", "random", run_multinomial)

# ---- drawing


def take(generator: Generator | None) -> tuple[int, int]:
    if generator is None:
        return default_generator.take_call()
    if not isinstance(generator, Generator):
        raise TypeError(f"argument 'generator' must be a tapejit.Generator, not {type(generator).__name__}")
    return generator.take_call()


def draw(
    op: Op,
    numbers: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: Any,
    device: Any,
    generator: Generator | None,
    requires_grad: bool = False,
) -> Tensor:
    """A new tensor of `op`'s random numbers."""
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if op is not INTEGERS and not kind.is_floating_point:
        raise NotImplementedError(f"\"{op.name}\" not implemented for '{kind.legacy}': ask for a floating-point dtype")
    attrs = {"shape": check_sizes(shape), "dtype": kind, "device": devices.as_device(device)}
    found = apply(op, (*take(generator), *numbers), attrs)
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


def refill(self: Tensor, op: Op, numbers: tuple[Any, ...], generator: Generator | None, name: str) -> Tensor:
    """Overwrite a tensor with random numbers of its own dtype, on its own device."""
    if op is not INTEGERS and not self.dtype.is_floating_point:
        raise NotImplementedError(f"\"{name}\" not implemented for '{self.dtype.legacy}': the tensor must be floating-point")
    check_target(self, False, local.state.grad, name)
    attrs = {"shape": self.tj_array.shape, "dtype": self.dtype, "device": self.device}
    return apply(op, (*take(generator), *numbers), attrs, self)  # type: ignore[no-any-return]


def uniform_between(x: Tensor, low: float, high: float, generator: Generator | None) -> Any:
    """Uniform numbers to compute with, for a tensor's shape: half precision as float32."""
    dtype = dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32
    return draw(UNIFORM, (low, high), x.tj_array.shape, dtype, x.device, generator)


# ---- new tensors


def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """Uniform random numbers in [0, 1)."""
    return draw(UNIFORM, (0, 1), parse_shape(size, kw, "rand"), dtype, device, generator, requires_grad)


def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """Random numbers from the standard normal distribution."""
    return draw(NORMAL, (0, 1), parse_shape(size, kw, "randn"), dtype, device, generator, requires_grad)


def rand_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """Uniform random numbers in [0, 1), in the shape of a tensor."""
    reject_keywords(kw, "rand_like")
    return draw(UNIFORM, (0, 1), input.tj_array.shape, dtype or input.dtype, device or input.device, generator, requires_grad)


def randn_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """Standard normal random numbers, in the shape of a tensor."""
    reject_keywords(kw, "randn_like")
    return draw(NORMAL, (0, 1), input.tj_array.shape, dtype or input.dtype, device or input.device, generator, requires_grad)


def randint(
    *args: Any,
    low: int | None = None,
    high: int | None = None,
    size: Any = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """`randint(high, size)` or `randint(low, high, size)`: random whole numbers in [low, high)."""
    reject_keywords(kw, "randint")
    values = list(args)
    if size is None and values and not isinstance(values[-1], (int, np.integer)) and hasattr(values[-1], "__iter__"):
        size = values.pop()
    if size is None:
        raise TypeError("randint(): missing the argument 'size', a tuple")
    begin, end = bounds(values, low, high, "randint")
    kind = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    check_bounds(begin, end, kind)
    return draw(INTEGERS, (begin, end), sizes((size,)), kind, device, generator, requires_grad)


def randint_like(
    input: Tensor,
    *args: Any,
    low: int | None = None,
    high: int | None = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """`randint_like(x, high)` or `randint_like(x, low, high)`: random whole numbers in the shape of a tensor."""
    reject_keywords(kw, "randint_like")
    begin, end = bounds(list(args), low, high, "randint_like")
    kind = input.dtype if dtype is None else dtypes.as_dtype(dtype)
    check_bounds(begin, end, kind)
    return draw(INTEGERS, (begin, end), input.tj_array.shape, kind, device or input.device, generator, requires_grad)


def bounds(values: list[Any], low: Any, high: Any, name: str) -> tuple[int, int]:
    """[low,] high from positional and keyword arguments."""
    if low is not None:
        values = [low, *values]
    if high is not None:
        values = [*values, high]
    if not 1 <= len(values) <= 2:
        raise TypeError(f"{name}(): expected 'high', or 'low' and 'high', got {len(values)} bounds")
    begin, end = values if len(values) == 2 else (0, values[0])
    return as_index(begin, f"{name}(): 'low'"), as_index(end, f"{name}(): 'high'")


def check_bounds(low: int, high: int, dtype: dtypes.dtype) -> None:
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    least, most = whole_numbers(dtype)
    for name, value in (("from", low), ("to - 1", high - 1)):
        if not least <= value <= most and not dtype.is_floating_point:
            raise RuntimeError(f"{name} is out of bounds for {dtype.name}: {value} is not in [{least}, {most}]")
    if not -(1 << 63) <= low < high <= 1 << 63:
        raise RuntimeError(f"Overflow when unpacking long: [{low}, {high}) does not fit into int64")


def whole_numbers(dtype: dtypes.dtype) -> tuple[int, int]:
    """The least and the greatest whole number up to which a dtype can hold them all."""
    if dtype.is_floating_point:
        most = int(2 / dtypes.finfo(dtype).eps)
        return -most, most
    if dtype is dtypes.bool_:
        return 0, 1
    info = dtypes.iinfo(dtype)
    return info.min, info.max


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """The whole numbers from 0 to n - 1 in random order."""
    reject_keywords(kw, "randperm")
    count = as_index(n, "randperm(): 'n'")
    if count < 0:
        raise RuntimeError(f"n must be non-negative, got {count}")
    kind = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    if count - 1 > whole_numbers(kind)[1]:
        raise RuntimeError(f"n is too large for result tensor type: '{kind}' cannot hold the numbers up to {count - 1}")
    attrs = {"n": count, "dtype": kind, "device": devices.as_device(device)}
    found = apply(PERMUTATION, take(generator), attrs)
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """0 or 1, where 1 has the probability that the element says (or `p`, for all alike)."""
    if p is not None:
        return bernoulli_(input.new_empty(input.shape), p, generator=generator)
    if not input.dtype.is_floating_point:
        raise NotImplementedError(f"\"bernoulli\" not implemented for '{input.dtype.legacy}': the input holds probabilities")
    return apply(BERNOULLI, (input.detach(), *take(generator)))  # type: ignore[no-any-return]


def bernoulli_mask(shape: Any, p_keep: float, device: Any = None, generator: Generator | None = None) -> Tensor:
    """A boolean tensor that is True with probability `p_keep`."""
    attrs = {"shape": check_sizes(sizes((shape,))), "device": devices.as_device(device)}
    return apply(MASK, (*take(generator), float(p_keep)), attrs)  # type: ignore[no-any-return]


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Indices of categories, drawn for each row of weights."""
    if not 1 <= input.tj_array.ndim <= 2:
        raise RuntimeError(f"multinomial: prob_dist must be 1 or 2 dim, got shape {list(input.shape)}")
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {input.dtype.legacy}")
    count, categories = as_index(num_samples, "multinomial(): 'num_samples'"), input.tj_array.shape[-1]
    if count <= 0:
        raise RuntimeError(f"multinomial: cannot sample n_sample <= 0 samples, got {count}")
    if not replacement and count > categories:
        raise RuntimeError(
            f"multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement: {count} of {categories}"
        )
    attrs = {"count": count, "replacement": bool(replacement) or count == 1}
    return apply(MULTINOMIAL, (input.detach(), *take(generator)), attrs)  # type: ignore[no-any-return]


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """Normal random numbers. Mean and standard deviation are tensors that broadcast, or numbers with a `size`."""
    reject_keywords(kw, "normal")
    tensors = [v.detach() for v in (mean, std) if isinstance(v, Tensor)]
    if not isinstance(std, Tensor):
        check_spread(std)
    elif bool((std.detach() < 0).any()):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    if not tensors:
        if size is None:
            raise TypeError("normal(): with numbers for mean and std the argument 'size' is needed")
        return draw(NORMAL, (mean, std), sizes((size,)), dtype, device, generator, requires_grad)
    shapes = [t.tj_array.shape for t in tensors]
    clash = broadcast_error(shapes)
    if clash is not None:
        raise RuntimeError(f"normal: {clash}")
    shape = np.broadcast_shapes(*shapes)
    drawn = draw(NORMAL, (0, 1), shape, result_type(*tensors), tensors[0].device, generator)
    return drawn * (std.detach() if isinstance(std, Tensor) else std) + (mean.detach() if isinstance(mean, Tensor) else mean)


def check_spread(std: Any) -> None:
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


# ---- in place


def uniform_(self: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with uniform numbers in [from, to)."""
    if not from_ <= to:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={from_} > to={to}")
    return refill(self, UNIFORM, (from_, to), generator, "uniform_")


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers."""
    check_spread(std)
    return refill(self, NORMAL, (mean, std), generator, "normal_")


def random_(self: Tensor, from_: int = 0, to: int | None = None, *, generator: Generator | None = None) -> Tensor:
    """`random_()`, `random_(to)`, `random_(from, to)`: fill with whole numbers, by default all that the dtype can hold."""
    if to is None and from_:
        from_, to = 0, from_
    end = whole_numbers(self.dtype)[1] + 1 if to is None else as_index(to, "random_(): 'to'")
    begin = as_index(from_, "random_(): 'from'")
    check_bounds(begin, end, self.dtype)
    return refill(self, INTEGERS, (begin, end), generator, "random_")


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with 1 where a draw of probability p (a number, or a tensor that broadcasts) succeeds, else 0."""
    if isinstance(p, Tensor):
        chances = p.detach() if p.dtype.is_floating_point else p.to(dtypes.get_default_dtype())
        value = bernoulli(chances.expand(self.tj_array.shape), generator=generator)
    elif not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    else:
        value = bernoulli_mask(self.tj_array.shape, p, self.device, generator)
    return write(self, value.to(self.dtype), "bernoulli_")


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with numbers of the exponential distribution with the rate lambd."""
    need_float(self, "exponential_")
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return write(self, (clock(self, generator) / lambd).to(self.dtype), "exponential_")


def clock(x: Tensor, generator: Generator | None) -> Any:
    """Exponential numbers of rate 1, never 0, so that their logarithm is finite."""
    drawn = uniform_between(x, 0, 1, generator)
    return -(-drawn.clamp(min=2.0**-54 if drawn.dtype is dtypes.float64 else 2.0**-25)).log1p()


def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fill with the number of draws of probability p until the first success: 1, 2, ..."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    waits = (clock(self, generator) / -math.log1p(-p)).ceil()
    return write(self, waits.to(self.dtype), "geometric_")


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with numbers whose logarithm is normal."""
    need_float(self, "log_normal_")
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    dtype = dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32
    drawn = draw(NORMAL, (mean, std), self.tj_array.shape, dtype, self.device, generator)
    return write(self, drawn.exp().to(self.dtype), "log_normal_")


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with numbers of the Cauchy distribution."""
    need_float(self, "cauchy_")
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    angles = uniform_between(self, -0.5, 0.5, generator) * math.pi
    return write(self, (angles.tan() * sigma + median).to(self.dtype), "cauchy_")


def need_float(self: Tensor, name: str) -> None:
    if not self.dtype.is_floating_point:
        raise NotImplementedError(f"\"{name}\" not implemented for '{self.dtype.legacy}': the tensor must be floating-point")


for _method in (
    bernoulli, bernoulli_, cauchy_, exponential_, geometric_, log_normal_, multinomial, normal_, random_, uniform_,
):  # fmt: skip
    setattr(Tensor, _method.__name__, _method)
