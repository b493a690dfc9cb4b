"""The configuration: what it accepts, what it resolves, what it refuses."""

import dataclasses

import numpy as np
import pytest

from minattn import TransformerConfig

SIZES = {"vocab_size": 5, "width": 12, "layers": 2, "heads": 3, "max_length": 7}
NOT_WHOLE = [1.0, 1.5, "2", None, True, np.True_, [2], np.nan]

BAD = {
    **{name: [0, -1, *NOT_WHOLE] for name in SIZES},
    "head_width": [0, -1, 1.0, "2", True],
    "feed_forward": [-1, *NOT_WHOLE],
    "attention": ["Softmax", "relu", "", None, 1],
    "norm": ["layer", "", None, False],
    "positions": [0, 1, "yes", None],
    "bias": [0, 1, "no", None],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in BAD for value in BAD[field]], ids=repr
)
def test_a_bad_value_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"^{field}: got .*, needs "):
        TransformerConfig(**SIZES | {field: value})


def test_every_field_has_bad_values():
    assert BAD.keys() == {field.name for field in dataclasses.fields(TransformerConfig)}


def test_the_defaults():
    config = TransformerConfig(**SIZES)
    assert dataclasses.asdict(config) == SIZES | {
        "head_width": 4,
        "attention": "softmax",
        "norm": "none",
        "feed_forward": 0,
        "positions": True,
        "bias": False,
    }
    assert (config.h, config.mask_symbol) == (4, 5)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_required(name):
    sizes = {key: size for key, size in SIZES.items() if key != name}
    with pytest.raises(TypeError, match=name):
        TransformerConfig(**sizes)


@pytest.mark.parametrize(
    ("width", "heads", "head_width", "h"),
    [(12, 3, None, 4), (12, 1, None, 12), (12, 12, None, 1), (12, 3, 5, 5), (10, 3, 2, 2)],
)
def test_the_width_of_a_head(width, heads, head_width, h):
    sizes = SIZES | {"width": width, "heads": heads, "head_width": head_width}
    config = TransformerConfig(**sizes)
    assert config.head_width == config.h == h


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"width: got 10, needs a multiple of heads \(3\)"):
        TransformerConfig(**SIZES | {"width": 10})


@pytest.mark.parametrize(
    "choice",
    [
        *({"attention": kind} for kind in ("softmax", "linear")),
        *({"norm": kind} for kind in ("none", "pre", "post")),
        {"feed_forward": 1},
        {"positions": False},
        {"bias": np.True_},
    ],
    ids=str,
)
def test_choices_are_kept(choice):
    ((name, value),) = choice.items()
    assert getattr(TransformerConfig(**SIZES, **choice), name) == value


def test_numpy_numbers_become_plain_ones():
    config = TransformerConfig(**{name: np.int64(size) for name, size in SIZES.items()})
    assert config == TransformerConfig(**SIZES)
    assert all(type(value) is int for value in (config.width, config.h, config.vocab_size))


@pytest.mark.parametrize("name", BAD)
def test_a_config_is_frozen(name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(TransformerConfig(**SIZES), name, 1)


def test_replacing_checks_again():
    config = TransformerConfig(**SIZES)
    assert dataclasses.replace(config, width=6, head_width=None).h == 2
    with pytest.raises(ValueError, match="layers"):
        dataclasses.replace(config, layers=0)


def test_equal_configs_are_equal_and_hash_alike():
    one, other = TransformerConfig(**SIZES), TransformerConfig(**SIZES, head_width=4)
    assert one == other
    assert len({one, other, TransformerConfig(**SIZES, bias=True)}) == 2
