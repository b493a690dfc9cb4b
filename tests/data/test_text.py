"""Text: exact round trips, honest vocabularies, windows that are all drawn."""

import dataclasses
import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.data import TextSource, load_text

FABLE = "The fox isn't here. The fox, the FOX!\nA crow: caw, caw.\n"


@pytest.fixture
def write(tmp_path):
    def written(text, name="text.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return written


# Characters


def test_characters_are_sorted_and_survive_a_round_trip(write):
    corpus = load_text(write("b\r\na\0\u00e9\U0001f98a\ufeffab"))
    assert corpus.symbols == ("\0", "\n", "\r", "a", "b", "\u00e9", "\ufeff", "\U0001f98a")
    assert (corpus.level, corpus.n_symbols, corpus.unknown_share) == ("char", 8, 0.0)
    np.testing.assert_array_equal(corpus.encode("ab\U0001f98a\0"), [3, 4, 7, 0])
    tokens = np.concatenate([corpus.train.tokens, corpus.validation.tokens])
    assert tokens.dtype == np.int64
    assert corpus.decode(tokens) == "b\r\na\0\u00e9\U0001f98a\ufeffab"
    assert corpus.encode("").shape == (0,)
    assert corpus.decode(corpus.encode("")) == ""


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet=st.sampled_from(FABLE)))
def test_any_text_of_known_characters_survives_a_round_trip(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "fable.txt"
    file.write_text(FABLE, newline="")
    corpus = load_text(file)
    assert corpus.decode(corpus.encode(text)) == text


@pytest.mark.parametrize("unknown", ["!", "~", "\U0001f98a", "\0", "\ud800"])
def test_an_unknown_character_is_named_with_its_position(write, unknown):
    corpus = load_text(write("a#bc"))
    with pytest.raises(
        ValueError, match=r"^text: got .* at position 2, needs characters"
    ) as caught:
        corpus.encode("ab" + unknown + "?")
    assert repr(unknown) in str(caught.value)


def test_encode_and_decode_reject_other_types(write):
    corpus = load_text(write("ab"))
    with pytest.raises(ValueError, match=r"^text: got 5, needs a string"):
        corpus.encode(5)
    with pytest.raises(ValueError, match=r"^tokens: got the value 2"):
        corpus.decode([0, 2])
    with pytest.raises(ValueError, match=r"^tokens: got shape \(1, 2\)"):
        corpus.decode([[0, 1]])


def test_the_hash_is_that_of_the_file(write):
    text = "caf\u00e9\r\n".encode()
    corpus = load_text(write(text, "a.txt"))
    assert corpus.sha256 == hashlib.sha256(text).hexdigest()
    assert corpus.name == "a.txt"
    assert "'a.txt'" in repr(corpus)
    assert "6 tokens" in repr(corpus)


# Words


def test_words_are_lower_cased_counted_and_ties_are_alphabetical(write):
    corpus = load_text(write(FABLE), level="word")
    assert corpus.symbols == (
        *("<unknown>", "fox", "the"),
        *(",", ".", "caw"),
        *("!", ":", "a", "crow", "here", "isn't"),
    )
    assert corpus.decode(corpus.encode("The  fox; ISN'T!")) == "the fox <unknown> isn't !"
    assert corpus.unknown_share == 0.0


def test_a_small_vocabulary_keeps_the_most_frequent_words(write):
    corpus = load_text(write(FABLE), level="word", vocab_size=4)
    assert corpus.symbols == ("<unknown>", "fox", "the", ",")
    assert corpus.unknown_share == pytest.approx(10 / 18)
    np.testing.assert_array_equal(corpus.encode("The crow, the fox"), [2, 0, 3, 2, 1])


def test_the_word_for_unknown_words_cannot_occur_in_a_text(write):
    corpus = load_text(write("<unknown> <unknown>"), level="word")
    assert corpus.symbols == ("<unknown>", "<", ">", "unknown")
    np.testing.assert_array_equal(corpus.encode("<unknown>"), [1, 3, 2])


def test_the_default_vocabulary_has_512_words(write):
    corpus = load_text(write(" ".join(f"w{i}" for i in range(600))), level="word")
    assert corpus.n_symbols == 512
    assert corpus.unknown_share == pytest.approx(89 / 600)


# The two parts


@pytest.mark.parametrize(("length", "held_out"), [(2, 1), (10, 1), (11, 2), (100, 10)])
def test_the_last_tenth_is_for_validation(write, length, held_out):
    text = ("ab" * length)[:length]
    corpus = load_text(write(text))
    assert corpus.decode(corpus.train.tokens) == text[: length - held_out]
    assert corpus.decode(corpus.validation.tokens) == text[length - held_out :]
    assert corpus.train.n_symbols == corpus.validation.n_symbols == 2


# Windows


def test_a_text_of_as_many_tokens_as_a_window_has_one():
    source = TextSource([2, 0, 1], n_symbols=3)
    assert [source.windows(N) for N in (1, 2, 3, 4, 9)] == [3, 2, 1, 0, 0]
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(source.sample(2, 3, rng), [[2, 0, 1]] * 2)
    with pytest.raises(ValueError, match=r"^N: got 4, needs at most the 3 tokens"):
        source.sample(2, 4, rng)


def test_windows_are_drawn_uniformly_and_are_windows():
    source = TextSource(np.arange(10), n_symbols=10)
    windows = source.sample(7000, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(windows, windows[:, :1] + np.arange(4))
    counts = np.bincount(windows[:, 0], minlength=10)
    np.testing.assert_array_equal(counts[7:], 0)
    assert np.abs(counts[:7] - 1000).max() <= 5 * np.sqrt(7000 * 1 / 7 * 6 / 7)


def test_windows_are_fixed_by_the_generator_and_belong_to_the_caller():
    source = TextSource(np.arange(10), n_symbols=10)
    first, again = (source.sample(4, 3, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    first[:] = 0
    np.testing.assert_array_equal(source.tokens, np.arange(10))
    with pytest.raises(ValueError, match="read-only"):
        source.tokens[0] = 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 2, np.random.default_rng(0)), "B: got 0"),
        ((1, 0, np.random.default_rng(0)), "N: got 0"),
        ((1, 2.0, np.random.default_rng(0)), "N: got 2.0"),
        ((1, 2, np.random), "rng: got"),
    ],
)
def test_sample_rejects_bad_arguments(arguments, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        TextSource([0, 1, 0], n_symbols=2).sample(*arguments)


def test_a_source_neither_freezes_nor_follows_its_argument():
    tokens = np.array([0, 1, 0])
    source = TextSource(tokens, n_symbols=2)
    tokens[0] = 1
    np.testing.assert_array_equal(source.tokens, [0, 1, 0])


def test_a_source_rejects_tokens_out_of_range():
    with pytest.raises(ValueError, match=r"^tokens: got the value 2"):
        TextSource([0, 2], n_symbols=2)
    with pytest.raises(ValueError, match=r"^tokens: got shape \(1, 2\)"):
        TextSource([[0, 1]], n_symbols=2)


# Where text comes from


def test_the_default_text_is_at_hand():
    corpus = load_text()
    assert corpus.name == "pydoc_data.topics"
    assert len(corpus.train.tokens) > 100_000
    assert 50 < corpus.n_symbols < 500
    assert "assert" in corpus.decode(corpus.train.tokens[:2000])
    assert corpus.sha256 == load_text(level="word").sha256


def test_a_folder_is_its_visible_files_in_order(write, tmp_path):
    write("two", "folder/b.txt")
    write("one", "folder/a/z.txt")
    write("no", "folder/.hidden")
    write("no", "folder/.git/config")
    write("three", "folder/c")
    corpus = load_text(tmp_path / "folder")
    assert corpus.name == "folder"
    assert corpus.sha256 == hashlib.sha256(b"one\n\ntwo\n\nthree").hexdigest()


def test_a_folder_may_itself_be_hidden(write, tmp_path):
    write("text", ".hidden/a.txt")
    assert load_text(str(tmp_path / ".hidden")).symbols == ("e", "t", "x")


def test_a_file_that_is_not_utf8_is_named(write, tmp_path):
    write("fine", "a.txt")
    write(b"ab\xff", "b.bin")
    for path in (tmp_path, tmp_path / "b.bin"):
        with pytest.raises(ValueError, match=r"^path: got .*b.bin', not UTF-8 at byte 2"):
            load_text(path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_named(write, tmp_path):
    file = write("secret", "folder/a.txt")
    for locked in (file, file.parent):
        mode = locked.stat().st_mode
        locked.chmod(0)
        with pytest.raises(ValueError, match=r"^path: got .*Permission denied"):
            load_text(tmp_path)
        locked.chmod(mode)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("missing.txt", "'missing.txt', needs an existing file or folder"),
        ("", "'', needs an existing"),
        ("a whole text in place of a path\n" * 300, "'a whole text"),
        ("nul\0byte", "'nul"),
        (5, "5, needs an existing"),
        (b"bytes", "b'bytes', needs an existing"),
    ],
)
def test_what_is_no_path_is_rejected(path, said):
    with pytest.raises(ValueError, match=f"^path: got {said}"):
        load_text(path)


