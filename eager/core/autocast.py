"""The mechanism of mixed precision: which ops run in which dtype, and where their inputs are cast. `amp` is the public side.

PyTorch's lists are the tables below, one for each kind of device. An op is met in one of two places, so that it costs
nothing while autocast is off:

- a primitive that is a public op by itself, in `handler`, which stands in the thread's `State.handler` while it is on;
- a public function made of several ops, or that looks at dtypes before it applies one, in `aware`, a wrapper that `public`
  puts around the functions named here.

Either way the casts are ops on the tape, so gradients flow back through them and those of float32 weights are float32, and
what a listed op does inside itself is left alone. A backward pass runs with autocast off: the dtypes of the forward decide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..arrays import dtypes
from .tape.node import State, local
from .tensor import Tensor

# What is done to the inputs: cast to the low precision, to float32, to the widest among them; nothing, also not to the ops
# inside; all but a float32 state rounded to the low precision; or the op is refused.
LOW, FULL, WIDEST, AS_GIVEN, CARRIED, REFUSED = "low", "full", "widest", "as given", "carried", "refused"

# ---- PyTorch's lists

_PRODUCTS = "addbmm addmm baddbmm bmm einsum linalg.vecdot mm prelu scaled_dot_product_attention"
_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
_RECURRENCES = "lstm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell"
_CARRYING = "gru gru_cell lstm_cell"  # on the CPU only their products are in low precision: a float32 state stays one
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
        LOW: f"{_PRODUCTS} {_CONVOLUTIONS} {_RECURRENCES}",
        FULL: f"{_LOSSES} {_DECOMPOSITIONS} adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d binary_cross_entropy cdist "
        "ctc_loss grid_sample max_pool3d max_unpool2d max_unpool3d nanquantile prod quantile trace",
        WIDEST: "index_copy",
        AS_GIVEN: "addmv bilinear mv",
        CARRIED: _CARRYING,
    },
    "cuda": {
        LOW: f"{_PRODUCTS} {_CONVOLUTIONS} {_RECURRENCES} {_CARRYING} addmv addr chain_matmul linalg.multi_dot mv",
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
    """For each op, the policy on each kind of device."""
    found: dict[str, dict[str, str]] = {}
    for kind, policies in table.items():
        for policy, names in policies.items():
            for name in names.split():
                found.setdefault(name, {})[kind] = policy
    return found


_FUNCTIONS, _PRIMITIVES = _by_name(FUNCTIONS), _by_name(PRIMITIVES)

_ELIGIBLE = frozenset(d.numpy for d in (dtypes.float16, dtypes.bfloat16, dtypes.float32))  # float64 is left alone


# ---- the setting of a thread


class Setting:
    """What autocast is doing: the low precision of each kind of device it is on for, and the weights cast so far."""

    def __init__(self, low: dict[str, dtypes.dtype], caching: bool, outer: Setting | None) -> None:
        self.low = low
        self.caching = caching
        self.below: Callable[..., Any] | None = None  # the handler that stood there before
        self.cache: dict[int, tuple[Any, ...]] = {} if outer is None else outer.cache

    def cast(self, x: Any, target: dtypes.dtype, kind: str) -> Any:
        """A value, or a list of them, with the floating-point tensors of a kind of device in another dtype."""
        if isinstance(x, Tensor):
            if x._array.dtype == target.numpy or x._array.dtype not in _ELIGIBLE or kind_of(x) != kind:
                return x
            weight = x._requires_grad and x._node is None and x._base is None and x._array.dtype.itemsize == 4
            return self._cast_weight(x, target) if weight and self.caching else to_dtype(x, target)
        if type(x) in (list, tuple):
            return type(x)([self.cast(v, target, kind) for v in x])
        return x

    def _cast_weight(self, x: Tensor, target: dtypes.dtype) -> Tensor:
        """Leaves are cast once, as long as nothing is written into them and the tape is as it was then."""
        now = (x._array, x._version, local.state.grad, target)
        found = self.cache.get(id(x))
        if found is not None and found[1] is now[0] and found[2:5] == now[1:]:
            return found[5]  # type: ignore[no-any-return]
        value = to_dtype(x, target)
        self.cache[id(x)] = (x, *now, value)
        return value


def to_dtype(x: Tensor, dtype: dtypes.dtype) -> Tensor:
    from ..ops.pointwise import cast

    return cast(x, dtype)


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


def install(state: State, setting: Setting | None) -> tuple[Setting | None, Callable[..., Any] | None]:
    """Make a setting (None: off) the thread's, and return what to hand to `reinstall` afterwards."""
    before = (state.autocast, state.handler)
    below = before[1] if state.autocast is None else state.autocast.below
    if setting is None:
        state.autocast, state.handler = None, below
    else:
        setting.below = below
        state.autocast, state.handler = setting, handler
    return before


