"""Factories: dtypes, shapes, devices, what data implies, and errors."""

from __future__ import annotations

import collections
import math
import warnings
from typing import Any

import numpy as np
import pytest
import tapejit as tj


def described(t: tj.Tensor) -> tuple[Any, ...]:
    return t.tolist(), t.dtype, tuple(t.shape)


# ---- tensor()

NAN = math.nan


@pytest.mark.parametrize(
    ("data", "dtype", "values"),
    [
        (3, tj.int64, 3),
        (1.5, tj.float32, 1.5),
        (True, tj.bool, True),
        ([1, 2], tj.int64, [1, 2]),
        ([1, 2.5], tj.float32, [1.0, 2.5]),
        ([True, 2], tj.int64, [1, 2]),
        ([True, 0.5], tj.float32, [1.0, 0.5]),
        ([[1, 2], (3, 4)], tj.int64, [[1, 2], [3, 4]]),
        ((), tj.float32, []),
        ([[], []], tj.float32, [[], []]),
        (range(3), tj.int64, [0, 1, 2]),
        (collections.deque([1, 2]), tj.int64, [1, 2]),
        (np.float64(1.5), tj.float64, 1.5),
        ([np.float32(1.5), 2.0], tj.float32, [1.5, 2.0]),
        ([1.0, np.float64(1.5)], tj.float64, [1.0, 1.5]),
        ([np.int32(1)], tj.int32, [1]),
        ([np.int32(1), 2], tj.int64, [1, 2]),
        (np.arange(3, dtype=np.int16), tj.int16, [0, 1, 2]),
        ([np.array([1.0, 2.0]), np.array([3.0, 4.0])], tj.float64, [[1.0, 2.0], [3.0, 4.0]]),
        ([np.array([1, 2]), [1.5, 2.0]], tj.float32, [[1.0, 2.0], [1.5, 2.0]]),
        (np.zeros((2, 0)), tj.float64, [[], []]),
    ],
)
def test_what_data_implies(data: Any, dtype: tj.dtype, values: Any) -> None:
    t = tj.tensor(data)
    assert t.dtype is dtype
    assert t.tolist() == values
    assert not t.requires_grad


def test_tensors_among_the_data() -> None:
    assert described(tj.tensor([tj.tensor(1.0), 2])) == ([1.0, 2.0], tj.float32, (2,))
    assert described(tj.tensor([tj.tensor([1]), tj.tensor([2])])) == ([1, 2], tj.int64, (2,))
    assert tj.tensor([tj.tensor(1.0, dtype=tj.float64), 2]).dtype is tj.float64
    assert tj.tensor([tj.tensor(1), 2.5]).dtype is tj.float32
    with pytest.raises(ValueError, match="only one element tensors"):
        tj.tensor([tj.ones(2), tj.ones(2)])


def test_default_dtype() -> None:
    tj.set_default_dtype(tj.float64)
    assert tj.tensor(1.5).dtype is tj.float64
    assert tj.tensor([]).dtype is tj.float64
    assert tj.zeros(2).dtype is tj.float64
    assert tj.arange(0.5).dtype is tj.float64
    assert tj.linspace(0, 1, 3).dtype is tj.float64
    assert tj.eye(2).dtype is tj.float64
    assert tj.full((2,), 1.5).dtype is tj.float64
    assert tj.full((2,), 1).dtype is tj.int64
    assert tj.rand(2).dtype is tj.float64


