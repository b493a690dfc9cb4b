"""What the tests of the statements share."""

import pytest

from minattn.theorems import sampling


@pytest.fixture(scope="module")
def hardly_any_chance():
    """Let intervals miss once in ten million times, for tests that draw other seeds in every run.

    They ask for some 300 families of intervals a run: at the error that the statements allow
    themselves, of one in ten thousand, one run in a hundred might fail though nothing is wrong.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "ERROR", 1e-7)
        yield
