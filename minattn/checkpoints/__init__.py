"""W_q and W_k out of other people's model files, and the scores of W_qk = W_q W_k^T.

    for layer in minattn.checkpoints.read(path):
        minattn.checkpoints.score(layer)

Files: safetensors (single, or shards with an index), GGUF (with the extra `gguf`), and minattn's
own saves. `LAYOUTS` is the table of what is known of other libraries' files; its names are those
that the libraries document and write.
"""

from minattn.checkpoints.layer import Layer, Norm
from minattn.checkpoints.layouts import FAMILIES, LAYOUTS, Layout, Tower
from minattn.checkpoints.reader import Checkpoint, read
from minattn.checkpoints.rotary import Rotary
from minattn.checkpoints.scoring import DRAWS, Band, null_band, score, score_heads

__all__ = [
    "DRAWS",
    "FAMILIES",
    "LAYOUTS",
    "Band",
    "Checkpoint",
    "Layer",
    "Layout",
    "Norm",
    "Rotary",
    "Tower",
    "null_band",
    "read",
    "score",
    "score_heads",
]
