"""Recurrences through time, a whole sequence in one op: Elman, LSTM and GRU.

What the input contributes to the gates is one large matmul made elsewhere (`rnn.py`), so each op takes these
contributions `x`, the initial state, the recurrent weight and its bias. Sequences are packed: `x` has a row for each
element and step, all rows of the first step first, and `sizes` says how many rows each step has. The sizes never grow, so
the rows of a step belong to the first elements of the batch, and a padded batch is one whose sizes are all equal. A state
has a row for each element of the batch: elements whose sequence is over, or in reverse has not begun, keep theirs.

The kernels loop over the steps with few array calls and no temporaries. Beside the results they return what the backward
kernels need: gates and cells or states. These are outputs with gradients like others, which only second derivatives use.
"""

from __future__ import annotations

from typing import Any

from ...arrays.chunking import BLOCK_ELEMENTS
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.shape_inference import Spec
from ...core.tensor import Tensor
from ..pointwise import mask_bits, where
from ..reduce import sum_array
from ..shape.reshape import cat
from .normalization import is_array

Sizes = tuple[int, ...]

# ---- steps


def steps(sizes: Sizes, reverse: bool) -> list[tuple[slice, int]]:
    """The rows of each step and their number, in the order in which the recurrence goes through them."""
    found, start = [], 0
    for n in sizes:
        found.append((slice(start, start + n), n))
        start += n
    return found[::-1] if reverse else found


def group_steps(order: list[tuple[slice, int]], width: int) -> list[tuple[slice, list[tuple[slice, int]]]]:
    """Consecutive steps in groups that fit a core's cache, at least one step each: the rows of all of them, and the steps.

    What does not depend on the step before is computed for a group at once; for small states that saves most array calls.
    """
    groups: list[list[tuple[slice, int]]] = []
    count = 0
    for step in order:
        count += step[1] * width
        if not groups or count > BLOCK_ELEMENTS:
            groups.append([])
            count = step[1] * width
        groups[-1].append(step)
    ends = [(min(g[0][0].start, g[-1][0].start), max(g[0][0].stop, g[-1][0].stop)) for g in groups]
    return [(slice(*end), group) for end, group in zip(ends, groups, strict=True)]


def previous_states(xp: Any, start: Any, values: Any, sizes: Sizes, reverse: bool) -> Any:
    """For each row the value of the step before it, `start` before the first."""
    found, n = xp.empty_like(values), sizes[0]
    if n == sizes[-1]:
        mine, others = (slice(-n, None), slice(None, -n)) if reverse else (slice(None, n), slice(n, None))
        if n:
            found[mine] = start
            found[others] = values[n:] if reverse else values[:-n]
        return found
    state = start.copy()
    for rows, n in steps(sizes, reverse):
        found[rows] = state[:n]
        state[:n] = values[rows]
    return found


def initial_gradient(xp: Any, g: Any, like: Any) -> Any:
    """A gradient to be added to in place: that of the last state, or zeros."""
    return g.copy() if is_array(g) else xp.zeros(like.shape, like.dtype)


def add_gradients(g: Any, more: Any) -> Any:
    """The sum of two gradients, each of which may be missing."""
    return g + more if is_array(g) and is_array(more) else g if is_array(g) else more


def sigmoid_(xp: Any, x: Any) -> None:
    """1 / (1 + exp(-x)), in place."""
    xp.multiply(x, -1, out=x)  # NumPy's negative is wrong in place on some strides
    xp.exp(x, out=x)
    x += 1
    xp.reciprocal(x, out=x)


def columns(x: Any, count: int) -> list[Any]:
    """The columns of an array or tensor in equal parts."""
    width = x.shape[1] // count
    return [x[:, k * width : (k + 1) * width] for k in range(count)]


def weight_gradients(xp: Any, slopes: Any, start: Any, values: Any, sizes: Sizes, reverse: bool, needs: Any) -> tuple[Any, Any]:
    """The gradients of the recurrent weight and bias, from those of the sums that they enter and the states."""
    of_weight = xp.matmul(slopes.T, previous_states(xp, start, values, sizes, reverse)) if needs[0] else None
    return of_weight, sum_array(xp, slopes, (0,), False) if needs[1] else None


