"""Small images as sequences of quantised pixels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.data.split import train_and_validation

_BRIGHTEST = 16  # of a pixel in scikit-learn's digits


@dataclass(frozen=True, eq=False, repr=False, init=False)
class ImageSource:
    """Images from which windows of consecutive pixels are drawn, row by row.

    Parameters
    ----------
    tokens : (n, rows, columns) array-like of int
        Quantised pixels in 0..n_symbols-1.
    n_symbols : int

    Attributes
    ----------
    tokens : (n, rows, columns) array of int64, read-only
    n_symbols : int

    Raises
    ------
    ValueError
        If `tokens` has another shape, no image, or symbols out of range.
    """

    tokens: Array
    n_symbols: int

    def __init__(self, tokens: Any, n_symbols: int) -> None:
        n_symbols = checks.integer("n_symbols", n_symbols, minimum=1)
        tokens = checks.integers("tokens", tokens, below=n_symbols).copy()
        if tokens.ndim != 3 or tokens.size == 0:
            checks.fail(
                "tokens", f"shape {tokens.shape}", "shape (n, rows, columns), none of them 0"
            )
        tokens.flags.writeable = False
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "n_symbols", n_symbols)

    def __repr__(self) -> str:
        n, rows, columns = self.tokens.shape
        return f"ImageSource({n} images of {rows} x {columns}, n_symbols={self.n_symbols})"

    def sample(self, B: int, N: int, rng: np.random.Generator) -> Array:
        """Draw windows that begin at the start of a row and stay within one image.

        Parameters
        ----------
        B, N : int
            Windows and tokens a window; N at most the pixels of an image. Of an image's windows
            each is as likely.
        rng : numpy.random.Generator

        Returns
        -------
        (B, N) array of int64

        Raises
        ------
        ValueError
            If a size is out of range or `rng` is not a generator.
        """
        B, N = checks.integer("B", B, minimum=1), checks.integer("N", N, minimum=1)
        n, rows, columns = self.tokens.shape
        if rows * columns < N:
            checks.fail("N", N, f"at most the {rows * columns} pixels of an image")
        checks.generator("rng", rng)
        images = rng.integers(n, size=(B, 1))
        starts = columns * rng.integers((rows * columns - N) // columns + 1, size=(B, 1))
        return np.asarray(self.tokens.reshape(n, -1)[images, starts + np.arange(N)])


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images, split in two. Made by `load_digits`.

    Attributes
    ----------
    name : str
        Where the images come from.
    sha256 : str
        Hash of their pixels before quantisation.
    n_symbols : int
        Levels of brightness.
    train, validation : ImageSource
        The validation images are the last tenth, rounded up.
    """

    name: str
    sha256: str
    n_symbols: int
    train: ImageSource
    validation: ImageSource


def load_digits(levels: int = 8) -> ImageSet:
    """Return scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels, from its wheel.

    Parameters
    ----------
    levels : int
        Of brightness, at least 2 and at most the 17 that there are; equally wide.

    Returns
    -------
    ImageSet

    Raises
    ------
    ValueError
        If `levels` is out of range, or scikit-learn is not installed.
    """
    levels = checks.integer("levels", levels, minimum=2)
    if levels > _BRIGHTEST + 1:
        checks.fail("levels", levels, f"at most the {_BRIGHTEST + 1} that there are")
    try:
        from sklearn import datasets
    except ImportError:
        checks.fail("images", "no scikit-learn", "it: pip install 'minattn[images]'")
    pixels = datasets.load_digits().images.astype(np.int64)
    digest = hashlib.sha256(pixels.astype(np.uint8).tobytes()).hexdigest()
    tokens = pixels * levels // (_BRIGHTEST + 1)
    parts = (ImageSource(part, levels) for part in train_and_validation(tokens))
    return ImageSet("scikit-learn's digits", digest, levels, *parts)
