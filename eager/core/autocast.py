"""Autocast: decides which ops run in which dtype, and casts their inputs. `amp` is the public side.

PyTorch's lists are the tables below, one for each kind of device. An op is met in one of two places, so that it costs
nothing while autocast is off:

- a primitive that is a public op by itself, in `handler`, which stands in the thread's `State.handler` while it is on;
- a public function made of several ops, or that looks at dtypes before it applies one, in `with_autocast`, a wrapper that
  `public` puts around the functions named here.

Either way the casts are ops on the tape, so gradients flow back through them and those of float32 weights are float32, and
what a listed op does inside itself is left alone. A backward pass runs with autocast off: the dtypes of the forward decide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..arrays import dtypes
from .cast import cast
from .dispatch import apply, execute
from .tape.node import State, local
from .tensor import Tensor

# Policies: cast the inputs to the low precision, to float32, or to the widest among them; leave them, and the ops inside,
# alone; round all but a float32 state to the low precision; or refuse the op.
LOW, FULL, WIDEST, AS_GIVEN, CARRIED, REFUSED = "low", "full", "widest", "as given", "carried", "refused"

# ---- PyTorch's lists

_MATMULS = "addbmm addmm baddbmm bmm einsum linalg.vecdot mm prelu scaled_dot_product_attention"
_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
_RECURRENCES = "lstm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell"
_CARRYING = "gru gru_cell lstm_cell"  # on the CPU only their matmuls are in low precision: a float32 state stays one
_LOSSES = (
    "binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy hinge_embedding_loss huber_loss kl_div l1_loss "
    "margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss "
    "soft_margin_loss triplet_margin_loss"
)
_DECOMPOSITIONS = (
    "cholesky cholesky_inverse cholesky_solve inverse pinverse qr svd linalg.cholesky linalg.cholesky_ex linalg.cond "
    "linalg.eigh linalg.eigvalsh linalg.inv linalg.inv_ex linalg.lstsq linalg.matrix_rank linalg.pinv linalg.qr linalg.solve "
    "linalg.svd linalg.svdvals"
)

FUNCTIONS: dict[str, dict[str, str]] = {
    "cpu": {
        LOW: f"{_MATMULS} {_CONVOLUTIONS} {_RECURRENCES}",
        FULL: f"{_LOSSES} {_DECOMPOSITIONS} adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d binary_cross_entropy cdist "
        "ctc_loss grid_sample max_pool3d max_unpool2d max_unpool3d nanquantile prod quantile trace",
        WIDEST: "index_copy",
        AS_GIVEN: "addmv bilinear mv",
        CARRIED: _CARRYING,
    },
    "cuda": {
        LOW: f"{_MATMULS} {_CONVOLUTIONS} {_RECURRENCES} {_CARRYING} addmv addr chain_matmul linalg.multi_dot mv",
        FULL: f"{_LOSSES} cdist cosine_similarity cumprod cumsum dist group_norm interpolate layer_norm linalg.matrix_norm "
        "linalg.norm linalg.vector_norm log_softmax norm pairwise_distance pdist prod renorm rms_norm softmax upsample",
        WIDEST: "addcdiv addcmul bilinear cross dot grid_sample index_put linalg.cross scatter_add tensordot vdot",
        REFUSED: "binary_cross_entropy",
    },
}
_MATMUL = "linear matmul project"  # `project` is `linear` without a bias
PRIMITIVES: dict[str, dict[str, str]] = {
    "cpu": {LOW: _MATMUL},
    "cuda": {
        LOW: _MATMUL,
        FULL: "acos asin cosh erfinv exp expm1 log log10 log1p log2 logsumexp pow reciprocal rsqrt sinh softplus sum tan",
        WIDEST: "atan2",
    },
}


def _by_name(table: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return for each op its policy on each kind of device."""
    found: dict[str, dict[str, str]] = {}
    for kind, policies in table.items():
        for policy, names in policies.items():
            for name in names.split():
                found.setdefault(name, {})[kind] = policy
    return found


