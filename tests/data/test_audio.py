"""WAV files: every width decoded, channels averaged, levels filled, bad files named."""

import io
import wave

import numpy as np
import pytest

from minattn.data import load_wav, write_wav
from minattn.data.audio import quantised

WAVE = np.array([0.0, 0.5, 1.0, 0.25, -0.25, -1.0, -0.5, 0.0, 0.75, -0.75])


def encoded(samples, width, channels=1):
    """WAV bytes of samples in [-1, 1], written bit by bit."""
    top = 2 ** (8 * width - 1) - 1
    values = [round(float(s) * top) + (128 if width == 1 else 0) for s in samples]
    frames = b"".join(v.to_bytes(width, "little", signed=width > 1) for v in values)
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(channels)
        wav.setsampwidth(width)
        wav.setframerate(8000)
        wav.writeframes(frames)
    file.seek(0)
    return file


def tokens_of(sound):
    return np.concatenate([sound.train.tokens, sound.validation.tokens])


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_width_gives_the_same_tokens(width):
    sound = load_wav(encoded(WAVE, width), levels=8)
    np.testing.assert_array_equal(tokens_of(sound), quantised(WAVE, 8))
    assert (sound.rate, sound.n_symbols, len(sound.validation.tokens)) == (8000, 8, 1)


def test_channels_are_averaged():
    stereo = np.stack([WAVE, WAVE], axis=1).ravel()
    sound = load_wav(encoded(stereo, 2, channels=2), levels=8)
    np.testing.assert_array_equal(tokens_of(sound), quantised(WAVE, 8))


def test_levels_are_symmetric_and_all_reached():
    samples = np.linspace(-1, 1, 10001)
    tokens = quantised(samples, 16)
    assert set(tokens) == set(range(16))
    assert (np.diff(tokens) >= 0).all()
    np.testing.assert_array_equal(tokens[samples > 0], 15 - tokens[samples < 0][::-1])


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "tone.wav"
    write_wav(path, 2 * WAVE, 8000)  # clipped
    sound = load_wav(path, levels=8)
    np.testing.assert_array_equal(tokens_of(sound), quantised(np.clip(2 * WAVE, -1, 1), 8))
    assert sound.name == "tone.wav"
    assert load_wav(path, name="a tone").sha256 == sound.sha256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "too short"),
        (b"no sound at all", "RIFF"),
        ("silent", "silent"),
    ],
)
def test_files_that_hold_no_sound_are_named(tmp_path, content, message):
    path = tmp_path / "file.wav"
    if content == "silent":
        write_wav(path, np.zeros(10), 8000)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^wav: got 'file.wav'") as caught:
        load_wav(path)
    assert message in str(caught.value)


def test_bad_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^levels: "):
        load_wav(tmp_path / "file.wav", levels=1)
    with pytest.raises(ValueError, match=r"^rate: "):
        write_wav(tmp_path / "file.wav", WAVE, 0)
