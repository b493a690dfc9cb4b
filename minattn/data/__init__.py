"""Sources of token windows: Markov chains and text, and the best loss that chains allow."""

from minattn.data.inference import masked_posterior, posterior
from minattn.data.markov import MarkovChain
from minattn.data.optimum import (
    masked_token_loss,
    next_token_loss,
    next_token_optimum,
    optimal_loss,
)
from minattn.data.text import Corpus, TextSource, load_text

__all__ = [
    "Corpus",
    "MarkovChain",
    "TextSource",
    "load_text",
    "masked_posterior",
    "masked_token_loss",
    "next_token_loss",
    "next_token_optimum",
    "optimal_loss",
    "posterior",
]
