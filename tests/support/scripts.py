"""Programs that keep tensors, change them between calls or train something, for `test_footguns.py`, which runs each of them
with functions left as they are and with compiled ones. `note` takes what is to be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn

from support.snippets import StopError

Script = Callable[[Callable[[Any], Any], Callable[..., None]], None]


def batch(seed: int, *shape: int, **kwargs: Any) -> tj.Tensor:
    """Another tensor for each seed."""
    return tj.tensor(np.random.default_rng(seed).standard_normal(shape or (3,)).astype(np.float32), **kwargs)


def state_of(model: nn.Module) -> list[Any]:
    """All tensors of a module, and its gradients."""
    return [model.state_dict(), [p.grad for p in model.parameters()]]


SCRIPTS: dict[str, tuple[Script, int]] = {}


def program(replayed: int) -> Callable[[Script], Script]:
    """Enter a script, and how often its function has to be replayed at least (0: it need not be)."""

    def enter(script: Script) -> Script:
        SCRIPTS[script.__name__] = script, replayed
        return script

    return enter


@program(replayed=4)
def versions_of_a_parameter(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)
    opt = tj.optim.SGD([w], lr=0.1)

    @compile
    def f(x):
        loss = (w * x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for i in range(8):
        note(f(batch(i)), w._version)


@program(replayed=0)
def an_array_of_a_parameter_is_kept(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 3)
    arr = m.weight.detach().numpy()
    opt = tj.optim.Adam(m.parameters(), lr=0.1)

    @compile
    def f(x):
        loss = m(x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss, float(arr.sum())

    for i in range(12):
        note(f(batch(i, 2, 3)), arr)


@program(replayed=4)
def parameters_that_are_parts_of_one_tensor(compile: Any, note: Any) -> None:
    flat = tj.randn(12)
    ps = [nn.Parameter(flat[:6].view(2, 3)), nn.Parameter(flat[6:9]), nn.Parameter(flat[9:12])]
    opt = tj.optim.Adam(ps, lr=0.1)

    @compile
    def f(x):
        loss = ((x @ ps[0].t()).sum() * ps[1] + ps[2]).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for i in range(8):
        note(f(batch(i, 2, 3)), flat, ps)


@program(replayed=4)
def gradients_that_are_parts_of_one_tensor(compile: Any, note: Any) -> None:
    flat = tj.zeros(6)
    a, b = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)
    a.grad, b.grad = flat[:3], flat[3:]

    @compile
    def f(x):
        ((a * x).exp() + b * x).sum().backward()
        n = flat.norm()
        flat.mul_(0.5)
        return n

    for i in range(8):
        note(f(batch(i)), flat, a.grad, b.grad)


@program(replayed=0)
def one_gradient_for_two_leaves(compile: Any, note: Any) -> None:
    g = tj.zeros(3)
    a, b = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)
    a.grad = g
    b.grad = g

    @compile
    def f(x):
        ((a * x).exp() + b * x).sum().backward()
        return a.grad is b.grad, g * 2

    for i in range(8):
        note(f(batch(i)), g)


@program(replayed=6)
def a_parameter_is_also_an_argument(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)

    @compile
    def f(x, p):
        (x * p).sum().backward()
        with tj.no_grad():
            p.sub_(p.grad * 0.1)
        p.grad = None
        return w * 2

    for i in range(12):
        note(f(batch(i), w if i % 3 else tj.ones(3, requires_grad=True)), w)


@program(replayed=4)
def a_view_of_a_parameter_is_returned(compile: Any, note: Any) -> None:
    w = tj.ones(4, requires_grad=True)

    @compile
    def f(x):
        v = w[1:]
        return v, v * x

    for i in range(8):
        v, y = f(batch(i))
        (v.sum() + y.sum()).backward()
        with tj.no_grad():
            w.mul_(0.9)
        note(v, y, w)


@program(replayed=4)
def a_returned_view_is_written(compile: Any, note: Any) -> None:
    w = tj.ones(4)

    @compile
    def f(x):
        return w[1:], w.view(2, 2)

    for i in range(8):
        a, b = f(batch(i))
        a.add_(1)
        b.mul_(2)
        note(a, b, w, a._base is w, b._base is w)


@program(replayed=4)
def a_view_with_a_history_is_returned_and_written(compile: Any, note: Any) -> None:
    w = tj.ones(4, requires_grad=True)

    @compile
    def f(x):
        y = w * x
        v = y[1:]
        v.mul_(2)
        return y, v

    for i in range(8):
        y, v = f(batch(i, 4))
        y.mul_(3)
        (v.sum() + y.sum()).backward()
        note(y, v, w)


@program(replayed=4)
def an_output_is_written_before_backward(compile: Any, note: Any) -> None:
    w = tj.ones(4, requires_grad=True)

    @compile
    def f(x):
        y = w * x
        return y, y.sin()

    for i in range(8):
        y, s = f(batch(i, 4))
        y.add_(1)
        try:
            s.sum().backward()
            note("ok")
        except RuntimeError as e:
            note(str(e))
        note(y, s, w)


@program(replayed=4)
def activations_in_place(compile: Any, note: Any) -> None:
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2), nn.SiLU(inplace=True))
    opt = tj.optim.SGD(m.parameters(), lr=0.1)

    @compile
    def f(x):
        loss = m(x).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for i in range(8):
        note(f(batch(i, 2, 3)), state_of(m))


@program(replayed=4)
def an_interrupt_in_a_backward_pass(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)
    v = tj.ones(3, requires_grad=True)
    n = 0

    def hook(g):
        if n in (3, 6):
            raise KeyboardInterrupt

    v.register_hook(hook)

    @compile
    def f(x):
        y = (w * x).exp()
        (y * v * w).sum().backward()
        return y

    for i in range(10):
        n = i
        try:
            note(f(batch(i)))
        except KeyboardInterrupt:
            note("int")
        note(w, v)


@program(replayed=6)
def an_error_after_the_update(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 2)
    opt = tj.optim.Adam(m.parameters(), lr=0.1)
    n = 0

    @compile
    def f(x):
        loss = m(x).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if n % 4 == 3:
            raise StopError
        m.bias.data.zero_()
        return loss

    for i in range(14):
        n = i
        try:
            note(f(batch(i, 2, 3)))
        except StopError:
            note("stop")
        note(state_of(m), opt.state_dict()["state"])


@program(replayed=7)
def an_error_between_zero_grad_and_the_update(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 2)
    opt = tj.optim.Adam(m.parameters(), lr=0.1)
    n = 0

    @compile
    def f(x):
        opt.zero_grad()
        loss = m(x).pow(2).sum()
        if n % 4 == 3:
            raise StopError
        loss.backward()
        if n % 5 == 3:
            raise StopError
        opt.step()
        return loss

    for i in range(20):
        n = i
        try:
            note(f(batch(i, 2, 3)))
        except StopError:
            note("stop")
        note(state_of(m), opt.state_dict()["state"])


@program(replayed=4)
def the_state_of_an_optimizer_is_read(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 2)
    opt = tj.optim.Adam(m.parameters(), lr=0.1)

    @compile
    def f(x):
        loss = m(x).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        s = opt.state[m.weight]
        return loss, s["exp_avg"].norm(), s["step"] if not isinstance(s["step"], tj.Tensor) else s["step"].item()

    for i in range(10):
        note(f(batch(i, 2, 3)), state_of(m))


@program(replayed=6)
def the_state_of_an_optimizer_is_cleared(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 2)
    opt = tj.optim.Adam(m.parameters(), lr=0.1)

    @compile
    def f(x):
        loss = m(x).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for i in range(12):
        if i in (5, 9):
            opt.state.clear()
        note(f(batch(i, 2, 3)), state_of(m))


@program(replayed=6)
def models_that_are_copied_between_calls(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 2)

    @compile
    def f(m, x):
        loss = m(x).pow(2).sum()
        loss.backward()
        with tj.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad
        m.zero_grad()
        return loss

    ms = [m]
    for i in range(12):
        if i % 3 == 2:
            ms.append(copy.deepcopy(ms[-1]))
        note(f(ms[i % len(ms)], batch(i, 2, 3)), [state_of(k) for k in ms])


@program(replayed=14)
def losses_that_wait_in_a_list(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)
    losses = []

    @compile
    def f(x):
        losses.append((w * x).exp().sum())
        if len(losses) == 4:
            tj.stack(losses).sum().backward()
            losses.clear()
            with tj.no_grad():
                w.sub_(w.grad * 0.1)
                w.grad = None
        return len(losses)

    for i in range(24):
        note(f(batch(i)), w)


@program(replayed=4)
def a_learning_rate_that_is_a_tensor(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)
    lr = tj.tensor(0.1)

    @compile
    def f(x):
        l = (w * x).exp().sum()
        l.backward()
        with tj.no_grad():
            w.sub_(lr * w.grad)
            lr.mul_(0.9)
        w.grad = None
        return l

    for i in range(8):
        note(f(batch(i)), w, lr)


@program(replayed=4)
def parameters_and_gradients_are_printed(compile: Any, note: Any) -> None:
    w = tj.ones(3, requires_grad=True)
    opt = tj.optim.SGD([w], lr=0.1)

    @compile
    def f(x):
        l = (w * x).exp().sum()
        opt.zero_grad()
        l.backward()
        print(w.grad)
        opt.step()
        print(w)
        print(l)
        return w.clone()

    for i in range(8):
        note(f(batch(i)), w)


@program(replayed=4)
def autocast_within_autocast(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 3)

    @compile
    def f(x):
        with tj.autocast("cpu", dtype=tj.bfloat16):
            a = m(x)
            with tj.autocast("cpu", enabled=False):
                b = m(x)
            c = a @ b.to(a.dtype).t()
        d = c.float().sum()
        d.backward()
        return a.float(), b, d

    for i in range(8):
        note(f(batch(i, 2, 3)), state_of(m))


@program(replayed=6)
def a_value_is_read_under_autocast(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 3)

    @compile
    def f(x):
        with tj.autocast("cpu", dtype=tj.bfloat16):
            a = m(x)
            s = a.float().sum().item()
            c = m(a) if s > 0 else m(-a)
        print(s)
        d = c.float().sum()
        d.backward()
        return d

    for i in range(14):
        note(f(batch(i, 2, 3)), state_of(m))


@program(replayed=4)
def loops_over_no_rows(compile: Any, note: Any) -> None:
    @compile
    def f(x):
        y = tj.zeros(())
        for r in x:
            y = y + r.sum()
        return y

    for i in range(12):
        note(f(batch(i, i % 3, 2)))


@program(replayed=4)
def indices_that_are_pending(compile: Any, note: Any) -> None:
    e = nn.Embedding(6, 3)

    @compile
    def f(i):
        j = (i * 2) % 6
        y = e(j) + e(i)
        y.pow(2).sum().backward()
        return y, j

    for i in range(10):
        note(f(tj.tensor([i % 3, 1, 2])), e.weight.grad)


@program(replayed=2)
def a_beam_search(compile: Any, note: Any) -> None:
    m = nn.Linear(4, 5)

    @compile
    def f(h):
        seqs = [([], 0.0, h)]
        for _t in range(3):
            new = []
            for s, sc, st in seqs:
                lp = m(st).log_softmax(-1)
                v, ix = lp.topk(2)
                for a, b in zip(v.tolist(), ix.tolist(), strict=False):
                    new.append(([*s, b], sc + a, (st + lp[:4]).tanh()))
            seqs = sorted(new, key=lambda q: -q[1])[:2]
        return [(s, sc) for s, sc, _ in seqs], seqs[0][2]

    for i in range(8):
        note(f(batch(i, 4)))


@program(replayed=6)
def a_cache_that_grows(compile: Any, note: Any) -> None:
    w = nn.Linear(4, 12)
    cache = {}

    @compile
    def f(x, pos):
        q, k, v = w(x).chunk(3, -1)
        if "k" in cache:
            k = tj.cat([cache["k"], k])
            v = tj.cat([cache["v"], v])
        cache["k"], cache["v"] = k, v
        return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]

    with tj.no_grad():
        for _r in range(4):
            cache.clear()
            for i in range(5):
                note(f(batch(i, 1, 4), i))


@program(replayed=3)
def a_cache_written_at_a_place(compile: Any, note: Any) -> None:
    w = nn.Linear(4, 8)
    cache = tj.zeros(6, 4)

    @compile
    def f(x, pos):
        k, v = w(x).chunk(2, -1)
        cache[pos] = k[0]
        return cache[: pos + 1].sum(0) * v

    with tj.no_grad():
        for _r in range(4):
            for i in range(5):
                note(f(batch(i, 1, 4), i), cache)


@program(replayed=2)
def a_cache_written_at_a_place_that_is_a_tensor(compile: Any, note: Any) -> None:
    w = nn.Linear(4, 8)
    cache = tj.zeros(6, 4)
    pos = tj.tensor([0])

    @compile
    def f(x):
        k, v = w(x).chunk(2, -1)
        cache.index_copy_(0, pos, k)
        pos.add_(1)
        return cache.cumsum(0) * v

    with tj.no_grad():
        for i in range(6):
            note(f(batch(i, 1, 4)), cache, pos)


@program(replayed=4)
def an_lstm_with_other_lengths(compile: Any, note: Any) -> None:
    m = nn.LSTM(3, 4, num_layers=2, batch_first=True, dropout=0.3)

    @compile
    def f(x):
        y, (h, _c) = m(x)
        l = y.sum() + h.mean()
        l.backward()
        return l

    for i in range(10):
        note(f(batch(i, 2, 3 + i % 2, 3)), state_of(m))


@program(replayed=2)
def packed_sequences(compile: Any, note: Any) -> None:
    m = nn.GRU(3, 4, batch_first=True)

    @compile
    def f(x, n):
        p = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        y, h = m(p)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        l = y.sum() + h.pow(2).sum()
        l.backward()
        return l

    for i in range(8):
        note(f(batch(i, 2, 4, 3), [4, 2 + i % 2]), state_of(m))


@program(replayed=3)
def a_transformer_with_and_without_a_mask(compile: Any, note: Any) -> None:
    m = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    opt = tj.optim.AdamW(m.parameters(), lr=0.01)

    @compile
    def f(x, causal):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if causal else None
        l = m(x, src_mask=mask).pow(2).mean()
        opt.zero_grad()
        l.backward()
        opt.step()
        return l

    for i in range(8):
        note(f(batch(i, 2, 3, 8), i % 4 == 3), state_of(m))


@program(replayed=4)
def an_autoencoder_that_samples(compile: Any, note: Any) -> None:
    enc, dec = nn.Linear(4, 4), nn.Linear(2, 4)
    opt = tj.optim.Adam([*enc.parameters(), *dec.parameters()], lr=0.01)

    @compile
    def f(x):
        mu, lv = enc(x).chunk(2, -1)
        z = mu + (lv * 0.5).exp() * tj.randn_like(mu)
        l = F.mse_loss(dec(z), x) - 0.5 * (1 + lv - mu**2 - lv.exp()).mean()
        opt.zero_grad()
        l.backward()
        opt.step()
        return l.item()

    for i in range(8):
        note(f(batch(i, 3, 4)), state_of(enc))


@program(replayed=4)
def samples_of_a_distribution(compile: Any, note: Any) -> None:
    mu = tj.zeros(3, requires_grad=True)

    @compile
    def f(x):
        d = tj.distributions.Normal(mu, 1.0)
        s = d.rsample()
        l = -d.log_prob(x).sum() + s.sum()
        l.backward()
        return l, s

    for i in range(8):
        note(f(batch(i)), mu)


@program(replayed=4)
def a_penalty_on_gradients(compile: Any, note: Any) -> None:
    d = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = tj.optim.Adam(d.parameters(), lr=0.01)

    @compile
    def f(x):
        x = x.detach().requires_grad_()
        (g,) = tj.autograd.grad(d(x).sum(), x, create_graph=True)
        l = (g.norm(dim=1) - 1).pow(2).mean()
        opt.zero_grad()
        l.backward()
        opt.step()
        return l

    for i in range(8):
        note(f(batch(i, 2, 3)), state_of(d))


@program(replayed=4)
def gradients_of_inputs(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 2)

    @compile
    def f(x):
        x = x.clone().requires_grad_()
        F.cross_entropy(m(x), tj.tensor([0, 1])).backward()
        return (x + 0.1 * x.grad.sign()).detach()

    for i in range(8):
        note(f(batch(i, 2, 3)), state_of(m))


@program(replayed=4)
def an_averaged_model(compile: Any, note: Any) -> None:
    m = nn.Linear(3, 2)
    avg = tj.optim.swa_utils.AveragedModel(m)
    opt = tj.optim.SGD(m.parameters(), lr=0.1)

    @compile
    def f(x):
        l = m(x).pow(2).sum()
        opt.zero_grad()
        l.backward()
        opt.step()
        avg.update_parameters(m)
        return l

    for i in range(8):
        note(f(batch(i, 2, 3)), state_of(m), avg.state_dict())


@program(replayed=3)
def batches_that_are_slices_taken_inside(compile: Any, note: Any) -> None:
    data = batch(0, 12, 3)
    m = nn.Linear(3, 1)
    opt = tj.optim.SGD(m.parameters(), lr=0.1)

    @compile
    def f(i):
        x = data[3 * i : 3 * i + 3]
        l = m(x).pow(2).sum()
        opt.zero_grad()
        l.backward()
        opt.step()
        return l

    for i in range(12):
        note(f(i % 4), state_of(m))


@program(replayed=4)
def batches_that_are_slices_taken_outside(compile: Any, note: Any) -> None:
    arr = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
    data = tj.from_numpy(arr)
    m = nn.Linear(3, 1)
    opt = tj.optim.SGD(m.parameters(), lr=0.1)

    @compile
    def f(x):
        l = m(x).pow(2).sum()
        opt.zero_grad()
        l.backward()
        opt.step()
        return l

    for i in range(12):
        note(f(data[3 * (i % 4) : 3 * (i % 4) + 3]), state_of(m))


@program(replayed=2)
def an_epoch_in_one_call(compile: Any, note: Any) -> None:
    data = batch(0, 12, 3)
    m = nn.Linear(3, 1)
    opt = tj.optim.SGD(m.parameters(), lr=0.1)

    @compile
    def epoch():
        tot = 0
        for idx in tj.randperm(12).split(4):
            l = m(data[idx]).pow(2).sum()
            opt.zero_grad()
            l.backward()
            opt.step()
            tot += l.item()
        return tot

    for _i in range(6):
        note(epoch(), state_of(m))


@program(replayed=2)
def a_long_loop(compile: Any, note: Any) -> None:
    w = tj.eye(3).requires_grad_()

    @compile
    def f(x):
        for _k in range(60):
            x = (x @ w).tanh()
        l = x.sum()
        l.backward()
        return l

    for i in range(6):
        note(f(batch(i, 2, 3)), w)


@program(replayed=6)
def each_element_is_read(compile: Any, note: Any) -> None:
    @compile
    def f(x):
        out = []
        for v in x:
            out.append(v.item() * 2 if v > 0 else -1)
        return tj.tensor(out)

    for i in range(16):
        note(f(batch(i, 3)))