def test_an_empty_folder_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"^path: got the folder .* without a file"):
        load_text(tmp_path)


@pytest.mark.parametrize("level", ["char", "word"])
@pytest.mark.parametrize(
    ("text", "said"), [("", "0 tokens"), ("aaaa", "tokens, 1 different"), ("a", "1 tokens")]
)
def test_a_text_without_two_symbols_is_rejected(write, level, text, said):
    with pytest.raises(ValueError, match=f"^path: got a text of .*{said}.*at least 2 different"):
        load_text(write(text), level=level)


def test_a_text_of_one_word_repeated_is_rejected_only_as_words(write):
    file = write("caw caw")
    assert load_text(file).n_symbols == 4
    with pytest.raises(ValueError, match="2 tokens, 1 different"):
        load_text(file, level="word")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"level": "byte"}, "level: got 'byte', needs one of 'char', 'word'"),
        ({"vocab_size": 100}, 'vocab_size: got 100, needs None at level "char"'),
        ({"level": "word", "vocab_size": 1}, "vocab_size: got 1, needs an integer of at least 2"),
        ({"level": "word", "vocab_size": 9.5}, "vocab_size: got 9.5"),
    ],
)
def test_arguments_that_do_not_fit_are_rejected_before_reading(arguments, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        load_text("missing.txt", **arguments)


def test_a_corpus_does_not_change(write):
    corpus = load_text(write("ab"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.level = "word"
