"""What a model is: sizes and choices, validated when made."""

from __future__ import annotations

from dataclasses import dataclass

from minattn import checks

ATTENTIONS = ("softmax", "linear")
NORMS = ("none", "pre", "post")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices of a model; together with a dict of arrays it is the whole model.

    Parameters
    ----------
    vocab_size : int
        Number of symbols V. Token V, one beyond, is the mask symbol: legal as input only.
    width : int
        Model width d.
    layers : int
        Number of layers, each attention followed by an optional feed-forward part.
    heads : int
        Number of heads H.
    max_length : int
        Longest sequence that the position embedding covers.
    head_width : int, optional
        Width h of a head; ``width / heads`` when not given, and resolved when the config is made
        (so `dataclasses.replace` of `width` or `heads` needs ``head_width=None`` beside it).
    attention : {"softmax", "linear"}
        Weights are the softmax of the scaled scores over the allowed keys, or the scaled scores
        themselves (the form that the theory differentiates).
    norm : {"none", "pre", "post"}
        Layer norm before each part, after each residual sum, or nowhere.
    feed_forward : int
        Hidden width f of the feed-forward part; 0 leaves it out.
    positions : bool
        Whether a learned position embedding is added to the token embedding.
    bias : bool
        Whether the linear maps inside the layers have biases.

    Raises
    ------
    ValueError
        If a value is out of range, of the wrong type, or does not fit the others.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    max_length: int
    head_width: int | None = None
    attention: str = "softmax"
    norm: str = "none"
    feed_forward: int = 0
    positions: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads", "max_length"):
            self._set(name, checks.integer(name, getattr(self, name), minimum=1))
        self._set("feed_forward", checks.integer("feed_forward", self.feed_forward, minimum=0))
        if self.head_width is None:
            if self.width % self.heads:
                checks.fail(
                    "width", self.width, f"a multiple of heads ({self.heads}), or a head_width"
                )
            self._set("head_width", self.width // self.heads)
        self._set("head_width", checks.integer("head_width", self.head_width, minimum=1))
        checks.one_of("attention", self.attention, ATTENTIONS)
        checks.one_of("norm", self.norm, NORMS)
        self._set("positions", checks.flag("positions", self.positions))
        self._set("bias", checks.flag("bias", self.bias))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def h(self) -> int:
        """Width of a head, the symbol h of the formulas."""
        assert self.head_width is not None
        return self.head_width

    @property
    def mask_symbol(self) -> int:
        """The token that hides another: V."""
        return self.vocab_size
