"""Sources of token windows: chains, text, images, sound; and the best loss that chains allow."""

from minattn.data.audio import Sound, load_wav, write_wav
from minattn.data.images import ImageSet, ImageSource, load_digits
from minattn.data.inference import masked_posterior, posterior
from minattn.data.markov import MarkovChain
from minattn.data.nonstationary import DriftingChain, count_ratio
from minattn.data.optimum import (
    masked_token_loss,
    next_token_loss,
    next_token_optimum,
    optimal_loss,
)
from minattn.data.text import Corpus, TextSource, load_text

__all__ = [
    "Corpus",
    "DriftingChain",
    "ImageSet",
    "ImageSource",
    "MarkovChain",
    "Sound",
    "TextSource",
    "count_ratio",
    "load_digits",
    "load_text",
    "load_wav",
    "masked_posterior",
    "masked_token_loss",
    "next_token_loss",
    "next_token_optimum",
    "optimal_loss",
    "posterior",
    "write_wav",
]
