"""A statement of one's own in the ledger: what it takes for granted can be altered."""

import minattn as ma
from minattn.theorems import Outcome, verdicts


@ma.theorems.statement(
    "Row sums", text="the coefficients of each query sum to 0", source="notebook",
    assumptions="softmax attention", method="identity", predicted="0: sum over the largest",
    rule="every sum is rounding", draws=5)  # fmt: skip
def row_sums(trial, *, attention="softmax"):
    sizes = {"vocab_size": 5, "width": 8, "layers": 2, "heads": 2, "max_length": 6}
    config = ma.TransformerConfig(**sizes, attention=attention)
    off = []
    for _ in range(trial.draws):
        params = ma.init_params(config, seed=int(trial.rng.integers(2**32)))
        batch = ma.next_token(trial.rng.integers(5, size=(3, 7)))
        beta = ma.implicit_update(config, params, ma.loss_and_grad(config, params, batch)[2]).beta
        off.append(abs(beta.sum(axis=-1)).max() / abs(beta).max())
    return Outcome(max(off), (min(off), max(off)), verdicts.identity_rule(off), "Softmax shares.")


print(ma.theorems.check("Row sums").verdict)  # holds exactly
print(ma.theorems.check("Row sums", attention="linear").verdict)  # does not hold
