"""The engine "cupy" on the stand-in for a GPU."""

import cuda_on_cpu
import fake_cupy
import pytest


@pytest.fixture(scope="module")
def device():
    """Let `import cupy` find the stand-in, for tests of one file; kernels need a compiler."""
    if cuda_on_cpu.COMPILER is None:
        pytest.skip("no g++ to compile kernels for the CPU")
    with fake_cupy.installed():
        yield fake_cupy
