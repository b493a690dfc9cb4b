"""minattn: watch self-attention write its training objective into W_qk = W_q W_k^T.

The public names below load on first use; importing minattn imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "TransformerConfig": "config",
    "init_params": "params",
    "parameter_shapes": "params",
    "W_qk": "params",
    "forward": "model",
    "backward": "model",
    "loss_and_grad": "step",
    "mean_loss": "step",
    "Batch": "objectives",
    "next_token": "objectives",
    "MaskedToken": "objectives",
    "implicit_update": "update",
    "prove_update": "update",
    "symmetry": "scores",
    "directionality": "scores",
    "dispersion": "scores",
    "scores_from_factors": "scores",
    "Scores": "scores",
    "SGD": "optim",
    "AdamW": "optim",
    "account": "observers",
    "held_out_loss": "observers",
    "fit": "training",
    "History": "training",
    "Claim": "claims",
    "set_threads": "engines",
}
_MODULES = (
    "checkpoints",
    "claims",
    "data",
    "engines",
    "optim",
    "plots",
    "scores",
    "testing",
    "theorems",
)

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
