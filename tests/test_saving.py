"""Files are either the old one or the new one, and reading them runs no code."""

import json
import os
import pickle
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from minattn.saving import claimed, load_arrays, save_arrays, write_bytes

OLD = {"x": np.arange(3.0)}


def saved(path):
    arrays, notes = load_arrays(path)
    return {name: array.tolist() for name, array in arrays.items()}, notes


# There and back


ARRAYS = {
    "plain": np.arange(6.0).reshape(2, 3),
    "single": np.array([[0.1, -0.0]], np.float32),
    "0-d": np.array(7, np.int64),
    "empty": np.zeros((0, 3)),
    "not finite": np.array([np.nan, np.inf, -np.inf]),
    "bool": np.array([True, False]),
    "bytes": np.arange(3, dtype=np.uint8),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(12.0).reshape(2, 6)[:, ::2],
    "a/name with.signs_é": np.ones((1, 1, 1)),
}


@pytest.mark.parametrize("writeable", [True, False])
def test_arrays_and_notes_come_back_as_they_were(tmp_path, writeable):
    arrays = {name: array.copy(order="K") for name, array in ARRAYS.items()}
    for array in arrays.values():
        array.setflags(write=writeable)
    notes = {"step": 3, "big": 2**127 - 1, "nested": [[{"a": None}], 0.1], "é": "ü"}
    save_arrays(tmp_path / "run", arrays, notes)
    found, found_notes = load_arrays(str(tmp_path / "run"))
    assert found_notes == notes
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        np.testing.assert_array_equal(array, ARRAYS[name], err_msg=name)


def test_what_is_read_can_be_written_to(tmp_path):
    save_arrays(tmp_path / "run", OLD | {"step": np.array(1)}, {})
    arrays, _ = load_arrays(tmp_path / "run")
    arrays["x"] += 1
    arrays["step"][...] = 2
    assert saved(tmp_path / "run") == ({"x": [0, 1, 2], "step": 1}, {})


def test_the_file_is_safetensors_with_a_plain_header(tmp_path):
    save_arrays(tmp_path / "run", OLD, {"step": 3})
    content = (tmp_path / "run").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header["x"] == {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}
    assert json.loads(header["__metadata__"]["minattn"]) == {"step": 3}
    assert content[8 + length :] == OLD["x"].tobytes()


# Old or new, nothing between


def folder(path):
    return sorted(entry.name for entry in path.iterdir())


def test_a_file_is_replaced_as_a_whole_and_nothing_stays_beside_it(tmp_path):
    for content in (b"old and longer", b"new", b""):
        write_bytes(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
        assert folder(tmp_path) == ["file"]


def test_data_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (events.append("replace"), replace(self, to))[1]
    )
    write_bytes(tmp_path / "file", b"new")
    assert events[:2] == ["fsync", "replace"]


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_while_saving_leaves_the_old_file_alone(tmp_path, monkeypatch, failing, error):
    save_arrays(tmp_path / "run", OLD, {"step": 1})

    def fail(*arguments):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(failing, fail)
        with pytest.raises(type(error)):
            save_arrays(tmp_path / "run", {"x": np.zeros(3)}, {"step": 2})
    assert saved(tmp_path / "run") == ({"x": [0, 1, 2]}, {"step": 1})
    assert folder(tmp_path) == ["run"]


HANGING = """
import os, pathlib, sys, time
import numpy as np
from minattn.saving import save_arrays

def hang(*arguments):
    print("hanging", flush=True)
    time.sleep(600)

path, step = sys.argv[1:]
save_arrays(path, {"x": np.arange(3.0)}, {"step": 1})
if step == "fsync":
    os.fsync = hang
else:
    pathlib.Path.replace = hang
save_arrays(path, {"x": np.zeros(100_000)}, {"step": 2})
"""


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_kill_while_saving_leaves_the_old_file_readable(tmp_path, step):
    path = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(path), step],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    with child:
        assert child.stdout.readline() == "hanging\n"
        child.kill()
        assert child.wait(60) == -signal.SIGKILL
    assert saved(path) == ({"x": [0, 1, 2]}, {"step": 1})
    save_arrays(path, {"x": np.ones(1)}, {"step": 3})  # what the kill left is in nobody's way
    assert saved(path) == ({"x": [1]}, {"step": 3})


def missing(path):
    return path / "missing" / "run"


def under_a_file(path):
    (path / "file").touch()
    return path / "file" / "run"


def a_folder(path):
    (path / "run").mkdir()
    return path / "run"


@pytest.mark.parametrize("where", [missing, under_a_file, a_folder])
def test_where_nothing_can_be_written_the_error_says_so(tmp_path, where):
    path = where(tmp_path)
    before = folder(tmp_path)
    with pytest.raises(OSError, match="run"):
        save_arrays(path, OLD, {})
    assert folder(tmp_path) == before


# Other files


def safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def header(dtype="F64", shape=(3,), end=24, notes="{}"):
    tensor = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, end]}
    return {"__metadata__": {"minattn": notes}, "x": tensor}


DAMAGED = {
    "empty": b"",
    "seven bytes": b"1234567",
    "a header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "a header longer than the file": struct.pack("<Q", 100) + b"{}",
    "a header that is no JSON": struct.pack("<Q", 4) + b"nope",
    "a shape larger than the data": safetensors(header(shape=(4,)), bytes(24)),
    "truncated data": safetensors(header(), bytes(23)),
    "an unknown dtype": safetensors(header(dtype="Z99"), bytes(24)),
    "a dtype that NumPy lacks": safetensors(header("BF16", (12,)), bytes(24)),
    "no notes": save(OLD),
    "notes of another program": save(OLD, metadata={"format": "np"}),
    "notes that are no JSON": safetensors(header(notes="{"), bytes(24)),
    "text": b"a text that is longer than eight bytes",
}


def test_the_damage_below_is_the_only_fault_of_those_files(tmp_path):
    (tmp_path / "run").write_bytes(safetensors(header(), OLD["x"].tobytes()))
    assert saved(tmp_path / "run") == ({"x": [0, 1, 2]}, {})


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(ValueError, match=r"path: got '.*run'.*, needs a file that minattn saved"):
        load_arrays(tmp_path / "run")


@pytest.mark.parametrize("where", [missing, under_a_file, a_folder])
def test_what_is_no_file_is_refused_by_name(tmp_path, where):
    with pytest.raises(ValueError, match=r"path: got '.*run'.*, needs a file that minattn saved"):
        load_arrays(where(tmp_path))


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["pickle", "npz"])
def test_nothing_is_ever_unpickled(tmp_path, form):
    payload = Payload(tmp_path / "executed")
    if form == "pickle":
        (tmp_path / "run").write_bytes(pickle.dumps(payload))
    else:
        with (tmp_path / "run").open("wb") as file:
            np.savez(file, x=np.array([payload], object))
    with pytest.raises(ValueError, match="path: got"):
        load_arrays(tmp_path / "run")
    assert folder(tmp_path) == ["run"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_place_that_takes_no_files_is_not_called_another_run():
    needs = "needs a file that can be written"
    with pytest.raises(ValueError, match=rf"^save: got '/proc/run' \(.+\), {needs}$"):
        claimed(Path("/proc/run"), "save").__enter__()
