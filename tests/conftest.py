"""What all tests share: one BLAS thread, a Hypothesis profile, the engines."""

from __future__ import annotations

import os

# Read when NumPy loads. With more threads products may round in another order from call to call.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from minattn.engines import get_threads, set_threads

settings.register_profile(
    "minattn",
    deadline=None,  # the first call of a compiled kernel compiles it
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no failure
    max_examples=20,
    derandomize=os.environ.get("CI", "").lower() == "true",
)
settings.load_profile("minattn")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how to run the tests in this order again."""
    seed = getattr(config.option, "randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"in the order of -p randomly --randomly-seed={seed}")


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    """Leave the number of threads as the test found it."""
    threads = get_threads()
    yield
    set_threads(threads)


@pytest.fixture(scope="session", params=["numpy", "numba"])
def engine(request: pytest.FixtureRequest) -> str:
    """Name of an engine; of session scope, so that property tests may use it."""
    return str(request.param)
