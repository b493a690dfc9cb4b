"""Images: windows that begin a row, quantised digits, a missing library said in one line."""

import builtins

import numpy as np
import pytest

from minattn.data import ImageSource, load_digits


def test_windows_begin_at_a_row_and_stay_within_an_image():
    tokens = np.arange(2 * 4 * 3).reshape(2, 4, 3)
    source = ImageSource(tokens, 24)
    windows = source.sample(200, 6, np.random.default_rng(0))
    assert windows.shape == (200, 6)
    starts = set(windows[:, 0].tolist())
    assert starts == {0, 3, 6, 12, 15, 18}
    assert (np.diff(windows, axis=1) == 1).all()
    whole = source.sample(20, 12, np.random.default_rng(0))
    assert set(whole[:, 0].tolist()) == {0, 12}


def test_images_are_copied_and_read_only():
    tokens = np.zeros((1, 2, 2), int)
    source = ImageSource(tokens, 3)
    tokens[:] = 2
    assert source.tokens.max() == 0
    assert not source.tokens.flags.writeable
    assert repr(source) == "ImageSource(1 images of 2 x 2, n_symbols=3)"


@pytest.mark.parametrize(
    ("tokens", "message"),
    [(np.zeros((2, 2), int), "tokens"), (np.zeros((0, 2, 2), int), "tokens"), ([[[3]]], "tokens")],
)
def test_bad_images_are_refused(tokens, message):
    with pytest.raises(ValueError, match=f"^{message}: got"):
        ImageSource(tokens, 3)


def test_windows_that_do_not_fit_are_refused():
    source = ImageSource(np.zeros((1, 2, 2), int), 3)
    with pytest.raises(ValueError, match=r"^N: got 5, needs at most the 4 pixels"):
        source.sample(1, 5, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"^rng: "):
        source.sample(1, 4, None)


@pytest.mark.parametrize("levels", [2, 8, 17])
def test_digits_fill_their_levels(levels):
    pytest.importorskip("sklearn")
    digits = load_digits(levels)
    tokens = [digits.train.tokens, digits.validation.tokens]
    assert [len(part) for part in tokens] == [1617, 180]
    assert set(np.unique(np.concatenate(tokens))) == set(range(levels))
    assert digits.train.n_symbols == digits.n_symbols == levels
    assert digits.sha256 == load_digits().sha256


def test_a_missing_library_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"^images: got no scikit-learn.*minattn\[images\]"):
        load_digits()


@pytest.mark.parametrize("levels", [1, 18])
def test_levels_out_of_range_are_refused(levels):
    with pytest.raises(ValueError, match=r"^levels: "):
        load_digits(levels)