@pytest.mark.parametrize(
    ("data", "dtype", "values"),
    [
        ([1.7], tj.int64, [1]),
        ([-1], tj.uint8, [255]),
        ([2.5, 0.0], tj.bool, [True, False]),
        ([1e10], tj.float16, [math.inf]),
        (2**63, tj.float32, 2.0**63),
        (2**70, tj.float64, 2.0**70),
        ([1, 2], float, [1.0, 2.0]),
        ([1.5], int, [1]),
        (1.25, tj.bfloat16, 1.25),
        ([[]], tj.int64, [[]]),
    ],
)
def test_dtype_asked_for(data: Any, dtype: Any, values: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        t = tj.tensor(data, dtype=dtype)
    assert t.dtype is (tj.float64 if dtype is float else tj.int64 if dtype is int else dtype)
    assert t.tolist() == values


@pytest.mark.parametrize(
    ("data", "kwargs", "error", "words"),
    [
        ([[1, 2], [3]], {}, ValueError, "expected sequence of length 2 at dim 1 .got 1"),
        ([1, [2]], {}, TypeError, "not a sequence"),
        ("abc", {}, TypeError, "invalid data type 'str'"),
        (["abc"], {}, ValueError, "too many dimensions 'str'"),
        (None, {}, RuntimeError, "Could not infer dtype of NoneType"),
        ({1: 2}, {}, RuntimeError, "Could not infer dtype of dict"),
        (1j, {}, RuntimeError, "complex"),
        ([2**63], {}, ValueError, "Overflow"),
        (2**70, {}, ValueError, "Overflow"),
        ([300], {"dtype": tj.uint8}, RuntimeError, "without overflow"),
        ([1e10], {"dtype": tj.int32}, RuntimeError, "without overflow"),
        ([NAN], {"dtype": tj.int32}, RuntimeError, "without overflow"),
        (np.array(["a"]), {}, TypeError, "can't convert"),
        (np.zeros(2, complex), {}, TypeError, "can't convert"),
        (1, {"requires_grad": True}, RuntimeError, "floating point"),
        (1, {"dtype": "nonsense"}, TypeError, "dtype"),
    ],
)
def test_bad_data(data: Any, kwargs: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tj.tensor(data, **kwargs)


def test_tensor_copies_and_warns() -> None:
    array = np.ones(2)
    t = tj.tensor(array)
    array[0] = 5
    assert t.tolist() == [1, 1]
    with pytest.warns(UserWarning, match="copy construct"):
        again = tj.tensor(t)
    again[0] = 7
    assert t.tolist() == [1, 1]
    assert tj.tensor([1.0], requires_grad=True).is_leaf


def test_as_tensor_and_asarray_share() -> None:
    array = np.ones(3, np.float32)
    for function in (tj.as_tensor, tj.asarray):
        t = function(array)
        t[0] = 4
        assert array[0] == 4
        array[0] = 1
        assert function(t) is t
        assert function(array, dtype=tj.float64).dtype is tj.float64
        assert function([1, 2]).tolist() == [1, 2]
        assert function(3.5).shape == ()
    t = tj.asarray(array, copy=True)
    t[0] = 9
    assert array[0] == 1
    with pytest.raises(ValueError, match="alias"):
        tj.asarray(array, dtype=tj.float64, copy=False)
    with pytest.raises(ValueError, match="alias"):
        tj.asarray([1, 2], copy=False)
    assert tj.asarray([1.0], requires_grad=True).requires_grad
    assert tj.asarray(bytearray(8), dtype=tj.int32).tolist() == [0, 0]


def test_frombuffer() -> None:
    memory = bytearray(np.arange(4, dtype=np.int32).tobytes())
    t = tj.frombuffer(memory, dtype=tj.int32)
    t[0] = 9
    assert memory[0] == 9
    assert tj.frombuffer(memory, dtype=tj.int32, offset=8).tolist() == [2, 3]
    assert tj.frombuffer(memory, dtype=tj.int32, count=2, offset=4).tolist() == [1, 2]
    assert tj.frombuffer(bytes([0, 128, 63, 0]), dtype=tj.bfloat16, offset=0, count=1).shape == (1,)
    assert tj.frombuffer(np.float32([1.5]).tobytes(), dtype=tj.float32, requires_grad=True).requires_grad
    for kwargs, words in [
        ({"offset": 99}, "offset"),
        ({"count": 9}, "requested"),
        ({"offset": 3}, "multiple"),
        ({"count": 0}, "0"),
    ]:
        with pytest.raises(ValueError, match=words):
            tj.frombuffer(memory, dtype=tj.int32, **kwargs)
    read_only = tj.frombuffer(b"abcd", dtype=tj.uint8)
    with pytest.raises(RuntimeError, match="written"):
        read_only[0] = 1


def test_scalar_tensor() -> None:
    assert described(tj.scalar_tensor(3)) == (3.0, tj.float32, ())
    assert described(tj.scalar_tensor(3, dtype=tj.int32)) == (3, tj.int32, ())


# ---- constants


def test_shapes_in_every_form() -> None:
    for make in (tj.zeros, tj.ones, tj.empty, tj.rand, tj.randn):
        assert make(2, 3).shape == make((2, 3)).shape == make([2, 3]).shape == make(size=(2, 3)).shape == (2, 3)
        assert make(tj.Size([2])).shape == (2,)
        assert make(()).shape == make([]).shape == ()
        assert make(np.int64(2), 3).shape == (2, 3)
        assert make(tj.tensor(2)).shape == (2,)
        assert make(0).shape == (0,)
        with pytest.raises(RuntimeError, match="negative dimension"):
            make(2, -1)
        for bad in (2.5, "a", None):
            with pytest.raises(TypeError):
                make(bad)
        with pytest.raises(TypeError, match="size"):
            make()
        with pytest.raises(TypeError, match="colour"):
            make(2, colour=1)
        assert make(2, pin_memory=False, layout=tj.strided).shape == (2,)


def test_full() -> None:
    assert described(tj.full((2,), 1)) == ([1, 1], tj.int64, (2,))
    assert described(tj.full((2,), True)) == ([True, True], tj.bool, (2,))
    assert described(tj.full((2,), 1.5)) == ([1.5, 1.5], tj.float32, (2,))
    assert described(tj.full((2,), 1.5, dtype=tj.int64)) == ([1, 1], tj.int64, (2,))
    assert described(tj.full((), tj.tensor(2, dtype=tj.int32))) == (2, tj.int32, ())
    assert tj.full((2,), -math.inf).tolist() == [-math.inf] * 2
    assert math.copysign(1, tj.full((1,), -0.0).item()) == -1
    with pytest.raises(TypeError, match="tuple of ints"):
        tj.full(3, 1)
    with pytest.raises(RuntimeError):
        tj.full((2,), 300, dtype=tj.uint8)


def test_likes() -> None:
    x = tj.ones(2, 3, dtype=tj.float64, requires_grad=True)
    for make in (tj.zeros_like, tj.ones_like, tj.empty_like):
        assert make(x).dtype is tj.float64
        assert make(x).shape == (2, 3)
        assert not make(x).requires_grad
        assert make(x, dtype=tj.bool).dtype is tj.bool
        assert make(x, requires_grad=True).requires_grad
        assert make(x.T, memory_format=tj.preserve_format).shape == (3, 2)
        with pytest.raises(TypeError, match="must be Tensor"):
            make([1])
    assert tj.full_like(tj.zeros(2, dtype=tj.int64), 2.5).tolist() == [2, 2]
    with pytest.raises(TypeError, match="unexpected"):
        tj.zeros_like(x, size=(2,), shape=(2,))


def test_new() -> None:
    x = tj.zeros(2, dtype=tj.float64)
    assert described(x.new_zeros(2, 2)) == ([[0, 0], [0, 0]], tj.float64, (2, 2))
    assert described(x.new_ones((2,), dtype=tj.int8)) == ([1, 1], tj.int8, (2,))
    assert described(x.new_full((1,), 3)) == ([3.0], tj.float64, (1,))
    assert described(x.new_full((1,), tj.tensor(3))) == ([3.0], tj.float64, (1,))
    assert described(x.new_tensor([1, 2])) == ([1.0, 2.0], tj.float64, (2,))
    assert x.new_empty(3).dtype is tj.float64
    assert x.new_empty((0,), requires_grad=True).requires_grad


def test_eye() -> None:
    assert tj.eye(2).tolist() == [[1, 0], [0, 1]]
    assert tj.eye(2, 3, dtype=tj.bool).tolist() == [[True, False, False], [False, True, False]]
    assert tj.eye(0).shape == (0, 0)
    assert tj.eye(2, requires_grad=True).is_leaf
    for bad in ((-1,), (2, -1)):
        with pytest.raises(RuntimeError, match="greater or equal to 0"):
            tj.eye(*bad)


# ---- ranges


@pytest.mark.parametrize(
    ("args", "kwargs", "dtype", "values"),
    [
        ((5,), {}, tj.int64, [0, 1, 2, 3, 4]),
        ((3.0,), {}, tj.float32, [0, 1, 2]),
        ((2, 5), {}, tj.int64, [2, 3, 4]),
        ((1, 2.5, 0.5), {}, tj.float32, [1, 1.5, 2]),
        ((5, 0, -2), {}, tj.int64, [5, 3, 1]),
        ((0,), {}, tj.int64, []),
        ((3, 3), {}, tj.int64, []),
        ((0, 5), {"step": 2}, tj.int64, [0, 2, 4]),
        ((), {"start": 1, "end": 4, "step": 2}, tj.int64, [1, 3]),
        ((), {"end": 2}, tj.int64, [0, 1]),
        ((1,), {"end": 3}, tj.int64, [1, 2]),
        ((3,), {"dtype": tj.float16}, tj.float16, [0, 1, 2]),
        ((1.5, 4), {"dtype": tj.int64}, tj.int64, [1, 2, 3]),
        ((0, 10, 2.5), {"dtype": tj.int64}, tj.int64, [0, 2, 4, 6, 8]),
        ((2**53, 2**53 + 2), {}, tj.int64, [2**53, 2**53 + 1]),
        ((True,), {}, tj.int64, [0]),
        ((np.int32(2),), {}, tj.int64, [0, 1]),
    ],
)
def test_arange(args: Any, kwargs: Any, dtype: tj.dtype, values: Any) -> None:
    t = tj.arange(*args, **kwargs)
    assert t.dtype is dtype
    assert t.tolist() == values


def test_arange_counts_float_steps() -> None:
    assert len(tj.arange(0, 1, 0.1)) == 10
    assert len(tj.arange(0, 1, 1 / 3)) == 3
    assert len(tj.arange(0, 0.3, 0.1)) == math.ceil(0.3 / 0.1)
    np.testing.assert_allclose(tj.arange(0, 1, 0.1).numpy(), np.arange(10) * 0.1, rtol=1e-6)
    assert tj.arange(tj.tensor(0.0), 3).dtype is tj.float32
    assert tj.arange(tj.tensor(3)).tolist() == [0, 1, 2]
    assert tj.arange(3.0, requires_grad=True).requires_grad


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((5, 0), RuntimeError, "inconsistent with step sign"),
        ((0, 5, -1), RuntimeError, "inconsistent with step sign"),
        ((0, 5, 0), RuntimeError, "nonzero"),
        ((0, math.inf), RuntimeError, "unsupported range"),
        ((0, math.nan), RuntimeError, "unsupported range"),
        (("a",), TypeError, "number"),
        ((1, 2, 3, 4), TypeError, "expected"),
        ((), TypeError, "expected"),
    ],
)
def test_bad_ranges(args: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tj.arange(*args)


def test_linspace() -> None:
    assert tj.linspace(0, 10, 4, dtype=tj.int64).tolist() == [0, 3, 6, 10]
    assert tj.linspace(-3, -10, 4, dtype=tj.int64).tolist() == [-3, -5, -7, -10]
    assert tj.linspace(1, 2, 0).shape == (0,)
    for dtype in (tj.float32, tj.float64, tj.float16, tj.bfloat16):
        t = tj.linspace(-1.5, 3, 7, dtype=dtype)
        assert t.dtype is dtype
        np.testing.assert_allclose(
            t.double().numpy(), np.linspace(-1.5, 3, 7), rtol=1e-2 if dtype.itemsize == 2 else 1e-6, atol=1e-3
        )
    ends = tj.linspace(0.1, 0.7, 1001).numpy()
    assert ends[0] == np.float32(0.1)
    assert ends[-1] == np.float32(0.7)
    assert tj.logspace(0, 3, 4, dtype=tj.int64).tolist() == [1, 10, 100, 1000]
    with pytest.raises(RuntimeError, match="non-negative"):
        tj.linspace(0, 1, -1)
    with pytest.raises(TypeError):
        tj.linspace(0, 1, 2.5)


def test_triangles() -> None:
    rows, columns = tj.tril_indices(4, 4, -1).tolist()
    assert [(r, c) for r in range(4) for c in range(r)] == list(zip(rows, columns, strict=True))
    assert tj.triu_indices(2, 3, dtype=tj.int32).dtype is tj.int32
    assert tj.triu_indices(0, 3).shape == (2, 0)
    with pytest.raises(RuntimeError, match="row must be non-negative"):
        tj.tril_indices(-1, 2)


# ---- legacy types and questions


def test_legacy_types() -> None:
    assert described(tj.FloatTensor([1, 2])) == ([1.0, 2.0], tj.float32, (2,))
    assert described(tj.LongTensor([1.5])) == ([1], tj.int64, (1,))
    assert tj.DoubleTensor(2, 3).shape == (2, 3)
    assert tj.IntTensor(tj.Size([2])).dtype is tj.int32
    assert described(tj.ByteTensor()) == ([], tj.uint8, (0,))
    assert tj.BoolTensor([True, 0]).tolist() == [True, False]
    assert tj.BFloat16Tensor([[1.5]]).dtype is tj.bfloat16
    assert tj.HalfTensor(np.ones(2)).dtype is tj.float16
    for name in ("Half", "BFloat16", "Float", "Double", "Char", "Short", "Int", "Long", "Byte", "Bool"):
        kind = getattr(tj, name + "Tensor")
        assert isinstance(kind(2), kind)
        assert tj.zeros(2).type(kind).dtype is kind.tensor_dtype
        assert not isinstance(kind(2), getattr(tj.cuda, name + "Tensor"))
    assert not isinstance(tj.zeros(2), tj.LongTensor)
    assert repr(tj.FloatTensor) == "<class 'tapejit.FloatTensor'>"
    for bad in (3.5, True, "a", tj.tensor([1, 2])):
        with pytest.raises(TypeError):
            tj.FloatTensor(bad)


def test_tensor_class() -> None:
    assert described(tj.Tensor([1, 2])) == ([1.0, 2.0], tj.float32, (2,))
    assert tj.Tensor(2, 3).shape == (2, 3)
    assert tj.Tensor().shape == (0,)
    assert tj.Tensor(np.arange(3)).dtype is tj.float32
    assert tj.Tensor([tj.tensor(1.0), 2]).tolist() == [1, 2]
    with pytest.raises(ValueError, match="expected sequence of length"):
        tj.Tensor([[1], [2, 3]])


def test_questions() -> None:
    assert tj.is_tensor(tj.zeros(1))
    assert not tj.is_tensor([1])
    assert tj.is_floating_point(tj.zeros(1))
    assert not tj.is_floating_point(tj.tensor(1))
    assert not tj.is_complex(tj.zeros(1))
    assert tj.is_nonzero(tj.tensor([2]))
    with pytest.raises(TypeError):
        tj.is_nonzero([1])


def test_settings_of_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = tj.get_num_threads()
    tj.set_num_threads(3)
    assert tj.get_num_threads() == 3
    tj.set_num_threads(threads)
    with pytest.raises(RuntimeError, match="positive"):
        tj.set_num_threads(0)
    tj.use_deterministic_algorithms(True)
    assert tj.are_deterministic_algorithms_enabled()
    tj.use_deterministic_algorithms(False)
    monkeypatch.setattr(tj.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(tj.backends.cuda.matmul, "allow_tf32", True)
    assert not tj.backends.mps.is_available()
    assert tj.accelerator.is_available() == tj.cuda.is_available()


def test_fill_values_that_do_not_fit_are_refused() -> None:
    for value, dtype in ((1e300, tj.float32), (1e5, tj.float16), (300, tj.uint8), (2**40, tj.int32), (math.nan, tj.int64)):
        with pytest.raises(RuntimeError, match="without overflow"):
            tj.full((2,), value, dtype=dtype)
        with pytest.raises(RuntimeError, match=r"fill_: value .* without overflow"):
            tj.zeros(2, dtype=dtype).fill_(value)
    assert tj.full((1,), math.inf, dtype=tj.float16).item() == math.inf
    assert tj.full((1,), -1, dtype=tj.uint8).item() == 255
    for value in ("a", None, [1]):
        with pytest.raises(TypeError, match=r"'fill_value'.*must be Number"):
            tj.full((2,), value)
        with pytest.raises(TypeError, match=r"'fill_value'.*must be Number"):
            tj.zeros(2).new_full((2,), value)
    with pytest.raises(TypeError, match="tuple of ints"):
        tj.zeros(2).new_full(2, 1)


def test_backends_can_be_imported_by_name():
    import tapejit.backends.cudnn as cudnn
    from tapejit.backends import mps

    assert cudnn is tj.backends.cudnn and not mps.is_available()


def test_old_names():
    x = tj.ones(2, dtype=tj.float64)
    assert x.new(2, 3).shape == (2, 3) and x.new([1, 2]).dtype is tj.float64 and x.new([1, 2]).tolist() == [1, 2]
    assert x.new().numel() == 0 and x[None].shape == x[tj.newaxis].shape
    try:
        tj.set_default_tensor_type(tj.DoubleTensor)
        assert tj.zeros(1).dtype is tj.float64
        tj.set_default_tensor_type("torch.FloatTensor")
        assert tj.zeros(1).dtype is tj.float32
    finally:
        tj.set_default_dtype(tj.float32)
    with pytest.raises(TypeError, match="invalid type object"):
        tj.set_default_tensor_type(int)
    y = tj.tensor([-1.0, 4.0])
    assert tj.relu_(y) is y and tj.sqrt_(y).tolist() == [0, 2]
    assert tj.GradScaler is tj.amp.GradScaler and tj.cuda.get_rng_state_all() == []