_FUNCTIONS, _PRIMITIVES = _by_name(FUNCTIONS), _by_name(PRIMITIVES)

_ELIGIBLE = frozenset(d.numpy for d in (dtypes.float16, dtypes.bfloat16, dtypes.float32))  # float64 is left alone


# ---- the setting of a thread


class AutocastSetting:
    """The state of autocast: the low precision of each kind of device that it is on for, and the cache of cast weights."""

    def __init__(self, low: dict[str, dtypes.dtype], caching: bool, outer: AutocastSetting | None) -> None:
        self.low = low
        self.caching = caching
        self.below: Callable[..., Any] | None = None  # the handler that was installed before
        self.cache: dict[int, tuple[Any, ...]] = {} if outer is None else outer.cache

    def cast(self, x: Any, target: dtypes.dtype, kind: str) -> Any:
        """Cast a value, or a list of them: the floating-point tensors on a kind of device, to another dtype."""
        if isinstance(x, Tensor):
            if x.tj_array.dtype == target.numpy or x.tj_array.dtype not in _ELIGIBLE or kind_of(x) != kind:
                return x
            weight = x.tj_requires_grad and x.tj_node is None and x.tj_base is None and x.tj_array.dtype.itemsize == 4
            return self._cast_weight(x, target) if weight and self.caching else cast(x, target)
        if type(x) in (list, tuple):
            return type(x)([self.cast(v, target, kind) for v in x])
        return x

    def _cast_weight(self, x: Tensor, target: dtypes.dtype) -> Tensor:
        """Cast a leaf, or return the cached cast if nothing was written into it since and grad mode is the same."""
        now = (x.tj_array, x._version, local.state.grad, target)
        found = self.cache.get(id(x))
        if found is not None and found[1] is now[0] and found[2:5] == now[1:]:
            return found[5]  # type: ignore[no-any-return]
        value = cast(x, target)
        self.cache[id(x)] = (x, *now, value)
        return value


def kind_of(x: Tensor) -> str:
    return x.device.type


def first_tensor(values: Any) -> Tensor | None:
    for v in values:
        if isinstance(v, Tensor):
            return v
        if type(v) in (list, tuple):
            found = first_tensor(v)
            if found is not None:
                return found
    return None


def install_setting(state: State, setting: AutocastSetting | None) -> tuple[AutocastSetting | None, Callable[..., Any] | None]:
    """Make a setting (None: off) the thread's, and return what to hand to `restore_setting` afterwards."""
    before = (state.autocast, state.handler)
    below = before[1] if state.autocast is None else state.autocast.below
    if setting is None:
        state.autocast, state.handler = None, below
    else:
        setting.below = below
        state.autocast, state.handler = setting, handler
    return before


def restore_setting(state: State, before: tuple[AutocastSetting | None, Callable[..., Any] | None]) -> None:
    state.autocast, state.handler = before


@contextmanager
def using_setting(setting: AutocastSetting | None) -> Iterator[None]:
    """Use a setting for the length of a block."""
    state = local.state
    before = install_setting(state, setting)
    try:
        yield
    finally:
        restore_setting(state, before)


# ---- where ops are met


def policy_for(rules: dict[str, str], setting: AutocastSetting, values: Any) -> tuple[str | None, str]:
    """Return the policy for a call, by the device of its first tensor."""
    first = first_tensor(values)
    if first is None:
        return None, ""
    kind = kind_of(first)
    return (rules.get(kind) if kind in setting.low else None), kind


def target_of(policy: str, setting: AutocastSetting, kind: str, values: Any) -> dtypes.dtype:
    if policy == LOW:
        return setting.low[kind]
    return dtypes.float32 if policy == FULL else widest(values, setting.low[kind], kind)


