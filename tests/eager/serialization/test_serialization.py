"""Checkpoints: round trips, sharing, atomic writes, and files that are truncated, flipped, hostile or of others."""

import io
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import textwrap
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import tapejit as tj
from tapejit.eager.serialization.safetensors import FileError


def state() -> dict:
    tj.manual_seed(0)
    shared = tj.randn(3, 4)
    return {
        "model": OrderedDict(w=shared, tied=shared, half=tj.ones(2, dtype=tj.bfloat16), empty=tj.zeros(0, 3)),
        "optimizer": {"state": {0: {"step": 3, "m": tj.zeros(())}}, "lr": 1e-3, "best": float("inf"), "bad": float("nan")},
        "rng": tj.get_rng_state(),
        "extra": (1, [2, None, "text", True], {"a", "b"}, b"\x00\xff", tj.float16, tj.device("cpu"), shared.shape),
        "numpy": np.arange(6, dtype=np.int16).reshape(2, 3),
        1.5: np.float32(0.5),
        "leaf": tj.tensor([1.0], requires_grad=True),
        "transposed": tj.arange(6).reshape(2, 3).T,
    }


def test_round_trip(tmp_path):
    before = state()
    tj.save(before, tmp_path / "checkpoint")
    after = tj.load(tmp_path / "checkpoint")
    assert list(after) == list(before)
    assert type(after["model"]) is OrderedDict and after["model"]["w"] is after["model"]["tied"]
    for name, value in before["model"].items():
        assert after["model"][name].dtype is value.dtype and tj.equal(after["model"][name], value)
    assert (
        after["optimizer"]["state"] == {0: {"step": 3, "m": tj.zeros(())}}
        and type(after["optimizer"]["state"][0]["step"]) is int
    )
    assert after["optimizer"]["best"] == float("inf") and np.isnan(after["optimizer"]["bad"])
    assert after["extra"] == before["extra"] and isinstance(after["extra"][-1], tj.Size)
    assert np.array_equal(after["numpy"], before["numpy"]) and after["numpy"].dtype == np.int16
    assert after[1.5] == np.float32(0.5) and after["leaf"].requires_grad and after["leaf"].is_leaf
    assert tj.equal(after["transposed"], before["transposed"])
    tj.set_rng_state(after["rng"])
    first = tj.rand(3)
    tj.set_rng_state(before["rng"])
    assert tj.equal(first, tj.rand(3))


def test_loaded_tensors_can_be_written(tmp_path):
    tj.save({"x": tj.zeros(3)}, tmp_path / "f")
    x = tj.load(tmp_path / "f")["x"]
    x += 1
    assert x.tolist() == [1, 1, 1]


def test_open_files():
    file = io.BytesIO()
    tj.save([tj.arange(3)], file)
    file.seek(0)
    assert tj.load(file)[0].tolist() == [0, 1, 2]


def test_map_location(tmp_path):
    tj.save({"x": tj.ones(2)}, tmp_path / "f")
    assert tj.load(tmp_path / "f", map_location="cpu")["x"].device.type == "cpu"
    seen = []
    tj.load(tmp_path / "f", map_location=lambda tensor, where: seen.append(where))
    assert seen == ["cpu"]


def test_what_cannot_be_saved_is_named(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(TypeError, match=r"cannot store a function \(at 'a.b'\)"):
        tj.save({"a": {"b": lambda: 0}}, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_every_truncation_is_a_clear_error(tmp_path):
    tj.save(state(), tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    for length in range(len(data)):
        with pytest.raises(FileError):
            tj.load(io.BytesIO(data[:length]))


def test_every_flipped_byte_is_a_clear_error(tmp_path):
    tj.save(state(), tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    rng = random.Random(0)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << rng.randrange(8)
        with pytest.raises(FileError):
            tj.load(io.BytesIO(bytes(flipped)))


def header_only(header: object, data: bytes = b"") -> io.BytesIO:
    text = json.dumps(header).encode()
    return io.BytesIO(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    "header",
    [
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]}},
        {"x": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {
            "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "y": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]},
        },
        {"x": 3},
        [1, 2],
        {"__metadata__": {"a": 1}},
    ],
)
def test_hostile_headers(header):
    with pytest.raises(FileError):
        tj.load(header_only(header, b"\0" * 4))


def test_a_huge_header_is_not_read():
    with pytest.raises(FileError, match="header claims"):
        tj.load(io.BytesIO(struct.pack("<Q", 2**60) + b"{}"))


def test_safetensors_of_others():
    file = header_only({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, np.float32([1, 2]).tobytes())
    assert tj.load(file)["w"].tolist() == [1, 2]


def test_our_files_are_safetensors(tmp_path):
    tj.save({"model": {"w": tj.ones(2, 3)}}, tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header["model.w"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert len(data) == 8 + length + 24 and (8 + length) % 8 == 0


class Evil:
    def __reduce__(self):
        return (os.system, ("echo hacked > hacked",))


@pytest.mark.parametrize("payload", [Evil(), {"a": Evil()}, np.float64(1.0)])
def test_pickles_in_pytorch_files_cannot_call(payload, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps(payload))
    with pytest.raises(FileError, match="only tensors and plain containers"):
        tj.load("evil.pt")
    assert not os.path.exists("hacked")


def test_plain_pickles_are_refused(tmp_path):
    (tmp_path / "f").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(FileError):
        tj.load(tmp_path / "f")


def test_a_missing_file_is_python_s_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        tj.load(tmp_path / "none")


def test_killed_while_writing_leaves_the_old_file(tmp_path):
    tj.save({"version": 1}, tmp_path / "f")
    code = textwrap.dedent("""
        import os, signal, sys
        import tapejit as tj
        from tapejit.eager.serialization import safetensors

        real = safetensors._bytes
        def dying(array):
            dying.calls += 1
            if dying.calls > 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(array)
        dying.calls = 0
        safetensors._bytes = dying
        tj.save({"version": 2, "a": tj.zeros(1000), "b": tj.ones(1000)}, sys.argv[1])
    """)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert tj.load(tmp_path / "f") == {"version": 1}
