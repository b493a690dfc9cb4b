"""Sound as a sequence of quantised samples."""

from __future__ import annotations

import contextlib
import hashlib
import os
import wave
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.data.split import train_and_validation
from minattn.data.text import TextSource

_MU = 255.0  # of the mu-law, which telephony uses
_FASTEST = 2**31 - 1  # samples a second: two bytes each, and bytes a second have 32 bits


@dataclass(frozen=True, eq=False)
class Sound:
    """A recording, cut into tokens and split in two. Made by `load_wav`.

    Attributes
    ----------
    name : str
        The file it comes from.
    sha256 : str
        Hash of the file's frames.
    rate : int
        Samples a second.
    n_symbols : int
        Levels.
    train, validation : TextSource
        Windows of consecutive samples; the validation part is the last tenth, rounded up.
    """

    name: str
    sha256: str
    rate: int
    n_symbols: int
    train: TextSource
    validation: TextSource


def load_wav(file: str | os.PathLike[str] | BinaryIO, levels: int = 16, name: str = "") -> Sound:
    """Read a WAV file and cut it into tokens, one a sample.

    Parameters
    ----------
    file : path-like or binary file
        PCM of 8, 16, 24 or 32 bits; channels are averaged.
    levels : int
        At least 2.
    name : str
        What to call it; by default the file's own name.

    Returns
    -------
    Sound
        Samples are scaled by the largest, companded by the mu-law (mu = 255) and cut into equally
        wide levels.

    Raises
    ------
    ValueError
        If the file cannot be read, is no such WAV, or is silent (the message names it).
    """
    levels = checks.integer("levels", levels, minimum=2)
    source: Any = file
    title = checks.text("name", name) or "WAV"
    if not hasattr(file, "read"):
        source = os.fspath(checks.path("wav", file))
        title = name or os.path.basename(source)
    try:
        with wave.open(source, "rb") as wav:
            width, channels, rate = wav.getsampwidth(), wav.getnchannels(), wav.getframerate()
            frames = wav.readframes(wav.getnframes())
    except OSError as error:
        checks.fail("wav", f"{title!r} ({error.strerror})", "a file that can be read")
    except (wave.Error, EOFError) as error:
        checks.fail("wav", f"{title!r} ({str(error) or 'too short'})", "a WAV file in PCM")
    samples = _samples(frames[: len(frames) // (width * channels) * width * channels], width)
    mono = samples.reshape(-1, channels).mean(axis=1)
    if not mono.size or abs(mono).max() == 0:
        checks.fail("wav", f"{title!r}, without a sound", "one that is not silent")
    tokens = quantised(mono / abs(mono).max(), levels)
    parts = (TextSource(part, levels) for part in train_and_validation(tokens))
    return Sound(title, hashlib.sha256(frames).hexdigest(), rate, levels, *parts)


def write_wav(file: str | os.PathLike[str] | BinaryIO, samples: Array, rate: int) -> None:
    """Write samples (n,) in [-1, 1] as a WAV file of one channel and 16 bits.

    Parameters
    ----------
    file : path-like or binary file
    samples : (n,) array
        Beyond [-1, 1] they are clipped.
    rate : int
        Samples a second, at least 1.

    Raises
    ------
    ValueError
        If an argument does not fit, or the file cannot be written.
    """
    rate = checks.integer("rate", rate, minimum=1)
    if rate > _FASTEST:
        checks.fail("rate", rate, f"at most the {_FASTEST} that a WAV file can say")
    wave_form = checks.array("samples", samples)
    if wave_form.ndim != 1 or wave_form.size == 0 or not np.isfinite(wave_form).all():
        checks.fail(
            "samples", f"an array of shape {wave_form.shape}", "finite samples of shape (n,)"
        )
    scaled = np.clip(np.rint(wave_form * 32767.0), -32767, 32767).astype("<i2")
    with contextlib.ExitStack() as opened:
        target: Any = file
        if not hasattr(file, "write"):
            try:
                target = opened.enter_context(checks.path("file", file).open("wb"))
            except OSError as error:
                checks.fail(
                    "file", f"{str(file)!r} ({error.strerror})", "a file that can be written"
                )
        wav = opened.enter_context(wave.open(target, "wb"))
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(rate)
        wav.writeframes(scaled.tobytes())


def quantised(samples: Array, levels: int) -> Array:
    """Return samples in [-1, 1] as tokens 0..levels-1, after the mu-law."""
    companded = np.sign(samples) * np.log1p(_MU * abs(samples)) / np.log1p(_MU)
    tokens: Array = np.minimum((companded + 1) / 2 * levels, levels - 1).astype(np.int64)
    return tokens


def _samples(frames: bytes, width: int) -> Array:
    """Decode little-endian PCM; 8 bits are unsigned."""
    if width == 1:
        return np.frombuffer(frames, np.uint8).astype(np.float64) - 128
    if width == 3:
        octets = np.frombuffer(frames, np.uint8).reshape(-1, 3).astype(np.int32)
        value = octets[:, 0] | octets[:, 1] << 8 | octets[:, 2] << 16
        return np.asarray(value - ((value >> 23) << 24), np.float64)
    if width not in (2, 4):
        checks.fail("wav", f"samples of {8 * width} bits", "8, 16, 24 or 32")
    return np.frombuffer(frames, f"<i{width}").astype(np.float64)
