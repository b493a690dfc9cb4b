"""Files as they may be found: damaged, hostile, in shards, in 16 bits, quantised."""

import json
import pickle
import resource
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from minattn.checkpoints import read
from minattn.checkpoints.safetensors_file import SafetensorsFile

BERT = {"model_type": "bert", "num_attention_heads": 2}
STEM = "encoder.layer.{}.attention.self"
NAMES = [f"{STEM.format(layer)}.{side}.weight" for layer in (0, 1) for side in ("query", "key")]


def bert(seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(6, 6)).astype(dtype) for name in NAMES}


def raw(path, header, data=b"", length=None):
    """Write a safetensors file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", length) + text + data)
    return path


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# Damaged safetensors

DATA = bytes(16)
DAMAGED = {
    "a header of any length": ({}, b"", 2**63, "a header of 9223372036854775808 bytes"),
    "a header longer than the file": ({}, b"", 3, "a header of 3 bytes"),
    "no JSON": (b"\xff\xfe{}", b"", None, "JSON that cannot be read"),
    "a list": (b"[1]", b"", None, "JSON that is no table"),
    "deep": (b"[" * 100_000, b"", None, "JSON that cannot be read"),
    "digits": (b'{"a":' + b"1" * 5000 + b"}", b"", None, "JSON that cannot be read"),
    "a name twice": (b'{"a":1,"a":2}', b"", None, "a name that occurs twice"),
    "metadata": ({"__metadata__": [1]}, b"", None, "metadata that is no table"),
    "an entry that is a number": ({"a": 1}, DATA, None, "without dtype, shape or offsets"),
    "an entry without a shape": ({"a": {"dtype": "F32"}}, DATA, None, "without dtype"),
    "a huge shape": ({"a": entry(shape=(2**31, 2**31))}, DATA, None, "in 16 bytes"),
    "an overflowing shape": ({"a": entry(shape=(2**62, 4))}, DATA, None, "in 16 bytes"),
    "a negative shape": ({"a": entry(shape=(-2, -2))}, DATA, None, "no lengths"),
    "a shape of floats": ({"a": entry(shape=(2.0, 2))}, DATA, None, "no lengths"),
    "a shape of booleans": ({"a": entry(shape=(True, 4))}, DATA, None, "no lengths"),
    "a number for a shape": ({"a": entry() | {"shape": 4}}, DATA, None, "without dtype, shape"),
    "offsets backwards": ({"a": entry(offsets=(16, 0))}, DATA, None, "in -16 bytes"),
    "three offsets": ({"a": entry(offsets=(0, 8, 16))}, DATA, None, "without dtype, shape"),
    "beyond the data": ({"a": entry(offsets=(8, 24))}, DATA, None, "ends 8 bytes after the file"),
    "far beyond": ({"a": entry(offsets=(2**62, 2**62 + 16))}, DATA, None, "after the file"),
    "overlap": ({"a": entry(), "b": entry(offsets=(8, 24))}, bytes(24), None, "'b' overlaps 'a'"),
    "the same twice": ({"a": entry(), "b": entry()}, DATA, None, "'b' overlaps 'a'"),
    "a hole": ({"a": entry(offsets=(8, 24))}, bytes(24), None, "8 bytes that belong to no tensor"),
    "an unknown dtype": ({"a": entry("F33")}, DATA, None, "unknown dtype 'F33'"),
    "a dtype that is a list": ({"a": entry(["F32"])}, DATA, None, "unknown dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_a_clear_error(name, tmp_path):
    header, data, length, message = DAMAGED[name]
    path = raw(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(
        ValueError, match=r"^path: got model.safetensors \(.*needs an undamaged"
    ) as e:
        read(path)
    assert message in str(e.value)
    assert len(str(e.value)) < 250


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_too_short_for_a_header(size, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(size))
    with pytest.raises(ValueError, match=r"path: got .*model.safetensors"):
        read(path)


def test_a_truncated_file_at_any_length(tmp_path):
    whole = tmp_path / "model.safetensors"
    save_file(bert(), whole)
    content = whole.read_bytes()
    for size in range(8, len(content), 37):
        whole.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"path: got model.safetensors"):
            read(whole, heads=2)


def test_a_flipped_byte_is_an_error_or_another_number(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(bert(), path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            for layer in read(path, heads=2):
                assert layer.W_q.shape == (6, 2, 3)
        except ValueError as error:
            assert "got" in str(error)  # noqa: PT017


def test_no_memory_is_taken_on_the_word_of_a_header(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    test_a_damaged_file_is_a_clear_error("a header of any length", tmp_path)
    test_a_damaged_file_is_a_clear_error("a huge shape", tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


# What is stored


def test_bfloat16(tmp_path):
    data = struct.pack("<4H", 0x3F80, 0xC020, 0x0000, 0x7F80)
    path = raw(tmp_path / "x.safetensors", {"a": entry("BF16", (2, 2), (0, 8))}, data)
    found = SafetensorsFile(path).read("a")
    np.testing.assert_array_equal(found, [[1, -2.5], [0, np.inf]])
    assert found.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_come_back_exactly_and_belong_to_the_caller(dtype, tmp_path):
    arrays = bert(dtype=dtype)
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    for index, layer in enumerate(read(tmp_path)):
        stored = arrays[NAMES[2 * index]]
        np.testing.assert_array_equal(layer.W_q, stored.reshape(2, 3, 6).transpose(2, 0, 1))
        assert layer.W_q.dtype == (np.float64 if dtype == np.float64 else np.float32)
        layer.W_q[:] = 0  # an array of its own


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "U8", "BOOL"])
def test_attention_in_another_dtype_is_refused_when_read(dtype, tmp_path):
    names = {name: entry(dtype, (6, 6), (36 * i, 36 * i + 36)) for i, name in enumerate(NAMES)}
    path = raw(tmp_path / "x.safetensors", names, bytes(36 * 4))
    with pytest.raises(ValueError, match=f"query.weight' of {dtype}, needs a dtype of F16, BF16"):
        next(iter(read(path, heads=2)))


# Shards


def sharded(folder):
    arrays = bert()
    home = {}
    for number, names in enumerate((NAMES[:1], NAMES[1:])):
        shard = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: arrays[name] for name in names}, folder / shard)
        home |= dict.fromkeys(names, shard)
    (folder / "config.json").write_text(json.dumps(BERT))
    write_index(folder, home)
    return arrays, home


def write_index(folder, home):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))


def test_shards_are_read_as_one(tmp_path):
    arrays, _ = sharded(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        layers = list(read(path))
        assert [layer.index for layer in layers] == [0, 1]
        W_k = arrays[NAMES[1]].reshape(2, 3, 6).transpose(2, 0, 1)
        np.testing.assert_array_equal(layers[0].W_k, W_k)


def test_a_shard_alone_is_refused(tmp_path):
    sharded(tmp_path)
    with pytest.raises(ValueError, match=r"one shard of several"):
        read(tmp_path / "model-00002-of-00002.safetensors")


def test_a_missing_shard_is_named(tmp_path):
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"without the shard 'model-00002-of-00002.safetensors'"):
        read(tmp_path)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "", 3, None, "a/b"])
def test_an_index_cannot_lead_out_of_its_folder(shard, tmp_path):
    _, home = sharded(tmp_path)
    write_index(tmp_path, home | {NAMES[0]: shard})
    with pytest.raises(ValueError, match=r"which is no file name"):
        read(tmp_path)


def test_an_index_that_does_not_fit_its_shards(tmp_path):
    _, home = sharded(tmp_path)
    write_index(tmp_path, home | {NAMES[0]: home[NAMES[1]]})
    with pytest.raises(ValueError, match=r"which 'model-00002-of-00002.safetensors' lacks"):
        read(tmp_path)
    for content in ("{}", '{"weight_map": []}', '{"weight_map": {}}', "[", ""):
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with pytest.raises(ValueError, match=r"undamaged"):
            read(tmp_path)


# Other kinds


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_is_never_run(protocol, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Trap(), protocol))
    with pytest.raises(ValueError, match=r"a pickle would run code"):
        read(path)
    with pytest.raises(ValueError, match=r"pytorch_model.bin alone.*would run code"):
        read(tmp_path)
    path.rename(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"path: got"):
        read(tmp_path)


def test_a_path_that_is_not_there(tmp_path):
    for path in (tmp_path / "none", str(tmp_path / "none.safetensors")):
        with pytest.raises(ValueError, match=r"that exists"):
            read(path)
    with pytest.raises(ValueError, match=r"or a folder with one of these"):
        read(tmp_path)


def test_a_folder_with_several_models(tmp_path):
    for name in ("a", "b"):
        save_file(bert(), tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"a.safetensors, b.safetensors, needs the path of one"):
        read(tmp_path)
    assert len(read(tmp_path / "a.safetensors", heads=2)) == 2


# GGUF


@pytest.fixture
def gguf():
    return pytest.importorskip("gguf", reason="needs minattn[gguf]")


def write_gguf(gguf, path, arrays, kind=None, **settings):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(settings.get("heads", 2))
    writer.add_head_count_kv(settings.get("key_heads", 1))
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    for name, value in arrays.items():
        stored = value if kind is None or value.ndim == 1 else gguf.quants.quantize(value, kind)
        writer.add_tensor(name, stored, raw_dtype=None if value.ndim == 1 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama(d=32, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "blk.0.attn_q.weight": rng.normal(size=(8, d)).astype(np.float32),
        "blk.0.attn_k.weight": rng.normal(size=(4, d)).astype(np.float32),
        "blk.0.attn_norm.weight": rng.normal(size=d).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("F32", 0.0), ("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q4_1", 0.3)],
)
def test_gguf_tensors_come_back(gguf, kind, tolerance, tmp_path):
    arrays = llama()
    number = gguf.GGMLQuantizationType[kind]
    path = write_gguf(gguf, tmp_path / "x.gguf", arrays, number)
    (layer,) = read(path)
    expected = arrays["blk.0.attn_q.weight"].reshape(2, 4, 32).transpose(2, 0, 1)
    np.testing.assert_allclose(layer.W_q, expected, atol=tolerance * np.abs(expected).max())
    assert layer.W_k.shape == (32, 1, 4)
    np.testing.assert_array_equal(layer.norm.gain, arrays["blk.0.attn_norm.weight"])
    assert layer.rotary.interleaved


def test_gguf_rotary_factors(gguf, tmp_path):
    arrays = llama()
    (plain,) = read(write_gguf(gguf, tmp_path / "x.gguf", arrays))
    arrays["rope_freqs.weight"] = np.array([1.0, 8.0], np.float32)
    (slowed,) = read(write_gguf(gguf, tmp_path / "y.gguf", arrays))
    np.testing.assert_allclose(slowed.rotary.frequencies, plain.rotary.frequencies / [1, 8])


def test_a_truncated_or_changed_gguf_is_an_error_or_another_number(gguf, tmp_path):
    path = write_gguf(gguf, tmp_path / "x.gguf", llama())
    content = path.read_bytes()
    for size in range(0, len(content) - 40, 23):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"path: got"):
            next(iter(read(path, heads=2)))
    rng = np.random.default_rng(0)
    for _ in range(400):
        changed = bytearray(content)
        changed[rng.integers(600)] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            for layer in read(path):
                assert layer.W_q.shape[0] == 32
        except ValueError as error:
            assert "got" in str(error)  # noqa: PT017


HEADER = b"GGUF" + struct.pack("<I", 3)
COUNTS = {
    "settings without end": struct.pack("<QQ", 0, 2**63),
    "tensors without end": struct.pack("<QQ", 2**63, 0),
    "a string without end": struct.pack("<QQQ", 0, 1, 2**62),
    "an array without end": struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 0, 2**60),
    "strings without end": struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**60),
}


@pytest.mark.parametrize("name", COUNTS)
def test_no_count_in_a_gguf_header_is_believed(gguf, name, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(HEADER + COUNTS[name])
    with pytest.raises(ValueError, match=r"it ends within its header"):
        read(path)


@pytest.mark.parametrize("kind", [9, 10, 13, 2**31])
def test_unknown_types_in_a_gguf_header(gguf, kind, tmp_path):
    path = tmp_path / "x.gguf"
    start = HEADER + struct.pack("<QQQ", 0, 1, 1) + b"a"
    path.write_bytes(start + struct.pack("<IIQ", 9, kind, 1) + bytes(64))
    known = kind == 10  # 64-bit numbers: then it is the architecture that is missing
    with pytest.raises(
        ValueError, match=r"general.architecture" if known else "an array of the type"
    ):
        read(path)


def test_an_old_gguf_is_refused(gguf, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + bytes(100))
    with pytest.raises(ValueError, match=r"GGUF version 1, needs version 2 or 3"):
        read(path)


def test_gguf_without_its_library(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gguf", None)
    path = tmp_path / "x.gguf"
    path.write_bytes(HEADER)
    with pytest.raises(ValueError, match=r"pip install 'minattn\[gguf\]'"):
        read(path)
