"""The stand-in for CuPy is honest: no name, parameter or loop that real CuPy lacks, and it refuses what that refuses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_cupy
import ml_dtypes
import numpy as np
import pytest
from fake_cupy import functions, linalg, ufuncs


@pytest.fixture(scope="module")
def cupy() -> Any:
    """The real one, of which only names and signatures are looked at: that needs no GPU."""
    return pytest.importorskip("cupy", reason="CuPy has no wheel for this platform", exc_type=ImportError)


def test_every_name_is_in_real_cupy(cupy: Any) -> None:
    assert [name for name in fake_cupy.NAMES if not hasattr(cupy, name)] == []
    assert [name for name in linalg.NAMES if not hasattr(cupy.linalg, name)] == []
    assert callable(cupy.lib.stride_tricks.as_strided)
    assert callable(cupy.cuda.Device) and callable(cupy.cuda.runtime.getDeviceCount)


def test_every_member_is_in_the_real_array(cupy: Any) -> None:
    mine = {name for name in vars(fake_cupy.ndarray) if not name.startswith("_")}
    assert sorted(mine - set(dir(cupy.ndarray))) == []
    flags = set(vars(fake_cupy.zeros(2).flags))
    assert flags <= {"c_contiguous", "f_contiguous", "owndata", "fnc", "forc"}


@pytest.mark.parametrize("name", sorted(functions.FUNCTIONS))
def test_no_parameter_that_real_cupy_lacks(cupy: Any, name: str) -> None:
    if name == "as_strided":
        real, mine = cupy.lib.stride_tricks.as_strided, functions.as_strided
    else:
        real, mine = getattr(cupy, name), functions.FUNCTIONS[name]
    assert parameters(mine) == parameters(real)


@pytest.mark.parametrize("name", sorted(linalg.NAMES))
def test_no_parameter_that_real_linalg_lacks(cupy: Any, name: str) -> None:
    assert parameters(linalg.NAMES[name]) == parameters(getattr(cupy.linalg, name))


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    try:
        return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]
    except ValueError:  # CuPy has some of NumPy's own functions, which have no signature in its older versions
        return [(name, inspect.Parameter.POSITIONAL_ONLY) for name in documented(function)]


@pytest.mark.parametrize("name", sorted(ufuncs.LOOPS))
def test_loops_are_those_of_real_cupy(cupy: Any, name: str) -> None:
    real = [t for t in getattr(cupy, name).types if set(t) <= set("?bBhHiIlLqQeEfd->")]
    assert real == fake_cupy.NAMES[name].types


@pytest.mark.parametrize("name", ["where", "clip"])
def test_loops_of_ternary_kernels(cupy: Any, name: str) -> None:
    from cupy._core._routines_math import clip
    from cupy._sorting.search import _where_ufunc

    real, mine = (_where_ufunc, functions.WHERE) if name == "where" else (clip, functions.CLIP)
    assert [t for t in real.types if set(t) <= set("?bBhHiIlLqQeEfd->")] == mine.types


def test_at_is_limited_to_the_same_ufuncs(cupy: Any) -> None:
    """Real CuPy says so before it touches an array."""
    for name in ufuncs.LOOPS:
        if name not in ufuncs.AT:
            with pytest.raises(NotImplementedError):
                getattr(cupy, name).at(None, None, None)


# ---- CUDA: streams, memory, and the driver

DRIVER = ("moduleLoadData", "moduleUnload", "moduleGetFunction", "funcSetAttribute", "launchKernel")


def documented(function: Any) -> list[str]:
    """The names of a compiled function's parameters, as the first line of its documentation has them."""
    text = (function.__doc__ or "").split("\n")[0]
    inside = text[text.index("(") + 1 : text.rindex(")")]
    return [part.split("=")[0].split()[-1] for part in inside.split(",") if part.strip() and part.strip() != "self"]


@pytest.mark.parametrize("name", DRIVER)
def test_functions_of_the_driver(cupy: Any, name: str) -> None:
    mine = list(inspect.signature(getattr(fake_cupy.cuda.driver, name)).parameters)
    assert mine == documented(getattr(cupy.cuda.driver, name))


def test_functions_of_the_runtime(cupy: Any) -> None:
    for name in vars(fake_cupy.cuda.runtime):
        assert hasattr(cupy.cuda.runtime, name), name
    assert list(inspect.signature(fake_cupy.cuda.runtime.memcpyAsync).parameters) == documented(cupy.cuda.runtime.memcpyAsync)
    for name in ("memcpyHostToDevice", "memcpyDeviceToHost", "CUDA_R_16F", "CUDA_R_16BF", "CUDA_R_32F", "CUDA_R_64F"):
        assert getattr(fake_cupy.cuda.runtime, name) == getattr(cupy.cuda.runtime, name)


