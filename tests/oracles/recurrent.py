"""Recurrent layers, one sequence and one step at a time, by the textbook formulas."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def lstm_step(x: Array, state: tuple[Array, ...], w: Array, u: Array, b: Array, d: Array, p: Array) -> tuple[Array, ...]:
    h, c = state
    i, f, g, o = np.split(w @ x + b + u @ h + d, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (h if p is None else p @ h), c


def gru_step(x: Array, state: tuple[Array, ...], w: Array, u: Array, b: Array, d: Array, p: Array) -> tuple[Array, ...]:
    (h,) = state
    (xr, xz, xn), (hr, hz, hn) = np.split(w @ x + b, 3), np.split(u @ h + d, 3)
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    return ((1 - z) * np.tanh(xn + r * hn) + z * h,)


def tanh_step(x: Array, state: tuple[Array, ...], w: Array, u: Array, b: Array, d: Array, p: Array) -> tuple[Array, ...]:
    return (np.tanh(w @ x + b + u @ state[0] + d),)


def relu_step(x: Array, state: tuple[Array, ...], w: Array, u: Array, b: Array, d: Array, p: Array) -> tuple[Array, ...]:
    return (np.maximum(w @ x + b + u @ state[0] + d, 0),)


def full(params: list[Array], biases: bool) -> list[Array]:
    """(w_ih, w_hh, b_ih, b_hh, w_hr) from what there is of these."""
    rest = list(params[2:])
    b, d = (rest.pop(0), rest.pop(0)) if biases else (0.0, 0.0)
    return [params[0], params[1], b, d, rest[0] if rest else None]


def one_sequence(step: Any, xs: Array, starts: list[tuple[Array, ...]], weights: list[list[Array]], directions: int) -> Any:
    """The outputs of the last layer, and for each layer and direction the last states."""
    ends = []
    for k in range(0, len(weights), directions):
        outputs = []
        for d in range(directions):
            state, found = starts[k + d], []
            for x in xs[::-1] if d else xs:
                state = step(x, state, *weights[k + d])
                found.append(state[0])
            outputs.append(np.stack(found[::-1] if d else found))
            ends.append(state)
        xs = np.concatenate(outputs, axis=1)
    return xs, ends


def layers(step: Any) -> Any:
    def run(*args: Any) -> tuple[Array, ...]:
        packed = isinstance(args[3], (list, tuple))
        if packed:
            data, sizes, hx, params, biases, count, _, _, both = args
            lengths = [sum(n > e for n in sizes) for e in range(sizes[0])]
            rows = [[sum(sizes[:t]) + e for t in range(lengths[e])] for e in range(sizes[0])]
            sequences = [data[r] for r in rows]
        else:
            x, hx, params, biases, count, _, _, both, batch_first = args
            sequences = list(x if batch_first else x.swapaxes(0, 1))
        states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
        directions = 2 if both else 1
        per = len(params) // (count * directions)
        weights = [full(params[k * per : (k + 1) * per], biases) for k in range(count * directions)]
        found = [
            one_sequence(step, s, [tuple(h[k, e] for h in states) for k in range(len(weights))], weights, directions)
            for e, s in enumerate(sequences)
        ]
        ends = [np.stack([[end[k][j] for _, end in found] for k in range(len(weights))]) for j in range(len(states))]
        if packed:
            out = np.zeros((len(data), found[0][0].shape[1]))
            for (y, _), r in zip(found, rows, strict=True):
                out[r] = y
        else:
            out = np.stack([y for y, _ in found], axis=0 if batch_first else 1)
        return (out, *ends)

    return run


def cell(step: Any) -> Any:
    def run(x: Array, hx: Any, w: Array, u: Array, b: Array = 0.0, d: Array = 0.0) -> Any:
        states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
        found = [step(x[e], tuple(h[e] for h in states), w, u, b, d, None) for e in range(len(x))]
        ends = tuple(np.stack(each) for each in zip(*found, strict=True))
        return ends if len(ends) > 1 else ends[0]

    return run


STEPS = {"lstm": lstm_step, "gru": gru_step, "rnn_tanh": tanh_step, "rnn_relu": relu_step}
ORACLES = {**{name: layers(f) for name, f in STEPS.items()}, **{f"{name}_cell": cell(f) for name, f in STEPS.items()}}
