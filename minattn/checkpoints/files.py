"""Which file a path means, and what kind it is; nothing here runs code from a file."""

from __future__ import annotations

import re
from pathlib import Path

from minattn import checks
from minattn.checkpoints.gguf_file import MAGIC, GGUFFile
from minattn.checkpoints.safetensors_file import SafetensorsFile, ShardedFile, read_json
from minattn.checkpoints.settings import Settings, from_config, from_gguf, from_notes
from minattn.checkpoints.tensors import TensorFile

_KINDS = "a safetensors file, its index, a GGUF file, or a folder with one of these"
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def open_model(path: Path) -> tuple[TensorFile, Settings, bool]:
    """Open a file or folder; return its tensors, its settings, and whether it is GGUF.

    Raises
    ------
    ValueError
        If there is no such file, it is damaged, or it is of another kind.
    """
    path = _within(path) if path.is_dir() else path
    if not path.is_file():
        checks.fail("path", repr(str(path)), f"{_KINDS}, that exists")
    beginning = _beginning(path)
    if beginning.startswith(MAGIC):
        gguf = GGUFFile(path)
        return gguf, from_gguf(path, gguf.metadata), True
    # A safetensors file begins with the length of its header, whose bytes can be anything.
    if beginning.startswith(_PICKLES) and beginning[8:] != b"{":
        needs = "the weights as safetensors: reading a pickle would run code in it"
        checks.fail("path", f"{path.name}, a pickle or an archive", needs)
    config = path.with_name("config.json")
    settings = from_config(config, read_json(config)) if config.is_file() else Settings()
    if path.name.endswith(".index.json"):
        return ShardedFile(path), settings, False
    if re.search(r"-\d+-of-\d+\.safetensors$", path.name):
        checks.fail("path", f"{path.name}, one shard of several", "their index, or their folder")
    file = SafetensorsFile(path)
    if "minattn" in file.metadata:
        settings = from_notes(path, file.metadata["minattn"])
    return file, settings, False


def _within(folder: Path) -> Path:
    """Return the one model file in a folder."""
    for name in ("model.safetensors", "model.safetensors.index.json"):
        if (folder / name).is_file():
            return folder / name
    for pattern in ("*.safetensors.index.json", "*.safetensors", "*.gguf"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(file.name for file in found[:5])
            checks.fail("path", f"{folder.name!r} with {listed}", "the path of one of them")
    pickled = sorted(file.name for file in folder.glob("*.bin"))
    got = f"{folder.name!r} with {pickled[0]} alone" if pickled else f"{folder.name!r}"
    checks.fail("path", got, f"{_KINDS}" + (" (a .bin file would run code)" if pickled else ""))


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(9)
    except OSError as error:
        checks.fail("path", f"{path.name!r} ({error.strerror})", "a file that can be read")