def test_names_of_cuda(cupy: Any) -> None:
    assert [name for name in vars(fake_cupy.cuda) if name != "cublas" and not hasattr(cupy.cuda, name)] == []
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert documented(cupy.cuda.alloc) == ["size"]
    assert documented(cupy.cuda.get_current_stream) == ["device_id"]
    assert documented(cupy.cuda.UnownedMemory)[:4] == ["ptr", "size", "owner", "device_id"]


def test_functions_of_cublas(cupy: Any) -> None:
    """The module cannot be imported without the library; what its functions are given stands in its file all the same."""
    from cupy_backends.cuda import libs

    (path,) = Path(libs.__file__).parent.glob("cublas.*")
    text = path.read_bytes()
    for name in ("gemmEx", "gemmStridedBatchedEx", "getMathMode", "setMathMode", "getVersion"):
        found = re.search(rb"\x00" + name.encode() + rb"\(([^)]*)\)", text)
        assert found is not None, name
        real = [part.split()[-1] for part in found[1].decode().split(",")]
        assert list(inspect.signature(getattr(fake_cupy.cuda.cublas, name)).parameters) == real
    for name in (x for x in vars(fake_cupy.cuda.cublas) if x.startswith("CUBLAS_")):
        assert name.encode() in text


@pytest.mark.parametrize("name", ["Device", "Event", "Stream", "MemoryPointer"])
def test_members_of_cuda_classes(cupy: Any, name: str) -> None:
    mine, real = getattr(fake_cupy.cuda, name), getattr(cupy.cuda, name)
    own = {"clock", "is_non_blocking"}  # what tests set, and what an instance has
    assert [x for x in vars(mine) if not x.startswith("_") and x not in own and not hasattr(real, x)] == []
    for member, function in vars(mine).items():
        has_text = "(" in (getattr(getattr(real, member, None), "__doc__", None) or "")
        if not member.startswith("_") and inspect.isfunction(function) and has_text:
            assert list(inspect.signature(getattr(mine, member)).parameters)[1:] == documented(getattr(real, member))


def test_graphs_and_pools(cupy: Any) -> None:
    from fake_cupy.memory import MemoryPool
    from fake_cupy.streams import Graph

    for mine, real in ((Graph, cupy.cuda.graph.Graph), (MemoryPool, cupy.cuda.MemoryPool)):
        assert [x for x in vars(mine) if not x.startswith("_") and not hasattr(real, x)] == []


def test_arrays_on_memory(cupy: Any) -> None:
    pointer = fake_cupy.cuda.alloc(64)
    x = fake_cupy.ndarray((2, 3), np.float32, pointer + 16, (4, 8))
    x[...] = fake_cupy.arange(6, dtype=np.float32).reshape(2, 3)
    assert pointer.ptr % 512 == 0 and x.data.ptr == pointer.ptr + 16
    assert fake_cupy.ndarray((6,), np.float32, pointer + 16).tolist() == [0, 3, 1, 4, 2, 5]


# ---- what it refuses