def reinstall(state: State, before: tuple[Setting | None, Callable[..., Any] | None]) -> None:
    state.autocast, state.handler = before


@contextmanager
def installed(setting: Setting | None) -> Iterator[None]:
    """A setting for the length of a block."""
    state = local.state
    before = install(state, setting)
    try:
        yield
    finally:
        reinstall(state, before)


# ---- where ops are met


def policy_for(rules: dict[str, str], setting: Setting, values: Any) -> tuple[str | None, str]:
    """What to do with a call, by the device of its first tensor."""
    first = first_tensor(values)
    if first is None:
        return None, ""
    kind = kind_of(first)
    return (rules.get(kind) if kind in setting.low else None), kind


def target_of(policy: str, setting: Setting, kind: str, values: Any) -> dtypes.dtype:
    if policy == LOW:
        return setting.low[kind]
    return dtypes.float32 if policy == FULL else widest(values, setting.low[kind], kind)


def widest(values: Any, found: dtypes.dtype, kind: str) -> dtypes.dtype:
    for v in values:
        if isinstance(v, Tensor) and v._array.dtype in _ELIGIBLE and kind_of(v) == kind:
            found = dtypes.promote_types(found, v.dtype)
        elif type(v) in (list, tuple):
            found = widest(v, found, kind)
    return found


def handler(op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
    """Stands in for `apply` while autocast is on: casts the inputs of listed primitives. In-place ops are left alone."""
    from .op import apply, execute

    state = local.state
    setting = state.autocast
    rules = _PRIMITIVES.get(op.name) if out is None else None
    if rules is not None:
        policy, kind = policy_for(rules, setting, inputs)
        if policy is not None:
            before = install(state, None)
            try:
                target = target_of(policy, setting, kind, inputs)
                return apply(op, tuple([setting.cast(x, target, kind) for x in inputs]), attrs)
            finally:
                reinstall(state, before)
    if setting.below is not None:
        return setting.below(op, inputs, attrs, out)
    return execute(op, inputs, attrs, out, state)


def aware(name: str, function: Any) -> Any:
    """A public function that casts its arguments while autocast is on; itself if it is on no list."""
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


def unaware(name: str, function: Any) -> Any:
    """The same for the in-place version of a function, which runs as if autocast were off."""
    if name not in _FUNCTIONS:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if local.state.autocast is None:
            return function(*args, **kwargs)
        with installed(None):
            return function(*args, **kwargs)

    return call


def cast_call(
    name: str, function: Any, rules: dict[str, str], setting: Setting, args: tuple[Any, ...], kwargs: dict[str, Any]
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
    with installed(None):
        if policy == AS_GIVEN:
            return function(*args, **kwargs)
        if policy == CARRIED:
            return carried_call(function, setting, kind, args, kwargs)
        target = target_of(policy, setting, kind, values)
        args = tuple([setting.cast(x, target, kind) for x in args])
        return function(*args, **{k: setting.cast(v, target, kind) for k, v in kwargs.items()})


def carried_call(function: Any, setting: Setting, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A recurrence with the dtype of its state: if that is float32, all else is rounded and then computed in float32."""
    named = {**dict(zip(("input", "hx"), args, strict=False)), **kwargs}
    packed = len(args) > 3 and type(args[3]) in (list, tuple)  # (data, batch_sizes, hx, params, ...)
    state = args[2] if packed else named["hx"]
    wide = widest([state], setting.low[kind], kind)

    def rounded(x: Any) -> Any:
        return x if x is state else setting.cast(setting.cast(x, setting.low[kind], kind), wide, kind)

    return function(*[rounded(x) for x in args], **{k: rounded(v) for k, v in kwargs.items()})


def for_product(*tensors: Any) -> tuple[Any, ...]:
    """The operands of a matrix product, which refuses those of two dtypes, as autocast will have them; same if it is off."""
    setting = local.state.autocast
    if setting is None:
        return tensors
    kind = policy_for({}, setting, tensors)[1]
    return tuple([setting.cast(t, setting.low[kind], kind) for t in tensors]) if kind in setting.low else tensors