def select_needed(found: tuple[Any, ...], needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return tuple(x for x, need in zip(found, needs, strict=True) if need)


# ---- the same with tensors


def rows_first(now: Tensor, state: Tensor, n: int) -> Tensor:
    """A state whose first n rows are new."""
    return now if n == len(state) else cat([now, state[n:]])  # type: ignore[no-any-return]


def first(state: Tensor, n: int) -> Tensor:
    return state if n == len(state) else state[:n]


def join_steps(pieces: list[Tensor], reverse: bool) -> Tensor:
    """One tensor of all rows, from the pieces of each step in the order of the recurrence."""
    return cat(pieces[::-1] if reverse else pieces)  # type: ignore[no-any-return]


def through_time(step: Any, x: Tensor, states: list[Tensor], sizes: Sizes, reverse: bool) -> tuple[list[Tensor], list[Tensor]]:
    """`step(x, *states)` gives new states and what to keep, for each step. The last states and all that was kept."""
    kept = []
    for rows, n in steps(sizes, reverse):
        new, keep = step(x[rows], *[first(s, n) for s in states])
        states = [rows_first(now, s, n) for now, s in zip(new, states, strict=True)]
        kept.append(keep)
    return states, [join_steps(list(pieces), reverse) for pieces in zip(*kept, strict=True)]


def before_by_parts(start: Tensor, values: Tensor, sizes: Sizes, reverse: bool) -> Tensor:
    pieces, state = [], start
    for rows, n in steps(sizes, reverse):
        pieces.append(first(state, n))
        state = rows_first(values[rows], state, n)
    return join_steps(pieces, reverse)


def add_rows(x: Tensor, g: Any, rows: slice) -> Tensor:
    """x with the gradient's rows added, if there is a gradient."""
    return x + g[rows] if isinstance(g, Tensor) else x


def or_zeros(g: Any, like: Tensor) -> Tensor:
    return g if isinstance(g, Tensor) else like.new_zeros(like.shape)  # type: ignore[no-any-return]


def sums_of_weights(slopes: Tensor, start: Tensor, values: Tensor, sizes: Sizes, reverse: bool) -> tuple[Tensor, Tensor]:
    return slopes.mT @ before_by_parts(start, values, sizes, reverse), slopes.sum(0)


def or_zero(gs: list[Tensor | None]) -> list[Any]:
    """Gradients as a backward op's inputs: 0 for one that is not there."""
    return [0 if g is None else g for g in gs]


def spread_to_inputs(found: tuple[Tensor, ...], needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Arrange the results of a backward op by input."""
    remaining = iter(found)
    return tuple(next(remaining) if need else None for need in needs)


# ---- Elman: h = tanh(x + h weight^T + bias), or relu


def run_elman(xp: Any, x: Any, h0: Any, weight: Any, bias: Any, *, relu: bool, sizes: Sizes, reverse: bool) -> tuple[Any, ...]:
    states = x + bias
    h, turned, sums = h0.copy(), weight.T, xp.empty(h0.shape, x.dtype)
    for rows, n in steps(sizes, reverse):
        now = states[rows]
        xp.matmul(h[:n], turned, out=sums[:n])
        now += sums[:n]
        if relu:
            xp.maximum(now, 0, out=now)
        else:
            xp.tanh(now, out=now)
        h[:n] = now
    return states.copy(), h, states


def run_elman_backward(
    xp: Any,
    g_out: Any,
    g_h: Any,
    g_states: Any,
    h0: Any,
    weight: Any,
    states: Any,
    *,
    relu: bool,
    sizes: Sizes,
    reverse: bool,
    needs: tuple[bool, ...],
) -> tuple[Any, ...]:
    slopes, of_h, g_out = xp.empty_like(states), initial_gradient(xp, g_h, h0), add_gradients(g_out, g_states)
    for part, group in group_steps(steps(sizes, reverse)[::-1], states.shape[1]):
        if not relu:
            xp.multiply(states[part], states[part], out=slopes[part])
            xp.subtract(1, slopes[part], out=slopes[part])
        for rows, n in group:
            pull, piece = of_h[:n], slopes[rows]
            if is_array(g_out):
                pull += g_out[rows]
            if relu:  # a choice and not a product, as `relu` itself has it: NaN in a state lets the gradient through
                piece[...] = mask_bits(xp, pull, states[rows] != 0)
            else:
                piece *= pull
            xp.matmul(piece, weight, out=pull)
    return select_needed((slopes, of_h, *weight_gradients(xp, slopes, h0, states, sizes, reverse, needs[2:])), needs)


def elman_by_parts(
    x: Tensor, h0: Tensor, weight: Tensor, bias: Any, relu: bool, sizes: Sizes, reverse: bool
) -> tuple[Tensor, ...]:
    def step(x: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        pre = x + (h @ weight.mT + bias)
        now = pre.relu() if relu else pre.tanh()
        return [now], [now]

    (h,), (states,) = through_time(step, x, [h0], sizes, reverse)
    return states.clone(), h, states


def elman_backward_by_parts(
    g_out: Any,
    g_h: Any,
    g_states: Any,
    h0: Tensor,
    weight: Tensor,
    states: Tensor,
    relu: bool,
    sizes: Sizes,
    reverse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor, ...]:
    of_h, pieces = or_zeros(g_h, h0), []
    for rows, n in steps(sizes, reverse)[::-1]:
        pull = add_rows(add_rows(first(of_h, n), g_out, rows), g_states, rows)
        now = states[rows]
        piece = where(now != 0, pull, 0) if relu else pull * (1 - now * now)
        of_h = rows_first(piece @ weight, of_h, n)
        pieces.append(piece)
    slopes = join_steps(pieces, not reverse)
    return select_needed((slopes, of_h, *sums_of_weights(slopes, h0, states, sizes, reverse)), needs)


def elman_gradient(
    gs: list[Tensor | None],
    h0: Tensor,
    weight: Tensor,
    out2: Tensor,
    needs: tuple[bool, ...],
    relu: bool,
    sizes: Sizes,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    attrs = {"relu": relu, "sizes": sizes, "reverse": reverse, "needs": needs}
    return spread_to_inputs(apply(ELMAN_BACKWARD, (*or_zero(gs), h0, weight, out2), attrs), needs)


def check_fit(gates: int, x: Spec, weight: Spec, bias: Any, *states: Spec) -> None:
    """An error if inputs do not belong together."""
    width = weight.shape[1]
    same = [weight.shape == (gates * width, width), x.shape[1:] == weight.shape[:1]]
    same += [len(s.shape) == 2 and s.shape[1] == width for s in states]
    same += [bias.shape == weight.shape[:1]] if isinstance(bias, Spec) else []
    given = [s for s in (x, weight, bias, *states) if isinstance(s, Spec)]
    if not all(same) or len({s.dtype for s in given}) > 1 or len({s.shape for s in states}) > 1:
        raise ValueError("gates, states and weights are of different sizes")


def infer_elman(x: Spec, h0: Spec, weight: Spec, bias: Any, **_: Any) -> tuple[Spec, ...]:
    check_fit(1, x, weight, bias, h0)
    return x, h0, x


ELMAN_BACKWARD = primitive("elman_backward", "composite", run_elman_backward, expand=elman_backward_by_parts)
ELMAN = primitive("elman", "composite", run_elman, grad=elman_gradient, expand=elman_by_parts, infer=infer_elman)

# ---- LSTM: gates i, f, g, o; c = f c + i g; h = o tanh(c)


def run_lstm(xp: Any, x: Any, h0: Any, c0: Any, weight: Any, bias: Any, *, sizes: Sizes, reverse: bool) -> tuple[Any, ...]:
    gates = x + bias
    width = h0.shape[1]
    out, cells = xp.empty((len(x), width), x.dtype), xp.empty((len(x), width), x.dtype)
    h, c, turned = h0.copy(), c0.copy(), weight.T
    sums, spare = xp.empty((len(h0), 4 * width), x.dtype), xp.empty(h0.shape, x.dtype)
    for rows, n in steps(sizes, reverse):
        gate, cell, now = gates[rows], cells[rows], out[rows]
        xp.matmul(h[:n], turned, out=sums[:n])
        gate += sums[:n]
        i, f, g, o = columns(gate, 4)
        sigmoid_(xp, gate[:, : 2 * width])
        xp.tanh(g, out=g)
        sigmoid_(xp, o)
        xp.multiply(f, c[:n], out=cell)
        xp.multiply(i, g, out=spare[:n])
        cell += spare[:n]
        xp.tanh(cell, out=now)
        now *= o
        h[:n] = now
        c[:n] = cell
    return out, h, c, gates, cells


def run_lstm_backward(
    xp: Any,
    g_out: Any,
    g_h: Any,
    g_c: Any,
    g_gates: Any,
    g_cells: Any,
    h0: Any,
    c0: Any,
    weight: Any,
    gates: Any,
    cells: Any,
    *,
    sizes: Sizes,
    reverse: bool,
    needs: tuple[bool, ...],
) -> tuple[Any, ...]:
    width = h0.shape[1]
    slopes, outputs, to_cells = xp.empty_like(gates), xp.empty_like(cells), xp.empty_like(cells)
    of_h, of_c = initial_gradient(xp, g_h, h0), initial_gradient(xp, g_c, c0)
    previous, spare = previous_states(xp, c0, cells, sizes, reverse), xp.empty(h0.shape, h0.dtype)
    for part, group in group_steps(steps(sizes, reverse)[::-1], 4 * width):
        factors, extra = slopes[part], None
        i, _, g, o = columns(gates[part], 4)
        squashed = xp.tanh(cells[part], out=outputs[part])
        inner = xp.multiply(squashed, squashed, out=to_cells[part])  # h = o tanh(c): the slope by c
        xp.subtract(1, inner, out=inner)
        inner *= o
        xp.multiply(gates[part], gates[part], out=factors)  # the slopes of the gates themselves
        xp.subtract(gates[part], factors, out=factors)
        by_i, by_f, by_g, by_o = columns(factors, 4)
        xp.multiply(g, g, out=by_g)
        xp.subtract(1, by_g, out=by_g)
        if is_array(g_gates):
            extra = factors * g_gates[part]
        by_i *= g
        by_f *= previous[part]
        by_g *= i
        by_o *= squashed
        squashed *= o  # the outputs again
        for rows, n in group:
            pull, pull_c, step, piece = of_h[:n], of_c[:n], spare[:n], slopes[rows]
            if is_array(g_out):
                pull += g_out[rows]
            if is_array(g_cells):
                pull_c += g_cells[rows]
            xp.multiply(to_cells[rows], pull, out=step)
            pull_c += step
            to_i_f_g, to_o = piece.reshape(n, 4, width)[:, :3], piece[:, 3 * width :]
            to_i_f_g *= pull_c[:, None]
            to_o *= pull
            pull_c *= gates[rows, width : 2 * width]
            if extra is not None:
                piece += extra[rows.start - part.start : rows.stop - part.start]
            xp.matmul(piece, weight, out=pull)
    return select_needed((slopes, of_h, of_c, *weight_gradients(xp, slopes, h0, outputs, sizes, reverse, needs[3:])), needs)


def lstm_by_parts(
    x: Tensor, h0: Tensor, c0: Tensor, weight: Tensor, bias: Any, sizes: Sizes, reverse: bool, projection: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The recurrence in other ops; `projection` makes the outputs smaller than the cells, which no kernel does."""

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        i, f, g, o = columns(x + (h @ weight.mT + bias), 4)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        h = h if projection is None else h @ projection.mT
        return [h, c], [h, cat([i, f, g, o], 1), c]

    (h, c), (out, gates, cells) = through_time(step, x, [h0, c0], sizes, reverse)
    return out, h, c, gates, cells


def lstm_backward_by_parts(
    g_out: Any,
    g_h: Any,
    g_c: Any,
    g_gates: Any,
    g_cells: Any,
    h0: Tensor,
    c0: Tensor,
    weight: Tensor,
    gates: Tensor,
    cells: Tensor,
    sizes: Sizes,
    reverse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor, ...]:
    squashed = cells.tanh()
    outputs, previous = columns(gates, 4)[3] * squashed, before_by_parts(c0, cells, sizes, reverse)
    of_h, of_c, pieces = or_zeros(g_h, h0), or_zeros(g_c, c0), []
    for rows, n in steps(sizes, reverse)[::-1]:
        i, f, g, o = columns(gates[rows], 4)
        pull = add_rows(first(of_h, n), g_out, rows)
        pull_c = add_rows(first(of_c, n), g_cells, rows) + pull * o * (1 - squashed[rows] * squashed[rows])
        to_gates = cat([pull_c * g, pull_c * previous[rows], pull_c * i, pull * squashed[rows]], 1)
        piece = add_rows(to_gates, g_gates, rows) * cat([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)], 1)
        of_h, of_c = rows_first(piece @ weight, of_h, n), rows_first(pull_c * f, of_c, n)
        pieces.append(piece)
    slopes = join_steps(pieces, not reverse)
    return select_needed((slopes, of_h, of_c, *sums_of_weights(slopes, h0, outputs, sizes, reverse)), needs)


def lstm_gradient(
    gs: list[Tensor | None],
    h0: Tensor,
    c0: Tensor,
    weight: Tensor,
    out3: Tensor,
    out4: Tensor,
    needs: tuple[bool, ...],
    sizes: Sizes,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    attrs = {"sizes": sizes, "reverse": reverse, "needs": needs}
    return spread_to_inputs(apply(LSTM_BACKWARD, (*or_zero(gs), h0, c0, weight, out3, out4), attrs), needs)


def infer_lstm(x: Spec, h0: Spec, c0: Spec, weight: Spec, bias: Any, **_: Any) -> tuple[Spec, ...]:
    check_fit(4, x, weight, bias, h0, c0)
    rows = Spec((x.shape[0], h0.shape[1]), x.dtype)
    return rows, h0, c0, x, rows


LSTM_BACKWARD = primitive("lstm_recurrence_backward", "composite", run_lstm_backward, expand=lstm_backward_by_parts)
LSTM = primitive("lstm_recurrence", "composite", run_lstm, grad=lstm_gradient, expand=lstm_by_parts, infer=infer_lstm)

# ---- GRU: gates r, z; m = h weight_n^T + bias_n; n = tanh(x_n + r m); h = n + z (h - n)


def run_gru(xp: Any, x: Any, h0: Any, weight: Any, bias: Any, *, sizes: Sizes, reverse: bool) -> tuple[Any, ...]:
    width = h0.shape[1]
    gates, states = xp.empty((len(x), 4 * width), x.dtype), xp.empty((len(x), width), x.dtype)
    both, shift = (bias[: 2 * width], bias[2 * width :]) if is_array(bias) else (0, 0)
    xp.add(x[:, : 2 * width], both, out=gates[:, : 2 * width])
    h, turned, sums = h0.copy(), weight.T, xp.empty((len(h0), 3 * width), x.dtype)
    for rows, n in steps(sizes, reverse):
        r, z, new, m = columns(gates[rows], 4)
        state = h[:n]
        xp.matmul(state, turned, out=sums[:n])
        half = gates[rows, : 2 * width]
        half += sums[:n, : 2 * width]
        sigmoid_(xp, half)
        xp.add(sums[:n, 2 * width :], shift, out=m)
        xp.multiply(r, m, out=new)
        new += x[rows, 2 * width :]
        xp.tanh(new, out=new)
        state -= new
        state *= z
        state += new
        states[rows] = state
    return states.copy(), h, gates, states


def run_gru_backward(
    xp: Any,
    g_out: Any,
    g_h: Any,
    g_gates: Any,
    g_states: Any,
    h0: Any,
    weight: Any,
    gates: Any,
    states: Any,
    *,
    sizes: Sizes,
    reverse: bool,
    needs: tuple[bool, ...],
) -> tuple[Any, ...]:
    width = h0.shape[1]
    of_x = xp.empty((len(states), 3 * width), states.dtype)
    of_sums = xp.empty_like(of_x)  # the same but for n, whose share of h weight^T passes through r
    of_h, g_out = initial_gradient(xp, g_h, h0), add_gradients(g_out, g_states)
    previous, spare = previous_states(xp, h0, states, sizes, reverse), xp.empty(h0.shape, h0.dtype)
    for part, group in group_steps(steps(sizes, reverse)[::-1], 4 * width):
        extra = None
        r, z, new, m = columns(gates[part], 4)
        by_r, by_z, by_n = columns(of_x[part], 3)
        rest = 1 - z
        xp.subtract(previous[part], new, out=by_z)
        by_z *= z
        by_z *= rest
        xp.multiply(new, new, out=by_n)
        xp.subtract(1, by_n, out=by_n)
        xp.subtract(1, r, out=by_r)
        by_r *= r
        if is_array(g_gates):
            extra = gru_extra(xp, columns(g_gates[part], 4), by_r, z * rest, by_n, m)
        by_n *= rest
        by_r *= m
        by_r *= by_n
        for rows, n in group:
            pull, kept, piece, sums = of_h[:n], spare[:n], of_x[rows], of_sums[rows]
            if is_array(g_out):
                pull += g_out[rows]
            every_gate = piece.reshape(n, 3, width)
            every_gate *= pull[:, None]
            inside = slice(rows.start - part.start, rows.stop - part.start)
            if extra is not None:
                piece += extra[inside]
            sums[:, : 2 * width] = piece[:, : 2 * width]
            xp.multiply(piece[:, 2 * width :], r[inside], out=sums[:, 2 * width :])
            if is_array(g_gates):
                sums[:, 2 * width :] += g_gates[rows, 3 * width :]
            xp.multiply(pull, z[inside], out=kept)
            xp.matmul(sums, weight, out=pull)
            pull += kept
    return select_needed((of_x, of_h, *weight_gradients(xp, of_sums, h0, states, sizes, reverse, needs[2:])), needs)


def gru_extra(xp: Any, g: list[Any], slope_r: Any, slope_z: Any, slope_n: Any, m: Any) -> Any:
    """Add the gradients of the gates themselves to those of the pre-activations of r, z and n."""
    to_n = g[2] * slope_n
    return xp.concatenate([(to_n * m + g[0]) * slope_r, g[1] * slope_z, to_n], axis=1)


def gru_by_parts(x: Tensor, h0: Tensor, weight: Tensor, bias: Any, sizes: Sizes, reverse: bool) -> tuple[Tensor, ...]:
    def step(x: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        (xr, xz, xn), (hr, hz, m) = columns(x, 3), columns(h @ weight.mT + bias, 3)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        new = (xn + r * m).tanh()
        h = new + z * (h - new)
        return [h], [cat([r, z, new, m], 1), h]

    (h,), (gates, states) = through_time(step, x, [h0], sizes, reverse)
    return states.clone(), h, gates, states


def gru_backward_by_parts(
    g_out: Any,
    g_h: Any,
    g_gates: Any,
    g_states: Any,
    h0: Tensor,
    weight: Tensor,
    gates: Tensor,
    states: Tensor,
    sizes: Sizes,
    reverse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor, ...]:
    of_h, previous = or_zeros(g_h, h0), before_by_parts(h0, states, sizes, reverse)
    pieces, pieces_of_sums = [], []
    for rows, n in steps(sizes, reverse)[::-1]:
        r, z, new, m = columns(gates[rows], 4)
        pull = add_rows(add_rows(first(of_h, n), g_out, rows), g_states, rows)
        more: list[Any] = columns(g_gates[rows], 4) if isinstance(g_gates, Tensor) else [0, 0, 0, 0]
        to_n = (pull * (1 - z) + more[2]) * (1 - new * new)
        to_r = (to_n * m + more[0]) * r * (1 - r)
        to_z = (pull * (previous[rows] - new) + more[1]) * z * (1 - z)
        sums = cat([to_r, to_z, to_n * r + more[3]], 1)
        of_h = rows_first(pull * z + sums @ weight, of_h, n)
        pieces.append(cat([to_r, to_z, to_n], 1))
        pieces_of_sums.append(sums)
    of_x, of_sums = join_steps(pieces, not reverse), join_steps(pieces_of_sums, not reverse)
    return select_needed((of_x, of_h, *sums_of_weights(of_sums, h0, states, sizes, reverse)), needs)


def gru_gradient(
    gs: list[Tensor | None],
    h0: Tensor,
    weight: Tensor,
    out2: Tensor,
    out3: Tensor,
    needs: tuple[bool, ...],
    sizes: Sizes,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    attrs = {"sizes": sizes, "reverse": reverse, "needs": needs}
    return spread_to_inputs(apply(GRU_BACKWARD, (*or_zero(gs), h0, weight, out2, out3), attrs), needs)


def infer_gru(x: Spec, h0: Spec, weight: Spec, bias: Any, **_: Any) -> tuple[Spec, ...]:
    check_fit(3, x, weight, bias, h0)
    rows, width = x.shape[0], h0.shape[1]
    return Spec((rows, width), x.dtype), h0, Spec((rows, 4 * width), x.dtype), Spec((rows, width), x.dtype)


GRU_BACKWARD = primitive("gru_recurrence_backward", "composite", run_gru_backward, expand=gru_backward_by_parts)
GRU = primitive("gru_recurrence", "composite", run_gru, grad=gru_gradient, expand=gru_by_parts, infer=infer_gru)