@pytest.fixture
def x() -> Any:
    return fake_cupy.arange(6, dtype=np.float32).reshape(2, 3)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "implicit conversion": np.asarray,
    "numpy functions": np.sum,
    "numpy ufuncs": np.exp,
    "ufuncs of lists": lambda x: fake_cupy.add(x, [1, 2, 3]),
    "ufuncs of numpy arrays": lambda x: fake_cupy.add(x, np.ones(3)),
    "operators with numpy arrays": lambda x: x * np.ones(3),
    "reflected operators with numpy arrays": lambda x: np.ones(3) * x,
    "where in ufuncs": lambda x: fake_cupy.add(x, 1, where=True),
    "where in reductions": lambda x: fake_cupy.sum(x, where=True),
    "initial in reductions": lambda x: fake_cupy.amax(x, initial=0),
    "reductions of lists": lambda x: fake_cupy.sum([1, 2]),
    "concatenating numpy arrays": lambda x: fake_cupy.concatenate([x, np.ones((2, 3))]),
    "where of a list": lambda x: fake_cupy.where(x > 1, x, [1, 2, 3]),
    "stable as a flag": lambda x: fake_cupy.sort(x, stable=True),
    "casting in astype": lambda x: x.astype(np.int32, casting="safe"),
    "numpy's bincount of floats": lambda x: fake_cupy.bincount(x),
    "adding at in bfloat16": lambda x: fake_cupy.add.at(x.astype(ml_dtypes.bfloat16), (fake_cupy.arange(2),), 1),
    "sorting bfloat16": lambda x: fake_cupy.sort(x.astype(ml_dtypes.bfloat16)),
    "batched matmul of bfloat16": lambda x: fake_cupy.matmul(*[x.astype(ml_dtypes.bfloat16).reshape(1, 2, 3)] * 2),
    "half precision in linalg": lambda x: fake_cupy.linalg.inv(fake_cupy.eye(2, dtype=np.float16)),
    "writeable": lambda x: x.flags.writeable,
    "repeats as an array": lambda x: fake_cupy.repeat(x, fake_cupy.arange(3), 1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses(x: Any, what: str) -> None:
    with pytest.raises((TypeError, AttributeError, ValueError)):
        REFUSED[what](x)


@pytest.mark.parametrize("name", ["insert", "block", "vecdot", "unstack", "einsum_path", "put_mask", "vectorise"])
def test_lacks(name: str) -> None:
    assert not hasattr(fake_cupy, name)


def test_reduce_and_accumulate_only_add_and_multiply(x: Any) -> None:
    assert fake_cupy.add.reduce(x, 1).tolist() == [3, 12]
    assert fake_cupy.multiply.accumulate(x, 0).tolist() == [[0, 1, 2], [0, 4, 10]]
    for name in ("maximum", "logical_and", "logaddexp"):
        with pytest.raises(NotImplementedError):
            fake_cupy.NAMES[name].reduce(x)
        with pytest.raises(NotImplementedError):
            fake_cupy.NAMES[name].accumulate(x)


# ---- how it differs from NumPy


def test_array_indices_wrap_but_numbers_do_not(x: Any) -> None:
    assert x[fake_cupy.asarray([2, -3]), fake_cupy.asarray([3, 4])].tolist() == [0, 4]
    assert fake_cupy.take(x, fake_cupy.asarray([7])).tolist() == [1]
    with pytest.raises(IndexError):
        x[2]


def test_scalars_are_arrays(x: Any) -> None:
    for found in (x.sum(), x[0, 1], fake_cupy.amax(x), fake_cupy.add(x[0, 0], 1)):
        assert isinstance(found, fake_cupy.ndarray) and found.shape == ()


def test_views_share_memory(x: Any) -> None:
    row, one = x[1], x[0, 1]
    x[...] = 7
    assert row.tolist() == [7, 7, 7] and one.item() == 7
    assert x.T.data.ptr == x.data.ptr and not x.T.flags.owndata
    fake_cupy.lib.stride_tricks.as_strided(x, (3,), (0,))[0] = 1
    assert x[0, 0].item() == 1


def test_another_value_wins_for_the_same_place() -> None:
    x = fake_cupy.zeros(3)
    x[fake_cupy.asarray([1, 1])] = fake_cupy.asarray([5.0, 6.0])
    assert x.tolist() == [0, 5, 0]


def test_bfloat16_only_where_there_is_a_loop(x: Any) -> None:
    b = x.astype(ml_dtypes.bfloat16)
    assert fake_cupy.exp(b).dtype == fake_cupy.sum(b).dtype == (b * 2.0).dtype == ml_dtypes.bfloat16
    assert fake_cupy.where(b > 1, b, b).dtype == fake_cupy.clip(b, 0, 1).dtype == np.float32


def test_fresh_memory_is_not_zero() -> None:
    assert np.isnan(fake_cupy.asnumpy(fake_cupy.empty(3))).all()


def test_kernels_run_where_their_arrays_are(x: Any) -> None:
    with fake_cupy.cuda.Device(1):
        with pytest.raises(ValueError, match="different from the current device"):
            x + 1
        y = fake_cupy.asarray(x)
        assert y.device.id == 1 and (y + 1).device.id == 1 and x.copy().device.id == 1
    assert x.device.id == 0
    with pytest.raises(ValueError, match="different from the current device"):
        fake_cupy.add(x, y)
    assert y.get().tolist() == x.get().tolist()


def test_nothing_is_said_about_singular_matrices() -> None:
    assert np.isnan(fake_cupy.asnumpy(fake_cupy.linalg.inv(fake_cupy.zeros((2, 2))))).all()
