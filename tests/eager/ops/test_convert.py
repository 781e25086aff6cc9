"""Between tensors and the outside: dtypes, devices, NumPy, DLPack, Python numbers, copies and pickles."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from typing import Any

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
from tapejit.eager.arrays import devices

ALL = [tj.bool, tj.uint8, tj.int8, tj.int16, tj.int32, tj.int64, tj.float16, tj.bfloat16, tj.float32, tj.float64]


@pytest.fixture
def x() -> tj.Tensor:
    return tj.arange(6.0).reshape(2, 3).clone()


# ---- to, type and their family


def test_to(x: tj.Tensor) -> None:
    assert x.to() is x
    assert x.to(None) is x
    assert x.to(tj.float32) is x
    assert x.to("cpu") is x
    assert x.to(x) is x
    assert x.to(device=tj.device("cpu"), dtype=tj.float32, non_blocking=True) is x
    assert x.to(memory_format=tj.contiguous_format) is x
    for t in (
        x.to(tj.int32),
        x.to(tj.int32, True, True),
        x.to("cpu", tj.int32),
        x.to("cpu", tj.int32, False, True),
        x.to("cpu", dtype=tj.int32),
        x.to(dtype=tj.int32, copy=True),
        x.to(tj.zeros(1, dtype=tj.int32)),
        x.to(other=tj.zeros(1, dtype=tj.int32)),
    ):
        assert t.dtype is tj.int32
        assert t.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.to(float).dtype is tj.float64
    assert x.to(int).dtype is tj.int64
    assert x.to(bool).dtype is tj.bool
    again = x.to(tj.float32, copy=True)
    again[0, 0] = 9
    assert x[0, 0] == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "error"),
    [
        ((tj.float64, "cpu"), {}, TypeError),
        ((3.5,), {}, TypeError),
        (([1],), {}, TypeError),
        ((), {"foo": 1}, TypeError),
        (("nowhere",), {}, RuntimeError),
        ((tj.float64, True, True, True), {}, TypeError),
    ],
)
def test_bad_to(x: tj.Tensor, args: Any, kwargs: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        x.to(*args, **kwargs)


def test_type(x: tj.Tensor) -> None:
    assert x.type() == "tapejit.FloatTensor"
    assert x.type(tj.float32) is x
    assert x.type(tj.LongTensor).dtype is tj.int64
    assert x.type("tapejit.DoubleTensor").dtype is tj.float64
    assert x.type("torch.HalfTensor").dtype is tj.float16
    assert x.type_as(tj.zeros(1, dtype=tj.int8)).dtype is tj.int8
    with pytest.raises(ValueError, match="invalid type"):
        x.type("foo")


def test_short_names(x: tj.Tensor) -> None:
    names = {
        "bool": tj.bool, "byte": tj.uint8, "char": tj.int8, "short": tj.int16, "int": tj.int32, "long": tj.int64,
        "half": tj.float16, "bfloat16": tj.bfloat16, "float": tj.float32, "double": tj.float64,
    }  # fmt: skip
    for name, dtype in names.items():
        t = getattr(x, name)()
        assert t.dtype is dtype
        assert getattr(t, name)() is t


def test_conversion_carries_gradients() -> None:
    x = tj.ones(2, requires_grad=True)
    y = x.double().half().float()
    y.sum().backward()
    assert x.grad is not None
    assert (x.grad.dtype, x.grad.tolist()) == (tj.float32, [1, 1])
    assert not x.long().requires_grad


# ---- NumPy


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # NumPy 2.5, where it still works
@pytest.mark.parametrize("dtype", ALL)
def test_numpy_shares_memory(dtype: tj.dtype) -> None:
    t = tj.zeros(2, 2).to(dtype)
    array = t.numpy()
    assert array.dtype == dtype.numpy
    array[0, 1] = 1
    assert t[0, 1] == 1
    back = tj.from_numpy(array)
    back[1, 1] = 1
    assert array[1, 1] == 1
    assert np.shares_memory(np.asarray(t), array)
    array.shape = (4,)
    assert t.shape == (2, 2)


def test_views_and_strides_of_numpy() -> None:
    array = np.arange(12.0).reshape(3, 4)
    for view in (array.T, array[::2, 1:], array[0], array[1, 2, None]):
        t = tj.from_numpy(view)
        assert t.tolist() == view.tolist()
        assert np.shares_memory(t.numpy(), array)
    tj.from_numpy(array.T)[0].fill_(7)
    assert (array[:, 0] == 7).all()


def test_numpy_refusals() -> None:
    x = tj.ones(2, requires_grad=True)
    for t in (x, x * 2):
        with pytest.raises(RuntimeError, match=r"detach\(\).numpy\(\)"):
            t.numpy()
        with pytest.raises(RuntimeError, match="requires grad"):
            np.asarray(t)
        assert t.numpy(force=True).shape == (2,)
        assert t.detach().numpy().shape == (2,)
    for bad in ([1], np.float32(1), "a"):
        with pytest.raises(TypeError, match="expected np"):
            tj.from_numpy(bad)
    with pytest.raises(ValueError, match="byte order"):
        tj.from_numpy(np.zeros(3, ">f4"))
    for bad in (np.zeros(2, np.complex64), np.array(["a"]), np.array([None])):
        with pytest.raises(TypeError, match="can't convert"):
            tj.from_numpy(bad)


def test_read_only_arrays_stay_so() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    t = tj.from_numpy(array)
    with pytest.raises(RuntimeError, match="written"):
        t += 1
    assert (t + 1).tolist() == [1, 1, 1]


def test_array_protocol(x: tj.Tensor) -> None:
    assert np.asarray(x).dtype == np.float32
    assert np.array(x, dtype=np.int32).dtype == np.int32
    assert not np.shares_memory(np.array(x), x.numpy())
    assert np.shares_memory(np.array(x, copy=False), x.numpy())
    with pytest.raises(ValueError, match="copy"):
        np.array(x, dtype=np.int32, copy=False)
    assert np.stack([x, x]).shape == (2, 2, 3)
    assert np.array([tj.tensor(1), tj.tensor(2)]).tolist() == [1, 2]


def test_mixed_arithmetic(x: tj.Tensor) -> None:
    ones = np.ones(3, np.float32)
    for t in (ones * x, x * ones, ones + x, ones - x, ones / (x + 1), np.float32(2) * x, np.float64(2) * x, x / np.int64(2)):
        assert isinstance(t, tj.Tensor)
        assert t.dtype is tj.float32
        assert t.shape == (2, 3)
    assert (np.ones(3) * x).dtype is tj.float64
    assert (ones > x).tolist() == (x < 1).tolist()
    w = tj.ones(3, requires_grad=True)
    (np.float32([1, 2, 3]) * w).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1, 2, 3]
    assert isinstance(np.sin(x), tj.Tensor)
    np.testing.assert_array_equal(np.sin(x).numpy(), np.sin(x.numpy()))


def test_buffer(x: tj.Tensor) -> None:
    view = x.__buffer__(0)
    assert view.shape == (2, 3)
    assert bytes(view) == x.numpy().tobytes()
    if sys.version_info >= (3, 12):
        assert memoryview(x).shape == (2, 3)
    for bad in (x.bfloat16(), x.clone().requires_grad_()):
        with pytest.raises(BufferError):
            bad.__buffer__(0)


# ---- DLPack


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not tj.bfloat16])
def test_dlpack_with_numpy(dtype: tj.dtype) -> None:
    t = tj.arange(6).to(dtype).reshape(2, 3)
    array = np.from_dlpack(t)
    np.testing.assert_array_equal(array, t.numpy())
    assert np.shares_memory(array, t.numpy())
    again = tj.from_dlpack(array)
    assert again.dtype is dtype
    assert again.data_ptr() == t.data_ptr()
    assert tj.from_dlpack(t.T).stride() == t.T.stride()


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_dlpack_of_bfloat16(version: Any) -> None:
    t = tj.arange(6.0).to(tj.bfloat16).reshape(2, 3)
    again = tj.from_dlpack(t.__dlpack__(max_version=version))
    assert again.dtype is tj.bfloat16
    assert again.tolist() == t.tolist()
    assert again.data_ptr() == t.data_ptr()
    t[0, 0] = 8
    assert tj.from_dlpack(t).tolist() == t.tolist()
    assert again[0, 0] == 8


def test_dlpack_lifetime_and_copy() -> None:
    array = np.from_dlpack(tj.ones(1000))
    other = [tj.zeros(1000) for _ in range(10)]
    assert array.sum() == 1000
    del other
    source = np.ones(3)
    copied = tj.from_dlpack(source, copy=True)
    copied[0] = 5
    assert source[0] == 1
    assert tj.from_dlpack(source, device="cpu").tolist() == [1, 1, 1]


def test_dlpack_refusals() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        tj.ones(2, requires_grad=True).__dlpack__()
    with pytest.raises(TypeError, match="__dlpack__"):
        tj.from_dlpack(3)
    with pytest.raises(TypeError, match="can't convert"):
        tj.from_dlpack(np.zeros(2, np.uint16))
    used = tj.ones(2).__dlpack__()
    tj.from_dlpack(used)
    with pytest.raises(BufferError, match="unused"):
        tj.from_dlpack(used)


# ---- Python numbers


def test_numbers(x: tj.Tensor) -> None:
    assert x[0, 1].item() == 1.0
    assert x[:1, :1].item() == 0.0
    assert tj.tensor(True).item() is True
    assert isinstance(tj.tensor(1.5, dtype=tj.bfloat16).item(), float)
    for bad in (x, tj.ones(0)):
        with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
            bad.item()
        with pytest.raises(ValueError, match="only one element tensors"):
            float(bad)
        with pytest.raises(RuntimeError, match="ambiguous"):
            bool(bad)
    assert float(x[0, 1]) == 1.0
    assert int(tj.tensor(2.7)) == 2
    assert int(tj.tensor([3])) == 3
    assert complex(tj.tensor(3.0)) == 3
    assert not tj.tensor([0.0])
    assert [10, 20, 30][tj.tensor(1)] == 20
    assert list(range(tj.tensor(3))) == [0, 1, 2]
    with pytest.raises(TypeError, match="only integer tensors"):
        [10, 20][tj.tensor(1.0)]
    assert math.isclose(math.sqrt(tj.tensor(4.0, requires_grad=True)), 2)


def test_tolist(x: tj.Tensor) -> None:
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tj.tensor(3).tolist() == 3
    assert tj.zeros(2, 0).tolist() == [[], []]
    assert tj.tensor([1.5], dtype=tj.bfloat16).tolist() == [1.5]
    assert type(tj.tensor([1]).tolist()[0]) is int


# ---- data, fill_, copy_


def test_data() -> None:
    x = tj.ones(2, requires_grad=True)
    y = x * x
    x.data.fill_(5)
    assert x.tolist() == [5, 5]
    assert x._version == 0  # .data hides what is done through it
    assert x.requires_grad
    assert not x.data.requires_grad
    y.sum().backward()
    x.data = tj.zeros(3)
    assert x.tolist() == [0, 0, 0]
    assert x.requires_grad
    x.data = x.data.half()
    assert x.dtype is tj.float16
    with pytest.raises(TypeError):
        x.data = 3
    with pytest.raises(RuntimeError, match="floating point"):
        x.data = tj.zeros(2, dtype=tj.int64)


def test_copy_and_fill(x: tj.Tensor) -> None:
    assert x.copy_(tj.ones(3)) is x
    assert x.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert x.copy_(5).sum() == 30
    with pytest.raises(RuntimeError, match="must match"):
        x.copy_(tj.ones(4))
    with pytest.raises(RuntimeError, match="broadcast"):
        x.copy_(tj.ones(2, 2, 3))
    with pytest.raises(TypeError):
        x.copy_([1])
    assert tj.zeros(2, dtype=tj.int64).copy_(tj.tensor([2.7, 1])).tolist() == [2, 1]
    assert tj.zeros(2, dtype=tj.int64).fill_(2.7).tolist() == [2, 2]
    assert x.fill_(tj.tensor(2)).sum() == 12
    assert x.zero_().sum() == 0
    with pytest.raises(RuntimeError, match="0-dimension"):
        x.fill_(tj.ones(2))
    with pytest.raises(TypeError):
        x.fill_("a")
    with pytest.raises(RuntimeError):
        tj.zeros(2, dtype=tj.uint8).fill_(300)


def test_overwriting_keeps_the_history() -> None:
    x = tj.ones(3, requires_grad=True)
    y = x * 2
    y.fill_(1)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0]
    source = tj.ones(3, requires_grad=True)
    z = tj.zeros(2, 3)
    z.copy_(source)
    z.sum().backward()
    assert source.grad is not None
    assert source.grad.tolist() == [2, 2, 2]


def test_detach() -> None:
    x = tj.ones(2, requires_grad=True)
    y = x * x
    d = y.detach()
    assert not d.requires_grad
    assert d.data_ptr() == y.data_ptr()
    d.zero_()
    assert y._version == 1
    z = x * 2
    assert not z.detach_().requires_grad
    with pytest.raises(RuntimeError, match="Can't detach views"):
        (x * 2).view(2).detach_()


# ---- copies and pickles


class Weight(tj.Tensor):
    """A subclass with an attribute of its own."""

    note: Any


def made() -> Weight:
    w = Weight([1.0, 2.0])
    w.note = [1, 2]
    w.requires_grad_()
    (w * 3).sum().backward()
    return w


def test_shallow_copy() -> None:
    w = made()
    c = copy.copy(w)
    assert type(c) is Weight
    assert c.note is w.note
    assert c.requires_grad
    assert c.data_ptr() == w.data_ptr()
    assert c.grad is None
    y = copy.copy(w * 2)
    assert y.is_leaf


def test_deep_copy() -> None:
    w = made()
    c, again = copy.deepcopy([w, w])
    assert c is again
    assert type(c) is Weight
    assert c.note == w.note
    assert c.note is not w.note
    assert c.requires_grad
    assert c.data_ptr() != w.data_ptr()
    assert c.grad is not None
    assert w.grad is not None
    assert c.grad.tolist() == w.grad.tolist()
    assert c.grad.data_ptr() != w.grad.data_ptr()
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(w * 2)


@pytest.mark.parametrize("dtype", ALL)
def test_pickle(dtype: tj.dtype) -> None:
    t = tj.arange(6).reshape(2, 3).to(dtype).T
    again = pickle.loads(pickle.dumps(t))
    assert again.dtype is dtype
    assert again.tolist() == t.tolist()
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_pickle_keeps_what_a_leaf_is() -> None:
    w = pickle.loads(pickle.dumps(made()))
    assert type(w) is Weight
    assert w.note == [1, 2]
    assert w.requires_grad
    assert w.grad is None
    computed = pickle.loads(pickle.dumps(made() * 2))
    assert computed.is_leaf
    assert computed.requires_grad
    assert len(pickle.dumps(tj.zeros(100000)[:2])) < 1000


# ---- devices


def test_across_devices() -> None:
    before = devices.use_cuda_module(fake_cupy)
    try:
        t = tj.arange(3.0, device="cuda:1").requires_grad_()
        assert copy.deepcopy(t).device == pickle.loads(pickle.dumps(t)).device == t.device
        assert t.type() == "tapejit.cuda.FloatTensor"
        assert isinstance(t, tj.cuda.FloatTensor)
        assert isinstance(t.type(tj.DoubleTensor), tj.DoubleTensor)
        assert isinstance(tj.ones(2).type(tj.cuda.IntTensor), tj.cuda.IntTensor)
        assert (t.get_device(), t.is_cpu, t.cpu().get_device()) == (1, False, -1)
        assert t.tolist() == [0, 1, 2]
        with pytest.raises(TypeError, match="cuda:1 device type tensor"):
            t.detach().numpy()
        assert t.numpy(force=True).tolist() == [0, 1, 2]
        (t.cpu() * 2).sum().backward()
        assert t.grad is not None
        assert t.grad.device == t.device
        assert tj.ones(2, dtype=tj.float64).to(t).type() == "tapejit.cuda.FloatTensor"
        with tj.cuda.device(1):
            assert tj.cuda.current_device() == 1
            assert str(tj.zeros(1, device="cuda").device) == "cuda:1"
        assert tj.cuda.current_device() == 0
    finally:
        devices.use_cuda_module(before)


@pytest.mark.skipif(tj.cuda.is_available(), reason="needs a machine with no GPU")
def test_without_a_gpu() -> None:
    assert tj.cuda.device_count() == 0
    assert tj.accelerator.current_accelerator() is None
    assert tj.cuda.memory_allocated() == tj.cuda.max_memory_allocated() == 0
    tj.cuda.empty_cache()
    tj.cuda.manual_seed_all(3)
    assert tj.initial_seed() == 3
    assert not tj.cuda.is_bf16_supported()
    for call in (tj.cuda.synchronize, tj.cuda.current_device, tj.cuda.get_device_name, tj.ones(2).cuda):
        with pytest.raises(RuntimeError, match="not available"):
            call()


@pytest.mark.parametrize("dtype", [tj.float32, tj.float64, tj.int64, tj.bfloat16, tj.bool])
def test_unpickled_tensors_are_like_others_to_a_compiled_function(dtype: Any) -> None:
    """As batches are that come from a loader's processes."""
    f = tj.compile(lambda x: x + x)
    x = tj.ones(2, 3).to(dtype)
    for _ in range(6):
        assert tj.equal(f(pickle.loads(pickle.dumps(x))), x + x)
    assert f.hits == 4