def widest(values: Any, found: dtypes.dtype, kind: str) -> dtypes.dtype:
    for v in values:
        if isinstance(v, Tensor) and v.tj_array.dtype in _ELIGIBLE and kind_of(v) == kind:
            found = dtypes.promote_types(found, v.dtype)
        elif type(v) in (list, tuple):
            found = widest(v, found, kind)
    return found


def handler(op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
    """The handler while autocast is on: casts the inputs of listed primitives. In-place ops are left alone."""
    state = local.state
    setting = state.autocast
    rules = _PRIMITIVES.get(op.name) if out is None else None
    if rules is not None:
        policy, kind = policy_for(rules, setting, inputs)
        if policy is not None:
            before = install_setting(state, None)
            try:
                target = target_of(policy, setting, kind, inputs)
                return apply(op, tuple([setting.cast(x, target, kind) for x in inputs]), attrs)
            finally:
                restore_setting(state, before)
    if setting.below is not None:
        return setting.below(op, inputs, attrs, out)
    return execute(op, inputs, attrs, out, state)


def with_autocast(name: str, function: Any) -> Any:
    """Wrap a public function to cast its arguments while autocast is on; return it as it is if it is on no list."""
    rules = _FUNCTIONS.get(name)
    if rules is None:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        setting = local.state.autocast
        if setting is None:
            return function(*args, **kwargs)
        return cast_call(name, function, rules, setting, args, kwargs)

    return call


def without_autocast(name: str, function: Any) -> Any:
    """Wrap the in-place version of a function to run as if autocast were off."""
    if name not in _FUNCTIONS:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if local.state.autocast is None:
            return function(*args, **kwargs)
        with using_setting(None):
            return function(*args, **kwargs)

    return call


def cast_call(
    name: str, function: Any, rules: dict[str, str], setting: AutocastSetting, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    values = (*args, *kwargs.values())
    policy, kind = policy_for(rules, setting, values)
    chosen = kwargs.get("out") is not None or any(isinstance(v, dtypes.dtype) for v in values)  # the caller decides
    if policy is None or chosen:
        return function(*args, **kwargs)
    if policy == REFUSED:
        raise RuntimeError(
            f"nn.functional.{name} is unsafe to autocast. Many models use a sigmoid layer right before the binary cross "
            f"entropy layer: in this case, combine the two layers using nn.functional.{name}_with_logits, which is safe."
        )
    with using_setting(None):
        if policy == AS_GIVEN:
            return function(*args, **kwargs)
        if policy == CARRIED:
            return carried_call(function, setting, kind, args, kwargs)
        target = target_of(policy, setting, kind, values)
        args = tuple([setting.cast(x, target, kind) for x in args])
        return function(*args, **{k: setting.cast(v, target, kind) for k, v in kwargs.items()})


def carried_call(function: Any, setting: AutocastSetting, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a recurrence in the dtype of its state: if that is float32, all else is rounded and then computed in float32."""
    named = {**dict(zip(("input", "hx"), args, strict=False)), **kwargs}
    packed = len(args) > 3 and type(args[3]) in (list, tuple)  # (data, batch_sizes, hx, params, ...)
    state = args[2] if packed else named["hx"]
    wide = widest([state], setting.low[kind], kind)

    def rounded(x: Any) -> Any:
        return x if x is state else setting.cast(setting.cast(x, setting.low[kind], kind), wide, kind)

    return function(*[rounded(x) for x in args], **{k: rounded(v) for k, v in kwargs.items()})


def cast_matmul_operands(*tensors: Any) -> tuple[Any, ...]:
    """Cast the operands of a matmul, which refuses two dtypes, as autocast would; return them as they are if it is off."""
    setting = local.state.autocast
    if setting is None:
        return tensors
    kind = policy_for({}, setting, tensors)[1]
    return tuple([setting.cast(t, setting.low[kind], kind) for t in tensors]) if kind in setting.low else tensors
