"""Text as a source of token windows: the characters or the words of files that are at hand."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.data.reading import help_topics, read_path
from minattn.data.split import train_and_validation

UNKNOWN = "<unknown>"
"""The word that stands for all words outside the vocabulary."""

WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
"""A word: letters, digits and underscores, with inner apostrophes; or one punctuation sign."""

_VOCAB_SIZE = 512


@dataclass(frozen=True, eq=False, repr=False, init=False)
class TextSource:
    """A stretch of tokens from which windows are drawn.

    Parameters
    ----------
    tokens : (L,) array-like of int
        Symbols in 0..n_symbols-1.
    n_symbols : int
        Size of the vocabulary.

    Attributes
    ----------
    tokens : (L,) array of int64, read-only
    n_symbols : int

    Raises
    ------
    ValueError
        If `tokens` has another shape or symbols out of range.
    """

    tokens: Array
    n_symbols: int

    def __init__(self, tokens: Any, n_symbols: int) -> None:
        n_symbols = checks.integer("n_symbols", n_symbols, minimum=1)
        tokens = checks.integers("tokens", tokens, below=n_symbols).copy()
        if tokens.ndim != 1:
            checks.fail("tokens", f"shape {tokens.shape}", "shape (L,)")
        tokens.flags.writeable = False
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "n_symbols", n_symbols)

    def __repr__(self) -> str:
        return f"TextSource({len(self.tokens)} tokens, n_symbols={self.n_symbols})"

    def windows(self, N: int) -> int:
        """Count the windows of N consecutive tokens: L - N + 1, or 0 if the text is shorter."""
        return max(0, len(self.tokens) - checks.integer("N", N, minimum=1) + 1)

    def sample(self, B: int, N: int, rng: np.random.Generator) -> Array:
        """Draw windows uniformly, with replacement.

        Parameters
        ----------
        B, N : int
            Windows and tokens a window, at least 1.
        rng : numpy.random.Generator

        Returns
        -------
        (B, N) array of int64

        Raises
        ------
        ValueError
            If the text has fewer than N tokens (the message gives both numbers), a size is below 1
            or `rng` is not a generator.
        """
        B, windows = checks.integer("B", B, minimum=1), self.windows(N)
        if windows == 0:
            checks.fail("N", N, f"at most the {len(self.tokens)} tokens that there are")
        checks.generator("rng", rng)
        starts = rng.integers(windows, size=(B, 1))
        windows_drawn: Array = self.tokens[starts + np.arange(N)]
        return windows_drawn


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """A text, cut into tokens and split in two. Made by `load_text`.

    Attributes
    ----------
    name : str
        Where the text comes from.
    level : {"char", "word"}
    symbols : tuple of str
        What each token stands for.
    sha256 : str
        Hash of the text in UTF-8: equal hashes mean equal texts.
    unknown_share : float
        Share of the words that are outside the vocabulary; 0 at level "char".
    train, validation : TextSource
        The validation text is the last tenth of the tokens, rounded up.
    """

    name: str
    level: str
    symbols: tuple[str, ...]
    sha256: str
    unknown_share: float
    train: TextSource
    validation: TextSource

    def __repr__(self) -> str:
        tokens = len(self.train.tokens) + len(self.validation.tokens)
        return (
            f"Corpus({self.name!r}, level={self.level!r}, {tokens} tokens, "
            f"n_symbols={self.n_symbols}, sha256={self.sha256[:12]})"
        )

    @property
    def n_symbols(self) -> int:
        """Number of symbols, the unknown word among them at level "word"."""
        return len(self.symbols)

    def encode(self, text: str) -> Array:
        """Cut a text into tokens.

        Parameters
        ----------
        text : str

        Returns
        -------
        (L,) array of int64
            One token a character, or one a word, lower-cased.

        Raises
        ------
        ValueError
            At level "char", at a character that the corpus lacks; the message gives its position.
        """
        checks.text("text", text)
        if self.level == "word":
            return _word_tokens(_words(text), self._numbers)
        return _char_tokens(text, self.symbols)

    def decode(self, tokens: Any) -> str:
        """Turn tokens back into text.

        Parameters
        ----------
        tokens : (L,) array-like of int

        Returns
        -------
        str
            At level "char" exactly what was encoded; at level "word", words joined by spaces.

        Raises
        ------
        ValueError
            If `tokens` has another shape or symbols out of range.
        """
        tokens = checks.integers("tokens", tokens, below=self.n_symbols)
        if tokens.ndim != 1:
            checks.fail("tokens", f"shape {tokens.shape}", "shape (L,)")
        separator = " " if self.level == "word" else ""
        return separator.join([self.symbols[token] for token in tokens])

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}


def load_text(
    path: str | os.PathLike[str] | None = None, level: str = "char", vocab_size: int | None = None
) -> Corpus:
    """Read a text and cut it into tokens.

    Parameters
    ----------
    path : path-like, optional
        A file in UTF-8, or a folder: then all regular files in it and below whose path has no
        hidden part, sorted by path and joined by blank lines. Default: the help topics that come
        with Python (`pydoc_data.topics`), sorted by title and joined by blank lines. They change
        with the version of Python; `sha256` tells.
    level : {"char", "word"}
        "char": one symbol a character, sorted by code point. "word": one symbol a word or
        punctuation sign, as `WORD` finds them in the lower-cased text.
    vocab_size : int, optional
        At level "word", symbols at most, symbol 0 for unknown words among them: the most frequent
        words of the whole text are kept, ties in alphabetical order. Default: 512. At level
        "char" the text decides, and none may be given.

    Returns
    -------
    Corpus

    Raises
    ------
    ValueError
        If the path is missing, cannot be read, or is not UTF-8 (the message names the file), or if
        the text is empty or of one symbol only.
    """
    level = checks.one_of("level", level, ("char", "word"))
    if level == "word":
        size = checks.integer(
            "vocab_size", _VOCAB_SIZE if vocab_size is None else vocab_size, minimum=2
        )
    elif vocab_size is not None:
        checks.fail("vocab_size", vocab_size, 'None at level "char", where the text decides')
    name, text = help_topics() if path is None else read_path(path)
    if level == "char":
        symbols = tuple(sorted(set(text)))
        tokens = _char_tokens(text, symbols)
    else:
        words = _words(text)
        symbols = _vocabulary(words, size)
        tokens = _word_tokens(words, {symbol: number for number, symbol in enumerate(symbols)})
    found = len(np.unique(tokens))
    if found < 2:
        checks.fail(
            "path", f"a text of {len(tokens)} tokens, {found} different", "at least 2 different"
        )
    train, validation = train_and_validation(tokens)
    return Corpus(
        name=name,
        level=level,
        symbols=symbols,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        unknown_share=float(np.mean(tokens == 0)) if level == "word" else 0.0,
        train=TextSource(train, len(symbols)),
        validation=TextSource(validation, len(symbols)),
    )


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _vocabulary(words: list[str], vocab_size: int) -> tuple[str, ...]:
    """Return the unknown word, then the most frequent words."""
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return UNKNOWN, *(word for word, _ in ranked[: vocab_size - 1])


def _word_tokens(words: list[str], numbers: dict[str, int]) -> Array:
    return np.array([numbers.get(word, 0) for word in words], dtype=np.int64)


def _char_tokens(text: str, symbols: tuple[str, ...]) -> Array:
    """Look characters up among sorted symbols, or fail at the first that is not there."""
    codes, known = _code_points(text), _code_points("".join(symbols))
    tokens = np.searchsorted(known, codes)
    unknown = np.flatnonzero(np.append(known, 0)[tokens] != codes)
    if unknown.size:
        position = int(unknown[0])
        checks.fail(
            "text", f"{text[position]!r} at position {position}", "characters of the corpus"
        )
    return tokens.astype(np.int64, copy=False)


def _code_points(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
