"""What the README's table of what is reproducible promises, where no other test does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minattn as ma

ROOT = Path(__file__).parent.parent
CONFIG = ma.TransformerConfig(vocab_size=4, width=8, layers=2, heads=2, max_length=6, norm="pre")
EXPECTED = [2.130444759273579, 1.413255071615637, 1.3819191729825508]
OPTIONS = {"steps": 20, "batch_size": 4, "length": 6, "optimizer": ma.SGD(0.5)}


class Counted:
    """Windows that follow from the generator's whole numbers alone."""

    n_symbols = 4

    def sample(self, B, N, rng):
        return (rng.integers(4, size=(B, 1)) + np.arange(N)) % 4


def run(**options):
    objective = ma.MaskedToken(mask_symbol=4, rate=0.5)
    return ma.fit(CONFIG, ma.init_params(CONFIG), Counted(), objective, **OPTIONS | options)


IN_ANOTHER_PROCESS = """
import hashlib, test_reproducible
params = test_reproducible.run(engine={engine!r}).params
for name in sorted(params):
    print(name, hashlib.sha256(params[name].tobytes()).hexdigest())
"""


def test_another_process_gives_the_same_bits(engine):
    def printed(hash_seed):
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        return subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS.format(engine=engine)],
            env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    first = printed("1")
    assert first.count("\n") == len(ma.parameter_shapes(CONFIG))
    assert printed("2") == first


@pytest.mark.parametrize("threads", [2, 3])
def test_another_number_of_threads_agrees_to_rounding(threads):
    # Large enough that the batch is cut among the threads, and its sums are taken in another order.
    options = {"batch_size": 600, "steps": 3, "engine": "numba"}
    ma.set_threads(1)
    alone = run(**options).params
    ma.set_threads(threads)
    for name, value in run(**options).params.items():
        np.testing.assert_allclose(value, alone[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_another_version_of_numpy_agrees_to_rounding():
    """The losses that NumPy 2.0 and 2.4 gave: the same draws, and sums in whatever order."""
    losses = run(engine="numpy", record_every=10).metrics["loss"][:, 0]
    np.testing.assert_allclose(losses, EXPECTED, rtol=1e-10)


def test_another_seed_gives_other_numbers_and_the_same_verdict():
    claims = [ma.theorems.check("Prop A.7", seed=seed) for seed in range(3)]
    assert len({claim.measured for claim in claims}) == 3
    assert len({claim.verdict for claim in claims}) == 1


def test_every_row_of_the_table_points_at_a_test_that_is_there():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"`(test_\w+\.py|\w+/test_\w+\.py)::(test_\w+)`", readme)
    assert len(rows) >= 8
    for file, name in rows:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), name
